"""The context of a pass: a job, read from its stored and observed state into a ``ReconcileContext``.

It is read once, and again after each transition that changes the job's current pods (``with_status``).

Times in a stored status are limited first (``without_clock_skew``): no past event is in the future, and no wait is
longer than if it started now. Therefore a clock that was an hour ahead costs one write and no wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, overload

from tf_dist.core.integrations.dispatch import integration_of, integration_verdict
from tf_dist.core.model.assignment import current_job
from tf_dist.core.model.context import Observed, PodClassification, ReconcileContext
from tf_dist.core.model.fieldpath import mappings, number, updated
from tf_dist.core.model.job import Job, ReplicaId, ReplicaSpec
from tf_dist.core.model.pods import (
    NODE_LOST,
    Disruption,
    PodPhase,
    PodView,
)
from tf_dist.core.model.status import (
    LIVE,
    MAX_COUNT,
    AcceptedSpec,
    Admission,
    Counts,
    RefusedSpec,
    RestartBackoff,
    Status,
)
from tf_dist.core.model.timestamps import format_time, round_time
from tf_dist.core.reconciler.gang_rules import NODE_EXCLUDED_FOR, requeue_backoff


def read_context(job: Job, status: Status, observed: Observed) -> ReconcileContext:
    """The context of a pass: the job with its status and its observation.

    The status is updated with facts that do not depend on pods: the scheduler, the last error, the accepted spec.
    """
    before = status
    status = with_default_scheduler(job, status, observed.gang)
    if observed.last_error not in (None, status.last_error):
        status = replace(status, last_error=observed.last_error)
    status = with_accepted_spec(status, observed.accepted, observed.refused)
    if observed.unready:
        observed = replace(observed, pods=tuple(_marked(job, observed, pod) for pod in observed.pods))
    current, integration = current_job(job, status), integration_of(job, status)
    s = ReconcileContext(
        requested_job=job,
        job=current,
        status=status,
        facts=classify_pods(current, status, observed.pods, observed.departed),
        observed=observed,
        before=before,
        integration=integration,
    )
    return replace(s, verdict=observed.verdict if integration is None else integration_verdict(s, integration))


def with_status(s: ReconcileContext, status: Status) -> ReconcileContext:
    """The context with the next status. The job and its pods are read again if the status changes them."""
    was = s.status
    if (status.attempts, status.admission) == (was.attempts, was.admission) and (status.phase in LIVE) == (
        was.phase in LIVE
    ):
        return replace(s, status=status)
    job = current_job(s.requested_job, status)
    facts = classify_pods(job, status, s.observed.pods, s.observed.departed)
    return replace(s, status=status, job=job, facts=facts, integration=integration_of(s.requested_job, status))


def with_default_scheduler(job: Job, status: Status, gang: str) -> Status:
    """The status of a job with the default gang scheduler ("": tf-dist itself).

    It is stored with the admission, so that a running job stays with the scheduler that admitted it.
    """
    settled = status.finished or status.admission is not None or job.scheduling.gang is not None
    if settled or status.gang == gang:
        return status
    return replace(status, gang=gang)


def with_accepted_spec(status: Status, accepted: AcceptedSpec | None, refused: RefusedSpec | None) -> Status:
    """The status with the accepted and the refused spec, unchanged if both are unknown or the job has ended."""
    if status.finished or (accepted is None and refused is None):
        return status
    # Keep the message of a refusal as long as the spec is the same: otherwise, two releases would replace each other's
    # message forever.
    same = status.refused_spec is not None and status.refused_spec == refused
    kept = status.refused_spec if same else refused
    following = updated(status, accepted_spec=accepted or status.accepted_spec, refused_spec=kept)
    before = status.accepted_spec
    if accepted is None or before is None or accepted.digest == before.digest or status.admission is not None:
        return following
    # The cluster refused a different spec, so the back-off ends.
    return replace(following, requeues=0, not_before=0.0)


def classify_pods(
    job: Job, status: Status, pods: tuple[PodView, ...], departed: tuple[PodView, ...] = ()
) -> PodClassification:
    """Classify the pods of a job as current or stale, and count them."""
    sizes = {spec.type: spec for spec in job.replica_specs}
    current: dict[ReplicaId, PodView] = {}
    stale: list[PodView] = []
    for pod in pods:
        replica = pod.replica
        spec = sizes.get(replica.type)
        outdated = spec is None or replica.index >= spec.replicas or pod.attempt != status.attempts.label(replica)
        # This controller never creates two pods for a replica. If two exist, one of them must be deleted.
        if outdated or replica in current:
            stale.append(pod)
        else:
            current[replica] = pod
    succeeded = frozenset(replica for replica, pod in current.items() if _succeeded(pod, sizes[replica.type]))
    kept = frozenset(r for r in status.succeeded if r.type in sizes and r.index < sizes[r.type].replicas)
    gone = {
        pod.replica: pod
        for pod in departed
        if pod.replica not in current and pod.attempt == status.attempts.label(pod.replica)
    }
    return PodClassification(
        current, tuple(stale), _count(job, current, stale, kept | succeeded), kept | succeeded, gone
    )


def _succeeded(pod: PodView, spec: ReplicaSpec) -> bool:
    """Whether the replica has succeeded. Exit code 0 of a pod that is being deleted is not a success."""
    if pod.deleting:
        return False
    if pod.phase is PodPhase.SUCCEEDED:
        return True
    judged = pod.training_end(spec)
    return judged is not None and judged.code == 0


def _count(
    job: Job, current: Mapping[ReplicaId, PodView], stale: Iterable[PodView], succeeded: frozenset[ReplicaId]
) -> dict[str, Counts]:
    tallies: dict[str, list[int]] = {spec.type: [0, 0, 0, 0, 0, 0, 0] for spec in job.replica_specs}
    for pod in stale:
        # This pass or an earlier pass deletes it.
        if pod.replica.type in tallies:
            tallies[pod.replica.type][5] += 1
    for replica, pod in current.items():
        tally = tallies[replica.type]
        tally[6] += pod.restarts
        if replica in succeeded:
            continue
        # A pod that is being deleted ends with a signal. This is not a failure of the replica.
        if pod.deleting:
            tally[5] += 1
        elif pod.phase is PodPhase.FAILED:
            tally[4] += 1
        elif pod.phase is PodPhase.RUNNING:
            tally[1] += 1
            tally[2] += pod.ready
        else:
            tally[0] += 1
    for replica in succeeded:
        tallies[replica.type][3] += 1
    return {
        type_: Counts(
            pending=t[0],
            running=t[1],
            ready=t[2],
            succeeded=t[3],
            failed=t[4],
            terminating=t[5],
            restarts=min(t[6], MAX_COUNT),
        )
        for type_, t in tallies.items()
    }


# Pods that are lost with their node

_TAINTS: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
# Seconds of the toleration that the API server adds to pods without one (DefaultTolerationSeconds).
_TOLERATED: Final = 300.0
# Seconds that a taint manager has to delete the pod itself.
_LATER: Final = 10.0


def node_loss_times(s: ReconcileContext) -> Iterator[float]:
    """The times at which pods are lost if their nodes do not return."""
    for pod in s.observed.pods if s.observed.unready else ():
        due = _lost_at(s.job, s.observed, pod)
        if due is not None:
            yield due


def _marked(job: Job, observed: Observed, pod: PodView) -> PodView:
    """The pod, marked as lost if it is lost with its node."""
    due = _lost_at(job, observed, pod)
    if due is None or observed.now < due:
        return pod
    since = observed.unready[pod.node].since
    said = f"not ready since {format_time(since)}" if since is not None else ""
    return replace(pod, node_lost=True, disruption=Disruption(NODE_LOST, said, pod.node))


def _lost_at(job: Job, observed: Observed, pod: PodView) -> float | None:
    node, spec = observed.unready.get(pod.node), job.spec(pod.replica.type)
    if node is None or node.since is None or spec is None or pod.finished or pod.deleting or pod.node_lost:
        return None
    tolerated = _tolerated(spec.pod_spec.get("tolerations"))
    return None if tolerated is None else round_time(node.since + tolerated + _LATER)


def _tolerated(tolerations: object) -> float | None:
    """Seconds that a pod stays on a node that is not ready; None: forever."""
    found = [one for one in mappings(tolerations) if _speaks_of_it(one)]
    if not found:
        return _TOLERATED
    limits = [seconds for one in found if (seconds := number(one.get("tolerationSeconds"))) is not None]
    return float(max(0, min(limits))) if limits else None


def _speaks_of_it(toleration: Mapping[str, Any]) -> bool:
    key, effect = toleration.get("key"), toleration.get("effect")
    every = not key and toleration.get("operator") == "Exists"
    return (every or key in _TAINTS) and effect in (None, "", "NoExecute")


# Seconds by which the clocks of a cluster may differ. Smaller differences do not justify a write of every job at a
# failover.
CLOCK_SKEW_TOLERANCE: Final = 5.0


def is_in_future(moment: float, now: float) -> bool:
    """Whether the time of a past event lies after ``now``."""
    return moment > now + CLOCK_SKEW_TOLERANCE


def without_clock_skew(job: Job, status: Status, now: float) -> Status:
    """``status`` with limited times; the same object if all are within their limits."""
    if not any(moment is not None and is_in_future(moment, now) for moment in _moments(status)):
        return status
    pause = requeue_backoff(job.uid, max(1, status.requeues))
    bounded = replace(
        status,
        since=_past(status.since, now),
        created=_past(status.created, now),
        start_time=_past(status.start_time, now),
        completion_time=_past(status.completion_time, now),
        admission=_admission(status.admission, now),
        failure=status.failure and replace(status.failure, at=_past(status.failure.at, now)),
        backoffs={key: _backoff(job, pause, now) for key, pause in status.backoffs.items()},
        policy_timeouts={key: _past(since, now) for key, since in status.policy_timeouts.items()},
        not_before=_within(status.not_before, pause, now),
        usage=updated(status.usage, since=_past(status.usage.since, now)),
        refused_nodes={node: _within(at, pause + NODE_EXCLUDED_FOR, now) for node, at in status.refused_nodes.items()},
    )
    return status if bounded == status else bounded


def _moments(status: Status) -> Iterator[float | None]:
    """The times of a status that are limited."""
    yield from (status.since, status.created, status.start_time, status.completion_time, status.not_before)
    yield from (pause.until for pause in status.backoffs.values())
    yield from status.policy_timeouts.values()
    yield from status.refused_nodes.values()
    if (admission := status.admission) is not None:
        yield from (admission.at, admission.resized, admission.complete, admission.incomplete)
    yield status.usage.since
    if status.failure is not None:
        yield status.failure.at


@overload
def _past(moment: float, now: float) -> float: ...
@overload
def _past(moment: float | None, now: float) -> float | None: ...
def _past(moment: float | None, now: float) -> float | None:
    return now if moment is not None and is_in_future(moment, now) else moment


def _within(until: float, longest: float, now: float) -> float:
    return round_time(now + longest) if until > now + longest + CLOCK_SKEW_TOLERANCE else until


def _backoff(job: Job, pause: RestartBackoff, now: float) -> RestartBackoff:
    return replace(pause, until=_within(pause.until, job.run_policy.backoff.delay(pause.count), now))


def _admission(admission: Admission | None, now: float) -> Admission | None:
    if admission is None:
        return None
    return replace(
        admission,
        at=_past(admission.at, now),
        resized=_past(admission.resized, now),
        complete=_past(admission.complete, now),
        incomplete=_past(admission.incomplete, now),
    )
