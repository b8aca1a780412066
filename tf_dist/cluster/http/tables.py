"""Objects as the Accept header wants them: whole, as metadata only, or as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tf_dist.cluster.api import Object, ObjectList, Resource
from tf_dist.cluster.http.columns import columns_of
from tf_dist.cluster.memory.resources import Kind

_META = "meta.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Shape:
    """How objects of a kind are shown: one, a list of them, or (``event``) one inside a watch event."""

    one: Callable[[Object], Object]
    many: Callable[[ObjectList], Object]


def shape_of(accept: str, kind: Kind, resource: Resource, include: str, now: float) -> Shape:
    """The first shape in the Accept header that is served; whole objects if there is none."""
    for choice in accept.split(","):
        wanted = dict(part.strip().partition("=")[::2] for part in choice.split(";")[1:])
        if wanted.get("g") != "meta.k8s.io":
            continue
        version = f"meta.k8s.io/{wanted.get('v', 'v1')}"
        if wanted.get("as") == "Table":
            return _as_table(kind, version, include or "Metadata", now)
        if wanted.get("as", "").startswith("PartialObjectMetadata"):
            return _as_metadata(version)
    return Shape(lambda obj: obj, lambda found: _listed(resource, found))


def _list_metadata(found: ObjectList) -> Object:
    metadata = {"resourceVersion": found.resource_version}
    if found.continue_:
        metadata["continue"] = found.continue_
    return metadata


def _listed(resource: Resource, found: ObjectList) -> Object:
    return {
        "kind": f"{resource.kind}List",
        "apiVersion": resource.api_version,
        "metadata": _list_metadata(found),
        "items": found.items,
    }


def metadata_only(obj: Object, version: str = _META) -> Object:
    """A PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": obj["metadata"]}


def _as_metadata(version: str) -> Shape:
    def many(found: ObjectList) -> Object:
        return {
            "kind": "PartialObjectMetadataList",
            "apiVersion": version,
            "metadata": _list_metadata(found),
            "items": [metadata_only(obj, version) for obj in found.items],
        }

    return Shape(lambda obj: metadata_only(obj, version), many)


def _as_table(kind: Kind, version: str, include: str, now: float) -> Shape:
    def one(obj: Object) -> Object:
        metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        return _table(kind, version, include, now, [obj], metadata)

    return Shape(one, lambda found: _table(kind, version, include, now, found.items, _list_metadata(found)))


def _table(kind: Kind, version: str, include: str, now: float, objects: Iterable[Object], metadata: Object) -> Object:
    columns = columns_of(kind)

    def row(obj: Object) -> Object:
        # A bookmark has no spec to read: its cells are never shown.
        cells = [column.cell(obj, now) for column in columns] if obj["metadata"].get("name") else []
        return {"cells": cells, **_included(obj, include)}

    return {
        "kind": "Table",
        "apiVersion": version,
        "metadata": metadata,
        "columnDefinitions": [
            {
                "name": column.title,
                "type": column.type,
                "format": "name" if column.title == "Name" and not column.wide else "",
                "description": column.title,
                "priority": 1 if column.wide else 0,
            }
            for column in columns
        ],
        "rows": [row(obj) for obj in objects],
    }


def _included(obj: Object, include: str) -> Object:
    if include == "None":
        return {}
    return {"object": obj if include == "Object" else metadata_only(obj)}
