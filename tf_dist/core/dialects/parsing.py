"""From a document to a job: strictly, with every problem, for files; tolerantly and fast for stored objects.

For each resource a ``tensorflow`` container asks for, the configured host volumes are mounted and variables set.
Device plugins have made this obsolete; clusters that predate them still need it. Applying it twice changes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from tf_dist.core.api.fieldpath import list_items, mapping, value_at
from tf_dist.core.api.job import MAX_REPLICAS, Dialect, Document, Job, TFConfigStyle
from tf_dist.core.dialects import common_annotations
from tf_dist.core.dialects.common_schema import (
    SUSPEND_ANNOTATION,
    TF_CONTAINER,
    RawTemplate,
    SchemaModel,
    template_containers,
)
from tf_dist.core.dialects.field_errors import (
    FieldErrors,
    FieldLocation,
    describe_value,
    format_location,
    report_schema_errors,
)
from tf_dist.core.dialects.pod_template import check_frame, check_template
from tf_dist.core.dialects.registry import FORMATS, Format, check_layout, check_other_layout, dialect_of, spec_dialect
from tf_dist.errors import InvalidJob, Problem


class HostVolume(SchemaModel):
    """A directory of the node, and where containers see it."""

    name: str
    host_path: str
    mount_path: str


class Variable(SchemaModel):
    """A variable for the container."""

    name: str
    value: str


class Accelerator(SchemaModel):
    """What goes with one resource."""

    volumes: list[HostVolume] = Field(default_factory=list)
    env_vars: list[Variable] = Field(default_factory=list)


def apply_accelerators(document: Document, accelerators: Mapping[str, Any]) -> dict[str, Any]:
    """The v1alpha1 document with every template configured; InvalidJob says what is wrong with the configuration."""
    config = _read(accelerators)
    specs = [
        {**replicas, "template": _configured(replicas["template"], config)}
        if value_at(replicas, "template")
        else replicas
        for replicas in list_items(value_at(document, "spec", "replicaSpecs"))
    ]
    return {**document, "spec": {**document["spec"], "replicaSpecs": specs}}


def _read(accelerators: Mapping[str, Any]) -> dict[str, Accelerator]:
    try:
        return TypeAdapter(dict[str, Accelerator]).validate_python(dict(accelerators))
    except ValidationError as error:
        raise InvalidJob(
            Problem(
                format_location(("accelerators", *detail["loc"])),
                f"{detail['msg']}, not {describe_value(detail['input'])}",
            )
            for detail in error.errors(include_url=False)
        ) from None


def _configured(template: Mapping[str, Any], config: Mapping[str, Accelerator]) -> Document:
    spec = mapping(template.get("spec"))
    found: list[Accelerator] = []
    listed = []
    for container in list_items(spec.get("containers")):
        wanted = _wanted(container, config) if value_at(container, "name") == TF_CONTAINER else []
        found += wanted
        listed.append(_equipped(container, wanted) if wanted else container)
    if not found:
        return template
    volumes = [{"name": one.name, "hostPath": {"path": one.host_path}} for each in found for one in each.volumes]
    return {**template, "spec": {**spec, "containers": listed, "volumes": _added(spec.get("volumes"), volumes, "name")}}


def _wanted(container: Mapping[str, Any], config: Mapping[str, Accelerator]) -> list[Accelerator]:
    resources = container.get("resources")
    asked = {**mapping(value_at(resources, "limits")), **mapping(value_at(resources, "requests"))}
    return [config[name] for name in asked if name in config]


def _equipped(container: Mapping[str, Any], wanted: list[Accelerator]) -> dict[str, Any]:
    mounts = [{"name": one.name, "mountPath": one.mount_path} for each in wanted for one in each.volumes]
    variables = [{"name": one.name, "value": one.value} for each in wanted for one in each.env_vars]
    return {
        **container,
        "volumeMounts": _added(container.get("volumeMounts"), mounts, "mountPath"),
        "env": _added(container.get("env"), variables, "name"),
    }


def _added(present: object, new: list[dict[str, Any]], key: str) -> list[Any]:
    """A list with what it lacks; an entry of the user's own with the same key stays as it is."""
    result = list(list_items(present))
    for entry in new:
        if all(value_at(one, key) != entry[key] for one in result):
            result.append(entry)
    return result


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
    out = FieldErrors()
    dialect = check_layout(document, dialect_of(document), out)
    form = FORMATS[dialect]
    _check(dict(document), form, out)
    out.raise_errors()
    ready = form.defaulted(document)
    if accelerators and dialect is Dialect.TFJOB_V1ALPHA1:
        ready = apply_accelerators(ready, accelerators)
    job = _annotated(form.build(_valid(ready, form.model)))
    _advise_tf_config(job, form.templates(document), out)
    return Parsed(job=job, document=ready, warnings=out.warnings)


def _advise_tf_config(job: Job, templates: Iterable[RawTemplate], out: FieldErrors) -> None:
    """A TF_CONFIG of the user's own stands before ours in the environment, so ours is the one that is seen."""
    if job.tf_config is TFConfigStyle.NONE:
        return
    for raw in templates:
        for place, container in template_containers(raw.template):
            if any(value_at(entry, "name") == "TF_CONFIG" for entry in list_items(container.get("env"))):
                out.warn((*raw.loc, *place, "env"), "tf-dist sets TF_CONFIG, and this one is overridden", "remove it")


def read(stored: Document) -> Job:
    """The job an object of a cluster means; InvalidJob if it can be none.

    Unknown keys are passed over (the server may be newer than we are), of pod templates only the frame is checked, and
    TFJobs are read by their layout. Cheap enough for every job in every pass.
    """
    dialect = spec_dialect(stored, dialect_of(stored))
    form = FORMATS[dialect]
    ready = form.defaulted(stored)
    model = _valid(ready, form.model)
    out = FieldErrors(advice=False)
    check_other_layout(stored, dialect, out)
    for raw in form.templates(ready):
        check_frame(raw.template, raw.loc, out)
    _check_size(form.templates(ready), out)
    form.check(model, out)
    _check_annotations(ready, out)
    out.raise_errors()
    return _annotated(form.build(model))


def _check_annotations(document: Document, out: FieldErrors) -> None:
    """What every format says in the same labels and annotations."""
    common_annotations.check_gang_scheduler(document, out)
    common_annotations.check_queue(document, out)
    common_annotations.check_limits(document, out)


def _annotated(job: Job) -> Job:
    return common_annotations.with_limits(common_annotations.with_queue(common_annotations.with_gang_scheduler(job)))


def as_written(stored: Document) -> dict[str, Any]:
    """An object of a cluster under the apiVersion of its layout, which the server may have exchanged; InvalidJob."""
    return {**stored, "apiVersion": spec_dialect(stored, dialect_of(stored)).value}


def defaulted(document: Document) -> dict[str, Any]:
    """The document with the defaults of the original system; never in place, and unchanged parts are shared."""
    return FORMATS[spec_dialect(document, dialect_of(document))].defaulted(document)


def suspend_patch(document: Document, suspend: bool) -> dict[str, Any]:
    """The JSON merge patch that suspends a job or lets it go on: v1 has a field for it, the others an annotation."""
    annotation = {"metadata": {"annotations": {SUSPEND_ANNOTATION: "true" if suspend else None}}}
    if spec_dialect(document, dialect_of(document)) is not Dialect.TFJOB_V1:
        return annotation
    field = {"spec": {"runPolicy": {"suspend": suspend}}}
    annotated = SUSPEND_ANNOTATION in mapping(value_at(document, "metadata", "annotations"))
    return {**annotation, **field} if annotated and not suspend else field


def _valid(document: dict[str, Any], model: type[BaseModel]) -> BaseModel:
    """The document in its shape, unknown keys left aside."""
    try:
        return model.model_validate(document, extra="ignore")
    except ValidationError as error:
        out = FieldErrors()
        report_schema_errors(error, model, out)
        out.raise_errors()
        raise


def _check(document: dict[str, Any], form: Format, out: FieldErrors) -> None:
    """Everything that can be wrong: keys and types, then pod templates, then what the keys say together."""
    wrong: list[FieldLocation] = []
    try:
        model = form.model.model_validate(document)
    except ValidationError as error:
        wrong = report_schema_errors(error, form.model, out)
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


def _check_size(templates: Iterable[RawTemplate], out: FieldErrors) -> None:
    """Together they are no more than one type may have."""
    total = 0
    for raw in templates:
        total += raw.replicas if 0 < raw.replicas <= MAX_REPLICAS else 0
        if total > MAX_REPLICAS:
            out.error(raw.loc[:-1], f"with it the job has more than {MAX_REPLICAS} pods", "make it several jobs")
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
