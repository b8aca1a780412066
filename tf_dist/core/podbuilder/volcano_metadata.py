"""Annotations and labels that Volcano's controller gives a pod, by which its scheduler and others find their way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tf_dist.core.api.job import Job, ReplicaSpec

_PREFIX: Final = "volcano.sh/"
_PREEMPTABLE: Final = f"{_PREFIX}preemptable"
_COOLDOWN: Final = f"{_PREFIX}cooldown-time"

# Of the job's annotations and labels those that its pods have, too.
_COPIED_ANNOTATIONS: Final = (_PREEMPTABLE, _COOLDOWN, f"{_PREFIX}revocable-zone")
_COPIED_LABELS: Final = (_PREEMPTABLE, _COOLDOWN)
# One of them: the first that is there.
_DISRUPTION_BUDGET: Final = (f"{_PREFIX}jdb-min-available", f"{_PREFIX}jdb-max-unavailable")


def pod_annotations(job: Job, spec: ReplicaSpec, index: int, attempt: str, retries: int) -> dict[str, str]:
    """Annotations of a pod of ``attempt`` (``Attempts.label``), made after so many ``retries``."""
    own = {
        "task-index": str(index),
        "task-spec": spec.name,
        "job-name": job.key.name,
        "queue-name": job.scheduling.queue,
        "job-version": str(_version(attempt)),
        "job-retry-count": str(retries),
        "template-uid": f"{job.key.name}-{spec.name}",
    }
    budget = [key for key in _DISRUPTION_BUDGET if key in job.annotations][:1]
    return {
        **{f"{_PREFIX}{key}": value for key, value in own.items()},
        **_copied(job.annotations, (*_COPIED_ANNOTATIONS, *budget)),
    }


def pod_labels(job: Job) -> dict[str, str]:
    """Labels of the job that its pods have, too; those of a replica are in ``names.replica_labels``."""
    return _copied(job.labels, _COPIED_LABELS)


def _copied(found: Mapping[str, str], keys: tuple[str, ...]) -> dict[str, str]:
    return {key: found[key] for key in keys if key in found}


def _version(attempt: str) -> int:
    """How often the whole job was made anew before this attempt."""
    first = attempt.partition(".")[0]
    return max(0, int(first) - 1) if first.isdecimal() else 0
