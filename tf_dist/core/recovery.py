"""Recovery of a gang that was complete and has lost nodes: it runs with what is left, or gives its place back.

As Kueue's ``waitForPodsReady.recoveryTimeout``. A gang that keeps half a place runs nothing, and two of them can keep
each other from running for ever. What can run with fewer replicas does; else all its pods stop, and it waits again
with its old age. Neither costs a restart.

A pod on a node that does not answer may still run, and an old and a new attempt never overlap: nothing of the job
starts before Kubernetes itself has confirmed that such a pod is gone (its node came back, was deleted, or is tainted
``node.kubernetes.io/out-of-service``). Until then the job says for which pod and node it waits, and holds no place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tf_dist.core import dependencies
from tf_dist.core.converge import Barrier, paused_until
from tf_dist.core.facts import Facts
from tf_dist.core.model import Job, ReplicaId
from tf_dist.core.observed import NodeView, Observed, PodView
from tf_dist.core.requeue import requeued
from tf_dist.core.resizing import change_text, resized
from tf_dist.core.schedulers.table import scheduler_of
from tf_dist.core.seats import within
from tf_dist.core.situation import Situation
from tf_dist.core.sizes import bounds, must_restart, sizes_of
from tf_dist.core.status import LIVE, RECOVERY_TIMEOUT, Admission, Failure, Status
from tf_dist.core.text import listed
from tf_dist.core.times import format_time, round_time

TIMEOUT: Final = 300.0
WAITS_FOR_NODE: Final = "WaitingForLostNode"
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
# A look that comes so many seconds after it was due says that the clock was set ahead, or that no driver was there.
_LATE: Final = 60.0
# Seconds that a kubelet needs to clear away what has had its grace period.
_CLEARING: Final = 30.0


def timeout(job: Job, observed: Observed) -> float:
    """Seconds that a gang may be without a part of its pods' nodes: as the job says, else its queue."""
    return job.scheduling.recovery_timeout or observed.recovery_timeout or TIMEOUT


# What is missing


def overdue_at(pod: PodView) -> float | None:
    """When a pod that was told to stop should surely have stopped; None for one that was not told."""
    return None if pod.stops_at is None else round_time(pod.stops_at + _CLEARING)


def overdue(facts: Facts, now: float) -> tuple[PodView, ...]:
    """Pods of older attempts that should have stopped by now, and may still run."""
    return tuple(pod for pod in facts.stale if (due := overdue_at(pod)) is not None and due <= now)


def _lacking(job: Job, status: Status, facts: Facts, now: float) -> Iterator[ReplicaId]:
    """The replicas that wait for a node, or for a pod that does not go.

    A pause, a dependency and a grace period that runs are no reasons to give a place back. Of a gang that has never
    been complete, ``requeue.release`` looks at those that wait for a node.
    """
    late = overdue(facts, now)
    blocked = Barrier.of(status, replace(facts, stale=late))
    stopping = Barrier.of(status, facts)
    complete = status.admission is not None and status.admission.complete is not None
    for spec in job.replica_specs:
        ready = dependencies.met(job, spec, facts)
        for replica in (ReplicaId(spec.type, index) for index in range(spec.replicas)):
            pod = facts.current.get(replica)
            if replica in facts.succeeded or paused_until(status, replica) > now:
                continue
            if pod is not None:
                waits = complete and not pod.has_node and not pod.deleting
            else:
                waits = blocked.blocks(replica) or (complete and ready and not stopping.blocks(replica))
            if waits:
                yield replica


def followed(job: Job, status: Status, facts: Facts, observed: Observed) -> Status:
    """The memory with since when the gang is not whole (again), and with the pods that keep it from starting."""
    place, now = status.admission, observed.now
    if status.phase not in LIVE or scheduler_of(job, status) is not None:
        return status if not status.unconfirmed else replace(status, unconfirmed="")
    if place is None:
        late = sorted(overdue(facts, now), key=lambda pod: pod.name)
        return replace(status, unconfirmed=listed([f"{pod.name} on {pod.node or 'no node'}" for pod in late]))
    lacks = next(_lacking(job, status, facts, now), None) is not None
    since = (_since(job, place, observed) or now) if lacks else None
    return replace(status, unconfirmed="", admission=replace(place, incomplete=since))


def recover_at(job: Job, status: Status, observed: Observed) -> float | None:
    """When the gang stops waiting for what it lacks, if nothing changes; None if it lacks nothing."""
    since = _since(job, status.admission, observed) if status.admission is not None else None
    return None if since is None else round_time(since + timeout(job, observed))


def _since(job: Job, place: Admission, observed: Observed) -> float | None:
    """From when on the time counts in which the gang lacks something; None: it lacks nothing.

    Time in which nobody looked does not count: nobody could have made the pods that nodes were there for.
    """
    since = place.incomplete
    late = since is not None and observed.now > since + timeout(job, observed) + _LATE
    return observed.now if late else since


def times(job: Job, status: Status, facts: Facts, observed: Observed) -> Iterator[float]:
    """When time alone may change what is decided here."""
    due = recover_at(job, status, observed)
    if due is not None:
        yield due
    yield from (due for pod in facts.stale if (due := overdue_at(pod)) is not None)


# What follows


def recover(s: Situation) -> Status | None:
    """The gang has lacked nodes for too long: it goes on with fewer replicas, or gives its place back."""
    due = recover_at(s.job, s.status, s.observed)
    if not s.live or due is None or s.now < due:
        return None
    lacking = list(_lacking(s.job, s.status, s.facts, s.now))
    if not lacking:
        return None
    limit = timeout(s.job, s.observed)
    what = f"{_lacks_text(s, lacking)} for {limit:g} s"
    return _smaller(s, lacking, what) or _given_back(s, lacking, what)


def _given_back(s: Situation, lacking: list[ReplicaId], what: str) -> Status:
    message = f"{what}; the gang gave its place back and waits for another one"
    if late := overdue(s.facts, s.now):
        message = f"{what}; the gang gave its place back; it {_waits_text(s, late)}"
    node = _node(s, lacking[0])
    failure = Failure(event=RECOVERY_TIMEOUT, replica=str(lacking[0]), message=message, at=s.now, node=node)
    restarts = {**s.status.restarts, RECOVERY_TIMEOUT: s.status.restarts.get(RECOVERY_TIMEOUT, 0) + 1}
    return requeued(s, RECOVERY_TIMEOUT, message, restarts=restarts, failure=failure)


def _smaller(s: Situation, lacking: list[ReplicaId], what: str) -> Status | None:
    """With as many replicas as have their nodes, where the gang may run with so few."""
    place = s.status.admission
    if place is None:
        return None
    before, missing = {**sizes_of(s.job), **place.sizes}, Counter(replica.type for replica in lacking)
    # A replica whose old pod may still run cannot be started: who stays has a lower index.
    late = overdue(s.facts, s.now)
    first = {pod.replica.type: pod.replica.index for pod in sorted(late, key=lambda pod: -pod.replica.index)}
    after = {type_: min(count - missing[type_], first.get(type_, count)) for type_, count in before.items()}
    least = {type_: low for type_, (low, _) in bounds(s.asked).items()}
    if after == before or any(after[type_] < least.get(type_, 0) for type_ in after):
        return None
    if late and must_restart(s.asked, before, after):
        return None
    nodes: dict[str, Counter[str]] = {}
    for replica, pod in s.facts.current.items():
        if pod.node and not pod.deleting:
            nodes.setdefault(replica.type, Counter())[pod.node] += 1
    placement = {type_: dict(counts) for type_, counts in nodes.items()}
    where = within(s.asked, placement, after) if place.placement else place.placement
    smaller = replace(place, sizes=after, placement=where, resized=s.now, incomplete=None)
    return resized(s, smaller, before, f"{what}; {change_text(s.asked, before, after)}, which it may run with")


def wait_for_lost_nodes(s: Situation) -> Status | None:
    """A job without a place whose old pods may still run says so, and asks for no place until they are gone."""
    late = overdue(s.facts, s.now)
    if not s.live or s.status.admission is not None or not late or scheduler_of(s.job, s.status) is not None:
        return None
    text = _waits_text(s, late)
    return None if text in s.status.message else replace(s.status, reason=WAITS_FOR_NODE, message=text)


def _waits_text(s: Situation, late: tuple[PodView, ...]) -> str:
    pods = sorted(late, key=lambda pod: pod.name)
    named = listed([f"{pod.name} on node {pod.node}" for pod in pods])
    text = f"waits for pod {named}, which should have stopped at {format_time(min(map(_stopped_at, pods)))} and may "
    text += f"still run{_node_text(s.observed.unready.get(pods[0].node))}"
    return f"{text}; delete the node or taint it {OUT_OF_SERVICE} once it is surely down"


def _stopped_at(pod: PodView) -> float:
    return pod.stops_at or 0.0


def _node_text(node: NodeView | None) -> str:
    if node is None:
        return ""
    if node.gone:
        return " (the node is gone)"
    return " (the node has not been ready" + (f" since {format_time(node.since)})" if node.since is not None else ")")


def _lacks_text(s: Situation, lacking: list[ReplicaId]) -> str:
    words = next(
        (pod.unschedulable for replica in lacking if (pod := s.facts.current.get(replica)) and pod.unschedulable), ""
    )
    late = [f"{pod.name} on {pod.node}" for pod in overdue(s.facts, s.now)]
    text = f"{listed(lacking)} {'have' if len(lacking) > 1 else 'has'} had no node"
    if words:
        return f"{text} ({words})"
    return f"{text} (its pod {listed(late)} does not stop)" if late else text


def _node(s: Situation, replica: ReplicaId) -> str:
    """Where a replica was, as far as the status says."""
    late = next((pod.node for pod in overdue(s.facts, s.now) if pod.replica == replica), "")
    failure = s.status.failure
    return late or (failure.node if failure is not None and failure.replica == str(replica) else "")
