"""What a driver keeps of pods and nodes: there may be a hundred thousand, most of them other people's."""

from __future__ import annotations

from typing import Any, Final

from tf_dist.cluster.api import Object
from tf_dist.core.gang.exclusive import REQUIRED, required_anti_affinity

_METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "ownerReferences",
    "creationTimestamp",
    "deletionTimestamp",
)
_POD_STATUS: Final = (
    "phase",
    "reason",
    "message",
    "conditions",
    "startTime",
    "containerStatuses",
    "initContainerStatuses",
)
_CONTAINER: Final = ("name", "resources", "restartPolicy")
_MOST_SHARED: Final = 10_000
_SHARED: dict[str, list[Any]] = {}
_CONDITION: Final = ("type", "status", "reason", "message", "lastTransitionTime")


def pod(stored: Object) -> Object:
    """A pod without what no decision looks at: commands, environments, volumes, managed fields."""
    spec, status = stored.get("spec") or {}, stored.get("status") or {}
    kept: Object = {"containers": _shared([_container(one) for one in spec.get("containers") or ()])}
    if spec.get("initContainers"):
        kept["initContainers"] = [_container(one) for one in spec["initContainers"]]
    kept |= _part(spec, ("nodeName", "overhead"))
    if apart := required_anti_affinity(spec):
        kept["affinity"] = {"podAntiAffinity": {REQUIRED: _shared(apart)}}
    return {"metadata": _part(stored["metadata"], _METADATA), "spec": kept, "status": _part(status, _POD_STATUS)}


def _container(stored: Object) -> Object:
    kept = _part(stored, _CONTAINER)
    ports = [port for port in stored.get("ports") or () if port.get("hostPort")]
    return {**kept, "ports": ports} if ports else kept


def _shared(parts: list[Any]) -> list[Any]:
    """One list for all pods that ask for the same: thousands of pods have a handful of them."""
    if len(_SHARED) > _MOST_SHARED:
        _SHARED.clear()
    return _SHARED.setdefault(repr(parts), parts)


def node(stored: Object) -> Object:
    """A node without what changes with every heartbeat, so that a heartbeat is no change."""
    spec, status = stored.get("spec") or {}, stored.get("status") or {}
    return {
        "metadata": _part(stored["metadata"], _METADATA),
        "spec": _part(spec, ("taints", "unschedulable")),
        "status": {
            **_part(status, ("allocatable", "capacity")),
            "conditions": [_part(one, _CONDITION) for one in status.get("conditions") or ()],
        },
    }


def owned(stored: Object) -> Object:
    """An object of a job without its managed fields."""
    return {**stored, "metadata": _part(stored["metadata"], (*_METADATA, "annotations"))}


def job(stored: Object) -> Object:
    """A job without its managed fields."""
    metadata = {key: value for key, value in stored["metadata"].items() if key != "managedFields"}
    return {**stored, "metadata": metadata}


def rule(stored: Object) -> Object:
    """A queue or a priority class without its managed fields."""
    return job(stored)


def same_rule(old: Object, new: Object) -> bool:
    """Whether two versions of a queue or a priority class say the same; what is reported of a queue is no rule."""
    return _rule_parts(old) == _rule_parts(new)


def _rule_parts(stored: Object) -> Object:
    return {key: value for key, value in stored.items() if key not in ("metadata", "status")}


def same_room(old: Object | None, new: Object | None) -> bool:
    """Whether two versions of a node leave the same room."""
    return old is not None and new is not None and _but_version(old) == _but_version(new)


def _but_version(stored: Object) -> tuple[Any, ...]:
    metadata = {key: value for key, value in stored["metadata"].items() if key != "resourceVersion"}
    return metadata, stored["spec"], stored["status"]


def _part(whole: Object, keys: tuple[str, ...]) -> Object:
    return {key: whole[key] for key in keys if key in whole}
