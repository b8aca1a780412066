"""From a document to a job: strictly, with every problem, for files; tolerantly and fast for objects of a cluster."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from tf_dist.core.dialects import accelerators as devices
from tf_dist.core.dialects import gang_scheduler, limits, queue_label
from tf_dist.core.dialects.formats import FORMATS, Format, check_layout, check_other_layout, dialect_of, laid_out
from tf_dist.core.dialects.pod_template import check_frame, check_template
from tf_dist.core.dialects.problems import Findings, Loc, report
from tf_dist.core.dialects.shape import SUSPEND_ANNOTATION, RawTemplate, containers
from tf_dist.core.model import MOST_REPLICAS, Dialect, Document, Job, TFConfigStyle
from tf_dist.core.untyped import at, items, mapping
from tf_dist.errors import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A document that was read: the job, the document with the original system's defaults, and what to tell."""

    job: Job
    document: dict[str, Any]
    warnings: tuple[Problem, ...] = ()


def parse(document: Any, *, accelerators: Mapping[str, Any] | None = None) -> Parsed:
    """Read a user's document; InvalidJob holds everything that is wrong with it.

    Documents are never changed; what the defaults leave alone, ``Parsed.document`` and the job share with the original.
    ``accelerators``: the v1alpha1 controller's configuration of that name, for templates that ask for such a device.
    """
    out = Findings()
    dialect = check_layout(document, dialect_of(document), out)
    form = FORMATS[dialect]
    _check(dict(document), form, out)
    out.raise_errors()
    ready = form.defaulted(document)
    if accelerators and dialect is Dialect.TFJOB_V1ALPHA1:
        ready = devices.apply(ready, accelerators)
    job = _annotated(form.build(_valid(ready, form.model)))
    _advise_tf_config(job, form.templates(document), out)
    return Parsed(job=job, document=ready, warnings=out.warnings)


def _advise_tf_config(job: Job, templates: Iterable[RawTemplate], out: Findings) -> None:
    """A TF_CONFIG of the user's own stands before ours in the environment, so ours is the one that is seen."""
    if job.tf_config is TFConfigStyle.NONE:
        return
    for raw in templates:
        for place, container in containers(raw.template):
            if any(at(entry, "name") == "TF_CONFIG" for entry in items(container.get("env"))):
                out.warn((*raw.loc, *place, "env"), "tf-dist sets TF_CONFIG, and this one is overridden", "remove it")


def read(stored: Document) -> Job:
    """The job an object of a cluster means; InvalidJob if it can be none.

    Unknown keys are passed over (the server may be newer than we are), of pod templates only the frame is checked, and
    TFJobs are read by their layout. Cheap enough for every job in every pass.
    """
    dialect = laid_out(stored, dialect_of(stored))
    form = FORMATS[dialect]
    ready = form.defaulted(stored)
    model = _valid(ready, form.model)
    out = Findings(advice=False)
    check_other_layout(stored, dialect, out)
    for raw in form.templates(ready):
        check_frame(raw.template, raw.loc, out)
    _check_size(form.templates(ready), out)
    form.check(model, out)
    _check_annotations(ready, out)
    out.raise_errors()
    return _annotated(form.build(model))


def _check_annotations(document: Document, out: Findings) -> None:
    """What every format says in the same labels and annotations."""
    gang_scheduler.check(document, out)
    queue_label.check(document, out)
    limits.check(document, out)


def _annotated(job: Job) -> Job:
    return limits.limited(queue_label.queued(gang_scheduler.chosen(job)))


def as_written(stored: Document) -> dict[str, Any]:
    """An object of a cluster under the apiVersion of its layout, which the server may have exchanged; InvalidJob."""
    return {**stored, "apiVersion": laid_out(stored, dialect_of(stored)).value}


def defaulted(document: Document) -> dict[str, Any]:
    """The document with the defaults of the original system; never in place, and unchanged parts are shared."""
    return FORMATS[laid_out(document, dialect_of(document))].defaulted(document)


def suspend_patch(document: Document, suspend: bool) -> dict[str, Any]:
    """The JSON merge patch that suspends a job or lets it go on: v1 has a field for it, the others an annotation."""
    annotation = {"metadata": {"annotations": {SUSPEND_ANNOTATION: "true" if suspend else None}}}
    if laid_out(document, dialect_of(document)) is not Dialect.TFJOB_V1:
        return annotation
    field = {"spec": {"runPolicy": {"suspend": suspend}}}
    annotated = SUSPEND_ANNOTATION in mapping(at(document, "metadata", "annotations"))
    return {**annotation, **field} if annotated and not suspend else field


def _valid(document: dict[str, Any], model: type[BaseModel]) -> BaseModel:
    """The document in its shape, unknown keys left aside."""
    try:
        return model.model_validate(document, extra="ignore")
    except ValidationError as error:
        out = Findings()
        report(error, model, out)
        out.raise_errors()
        raise


def _check(document: dict[str, Any], form: Format, out: Findings) -> None:
    """Everything that can be wrong: keys and types, then pod templates, then what the keys say together."""
    wrong: list[Loc] = []
    try:
        model = form.model.model_validate(document)
    except ValidationError as error:
        wrong = report(error, form.model, out)
    for raw in form.templates(document):
        check_template(raw.template, raw.loc, out, replicas=raw.replicas, containers_optional=raw.server)
    _check_size(form.templates(document), out)
    if wrong:
        remaining = functools.reduce(_without, filter(None, wrong), document)
        try:
            model = form.model.model_validate(remaining, extra="ignore")
        except ValidationError:
            return
    form.check(model, out)
    _check_annotations(document, out)


def _check_size(templates: Iterable[RawTemplate], out: Findings) -> None:
    """Together they are no more than one type may have."""
    total = 0
    for raw in templates:
        total += raw.replicas if 0 < raw.replicas <= MOST_REPLICAS else 0
        if total > MOST_REPLICAS:
            out.error(raw.loc[:-1], f"with it the job has more than {MOST_REPLICAS} pods", "make it several jobs")
            return


def _without(value: Any, loc: Sequence[str | int]) -> Any:
    """A copy without what could not be read, so that what the rest says can still be checked."""
    key, deeper = loc[0], loc[1:]
    if isinstance(value, dict) and key in value:
        if not deeper:
            return {name: kept for name, kept in value.items() if name != key}
        return {**value, key: _without(value[key], deeper)}
    if isinstance(value, list) and isinstance(key, int) and key < len(value) and deeper:
        return [*value[:key], _without(value[key], deeper), *value[key + 1 :]]
    return value
