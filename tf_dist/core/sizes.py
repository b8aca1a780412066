"""How many replicas a job has: what its document asks for, within which bounds, and what admission has granted.

Everything else in the core is told the granted number as if the document had said it: TF_CONFIG, services, success and
counting follow without a word about elasticity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tf_dist.core.gang.model import Admit, Resize, Verdict
from tf_dist.core.model import Job, ReplicaSpec, Role, TFConfigStyle
from tf_dist.core.status import LIVE, Status

Sizes = Mapping[str, int]

_WHOLE = frozenset({Role.PS, Role.CHIEF, Role.MASTER, Role.EVALUATOR})


def sizes_of(job: Job) -> dict[str, int]:
    """The replicas of each type."""
    return {spec.type: spec.replicas for spec in job.replica_specs}


def granted(job: Job, status: Status) -> Job:
    """The job with as many replicas as it has been granted, or had when it gave its place back; ``job`` itself if all.

    A document that asks for less by now has less at once; a type that came into it since is not held back.
    """
    sizes = _sizes(status)
    return _within(job, sizes) if sizes else job


def _sizes(status: Status) -> Sizes:
    if status.admission is not None:
        return status.admission.sizes
    return {} if status.phase in LIVE else status.last_sizes


def _within(job: Job, sizes: Sizes) -> Job:
    wanted = {spec.type: sizes.get(spec.type, spec.replicas) for spec in job.replica_specs}
    return with_sizes(job, {spec.type: min(wanted[spec.type], spec.most) for spec in job.replica_specs})


def foreseen(job: Job, status: Status, verdict: Verdict | None) -> Job:
    """The job with as many replicas as it will have once it has heard the verdict."""
    if not isinstance(verdict, Admit | Resize) or not verdict.sizes:
        return granted(job, status)
    return _within(job, {**_sizes(status), **verdict.sizes})


def largest(job: Job) -> Job:
    """The job with every replica that it may ever have."""
    return with_sizes(job, {spec.type: spec.most for spec in job.replica_specs})


def with_sizes(job: Job, sizes: Sizes) -> Job:
    """The job with other numbers of replicas; what has to be there, or to succeed, is never more than there are."""
    if all(sizes[spec.type] == spec.replicas for spec in job.replica_specs):
        return job
    total = sum(sizes[spec.type] for spec in job.replica_specs)
    specs = tuple(
        replace(spec, replicas=sizes[spec.type], min_replicas=min(spec.min_replicas, sizes[spec.type]))
        for spec in job.replica_specs
    )
    counting = job.counting
    if counting is not None:
        most = None if counting.min_success is None else min(counting.min_success, total)
        counting = replace(counting, min_available=min(counting.min_available, total), min_success=most)
    scheduling = replace(job.scheduling, min_available=min(job.scheduling.min_available, total))
    return replace(job, replica_specs=specs, counting=counting, scheduling=scheduling)


def bounds(job: Job) -> dict[str, tuple[int, int]]:
    """The fewest replicas of each type with which the gang may run, and the most it may grow to.

    Parameter servers, chiefs and evaluators are all needed; so is worker 0. A minimum of the whole gang
    (``minAvailable``) that says more than those of the types is made up by the workers; one that says less stands above
    theirs, as in Volcano: workers may be missing then, all but the first.
    """
    wanted, least = job.scheduling.min_available, {spec.type: _least(job, spec) for spec in job.replica_specs}
    elastic = [spec for spec in job.replica_specs if spec.role not in _WHOLE]
    # Workers come last in giving up, and first in making up, what the gang's minimum asks beyond that of its types.
    for spec in sorted(elastic, key=lambda spec: spec.role is not Role.WORKER):
        missing = wanted - sum(least.values())
        floor = min(spec.replicas, _first(job, spec)) if missing < 0 else least[spec.type]
        least[spec.type] = min(spec.replicas, max(floor, least[spec.type] + missing))
    return {spec.type: (least[spec.type], spec.most) for spec in job.replica_specs}


def _least(job: Job, spec: ReplicaSpec) -> int:
    return spec.replicas if spec.role in _WHOLE else min(spec.replicas, max(_first(job, spec), spec.min_replicas))


def _first(job: Job, spec: ReplicaSpec) -> int:
    """So many that the one whose success is the job's is among them."""
    deciding = [rule.index for rule in job.success if rule.type == spec.type and rule.index is not None]
    return 1 + max(deciding, default=0)


def must_restart(job: Job, before: Sizes, after: Sizes) -> bool:
    """Whether pods that were started among ``before`` replicas cannot go on among ``after``.

    TF_CONFIG stands in the environment of a process and never changes. A sparse one names the parameter servers, so
    workers may come and go. A dense one names every replica: those who come are unknown to those who are there, and so
    all start again. Those who leave are missed only where workers talk to each other; with parameter servers they do
    not (the first operator removed workers from under the others in the same way). Programs that make their own
    configuration look at the host files, which follow.
    """
    if job.tf_config is TFConfigStyle.NONE:
        return False
    named = (spec for spec in job.replica_specs if spec.role is not Role.OTHER)
    changed = [spec for spec in named if before.get(spec.type, 0) != after.get(spec.type, 0)]
    others = any(spec.role is not Role.WORKER for spec in changed)
    if others or not changed or job.tf_config is TFConfigStyle.SPARSE:
        return others
    servers = any(spec.role is Role.PS and spec.replicas for spec in job.replica_specs)
    return not servers or any(after.get(spec.type, 0) > before.get(spec.type, 0) for spec in changed)


def grows_live(job: Job) -> bool:
    """Whether workers that come leave those that run undisturbed."""
    more = {spec.type: spec.replicas + (spec.role not in _WHOLE) for spec in job.replica_specs}
    return not must_restart(job, sizes_of(job), more)
