"""What decisions look at: a few fields of each pod, and the rest of what surrounds a job. Built from raw dicts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tf_dist.core import names
from tf_dist.core.disruptions import CONDITION_REASONS, DELETED, NODE_LOST, OTHER, Disruption
from tf_dist.core.gang.model import Verdict
from tf_dist.core.model import Document, ReplicaId
from tf_dist.core.schedulers.served import Served
from tf_dist.core.status import AcceptedSpec, RefusedSpec, Status
from tf_dist.core.times import parse_time, round_time
from tf_dist.core.untyped import mapping, mappings, number, text, texts


class PodPhase(StrEnum):
    """The phase of a pod as Kubernetes has it."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


_PHASES: Final = {phase.value: phase for phase in PodPhase}

FINISHED: Final = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED})

# Reasons with which a kubelet or a controller ends a pod that did nothing wrong; those of a kubelet that has found out
# that the pod should not have come to its node (OutOfcpu and its like besides).
EVICTION_REASONS: Final = frozenset(
    {
        "Evicted",
        "Preempting",
        "Preempted",
        "NodeShutdown",
        "Shutdown",
        "Terminated",
        "DeletionByTaintManager",
        "NodeAffinity",
        "NodePorts",
    }
)
_OUT_OF: Final = "OutOf"
# A kubelet calls that an eviction as well; no condition says that the pod was disrupted.
_OWN_LIMIT: Final = re.compile(
    r"Pod ephemeral local storage usage exceeds|Container \S+ exceeded its local ephemeral|Usage of EmptyDir volume "
)
_SIGNALLED: Final = frozenset({None, 137, 143, -9, -15})
# Seconds by which the clocks of a kubelet and of the API server may differ.
_SKEW: Final = 5.0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended: its code (signals as 128+n; None: nobody knows), and what was said about it."""

    code: int | None
    reason: str = ""
    message: str = ""
    finished_at: float | None = None

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel killed it for its memory."""
        return self.reason == "OOMKilled"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One pod of a job, reduced to what decisions need. ``attempt`` is its label: which attempt made it.

    ``evicted``: it has failed and calls that an eviction. ``disruption``: what took it away, or is about to, if that
    was no failure of its own. ``stops_at``: when the grace period of one that is being deleted is over.
    """

    name: str
    uid: str
    replica: ReplicaId
    attempt: str
    phase: PodPhase
    deleting: bool = False
    stops_at: float | None = None
    ready: bool = False
    evicted: bool = False
    node_lost: bool = False
    disruption: Disruption | None = None
    exit: Exit | None = None
    last_exit: Exit | None = None
    restarts: int = 0
    created_at: float | None = None
    started_at: float | None = None
    node: str = ""
    unschedulable: str = ""
    waiting: tuple[str, str] | None = None

    @property
    def finished(self) -> bool:
        """Whether the pod has ended for good."""
        return self.phase in FINISHED

    @property
    def has_node(self) -> bool:
        """Whether the pod has been scheduled."""
        return bool(self.node) or self.phase is not PodPhase.PENDING


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that is not ready, since then (epoch seconds; None: not known), or that is ``gone``."""

    since: float | None = None
    gone: bool = False


def unready(node: Mapping[str, Any] | None) -> NodeView | None:
    """What there is to say about a raw node (None: it is not there) that is not ready; None if it is."""
    if node is None:
        return NodeView(gone=True)
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready: Mapping[str, Any] = next((one for one in conditions if one.get("type") == "Ready"), {})
    return None if ready.get("status", "True") == "True" else NodeView(parse_time(ready.get("lastTransitionTime")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The surroundings of one job at one moment.

    ``gone``: pods that are not there any more, as they were seen last, if they are still remembered. ``unready``:
    of the nodes of its pods those that are not ready, as far as nodes may be seen. ``recovery_timeout``: that of the
    job's queue (None: it has none).

    ``stored_status`` is the job's raw status; ``objects`` the other objects it owns, by (kind, name); ``verdict`` what
    admission says now; ``addresses`` see ``Cluster.addresses``; ``now`` epoch seconds. ``driver`` is who asks, and
    becomes the job's driver. ``remembered`` is the memory as the last pass left it, where that was not worth a write.
    ``served``: what there is of the gang scheduler that the job asks for, where that is another system (None: not known
    yet); its objects are among ``objects``, their kinds with the group (``PodGroup.scheduling.volcano.sh``).
    ``gang``: the one that the asking driver has for jobs which name none ("": tf-dist itself; None: the job is another
    driver's). ``obstacle``: why passes before this one failed, several in a row ("": they did not; None: that is still
    to be seen); ``rejected``: the cluster refuses an object of the job, and would refuse it again. ``accepted``: the
    spec that the job was read from (None: that of its memory); ``refused``: the present one, if that is another.
    ``verdict_only``: it is another driver's, and is only to have the verdict in its memory.
    """

    now: float
    stored_status: Document = field(default_factory=dict)
    pods: tuple[PodView, ...] = ()
    gone: tuple[PodView, ...] = ()
    unready: Mapping[str, NodeView] = field(default_factory=dict)
    recovery_timeout: float | None = None
    objects: Mapping[tuple[str, str], Document] = field(default_factory=dict)
    verdict: Verdict | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    driver: str = ""
    remembered: Status | None = None
    served: Served | None = None
    gang: str | None = None
    obstacle: str | None = None
    rejected: bool = False
    accepted: AcceptedSpec | None = None
    refused: RefusedSpec | None = None
    verdict_only: bool = False

    def __post_init__(self) -> None:
        """Times are stored to the microsecond: one that is compared with a stored one must be no finer."""
        object.__setattr__(self, "now", round_time(self.now))


def pod_view(pod: Mapping[str, Any], container: str = "") -> PodView | None:
    """The view of a raw pod; None if its labels name no replica.

    ``container`` is the one whose exit counts; where the pod has none of that name the first one does.
    """
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    index = labels.get(names.REPLICA_INDEX, "")
    if names.REPLICA_TYPE not in labels or not index.isdecimal():
        return None
    status = _sound(mapping(pod.get("status")))
    conditions = {c.get("type"): c for c in status["conditions"]}
    container_status = _container_status(status.get("containerStatuses") or (), container)
    state = container_status.get("state") or {}
    phase = _phase(status.get("phase"))
    exit_ = _exit(state.get("terminated")) or _pod_exit(status, phase)
    deleting = bool(metadata.get("deletionTimestamp"))
    node = text(mapping(pod.get("spec")).get("nodeName"))
    disruption = _disruption(status, conditions, deleting=deleting, node=node)
    own = exit_ is not None and phase is PodPhase.FAILED and _own_end(exit_, conditions, deleting=deleting)
    return PodView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        replica=ReplicaId(labels[names.REPLICA_TYPE], int(index)),
        attempt=labels.get(names.ATTEMPT, ""),
        phase=phase,
        deleting=deleting,
        stops_at=parse_time(metadata.get("deletionTimestamp")),
        ready=_is(conditions, "Ready", "True"),
        evicted=not own and (_ended_by_node(status) or _is(conditions, OTHER, "True")),
        node_lost=_node_lost(status),
        disruption=None if own else disruption,
        exit=exit_,
        last_exit=_exit((container_status.get("lastState") or {}).get("terminated")),
        restarts=_restarts(status),
        created_at=parse_time(metadata.get("creationTimestamp")),
        started_at=parse_time(status.get("startTime")),
        node=node,
        unschedulable=_unschedulable(conditions),
        waiting=_waiting(state.get("waiting")),
    )


def _sound(status: Mapping[str, Any]) -> dict[str, Any]:
    """What is read of a pod's status, each part of the type that it should have, or absent."""
    return {
        **texts({key: status.get(key) for key in ("phase", "reason", "message", "startTime")}),
        "conditions": [texts(one) for one in mappings(status.get("conditions"))],
        "containerStatuses": [_sound_container(one) for one in mappings(status.get("containerStatuses"))],
        "initContainerStatuses": [_sound_container(one) for one in mappings(status.get("initContainerStatuses"))],
    }


def _sound_container(status: Mapping[str, Any]) -> dict[str, Any]:
    states = {key: mapping(status.get(key)) for key in ("state", "lastState")}
    return {
        "name": text(status.get("name")),
        "restartCount": number(status.get("restartCount")),
        **{key: {word: _sound_state(one) for word, one in state.items()} for key, state in states.items()},
    }


def _sound_state(state: object) -> dict[str, Any]:
    return {**texts(state), "exitCode": number(mapping(state).get("exitCode"))} if mapping(state) else {}


def _disruption(
    status: Mapping[str, Any], conditions: Mapping[Any, Mapping[str, Any]], *, deleting: bool, node: str
) -> Disruption | None:
    """What took the pod away, or is about to, independent of how its containers ended."""
    reason, message = status.get("reason") or "", status.get("message") or ""
    if _node_lost(status):
        return Disruption(NODE_LOST, message, node)
    if _is(conditions, OTHER, "True"):
        named = str(conditions[OTHER].get("reason"))
        # The words of the API server say less than the reason does.
        said = "" if named == "EvictionByEvictionAPI" else message or conditions[OTHER].get("message") or ""
        return Disruption(named if named in CONDITION_REASONS else OTHER, said, node)
    if _ended_by_node(status):
        return None if reason == "Evicted" and _OWN_LIMIT.match(message) else Disruption(reason, message, node)
    return Disruption(DELETED, node=node) if deleting else None


def _node_lost(status: Mapping[str, Any]) -> bool:
    return status.get("phase") == PodPhase.UNKNOWN or status.get("reason") == NODE_LOST


def _ended_by_node(status: Mapping[str, Any]) -> bool:
    reason = status.get("reason") or ""
    return reason in EVICTION_REASONS or (reason.startswith(_OUT_OF) and reason != _OUT_OF)


def _own_end(exit_: Exit, conditions: Mapping[Any, Mapping[str, Any]], *, deleting: bool) -> bool:
    """Whether the program ended by itself, though the pod was disrupted: before that, or for its memory."""
    if exit_.out_of_memory:
        return not deleting
    disrupted = parse_time(conditions.get(OTHER, {}).get("lastTransitionTime"))
    if exit_.code in _SIGNALLED or exit_.finished_at is None or disrupted is None:
        return False
    return exit_.finished_at < disrupted - _SKEW


def _phase(written: str | None) -> PodPhase:
    return _PHASES.get(written or "", PodPhase.PENDING)


def _container_status(statuses: Any, name: str) -> Mapping[str, Any]:
    for status in statuses:
        if status.get("name") == name:
            return status  # type: ignore[no-any-return]
    return statuses[0] if statuses else {}


def _exit(terminated: Mapping[str, Any] | None) -> Exit | None:
    if not terminated:
        return None
    return Exit(
        code=terminated.get("exitCode"),
        reason=terminated.get("reason") or "",
        message=terminated.get("message") or "",
        finished_at=parse_time(terminated.get("finishedAt")),
    )


def _pod_exit(status: Mapping[str, Any], phase: PodPhase) -> Exit | None:
    """A pod may fail with no container having said a word (eviction, a node gone): its own reason is all there is."""
    if phase is not PodPhase.FAILED:
        return None
    return Exit(code=None, reason=status.get("reason") or "", message=status.get("message") or "")


def _restarts(status: Mapping[str, Any]) -> int:
    every = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return sum(container.get("restartCount") or 0 for container in every)


def _is(conditions: Mapping[Any, Mapping[str, Any]], type_: str, status: str) -> bool:
    return conditions.get(type_, {}).get("status") == status


def _unschedulable(conditions: Mapping[Any, Mapping[str, Any]]) -> str:
    scheduled = conditions.get("PodScheduled", {})
    return scheduled.get("message") or "" if scheduled.get("status") == "False" else ""


def _waiting(waiting: Mapping[str, Any] | None) -> tuple[str, str] | None:
    return (waiting.get("reason") or "", waiting.get("message") or "") if waiting else None
