"""Parsing of job documents: strict and with all problems for files, tolerant and fast for stored objects."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from tf_dist.core.dialects import common_annotations, kubeflow_v1, placeholders, volcano
from tf_dist.core.dialects.common_schema import (
    LAYOUTS,
    SUSPEND_ANNOTATION,
    RawTemplate,
    raw_templates,
    template_containers,
)
from tf_dist.core.dialects.environment import advise_references, check_environment, check_words
from tf_dist.core.dialects.field_errors import PROBLEM_LIMIT, FieldErrors, report_schema_errors
from tf_dist.core.dialects.pod_template import check_frame, check_template
from tf_dist.core.dialects.registry import (
    FORMATS,
    advise_version,
    check_layout,
    check_other_layout,
    current,
    dialect_of,
    spec_dialect,
)
from tf_dist.core.model.fieldpath import FieldPath, format_field_path, list_items, mapping, text, value_at
from tf_dist.core.model.job import MAX_REPLICAS, Dialect, Document, Job, TFConfigStyle
from tf_dist.core.model.names import SYSTEM_CLASSES
from tf_dist.errors import InvalidJob, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A parsed document: the job, the document with the original system's defaults, and warnings."""

    job: Job
    document: dict[str, Any]
    warnings: tuple[Problem, ...] = ()


def parse(document: Any, *, strict: bool = True, limit: int | None = None) -> Parsed:
    """Parse a user's document. Raises InvalidJob with all errors.

    ``strict``: unknown keys are errors. Otherwise they are warnings, because a cluster ignores them. ``limit``: see
    ``FieldErrors``. The document is never changed. ``Parsed.document`` and the job share unchanged parts with it.
    """
    try:
        return _parsed(document, FieldErrors(strict=strict, limit=limit))
    except InvalidJob as error:
        raise InvalidJob(dict.fromkeys(placeholders.explained(document, error.problems))) from None


def _parsed(document: Any, out: FieldErrors) -> Parsed:
    dialect = dialect_of(document)
    advise_version(document, out)
    document = current(document)
    dialect = check_layout(document, dialect, out)
    form = FORMATS[dialect]
    _check(dict(document), dialect, out)
    _check_texts(document, out)
    out.raise_errors()
    ready = form.defaulted(document)
    job = common_annotations.with_annotations(form.build(_valid(ready, form.model, out.limit)))
    check_environment(job, out)
    for raw in raw_templates(document, job.dialect):
        for place, container in _containers(raw.template):
            check_words(container, (*raw.loc, *place), out)
    out.raise_errors()
    _advise(job, document, out)
    return Parsed(job=job, document=ready, warnings=out.warnings)


def _advise(job: Job, document: Document, out: FieldErrors) -> None:
    """Warn about settings that an API server accepts, but with which pods do not run as intended."""
    of_job = filter(None, (layout.priority_class for layout in LAYOUTS.values()))
    classes: list[tuple[FieldPath, object]] = [(loc, value_at(document, *map(str, loc))) for loc in of_job]
    for raw in raw_templates(document, job.dialect):
        classes.append(((*raw.loc, "spec", "priorityClassName"), value_at(raw.template, "spec", "priorityClassName")))
        for place, container in template_containers(raw.template):
            named = [value_at(entry, "name") for entry in list_items(container.get("env"))]
            # The user's variable precedes tf-dist's variable in the environment, so the latter takes effect.
            if job.tf_config is not TFConfigStyle.NONE and "TF_CONFIG" in named:
                out.warn((*raw.loc, *place, "env"), "tf-dist sets TF_CONFIG, and this one is overridden", "remove it")
        for place, container in _containers(raw.template):
            if out.full:
                return
            advise_references(job, container, (*raw.loc, *place), out)
            if found := placeholders.find_placeholder(text(container.get("image"))):
                loc = (*raw.loc, *place, "image")
                said = placeholders.placeholder_problem(format_field_path(loc), found)
                out.warn(loc, said.message, said.hint)
    for loc, name in classes:
        if text(name).startswith(SYSTEM_CLASSES):  # for components of the cluster: admission refuses these classes
            message = f'priority class "{name}" is for components of the cluster: the job waits forever'
            out.warn(loc, message, "name another priority class, or none")


def _containers(template: object) -> Iterator[tuple[FieldPath, Mapping[str, Any]]]:
    """The init containers and containers of a template, with their places."""
    yield from template_containers(template, "initContainers")
    yield from template_containers(template)


def read(stored: Document) -> Job:
    """The job of an object of a cluster; InvalidJob if it is invalid.

    Unknown keys are ignored (the server may be newer), pod templates are checked only in outline, and the layout of a
    TFJob decides its version. The function is fast enough to read every job in every pass.
    """
    stored = current(stored)
    dialect = spec_dialect(stored, dialect_of(stored))
    form = FORMATS[dialect]
    ready = form.defaulted(stored)
    model = _valid(ready, form.model, PROBLEM_LIMIT)
    out = FieldErrors(advice=False, limit=PROBLEM_LIMIT)
    check_other_layout(stored, dialect, out)
    for raw in raw_templates(ready, dialect):
        check_frame(raw.template, raw.loc, out)
    _check_size(raw_templates(ready, dialect), out)
    form.check(model, out)
    common_annotations.check_annotations(ready, out)
    out.raise_errors()
    job = common_annotations.with_annotations(form.build(model))
    check_environment(job, out)
    out.raise_errors()
    return job


def as_written(stored: Document) -> dict[str, Any]:
    """An object of a cluster with the apiVersion of its layout, which the server may have replaced.

    Raises InvalidJob for other kinds.
    """
    return {**stored, "apiVersion": spec_dialect(stored, dialect_of(stored)).value}


def update_problems(old: Document, new: Document) -> tuple[Problem, ...]:
    """The forbidden changes of an update of a job, by path. Defaults count as written."""
    rules = volcano.update_problems if new.get("apiVersion") == Dialect.VOLCANO else kubeflow_v1.update_problems
    return rules(old, new)


def defaulted(document: Document) -> dict[str, Any]:
    """A copy of the document with the defaults of the original system. Unchanged parts are shared."""
    return FORMATS[spec_dialect(document, dialect_of(document))].defaulted(document)


def suspend_patch(document: Document, suspend: bool) -> dict[str, Any]:
    """The JSON merge patch that suspends or resumes a job: v1 has a field for it, other formats use an annotation."""
    annotation = {"metadata": {"annotations": {SUSPEND_ANNOTATION: "true" if suspend else None}}}
    if spec_dialect(document, dialect_of(document)) is not Dialect.TFJOB_V1:
        return annotation
    field = {"spec": {"runPolicy": {"suspend": suspend}}}
    annotated = SUSPEND_ANNOTATION in mapping(value_at(document, "metadata", "annotations"))
    return {**annotation, **field} if annotated and not suspend else field


def _valid(document: dict[str, Any], model: type[BaseModel], limit: int | None) -> BaseModel:
    """The validated document, without unknown keys."""
    try:
        return model.model_validate(document, extra="ignore")
    except ValidationError as error:
        out = FieldErrors(limit=limit)
        report_schema_errors(error, model, out)
        out.raise_errors()
        raise


def _check(document: dict[str, Any], dialect: Dialect, out: FieldErrors) -> None:
    """Check keys and types, then pod templates, then relations between keys."""
    form = FORMATS[dialect]
    wrong: list[FieldPath] = []
    model: BaseModel | None = None
    try:
        model = form.model.model_validate(document)
    except ValidationError as error:
        wrong = report_schema_errors(error, form.model, out)
    for raw in raw_templates(document, dialect):
        check_template(raw.template, raw.loc, out, replicas=raw.replicas, containers_optional=raw.server)
    _check_size(raw_templates(document, dialect), out)
    if model is None:
        # Without the invalid values, so that the other parts can be checked.
        model = _rest(functools.reduce(_with, filter(None, wrong), document), form.model)
        if model is None:
            return
    form.check(model, out)
    common_annotations.check_annotations(document, out)


def _rest(document: dict[str, Any], model: type[BaseModel]) -> BaseModel | None:
    """The part of a document that can be checked, with empty mappings for missing keys; None if too much is missing."""
    for _ in range(2):
        try:
            return model.model_validate(document, extra="ignore")
        except ValidationError as error:
            lacking = [one["loc"] for one in error.errors(include_url=False) if one["type"] == "missing"]
            document = functools.reduce(lambda rest, loc: _with(rest, loc, {}), lacking, document)
    return None


def _with(value: Any, loc: Sequence[str | int], new: Any = ...) -> Any:
    """A copy with a new value at a path of a document, or without the value there (``...``)."""
    key, deeper = loc[0], loc[1:]
    if isinstance(value, list) and isinstance(key, int) and key < len(value) and deeper:
        return [*value[:key], _with(value[key], deeper, new), *value[key + 1 :]]
    if not isinstance(value, dict) or (deeper and key not in value):
        return value
    if deeper:
        return {**value, key: _with(value[key], deeper, new)}
    others = {name: kept for name, kept in value.items() if name != key}
    return others if new is ... else {**others, key: new}


def _check_texts(document: Document, out: FieldErrors) -> None:
    """Check that all texts can be sent. Bytes of a command line or path that are not UTF-8 become lone surrogates."""
    try:
        json.dumps(document, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        for loc in _unsendable((), document):
            out.error(loc, "is not text in UTF-8", "write it in UTF-8")
    except (TypeError, ValueError, RecursionError):
        return  # other checks report what is not JSON


def _unsendable(loc: FieldPath, value: Any) -> Iterator[FieldPath]:
    """The places of all texts that cannot be encoded, including keys."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            place = (*loc, str(key).encode(errors="backslashreplace").decode())
            yield from _unsendable(place, key)
            yield from _unsendable(place, part)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _unsendable((*loc, index), part)
    elif isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            yield loc


def _check_size(templates: Iterable[RawTemplate], out: FieldErrors) -> None:
    """Check that all templates together do not have more than the maximum number of replicas."""
    total = 0
    for raw in templates:
        total += raw.replicas if 0 < raw.replicas <= MAX_REPLICAS else 0
        if total > MAX_REPLICAS:
            out.error(raw.loc[:-1], f"with it the job has more than {MAX_REPLICAS} pods", "make it several jobs")
            return
