"""Restarts: budgets for failures and disruptions, and back-off.

A restart increases the attempt in the status. The deletion of old pods and the creation of new pods follow from this.
Failures and disruptions have separate budgets (``core.model.pods``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from tf_dist.core.model import pods
from tf_dist.core.model.context import ReconcileContext
from tf_dist.core.model.job import Action, Event, Job, ReplicaId
from tf_dist.core.model.names import MAX_DISRUPTIONS
from tf_dist.core.model.pods import exit_text
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import MAX_COUNT, Attempts, Failure, Phase, RestartBackoff, Status
from tf_dist.core.model.timestamps import round_time
from tf_dist.core.model.wording import are, times_text
from tf_dist.core.reconciler.lifecycle_policy import DecidedEvents, PodEvent, derive_events, describe_events


def restart_job(s: ReconcileContext, answered: DecidedEvents) -> Status:
    """Restart every pod. This counts as one restart for all failed replicas, or as one disruption without failures."""
    return _restart(s, answered, {"": _gravest(answered)}, lambda _: "", s.status.attempts.next_job())


def restart_tasks(s: ReconcileContext, answered: DecidedEvents) -> Status:
    """Restart every pod of the affected tasks: one restart each, or one in total (``failures_count_together``)."""
    types = dict.fromkeys(occurrence.spec.type for occurrence, _ in answered)
    by_task = {type_: _gravest([one for one in answered if one[0].spec.type == type_]) for type_ in types}
    attempts = s.status.attempts
    for type_ in by_task:
        attempts = attempts.next_task(type_)
    return _restart(s, answered, by_task, lambda replica: replica.type, attempts)


def restart_pods(s: ReconcileContext, answered: DecidedEvents) -> Status:
    """Restart the affected replicas: one restart for each replica, or one in total (``failures_count_together``)."""
    by_replica = {one.replica: one for one, _ in reversed(answered) if one.replica is not None}
    attempts = s.status.attempts
    for replica in by_replica:
        attempts = attempts.next_pod(replica)
    return _restart(s, answered, {str(replica): one for replica, one in by_replica.items()}, str, attempts)


def _restart(
    s: ReconcileContext,
    answered: DecidedEvents,
    parts: Mapping[str, PodEvent],
    part_of: Callable[[ReplicaId], str],
    attempts: Attempts,
) -> Status:
    """Restart parts of the job, each for an event. ``part_of``: the part of a replica, as its key in ``backoffs``."""
    spent = _costs(s, answered, parts.values())
    if over := _unaffordable(s, answered, spent):
        return over
    leaving: dict[str, list[ReplicaId]] = {part: [] for part in parts}
    for replica in {**s.facts.departed, **s.facts.current}:
        if (part := part_of(replica)) in leaving:
            leaving[part].append(replica)
    observed, succeeded = (
        frozenset(replica for replica in group if part_of(replica) not in parts)
        for group in (s.status.observed_replicas, s.status.succeeded)
    )
    status = replace(
        _spend(s.status, answered, spent),
        attempts=attempts,
        observed_replicas=observed,
        succeeded=succeeded,
        failure=_failure(answered, s.now),
    )
    status = keep_container_restarts(s, status, chain.from_iterable(leaving.values()))
    ran = {part: _ran_for(s, replicas) for part, replicas in leaving.items()}
    return _with_backoff(s, status, ran, answered, spent)


def charge_disruption(s: ReconcileContext, answered: DecidedEvents) -> Status:
    """The status after a disruption for which the whole job waits again. It counts once. Failed if over the budget."""
    first = _costs(s, answered, [_gravest(answered)])
    over = _unaffordable(s, answered, first)
    return over or replace(_spend(s.status, answered, first), failure=_failure(answered, s.now))


def restart_by_command(s: ReconcileContext) -> Status:
    """Restart every pod by a Command, without back-off. It counts as one restart, but not during another restart."""
    again = s.status.phase is Phase.RESTARTING
    limit = s.job.run_policy.max_restarts
    if not again and limit is not None and spent_restarts(s) + 1 > limit:
        return _fail_over_budget(s, "the Command RestartJob was issued")
    kept = keep_container_restarts(s, s.status, s.facts.current)
    if not again:
        kept = replace(kept.with_restart(Reason.COMMAND_ISSUED), retries=kept.retries + 1)
    anew = replace(kept.next_attempt(kept.admission), start_time=kept.start_time, succeeded=frozenset())
    phase = Phase.PENDING if anew.admission is None else Phase.RESTARTING
    return anew.with_phase(phase, s.now, Reason.COMMAND_ISSUED, "restarted by the Command RestartJob")


def next_run(s: ReconcileContext) -> Status:
    """The next attempt of a stopped job, which waits for admission. This does not count as a restart.

    Every replica starts again, as with the training operator. In a Volcano Job, succeeded replicas remain succeeded.
    """
    waits = s.status.next_attempt(None)
    fresh = replace(waits, last_sizes={}, requeues=0, refused_nodes={}, not_before=0.0, fallback_from=0)
    if not s.job.run_policy.resume_keeps_succeeded:
        fresh = replace(fresh, succeeded=frozenset())
    return fresh.with_phase(Phase.PENDING, s.now, Reason.RESUMED, "resumed; waits for admission")


def fail_by_container_restarts(s: ReconcileContext) -> Status:
    """The Failed status of a job whose budget is exceeded by restarts of the kubelet. It names the worst container."""
    counted = _counted_types(s.job)
    listed = (pod for replica, pod in s.facts.current.items() if replica.type in counted)
    worst = max(sorted(listed, key=lambda pod: pod.replica), key=lambda pod: pod.restarts)
    exit_ = worst.exit or worst.last_exit
    times = f", {worst.ends} times" if worst.ends > 1 else ""
    failure = Failure(
        event=Event.POD_FAILED.value,
        replica=str(worst.replica),
        code=exit_.code if exit_ else None,
        reason=exit_.reason if exit_ else "",
        message=log_excerpt(exit_.message) if exit_ else "",
        at=s.now,
    )
    what = f"{worst.replica} {exit_text(exit_)}{times}"
    if exit_ is not None and exit_.code == 0:
        spec = s.job.spec(worst.replica.type)
        policy = spec.pod_restart_policy if spec is not None else ""
        what = f"{worst.replica} succeeded (exit code 0){times}, and its restartPolicy {policy} starts it again"
        failure = replace(failure, event=Reason.REPLICA_SUCCEEDED)
    return _fail_over_budget(s, what, failure)


def _fail_over_budget(s: ReconcileContext, what: str, failure: Failure | None = None) -> Status:
    """The Failed status of a job that needs one more restart than its budget."""
    message = f"{what}; no restart is left (spent {spent_restarts(s)})"
    # The refused retry counts, as in Volcano: a job with maxRetry 2 ends with retryCount 2.
    failed = replace(s.status, failure=failure or s.status.failure, retries=s.status.retries + 1)
    return failed.with_phase(Phase.FAILED, s.now, Reason.BACKOFF_LIMIT_EXCEEDED, message)


def fail_unhandled(s: ReconcileContext, failed: Collection[ReplicaId], message: str) -> Status:
    """The Failed status after events without a matching policy: for the first failure, otherwise for an eviction."""
    events = [one for one in derive_events(s.job, s.status, s.facts) if one.replica in failed and one.exit is not None]
    if not events:
        return s.status.with_phase(Phase.FAILED, s.now, Event.POD_FAILED.value, message)
    gravest = next((one for one in events if one.disruption is None), events[0])
    ended = replace(s.status, failure=failure_of(gravest, s.now))
    return ended.with_phase(Phase.FAILED, s.now, gravest.event.value, message)


def failure_of(occurrence: PodEvent, now: float) -> Failure:
    """The failure of an event, as recorded in the status."""
    exit_, taken = occurrence.exit, occurrence.disruption
    said = taken or exit_
    return Failure(
        event=occurrence.event.value,
        replica=str(occurrence.replica) if occurrence.replica else occurrence.spec.type,
        code=exit_.code if exit_ else None,
        reason=said.reason if said else "",
        message=log_excerpt(said.message) if said else "",
        at=now,
        node=taken.node if taken else "",
    )


def _failure(answered: DecidedEvents, now: float) -> Failure:
    return failure_of(_gravest(answered), now)


def _gravest(answered: DecidedEvents) -> PodEvent:
    """The first failure, otherwise the first disruption."""
    occurrences = [occurrence for occurrence, _ in answered]
    return next((one for one in occurrences if one.disruption is None), occurrences[0])


def _costs(s: ReconcileContext, answered: DecidedEvents, each: Iterable[PodEvent]) -> list[PodEvent]:
    """The events that count as restarts.

    If simultaneous failures count together, one restart counts, and none for pods from before the current restart:
    Volcano's controller counts the first event that leads to Restarting, and none until it has left that state.
    """
    if not s.job.run_policy.failures_count_together:
        return list(each)
    if s.status.phase is not Phase.RESTARTING:
        return [_gravest(answered)]
    later = [(one, decision) for one, decision in answered if one.replica not in s.status.survivors]
    return [_gravest(later)] if later else []


def _survivors(s: ReconcileContext, attempts: Attempts) -> frozenset[ReplicaId]:
    """The replicas whose pods continue in a restart to these attempts, and were not replaced by the current restart."""
    if not s.job.run_policy.failures_count_together:
        return frozenset()
    again = s.status.phase is Phase.RESTARTING
    before = s.status.survivors if again else s.status.observed_replicas | s.facts.current.keys()
    return frozenset(one for one in before if attempts.label(one) == s.status.attempts.label(one))


def spent_restarts(s: ReconcileContext) -> int:
    """Restarts that count against the budget, including those by the kubelet if the job counts them."""
    living = _by_kubelet(s, s.facts.current) if s.job.run_policy.container_restarts_count else 0
    return charged_restarts(s.job, s.status) + living


def charged_restarts(job: Job, status: Status) -> int:
    """The part of ``spent_restarts`` in the status."""
    return status.charged_restarts + (status.container_restarts if job.run_policy.container_restarts_count else 0)


def _unaffordable(s: ReconcileContext, answered: DecidedEvents, costs: Collection[PodEvent]) -> Status | None:
    """The Failed status if these restarts exceed one of the two budgets; else None."""
    limit = s.job.run_policy.max_restarts
    failures = sum(one.disruption is None for one in costs)
    if limit is not None and failures and spent_restarts(s) + failures > limit:
        return _fail_over_budget(s, _sentence(s, answered), _failure(answered, s.now))
    disrupted = [one for one in costs if one.disruption is not None]
    return fail_over_disruptions(s, disrupted, _sentence(s, answered))


def fail_over_disruptions(s: ReconcileContext, disrupted: Collection[PodEvent], what: str) -> Status | None:
    """The Failed status if these disruptions exceed the limit; else None."""
    status, most = s.status, pods.disruption_limit(s.job)
    if not disrupted or status.total_disruptions + len(disrupted) <= most:
        return None
    before = f"disrupted {times_text(status.total_disruptions)} before"
    if status.disruptions:
        before += f" ({pods.disruption_counts(status.disruptions)})"
    message = f"{what}; {before}, and no more than {most} {are(most)} allowed ({MAX_DISRUPTIONS})"
    failed = replace(status, failure=failure_of(next(iter(disrupted)), s.now))
    return failed.with_phase(Phase.FAILED, s.now, Reason.MAX_DISRUPTIONS_EXCEEDED, message)


def charge_disruptions(job: Job, status: Status, count: int) -> Status:
    """The status with ``count`` more disruptions of pods that run again without a decided restart, up to the limit."""
    spent = min(count, pods.disruption_limit(job) - status.total_disruptions)
    if spent <= 0:
        return status
    taken = {**status.disruptions, pods.POD_DELETED: status.disruptions.get(pods.POD_DELETED, 0) + spent}
    return replace(status, disruptions=taken)


def _spend(status: Status, answered: DecidedEvents, costs: Collection[PodEvent]) -> Status:
    by_policy = {id(one) for one, decision in answered if decision.by_policy}
    restarts, taken = dict(status.restarts), dict(status.disruptions)
    for one in costs:
        if one.disruption is None:
            counts, cause = restarts, one.event.value
        else:
            counts, cause = taken, pods.counted_cause(one.disruption, taken)
        counts[cause] = counts.get(cause, 0) + 1
    retries = status.retries + sum(id(one) in by_policy for one in costs)
    return replace(status, restarts=restarts, disruptions=taken, retries=retries)


def keep_container_restarts(s: ReconcileContext, status: Status, replicas: Iterable[ReplicaId]) -> Status:
    """``status`` with the container restarts of these pods, whose own counters are deleted with them."""
    total = status.container_restarts + _by_kubelet(s, replicas)
    return replace(status, container_restarts=min(total, MAX_COUNT))


def _by_kubelet(s: ReconcileContext, replicas: Iterable[ReplicaId]) -> int:
    """Restarts of containers by the kubelet.

    TFJob replicas that are never restarted after failures do not count, because only their sidecars restart
    (training-operator 1.9, ``PastBackoffLimit``).
    """
    counted = _counted_types(s.job)
    found = (s.facts.current.get(replica) or s.facts.departed.get(replica) for replica in replicas)
    return sum(pod.restarts for pod in found if pod is not None and pod.replica.type in counted)


def _counted_types(job: Job) -> frozenset[str]:
    answers = {
        spec.type: {rule.action for rule in spec.rules if Event.POD_FAILED in rule.events} for spec in job.replica_specs
    }
    return frozenset(type_ for type_, found in answers.items() if not found or found - {Action.FAIL_JOB, Action.IGNORE})


def _ran_for(s: ReconcileContext, replicas: Iterable[ReplicaId]) -> float | None:
    """The time for which the oldest of the pods has run, in seconds; None without pods."""
    starts = [s.facts.current[replica].started_at for replica in replicas if replica in s.facts.current]
    return max((s.now - start for start in starts if start is not None), default=None)


def _with_backoff(
    s: ReconcileContext,
    status: Status,
    ran: Mapping[str, float | None],
    answered: DecidedEvents,
    costs: Iterable[PodEvent],
) -> Status:
    """``status`` in Restarting after a pause; ``ran``: the run time of each restarted part, as in ``backoffs``."""
    backoffs, now = dict(status.backoffs), s.now
    backoff = s.job.run_policy.backoff
    for key, seconds in ran.items():
        before = backoffs.get(key)
        # A pod that is gone is assumed to have run since its last restart.
        healthy = before is not None and (now - before.until if seconds is None else seconds) >= backoff.healthy
        count = 1 if before is None or healthy else before.count + 1
        backoffs[key] = RestartBackoff(count, round_time(now + backoff.delay(count)))
    wait = max(backoffs[key].until for key in ran) - now
    later = f" in {wait:.0f} s" if wait > 0 else ""
    event = status.failure.event if status.failure else ""
    spent = " and ".join(_counts(s.job, status, costs)) or "part of the current restart"
    message = f"{_sentence(s, answered)}; {spent}{later}"
    restarting = replace(status, backoffs=backoffs).with_phase(Phase.RESTARTING, now, event, message)
    return replace(restarting, survivors=_survivors(s, status.attempts))


def _counts(job: Job, status: Status, costs: Iterable[PodEvent]) -> Iterator[str]:
    """How these restarts count: ``restart 2 of 3``, ``disruption 1 of 100``."""
    kinds = {one.disruption is None for one in costs}
    if True in kinds:
        budget = job.run_policy.max_restarts
        yield f"restart {charged_restarts(job, status)}" + ("" if budget is None else f" of {budget}")
    if False in kinds:
        yield f"disruption {status.total_disruptions} of {pods.disruption_limit(job)}"


def _sentence(s: ReconcileContext, answered: DecidedEvents) -> str:
    return describe_events(s.job, [occurrence for occurrence, _ in answered])


# Excerpts of a container's last messages, for the status of its job: users who may read a job may not always read logs.
MAX_LENGTH: Final = 1_000
MAX_LINES: Final = 20
_CONTROLS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


def log_excerpt(text: str) -> str:
    """The last lines of a container's message, at most ``MAX_LINES`` and ``MAX_LENGTH`` characters."""
    shown = _CONTROLS.sub("", text.replace("\r", "\n"))
    lines = [line.rstrip() for line in shown.strip().splitlines() if line.strip()]
    kept = "\n".join(lines[-MAX_LINES:])
    return kept if len(kept) <= MAX_LENGTH else f"…{kept[1 - MAX_LENGTH :]}"
