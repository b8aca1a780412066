"""Fallbacks of a job: its alternatives if it is not admitted in time, or loses its admission.

``tf-dist.dev/fallback`` contains a list as JSON. Each entry describes a job: the document with the changes of the
entry, which have the names of the arguments of the operator and the step. The gang is queued once, with all fallbacks
(``gang/gang_builder``). ``parse`` and ``read`` add fallbacks to the functions of ``parsing``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from tf_dist.core.dialects import parsing
from tf_dist.core.dialects.common_annotations import annotation_path, check_disruption_policy
from tf_dist.core.dialects.common_schema import LAYOUTS, written_number
from tf_dist.core.dialects.field_errors import PROBLEM_LIMIT, FieldErrors, describe_value
from tf_dist.core.dialects.registry import current, dialect_of, spec_dialect
from tf_dist.core.dialects.step_overrides import StepOverrides, apply_step_overrides, replica_paths
from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import FieldPath, format_field_path, suggestion, text, value_at
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import MAX_REPLICAS, Dialect, DisruptionPolicy, Document, Job, Role
from tf_dist.core.model.overrides import Override, apply_overrides
from tf_dist.core.model.timestamps import duration_text
from tf_dist.errors import InvalidJob, Problem

MAX_FALLBACKS: Final = 8
_PATH: Final = annotation_path(names.FALLBACK)
_EXAMPLE: Final = 'write [{"workers": 2}, {"queue_name": "spot"}]'
_Open = Callable[[object], bool]


def _is_count(value: object) -> bool:
    return type(value) in (int, str) and written_number(str(value), 0, MAX_REPLICAS) is not None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_selector(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(label, str | None) for key, label in value.items()
    )


def _is_tolerations(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, Mapping) for one in value)


def _is_resources(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and type(amount) in (str, int, float) for key, amount in value.items()
    )


# By the name of the argument: the field of ``StepOverrides``, the check of a value, the words for it, and an example.
_CHANGES: Final[Mapping[str, tuple[str, Callable[[object], bool], str, str]]] = {
    "workers": ("workers", _is_count, "a number of workers", "write 4"),
    "ps": ("ps", _is_count, "a number of parameter servers", "write 1"),
    "queue_name": ("queue", _is_name, "the name of a queue", 'write "spot"'),
    "priority_class": ("priority_class", _is_name, "the name of a priority class", 'write "low"'),
    "image": ("image", _is_name, "an image", 'write "registry/image:tag"'),
    "node_selector": ("node_selector", _is_selector, "a selection of nodes", 'write {"pool": "spot"}'),
    "tolerations": ("tolerations", _is_tolerations, "a list of tolerations", 'write [{"key": "spot"}]'),
    "resources": ("resources", _is_resources, "a list of resources", 'write {"nvidia.com/gpu": 4}'),
}


def check_fallbacks(given: object, path: FieldPath, out: FieldErrors, open_: _Open = lambda _: False) -> None:
    """Errors for an invalid list of fallbacks. ``open_``: whether a value is known only later (a template)."""
    if open_(given):
        return
    if not isinstance(given, list | tuple):
        out.error(path, f"{describe_value(given)} is not a list of fallbacks", _EXAMPLE)
        return
    if not given:
        out.error(path, "the list is empty", _EXAMPLE)
    if len(given) > MAX_FALLBACKS:
        message = f"there are {len(given)} fallbacks, and no more than {MAX_FALLBACKS} are tried"
        out.error(path, message, "leave some out")
    for index, entry in enumerate(given):
        if not isinstance(entry, Mapping) or not entry:
            out.error((*path, index), f"{describe_value(entry)} changes nothing", _EXAMPLE)
            continue
        for key, value in entry.items():
            place = (*path, index, str(key))
            if key not in _CHANGES:
                out.error(place, "is not a setting that a fallback can change", suggestion(str(key), _CHANGES))
            elif not open_(value) and not _CHANGES[key][1](value):
                out.error(place, f"{describe_value(value)} is not {_CHANGES[key][2]}", _CHANGES[key][3])


def policy_annotations(
    *,
    fallback: object = None,
    on_eviction: object = None,
    on_preemption: object = None,
    admission_timeout: object = None,
    has_fallbacks: bool = False,
    open_: _Open = lambda _: False,
    spelling: Callable[[str], str] = str,
) -> dict[str, str]:
    """The annotations for these arguments of an operator or a step. Raises InvalidJob with all problems.

    ``admission_timeout``: seconds, or a text such as ``10m`` (None: not given). With fallbacks, it is a setting of the
    job, otherwise only of the client. ``has_fallbacks``: the document has fallbacks. ``open_``: whether a value is
    known only later. ``spelling``: an argument's name as its author writes it (``--on-eviction``), for messages.
    """
    out = FieldErrors()
    found: dict[str, str] = {}
    if fallback is not None:
        check_fallbacks(fallback, (spelling("fallback"),), out, open_)
        found[names.FALLBACK] = fallback if isinstance(fallback, str) else json.dumps(fallback, default=str)
    for key, name, said in (
        (names.ON_EVICTION, "on_eviction", on_eviction),
        (names.ON_PREEMPTION, "on_preemption", on_preemption),
    ):
        if said is None:
            continue
        found[key] = str(said)
        if not open_(said):
            possible, spelled = bool(fallback) or has_fallbacks, spelling("fallback")
            check_disruption_policy(said, (spelling(name),), out, fallbacks=possible, fallback_name=spelled)
    tried = DisruptionPolicy.FALLBACK in (on_eviction, on_preemption)
    if fallback is not None and admission_timeout is None and not tried:
        hint = f'give {spelling("admission_timeout")} as well, or {spelling("on_eviction")}="fallback"'
        out.error((spelling("fallback"),), "nothing sets when it is tried", hint)
    waits = duration_text(admission_timeout)
    later = open_(admission_timeout) or (isinstance(admission_timeout, str) and "{{" in admission_timeout)
    if admission_timeout is not None and waits is None and not later:
        what = f"{describe_value(admission_timeout)} is not a duration"
        out.error((spelling("admission_timeout"),), what, "such as 90s, 10m or 1h30m")
    if (fallback is not None or has_fallbacks) and admission_timeout is not None:
        found[names.ADMISSION_TIMEOUT] = waits or str(admission_timeout)
    out.raise_errors()
    return found


def parse(document: Any, *, strict: bool = True, limit: int | None = None) -> parsing.Parsed:
    """``parsing.parse`` with fallbacks. Problems of fallbacks are part of the list."""
    try:
        found = parsing.parse(document, strict=strict, limit=limit)
    except InvalidJob as error:
        out = FieldErrors(limit=limit)
        with suppress(InvalidJob):  # raised at the limit
            _entries(text(value_at(document, "metadata", "annotations", names.FALLBACK)), out)
        raise InvalidJob([*error.problems, *out.errors]) from error

    def of(changed: Document) -> Job:
        return parsing.parse(changed, strict=False, limit=limit).job

    job = _with_fallbacks(found.job, document, of, limit)
    return replace(found, job=job, warnings=(*found.warnings, *_advice(job)))


def read(stored: Document) -> Job:
    """``parsing.read`` with fallbacks."""
    return _with_fallbacks(parsing.read(stored), stored, parsing.read, PROBLEM_LIMIT)


def _advice(job: Job) -> Iterator[Problem]:
    policy = job.run_policy
    tried = DisruptionPolicy.FALLBACK in (policy.on_eviction, policy.on_preemption)
    if job.fallbacks and job.scheduling.admission_timeout is None and not tried:
        hint = f"add {names.ADMISSION_TIMEOUT}: 10m, or {names.ON_EVICTION}: fallback"
        yield Problem(format_field_path(_PATH), "nothing sets when a fallback is tried", hint)
    if not job.fallbacks and job.scheduling.admission_timeout is not None:
        path = format_field_path(annotation_path(names.ADMISSION_TIMEOUT))
        hint = f"add {names.FALLBACK}, or give the limit to the client that waits: admission_timeout"
        yield Problem(path, "sets when fallbacks are tried, but there are none", hint)


def _with_fallbacks(job: Job, document: Document, of: Callable[[Document], Job], limit: int | None) -> Job:
    written = job.annotations.get(names.FALLBACK)
    if not written:
        return job
    out = FieldErrors(limit=limit)
    entries = _entries(written, out)
    if job.scheduling.gang not in (None, GangScheduler.BUILTIN):
        hint = f"remove it, or {names.GANG_SCHEDULER}"
        out.error(_PATH, f"only tf-dist's own admission tries fallbacks, but {job.scheduling.gang} decides", hint)
    out.raise_errors()
    jobs: list[Job] = []
    for index, entry in enumerate(entries):
        try:
            jobs.append(of(_changed(current(document), job, entry)))
        except InvalidJob as error:
            where = format_field_path((*_PATH, index))
            for one in error.problems:
                place = f"{one.path}: " if one.path and one.path != where else ""
                out.error((*_PATH, index), f"with it, {place}{one.message}", one.hint)
    out.raise_errors()
    return replace(job, fallbacks=tuple(jobs))


def _entries(written: str, out: FieldErrors) -> list[Mapping[str, Any]]:
    if not written:
        return []
    try:
        given = json.loads(written)
    except (ValueError, RecursionError) as error:
        out.error(_PATH, f"cannot be read as JSON: {error}", _EXAMPLE)
        return []
    check_fallbacks(given, _PATH, out)
    return [] if out.errors else list(given)


def _changed(document: Document, job: Job, entry: Mapping[str, Any]) -> Document:
    """The document with the changes of a fallback, and with minimums that do not exceed the replicas."""
    changes: dict[str, Any] = {_CHANGES[key][0]: value for key, value in entry.items()}
    for count in ("workers", "ps"):
        if count in changes:
            changes[count] = int(changes[count])
    found = apply_step_overrides(document, StepOverrides(**changes))
    return dict(apply_overrides(found, _lowered(found, job, changes)))


def _lowered(document: Document, job: Job, changes: Mapping[str, Any]) -> Iterator[Override]:
    """The minimums of the document that exceed the remaining replicas."""
    dialect = spec_dialect(document, dialect_of(document))
    total = 0
    for spec, place in zip(job.replica_specs, replica_paths(document, dialect, job), strict=True):
        count = changes.get({Role.WORKER: "workers", Role.PS: "ps"}.get(spec.role, ""), spec.replicas)
        total += count
        if dialect is Dialect.VOLCANO and spec.min_available is not None and spec.min_available > count:
            yield Override((*place, "minAvailable"), count)
    for path in LAYOUTS[dialect].minimums:
        stated = value_at(document, *map(str, path))
        if isinstance(stated, int) and stated > total:
            yield Override(path, total)
