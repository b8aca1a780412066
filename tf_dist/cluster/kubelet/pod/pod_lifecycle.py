"""Lifecycle of a pod on its node: a pure function from pod, containers and time to actions and status.

Level-triggered: it may be called at any time, repeatedly, and after any crash of the kubelet or supervisor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tf_dist.cluster.api import TERMINAL_PHASES, Object
from tf_dist.cluster.kubelet.node.node_settings import RestartBackoff
from tf_dist.cluster.kubelet.pod.pod_status import (
    SUPERVISOR_LOST,
    SUPERVISOR_LOST_MESSAGE,
    ContainerRun,
    CreateSandbox,
    DeletePod,
    PhaseVerdict,
    PodAction,
    PodDecision,
    RemoveSandbox,
    RuntimePodStatus,
    StartContainer,
    StopContainers,
    generate_pod_status,
    known_runs,
)
from tf_dist.core.model import names
from tf_dist.core.model.timestamps import parse_time

_DEADLINE = "DeadlineExceeded"


def decide(pod: Object, facts: RuntimePodStatus, now: float, backoff: RestartBackoff) -> PodDecision:
    """The next actions for a pod of this node, its status, and the time of the next call."""
    status = pod.get("status") or {}
    runs = known_runs(status, facts, now)
    if pod["metadata"].get("deletionTimestamp"):
        return _terminate(pod, facts, runs, now)
    if status.get("phase") in TERMINAL_PHASES:
        return _finish(pod, facts, runs, now)
    verdict = _failure(pod, facts, runs, now)
    if verdict is not None:
        return _finish(pod, facts, runs, now, verdict)
    return _run_containers(pod, facts, runs, now, backoff)


def grace_period(pod: Object) -> float:
    """Seconds between SIGTERM and SIGKILL."""
    asked = pod["metadata"].get("deletionGracePeriodSeconds")
    if asked is None:
        asked = pod["spec"].get("terminationGracePeriodSeconds")
    return 30.0 if asked is None else float(asked)


def _terminate(pod: Object, facts: RuntimePodStatus, runs: Mapping[str, ContainerRun], now: float) -> PodDecision:
    """Handle a deleted pod: stop its containers, then remove everything, the object last."""
    phase = (pod.get("status") or {}).get("phase", "Pending")
    if facts.alive:
        actions: tuple[PodAction, ...] = () if facts.stopping else (StopContainers(grace_period(pod)),)
        return PodDecision(generate_pod_status(pod, facts, runs, PhaseVerdict(phase), now), actions)
    ended = [run for run in runs.values() if not run.alive]
    if phase not in TERMINAL_PHASES and ended:
        phase = "Failed" if any(run.failed for run in ended) else "Succeeded"
    actions = (RemoveSandbox(),) if facts.sandbox not in ("", "removing") else ()
    if not facts.sandbox:
        actions = (DeletePod(),)
    return PodDecision(generate_pod_status(pod, facts, runs, PhaseVerdict(phase), now), actions)


def _finish(
    pod: Object,
    facts: RuntimePodStatus,
    runs: Mapping[str, ContainerRun],
    now: float,
    verdict: PhaseVerdict | None = None,
) -> PodDecision:
    """Handle a pod that has ended: after its status is written, remove everything except its status and logs."""
    before = pod.get("status") or {}
    if verdict is None:
        verdict = PhaseVerdict(before["phase"], before.get("reason", ""), before.get("message", ""))
    actions: tuple[PodAction, ...] = ()
    if facts.alive:
        actions = () if facts.stopping else (StopContainers(grace_period(pod)),)
    elif facts.sandbox not in ("", "removing") and before.get("phase") in TERMINAL_PHASES:
        actions = (RemoveSandbox(),)
    status = (
        generate_pod_status(pod, facts, runs, verdict, now)
        if facts.sandbox or before.get("phase") not in TERMINAL_PHASES
        else before
    )
    return PodDecision(status, actions)


def _failure(pod: Object, facts: RuntimePodStatus, runs: Mapping[str, ContainerRun], now: float) -> PhaseVerdict | None:
    """Why the pod as a whole has failed, independent of its containers."""
    if facts.problem is not None and facts.problem.permanent and not _has_replacement(pod):
        return PhaseVerdict("Failed", facts.problem.reason, facts.problem.text)
    if facts.sandbox == "broken" and not runs:
        return PhaseVerdict("Failed", "FailedCreatePodSandBox", facts.message)
    deadline = _deadline(pod)
    if deadline is not None and now >= deadline:
        return PhaseVerdict("Failed", _DEADLINE, "Pod was active on the node longer than the specified deadline")
    return None


def _has_replacement(pod: Object) -> bool:
    """Whether a controller (a ReplicaSet) would create another pod at once. Such a pod waits, as with a real
    kubelet.
    """
    labels = pod["metadata"].get("labels") or {}
    return pod["spec"].get("restartPolicy", "Always") == "Always" and names.JOB_UID not in labels


def _deadline(pod: Object) -> float | None:
    seconds = pod["spec"].get("activeDeadlineSeconds")
    started = parse_time((pod.get("status") or {}).get("startTime"))
    return None if seconds is None or started is None else started + seconds


@dataclass(frozen=True, slots=True)
class _Step:
    """The next step of a pod's containers: what to start, when to sync again, and whether all have ended."""

    starts: tuple[StartContainer, ...] = ()
    wake_at: float | None = None
    crashing: frozenset[str] = frozenset()
    phase: str = ""


def _run_containers(
    pod: Object, facts: RuntimePodStatus, runs: Mapping[str, ContainerRun], now: float, backoff: RestartBackoff
) -> PodDecision:
    step = _containers(pod, runs, now, backoff)
    wake_at = min((at for at in (step.wake_at, _deadline(pod)) if at is not None), default=None)
    verdict = _verdict(pod, runs, step)
    status = generate_pod_status(pod, facts, runs, verdict, now)
    if verdict.phase in TERMINAL_PHASES or facts.problem is not None:
        return PodDecision(status, (), wake_at)
    return PodDecision(status, _start_actions(facts, step), wake_at)


def _start_actions(facts: RuntimePodStatus, step: _Step) -> tuple[PodAction, ...]:
    if facts.sandbox == "broken":
        return (RemoveSandbox(),)
    if facts.sandbox == "removing" or not step.starts:
        return ()
    return step.starts if facts.sandbox else (CreateSandbox(), *step.starts)


def _verdict(pod: Object, runs: Mapping[str, ContainerRun], step: _Step) -> PhaseVerdict:
    lost = step.phase == "Failed" and any(run.reason == SUPERVISOR_LOST for run in runs.values())
    phase = step.phase or (pod.get("status") or {}).get("phase") or "Pending"
    return PhaseVerdict(phase, SUPERVISOR_LOST if lost else "", SUPERVISOR_LOST_MESSAGE if lost else "", step.crashing)


def _containers(pod: Object, runs: Mapping[str, ContainerRun], now: float, backoff: RestartBackoff) -> _Step:
    policy = pod["spec"].get("restartPolicy", "Always")
    inits = pod["spec"].get("initContainers") or []
    first = _init_container_steps(inits, runs, policy, now, backoff)
    if first is not None:
        return first
    sidecars = [item["name"] for item in inits if item.get("restartPolicy") == "Always"]
    names = [item["name"] for item in pod["spec"]["containers"]]
    if all(_is_finished(runs.get(name), policy) for name in names):
        return _Step(phase="Failed" if any(runs[name].failed for name in names) else "Succeeded")
    begun = any(name in runs and runs[name].begun for name in names)
    mains = _merge(_container_step(name, runs.get(name), policy, now, backoff) for name in names)
    beside = _merge(_container_step(name, runs.get(name), "Always", now, backoff) for name in sidecars)
    return _merge((beside, mains, _Step(phase="Running" if begun else "Pending")))


def _init_container_steps(
    inits: Iterable[Object], runs: Mapping[str, ContainerRun], policy: str, now: float, backoff: RestartBackoff
) -> _Step | None:
    """The init containers, one after the other; None when they are done."""
    beside: list[_Step] = []
    for item in inits:
        name, run = item["name"], runs.get(item["name"])
        if item.get("restartPolicy") == "Always":
            beside.append(_container_step(name, run, "Always", now, backoff))
            if run is None or not run.begun:
                return _merge((*beside, _Step(phase="Pending")))
        elif run is None or run.alive or run.code != 0:
            if run is not None and run.failed and policy == "Never":
                return _Step(phase="Failed")
            own = _container_step(name, run, "Never" if policy == "Never" else "OnFailure", now, backoff)
            return _merge((*beside, own, _Step(phase="Pending")))
    return None


def _is_finished(run: ContainerRun | None, policy: str) -> bool:
    if run is None or run.alive or policy == "Always":
        return False
    return policy == "Never" or run.code == 0


def _container_step(name: str, run: ContainerRun | None, policy: str, now: float, backoff: RestartBackoff) -> _Step:
    """One container: start it, restart it, wait for a restart, or leave it as it is."""
    if run is None:
        return _Step((StartContainer(name),))
    if run.alive or _is_finished(run, policy):
        return _Step()
    streak = 0 if run.finished - run.started >= backoff.reset else run.streak
    due = run.finished + backoff.delay(streak)
    if now >= due:
        return _Step((StartContainer(name, run.attempt + 1, streak + 1),))
    return _Step((), due, frozenset({name}))


def _merge(steps: Iterable[_Step]) -> _Step:
    steps = list(steps)
    return _Step(
        tuple(start for step in steps for start in step.starts),
        min((step.wake_at for step in steps if step.wake_at is not None), default=None),
        frozenset().union(*(step.crashing for step in steps)),
        next((step.phase for step in steps if step.phase), ""),
    )
