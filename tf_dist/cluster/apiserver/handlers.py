"""Request handlers: the router, the REST verbs, and the log and eviction of pods."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.cluster.api import LogOptions, Object, PatchType, Resource, Stream, WatchEvent
from tf_dist.cluster.api_errors import BadRequest, Invalid, MethodNotAllowed, UnsupportedMediaType, status_from_error
from tf_dist.cluster.apiserver.discovery import OPENAPI_V2_PROTOBUF, discovery_document
from tf_dist.cluster.apiserver.printing import ObjectFormat, negotiate_format
from tf_dist.cluster.apiserver.requests import (
    APPLY_PATCH,
    Request,
    ResourcePath,
    Response,
    StreamResponse,
    json_line,
    parse_path,
)
from tf_dist.cluster.apiserver.storage.api_resources import Kind
from tf_dist.cluster.apiserver.storage.garbage_collector import POLICIES, DeleteOptions
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.apiserver.storage.object_admission import unmarshal_error
from tf_dist.core.model.timestamps import parse_time
from tf_dist.core.openapi.kubernetes_types import UNKNOWN, type_mistakes
from tf_dist.errors import ClusterError, NotFound, Problem

_log = logging.getLogger(__name__)
_HEALTH: Final = ("/healthz", "/livez", "/readyz")
ADDRESSES_PATH: Final = "/tf-dist/addresses"
"""The kubeconfig names this path on a cluster without DNS. Clients request it from no other server."""
_NO_RESOURCE: Final = "the server could not find the requested resource"
_NO_METHOD: Final = "the server does not allow this method on the requested resource"
# As in an API server, a watch without a timeout ends after a while, so that clients reconnect at different times.
_WATCH_SECONDS: Final = 1800
_SUCCESS: Final = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
# The kinds whose deletion returns the object instead of a Status.
_RETURNED: Final = frozenset({"pods", "services", "persistentvolumeclaims", "serviceaccounts"})


class Router:
    """Handles requests for one cluster. Thread-safe, like the cluster."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.url = ""

    def handle(self, request: Request) -> Response | StreamResponse:
        """The response to a request; never raises."""
        route = ResourcePath("", "")
        try:
            if request.path == ADDRESSES_PATH and request.method == "POST":
                return _addresses(self._cluster, request)
            if found := self._document(request):
                return found
            route = parse_path(request.path)
            return _call(self._cluster, request, route)
        except ClusterError as error:
            return error_response(error, route)
        except Exception:
            _log.exception("failed to handle request: method=%s path=%s", request.method, request.path)
            return error_response(
                ClusterError("internal error of the embedded cluster: its log has the details"), route
            )

    def _document(self, request: Request) -> Response | None:
        """The documents that describe the server; None for every other path."""
        path = request.path.rstrip("/") or "/"
        if path.startswith(_HEALTH):
            return Response(200, "ok", "text/plain")
        parts = path.strip("/").split("/")
        longest = {"": 1, "version": 1, "api": 2, "apis": 3, "openapi": 2}.get(parts[0], 0)
        if len(parts) > longest:
            return None
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(_NO_METHOD)
        if parts == ["openapi", "v2"] and "proto-openapi" in request.accept:
            return Response(200, "", OPENAPI_V2_PROTOBUF)
        return Response(200, discovery_document(parts, tuple(self._cluster.kinds), self.url))


def error_response(error: ClusterError, route: ResourcePath) -> Response:
    """The Status of an error, as a response."""
    status = status_from_error(error, name=route.name, group=route.group, kind=route.plural)
    retry = status.get("details", {}).get("retryAfterSeconds")
    return Response(status["code"], status, headers={"Retry-After": str(retry)} if retry else {})


def _addresses(cluster: MemoryCluster, request: Request) -> Response:
    """The addresses of the endpoints of a job; BadRequest."""
    body = request.document()
    try:
        owner, endpoints = body["owner"], [str(endpoint) for endpoint in body["endpoints"]]
        metadata = owner["metadata"]
        names = metadata["name"], metadata["namespace"], metadata["uid"], owner["apiVersion"], owner["kind"]
    except (KeyError, TypeError) as error:
        raise BadRequest(f"the body needs the owner with its type and metadata, and endpoints: {error}") from error
    if not all(isinstance(value, str) and value for value in names):
        raise BadRequest("the owner needs apiVersion, kind, metadata.name, namespace and uid")
    return Response(200, {"kind": "Addresses", "addresses": dict(cluster.addresses(owner, endpoints))})


@dataclass(frozen=True, slots=True)
class _Call:
    """A request about objects of a kind."""

    cluster: MemoryCluster
    request: Request
    route: ResourcePath
    kind: Kind
    resource: Resource  # the kind, at the version that the path names

    @property
    def target(self) -> tuple[Resource, str | None, str]:
        """The object, as arguments of the cluster's verbs."""
        return self.resource, self.route.namespace, self.route.name

    @property
    def selectors(self) -> dict[str, Any]:
        """The label and the field selector, as arguments of the cluster's verbs."""
        query = self.request.query
        return {"labels": query.get("labelSelector", ""), "fields": query.get("fieldSelector", "")}

    @property
    def write(self) -> dict[str, Any]:
        """The subresource to write, and whether this is a dry run, as arguments of the cluster's verbs."""
        return {"subresource": self.route.subresource, "dry_run": self.request.dry_run}

    @property
    def format(self) -> ObjectFormat:
        """The format that the client accepts."""
        return negotiate_format(self.request, self.kind, self.resource, self.cluster.clock())

    def shown(self, obj: Object, code: int = 200) -> Response:
        """One object as a response."""
        return Response(code, self.format.one(obj))

    def body(self) -> Object:
        """The body, which must be an object; BadRequest."""
        body = self.request.document()
        if not isinstance(body, dict):
            raise BadRequest("the body of the request must be an object")
        return body


def _call(cluster: MemoryCluster, request: Request, route: ResourcePath) -> Response | StreamResponse:
    kind = cluster.kinds.find(route.group, route.version, route.plural)
    own = kind.resource
    if route.namespace and not own.namespaced:
        raise NotFound(_NO_RESOURCE)
    verbs = _COLLECTION
    if route.subresource == "status" and kind.status:
        verbs = _STATUS
    elif route.subresource:
        verbs = _POD_SUBRESOURCES.get(route.subresource, {}) if kind.key == "pods" and route.namespace else {}
        if not verbs:
            raise NotFound(_NO_RESOURCE)
    elif route.name:
        verbs = _OBJECT
    if request.method not in verbs:
        raise MethodNotAllowed(_NO_METHOD)
    resource = Resource(own.group, route.version, own.kind, own.plural, own.namespaced)
    return verbs[request.method](_Call(cluster, request, route, kind, resource))


def _get(call: _Call) -> Response:
    return call.shown(call.cluster.get(*call.target))


def _list_or_watch(call: _Call) -> Response | StreamResponse:
    request, query = call.request, call.request.query
    if not request.flag("watch"):
        limit, continue_ = request.number("limit") or 0, query.get("continue", "")
        found = call.cluster.list(*call.target[:2], **call.selectors, limit=limit, continue_=continue_)
        return Response(200, call.format.many(found))
    initial = request.flag("sendInitialEvents")
    stream = call.cluster.watch(
        *call.target[:2],
        **call.selectors,
        since="" if initial else query.get("resourceVersion", ""),
        timeout=request.number("timeoutSeconds") or _WATCH_SECONDS,
        initial_end=initial,
    )
    return StreamResponse(_events(call, stream), stream.close)


def _events(call: _Call, stream: Stream[WatchEvent]) -> Iterator[bytes]:
    shape, bookmarks = call.format, call.request.flag("allowWatchBookmarks")
    try:
        for event in stream:
            if bookmarks or event.type != "BOOKMARK":
                yield json_line({"type": event.type, "object": shape.one(event.object)})
    except ClusterError as error:
        yield json_line({"type": "ERROR", "object": status_from_error(error)})


def _create(call: _Call) -> Response:
    return call.shown(call.cluster.create(*call.target[:2], call.body(), dry_run=call.request.dry_run), 201)


def _replace(call: _Call) -> Response:
    return call.shown(call.cluster.replace(*call.target, call.body(), **call.write))


def _patch(call: _Call) -> Response:
    media = call.request.content_type.partition(";")[0].strip().lower()
    if media == APPLY_PATCH:
        raise UnsupportedMediaType(
            "the embedded cluster does not support server-side apply: use kubectl apply without --server-side"
        )
    if media not in list(PatchType):
        raise UnsupportedMediaType(
            f"the body of the request was in an unknown format: {media!r}; accepted are {', '.join(PatchType)}"
        )
    change = call.request.document()
    return call.shown(call.cluster.patch(*call.target, change, kind=PatchType(media), **call.write))


def _delete(call: _Call) -> Response:
    options, dry_run = _delete_options(call.request)
    before = call.cluster.get(*call.target)
    left = call.cluster.delete_with(*call.target, options, dry_run=dry_run)
    if left is not None or call.kind.key in _RETURNED:
        return call.shown(before if left is None else left)
    details = {"name": call.route.name, "group": call.resource.group, "kind": call.resource.plural}
    return Response(200, {**_SUCCESS, "details": {**details, "uid": before["metadata"]["uid"]}})


def _delete_collection(call: _Call) -> Response:
    options, dry_run = _delete_options(call.request)
    for obj in call.cluster.list(*call.target[:2], **call.selectors).items:
        metadata = obj["metadata"]
        with suppress(NotFound):  # a previous deletion may have removed it as a dependent
            space, name = metadata.get("namespace"), metadata["name"]
            call.cluster.delete_with(call.resource, space, name, options, dry_run=dry_run)
    return Response(200, _SUCCESS)


def _delete_options(request: Request) -> tuple[DeleteOptions, bool]:
    """The delete options of the body and the query (which wins), and whether it is a dry run; BadRequest."""
    body: Any = request.document() if request.body.strip() else {}
    for mistake in type_mistakes(body, "DeleteOptions"):
        if mistake.wanted != UNKNOWN:
            raise BadRequest(f"delete options cannot be handled as DeleteOptions: {unmarshal_error(mistake)}")
    fences = body.get("preconditions") or {}
    grace = request.number("gracePeriodSeconds")
    if grace is None:
        grace = body.get("gracePeriodSeconds")
    policy = request.query.get("propagationPolicy") or body.get("propagationPolicy") or "Background"
    dry_run = body.get("dryRun") or []
    problems = (
        (policy not in POLICIES, "propagationPolicy", f"Unsupported value: {policy!r}: {', '.join(POLICIES)}"),
        (set(dry_run) - {"All"}, "dryRun", f"Unsupported value: {dry_run}: All"),
    )
    if found := [Problem(field, text) for wrong, field, text in problems if wrong]:
        raise Invalid("DeleteOptions.meta.k8s.io", found)
    options = DeleteOptions(
        uid=str(fences.get("uid") or ""),
        version=str(fences.get("resourceVersion") or ""),
        grace_period=None if grace is None else max(grace, 0),
        propagation=str(policy),
    )
    return options, request.dry_run or "All" in dry_run


def _log_of_pod(call: _Call) -> StreamResponse:
    request = call.request
    if "limitBytes" in request.query:
        raise BadRequest("the embedded cluster cannot limit the bytes of a log: limit its lines (kubectl logs --tail)")
    since: float | None = request.number("sinceSeconds")
    if text := request.query.get("sinceTime"):
        begin = parse_time(text)
        if begin is None:
            raise BadRequest(f"invalid sinceTime {text!r}: an RFC 3339 time")
        since = max(0.0, call.cluster.clock() - begin)
    options = LogOptions(
        container=request.query.get("container", ""),
        follow=request.flag("follow"),
        tail=request.number("tailLines"),
        since_seconds=since,
        timestamps=request.flag("timestamps"),
        previous=request.flag("previous"),
    )
    stream = call.cluster.logs(call.route.namespace or "", call.route.name, options)
    return StreamResponse(stream, stream.close, "text/plain")


def _evict(call: _Call) -> Response:
    inner = Request("DELETE", "", call.request.query, body=json.dumps(call.body().get("deleteOptions") or {}).encode())
    options, dry_run = _delete_options(inner)
    call.cluster.evict(call.route.namespace or "", call.route.name, options, dry_run=dry_run)
    return Response(201, {**_SUCCESS, "code": 201})


_Verbs = Mapping[str, Callable[[_Call], Response | StreamResponse]]
_COLLECTION: Final[_Verbs] = {"GET": _list_or_watch, "POST": _create, "DELETE": _delete_collection}
_STATUS: Final[_Verbs] = {"GET": _get, "PUT": _replace, "PATCH": _patch}
_OBJECT: Final[_Verbs] = {**_STATUS, "DELETE": _delete}
_POD_SUBRESOURCES: Final[Mapping[str, _Verbs]] = {"log": {"GET": _log_of_pod}, "eviction": {"POST": _evict}}
