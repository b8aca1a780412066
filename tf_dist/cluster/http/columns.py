"""Which columns ``kubectl get`` shows of each kind, as data: a title and how its cell is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tf_dist.cluster import api
from tf_dist.cluster.api import Object
from tf_dist.cluster.http import pod_text
from tf_dist.cluster.http.durations import age
from tf_dist.cluster.memory import resources
from tf_dist.cluster.memory.objects import look_up
from tf_dist.cluster.memory.resources import Kind

Cell = Callable[[Object, float], Any]


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column: its title, how a cell is read at a time, its type, and whether only ``-o wide`` shows it."""

    title: str
    cell: Cell
    type: str = "string"
    wide: bool = False


def _at(path: str, default: Any = "<none>") -> Cell:
    def cell(obj: Object, now: float) -> Any:
        value = look_up(obj, path)
        return default if value in (None, "") else value

    return cell


def _count(path: str) -> Cell:
    return lambda obj, now: len(look_up(obj, path) or ())


def _age_of(path: str) -> Cell:
    return lambda obj, now: age(look_up(obj, path), now)


_AGE = ShownColumn("Age", _age_of("metadata.creationTimestamp"))
_NAME = ShownColumn("Name", _at("metadata.name"), "string")


def _ports(service: Object, now: float) -> str:
    ports = (service.get("spec") or {}).get("ports") or ()
    return ",".join(f"{port['port']}/{port.get('protocol', 'TCP')}" for port in ports) or "<none>"


def _pairs(path: str) -> Cell:
    def cell(obj: Object, now: float) -> str:
        return ",".join(f"{key}={value}" for key, value in (look_up(obj, path) or {}).items()) or "<none>"

    return cell


def _node_status(node: Object, now: float) -> str:
    conditions = look_up(node, "status.conditions") or ()
    ready = next((item.get("status") for item in conditions if item.get("type") == "Ready"), "Unknown")
    parts = ["Ready" if ready == "True" else "NotReady" if ready == "False" else "Unknown"]
    if look_up(node, "spec.unschedulable"):
        parts.append("SchedulingDisabled")
    return ",".join(parts)


def _node_roles(node: Object, now: float) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    return ",".join(sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))) or "<none>"


def _address(kind: str) -> Cell:
    def cell(node: Object, now: float) -> str:
        addresses = look_up(node, "status.addresses") or ()
        return next((str(item["address"]) for item in addresses if item.get("type") == kind), "<none>")

    return cell


def _last_seen(event: Object, now: float) -> str:
    paths = ("series.lastObservedTime", "lastTimestamp", "eventTime", "firstTimestamp", "metadata.creationTimestamp")
    return age(next((time for path in paths if (time := look_up(event, path))), None), now)


def _involved(event: Object, now: float) -> str:
    about = event.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _message(event: Object, now: float) -> str:
    return str(event.get("message", "")).strip()


def _job_state(job: Object, now: float) -> str:
    """The newest condition that holds (v1), else the phase (v1alpha1), else what tf-dist itself wrote."""
    status = job.get("status") or {}
    held = [item.get("type") for item in status.get("conditions") or () if item.get("status") == "True"]
    return str((held[-1] if held else "") or status.get("phase") or look_up(status, "tfDist.phase") or "")


def _bound(obj: Object, now: float) -> str:
    return f"{look_up(obj, 'roleRef.kind')}/{look_up(obj, 'roleRef.name')}"


_NAMED: Mapping[api.Resource, tuple[ShownColumn, ...]] = {
    api.PODS: (
        ShownColumn("Ready", pod_text.ready),
        ShownColumn("Status", pod_text.status),
        ShownColumn("Restarts", pod_text.restarts),
        _AGE,
        ShownColumn("IP", _at("status.podIP"), wide=True),
        ShownColumn("Node", _at("spec.nodeName"), wide=True),
        ShownColumn("Nominated Node", _at("status.nominatedNodeName"), wide=True),
        ShownColumn("Readiness Gates", lambda pod, now: "<none>", wide=True),
    ),
    api.SERVICES: (
        ShownColumn("Type", _at("spec.type")),
        ShownColumn("Cluster-IP", _at("spec.clusterIP")),
        ShownColumn("External-IP", _at("spec.externalName")),
        ShownColumn("Port(s)", _ports),
        _AGE,
        ShownColumn("Selector", _pairs("spec.selector"), wide=True),
    ),
    api.NODES: (
        ShownColumn("Status", _node_status),
        ShownColumn("Roles", _node_roles),
        _AGE,
        ShownColumn("Version", _at("status.nodeInfo.kubeletVersion", "")),
        ShownColumn("Internal-IP", _address("InternalIP"), wide=True),
        ShownColumn("External-IP", _address("ExternalIP"), wide=True),
        ShownColumn("OS-Image", _at("status.nodeInfo.osImage", "<unknown>"), wide=True),
        ShownColumn("Kernel-Version", _at("status.nodeInfo.kernelVersion", "<unknown>"), wide=True),
        ShownColumn("Container-Runtime", _at("status.nodeInfo.containerRuntimeVersion", "<unknown>"), wide=True),
    ),
    api.CONFIG_MAPS: (ShownColumn("Data", _count("data"), "integer"), _AGE),
    api.SECRETS: (ShownColumn("Type", _at("type")), ShownColumn("Data", _count("data"), "integer"), _AGE),
    api.NAMESPACES: (ShownColumn("Status", _at("status.phase")), _AGE),
    api.LEASES: (ShownColumn("Holder", _at("spec.holderIdentity", "")), _AGE),
    api.PERSISTENT_VOLUME_CLAIMS: (
        ShownColumn("Status", _at("status.phase")),
        ShownColumn("Volume", _at("spec.volumeName", "")),
        ShownColumn("Capacity", _at("status.capacity.storage", "")),
        ShownColumn("Access Modes", lambda claim, now: ",".join(look_up(claim, "spec.accessModes") or ())),
        ShownColumn("StorageClass", _at("spec.storageClassName", "")),
        _AGE,
    ),
    resources.PRIORITY_CLASSES: (
        ShownColumn("Value", _at("value", 0), "integer"),
        ShownColumn("Global-Default", lambda item, now: str(bool(item.get("globalDefault"))).lower(), "boolean"),
        _AGE,
    ),
    resources.POD_DISRUPTION_BUDGETS: (
        ShownColumn("Min Available", _at("spec.minAvailable", "N/A")),
        ShownColumn("Max Unavailable", _at("spec.maxUnavailable", "N/A")),
        ShownColumn("Allowed Disruptions", _at("status.disruptionsAllowed", 0), "integer"),
        _AGE,
    ),
    resources.CRDS: (ShownColumn("Created At", _at("metadata.creationTimestamp")),),
    resources.VOLCANO_POD_GROUPS: (
        ShownColumn("Status", _at("status.phase", "")),
        ShownColumn("minMember", _at("spec.minMember", ""), "integer"),
        ShownColumn("Runnings", _at("status.running", ""), "integer"),
        _AGE,
    ),
    resources.VOLCANO_QUEUES: (ShownColumn("Weight", _at("spec.weight", "")), _AGE),
    resources.QUEUES: (
        ShownColumn("Pending", _at("status.pending", ""), "integer"),
        ShownColumn("Admitted", _at("status.admitted", ""), "integer"),
        ShownColumn("Used", _at("status.usage", "")),
        ShownColumn("Share", _at("status.share", "")),
        ShownColumn("Parent", _at("spec.parent", "")),
        _AGE,
    ),
    api.TFJOBS: (
        ShownColumn("State", _job_state),
        ShownColumn("Ready", _at("status.tfDist.ready", "")),
        ShownColumn("Reason", _at("status.tfDist.why", "")),
        _AGE,
    ),
    api.VOLCANO_JOBS: (
        ShownColumn("Status", _at("status.state.phase", "")),
        ShownColumn("minAvailable", _at("status.minAvailable", ""), "integer"),
        ShownColumn("Runnings", _at("status.running", ""), "integer"),
        _AGE,
    ),
}
_COLUMNS = {f"{one.plural}.{one.group}" if one.group else one.plural: columns for one, columns in _NAMED.items()}
_BINDING = (ShownColumn("Role", _bound), _AGE)
_EVENT = (
    ShownColumn("Last Seen", _last_seen),
    ShownColumn("Type", _at("type", "")),
    ShownColumn("Reason", _at("reason", "")),
    ShownColumn("Object", _involved),
    ShownColumn("Message", _message),
    ShownColumn("Source", _at("source.component", ""), wide=True),
    ShownColumn("Count", _at("count", 1), "integer", wide=True),
    ShownColumn("Name", _at("metadata.name"), wide=True),
)


def columns_of(kind: Kind) -> tuple[ShownColumn, ...]:
    """The columns of a kind: its own, those of its CRD, or name and age."""
    if kind.key == "events":
        return _EVENT
    if kind.resource.plural.endswith("rolebindings"):
        return (_NAME, *_BINDING)
    if kind.columns:
        return (_NAME, *(_custom(column) for column in kind.columns))
    return (_NAME, *_COLUMNS.get(kind.key, (_AGE,)))


def _custom(column: resources.Column) -> ShownColumn:
    if column.type == "date":
        return ShownColumn(column.name, _age_of(column.path), "date", wide=column.priority > 0)
    return ShownColumn(column.name, _at(column.path, ""), column.type, wide=column.priority > 0)
