"""Restarts: budgets for failures and disruptions, and back-off.

A restart is decided by counting the attempt up in the status; that old pods are deleted and new ones created follows
from that. There are two budgets: one for failures, and one for disruptions (``core.api.pods``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from tf_dist.core.api import pods
from tf_dist.core.api.context import EmitEvent
from tf_dist.core.api.job import Action, Event, Job, ReplicaId, ReplicaSpec
from tf_dist.core.api.lifecycle_policy import DecidedEvents
from tf_dist.core.api.names import MAX_DISRUPTIONS
from tf_dist.core.api.pod_events import PodClassification, PodEvent, derive_events, describe_events, exit_text
from tf_dist.core.api.status import COMMAND_ISSUED, LIVE, NO_PODS, Failure, Phase, RestartBackoff, Status
from tf_dist.core.api.timestamps import round_time
from tf_dist.core.reconciler.log_excerpt import log_excerpt


def restart_job(job: Job, status: Status, facts: PodClassification, answered: DecidedEvents, now: float) -> Status:
    """Restart every pod: one restart however many replicas have failed, none if they were disrupted."""
    first = _costs(job, status, facts, answered, [_gravest(answered)])
    if over := _unaffordable(job, status, facts, answered, first, now):
        return over
    status = keep_container_restarts(job, _spend(status, answered, first), {**facts.departed, **facts.current}, facts)
    anew = replace(
        status,
        attempts=status.attempts.next_job(),
        observed_replicas=frozenset(),
        succeeded=frozenset(),
        failure=_failure(answered, now),
    )
    return _with_backoff(job, anew, {"": _ran_for(facts, facts.current, now)}, now, _sentence(job, answered), first)


def restart_tasks(job: Job, status: Status, facts: PodClassification, answered: DecidedEvents, now: float) -> Status:
    """Restart every pod of the affected tasks: one restart a task, or one in all (``failures_count_together``)."""
    types = dict.fromkeys(occurrence.spec.type for occurrence, _ in answered)
    by_task = {type_: _gravest([one for one in answered if one[0].spec.type == type_]) for type_ in types}
    spent = _costs(job, status, facts, answered, by_task.values())
    if over := _unaffordable(job, status, facts, answered, spent, now):
        return over
    status = replace(_spend(status, answered, spent), failure=_failure(answered, now))
    ran: dict[str, float | None] = {}
    for type_ in by_task:
        replicas = [replica for replica in facts.current if replica.type == type_]
        gone = [replica for replica in facts.departed if replica.type == type_]
        status = keep_container_restarts(job, status, [*replicas, *gone], facts)
        status = replace(status, attempts=status.attempts.next_task(type_))
        ran[type_] = _ran_for(facts, replicas, now)
    seen, succeeded = (
        frozenset(replica for replica in group if replica.type not in by_task)
        for group in (status.observed_replicas, status.succeeded)
    )
    return _with_backoff(
        job, replace(status, observed_replicas=seen, succeeded=succeeded), ran, now, _sentence(job, answered), spent
    )


def restart_pods(job: Job, status: Status, facts: PodClassification, answered: DecidedEvents, now: float) -> Status:
    """Restart the affected replicas: one restart a replica, or one in all (``failures_count_together``)."""
    by_replica = {
        occurrence.replica: occurrence for occurrence, _ in reversed(answered) if occurrence.replica is not None
    }
    spent = _costs(job, status, facts, answered, by_replica.values())
    if over := _unaffordable(job, status, facts, answered, spent, now):
        return over
    status = replace(_spend(status, answered, spent), failure=_failure(answered, now))
    ran: dict[str, float | None] = {}
    for replica in by_replica:
        status = keep_container_restarts(job, status, [replica], facts)
        status = replace(
            status, attempts=status.attempts.next_pod(replica), observed_replicas=status.observed_replicas - {replica}
        )
        ran[str(replica)] = _ran_for(facts, [replica], now)
    return _with_backoff(job, status, ran, now, _sentence(job, answered), spent)


def charge_disruption(
    job: Job, status: Status, facts: PodClassification, answered: DecidedEvents, now: float
) -> Status:
    """The status with the disruption that the whole job waits again for: one, however many pods; Failed over budget."""
    first = _costs(job, status, facts, answered, [_gravest(answered)])
    over = _unaffordable(job, status, facts, answered, first, now)
    return over or replace(_spend(status, answered, first), failure=_failure(answered, now))


def restart_by_command(job: Job, status: Status, facts: PodClassification, now: float) -> Status:
    """Restart every pod because a Command says so: one restart, none while one is under way, and no back-off."""
    again = status.phase is Phase.RESTARTING
    spent = spent_restarts(job, status, facts)
    limit = job.run_policy.max_restarts
    if not again and limit is not None and spent + 1 > limit:
        return fail_over_budget(job, status, now, "the Command RestartJob was issued", spent=spent)
    kept = keep_container_restarts(job, status, facts.current, facts)
    if not again:
        kept = replace(kept.with_restart(COMMAND_ISSUED), retries=kept.retries + 1)
    anew = replace(kept.next_attempt(kept.admission), start_time=kept.start_time, succeeded=frozenset())
    phase = Phase.PENDING if anew.admission is None else Phase.RESTARTING
    return anew.with_phase(phase, now, COMMAND_ISSUED, "restarted by the Command RestartJob")


def resume(job: Job, status: Status, now: float) -> Status:
    """The next attempt of a job that was stopped: it waits for its place again, and no restart is charged.

    Of a TFJob every replica starts anew, as with the training operator, which has deleted all pods by then; of a
    Volcano Job those that have succeeded stay so (``resume_keeps_succeeded``).
    """
    waits = status.next_attempt(None)
    fresh = replace(waits, last_sizes={}, requeues=0, refused_nodes={}, not_before=0.0, fallback_from=0)
    if not job.run_policy.resume_keeps_succeeded:
        fresh = replace(fresh, succeeded=frozenset())
    return fresh.with_phase(Phase.PENDING, now, "Resumed", "resumed; waits for its place")


def fail_by_container_restarts(job: Job, status: Status, facts: PodClassification, now: float) -> Status:
    """The status of a job whose budget the kubelet has spent by restarting containers: Failed, by the worst of them."""
    counted = _counted_types(job)
    listed = (pod for replica, pod in facts.current.items() if replica.type in counted)
    worst = max(sorted(listed, key=lambda pod: pod.replica), key=lambda pod: pod.restarts)
    exit_ = worst.exit or worst.last_exit
    times = f", {worst.ends} times" if worst.ends > 1 else ""
    failure = Failure(
        event=Event.POD_FAILED.value,
        replica=str(worst.replica),
        code=exit_.code if exit_ else None,
        reason=exit_.reason if exit_ else "",
        message=log_excerpt(exit_.message) if exit_ else "",
        at=now,
    )
    what = f"{worst.replica} {exit_text(exit_)}{times}"
    return fail_over_budget(job, status, now, what, failure, spent=spent_restarts(job, status, facts))


def fail_over_budget(
    job: Job, status: Status, now: float, what: str, failure: Failure | None = None, *, spent: int
) -> Status:
    """The status of a job that needs one restart more than its budget has: Failed."""
    message = f"{what}; no restart is left (spent {spent})"
    # The retry that is refused is counted, as Volcano does it: a job with maxRetry 2 ends with retryCount 2.
    failed = replace(status, failure=failure or status.failure, retries=status.retries + 1)
    return failed.with_phase(Phase.FAILED, now, "BackoffLimitExceeded", message)


def fail_unhandled(
    job: Job, status: Status, facts: PodClassification, failed: Collection[ReplicaId], now: float, message: str
) -> Status:
    """Failed, because of replicas about which no policy does anything: of the first failure, else of an eviction."""
    events = [one for one in derive_events(job, status, facts) if one.replica in failed and one.exit is not None]
    if not events:
        return status.with_phase(Phase.FAILED, now, Event.POD_FAILED.value, message)
    gravest = next((one for one in events if one.disruption is None), events[0])
    ended = replace(status, failure=failure_of(gravest, now))
    return ended.with_phase(Phase.FAILED, now, gravest.event.value, message)


def failure_of(occurrence: PodEvent, now: float) -> Failure:
    """The failure that the status records of an event."""
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
    """The first failure; where there is none, the first disruption."""
    occurrences = [occurrence for occurrence, _ in answered]
    return next((one for one in occurrences if one.disruption is None), occurrences[0])


def _costs(
    job: Job, status: Status, facts: PodClassification, answered: DecidedEvents, each: Iterable[PodEvent]
) -> list[PodEvent]:
    """The events that these restarts are charged for.

    Where failures of the same moment count together, one restart is charged, and none for a pod of before the restart
    that is under way: Volcano's controller charges the first event that leads to Restarting, and those that come
    before it has left that state are free.
    """
    if not job.run_policy.failures_count_together:
        return list(each)
    if status.phase is not Phase.RESTARTING:
        return [_gravest(answered)]
    later = [(one, decision) for one, decision in answered if not _is_of_before(status, facts, one)]
    return [_gravest(later)] if later else []


def _is_of_before(status: Status, facts: PodClassification, occurrence: PodEvent) -> bool:
    """Whether it happened to a pod that was there when the present restart was decided."""
    replica, since = occurrence.replica, status.since
    if replica is None or since is None:
        return False
    pod = facts.current.get(replica) or facts.departed.get(replica)
    return pod is not None and pod.created_at is not None and pod.created_at <= since


def spent_restarts(job: Job, status: Status, facts: PodClassification) -> int:
    """Restarts that count against the budget: with those by the kubelet in living pods where the job counts them."""
    return charged_restarts(job, status) + (_by_kubelet(job, facts, facts.current) if _counts_containers(job) else 0)


def charged_restarts(job: Job, status: Status) -> int:
    """The part of ``spent_restarts`` that is in the status already."""
    return status.charged_restarts + (status.container_restarts if _counts_containers(job) else 0)


def _counts_containers(job: Job) -> bool:
    return job.run_policy.container_restarts_count


def _unaffordable(
    job: Job, status: Status, facts: PodClassification, answered: DecidedEvents, costs: Iterable[PodEvent], now: float
) -> Status | None:
    """Failed, where one of the two budgets does not have what these restarts cost."""
    costs, limit = list(costs), job.run_policy.max_restarts
    failures = sum(one.disruption is None for one in costs)
    if limit is not None and failures and spent_restarts(job, status, facts) + failures > limit:
        spent = spent_restarts(job, status, facts)
        return fail_over_budget(job, status, now, _sentence(job, answered), _failure(answered, now), spent=spent)
    disrupted = [one for one in costs if one.disruption is not None]
    return fail_over_disruptions(job, status, disrupted, now, _sentence(job, answered))


def fail_over_disruptions(
    job: Job, status: Status, disrupted: Collection[PodEvent], now: float, what: str
) -> Status | None:
    """Failed, where the bound on disruptions does not have room for these."""
    most = pods.disruption_limit(job)
    if not disrupted or status.total_disruptions + len(disrupted) <= most:
        return None
    before = f"disrupted {status.total_disruptions} times before"
    if status.disruptions:
        before += f" ({pods.disruption_counts(status.disruptions)})"
    message = f"{what}; {before}, and no more than {most} are allowed ({MAX_DISRUPTIONS})"
    failed = replace(status, failure=failure_of(next(iter(disrupted)), now))
    return failed.with_phase(Phase.FAILED, now, pods.DISRUPTIONS_EXCEEDED, message)


def charge_disruptions(job: Job, status: Status, count: int) -> Status:
    """The status with pods that were taken away and run again, though no restart was decided for them."""
    spent = min(count, pods.disruption_limit(job) - status.total_disruptions)
    if spent <= 0:
        return status
    taken = {**status.disruptions, pods.POD_DELETED: status.disruptions.get(pods.POD_DELETED, 0) + spent}
    return replace(status, disruptions=taken)


def _spend(status: Status, answered: DecidedEvents, costs: Iterable[PodEvent]) -> Status:
    costs = list(costs)
    by_policy = {id(one) for one, decision in answered if decision.by_policy}
    restarts, taken = dict(status.restarts), dict(status.disruptions)
    for one in costs:
        counts, cause = (restarts, one.event.value) if one.disruption is None else (taken, one.disruption.reason)
        counts[cause] = counts.get(cause, 0) + 1
    retries = status.retries + sum(id(one) in by_policy for one in costs)
    return replace(status, restarts=restarts, disruptions=taken, retries=retries)


def keep_container_restarts(
    job: Job, status: Status, replicas: Iterable[ReplicaId], facts: PodClassification
) -> Status:
    """The status with the container restarts of these pods, whose own counters go with them."""
    return replace(status, container_restarts=status.container_restarts + _by_kubelet(job, facts, replicas))


def _by_kubelet(job: Job, facts: PodClassification, replicas: Iterable[ReplicaId]) -> int:
    """Restarts of containers, but not in pods of a TFJob's replicas that a failure never restarts: what restarts there
    are sidecars (training-operator 1.9, ``PastBackoffLimit``).
    """
    pods = {**facts.departed, **facts.current}
    counted = _counted_types(job)
    return sum(pods[replica].restarts for replica in replicas if replica in pods and replica.type in counted)


def _counted_types(job: Job) -> frozenset[str]:
    return frozenset(spec.type for spec in job.replica_specs if not _never_restarts(spec))


def _never_restarts(spec: ReplicaSpec) -> bool:
    answers = {rule.action for rule in spec.rules if Event.POD_FAILED in rule.events}
    return bool(answers) and answers <= {Action.FAIL_JOB, Action.IGNORE}


def container_events(before: Status, after: Status, facts: PodClassification) -> Iterator[EmitEvent]:
    """An Event of each type of which the kubelet has restarted a container in its pod since ``before``."""
    if after.phase not in LIVE or after.attempts != before.attempts:
        return
    for type_, counts in after.counts.items():
        if counts.restarts <= before.counts.get(type_, NO_PODS).restarts:
            continue
        ended = ((pod, pod.last_exit) for pod in facts.current.values() if pod.last_exit and pod.replica.type == type_)
        latest = max(ended, key=lambda one: (one[1].finished_at or 0.0, one[0].replica), default=None)
        if latest is not None:
            pod, exit_ = latest
            text = f"{pod.replica} {exit_text(exit_)}; its container was restarted in its pod (restart {pod.restarts})"
            yield EmitEvent("Warning", "ContainerRestarted", text, routine=True)


def _ran_for(facts: PodClassification, replicas: Iterable[ReplicaId], now: float) -> float | None:
    """How long the longest-lived of the pods has run, in seconds; None if no pod is left to tell."""
    starts = [facts.current[replica].started_at for replica in replicas if replica in facts.current]
    return max((now - start for start in starts if start is not None), default=None)


def _with_backoff(
    job: Job,
    status: Status,
    ran: Mapping[str, float | None],
    now: float,
    what: str,
    costs: Iterable[PodEvent],
) -> Status:
    backoffs = dict(status.backoffs)
    backoff = job.run_policy.backoff
    for key, seconds in ran.items():
        before = backoffs.get(key)
        # A pod that is gone is taken to have run since its last restart.
        healthy = before is not None and (now - before.until if seconds is None else seconds) >= backoff.healthy
        count = 1 if before is None or healthy else before.count + 1
        backoffs[key] = RestartBackoff(count, round_time(now + backoff.delay(count)))
    wait = max(backoffs[key].until for key in ran) - now
    later = f" in {wait:.0f} s" if wait > 0 else ""
    event = status.failure.event if status.failure else ""
    spent = " and ".join(_counts(job, status, costs)) or "part of the restart under way"
    return replace(status, backoffs=backoffs).with_phase(Phase.RESTARTING, now, event, f"{what}; {spent}{later}")


def _counts(job: Job, status: Status, costs: Iterable[PodEvent]) -> Iterator[str]:
    """``restart 2 of 3``, ``disruption 1 of 100``: what these restarts count as."""
    kinds = {one.disruption is None for one in costs}
    if True in kinds:
        budget = job.run_policy.max_restarts
        yield f"restart {charged_restarts(job, status)}" + ("" if budget is None else f" of {budget}")
    if False in kinds:
        yield f"disruption {status.total_disruptions} of {pods.disruption_limit(job)}"


def _sentence(job: Job, answered: DecidedEvents) -> str:
    return describe_events(job, [occurrence for occurrence, _ in answered])
