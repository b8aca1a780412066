"""Any Kubernetes API server as a Cluster: raw JSON over one pool of connections.

Every call has a timeout. A failed write is not repeated here: whether it happened is for the caller to find out.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import urllib3

from tf_dist.cluster import rest_wire
from tf_dist.cluster.api import ALL_LINES, PODS, LogOptions, Object, ObjectList, PatchType, Resource, Stream, WatchEvent
from tf_dist.cluster.rest_streams import Lines, WatchLines, parsed, reason
from tf_dist.cluster.status import error_of
from tf_dist.errors import Unavailable

_CONNECT, _READ = 5.0, 30.0
# A server that sends bookmarks speaks about once a minute; a watch that is silent for longer is looked at anew.
_STALL = 90.0
_Headers = Mapping[str, str]


class RestCluster:
    """The nine verbs over HTTP(S). Thread-safe.

    ``headers`` are sent with every request (give a function if a token must be renewed); ``ssl_context`` overrides
    ``ca_file``, ``cert_file`` and ``key_file``; ``connections`` is how many are kept open.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: _Headers | Callable[[], _Headers] | None = None,
        token: str = "",
        ssl_context: ssl.SSLContext | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        connections: int = 16,
    ) -> None:
        self._url = url.rstrip("/")
        fixed = dict(headers or {}) if not callable(headers) else {}
        if token:
            fixed["Authorization"] = f"Bearer {token}"
        self._headers = headers if callable(headers) else lambda: fixed
        secure: dict[str, Any] = {}
        if url.startswith("https:"):
            secure = {"ssl_context": ssl_context or rest_wire.context(ca_file, cert_file, key_file)}
        self._pool = urllib3.PoolManager(
            maxsize=connections, block=False, retries=False, socket_options=rest_wire.socket_options(), **secure
        )

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.clear()

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
        query = rest_wire.query(
            labelSelector=labels, fieldSelector=fields, limit=limit or "", **{"continue": continue_}
        )
        found = self._call("GET", "list", resource, rest_wire.collection(resource, namespace), query)
        own = {"apiVersion": resource.api_version, "kind": resource.kind}
        # The items of a core list carry no type of their own.
        items = [obj if "kind" in obj else {**own, **obj} for obj in found.get("items") or ()]
        metadata = found.get("metadata") or {}
        return ObjectList(items, str(metadata.get("resourceVersion", "")), metadata.get("continue") or "")

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """One object; NotFound."""
        return self._call("GET", "get", resource, rest_wire.place(resource, namespace, name))

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
        query = rest_wire.query(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=since,
            labelSelector=labels,
            fieldSelector=fields,
            timeoutSeconds=max(1, math.ceil(timeout)),
        )
        asked = rest_wire.asked("watch", resource)
        response = self._send(
            "GET", rest_wire.collection(resource, namespace), query, asked, stream=min(_STALL, timeout + _CONNECT)
        )
        return WatchLines(Lines(response, asked, silence_ends=True), asked)

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> Stream[bytes]:
        """The lines of a container's log."""
        query = rest_wire.query(
            container=options.container,
            follow=rest_wire.flag(options.follow),
            tailLines="" if options.tail is None else options.tail,
            sinceSeconds="" if options.since_seconds is None else max(1, math.ceil(options.since_seconds)),
            timestamps=rest_wire.flag(options.timestamps),
            previous=rest_wire.flag(options.previous),
        )
        path = rest_wire.place(PODS, namespace, pod, "log")
        response = self._send("GET", path, query, "get pods/log", stream=None if options.follow else _READ)
        return Lines(response, "get pods/log")

    def addresses(self, owner: Object, endpoints: Sequence[str]) -> Mapping[str, str]:
        """Nothing: cluster DNS works here."""
        return {}

    # Writing

    def create(self, resource: Resource, namespace: str | None, body: Object) -> Object:
        """The created object; AlreadyExists, Rejected, Forbidden."""
        typed = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        space = namespace or (body.get("metadata") or {}).get("namespace")
        return self._call("POST", "create", resource, rest_wire.collection(resource, space), body=typed)

    def replace(
        self, resource: Resource, namespace: str | None, name: str, body: Object, *, subresource: str = ""
    ) -> Object:
        """The object after it was replaced; Conflict, NotFound, Rejected."""
        typed = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        path = rest_wire.place(resource, namespace, name, subresource)
        return self._call("PUT", "update", resource, path, body=typed, subresource=subresource)

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
        path = rest_wire.place(resource, namespace, name, subresource)
        return self._call("PATCH", "patch", resource, path, body=body, media=str(kind), subresource=subresource)

    def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str = "",
        grace_period: int | None = None,
        propagation: str = "Background",
    ) -> None:
        """Ask for deletion; NotFound, Conflict if ``uid`` is not the object's."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if grace_period is not None:
            options["gracePeriodSeconds"] = grace_period
        if uid:
            options["preconditions"] = {"uid": uid}
        self._call("DELETE", "delete", resource, rest_wire.place(resource, namespace, name), body=options)

    # Requests

    def _call(
        self,
        method: str,
        verb: str,
        resource: Resource,
        path: str,
        query: str = "",
        *,
        body: Any = None,
        media: str = "application/json",
        subresource: str = "",
    ) -> Object:
        asked = rest_wire.asked(verb, resource, subresource)
        data = None if body is None else rest_wire.encoded(body)
        response = self._send(method, path, query, asked, data=data, media=media)
        return rest_wire.decoded(response.data, asked)

    def _send(
        self,
        method: str,
        path: str,
        query: str,
        asked: str,
        *,
        data: bytes | None = None,
        media: str = "",
        stream: float | None = -1,
    ) -> urllib3.BaseHTTPResponse:
        """The reply to a request, read whole unless ``stream`` is a read timeout (None: none) of its own."""
        headers = {"Accept": "application/json", **self._headers()}
        if data is not None:
            headers["Content-Type"] = media
        whole = stream == -1
        try:
            response = self._pool.request(
                method,
                f"{self._url}{path}{query}",
                body=data,
                headers=headers,
                timeout=urllib3.Timeout(connect=_CONNECT, read=_READ if whole else stream),
                preload_content=whole,
                redirect=False,
            )
            if response.status < 300:
                return response
            body = response.data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"{asked}: no answer from {self._url}: {reason(error)}") from error
        raise error_of(
            response.status, parsed(body), request=asked, retry_after=response.headers.get("Retry-After", "")
        )
