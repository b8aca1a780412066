"""The discovery documents of the server: versions, groups and resources."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator

from tf_dist.cluster.api import KUBERNETES_VERSION, Object
from tf_dist.cluster.apiserver.storage.api_resources import POD_SUBRESOURCES, Kind
from tf_dist.errors import NotFound

_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_STATUS_VERBS = ("get", "patch", "update")
OPENAPI_V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""Because this document has no schemas, kubectl leaves the validation of objects to the server."""


def discovery_document(parts: list[str], kinds: Iterable[Kind], url: str) -> Object:
    """The document at a path such as ``/apis/GROUP/VERSION``; NotFound."""
    groups: dict[str, dict[str, None]] = {}
    for kind in kinds:
        groups.setdefault(kind.resource.group, {}).update(dict.fromkeys(kind.versions))
    match parts:
        case [""]:
            return {"paths": ["/api", "/api/v1", "/apis", "/healthz", "/version"]}
        case ["version"]:
            major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".", 2)
            return {"major": major, "minor": minor, "gitVersion": KUBERNETES_VERSION, "platform": platform.machine()}
        case ["openapi", "v2"]:
            return {"swagger": "2.0", "info": {"title": "tf-dist", "version": "v1"}, "paths": {}, "definitions": {}}
        case ["api"]:
            address = {"clientCIDR": "0.0.0.0/0", "serverAddress": url.removeprefix("http://")}
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [address]}
        case ["apis"]:
            found = [_api_group(name, versions) for name, versions in groups.items() if name]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
        case ["apis", group] if group in groups:
            return _api_group(group, groups[group])
        case ["api", version] if version in groups[""]:
            return _resource_list(kinds, "", version)
        case ["apis", group, version] if version in groups.get(group, {}):
            return _resource_list(kinds, group, version)
    raise NotFound("the server could not find the requested resource")


def _api_group(name: str, versions: Iterable[str]) -> Object:
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": entries, "preferredVersion": entries[0]}


def _resource_list(kinds: Iterable[Kind], group: str, version: str) -> Object:
    served = (kind for kind in kinds if kind.resource.group == group and version in kind.versions)
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": [entry for kind in served for entry in _entries(kind)],
    }


def _entries(kind: Kind) -> Iterator[Object]:
    """A kind, and its subresources."""
    resource = kind.resource
    common = {"namespaced": resource.namespaced, "kind": resource.kind}
    names = {"shortNames": list(kind.short_names), "categories": list(kind.categories)}
    yield {**common, "name": resource.plural, "singularName": kind.singular, "verbs": list(_VERBS), **names}
    if kind.key == "pods":
        for name, more in POD_SUBRESOURCES.items():
            yield {**common, "name": f"pods/{name}", "singularName": "", **more}
    if kind.status:
        yield {**common, "name": f"{resource.plural}/status", "singularName": "", "verbs": list(_STATUS_VERBS)}
