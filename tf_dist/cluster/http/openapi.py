"""The least OpenAPI that lets ``kubectl apply`` leave validation and patching to the server."""

from __future__ import annotations

from collections.abc import Iterable

from tf_dist.cluster.api import Object, PatchType
from tf_dist.cluster.memory.resources import Kind

V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
V2: Object = {"swagger": "2.0", "info": {"title": "tf-dist", "version": "v1"}, "paths": {}, "definitions": {}}


def index(places: Iterable[str]) -> Object:
    """``/openapi/v3``: where each group version's document is."""
    return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in places}}


def document(kinds: Iterable[Kind], group: str, version: str) -> Object:
    """``/openapi/v3/apis/GROUP/VERSION``: that every kind takes patches, and ``fieldValidation`` with them."""
    paths = {}
    for kind in kinds:
        if kind.resource.group == group and version in kind.versions:
            path = kind.resource.path("{namespace}", "{name}").replace(f"/{kind.resource.version}/", f"/{version}/", 1)
            paths[path] = {"patch": _patch(kind, version)}
    return {"openapi": "3.0.0", "info": {"title": "tf-dist", "version": version}, "paths": paths, "components": {}}


def _patch(kind: Kind, version: str) -> Object:
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
