"""Server-side printing: the tables of ``kubectl get``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.cluster.api import Object, ObjectList, Resource
from tf_dist.cluster.apiserver.requests import Request
from tf_dist.cluster.apiserver.storage.api_resources import Kind
from tf_dist.cluster.printer_columns import AdditionalPrinterColumn
from tf_dist.core.diagnostics.display_text import format_age
from tf_dist.core.model.fieldpath import value_at
from tf_dist.core.model.timestamps import parse_time

_NAME: Final = AdditionalPrinterColumn("Name", "metadata.name")
_AGE: Final = AdditionalPrinterColumn("Age", "metadata.creationTimestamp", "date")


@dataclass(frozen=True, slots=True)
class ObjectFormat:
    """The representation of objects of a kind: of a single object, and of a list."""

    one: Callable[[Object], Object]
    many: Callable[[ObjectList], Object]


def negotiate_format(request: Request, kind: Kind, resource: Resource, now: float) -> ObjectFormat:
    """A table if the client accepts one, else whole objects. ``resource``: the kind at the requested version."""

    def whole(found: ObjectList) -> Object:
        types = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return {**types, "metadata": _list_metadata(found), "items": found.items}

    if "as=Table" not in request.accept:
        return ObjectFormat(lambda obj: obj, whole)
    include = request.query.get("includeObject", "Metadata")
    return ObjectFormat(
        lambda obj: _table(kind, include, now, [obj], {"resourceVersion": obj["metadata"].get("resourceVersion", "")}),
        lambda found: _table(kind, include, now, found.items, _list_metadata(found)),
    )


def _list_metadata(found: ObjectList) -> Object:
    more = {"continue": found.continue_} if found.continue_ else {}
    return {"resourceVersion": found.resource_version, **more}


def _table(kind: Kind, include: str, now: float, objects: Iterable[Object], metadata: Object) -> Object:
    columns = kind.columns or (_AGE,)
    columns = columns if kind.key == "events" else (_NAME, *columns)

    def row(obj: Object) -> Object:
        # A bookmark has no spec, and its cells are never shown.
        cells = [_cell(kind, column, obj, now) for column in columns] if obj["metadata"].get("name") else []
        partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
        return {"cells": cells, "object": obj if include == "Object" else partial}

    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": "name" if column == _NAME else "",
                "description": column.name,
                "priority": column.priority,
            }
            for column in columns
        ],
        "rows": [row(obj) for obj in objects],
    }


def _cell(kind: Kind, column: AdditionalPrinterColumn, obj: Object, now: float) -> Any:
    if computed := _COMPUTED.get((kind.key, column.name)):
        return computed(obj)
    value = value_at(obj, *column.path.split("."))
    if column.type == "date":
        return format_age(parse_time(str(value)), now)
    return "" if value is None else value


def _pod_ready(pod: Object) -> str:
    """``1/2``: the numbers of ready containers and of all containers."""
    ready = sum(bool(one.get("ready")) for one in value_at(pod, "status", "containerStatuses") or ())
    return f"{ready}/{len(value_at(pod, 'spec', 'containers') or ())}"


def _pod_status(pod: Object) -> str:
    """Why a container waits or has ended, else the phase."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    text = value_at(pod, "status", "reason") or value_at(pod, "status", "phase") or "Unknown"
    for field, prefix in (("initContainerStatuses", "Init:"), ("containerStatuses", "")):
        for one in value_at(pod, "status", field) or ():
            ended = value_at(one, "state", "terminated") or {}
            reason = value_at(one, "state", "waiting", "reason") or ended.get("reason")
            if reason and not (prefix and (reason == "PodInitializing" or ended.get("exitCode") == 0)):
                return f"{prefix}{reason}"
    return str(text)


def _pod_restarts(pod: Object) -> int:
    return sum(one.get("restartCount", 0) for one in value_at(pod, "status", "containerStatuses") or ())


def _node_status(node: Object) -> str:
    conditions = value_at(node, "status", "conditions") or ()
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    cordoned = ",SchedulingDisabled" if value_at(node, "spec", "unschedulable") else ""
    return f"{'Ready' if ready else 'NotReady'}{cordoned}"


def _event_subject(event: Object) -> str:
    about = event.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


_COMPUTED: Final[Mapping[tuple[str, str], Callable[[Object], Any]]] = {
    ("pods", "Ready"): _pod_ready,
    ("pods", "Status"): _pod_status,
    ("pods", "Restarts"): _pod_restarts,
    ("nodes", "Status"): _node_status,
    ("events", "Object"): _event_subject,
}
"""The columns whose cells are computed instead of read from a path."""
