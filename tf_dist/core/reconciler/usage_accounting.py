"""Accounting of a job's usage: once in each pass, from the state before and after its transitions.

A span ends when the job's resources change: the job is admitted, resized, requeued or ends, or a replica has succeeded.
A run is the time in which a container trained. It counts when its pod is no longer current, when the job ends, or when
the kubelet restarts the container in its pod. The work of a run is lost if the run failed or was stopped, except the
part before the last checkpoint. Clients that follow logs report checkpoints in an annotation
(``names.CHECKPOINT_AT``). Workers lose nothing while their parameter servers continue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from tf_dist.core.gang.resources.pod_requests import pod_requests
from tf_dist.core.model import names
from tf_dist.core.model.assignment import replica_counts
from tf_dist.core.model.context import ReconcileContext
from tf_dist.core.model.fieldpath import updated
from tf_dist.core.model.job import ReplicaId, ReplicaSpec, Role
from tf_dist.core.model.pods import PodView
from tf_dist.core.model.status import LIVE, SUCCESSFUL
from tf_dist.core.model.timestamps import parse_time
from tf_dist.core.model.usage import Usage


class _Run(NamedTuple):
    """A run of a container that has ended."""

    begun: float
    ended: float
    succeeded: bool | None
    """Whether the run succeeded; None if it is stopped now."""


def account_usage(first: ReconcileContext, last: ReconcileContext) -> Usage:
    """The usage of a job after a pass. ``first`` is the state before the pass, ``last`` the state after it."""
    usage = _spans(last)
    before, after = first.status, last.status
    same_admission = before.admission and after.admission and before.admission.at == after.admission.at
    if same_admission and before.start_time and after.start_time:
        # If admission did not assign nodes, the start moves to the time when the pods have nodes.
        usage = updated(usage, waited=round(usage.waited + after.start_time - before.start_time, 3))
    if first.status.phase not in LIVE or not (first.facts.current or first.facts.departed):
        return usage
    return _runs(first, last, usage)


def _spans(s: ReconcileContext) -> Usage:
    status, usage = s.status, s.status.usage
    admission = status.admission
    live = status.phase in LIVE
    sizes = {**replica_counts(s.job), **admission.admitted_sizes} if live and admission is not None else {}
    done = s.facts.succeeded
    held = {
        spec.type: max(0, min(spec.replicas, sizes[spec.type]) - sum(one.type == spec.type for one in done))
        for spec in s.job.replica_specs
        if spec.type in sizes
    }
    replicas = sum(held.values())
    waits_or_holds = replicas > 0 or (live and admission is None)
    if (usage.since is not None) == waits_or_holds and usage.replicas_held == replicas:
        return usage
    gpus = sum(held[spec.type] * gpus_of(spec) for spec in s.job.replica_specs if held.get(spec.type))
    since = s.now if waits_or_holds else None
    return replace(usage.until(s.now), since=since, replicas_held=replicas, gpus_held=gpus)


def _runs(first: ReconcileContext, last: ReconcileContext, usage: Usage) -> Usage:
    live = last.status.phase in LIVE
    counted = dict(usage.runs)
    checkpoint = parse_time(first.requested_job.annotations.get(names.CHECKPOINT_AT)) or 0.0
    servers = [replica for spec in first.job.replica_specs if spec.role is Role.PS for replica in spec.ids]
    # Workers continue with the state of their parameter servers.
    stateful = not (live and servers and all(_stays(first, last, one) for one in servers))
    replicas, gpus, sizes = usage.replicas, usage.gpus, replica_counts(last.job)
    for replica, pod in (*first.facts.departed.items(), *first.facts.current.items()):
        spec = first.job.spec(replica.type)
        over = not _stays(first, last, replica)
        if spec is None or not (over or pod.last_exit):
            continue
        key, gpus_each = str(replica), gpus_of(spec)
        restarted = last.status.attempts.label(replica) != first.status.attempts.label(replica)
        # A replica that is removed by scaling while the others continue has not lost its work.
        left_out = live and not restarted and replica.index >= sizes.get(replica.type, 0)
        stopped_well = last.status.phase in SUCCESSFUL or left_out
        loses = stateful or spec.role not in _STATELESS
        for run in _ended_runs(pod, first.now if over else None):
            begun = max(run.begun, counted.get(key, 0.0))
            if run.ended <= begun:
                continue
            counted[key] = run.ended
            trained, lost = run.ended - begun, run.ended - max(begun, checkpoint)
            kept = stopped_well if run.succeeded is None else run.succeeded
            lost = max(0.0, lost) if loses and not kept else 0.0
            replicas = replicas.plus(1, trained=trained, lost=lost)
            gpus = gpus.plus(gpus_each, trained=trained, lost=lost)
        if restarted or not live:
            counted.pop(key, None)
    return updated(usage, replicas=replicas, gpus=gpus, runs=counted)


_STATELESS: Final = frozenset({Role.WORKER, Role.EVALUATOR})


def _stays(first: ReconcileContext, last: ReconcileContext, replica: ReplicaId) -> bool:
    """Whether the replica's pod is still current after the pass."""
    before, after = first.facts.current.get(replica), last.facts.current.get(replica)
    return before is not None and after is not None and before.uid == after.uid and last.status.phase in LIVE


def _ended_runs(pod: PodView, now: float | None) -> Iterator[_Run]:
    """The ended runs of the pod's container. ``now``: also the current run, which ends now."""
    for end, otherwise in ((pod.last_exit, None), (pod.exit if now is not None else None, now)):
        if end is None or end.container:
            continue
        # A kubelet that evicts a pod may not report when its container ended.
        begun, ended = end.started_at or pod.started_at, end.finished_at or otherwise
        if begun is not None and ended is not None:
            yield _Run(begun, ended, succeeded=end.code == 0)
    if now is not None and pod.running_since is not None:
        yield _Run(pod.running_since, now, succeeded=None)


def gpus_of(spec: ReplicaSpec) -> float:
    """The GPUs of a replica, of any vendor: extended resources whose names end in ``gpu``."""
    try:
        requests = pod_requests(spec.pod_spec)
    except ValueError:  # invalid quantities: the API server rejects such pods
        return 0.0
    return float(sum(amount for name, amount in requests.items() if name.partition("/")[2].endswith("gpu")))
