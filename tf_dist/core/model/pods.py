"""Pods and nodes reduced to what decisions need, and disruptions of pods.

Disruptions do not count against ``backoffLimit`` or ``maxRetry``. They are counted by cause, and have their own limit
(annotation ``tf-dist.dev/max-disruptions``), in case another controller deletes every new pod. Their reasons are the
reasons of the pod condition ``DisruptionTarget``, and of pods that a kubelet has ended.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from tf_dist.core.model import names
from tf_dist.core.model.credentials import hide_credentials
from tf_dist.core.model.fieldpath import list_items, mapping, mappings, number, text, texts
from tf_dist.core.model.job import Job, ReplicaId, ReplicaSpec, replica_id
from tf_dist.core.model.reasons import HOLDING_REASONS, Reason, reason_row, stable_reason
from tf_dist.core.model.timestamps import parse_time
from tf_dist.core.model.wording import join_names

POD_DELETED: Final = "Deleted"
NODE_LOST: Final = "NodeLost"
DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
# A controller set the condition with a reason that is not in ``CONDITION_REASONS``.
OTHER_DISRUPTION: Final = "DisruptionTarget"
REQUIRED_AFFINITY: Final = "requiredDuringSchedulingIgnoredDuringExecution"

# The default limit of disruptions: a drain may evict every pod of a job, and a long job may go through many drains.
_PER_REPLICA: Final = 10
_AT_LEAST: Final = 100

CONDITION_REASONS: Final[Mapping[str, str]] = {
    "EvictionByEvictionAPI": "was evicted{node} through the Eviction API",
    "PreemptionByScheduler": "was preempted{node} by the cluster's scheduler",
    "DeletionByTaintManager": "was evicted{node}, whose taints it does not tolerate (any longer)",
    "DeletionByPodGC": "was removed{node} by the pod garbage collector: the node is gone, or out of service",
    "TerminationByKubelet": "was ended{node} by the kubelet",
}
_TEXTS: Final[Mapping[str, str]] = {
    **CONDITION_REASONS,
    POD_DELETED: "was deleted{node}, not by tf-dist",
    NODE_LOST: "is lost{node}",
    DEADLINE_EXCEEDED: "was ended{node}: its job had less time when it was created",
    OTHER_DISRUPTION: "was disrupted{node}",
}


@dataclass(frozen=True, slots=True)
class Disruption:
    """A disruption of a pod: its reason, its message, and the node of the pod ("": unknown)."""

    reason: str
    message: str = ""
    node: str = ""

    def __str__(self) -> str:
        """``was evicted from node n1 through the Eviction API``."""
        where = f" with node {self.node}" if self.reason == NODE_LOST else f" from node {self.node}"
        where = where if self.node else ""
        known = _TEXTS.get(self.reason)
        # Any other reason comes from a kubelet or another component that writes statuses of pods.
        text = known.format(node=where) if known else f"was evicted{where} ({self.reason})"
        said = " ".join(self.message.split())
        return f"{text} ({said})" if said else text


def disruption_limit(job: Job) -> int:
    """The number of disruptions after which the job fails."""
    said = job.run_policy.max_disruptions
    return max(_AT_LEAST, _PER_REPLICA * len(job.replicas)) if said is None else said


def counted_cause(disruption: Disruption, counts: Mapping[str, int]) -> str:
    """The key under which a disruption is counted. Further reasons of an unlimited set are counted together."""
    reason = disruption.reason
    if reason not in counts and reason.startswith(_OUT_OF) and len(counts) >= _MAX_CAUSES:
        return OTHER_DISRUPTION
    return reason


def disruption_counts(disruptions: Mapping[str, int]) -> str:
    """``2 × EvictionByEvictionAPI, 1 × Deleted``, the most frequent first."""
    ranked = sorted(disruptions.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} × {reason}" for reason, count in ranked)


class PodPhase(StrEnum):
    """The phase of a pod in Kubernetes."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


_PHASES: Final = {phase.value: phase for phase in PodPhase}

FINISHED: Final = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED})

# Reasons with which a kubelet or a controller ends a pod that has not failed by itself, and with which a kubelet
# rejects a pod that does not belong on its node. Reasons such as OutOfcpu are also evictions (``_OUT_OF``).
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
# Reasons are keys of counts in the status, and these reasons of the kubelet contain any name of a resource.
_MAX_REASON: Final = 100
_MAX_CAUSES: Final = 20
# Messages of evictions for exceeding the pod's own limits. No condition reports these as disruptions.
_OWN_LIMIT: Final = re.compile(
    r"Pod ephemeral local storage usage exceeds|Container \S+ exceeded its local ephemeral|Usage of EmptyDir volume "
)
_SIGNALLED: Final = frozenset({None, 137, 143, -9, -15})
# Seconds by which the clocks of a kubelet and the API server may differ.
_SKEW: Final = 5.0
# Reasons of a container runtime for a container that ended before it ran: its command is missing, or a mount is wrong.
START_FAILURES: Final = frozenset({"StartError", "ContainerCannotRun"})
# Part of the container runtime's error (containerd, CRI-O, Docker) if neither the container nor its image has a
# command. The kubelet has no separate reason for this error.
_NO_COMMAND: Final = "no command specified"


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended: its code (signals as 128+n; None: not known), and the reason and message.

    ``beside``: another container and its end, if the pod failed because of that container. ``container``: the container
    in words, if it is not the training container (``init container fetch``).
    """

    code: int | None
    reason: str = ""
    message: str = ""
    finished_at: float | None = None
    started_at: float | None = None
    beside: tuple[str, Exit] | None = None
    container: str = ""

    @property
    def start_failed(self) -> bool:
        """Whether the container could not be started, for any code (containerd: 128)."""
        return self.reason in START_FAILURES

    @property
    def never_runs(self) -> bool:
        """Whether no container of the pod could be created, and another pod of the same template would fail as well."""
        return self.code is None and reason_row(self.reason).permanent

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel killed the container because it ran out of memory."""
        return self.reason == "OOMKilled"


class StoredPod(dict[str, Any]):
    """An immutable stored pod, whose view is created once for all readers of the object. A copy is a plain dict."""

    __slots__ = ("viewed_as",)
    viewed_as: PodView

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One pod of a job, reduced to what decisions need.

    ``attempt``: its label with the attempt that created it. ``scheduler_name``: the scheduler of a pod that no
    scheduler has processed yet; otherwise "". ``evicted``: the pod was evicted. ``past_deadline``: it has failed by its
    ``activeDeadlineSeconds``. ``disruption``: the current or imminent disruption, if the pod has not failed by itself.
    ``stops_at``: the end of the grace period of a deleted pod. ``pulling``: its container lacks only its image, and no
    pull has failed. ``pinned``: the node that a pod without a node requires by name ("": none). ``kept_by``: the
    finalizers that keep a deleted pod, if the pod has ended or has no node ("": none). ``sidecar_runs``: its container
    has ended, and another container runs. ``running_since``: the start of its running container (None: it does not
    run). ``container``: the requested container name.
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
    past_deadline: bool = False
    node_lost: bool = False
    disruption: Disruption | None = None
    exit: Exit | None = None
    last_exit: Exit | None = None
    restarts: int = 0
    created_at: float | None = None
    started_at: float | None = None
    running_since: float | None = None
    node: str = ""
    pinned: str = ""
    unschedulable: str = ""
    waiting: tuple[str, str] | None = None
    node_silent: bool = False
    scheduler_name: str = ""
    pulling: bool = False
    kept_by: str = ""
    sidecar_runs: bool = False
    container: str = field(default="", compare=False, repr=False)

    @property
    def finished(self) -> bool:
        """Whether the pod has ended and will not run again."""
        return self.phase in FINISHED

    @property
    def held_by(self) -> str:
        """The lasting reason why its container does not run ("": none)."""
        if self.finished or self.deleting or self.waiting is None:
            return ""
        reason = stable_reason(self.waiting[0])
        return reason if reason in HOLDING_REASONS else ""

    @property
    def ends(self) -> int:
        """How many times its container has ended, according to its status."""
        ended_now = self.exit is not None or (self.waiting is not None and self.last_exit is not None)
        return self.restarts + ended_now

    def training_end(self, spec: ReplicaSpec) -> Exit | None:
        """The end of the training container, in any phase of the pod; None if the pod's phase decides.

        As in the v1alpha1 operator (``replicaStatusFromPodList``), the container's end before a restart by the kubelet
        has precedence, and other containers may still run.
        """
        ends = (exit_ for exit_ in (self.last_exit, self.exit) if exit_ is not None and not exit_.container)
        return next(ends, None) if spec.last_exit_counts else None

    @property
    def has_node(self) -> bool:
        """Whether the pod has been scheduled."""
        return bool(self.node) or self.phase is not PodPhase.PENDING

    @property
    def waits_for_node(self) -> bool:
        """Whether the cluster's scheduler has not found a node for the pod yet."""
        return not self.has_node and not self.deleting


@dataclass(frozen=True, slots=True)
class UnreadyNode:
    """A node that has not been ready since a time (epoch seconds; None: unknown), or that is ``gone``."""

    since: float | None = None
    gone: bool = False


def unready_node(node: Mapping[str, Any] | None) -> UnreadyNode | None:
    """The state of a raw node (None: it does not exist) that is not ready; None if it is ready."""
    if node is None:
        return UnreadyNode(gone=True)
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready: Mapping[str, Any] = next((one for one in conditions if one.get("type") == "Ready"), {})
    return None if ready.get("status", "True") == "True" else UnreadyNode(parse_time(ready.get("lastTransitionTime")))


def pod_view(pod: Mapping[str, Any], container: str = "") -> PodView | None:
    """The view of a raw pod; None if its labels name no replica.

    ``container``: the name of the training container ("": the first container).
    """
    known: PodView | None = getattr(pod, "viewed_as", None)
    if known is not None and known.container == container:
        return known
    found = _view(pod, container)
    if found is not None and isinstance(pod, StoredPod):
        pod.viewed_as = found
    return found


def pod_views(job: Job, pods: Iterable[Mapping[str, Any]]) -> tuple[PodView, ...]:
    """The views of a job's raw pods."""
    containers = {spec.type: spec.container for spec in job.replica_specs}
    types = ((pod, (pod["metadata"].get("labels") or {}).get(names.REPLICA_TYPE, "")) for pod in pods)
    views = (pod_view(pod, containers.get(type_, "")) for pod, type_ in types)
    return tuple(view for view in views if view is not None)


class _Container(NamedTuple):
    """The status of a container: the parts that are read, each with the right type."""

    name: str
    is_init: bool
    restarts: int
    state: Mapping[str, Mapping[str, Any]]
    """Its state, under the key ``running``, ``waiting`` or ``terminated``."""
    last_state: Mapping[str, Mapping[str, Any]]

    @property
    def waiting(self) -> tuple[str, str] | None:
        """The reason and message of a waiting container; None if the container does not wait."""
        waiting = self.state.get("waiting")
        return (waiting.get("reason") or "", waiting.get("message") or "") if waiting else None


_NO_CONTAINER: Final = _Container("", is_init=False, restarts=0, state={}, last_state={})


def _containers(status: Mapping[str, Any]) -> tuple[_Container, ...]:
    """Every container of a pod, init containers first."""
    return tuple(
        _Container(
            name=text(one.get("name")),
            is_init=key == "initContainerStatuses",
            restarts=max(0, number(one.get("restartCount")) or 0),
            state=_states(one.get("state")),
            last_state=_states(one.get("lastState")),
        )
        for key in ("initContainerStatuses", "containerStatuses")
        for one in mappings(status.get(key))
    )


# The number of characters of a message that are read. A kubelet keeps at most 4096 bytes of a container's message.
_READ: Final = 8_192


def _texts(raw: object) -> dict[str, str]:
    """The entries of a status whose values are text. Its message is shortened, and does not show credentials."""
    found = texts(raw)
    if message := found.get("message"):
        if len(message) > _READ:
            message = f"{message[: _READ // 2]} … {message[-_READ // 2 :]}"
        found["message"] = hide_credentials(message)
    return found


def _states(raw: object) -> dict[str, dict[str, Any]]:
    return {
        word: {**_texts(state), "exitCode": number(mapping(state).get("exitCode"))} if mapping(state) else {}
        for word, state in mapping(raw).items()
    }


def _view(pod: Mapping[str, Any], container: str) -> PodView | None:
    metadata, spec, status = pod["metadata"], mapping(pod.get("spec")), mapping(pod.get("status"))
    labels = metadata.get("labels") or {}
    index = labels.get(names.REPLICA_INDEX, "")
    if names.REPLICA_TYPE not in labels or not index.isdecimal():
        return None
    said = _texts(status)
    conditions = {one.get("type"): one for one in map(_texts, mappings(status.get("conditions")))}
    every = _containers(status)
    own = [one for one in every if not one.is_init]
    trains = next((one for one in own if one.name == container), own[0] if own else _NO_CONTAINER)
    phase = _PHASES.get(said.get("phase", ""), PodPhase.PENDING)
    exit_ = _exit(trains.state) or (_pod_exit(said, every) if phase is PodPhase.FAILED else None)
    if exit_ is not None and exit_.code == 0 and phase is PodPhase.FAILED and (failure := _first_failure(every)):
        exit_ = replace(exit_, beside=(failure[0].name, failure[1]))
    deleting = bool(metadata.get("deletionTimestamp"))
    node = text(spec.get("nodeName"))
    created, started = parse_time(metadata.get("creationTimestamp")), parse_time(said.get("startTime"))
    behind = max(0.0, created - started) if created is not None and started is not None else 0.0
    itself = exit_ is not None and phase is PodPhase.FAILED and _own_end(exit_, conditions, behind, deleting=deleting)
    unscheduled = conditions.get("PodScheduled", {})
    return PodView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        replica=replica_id(labels[names.REPLICA_TYPE], int(index)),
        attempt=labels.get(names.ATTEMPT, ""),
        phase=phase,
        deleting=deleting,
        stops_at=parse_time(metadata.get("deletionTimestamp")),
        ready=_is(conditions, "Ready", "True"),
        evicted=not itself and (_ended_by_node(said) or _is(conditions, OTHER_DISRUPTION, "True")),
        past_deadline=phase is PodPhase.FAILED and said.get("reason") == DEADLINE_EXCEEDED,
        node_lost=_node_lost(said),
        disruption=None if itself else _disruption(said, conditions, deleting=deleting, node=node),
        exit=exit_,
        last_exit=_exit(trains.last_state) or _other_exit(every, last=True),
        restarts=sum(one.restarts for one in every),
        created_at=created,
        started_at=started,
        running_since=_running_since(trains, started),
        node=node,
        pinned="" if node else required_node(spec),
        unschedulable=unscheduled.get("message", "") if unscheduled.get("status") == "False" else "",
        waiting=trains.waiting if phase is not PodPhase.PENDING else _what_waits(trains, every),
        node_silent=phase is PodPhase.RUNNING and _node_silent(spec, conditions),
        scheduler_name="" if node or unscheduled else text(spec.get("schedulerName")),
        pulling=phase is PodPhase.PENDING and _pulling(trains, every, conditions),
        kept_by=", ".join(filter(None, map(text, list_items(metadata.get("finalizers")))))
        if deleting and (phase in FINISHED or not node)
        else "",
        # A kubelet reports that all containers have ended before it reports that the pod has ended.
        sidecar_runs=exit_ is not None and phase is PodPhase.RUNNING and any("running" in one.state for one in own),
        container=container,
    )


def required_node(spec: Mapping[str, Any]) -> str:
    """The node to which a pod with this spec is pinned by name, as ``podbuilder`` does; "": it is not pinned."""
    if "affinity" not in spec:
        return ""
    nodes = mapping(mapping(spec["affinity"]).get("nodeAffinity"))
    terms = mappings(mapping(nodes.get(REQUIRED_AFFINITY)).get("nodeSelectorTerms"))
    found = {_named_node(term) for term in terms}
    return found.pop() if len(found) == 1 else ""


def _named_node(term: Mapping[str, Any]) -> str:
    for rule in mappings(term.get("matchFields")):
        values = list_items(rule.get("values"))
        if (rule.get("key"), rule.get("operator"), len(values)) == ("metadata.name", "In", 1):
            return text(values[0])
    return ""


def _disruption(
    status: Mapping[str, Any], conditions: Mapping[Any, Mapping[str, Any]], *, deleting: bool, node: str
) -> Disruption | None:
    """The current or imminent disruption of the pod, independent of the end of its containers."""
    reason, message = status.get("reason") or "", status.get("message") or ""
    if _node_lost(status):
        return Disruption(NODE_LOST, message, node)
    if _is(conditions, OTHER_DISRUPTION, "True"):
        named = str(conditions[OTHER_DISRUPTION].get("reason"))
        # The API server's message contains less than the reason.
        said = "" if named == "EvictionByEvictionAPI" else message or conditions[OTHER_DISRUPTION].get("message") or ""
        return Disruption(named if named in CONDITION_REASONS else OTHER_DISRUPTION, said, node)
    if _ended_by_node(status):
        if reason == "Evicted" and _OWN_LIMIT.match(message):
            return None
        return Disruption(reason[:_MAX_REASON], message, node)
    return Disruption(POD_DELETED, node=node) if deleting else None


def _node_lost(status: Mapping[str, Any]) -> bool:
    return status.get("phase") == PodPhase.UNKNOWN or status.get("reason") == NODE_LOST


def _ended_by_node(status: Mapping[str, Any]) -> bool:
    reason = status.get("reason") or ""
    return reason in EVICTION_REASONS or (reason.startswith(_OUT_OF) and reason != _OUT_OF)


def _own_end(exit_: Exit, conditions: Mapping[Any, Mapping[str, Any]], behind: float, *, deleting: bool) -> bool:
    """Whether the program ended before the disruption of its pod, or because it ran out of memory.

    ``behind``: seconds by which the kubelet's clock is behind the API server's clock, measured if the pod started
    before it was created.
    """
    if exit_.out_of_memory:
        return not deleting
    disrupted = parse_time(conditions.get(OTHER_DISRUPTION, {}).get("lastTransitionTime"))
    if exit_.code in _SIGNALLED or exit_.finished_at is None or disrupted is None:
        return False
    return exit_.finished_at + behind < disrupted - _SKEW


def _running_since(container: _Container, started: float | None) -> float | None:
    """The start of the running container; for its first run the pod's start, because informers keep no other time."""
    if "running" not in container.state:
        return None
    again = parse_time(container.state["running"].get("startedAt")) if container.last_state else None
    return again or started


def _exit(state: Mapping[str, Mapping[str, Any]]) -> Exit | None:
    terminated = state.get("terminated")
    if not terminated:
        return None
    return Exit(
        code=terminated.get("exitCode"),
        reason=terminated.get("reason") or "",
        message=terminated.get("message") or "",
        finished_at=parse_time(terminated.get("finishedAt")),
        started_at=parse_time(terminated.get("startedAt")),
    )


def _pod_exit(said: Mapping[str, str], every: Iterable[_Container]) -> Exit:
    """The end of a failed pod whose training container has not ended.

    The pod's own reason (of an eviction or a lost node) has precedence over the end of another failed container.
    """
    own = Exit(code=None, reason=said.get("reason", ""), message=said.get("message", ""))
    return own if own.reason else _other_exit(every) or own


def _first_failure(every: Iterable[_Container], *, last: bool = False) -> tuple[_Container, Exit] | None:
    """The first failed container, and its end. ``last``: by the containers' last states."""
    ends = ((one, _exit(one.last_state if last else one.state)) for one in every)
    return next(((one, end) for one, end in ends if end is not None and end.code != 0), None)


def _other_exit(every: Iterable[_Container], *, last: bool = False) -> Exit | None:
    """The failure of the first failed container, if the training container has not ended."""
    failure = _first_failure(every, last=last)
    if failure is None:
        return None
    container, end = failure
    return replace(end, container=f"{'init container' if container.is_init else 'container'} {container.name}")


def _is(conditions: Mapping[Any, Mapping[str, Any]], type_: str, status: str) -> bool:
    return conditions.get(type_, {}).get("status") == status


def _pulling(trains: _Container, every: Iterable[_Container], conditions: Mapping[Any, Mapping[str, Any]]) -> bool:
    """Whether only an image is missing: volumes and network are ready, and init containers have ended.

    The runtime ends a pull without progress with an error (containerd: ``image_pull_progress_timeout``, 5 minutes).
    """
    waits = (trains.waiting or ("", ""))[0] in ("ContainerCreating", "PodInitializing")
    begun = all(one.state.get("terminated") for one in every if one.is_init)
    return waits and begun and _is(conditions, "PodReadyToStartContainers", "True")


def _what_waits(trains: _Container, every: Iterable[_Container]) -> tuple[str, str] | None:
    """The reason and message of the waiting container; of another container, if that container cannot run."""
    waiting = [(one.name, said) for one in every if (said := one.waiting) is not None]
    for name, (reason, message) in waiting:
        if reason == Reason.CREATE_CONTAINER_ERROR and _NO_COMMAND in message.lower():
            return Reason.ERR_IMAGE_ENTRYPOINT, f"container {name} has no command, and its image has none to run"
    own = trains.waiting
    if own is not None and stable_reason(own[0]) in HOLDING_REASONS:
        return own
    held = ((name, said) for name, said in waiting if stable_reason(said[0]) in HOLDING_REASONS)
    return next(((said[0], f"container {name}: {said[1]}".rstrip(": ")) for name, said in held), own)


def _node_silent(spec: Mapping[str, Any], conditions: Mapping[Any, Mapping[str, Any]]) -> bool:
    """Whether the pod's node has stopped reporting, according to the pod's conditions.

    In that case, the node lifecycle controller changes only Ready, and ContainersReady stays as the kubelet wrote it.
    Only a readiness gate could have the same effect.
    """
    silent = _is(conditions, "Ready", "False") and _is(conditions, "ContainersReady", "True")
    return silent and not spec.get("readinessGates")


_SIGNAL_BASE: Final = 128


def signal_name(code: int | None) -> str:
    """The signal of an exit code of 128+n (or -n); "" for none."""
    number = 0 if code is None else code - _SIGNAL_BASE if code > _SIGNAL_BASE else -code
    return signal.Signals(number).name if number in {*signal.Signals} else ""


def exit_text(exit_: Exit | None) -> str:
    """``exited with code 137 (SIGKILL)``, with the name of the container unless it is the training container."""
    if exit_ is not None and exit_.container:
        return f"has failed: its {exit_.container} {exit_text(replace(exit_, container=''))}"
    if exit_ is not None and exit_.beside is not None:
        name, other = exit_.beside
        return f"has failed: its container {name} {exit_text(other)}, its container that trains with code {exit_.code}"
    if exit_ is None or (exit_.code is None and not exit_.reason):
        return "failed without an exit code"
    if exit_.out_of_memory:
        return f"ran out of memory (OOMKilled, code {exit_.code})"
    if exit_.never_runs:
        return ": ".join(filter(None, ("cannot start", exit_.reason, exit_.message[:_LONGEST_DETAIL])))
    if exit_.code is None:
        return f"failed: {exit_.reason}"
    name = signal_name(exit_.code)
    special = exit_.reason if exit_.reason not in ("", "Error", "Completed") else ""
    detail = ", ".join(part for part in (name, special) if part)
    return f"exited with code {exit_.code}" + (f" ({detail})" if detail else "")


def held_text(pods: Sequence[PodView]) -> str:
    """``ps-0 waits: CrashLoopBackOff``: the reason of the first pod, with all pods that have the same reason."""
    reason = pods[0].held_by
    alike = [pod.replica for pod in pods if pod.held_by == reason]
    what = _what_holds(pods[0])
    return f"{join_names(alike)} {'waits' if len(alike) == 1 else 'wait'}: {reason}" + (f" ({what})" if what else "")


# The messages of these reasons name an object and do not change while the container waits.
_NAMING: Final = frozenset(one for one in HOLDING_REASONS if one.row.permanent) - {Reason.CREATE_CONTAINER_ERROR}
_IMAGE: Final = re.compile(r'\bimage \\?"(?:docker\.io/(?:library/)?)?([^"\\]+?)(?::latest)?\\?"')
_LONGEST_DETAIL: Final = 300


def _what_holds(pod: PodView) -> str:
    """The Secret, key or image that a pod lacks, if its kubelet names it.

    For an image, only the name, because the kubelet's messages alternate and each change would change the status.
    """
    message = pod.waiting[1] if pod.waiting else ""
    if pod.held_by in _NAMING:
        return message[:_LONGEST_DETAIL]
    found = _IMAGE.search(message) if pod.held_by == Reason.IMAGE_PULL_BACK_OFF else None
    return f'image "{found[1][:_LONGEST_DETAIL]}"' if found else ""
