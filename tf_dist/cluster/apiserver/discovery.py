"""Discovery: group, version and resource lists, and the little OpenAPI that kubectl apply needs."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping

from tf_dist.cluster.api import Object, PatchType, Resource
from tf_dist.cluster.apiserver.storage.api_resources import POD_SUBRESOURCES, Kind

_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_STATUS_VERBS = ("get", "patch", "update")
EMBEDDED_USER = "tf-dist"
_AUTHENTICATION, _AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"
REVIEWS: Mapping[Resource, Object] = {
    Resource(_AUTHENTICATION, "v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False): {
        "userInfo": {"username": EMBEDDED_USER, "groups": ["system:masters", "system:authenticated"]}
    },
    Resource(_AUTHORIZATION, "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False): {
        "allowed": True,
        "reason": "the owner of an embedded cluster may do everything",
    },
    Resource(_AUTHORIZATION, "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", namespaced=False): {
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "incomplete": False,
    },
}
"""Kinds that are never stored: creating one returns it with this status."""


def api_versions(url: str) -> Object:
    """``/api``: the versions of the core group."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": url.removeprefix("http://")}],
    }


def group_list(kinds: Iterable[Kind]) -> Object:
    """``/apis``: all groups but the core one."""
    groups = _versions_by_group(kinds)
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [api_group(name, versions) for name, versions in groups.items() if name],
    }


def _versions_by_group(kinds: Iterable[Kind]) -> dict[str, list[str]]:
    groups: dict[str, dict[str, None]] = {}
    for kind in kinds:
        groups.setdefault(kind.resource.group, {}).update(dict.fromkeys(kind.versions))
    for review in REVIEWS:
        groups.setdefault(review.group, {})[review.version] = None
    return {name: list(versions) for name, versions in groups.items()}


def group_versions(kinds: Iterable[Kind], name: str) -> list[str]:
    """The versions of a group, the preferred one first."""
    return _versions_by_group(kinds).get(name, [])


def api_group(name: str, versions: list[str]) -> Object:
    """``/apis/GROUP``."""
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": entries, "preferredVersion": entries[0]}


def resource_list(kinds: Iterable[Kind], group: str, version: str) -> Object | None:
    """``/api/v1`` and ``/apis/GROUP/VERSION``: the resources there, with their subresources; None without any."""
    resources = [entry for kind in kinds if _served(kind, group, version) for entry in _entries(kind)]
    for review in REVIEWS:
        if (review.group, review.version) == (group, version):
            resources.append(_entry(review, review.plural, review.kind, ("create",)))
    if not resources:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": resources,
    }


def _served(kind: Kind, group: str, version: str) -> bool:
    return kind.resource.group == group and version in kind.versions


def _entries(kind: Kind) -> Iterator[Object]:
    resource = kind.resource
    entry = _entry(resource, resource.plural, resource.kind, _VERBS)
    entry["singularName"] = kind.singular
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    yield entry
    for name, shown, verbs in _subresources(kind):
        # kubectl drain evicts only where it reads from which group an Eviction is.
        group = {"group": "policy", "version": "v1"} if shown == "Eviction" else {}
        yield {**_entry(resource, f"{resource.plural}/{name}", shown, verbs), **group}


def _entry(resource: Resource, name: str, kind: str, verbs: Iterable[str]) -> Object:
    return {"name": name, "singularName": "", "namespaced": resource.namespaced, "kind": kind, "verbs": list(verbs)}


def _subresources(kind: Kind) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The name, kind and verbs of each subresource."""
    if kind.key == "pods":
        for name, (shown, verb) in POD_SUBRESOURCES.items():
            yield name, shown, (verb,)
    if kind.status:
        yield "status", kind.resource.kind, _STATUS_VERBS


def version_info() -> Object:
    """``/version``: the Kubernetes release whose behaviour is followed."""
    return {
        "major": "1",
        "minor": "32",
        "gitVersion": "v1.32.0+tf-dist",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "2024-12-11T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": f"{platform.system().lower()}/{platform.machine()}",
    }


OPENAPI_V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
OPENAPI_V2: Object = {"swagger": "2.0", "info": {"title": "tf-dist", "version": "v1"}, "paths": {}, "definitions": {}}


def openapi_index(places: Iterable[str]) -> Object:
    """``/openapi/v3``: where each group version's document is."""
    return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in places}}


def openapi_document(kinds: Iterable[Kind], group: str, version: str) -> Object:
    """``/openapi/v3/apis/GROUP/VERSION``: that every kind takes patches, and ``fieldValidation`` with them."""
    paths = {}
    for kind in kinds:
        if kind.resource.group == group and version in kind.versions:
            path = kind.resource.path("{namespace}", "{name}").replace(f"/{kind.resource.version}/", f"/{version}/", 1)
            paths[path] = {"patch": _patch_operation(kind, version)}
    return {"openapi": "3.0.0", "info": {"title": "tf-dist", "version": version}, "paths": paths, "components": {}}


def _patch_operation(kind: Kind, version: str) -> Object:
    types = [PatchType.JSON, PatchType.MERGE] if kind.custom else list(PatchType)
    return {
        "operationId": f"patch{kind.resource.kind}",
        "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
        # Without a schema there are no merge keys here: the strategic type is left out, so that kubectl uses its own.
        "requestBody": {
            "content": {str(one): {"schema": {"type": "object"}} for one in types if one is not PatchType.STRATEGIC}
        },
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-group-version-kind": {
            "group": kind.resource.group,
            "version": version,
            "kind": kind.resource.kind,
        },
    }
