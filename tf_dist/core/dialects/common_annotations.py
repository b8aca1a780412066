"""Labels and annotations that mean the same in every format: worker bounds, limits, gang scheduler, queue.

In v1alpha1, the fields min-instance and max-instance replace the annotations ``tf-dist.dev/min-workers`` and
``tf-dist.dev/max-workers``. A Volcano task also has its own minAvailable.

``schedulerName`` selects the scheduler that binds the pods, not the gang scheduler. Many Volcano Jobs name volcano in
``schedulerName`` only because every example does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

from tf_dist.core.dialects.common_schema import INT32_MAX, LAYOUTS, written_number
from tf_dist.core.dialects.field_errors import FieldErrors, describe_value
from tf_dist.core.model.fieldpath import FieldPath, mapping, suggestion, text, value_at
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


def worker_bound(annotations: Mapping[str, str] | None, key: str) -> int | None:
    """The number in an annotation; None if it is missing or invalid (which ``check_worker_bounds`` reports)."""
    return written_number((annotations or {}).get(key, ""), 1, MAX_REPLICAS)


def annotation_path(key: str) -> FieldPath:
    """The path of an annotation."""
    return ("metadata", "annotations", key)


def check_worker_bounds(
    annotations: Mapping[str, str] | None, workers: int | None, where: str, out: FieldErrors
) -> None:
    """Errors for annotations that are not numbers, and for bounds that do not include the number of workers.

    ``workers``: None: the job has no workers.
    """
    annotations = annotations or {}
    written = [key for key in (MIN_WORKERS, MAX_WORKERS) if key in annotations]
    for key in written:
        if worker_bound(annotations, key) is None:
            message = f"{annotations[key][:40]!r} is not a number of workers"
            out.error(annotation_path(key), message, f'write one from 1 up to {MAX_REPLICAS}: "2"')
    if out.partial or not written:
        return
    least, most = worker_bound(annotations, MIN_WORKERS), worker_bound(annotations, MAX_WORKERS)
    if workers is None:
        out.warn(annotation_path(written[0]), "limits the workers, but the job has none")
    elif least is not None and most is not None and least > most:
        out.error(annotation_path(MIN_WORKERS), f"is {least}, more than {MAX_WORKERS} {most}", "swap the two values")
    elif least is not None and workers < least:
        hint = f"write {workers} or less, or more replicas"
        out.error(annotation_path(MIN_WORKERS), f"is {least}, but {where} is {workers}", hint)
    elif most is not None and workers > most:
        hint = f"write {workers} or more, or fewer replicas"
        out.error(annotation_path(MAX_WORKERS), f"is {most}, but {where} is {workers}", hint)


def warn_unused_annotation(annotations: Mapping[str, str] | None, key: str, instead: str, out: FieldErrors) -> None:
    """A warning that this format uses a field instead of this annotation."""
    if key in (annotations or {}):
        out.warn(annotation_path(key), "is not used in this format", f"write {instead}")


class _Setting(NamedTuple):
    """An annotation that sets a field of a job of any format."""

    part: Literal["run_policy", "scheduling"]
    """The part of the job."""
    field: str
    read: Callable[[str], Any]
    """The value of a text; None if the text is invalid."""
    what: str
    """The words for a valid text."""
    hint: str = "such as 90s, 10m or 1h30m"


_POLICIES: Final[Mapping[str, DisruptionPolicy]] = {one.value: one for one in DisruptionPolicy}
_GANG_SCHEDULERS: Final[Mapping[str, GangScheduler]] = {one.value: one for one in GangScheduler}
_SETTINGS: Final[Mapping[str, _Setting]] = {
    MAX_DISRUPTIONS: _Setting(
        "run_policy",
        "max_disruptions",
        lambda said: written_number(said, 0, INT32_MAX),
        "number of disruptions",
        'write one from 0 up: "20"',
    ),
    STARTUP_TIMEOUT: _Setting("run_policy", "startup_timeout", parse_duration, "duration"),
    RECOVERY_TIMEOUT: _Setting("scheduling", "recovery_timeout", parse_duration, "duration"),
    ADMISSION_TIMEOUT: _Setting("scheduling", "admission_timeout", parse_duration, "duration"),
    GANG_SCHEDULER: _Setting(
        "scheduling",
        "gang",
        _GANG_SCHEDULERS.get,
        "gang scheduler that tf-dist knows",
        hint="",
    ),
    ON_EVICTION: _Setting("run_policy", "on_eviction", _POLICIES.get, "policy for disruptions"),
    ON_PREEMPTION: _Setting("run_policy", "on_preemption", _POLICIES.get, "policy for disruptions"),
}


def check_annotations(document: Document, out: FieldErrors) -> None:
    """Errors for invalid values of the labels and annotations that all formats share."""
    annotations = mapping(value_at(document, "metadata", "annotations"))
    for key, setting in _SETTINGS.items():
        said = annotations.get(key)
        if not isinstance(said, str):
            continue
        if key in (ON_EVICTION, ON_PREEMPTION):
            check_disruption_policy(said, annotation_path(key), out, fallbacks=bool(annotations.get(FALLBACK)))
        elif setting.read(said) is None:
            hint = setting.hint or suggestion(said, _GANG_SCHEDULERS)
            out.error(annotation_path(key), f"{describe_value(said)} is not a {setting.what}", hint)
    said = annotations.get(EVALUATOR_IN_CLUSTER)
    if isinstance(said, str) and said not in ("true", "false"):
        message = f"must be true or false, not {describe_value(said)}"
        out.error(annotation_path(EVALUATOR_IN_CLUSTER), message, 'write "true", or leave it out')
    for one in text(annotations.get(PACKAGES)).split():
        if not is_package(one):
            out.error(annotation_path(PACKAGES), f"{describe_value(one)} is not a package", PACKAGE_HINT)
    _check_queue(document, out)


def with_annotations(job: Job) -> Job:
    """The job with the settings in its labels and annotations; unchanged if they set nothing."""
    parts: dict[str, dict[str, Any]] = {"run_policy": {}, "scheduling": {}}
    for key in _SETTINGS.keys() & job.annotations.keys():
        setting = _SETTINGS[key]
        if (value := setting.read(job.annotations[key])) is not None:
            parts[setting.part][setting.field] = value
    if queue := job.labels.get(QUEUE):
        parts["scheduling"]["queue"] = queue
    changed = {part: replace(getattr(job, part), **fields) for part, fields in parts.items() if fields}
    return replace(job, **changed) if changed else job


def check_disruption_policy(
    said: object, path: FieldPath, out: FieldErrors, *, fallbacks: bool, fallback_name: str = FALLBACK
) -> None:
    """An error for an invalid disruption policy, and for ``fallback`` without fallbacks.

    ``fallback_name``: the name of the setting for fallbacks.
    """
    if said not in list(_POLICIES):  # a list is not hashable
        found = describe_value(said)
        out.error(path, f"{found} is not a policy for disruptions", suggestion(str(said), _POLICIES))
    elif said == DisruptionPolicy.FALLBACK and not fallbacks:
        out.error(path, "there is no fallback", f'add {fallback_name}, a list such as [{{"workers": 2}}]')


def with_startup_timeout(document: Any, timeout: str) -> Any:
    """The document with this startup timeout, unless it already has a startup timeout.

    Other values than job documents are returned unchanged, because the dialect reports their errors.
    """
    if not timeout or not isinstance(document, Mapping) or not isinstance(document.get("metadata"), Mapping):
        return document
    metadata: Mapping[str, Any] = document["metadata"]
    annotations = metadata.get("annotations") or {}
    if not isinstance(annotations, Mapping) or STARTUP_TIMEOUT in annotations:
        return document
    return {**document, "metadata": {**metadata, "annotations": {**annotations, STARTUP_TIMEOUT: timeout}}}


_QUEUE_PATH: Final[FieldPath] = ("metadata", "labels", QUEUE)


def _check_queue(document: Document, out: FieldErrors) -> None:
    """Add an error if label and field name different queues. A ``default`` may come from the defaults of a server."""
    named = value_at(document, *map(str, _QUEUE_PATH))
    for field in filter(None, (layout.queue for layout in LAYOUTS.values())):
        other = value_at(document, *map(str, field))
        if named and other not in (None, "", "default", named):
            out.error(
                _QUEUE_PATH, f"names the queue {named}, and {'.'.join(map(str, field))} names {other}", "keep one"
            )


def queue_overrides(document: Any, dialect: Dialect, queue: str) -> tuple[Override, ...]:
    """Overrides of a job's queue: the format's field, and the label if it is set or if the format has no field."""
    field = LAYOUTS[dialect].queue
    labelled = field is None or value_at(document, *map(str, _QUEUE_PATH)) is not None
    return (
        *((Override(field, queue),) if field is not None else ()),
        *((Override(_QUEUE_PATH, queue),) if labelled else ()),
    )
