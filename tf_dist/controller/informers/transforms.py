"""Informer transforms: the fields of objects that caches keep. A cache may contain a hundred thousand objects.

The result is the same for objects from lists, watches and responses to writes. Equal parts of thousands of objects
share memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from sys import intern
from typing import Any, Final, cast

from tf_dist.cluster.api import VOLCANO_JOBS, Object
from tf_dist.core.gang.placement.anti_affinity import required_anti_affinity
from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import mapping, mappings, shared, text, texts
from tf_dist.core.model.pods import OTHER_DISRUPTION, REQUIRED_AFFINITY, StoredPod, required_node
from tf_dist.core.model.status import StoredDocument
from tf_dist.core.podbuilder import volcano_plugins
from tf_dist.core.podbuilder.replica_pod import require_node

_IDENTITY: Final = ("name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_OWNER: Final = ("apiVersion", "kind", "name", "uid", "controller")
_POD_STATUS: Final = ("phase", "reason", "message", "startTime")
_CONTAINER_STATUSES: Final = ("containerStatuses", "initContainerStatuses")
_CONTAINER_STATUS: Final = ("name", "state", "lastState", "restartCount")
# These conditions show whether the pod is ready, whether its node is unreachable (the containers are ready, but the pod
# is not), why it has no node, whether it only waits for its image, and what disrupted it. No decision reads others.
_POD_CONDITIONS: Final = frozenset(
    {"Ready", "ContainersReady", "PodScheduled", "PodReadyToStartContainers", "DisruptionTarget"}
)
_CONTAINER: Final = ("name", "resources", "restartPolicy")
_TIMELESS_CONDITION: Final = ("type", "status", "reason", "message")
_CONDITION: Final = (*_TIMELESS_CONDITION, "lastTransitionTime")
# The start time of a container is relevant only after a restart. Without it, thousands of pods share a state.
_RUNS: Final[Object] = {"running": {}}


def pod(stored: Object) -> Object:
    """A pod without fields that no decision reads: commands, environments, volumes, managed fields."""
    spec, status = mapping(stored.get("spec")), mapping(stored.get("status"))
    kept: Object = {"containers": shared([_container(one) for one in mappings(spec.get("containers"))])}
    if spec.get("initContainers"):
        kept["initContainers"] = [_container(one) for one in mappings(spec["initContainers"])]
    kept |= _part(spec, ("nodeName", "overhead", "resources", "readinessGates"))
    if apart := required_anti_affinity(spec):
        kept["affinity"] = {"podAntiAffinity": {REQUIRED_AFFINITY: shared(apart)}}
    if node := text(kept.pop("nodeName", None)):
        kept["nodeName"] = intern(node)
    else:  # the pod is not bound: keep its scheduler and its assigned node
        if scheduler := text(spec.get("schedulerName")):
            kept["schedulerName"] = intern(scheduler)
        if pinned := required_node(spec):
            kept["affinity"] = {**kept["affinity"], **_pinned(pinned)} if "affinity" in kept else _pinned(pinned)
    return StoredPod(metadata=_metadata(stored), spec=kept, status=_pod_status(status))


@lru_cache(maxsize=10_000)
def _pinned(node: str) -> Object:
    """The affinity of pods that wait for this node, as one shared object."""
    spec: Object = {}
    require_node(spec, node)
    return spec["affinity"]  # type: ignore[no-any-return]


def _pod_status(status: Mapping[str, Any]) -> Object:
    kept = _part(status, _POD_STATUS)
    if "conditions" in status:
        conditions = (one for one in mappings(status["conditions"]) if text(one.get("type")) in _POD_CONDITIONS)
        kept["conditions"] = shared(
            [
                _part(one, _CONDITION if one.get("type") == OTHER_DISRUPTION else _TIMELESS_CONDITION)
                for one in conditions
            ]
        )
    for field in _CONTAINER_STATUSES:
        if field in status:
            found = [_container_status(one) for one in mappings(status[field])]
            # Other states contain times, which differ between pods.
            runs = all(one.get("state") is _RUNS and "lastState" not in one for one in found)
            kept[field] = shared(found) if runs else found
    return kept


def _container_status(stored: Mapping[str, Any]) -> Object:
    kept = {key: value for key, value in _part(stored, _CONTAINER_STATUS).items() if value != {}}
    if mapping(kept.get("state")).keys() == _RUNS.keys() and "lastState" not in kept:
        kept["state"] = _RUNS
    return kept


def _metadata(stored: Object, *more: str) -> Object:
    """Identity, owner and labels."""
    metadata = stored["metadata"]
    kept = _part(metadata, (*_IDENTITY, *more))
    if "namespace" in metadata:
        kept["namespace"] = intern(metadata["namespace"])
    if "labels" in metadata:
        kept["labels"] = {intern(key): intern(value) for key, value in texts(metadata["labels"]).items()}
    if "ownerReferences" in metadata:
        kept["ownerReferences"] = shared([_part(owner, _OWNER) for owner in mappings(metadata["ownerReferences"])])
    return kept


def _container(stored: Mapping[str, Any]) -> Object:
    kept = _part(stored, _CONTAINER)
    ports = [port for port in mappings(stored.get("ports")) if port.get("hostPort")]
    return {**kept, "ports": ports} if ports else kept


def node(stored: Object) -> Object:
    """A node without the fields that change with every heartbeat, so that a heartbeat is not a change."""
    spec, status = mapping(stored.get("spec")), mapping(stored.get("status"))
    return {
        "metadata": _metadata(stored),
        "spec": _part(spec, ("taints", "unschedulable")),
        "status": {
            **_part(status, ("allocatable", "capacity")),
            "conditions": [_part(one, _CONDITION) for one in mappings(status.get("conditions"))],
        },
    }


def budget(stored: Object) -> Object:
    """A disruption budget of a job, with the number of pods that it protects."""
    return {**existing(stored), "spec": _part(mapping(stored.get("spec")), ("minAvailable",))}


def config_map(stored: Object) -> Object:
    """A ConfigMap of a job, with its data if it contains the host files, else reduced to its identity and owner."""
    metadata = stored["metadata"]
    owner = next((one for one in mappings(metadata.get("ownerReferences")) if one.get("controller")), {})
    if not names.owner_key(stored) or metadata["name"] != volcano_plugins.config_map_name(text(owner.get("name"))):
        return existing(stored)
    return {**existing(stored), **_part(stored, ("data",))}


def existing(stored: Object) -> Object:
    """An object of a job, reduced to its identity and owner."""
    kept = _metadata(stored)
    if uid := (kept.pop("labels", None) or {}).get(names.JOB_UID):
        kept["labels"] = {names.JOB_UID: uid}
    return {"metadata": kept}


def job(stored: Object) -> Object:
    """A job without its managed fields, packed. It is read like any other object, and never changed."""
    return cast("Object", StoredDocument(whole(stored)))


def whole(stored: Object) -> Object:
    """An object without its managed fields."""
    metadata = {key: value for key, value in stored["metadata"].items() if key != "managedFields"}
    return {**stored, "metadata": metadata}


def command_target(stored: Object) -> str:
    """The Volcano Job of a Command, as ``namespace/name``; "" for other targets (a queue)."""
    target = mapping(stored.get("target"))
    to_job = target.get("kind") == VOLCANO_JOBS.kind and text(target.get("apiVersion")) in (
        "",
        VOLCANO_JOBS.api_version,
    )
    return f"{stored['metadata'].get('namespace')}/{text(target.get('name'))}" if to_job else ""


def volcano_queue(stored: Object) -> Object:
    """A queue of Volcano without the usage that its scheduler reports. Of its status, only the state is relevant."""
    status = _part(mapping(stored.get("status")), ("state",))
    return {"metadata": _metadata(stored), "spec": mapping(stored.get("spec")), "status": status}


def namespace(stored: Object) -> Object:
    """A namespace with its labels, which queues select by."""
    return {"metadata": _metadata(stored)}


def same_labels(old: Object, new: Object) -> bool:
    """Whether two versions of an object have the same labels."""
    return bool((old["metadata"].get("labels") or {}) == (new["metadata"].get("labels") or {}))


def same_spec_and_status(old: Object, new: Object) -> bool:
    """Whether two versions of an object have the same spec and status."""
    return all(old.get(part) == new.get(part) for part in ("spec", "status"))


def same_config(old: Object, new: Object) -> bool:
    """Whether two versions of a queue or a priority class have the same rules, independent of the queue's status."""
    return all(old.get(part) == new.get(part) for part in (old.keys() | new.keys()) - {"metadata", "status"})


def same_but_version(old: Object | None, new: Object | None) -> bool:
    """Whether two versions of an object are equal in all kept fields."""
    return old is not None and new is not None and _but_version(old) == _but_version(new)


def _but_version(stored: Object) -> Object:
    metadata = {key: value for key, value in stored["metadata"].items() if key != "resourceVersion"}
    return {**stored, "metadata": metadata}


def _part(whole: Mapping[str, Any], keys: tuple[str, ...]) -> Object:
    return {key: whole[key] for key in keys if key in whole}
