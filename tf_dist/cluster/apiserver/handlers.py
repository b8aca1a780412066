"""Handlers of the REST verbs, and of the pod subresources log, binding and eviction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tf_dist.cluster.api import LogOptions, Object, PatchType, Resource, Stream, WatchEvent
from tf_dist.cluster.api_errors import BadRequest, Invalid, MethodNotAllowed, UnsupportedMediaType, status_from_error
from tf_dist.cluster.apiserver.printing import ObjectFormat, negotiate_format
from tf_dist.cluster.apiserver.requests import APPLY_PATCH, Request, ResourcePath, Response, StreamResponse, json_line
from tf_dist.cluster.apiserver.storage.api_resources import Kind
from tf_dist.cluster.apiserver.storage.garbage_collector import POLICIES, DeleteOptions
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.apiserver.storage.object_admission import unmarshal_error
from tf_dist.cluster.apiserver.storage.store import with_metadata
from tf_dist.core.api.timestamps import parse_time
from tf_dist.core.openapi.kubernetes_types import UNKNOWN, type_mistakes
from tf_dist.errors import ClusterError, NotFound, Problem


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """A request that found its kind."""

    cluster: MemoryCluster
    request: Request
    route: ResourcePath
    kind: Kind
    resource: Resource

    @property
    def space(self) -> str | None:
        """The namespace, or None."""
        return self.route.namespace

    @property
    def selectors(self) -> dict[str, str]:
        """The label and the field selector, as arguments of the cluster's verbs."""
        query = self.request.query
        return {"labels": query.get("labelSelector", ""), "fields": query.get("fieldSelector", "")}

    @property
    def shape(self) -> ObjectFormat:
        """The format that the client accepts."""
        include = self.request.query.get("includeObject", "")
        return negotiate_format(self.request.accept, self.kind, self.resource, include, self.cluster.clock())

    def shown(self, obj: Object, code: int = 200) -> Response:
        """One object as a response."""
        return Response(code, self.shape.one(obj))


def body_object(call: ResourceRequest) -> Object:
    """The body, which must be an object; BadRequest."""
    body = call.request.document()
    if not isinstance(body, dict):
        raise BadRequest("the body of the request must be an object")
    return body


def delete_options(request: Request) -> tuple[DeleteOptions, bool]:
    """The delete options of the body and the query (which wins), and whether it is a dry run; BadRequest."""
    body: Any = request.document() if request.body.strip() else {}
    for mistake in type_mistakes(body, "DeleteOptions"):
        if mistake.wanted != UNKNOWN:
            raise BadRequest(f"delete options cannot be handled as DeleteOptions: {unmarshal_error(mistake)}")
    fences = body.get("preconditions") or {}
    grace = request.number("gracePeriodSeconds")
    if grace is None:
        grace = body.get("gracePeriodSeconds")
    orphan = body.get("orphanDependents") or request.flag("orphanDependents")
    policy = request.query.get("propagationPolicy") or body.get("propagationPolicy")
    dry_run = body.get("dryRun") or []
    problems = (
        (
            policy and policy not in POLICIES,
            "propagationPolicy",
            f"Unsupported value: {policy!r}: {', '.join(POLICIES)}",
        ),
        (policy and orphan, "propagationPolicy", "Invalid value: orphanDependents and it cannot be both set"),
        (set(dry_run) - {"All"}, "dryRun", f"Unsupported value: {dry_run}: All"),
    )
    if found := [Problem(field, text) for wrong, field, text in problems if wrong]:
        raise Invalid("DeleteOptions.meta.k8s.io", found)
    options = DeleteOptions(
        uid=str(fences.get("uid") or ""),
        version=str(fences.get("resourceVersion") or ""),
        grace_period=None if grace is None else max(grace, 0),
        propagation=str(policy or ("Orphan" if orphan else "Background")),
    )
    return options, request.dry_run or "All" in dry_run


def success_status(**more: Any) -> Object:
    """The Status of a success."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", **more}


def _log(call: ResourceRequest) -> StreamResponse:
    stream = call.cluster.logs(_require_namespace(call), call.route.name, _log_options(call))
    return StreamResponse(_limited(stream, call.request.number("limitBytes")), stream.close, "text/plain")


def _log_options(call: ResourceRequest) -> LogOptions:
    """Which lines of a container's log the query asks for; BadRequest."""
    request = call.request
    since: float | None = request.number("sinceSeconds")
    if text := request.query.get("sinceTime"):
        begin = parse_time(text)
        if begin is None:
            raise BadRequest(f"invalid sinceTime {text!r}: an RFC 3339 time")
        since = max(0.0, call.cluster.clock() - begin)
    return LogOptions(
        container=request.query.get("container", ""),
        follow=request.flag("follow"),
        tail=request.number("tailLines"),
        since_seconds=since,
        timestamps=request.flag("timestamps"),
        previous=request.flag("previous"),
    )


def _limited(lines: Iterable[bytes], limit: int | None) -> Iterator[bytes]:
    """The lines up to so many bytes (None: all)."""
    left = limit
    for line in lines:
        yield line if left is None else line[:left]
        if left is not None:
            left -= len(line)
            if left <= 0:
                return


def _require_namespace(call: ResourceRequest) -> str:
    if not call.space:
        raise NotFound("the server could not find the requested resource")
    return call.space


def _bind(call: ResourceRequest) -> Response:
    target = body_object(call).get("target") or {}
    if not isinstance(target, dict) or not target.get("name"):
        raise BadRequest("a binding needs target.name, the node")
    if not call.request.dry_run:
        call.cluster.bind(_require_namespace(call), call.route.name, str(target["name"]))
    return Response(201, success_status(code=201))


def _evict(call: ResourceRequest) -> Response:
    body = body_object(call).get("deleteOptions") or {}
    inner = Request("DELETE", "", {}, body=json_line(body))
    options, dry_run = delete_options(inner)
    call.cluster.evict(_require_namespace(call), call.route.name, options, dry_run=dry_run or call.request.dry_run)
    return Response(201, success_status(code=201))


POD_SUBRESOURCE_HANDLERS: Mapping[str, Mapping[str, Callable[[ResourceRequest], Response | StreamResponse]]] = {
    "log": {"GET": _log},
    "binding": {"POST": _bind},
    "eviction": {"POST": _evict},
}


# As in an API server: a watch without a timeout ends after a while, so that clients spread over restarts.
_WATCH_SECONDS = 1800
# The kinds whose removal answers with the object instead of a Status.
_RETURNED = frozenset({"pods", "services", "persistentvolumeclaims", "serviceaccounts"})


def resolve_request(cluster: MemoryCluster, request: Request, route: ResourcePath) -> ResourceRequest:
    """The request with the kind that its path names; NotFound."""
    kind = cluster.kinds.find(route.group, route.version, route.plural)
    if route.namespace and not kind.resource.namespaced:
        raise NotFound("the server could not find the requested resource")
    own = kind.resource
    resource = Resource(own.group, route.version, own.kind, own.plural, own.namespaced)
    return ResourceRequest(cluster, request, route, kind, resource)


def handle_request(call: ResourceRequest) -> Response | StreamResponse:
    """Handle the request; ClusterError."""
    method, route = call.request.method, call.route
    verbs: Mapping[str, Callable[[ResourceRequest], Response | StreamResponse]]
    if not route.name:
        verbs = {"GET": _collection, "POST": _create, "DELETE": _delete_collection}
    elif route.subresource in ("", "status"):
        verbs = {"GET": _get, "PUT": _replace, "PATCH": _patch}
        verbs = verbs if route.subresource else {**verbs, "DELETE": _delete}
    else:
        verbs = POD_SUBRESOURCE_HANDLERS.get(route.subresource, {}) if call.kind.key == "pods" else {}
        if not verbs:
            raise NotFound("the server could not find the requested resource")
    if method not in verbs:
        raise MethodNotAllowed("the server does not allow this method on the requested resource")
    return verbs[method](call)


# Reading


def _get(call: ResourceRequest) -> Response:
    if call.route.subresource and not call.kind.status:
        raise NotFound("the server could not find the requested resource")
    return call.shown(call.cluster.get(call.resource, call.space, call.route.name))


def _collection(call: ResourceRequest) -> Response | StreamResponse:
    query = call.request.query
    if call.request.flag("watch"):
        return _watch(call)
    found = call.cluster.list(
        call.resource,
        call.space,
        **call.selectors,
        limit=call.request.number("limit") or 0,
        continue_=query.get("continue", ""),
    )
    return Response(200, call.shape.many(found))


def _watch(call: ResourceRequest) -> StreamResponse:
    query = call.request.query
    timeout = call.request.number("timeoutSeconds") or _WATCH_SECONDS
    initial = call.request.flag("sendInitialEvents")
    stream = call.cluster.watch(
        call.resource,
        call.space,
        **call.selectors,
        since="" if initial else query.get("resourceVersion", ""),
        timeout=timeout,
        initial_end=initial,
    )
    return StreamResponse(_events(call, stream), stream.close)


def _events(call: ResourceRequest, stream: Stream[WatchEvent]) -> Iterator[bytes]:
    shape = call.shape
    bookmarks = call.request.flag("allowWatchBookmarks")
    try:
        for event in stream:
            if bookmarks or event.type != "BOOKMARK":
                yield json_line({"type": event.type, "object": shape.one(event.object)})
    except ClusterError as error:
        yield json_line({"type": "ERROR", "object": status_from_error(error)})


# Writing


def _create(call: ResourceRequest) -> Response:
    body = body_object(call)
    return call.shown(call.cluster.create(call.resource, call.space, body, dry_run=call.request.dry_run), 201)


def _replace(call: ResourceRequest) -> Response:
    obj = call.cluster.replace(
        call.resource,
        call.space,
        call.route.name,
        body_object(call),
        subresource=call.route.subresource,
        dry_run=call.request.dry_run,
    )
    return call.shown(obj)


def _patch(call: ResourceRequest) -> Response:
    media = call.request.content_type.partition(";")[0].strip().lower()
    route, dry_run = call.route, call.request.dry_run
    if media == APPLY_PATCH:
        raise UnsupportedMediaType(
            "the embedded cluster has no server-side apply, since it keeps no field owners: "
            "use kubectl apply without --server-side"
        )
    if media not in list(PatchType):
        raise UnsupportedMediaType(
            f"the body of the request was in an unknown format: {media!r}; accepted are {', '.join(PatchType)}"
        )
    obj = call.cluster.patch(
        call.resource,
        call.space,
        route.name,
        call.request.document(),
        kind=PatchType(media),
        subresource=route.subresource,
        dry_run=dry_run,
    )
    return call.shown(obj)


# Deleting


def _delete(call: ResourceRequest) -> Response:
    options, dry_run = delete_options(call.request)
    name = call.route.name
    before = call.cluster.get(call.resource, call.space, name)
    left = call.cluster.delete_with(call.resource, call.space, name, options, dry_run=dry_run)
    if left is not None:
        return call.shown(left)
    if call.kind.key in _RETURNED:
        return call.shown(with_metadata(before))
    details = {"name": name, "group": call.resource.group, "kind": call.resource.plural}
    return Response(200, success_status(details={**details, "uid": before["metadata"]["uid"]}))


def _delete_collection(call: ResourceRequest) -> Response:
    options, dry_run = delete_options(call.request)
    call.cluster.delete_collection(call.resource, call.space, options, **call.selectors, dry_run=dry_run)
    return Response(200, success_status())
