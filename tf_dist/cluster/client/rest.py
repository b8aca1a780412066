"""RestCluster: any Kubernetes API server as a Cluster, raw JSON over one pool of connections.

Every call has a timeout. Requests without a response, or with an error of the server, are retried (see ``retries``). A
failed write may therefore have taken effect; the object's version, uid or name shows it. Opening a stream is not
retried, because its readers have their own back-off.
"""

from __future__ import annotations

import json
import math
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

import urllib3

from tf_dist.cluster.api import (
    ALL_LINES,
    CONFIG_MAPS,
    NODES,
    PODS,
    SERVICES,
    LogOptions,
    Object,
    ObjectList,
    PatchType,
    Resource,
    Stream,
    WatchEvent,
)
from tf_dist.cluster.api_errors import BadRequest, RequestInfo, StreamSilent
from tf_dist.cluster.client import connection_pool
from tf_dist.cluster.client.auth import Credential, RefreshingCredentials
from tf_dist.cluster.client.read_pacer import ReadPacer
from tf_dist.cluster.client.retries import RetryPolicy
from tf_dist.cluster.client.streams import LineStream, WatchEventStream, parse_body
from tf_dist.cluster.client.transport import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    ApiRequest,
    RequestObserver,
    Transport,
    TransportConfig,
)
from tf_dist.errors import Unavailable

LOG_SILENCE: Final = 30.0
"""Seconds after which a followed log without a new line is opened again, because a proxy may have dropped it."""
# Kinds whose objects change all the time in a large cluster. Changes of jobs and Leases are read at once.
_NUMEROUS: Final = (PODS, SERVICES, NODES)
_VERSION: Final = Resource("", "v1", "Version", "version", namespaced=False)


class RestCluster:
    """The nine verbs over HTTP(S). Thread-safe.

    ``credentials`` are sent with every request (``token``: a fixed one). ``ssl_context``: trust in the server (None:
    the system's). ``server_name``: the name in the server's certificate, if it differs from the URL's host. ``proxy``:
    a URL. ``connections``: the number of connections that are kept open. ``retries``: the number of repetitions of a
    request (0: none), with ``sleep`` between them. A watch that is silent for ``stall`` seconds ends, because servers
    send a bookmark about once a minute. The server ends a watch after ``watch_seconds``. A followed log that is silent
    for ``log_silence`` seconds raises StreamSilent. ``timeout``: of every other read, in seconds. ``response_timeout``:
    of a whole response, unless it is a stream. ``called`` observes every request. ``addresses_path``: the path for
    ``addresses`` ("": none). ``paced``: busy streams of pods, services and nodes are read in batches (``ReadPacer``).
    This is for a process that follows a large cluster, and can tolerate short delays.
    """

    def __init__(
        self,
        url: str,
        *,
        credentials: RefreshingCredentials | None = None,
        token: str = "",
        ssl_context: ssl.SSLContext | None = None,
        server_name: str = "",
        proxy: str = "",
        connections: int = 64,
        retries: int = 3,
        stall: float = 90.0,
        timeout: float = READ_TIMEOUT,
        response_timeout: float = connection_pool.RESPONSE_TIMEOUT,
        called: RequestObserver | None = None,
        sleep: Callable[[float], object] | None = None,
        addresses_path: str = "",
        paced: bool = False,
        watch_seconds: float = 290.0,
        log_silence: float = LOG_SILENCE,
    ) -> None:
        self._watch_seconds, self._log_silence = watch_seconds, log_silence
        self._addresses_path = addresses_path
        self._paced = _NUMEROUS if paced else ()
        if credentials is None:
            fixed = Credential({"Authorization": f"Bearer {token}"} if token else {})
            credentials = RefreshingCredentials(lambda: fixed)
        route = TransportConfig(url.rstrip("/"), ssl_context, server_name, proxy, connections)
        self._stall = stall
        self._caller = Transport(
            route,
            credentials,
            RetryPolicy(max_retries=retries),
            read=timeout,
            whole=response_timeout,
            called=called,
            sleep=sleep,
        )

    def close(self) -> None:
        """Close the idle connections, and end waits for another attempt."""
        self._caller.close()

    def hurry(self, seconds: float = 5.0) -> None:
        """Shorten deadlines and stop retrying, because the process will stop soon."""
        self._caller.hurry(seconds)

    def cancel(self) -> None:
        """Abort every running request and refuse new ones, because the process stops.

        Open streams end with their readers.
        """
        self._caller.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Reading

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> ObjectList:
        """All objects of a kind, or a page of them."""
        query = query_string(labelSelector=labels, fieldSelector=fields, limit=limit or "", **{"continue": continue_})
        path = collection_path(resource, namespace) + query
        found = self._call("GET", path, RequestInfo("list", resource, "", namespace or ""))
        own = {"apiVersion": resource.api_version, "kind": resource.kind}
        # The items of a core list have no type.
        items = [obj if "kind" in obj else {**own, **obj} for obj in found.get("items") or ()]
        metadata = found.get("metadata") or {}
        return ObjectList(items, str(metadata.get("resourceVersion", "")), metadata.get("continue") or "")

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """One object; NotFound."""
        return self._call(
            "GET", object_path(resource, namespace, name), RequestInfo("get", resource, "", namespace or "")
        )

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        since: str = "",
        timeout: float = 290,
    ) -> Stream[WatchEvent]:
        """Changes after a version, until ``timeout`` seconds are over or the server falls silent."""
        timeout = min(timeout, self._watch_seconds)
        query = query_string(
            watch="true",
            # Without a version, bookmarks would request a list before the watch, which not every etcd supports.
            allowWatchBookmarks="true" if since else "",
            resourceVersion=since,
            labelSelector=labels,
            fieldSelector=fields,
            timeoutSeconds=max(1, math.ceil(timeout)),
        )
        asked = RequestInfo("watch", resource, "", namespace or "")
        request = ApiRequest("GET", collection_path(resource, namespace) + query, asked)
        response = self._caller.stream(request, min(self._stall, timeout + CONNECT_TIMEOUT))
        pacer = ReadPacer() if resource in self._paced else None
        return WatchEventStream(LineStream(response, asked, silence_ends=True, pacer=pacer), asked)

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> Stream[bytes]:
        """See ``Cluster``."""
        query = query_string(
            container=options.container,
            follow=bool_param(options.follow),
            tailLines="" if options.tail is None else options.tail,
            sinceSeconds="" if options.since_seconds is None else max(1, math.ceil(options.since_seconds)),
            sinceTime=options.since_time,
            timestamps=bool_param(options.timestamps),
            previous=bool_param(options.previous),
        )
        asked = RequestInfo("get", PODS, "log", namespace)
        request = ApiRequest("GET", object_path(PODS, namespace, pod, "log") + query, asked)
        silence = self._log_silence if options.follow else READ_TIMEOUT
        try:
            response = self._caller.stream(request, silence)
        except Unavailable as error:  # a kubelet may send the headers with the first line
            if options.follow and isinstance(error.__cause__, urllib3.exceptions.ReadTimeoutError):
                raise StreamSilent(str(error)) from error
            raise
        return LineStream(response, asked, together=True)

    def addresses(self, owner: Object, endpoints: Sequence[str]) -> Mapping[str, str]:
        """The addresses on an embedded cluster without DNS, as named in its kubeconfig; otherwise none."""
        if not self._addresses_path:
            return {}
        body = {"kind": "Addresses", "owner": owner, "endpoints": list(endpoints)}
        asked = RequestInfo("get", CONFIG_MAPS, "addresses")
        found: Mapping[str, str] = self._call("POST", self._addresses_path, asked, body=body)["addresses"]
        return found

    # Writing

    def create(self, resource: Resource, namespace: str | None, body: Object) -> Object:
        """The created object; AlreadyExists, Rejected, Forbidden."""
        typed = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        space = namespace or (body.get("metadata") or {}).get("namespace")
        asked = RequestInfo("create", resource, "", space or "")
        return self._call("POST", collection_path(resource, space), asked, body=typed)

    def replace(
        self, resource: Resource, namespace: str | None, name: str, body: Object, *, subresource: str = ""
    ) -> Object:
        """The object after it was replaced; Conflict, NotFound, Rejected."""
        typed = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        path = object_path(resource, namespace, name, subresource)
        return self._call("PUT", path, RequestInfo("update", resource, subresource, namespace or ""), body=typed)

    def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        body: Any,
        *,
        kind: PatchType = PatchType.MERGE,
        subresource: str = "",
    ) -> Object:
        """The patched object; NotFound, Conflict, Rejected."""
        path = object_path(resource, namespace, name, subresource)
        asked = RequestInfo("patch", resource, subresource, namespace or "")
        return self._call("PATCH", path, asked, body=body, media=kind.value)

    def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str = "",
        version: str = "",
        grace_period: int | None = None,
        propagation: str = "Background",
    ) -> None:
        """Delete an object; NotFound, Conflict if ``uid`` or the resource ``version`` is not the object's."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if grace_period is not None:
            options["gracePeriodSeconds"] = grace_period
        if fences := {key: value for key, value in (("uid", uid), ("resourceVersion", version)) if value}:
            options["preconditions"] = fences
        path = object_path(resource, namespace, name)
        self._call("DELETE", path, RequestInfo("delete", resource, "", namespace or ""), body=options)

    def version(self) -> tuple[int, int]:
        """The Kubernetes release of the server, as (1, 27); (0, 0) if it is unknown."""
        request = ApiRequest("GET", "/version", RequestInfo("get", _VERSION), None, "application/json")
        told = parse_body(self._caller.whole(request))
        found = told if isinstance(told, Mapping) else {}
        numbers = [re.match(r"[0-9]{0,9}", str(found.get(key))) for key in ("major", "minor")]
        major, minor = (int(number[0] or 0) if number else 0 for number in numbers)
        return major, minor

    # Requests

    def _call(
        self,
        method: str,
        path: str,
        asked: RequestInfo,
        *,
        body: Any = None,
        media: str = "application/json",
    ) -> Object:
        data = None if body is None else encode_body(body)
        return decode_object(self._caller.whole(ApiRequest(method, path, asked, data, media)), asked)


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def collection_path(resource: Resource, namespace: str | None) -> str:
    """The path of all objects of a kind, in a namespace or everywhere."""
    return resource.path(_path_segment(namespace) if namespace else None)


def object_path(resource: Resource, namespace: str | None, name: str, subresource: str = "") -> str:
    """The path of one object; BadRequest without its name."""
    # Without a name, the path is the collection's, and a delete would remove all objects.
    if not name or (resource.namespaced and not namespace):
        raise BadRequest(f"{resource.plural} need a name and, unless they are cluster-wide, a namespace")
    return resource.path(_path_segment(namespace) if namespace else None, _path_segment(name), subresource)


def _path_segment(text: str) -> str:
    # A segment of dots only would be resolved as a relative path.
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")


def query_string(**values: str | int) -> str:
    """A query string of the values that are not empty, with the question mark."""
    given = {name: value for name, value in values.items() if value != ""}
    return f"?{urlencode(given)}" if given else ""


def bool_param(value: bool) -> str:
    """A boolean in a query: nothing when it is false."""
    return "true" if value else ""


def encode_body(body: Any) -> bytes:
    """A body's bytes; BadRequest."""
    try:
        return _ENCODER.encode(body).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error


def decode_object(data: bytes, asked: RequestInfo) -> Object:
    """The object in a response; Unavailable when a proxy or a login page responded instead."""
    found = parse_body(data)
    if isinstance(found, dict) and "kind" in found:
        return found
    raise Unavailable(f"{asked}: the answer is not a Kubernetes object")
