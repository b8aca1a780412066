"""The rules by which a job ends: it stops, it has succeeded, it has failed, or it can no longer succeed."""

from __future__ import annotations

from tf_dist.core import dependencies, restarts
from tf_dist.core.facts import trainers
from tf_dist.core.model import Counting, Job, ReplicaId, ReplicaSpec
from tf_dist.core.observed import PodPhase
from tf_dist.core.situation import Situation, members
from tf_dist.core.status import Phase, Status
from tf_dist.core.stopping import doomed
from tf_dist.core.times import round_time


def end_graceful_stop(s: Situation) -> Status | None:
    """A stop is over when no pod that had to go is there any more."""
    after = {
        Phase.COMPLETING: Phase.COMPLETED,
        Phase.TERMINATING: Phase.TERMINATED,
        Phase.ABORTING: Phase.ABORTED,
    }.get(s.status.phase)
    if after is None or doomed(s.job, s.status, s.facts):
        return None
    return s.status.to(after, s.now, s.status.reason, s.status.message)


def deadline(s: Situation) -> Status | None:
    """``activeDeadlineSeconds`` counts from the start, and fires on time."""
    due = deadline_at(s.job, s.status)
    if not s.live or due is None or s.now < due:
        return None
    message = f"active longer than activeDeadlineSeconds={s.job.run_policy.active_deadline:g}"
    return s.status.to(Phase.FAILED, s.now, "DeadlineExceeded", message)


def deadline_at(job: Job, status: Status) -> float | None:
    """When the active deadline falls, None without one or before the start."""
    limit = job.run_policy.active_deadline
    return None if limit is None or status.start_time is None else round_time(status.start_time + limit)


def succeed(s: Situation) -> Status | None:
    """A success rule of the job holds."""
    if not s.live:
        return None
    for rule in s.job.success:
        needed = members(s.job, rule.type, rule.index)
        if needed and all(replica in s.facts.succeeded for replica in needed):
            who = str(needed[0]) if len(needed) == 1 else f"all {len(needed)} {rule.type} replicas"
            return s.status.to(Phase.COMPLETING, s.now, "JobSucceeded", f"{who} succeeded")
    return None


def judge_by_counting(s: Situation) -> Status | None:
    """Volcano's rules, in its order; parameter servers are not waited for, because they never end by themselves."""
    counting = s.job.counting
    if counting is None or not s.live:
        return None
    succeeded = sum(counts.succeeded for counts in s.facts.counts.values())
    if counting.min_success is not None and succeeded >= counting.min_success:
        return s.status.to(Phase.COMPLETING, s.now, "MinSuccess", f"{succeeded} replicas succeeded (minSuccess)")
    if not _all_ended(s) or s.awaits_policy:
        return None
    if counting.min_success is None and _enough(s, counting):
        return s.status.to(Phase.COMPLETING, s.now, "JobSucceeded", f"{succeeded} replicas succeeded")
    return s.status.to(Phase.FAILED, s.now, "PodFailed", _ended_badly(s))


def _all_ended(s: Situation) -> bool:
    judged = [spec for spec in trainers(s.job) if spec.replicas]
    return bool(judged) and all(_has_ended(s, spec) for spec in judged)


def _has_ended(s: Situation, spec: ReplicaSpec) -> bool:
    counts = s.facts.count(spec.type)
    ended = counts.succeeded + counts.failed
    if ended == spec.replicas:
        return True
    there = counts.pending + counts.running + counts.terminating
    return not there and dependencies.out_of_reach(s.job, spec, s.facts)


def _enough(s: Situation, counting: Counting) -> bool:
    """Every task has its minimum where the job's minimum is no less than theirs together, and the job has its own.

    A parameter server counts as if it had succeeded: whoever needed it has ended.
    """
    judged = {spec.type for spec in trainers(s.job)}
    done = {
        spec.type: s.facts.count(spec.type).succeeded if spec.type in judged else spec.replicas
        for spec in s.job.replica_specs
    }
    strict = counting.min_available >= sum(spec.min_replicas for spec in s.job.replica_specs)
    short = any(done[spec.type] < spec.min_replicas for spec in s.job.replica_specs)
    return not (strict and short) and sum(done.values()) >= counting.min_available


def _ended_badly(s: Situation) -> str:
    failed = sorted(r for r, pod in s.facts.current.items() if pod.phase is PodPhase.FAILED)
    listed = ", ".join(map(str, failed[:5])) + (", …" if len(failed) > 5 else "")
    if not failed:
        return "every replica that ends has ended, and too few have succeeded"
    return f"no policy answers the failure of {listed}, and what else could end has ended"


def hopeless(s: Situation) -> Status | None:
    """Every way to succeed needs a replica that has failed and that no policy brings back."""
    if not s.live or not s.job.success:
        return None
    lost = [_lost(s, rule.type, rule.index) for rule in s.job.success]
    if None in lost or s.awaits_policy:
        return None
    message = f"{lost[0]} has failed, no policy restarts it, and without it the job cannot succeed"
    return s.status.to(Phase.FAILED, s.now, "PodFailed", message)


def _lost(s: Situation, type_: str, index: int | None) -> ReplicaId | None:
    for replica in members(s.job, type_, index):
        pod = s.facts.current.get(replica)
        if pod is not None and pod.phase is PodPhase.FAILED:
            return replica
    return None


def overspent(s: Situation) -> Status | None:
    """Restarts by the kubelet, inside living pods, count against the budget too."""
    limit = s.job.run_policy.max_restarts
    if not s.live or limit is None:
        return None
    spent = restarts.spent(s.job, s.status, s.facts)
    if spent <= limit or spent == restarts.charged(s.job, s.status):
        return None
    return restarts.over_budget(
        s.job, s.status, s.now, f"its containers were restarted again and again ({spent} restarts)"
    )
