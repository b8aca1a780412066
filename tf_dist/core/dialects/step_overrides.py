"""Changes of a document: the overrides of a step of a pipeline, and the number of workers.

Paths differ between the formats. A change is an error if the format has no field for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tf_dist.core.dialects.common_annotations import queue_overrides, worker_bound
from tf_dist.core.dialects.common_schema import LAYOUTS, replica_path
from tf_dist.core.dialects.parsing import read
from tf_dist.core.dialects.registry import dialect_of, spec_dialect
from tf_dist.core.model.fieldpath import FieldPath, format_field_path, list_items, mapping, text, value_at
from tf_dist.core.model.job import Dialect, Document, Job, ReplicaSpec, Role
from tf_dist.core.model.names import MAX_WORKERS, PACKAGES
from tf_dist.core.model.overrides import Override, apply_overrides
from tf_dist.core.model.wording import are, counted
from tf_dist.errors import InvalidJob, Problem


def scale_patch(document: Document, workers: int) -> dict[str, Any]:
    """The JSON merge patch that sets the number of workers.

    Raises InvalidJob if the job has no workers, or would be invalid with this number. Two formats have their replicas
    in a list, which a patch replaces as a whole, so the patch contains the resource version of the object (Conflict if
    the version has changed). A number below the maximum of an elastic job is also its new maximum, because the user
    removes workers that admission has added.
    """
    dialect = spec_dialect(document, dialect_of(document))
    place = _workers(document, dialect)
    top, field = map(str, LAYOUTS[dialect].replicas)
    before = document[top][field]
    if isinstance(before, Mapping):
        change: Any = {place[-1]: {"replicas": workers}}
        after: Any = {**before, place[-1]: {**before[place[-1]], "replicas": workers}}
    else:
        change = after = [
            {**entry, "replicas": workers} if index == place[-1] else entry for index, entry in enumerate(before)
        ]
    # The annotation for the maximum of workers, lowered to this number; empty if it does not have to change.
    most = worker_bound(mapping(value_at(document, "metadata", "annotations")), MAX_WORKERS)
    lowered = {MAX_WORKERS: str(workers)} if most is not None and most > workers > 0 else {}
    annotations = [Override(("metadata", "annotations", key), value) for key, value in lowered.items()]
    try:
        read(apply_overrides({**document, top: {**document[top], field: after}}, annotations))
    except InvalidJob as error:  # the message begins with the requested change, because no file contains it
        asked, path = f"with {counted(workers, 'worker')}", format_field_path(place)
        found = (Problem(one.path or path, f"{asked}: {one.message}", one.hint) for one in error.problems)
        raise InvalidJob(found) from error
    version = value_at(document, "metadata", "resourceVersion")
    metadata: dict[str, Any] = {"annotations": lowered} if lowered else {}
    if version and (lowered or not isinstance(before, Mapping)):
        metadata["resourceVersion"] = version
    return {**({"metadata": metadata} if metadata else {}), top: {field: change}}


def _workers(document: Document, dialect: Dialect) -> FieldPath:
    """The path of the workers in the document."""
    job = read(document)
    for spec, place in zip(job.replica_specs, replica_paths(document, dialect, job), strict=True):
        if spec.role is Role.WORKER:
            return place
    have = ", ".join(spec.name for spec in job.replica_specs)
    path = format_field_path(LAYOUTS[dialect].replicas)
    raise InvalidJob([Problem(path, f"the job has no workers to scale: {have}")])


def replica_paths(document: Document, dialect: Dialect, job: Job) -> tuple[FieldPath, ...]:
    """The path of each of the job's replica specs in the document."""
    if dialect is not Dialect.TFJOB_V1:
        return tuple(replica_path(job, position) for position in range(len(job.replica_specs)))
    # Keys may have any letter case: `worker` is Worker.
    place = LAYOUTS[dialect].replicas
    keys = {str(key).casefold(): key for key in value_at(document, *map(str, place))}
    return tuple((*place, keys[spec.type]) for spec in job.replica_specs)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOverrides:
    """The changes of a step; "", None and empty values change nothing.

    ``workers``, ``ps``: numbers of replicas. ``image``, ``command``, ``args``: settings of the training containers,
    including those of parameter servers. ``env``: variables for every container, before its own variables; its own
    variables of the same name have precedence. A mapping is a ``valueFrom``. ``labels``: labels of every pod. ``tidy``:
    running pods are deleted at the end of the job, unless the document sets which pods are deleted.
    ``node_selector``: labels for every pod, in addition to its own labels (None removes a label). ``tolerations``:
    tolerations for every pod, in addition to its own. ``packages``: Python packages that every replica needs, instead
    of the document's packages. ``resources``: resources of the training container of each worker, or of each replica
    if the job has no workers.
    """

    workers: int | None = None
    ps: int | None = None
    queue: str = ""
    priority_class: str = ""
    image: str = ""
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    env: Mapping[str, str | Mapping[str, Any]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    tidy: bool = False
    node_selector: Mapping[str, str | None] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    resources: Mapping[str, str | int | float] = field(default_factory=dict)
    packages: Sequence[str] = ()


_CLEAN_PODS: Final = ("spec", "runPolicy", "cleanPodPolicy")


def apply_step_overrides(document: Document, tailoring: StepOverrides) -> dict[str, Any]:
    """A copy with the changes. Raises InvalidJob with all changes that the format cannot express."""
    dialect = spec_dialect(document, dialect_of(document))
    job = read(document)
    problems: list[Problem] = []
    changes = [
        *_counts(document, dialect, job, tailoring, problems),
        *(queue_overrides(document, dialect, tailoring.queue) if tailoring.queue else ()),
        *_priority_class(dialect, tailoring.priority_class, problems),
        *_templates(document, dialect, job, tailoring),
    ]
    if tailoring.packages:
        changes.append(Override(("metadata", "annotations", PACKAGES), " ".join(tailoring.packages)))
    stated = value_at(document, *_CLEAN_PODS) or value_at(document, "spec", "cleanPodPolicy")  # the path of v1.0
    if tailoring.tidy and dialect is Dialect.TFJOB_V1 and stated is None:
        changes.append(Override(_CLEAN_PODS, "Running"))
    if problems:
        raise InvalidJob(problems)
    return dict(apply_overrides(document, changes))


def _counts(
    document: Document, dialect: Dialect, job: Job, tailoring: StepOverrides, problems: list[Problem]
) -> Iterator[Override]:
    for role, count in ((Role.WORKER, tailoring.workers), (Role.PS, tailoring.ps)):
        if count is None:
            continue
        found = [place for spec, place in _each(document, dialect, job) if spec.role is role]
        if not found and count:
            have = ", ".join(spec.name for spec in job.replica_specs)
            asked = f"{counted(count, f'{role} replica')} {are(count)} asked for"
            problems.append(Problem("spec", f"{asked}, and the job has none: {have}"))
        yield from (Override((*place, "replicas"), count) for place in found[:1])


def _priority_class(dialect: Dialect, value: str, problems: list[Problem]) -> Iterator[Override]:
    place = LAYOUTS[dialect].priority_class
    if value and place:
        yield Override(place, value)
    elif value:
        hint = "tf-dist convert FILE --to kubeflow.org/v1 makes a format of it that has"
        problems.append(Problem("spec", f"{dialect} cannot express the priority class {value}", hint))


def _templates(document: Document, dialect: Dialect, job: Job, tailoring: StepOverrides) -> Iterator[Override]:
    workers = any(spec.role is Role.WORKER for spec in job.replica_specs)
    for spec, place in _each(document, dialect, job):
        template = (*place, "template")
        body = spec.pod_spec
        if tailoring.node_selector:
            labels = {**mapping(body.get("nodeSelector")), **tailoring.node_selector}
            kept = {label: value for label, value in labels.items() if value is not None}
            yield Override((*template, "spec", "nodeSelector"), kept)
        if tailoring.tolerations:
            tolerations = [*list_items(body.get("tolerations")), *tailoring.tolerations]
            yield Override((*template, "spec", "tolerations"), tolerations)
        if spec.template and tailoring.labels:
            labels = {**(value_at(spec.template, "metadata", "labels") or {}), **tailoring.labels}
            yield Override((*template, "metadata", "labels"), labels)
        for index, container in enumerate(list_items(value_at(spec.template, "spec", "containers"))):
            here = (*template, "spec", "containers", index)
            trains = spec.container in ("", container.get("name"))
            if trains:
                words = {"image": tailoring.image, "command": [*tailoring.command], "args": [*tailoring.args]}
                yield from (Override((*here, key), value) for key, value in words.items() if value)
            if tailoring.resources and trains and (spec.role is Role.WORKER or not workers):
                yield Override((*here, "resources"), _resources(container, tailoring.resources))
            if tailoring.env:
                yield Override((*here, "env"), _env(container, tailoring.env))


def training_containers(
    document: Document,
) -> Iterator[tuple[FieldPath, int, Mapping[str, Any], Mapping[str, Any]]]:
    """Each training container: the path of its pod template, its index, the container, and its pod's spec.

    Raises InvalidJob if the document is invalid.
    """
    dialect = spec_dialect(document, dialect_of(document))
    for spec, place in _each(document, dialect, read(document)):
        for index, container in enumerate(list_items(value_at(spec.template, "spec", "containers"))):
            if spec.container in ("", container.get("name")):
                yield (*place, "template"), index, container, spec.pod_spec
                break


def _resources(container: Mapping[str, Any], amounts: Mapping[str, str | int | float]) -> dict[str, Any]:
    """The container's resources with these amounts.

    A resource is set in the parts that contain it, and otherwise in the limits for devices (``x.com/gpu``) or in the
    requests for other resources.
    """
    found = mapping(container.get("resources"))
    parts = {key: dict(mapping(found.get(key))) for key in ("requests", "limits")}
    for resource, amount in amounts.items():
        named = [part for part in parts.values() if resource in part]
        for part in named or [parts["limits" if "/" in resource else "requests"]]:
            part[resource] = str(amount)
    return {**found, **{key: part for key, part in parts.items() if part}}


def _env(container: Mapping[str, Any], more: Mapping[str, str | Mapping[str, Any]]) -> list[Any]:
    """The container's variables with more variables before them, because a variable can refer only to earlier ones."""
    own = list(list_items(container.get("env")))
    taken = {text(value_at(variable, "name")) for variable in own}
    new = ((name, value) for name, value in more.items() if name not in taken)
    return [
        *({"name": name, "valueFrom" if isinstance(value, Mapping) else "value": value} for name, value in new),
        *own,
    ]


def _each(document: Document, dialect: Dialect, job: Job) -> Iterator[tuple[ReplicaSpec, FieldPath]]:
    return zip(job.replica_specs, replica_paths(document, dialect, job), strict=True)
