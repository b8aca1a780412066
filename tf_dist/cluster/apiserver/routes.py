"""Routes of the API server: from a request to the handler that answers it, errors included."""

from __future__ import annotations

import logging
from typing import Final

from tf_dist.cluster.api import Object
from tf_dist.cluster.api_errors import BadRequest, MethodNotAllowed, status_from_error
from tf_dist.cluster.apiserver import discovery
from tf_dist.cluster.apiserver.handlers import handle_request, resolve_request
from tf_dist.cluster.apiserver.requests import Request, ResourcePath, Response, StreamResponse, parse_path
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.errors import ClusterError, NotFound

_log = logging.getLogger(__name__)
_HEALTH = ("/healthz", "/livez", "/readyz")


class Router:
    """Answers requests for one cluster. Thread-safe as the cluster is."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.url = ""

    def handle(self, request: Request) -> Response | StreamResponse:
        """The response to a request; never raises."""
        route = ResourcePath("", "")
        try:
            if request.path == ADDRESSES_PATH and request.method == "POST":
                return addresses_response(self._cluster, request)
            if found := self._document(request):
                return found
            route = parse_path(request.path)
            return self._resource(request, route)
        except ClusterError as error:
            return error_response(error, route)
        except Exception:
            _log.exception("failed to handle request: method=%s path=%s", request.method, request.path)
            return error_response(
                ClusterError("internal error of the embedded cluster: its log has the details"), route
            )

    def _resource(self, request: Request, route: ResourcePath) -> Response | StreamResponse:
        if request.method == "POST" and not route.name:
            review = review_response(route, request.document() or {}) if request.body else None
            if review:
                return Response(201, review)
        return handle_request(resolve_request(self._cluster, request, route))

    def _document(self, request: Request) -> Response | None:
        """The documents that describe the server; None for every other path."""
        path = request.path.rstrip("/") or "/"
        if path.startswith(_HEALTH):
            return Response(200, "ok", "text/plain")
        parts = path.strip("/").split("/")
        if path != "/" and (parts[0] not in ("api", "apis", "openapi", "version") or _is_resource(parts)):
            return None
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("the server does not allow this method on the requested resource")
        if parts == ["openapi", "v2"] and "proto-openapi" in request.accept:
            # An empty document, in either form: kubectl then leaves the checking of a List to the server.
            return Response(200, "", discovery.OPENAPI_V2_PROTOBUF)
        return Response(200, self._described(parts))

    def _described(self, parts: list[str]) -> Object:
        kinds = tuple(self._cluster.kinds)
        match parts:
            case [""]:
                return {"paths": ["/api", "/api/v1", "/apis", "/healthz", "/version"]}
            case ["version"]:
                return discovery.version_info()
            case ["api"]:
                return discovery.api_versions(self.url)
            case ["apis"]:
                return discovery.group_list(kinds)
            case ["openapi", "v2"]:
                return discovery.OPENAPI_V2
            case ["openapi", "v3"]:
                return discovery.openapi_index(self._places())
            case ["openapi", "v3", "api", version]:
                return discovery.openapi_document(kinds, "", version)
            case ["openapi", "v3", "apis", group, version]:
                return discovery.openapi_document(kinds, group, version)
            case ["api", version] if found := discovery.resource_list(kinds, "", version):
                return found
            case ["apis", group, version] if found := discovery.resource_list(kinds, group, version):
                return found
            case ["apis", group] if versions := discovery.group_versions(kinds, group):
                return discovery.api_group(group, versions)
        raise NotFound("the server could not find the requested resource")

    def _places(self) -> list[str]:
        places = {
            f"apis/{kind.resource.group}/{version}" if kind.resource.group else f"api/{version}": None
            for kind in self._cluster.kinds
            for version in kind.versions
        }
        return list(places)


def _is_resource(parts: list[str]) -> bool:
    return (parts[0] == "api" and len(parts) > 2) or (parts[0] == "apis" and len(parts) > 3)


def error_response(error: ClusterError, route: ResourcePath) -> Response:
    """The Status of an error, as a response."""
    status = status_from_error(error, name=route.name, group=route.group, kind=route.plural)
    retry = status.get("details", {}).get("retryAfterSeconds")
    return Response(status["code"], status, headers={"Retry-After": str(retry)} if retry else {})


def review_response(route: ResourcePath, body: Object) -> Object | None:
    """The answered review; None if the path is of no review."""
    for review, status in discovery.REVIEWS.items():
        if (review.group, review.plural) == (route.group, route.plural):
            return {"metadata": {"creationTimestamp": None}, "spec": {}, **body, "status": status}
    return None


ADDRESSES_PATH: Final = "/tf-dist/addresses"
"""Its kubeconfig names this path where there is no DNS, so that no other server is asked for it."""


def addresses_response(cluster: MemoryCluster, request: Request) -> Response:
    """The addresses of the endpoints of a job; BadRequest."""
    body = request.document()
    try:
        owner, endpoints = body["owner"], [str(endpoint) for endpoint in body["endpoints"]]
        known = owner["metadata"]["uid"], owner["metadata"]["namespace"], owner["apiVersion"], owner["kind"]
    except (KeyError, TypeError) as error:
        raise BadRequest(
            f"the body needs the object owner with its type and metadata, and endpoints: {error}"
        ) from error
    if not all(isinstance(value, str) and value for value in known):
        raise BadRequest("the owner needs apiVersion, kind, metadata.namespace and metadata.uid")
    return Response(200, {"kind": "Addresses", "addresses": dict(cluster.addresses(owner, endpoints))})
