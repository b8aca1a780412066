"""Server-side printing: the tables of kubectl get, and objects as metadata only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tf_dist.cluster import api
from tf_dist.cluster.api import Object, ObjectList, Resource
from tf_dist.cluster.apiserver.storage.api_resources import Kind
from tf_dist.cluster.printer_columns import AdditionalPrinterColumn
from tf_dist.core.api.fieldpath import value_at
from tf_dist.core.api.timestamps import parse_time

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_YEAR = 365 * _DAY
# Below so many seconds: the unit, its letter, and the smaller unit that is shown beside it (0: none).
_STEPS = (
    (2 * _MINUTE, 1, "s", 0, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
    (float("inf"), _YEAR, "y", 0, ""),
)


def human_duration(seconds: float) -> str:
    """``90s``, ``5m3s``, ``2d``."""
    whole = max(0, int(seconds))
    _, unit, letter, smaller, small = next(step for step in _STEPS if whole < step[0])
    count, rest = divmod(whole, unit)
    beside = rest // smaller if smaller else 0
    return f"{count}{letter}{beside}{small}" if beside else f"{count}{letter}"


def human_age(timestamp: object, now: float) -> str:
    """How long ago a timestamp is; ``<unknown>`` for what is none."""
    then = parse_time(str(timestamp))
    return "<unknown>" if then is None else human_duration(now - then)


def _statuses(pod: Object, field: str = "containerStatuses") -> list[Object]:
    return value_at(pod, "status", field) or []


def pod_ready_text(pod: Object, now: float) -> str:
    """``1/2``: containers that are ready, of all."""
    count = sum(bool(one.get("ready")) for one in _statuses(pod))
    return f"{count}/{len(value_at(pod, 'spec', 'containers') or ())}"


def pod_restarts_text(pod: Object, now: float) -> str:
    """``0`` or ``3 (5m ago)``."""
    total = sum(one.get("restartCount", 0) for one in _statuses(pod))
    ends = [value_at(one, "lastState", "terminated", "finishedAt") for one in _statuses(pod)]
    last = max((end for end in ends if end), default=None)
    return f"{total} ({human_age(last, now)} ago)" if total and last else str(total)


def pod_phase_text(pod: Object, now: float) -> str:
    """The STATUS column."""
    text = str(value_at(pod, "status", "reason") or value_at(pod, "status", "phase") or "Unknown")
    if _gated(pod):
        text = "SchedulingGated"
    text = _starting(pod) or _running(pod, text)
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if value_at(pod, "status", "reason") == "NodeLost" else "Terminating"
    return text


def _gated(pod: Object) -> bool:
    conditions = value_at(pod, "status", "conditions") or ()
    return any(one.get("type") == "PodScheduled" and one.get("reason") == "SchedulingGated" for one in conditions)


def _starting(pod: Object) -> str:
    """The first init container that is not done."""
    total = len(value_at(pod, "spec", "initContainers") or ())
    for at, one in enumerate(_statuses(pod, "initContainerStatuses")):
        ended = value_at(one, "state", "terminated")
        if ended is not None:
            if ended.get("exitCode") == 0:
                continue
            return f"Init:{_end(ended)}"
        waiting = value_at(one, "state", "waiting", "reason")
        return f"Init:{waiting}" if waiting and waiting != "PodInitializing" else f"Init:{at}/{total}"
    return ""


def _running(pod: Object, text: str) -> str:
    for one in reversed(_statuses(pod)):
        if waiting := value_at(one, "state", "waiting", "reason"):
            text = str(waiting)
        elif (ended := value_at(one, "state", "terminated")) is not None:
            text = _end(ended)
    running = any(one.get("ready") and value_at(one, "state", "running") is not None for one in _statuses(pod))
    # One container is done and another still works: the pod as a whole runs.
    return "Running" if text == "Completed" and running else text


def _end(ended: dict[str, Any]) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode', 0)}"


Cell = Callable[[Object, float], Any]


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """A column: its title, how a cell is read at a time, its type, and whether only ``-o wide`` shows it."""

    title: str
    cell: Cell
    type: str = "string"
    wide: bool = False


def _field(path: str, default: Any = "<none>") -> Cell:
    def cell(obj: Object, now: float) -> Any:
        value = value_at(obj, *path.split("."))
        return default if value in (None, "") else value

    return cell


def _age_of(path: str) -> Cell:
    return lambda obj, now: human_age(value_at(obj, *path.split(".")), now)


_AGE = PrinterColumn("Age", _age_of("metadata.creationTimestamp"))
_NAME = PrinterColumn("Name", _field("metadata.name"), "string")


def _ports(service: Object, now: float) -> str:
    ports = (service.get("spec") or {}).get("ports") or ()
    return ",".join(f"{port['port']}/{port.get('protocol', 'TCP')}" for port in ports) or "<none>"


def _pairs(path: str) -> Cell:
    def cell(obj: Object, now: float) -> str:
        return ",".join(f"{key}={value}" for key, value in (value_at(obj, *path.split(".")) or {}).items()) or "<none>"

    return cell


def _node_status(node: Object, now: float) -> str:
    conditions = value_at(node, "status", "conditions") or ()
    ready = next((item.get("status") for item in conditions if item.get("type") == "Ready"), "Unknown")
    parts = ["Ready" if ready == "True" else "NotReady" if ready == "False" else "Unknown"]
    if value_at(node, "spec", "unschedulable"):
        parts.append("SchedulingDisabled")
    return ",".join(parts)


def _node_roles(node: Object, now: float) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    return ",".join(sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))) or "<none>"


def _address(kind: str) -> Cell:
    def cell(node: Object, now: float) -> str:
        addresses = value_at(node, "status", "addresses") or ()
        return next((str(item["address"]) for item in addresses if item.get("type") == kind), "<none>")

    return cell


def _last_seen(event: Object, now: float) -> str:
    paths = ("series.lastObservedTime", "lastTimestamp", "eventTime", "firstTimestamp", "metadata.creationTimestamp")
    return human_age(next((time for path in paths if (time := value_at(event, *path.split(".")))), None), now)


def _involved(event: Object, now: float) -> str:
    about = event.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _message(event: Object, now: float) -> str:
    return str(event.get("message", "")).strip()


_KIND_COLUMNS: Mapping[api.Resource, tuple[PrinterColumn, ...]] = {
    api.PODS: (
        PrinterColumn("Ready", pod_ready_text),
        PrinterColumn("Status", pod_phase_text),
        PrinterColumn("Restarts", pod_restarts_text),
        _AGE,
        PrinterColumn("IP", _field("status.podIP"), wide=True),
        PrinterColumn("Node", _field("spec.nodeName"), wide=True),
        PrinterColumn("Nominated Node", _field("status.nominatedNodeName"), wide=True),
        PrinterColumn("Readiness Gates", lambda pod, now: "<none>", wide=True),
    ),
    api.SERVICES: (
        PrinterColumn("Type", _field("spec.type")),
        PrinterColumn("Cluster-IP", _field("spec.clusterIP")),
        PrinterColumn("External-IP", _field("spec.externalName")),
        PrinterColumn("Port(s)", _ports),
        _AGE,
        PrinterColumn("Selector", _pairs("spec.selector"), wide=True),
    ),
    api.NODES: (
        PrinterColumn("Status", _node_status),
        PrinterColumn("Roles", _node_roles),
        _AGE,
        PrinterColumn("Version", _field("status.nodeInfo.kubeletVersion", "")),
        PrinterColumn("Internal-IP", _address("InternalIP"), wide=True),
        PrinterColumn("External-IP", _address("ExternalIP"), wide=True),
        PrinterColumn("OS-Image", _field("status.nodeInfo.osImage", "<unknown>"), wide=True),
        PrinterColumn("Kernel-Version", _field("status.nodeInfo.kernelVersion", "<unknown>"), wide=True),
        PrinterColumn("Container-Runtime", _field("status.nodeInfo.containerRuntimeVersion", "<unknown>"), wide=True),
    ),
    api.EVENTS: (
        PrinterColumn("Last Seen", _last_seen),
        PrinterColumn("Type", _field("type", "")),
        PrinterColumn("Reason", _field("reason", "")),
        PrinterColumn("Object", _involved),
        PrinterColumn("Message", _message),
        PrinterColumn("Source", _field("source.component", ""), wide=True),
        PrinterColumn("Count", _field("count", 1), "integer", wide=True),
        PrinterColumn("Name", _field("metadata.name"), wide=True),
    ),
}


def printer_columns(kind: Kind) -> tuple[PrinterColumn, ...]:
    """The columns of a kind: its own, those of its definition, or name and age."""
    if kind.columns:
        return (_NAME, *(_custom(column) for column in kind.columns))
    columns = _KIND_COLUMNS.get(kind.resource, (_AGE,))
    return columns if kind.resource == api.EVENTS else (_NAME, *columns)


def _custom(column: AdditionalPrinterColumn) -> PrinterColumn:
    if column.type == "date":
        return PrinterColumn(column.name, _age_of(column.path), "date", wide=column.priority > 0)
    return PrinterColumn(column.name, _field(column.path, ""), column.type, wide=column.priority > 0)


_META = "meta.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class ObjectFormat:
    """The representation of objects of a kind: of one, and of a list of them."""

    one: Callable[[Object], Object]
    many: Callable[[ObjectList], Object]


def negotiate_format(accept: str, kind: Kind, resource: Resource, include: str, now: float) -> ObjectFormat:
    """The first representation in the Accept header that is served; else whole objects."""
    for choice in accept.split(","):
        wanted = dict(part.strip().partition("=")[::2] for part in choice.split(";")[1:])
        if wanted.get("g") != "meta.k8s.io":
            continue
        version = f"meta.k8s.io/{wanted.get('v', 'v1')}"
        if wanted.get("as") == "Table":
            return _as_table(kind, version, include or "Metadata", now)
        if wanted.get("as", "").startswith("PartialObjectMetadata"):
            return _as_metadata(version)
    return ObjectFormat(lambda obj: obj, lambda found: _listed(resource, found))


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


def partial_object_metadata(obj: Object, version: str = _META) -> Object:
    """A PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": obj["metadata"]}


def _as_metadata(version: str) -> ObjectFormat:
    def many(found: ObjectList) -> Object:
        return {
            "kind": "PartialObjectMetadataList",
            "apiVersion": version,
            "metadata": _list_metadata(found),
            "items": [partial_object_metadata(obj, version) for obj in found.items],
        }

    return ObjectFormat(lambda obj: partial_object_metadata(obj, version), many)


def _as_table(kind: Kind, version: str, include: str, now: float) -> ObjectFormat:
    def one(obj: Object) -> Object:
        metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        return _table(kind, version, include, now, [obj], metadata)

    return ObjectFormat(one, lambda found: _table(kind, version, include, now, found.items, _list_metadata(found)))


def _table(kind: Kind, version: str, include: str, now: float, objects: Iterable[Object], metadata: Object) -> Object:
    columns = printer_columns(kind)

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
    return {"object": obj if include == "Object" else partial_object_metadata(obj)}
