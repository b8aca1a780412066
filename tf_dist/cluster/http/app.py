"""The whole server but its sockets: from a request to a reply, errors included."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tf_dist.cluster.http import addresses, discovery, openapi, reviews
from tf_dist.cluster.http.messages import Reply, Request, Streamed
from tf_dist.cluster.http.routes import Route, route_of
from tf_dist.cluster.http.verbs import answer, located
from tf_dist.cluster.memory.cluster import MemoryCluster
from tf_dist.cluster.refusals import MethodNotAllowed
from tf_dist.cluster.status import status_of
from tf_dist.errors import ClusterError, NotFound

_log = logging.getLogger(__name__)
_HEALTH = ("/healthz", "/livez", "/readyz")


class App:
    """Answers requests for one cluster. Thread-safe as the cluster is."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.url = ""

    @property
    def headers(self) -> Mapping[str, str]:
        """Of every answer."""
        return addresses.headers(self._cluster)

    def handle(self, request: Request) -> Reply | Streamed:
        """The answer to a request; never raises."""
        route = Route("", "")
        try:
            if request.path == addresses.PATH and request.method == "POST":
                return addresses.answer(self._cluster, request)
            if found := self._document(request):
                return found
            route = route_of(request.path)
            return self._resource(request, route)
        except ClusterError as error:
            return failure(error, route)
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            return failure(ClusterError("internal error of the embedded cluster: its log has the details"), route)

    def _resource(self, request: Request, route: Route) -> Reply | Streamed:
        if request.method == "POST" and not route.name:
            review = reviews.answer(route, request.document() or {}) if request.body else None
            if review:
                return Reply(201, review)
        return answer(located(self._cluster, request, route))

    def _document(self, request: Request) -> Reply | None:
        """The documents that describe the server; None for every other path."""
        path = request.path.rstrip("/") or "/"
        if path.startswith(_HEALTH):
            return Reply(200, "ok", "text/plain")
        parts = path.strip("/").split("/")
        if path != "/" and (parts[0] not in ("api", "apis", "openapi", "version") or _is_resource(parts)):
            return None
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("the server does not allow this method on the requested resource")
        return self._described(parts, request.accept)

    def _described(self, parts: list[str], accept: str) -> Reply:
        kinds = tuple(self._cluster.kinds)
        match parts:
            case [""]:
                return Reply(200, {"paths": ["/api", "/api/v1", "/apis", "/healthz", "/version"]})
            case ["version"]:
                return Reply(200, discovery.version_info())
            case ["api" | "apis"]:
                return self._roots(parts[0] == "api", accept)
            case ["openapi", "v2"]:
                # An empty document, in either form: kubectl then leaves the checking of a List to the server.
                binary = "proto-openapi" in accept
                return Reply(200, "", openapi.V2_PROTOBUF) if binary else Reply(200, openapi.V2)
            case ["openapi", "v3"]:
                return Reply(200, openapi.index(self._places()))
            case ["openapi", "v3", "api", version]:
                return Reply(200, openapi.document(kinds, "", version))
            case ["openapi", "v3", "apis", group, version]:
                return Reply(200, openapi.document(kinds, group, version))
            case ["api", version]:
                return self._listed("", version)
            case ["apis", group, version]:
                return self._listed(group, version)
            case ["apis", group] if versions := discovery.versions_of(kinds, group):
                return Reply(200, discovery.group(group, versions))
        raise NotFound("the server could not find the requested resource")

    def _roots(self, core: bool, accept: str) -> Reply:
        kinds = tuple(self._cluster.kinds)
        if version := discovery.aggregated_version(accept):
            media = discovery.AGGREGATED.format(version)
            return Reply(200, discovery.aggregated(kinds, core=core, version=version), media)
        return Reply(200, discovery.api_versions(self.url) if core else discovery.group_list(kinds))

    def _listed(self, group: str, version: str) -> Reply:
        found = discovery.resource_list(self._cluster.kinds, group, version)
        if not found["resources"]:
            raise NotFound("the server could not find the requested resource")
        return Reply(200, found)

    def _places(self) -> list[str]:
        places = {
            f"apis/{kind.resource.group}/{version}" if kind.resource.group else f"api/{version}": None
            for kind in self._cluster.kinds
            for version in kind.versions
        }
        return list(places)


def _is_resource(parts: list[str]) -> bool:
    return (parts[0] == "api" and len(parts) > 2) or (parts[0] == "apis" and len(parts) > 3)


def failure(error: ClusterError, route: Route) -> Reply:
    """The Status of an error, as a reply."""
    status = status_of(error, name=route.name, group=route.group, kind=route.plural)
    retry = status.get("details", {}).get("retryAfterSeconds")
    return Reply(status["code"], status, headers={"Retry-After": str(retry)} if retry else {})
