"""Labels and annotations that mean the same in every format: worker bounds, limits, gang scheduler, queue.

``tf-dist.dev/min-workers`` and ``tf-dist.dev/max-workers``. In v1alpha1 they are min-instance and max-instance, and a
Volcano task also has its own minAvailable.

``schedulerName`` does not select the gang scheduler, but the scheduler that binds the pods. Many Volcano Jobs name
volcano there only because every example does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tf_dist.core.dialects.common_schema import INT32_MAX, LAYOUTS, written_number
from tf_dist.core.dialects.field_errors import FieldErrors, describe_value
from tf_dist.core.model.fieldpath import FieldPath, suggestion, value_at
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import MAX_REPLICAS, Dialect, DisruptionPolicy, Document, Job
from tf_dist.core.model.names import (
    ADMISSION_TIMEOUT,
    EVALUATOR_IN_CLUSTER,
    FALLBACK,
    GANG_SCHEDULER,
    MAX_DISRUPTIONS,
    MAX_WORKERS,
    MIN_WORKERS,
    ON_EVICTION,
    ON_PREEMPTION,
    PACKAGE_HINT,
    PACKAGES,
    QUEUE,
    RECOVERY_TIMEOUT,
    STARTUP_TIMEOUT,
    is_package,
)
from tf_dist.core.model.overrides import Override
from tf_dist.core.model.timestamps import parse_duration

_SHOWN: Final = 40


def worker_bound(annotations: Mapping[str, str] | None, key: str) -> int | None:
    """The number in an annotation; None if it is missing or invalid (``check_worker_bounds`` reports that)."""
    return written_number((annotations or {}).get(key, ""), 1, MAX_REPLICAS)


def annotation_path(key: str) -> FieldPath:
    """The path of an annotation."""
    return ("metadata", "annotations", key)


def check_worker_bounds(
    annotations: Mapping[str, str] | None, workers: int | None, where: str, out: FieldErrors
) -> None:
    """Errors for annotations that are not numbers, or bounds that do not include ``workers`` (None: the job
    has none).
    """
    written = [key for key in (MIN_WORKERS, MAX_WORKERS) if key in (annotations or {})]
    for key in written:
        if worker_bound(annotations, key) is None:
            found = (annotations or {})[key][:_SHOWN]
            out.error(
                annotation_path(key),
                f"{found!r} is not a number of workers",
                f'write one from 1 up to {MAX_REPLICAS}: "2"',
            )
    if out.partial or not written:
        return
    least, most = worker_bound(annotations, MIN_WORKERS), worker_bound(annotations, MAX_WORKERS)
    if workers is None:
        out.warn(annotation_path(written[0]), "limits the workers, but the job has none")
    elif least is not None and most is not None and least > most:
        out.error(annotation_path(MIN_WORKERS), f"is {least}, more than {MAX_WORKERS} {most}", "swap the two values")
    elif least is not None and workers < least:
        out.error(
            annotation_path(MIN_WORKERS),
            f"is {least}, but {where} is {workers}",
            f"write {workers} or less, or more replicas",
        )
    elif most is not None and workers > most:
        out.error(
            annotation_path(MAX_WORKERS),
            f"is {most}, but {where} is {workers}",
            f"write {workers} or more, or fewer replicas",
        )


def warn_unused_annotation(annotations: Mapping[str, str] | None, key: str, instead: str, out: FieldErrors) -> None:
    """A warning that this format uses a field instead of this annotation."""
    if key in (annotations or {}):
        out.warn(annotation_path(key), "is not used in this format", f"write {instead}")


def check_limits(document: Document, out: FieldErrors) -> None:
    """Errors for annotations of limits that cannot be read."""
    for key, reads, what, hint in (
        (MAX_DISRUPTIONS, _count, "number of disruptions", 'write one from 0 up: "20"'),
        *(
            (timeout, parse_duration, "duration", "such as 90s, 10m or 1h30m")
            for timeout in (RECOVERY_TIMEOUT, ADMISSION_TIMEOUT, STARTUP_TIMEOUT)
        ),
    ):
        place: FieldPath = ("metadata", "annotations", key)
        said = value_at(document, *map(str, place))
        if isinstance(said, str) and reads(said) is None:
            out.error(place, f"{describe_value(said)} is not a {what}", hint)


def check_evaluator_in_cluster(document: Document, out: FieldErrors) -> None:
    """An error for an annotation about evaluators that is neither true nor false."""
    place = annotation_path(EVALUATOR_IN_CLUSTER)
    said = value_at(document, *map(str, place))
    if isinstance(said, str) and said not in ("true", "false"):
        out.error(place, f"must be true or false, not {describe_value(said)}", 'write "true", or leave it out')


def check_packages(document: Document, out: FieldErrors) -> None:
    """An error for each word of the annotation of packages that is not a package."""
    place = annotation_path(PACKAGES)
    said = value_at(document, *map(str, place))
    for one in said.split() if isinstance(said, str) else ():
        if not is_package(one):
            out.error(place, f"{describe_value(one)} is not a package", PACKAGE_HINT)


def with_limits(job: Job) -> Job:
    """The job with the limits of its annotations; unchanged if it has none."""
    most = _count(job.annotations.get(MAX_DISRUPTIONS, ""))
    if most is not None:
        job = replace(job, run_policy=replace(job.run_policy, max_disruptions=most))
    startup = parse_duration(job.annotations.get(STARTUP_TIMEOUT, ""))
    if startup is not None:
        job = replace(job, run_policy=replace(job.run_policy, startup_timeout=startup))
    recovery = parse_duration(job.annotations.get(RECOVERY_TIMEOUT, ""))
    if recovery is not None:
        job = replace(job, scheduling=replace(job.scheduling, recovery_timeout=recovery))
    waits = parse_duration(job.annotations.get(ADMISSION_TIMEOUT, ""))
    if waits is not None:
        job = replace(job, scheduling=replace(job.scheduling, admission_timeout=waits))
    return job


_POLICIES: Final[Mapping[str, DisruptionPolicy]] = {one.value: one for one in DisruptionPolicy}


def check_disruption_policy(
    said: object, path: FieldPath, out: FieldErrors, *, fallbacks: bool, fallback_name: str = FALLBACK
) -> None:
    """An error for an invalid disruption policy, and for ``fallback`` without fallbacks.

    ``fallback_name``: the setting for fallbacks.
    """
    if said not in _POLICIES:
        found = describe_value(said)
        out.error(path, f"{found} is not a policy for disruptions", suggestion(str(said), _POLICIES))
    elif said == DisruptionPolicy.FALLBACK and not fallbacks:
        out.error(path, "there is no fallback", f'add {fallback_name}, a list such as [{{"workers": 2}}]')


def check_disruption_policies(document: Document, out: FieldErrors) -> None:
    """Errors for the annotations with disruption policies."""
    notes = value_at(document, "metadata", "annotations")
    for key in (ON_EVICTION, ON_PREEMPTION):
        if isinstance(notes, Mapping) and key in notes:
            check_disruption_policy(notes[key], annotation_path(key), out, fallbacks=bool(notes.get(FALLBACK)))


def with_disruption_policies(job: Job) -> Job:
    """The job with the disruption policies of its annotations; unchanged without any."""
    eviction, preemption = (_POLICIES.get(job.annotations.get(key, "")) for key in (ON_EVICTION, ON_PREEMPTION))
    if eviction is None and preemption is None:
        return job
    before = job.run_policy
    policy = replace(
        before, on_eviction=eviction or before.on_eviction, on_preemption=preemption or before.on_preemption
    )
    return replace(job, run_policy=policy)


def with_startup_timeout(document: Any, timeout: str) -> Any:
    """The document with this startup timeout, unless it has one.

    Anything that is not a job document is returned unchanged, because its dialect reports what is wrong with it.
    """
    if not timeout or not isinstance(document, Mapping) or not isinstance(document.get("metadata"), Mapping):
        return document
    metadata: Mapping[str, Any] = document["metadata"]
    annotations = metadata.get("annotations") or {}
    if not isinstance(annotations, Mapping) or STARTUP_TIMEOUT in annotations:
        return document
    return {**document, "metadata": {**metadata, "annotations": {**annotations, STARTUP_TIMEOUT: timeout}}}


def _count(text: str) -> int | None:
    return written_number(text, 0, INT32_MAX)


_GANG_SCHEDULER_PATH: Final[FieldPath] = ("metadata", "annotations", GANG_SCHEDULER)
_GANG_SCHEDULERS: Final[Mapping[str, GangScheduler]] = {one.value: one for one in GangScheduler}


def check_gang_scheduler(document: Document, out: FieldErrors) -> None:
    """An error for an unknown gang scheduler."""
    named = value_at(document, *map(str, _GANG_SCHEDULER_PATH))
    if isinstance(named, str) and named not in _GANG_SCHEDULERS:
        out.error(
            _GANG_SCHEDULER_PATH,
            f"{named!r} is not a gang scheduler that tf-dist knows",
            suggestion(named, _GANG_SCHEDULERS),
        )


def with_gang_scheduler(job: Job) -> Job:
    """The job with the gang scheduler that it names; unchanged if it names none."""
    named = _GANG_SCHEDULERS.get(job.annotations.get(GANG_SCHEDULER, ""))
    return job if named is None else replace(job, scheduling=replace(job.scheduling, gang=named))


_QUEUE_PATH: Final[FieldPath] = ("metadata", "labels", QUEUE)


def check_queue(document: Document, out: FieldErrors) -> None:
    """An error where label and field name different queues. ``default`` may have come from a server's defaults."""
    named = value_at(document, *map(str, _QUEUE_PATH))
    for field in filter(None, (layout.queue for layout in LAYOUTS.values())):
        other = value_at(document, *map(str, field))
        if named and other not in (None, "", "default", named):
            out.error(
                _QUEUE_PATH, f"names the queue {named}, and {'.'.join(map(str, field))} names {other}", "keep one"
            )


def with_queue(job: Job) -> Job:
    """The job in the queue that its label names; unchanged if it has none."""
    named = job.labels.get(QUEUE)
    return replace(job, scheduling=replace(job.scheduling, queue=named)) if named else job


def queue_overrides(document: Any, dialect: Dialect, queue: str) -> tuple[Override, ...]:
    """Overrides that put a job into a queue: the format's field, and the label if it is set or is the only way."""
    field = LAYOUTS[dialect].queue
    labelled = field is None or value_at(document, *map(str, _QUEUE_PATH)) is not None
    return (
        *((Override(field, queue),) if field is not None else ()),
        *((Override(_QUEUE_PATH, queue),) if labelled else ()),
    )
