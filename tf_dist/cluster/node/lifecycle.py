"""What a node does for a pod, and what it says about it: a pure function of the object, its processes and the time.

Level-triggered: it may be asked at any moment and any number of times, after any crash of the agent or supervisor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tf_dist.cluster.api import Object
from tf_dist.cluster.node.facts import (
    LOST,
    LOST_MESSAGE,
    Action,
    CreateSandbox,
    Decision,
    DeleteObject,
    Facts,
    RemoveSandbox,
    Run,
    Start,
    StopAll,
    known_runs,
)
from tf_dist.cluster.node.settings import Backoff
from tf_dist.cluster.node.status import Verdict, make_status
from tf_dist.core import names
from tf_dist.core.times import parse_time

OVER = ("Succeeded", "Failed")
_DEADLINE = "DeadlineExceeded"
_SHUTDOWN = "NodeShutdown"
_SHUTDOWN_MESSAGE = "the node that the pod ran on was shut down"


def decide(pod: Object, facts: Facts, now: float, backoff: Backoff) -> Decision:
    """The next actions for a pod of this node, its status, and when to ask again."""
    status = pod.get("status") or {}
    runs = known_runs(status, facts, now)
    if pod["metadata"].get("deletionTimestamp"):
        return _leave(pod, facts, runs, now)
    if status.get("phase") in OVER:
        return _clean_up(pod, facts, runs, now)
    verdict = _failure(pod, facts, runs, now)
    if verdict is not None:
        return _clean_up(pod, facts, runs, now, verdict)
    if facts.leaving:
        return _vacate(pod, facts, runs, now)
    return _progress(pod, facts, runs, now, backoff)


def grace_of(pod: Object) -> float:
    """Seconds between SIGTERM and SIGKILL."""
    asked = pod["metadata"].get("deletionGracePeriodSeconds")
    if asked is None:
        asked = pod["spec"].get("terminationGracePeriodSeconds")
    return 30.0 if asked is None else float(asked)


def _leave(pod: Object, facts: Facts, runs: Mapping[str, Run], now: float) -> Decision:
    """A deleted pod: stop its containers, then take everything away, the object last."""
    phase = (pod.get("status") or {}).get("phase", "Pending")
    if facts.alive:
        actions: tuple[Action, ...] = () if facts.stopping else (StopAll(grace_of(pod)),)
        return Decision(make_status(pod, facts, runs, Verdict(phase), now), actions)
    ended = [run for run in runs.values() if not run.alive]
    if phase not in OVER and ended:
        phase = "Failed" if any(run.failed for run in ended) else "Succeeded"
    actions = (RemoveSandbox(),) if facts.sandbox not in ("", "removing") else ()
    if not facts.sandbox:
        actions = (DeleteObject(),)
    return Decision(make_status(pod, facts, runs, Verdict(phase), now), actions)


def _vacate(pod: Object, facts: Facts, runs: Mapping[str, Run], now: float) -> Decision:
    """The node is ending: stop the pod, and only when it has stopped call it failed, for whoever then replaces it."""
    phase = (pod.get("status") or {}).get("phase") or "Pending"
    if facts.alive:
        actions = () if facts.stopping else (StopAll(grace_of(pod)),)
        return Decision(make_status(pod, facts, runs, Verdict(phase), now), actions)
    names = [item["name"] for item in pod["spec"]["containers"]]
    if pod["spec"].get("restartPolicy") != "Always" and all(name in runs and runs[name].code == 0 for name in names):
        return _clean_up(pod, facts, runs, now, Verdict("Succeeded"))
    return _clean_up(pod, facts, runs, now, Verdict("Failed", _SHUTDOWN, _SHUTDOWN_MESSAGE))


def _clean_up(
    pod: Object, facts: Facts, runs: Mapping[str, Run], now: float, verdict: Verdict | None = None
) -> Decision:
    """A pod that is over: nothing of it may stay but its status and logs. The status is written first."""
    before = pod.get("status") or {}
    if verdict is None:
        verdict = Verdict(before["phase"], before.get("reason", ""), before.get("message", ""))
    actions: tuple[Action, ...] = ()
    if facts.alive:
        actions = () if facts.stopping else (StopAll(grace_of(pod)),)
    elif facts.sandbox not in ("", "removing") and before.get("phase") in OVER:
        actions = (RemoveSandbox(),)
    status = make_status(pod, facts, runs, verdict, now) if facts.sandbox or before.get("phase") not in OVER else before
    return Decision(status, actions)


def _failure(pod: Object, facts: Facts, runs: Mapping[str, Run], now: float) -> Verdict | None:
    """Why the pod as a whole has failed, apart from what its containers did."""
    if facts.problem is not None and facts.problem.permanent and not _made_anew(pod):
        return Verdict("Failed", facts.problem.reason, facts.problem.text)
    if facts.sandbox == "broken" and not runs:
        return Verdict("Failed", "FailedCreatePodSandBox", facts.message)
    deadline = _deadline(pod)
    if deadline is not None and now >= deadline:
        return Verdict("Failed", _DEADLINE, "Pod was active on the node longer than the specified deadline")
    return None


def _made_anew(pod: Object) -> bool:
    """Whether somebody (a ReplicaSet) would make another pod at once: such a pod waits, as with a kubelet."""
    labels = pod["metadata"].get("labels") or {}
    return pod["spec"].get("restartPolicy", "Always") == "Always" and names.JOB_UID not in labels


def _deadline(pod: Object) -> float | None:
    seconds = pod["spec"].get("activeDeadlineSeconds")
    started = parse_time((pod.get("status") or {}).get("startTime"))
    return None if seconds is None or started is None else started + seconds


@dataclass(frozen=True, slots=True)
class _Step:
    """Where a pod's containers are: what to start, when to look again, and whether it is over."""

    starts: tuple[Start, ...] = ()
    wake_at: float | None = None
    crashing: frozenset[str] = frozenset()
    phase: str = ""


def _progress(pod: Object, facts: Facts, runs: Mapping[str, Run], now: float, backoff: Backoff) -> Decision:
    step = _containers(pod, runs, now, backoff)
    wake_at = min((at for at in (step.wake_at, _deadline(pod)) if at is not None), default=None)
    verdict = _verdict(pod, runs, step)
    status = make_status(pod, facts, runs, verdict, now)
    if verdict.phase in OVER or facts.problem is not None:
        return Decision(status, (), wake_at)
    return Decision(status, _beginnings(facts, step), wake_at)


def _beginnings(facts: Facts, step: _Step) -> tuple[Action, ...]:
    if facts.sandbox == "broken":
        return (RemoveSandbox(),)
    if facts.sandbox == "removing" or not step.starts:
        return ()
    return step.starts if facts.sandbox else (CreateSandbox(), *step.starts)


def _verdict(pod: Object, runs: Mapping[str, Run], step: _Step) -> Verdict:
    lost = step.phase == "Failed" and any(run.reason == LOST for run in runs.values())
    phase = step.phase or (pod.get("status") or {}).get("phase") or "Pending"
    return Verdict(phase, LOST if lost else "", LOST_MESSAGE if lost else "", step.crashing)


def _containers(pod: Object, runs: Mapping[str, Run], now: float, backoff: Backoff) -> _Step:
    policy = pod["spec"].get("restartPolicy", "Always")
    inits = pod["spec"].get("initContainers") or []
    first = _first_steps(inits, runs, policy, now, backoff)
    if first is not None:
        return first
    sidecars = [item["name"] for item in inits if item.get("restartPolicy") == "Always"]
    names = [item["name"] for item in pod["spec"]["containers"]]
    if all(_over(runs.get(name), policy) for name in names):
        return _Step(phase="Failed" if any(runs[name].failed for name in names) else "Succeeded")
    begun = any(name in runs and runs[name].started for name in names)
    mains = _merge(_one(name, runs.get(name), policy, now, backoff) for name in names)
    beside = _merge(_one(name, runs.get(name), "Always", now, backoff) for name in sidecars)
    return _merge((beside, mains, _Step(phase="Running" if begun else "Pending")))


def _first_steps(
    inits: Iterable[Object], runs: Mapping[str, Run], policy: str, now: float, backoff: Backoff
) -> _Step | None:
    """The init containers, one after the other; None when they are done."""
    beside: list[_Step] = []
    for item in inits:
        name, run = item["name"], runs.get(item["name"])
        if item.get("restartPolicy") == "Always":
            beside.append(_one(name, run, "Always", now, backoff))
            if run is None or not run.started:
                return _merge((*beside, _Step(phase="Pending")))
        elif run is None or run.alive or run.code != 0:
            if run is not None and run.failed and policy == "Never":
                return _Step(phase="Failed")
            own = _one(name, run, "Never" if policy == "Never" else "OnFailure", now, backoff)
            return _merge((*beside, own, _Step(phase="Pending")))
    return None


def _over(run: Run | None, policy: str) -> bool:
    if run is None or run.alive or policy == "Always":
        return False
    return policy == "Never" or run.code == 0


def _one(name: str, run: Run | None, policy: str, now: float, backoff: Backoff) -> _Step:
    """One container: start it, start it again, wait for that, or leave it."""
    if run is None:
        return _Step((Start(name),))
    if run.alive or _over(run, policy):
        return _Step()
    streak = 0 if run.finished - run.started >= backoff.reset else run.streak
    due = run.finished + backoff.delay(streak)
    if now >= due:
        return _Step((Start(name, run.attempt + 1, streak + 1),))
    return _Step((), due, frozenset({name}))


def _merge(steps: Iterable[_Step]) -> _Step:
    steps = list(steps)
    return _Step(
        tuple(start for step in steps for start in step.starts),
        min((step.wake_at for step in steps if step.wake_at is not None), default=None),
        frozenset().union(*(step.crashing for step in steps)),
        next((step.phase for step in steps if step.phase), ""),
    )
