"""A job document for one run of a pipeline: the few things that a step says of a job that somebody else wrote.

Where each of them stands differs between the formats; what a format has no word for is a problem, not a silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tf_dist.core.dialects.formats import dialect_of, laid_out
from tf_dist.core.dialects.problems import Loc
from tf_dist.core.dialects.queue_label import into_queue
from tf_dist.core.dialects.reading import read
from tf_dist.core.dialects.scaling import places
from tf_dist.core.model import Dialect, Document, Job, ReplicaSpec, Role
from tf_dist.core.overrides import Override, override
from tf_dist.core.untyped import at, items
from tf_dist.errors import InvalidJob, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Tailoring:
    """What is changed; "", None and empty: as the document says.

    ``workers``, ``ps``: numbers of replicas. ``image``: of the containers that train. ``env``: variables for every
    container, before its own, which stay as they are where they have the same name. ``labels``: on every pod.
    ``tidy``: where the document does not say which pods go at the end, those go that still run then.
    """

    workers: int | None = None
    ps: int | None = None
    queue: str = ""
    priority_class: str = ""
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    tidy: bool = False


_SCHEDULING: Final = ("spec", "runPolicy", "schedulingPolicy")
_PRIORITY: Final[Mapping[Dialect, Loc]] = {
    Dialect.TFJOB_V1: (*_SCHEDULING, "priorityClass"),
    Dialect.VOLCANO: ("spec", "priorityClassName"),
}
_CLEAN_PODS: Final = ("spec", "runPolicy", "cleanPodPolicy")


def tailored(document: Document, tailoring: Tailoring) -> dict[str, Any]:
    """A copy with the changes in it; InvalidJob with everything that this document has no place for."""
    dialect = laid_out(document, dialect_of(document))
    job = read(document)
    problems: list[Problem] = []
    changes = [
        *_counts(document, dialect, job, tailoring, problems),
        *(into_queue(document, dialect, tailoring.queue) if tailoring.queue else ()),
        *_named(dialect, "priority class", tailoring.priority_class, _PRIORITY, problems),
        *_templates(document, dialect, job, tailoring),
    ]
    if tailoring.tidy and dialect is Dialect.TFJOB_V1 and not _says_what_goes(document):
        changes.append(Override(_CLEAN_PODS, "Running"))
    if problems:
        raise InvalidJob(problems)
    return dict(override(document, changes))


def _says_what_goes(document: Document) -> bool:
    """In its place, or in the one that the first version of the format had for it."""
    return at(document, *_CLEAN_PODS) is not None or at(document, "spec", "cleanPodPolicy") is not None


def _counts(
    document: Document, dialect: Dialect, job: Job, tailoring: Tailoring, problems: list[Problem]
) -> Iterator[Override]:
    for role, count in ((Role.WORKER, tailoring.workers), (Role.PS, tailoring.ps)):
        if count is None:
            continue
        found = [place for spec, place in _each(document, dialect, job) if spec.role is role]
        if not found:
            have = ", ".join(spec.name for spec in job.replica_specs)
            problems.append(Problem("spec", f"{count} {role} replicas are asked for, and the job has none: {have}"))
        yield from (Override((*place, "replicas"), count) for place in found[:1])


def _named(
    dialect: Dialect, what: str, value: str, where: Mapping[Dialect, Loc], problems: list[Problem]
) -> Iterator[Override]:
    if not value:
        return
    if dialect in where:
        yield Override(where[dialect], value)
    else:
        hint = "tf-dist convert FILE --to kubeflow.org/v1 makes a format of it that has"
        problems.append(Problem("spec", f"{dialect} has no word for the {what} {value}", hint))


def _templates(document: Document, dialect: Dialect, job: Job, tailoring: Tailoring) -> Iterator[Override]:
    for spec, place in _each(document, dialect, job):
        template = (*place, "template")
        if spec.template and tailoring.labels:
            labels = {**(at(spec.template, "metadata", "labels") or {}), **tailoring.labels}
            yield Override((*template, "metadata", "labels"), labels)
        for index, container in enumerate(items(at(spec.template, "spec", "containers"))):
            here = (*template, "spec", "containers", index)
            if tailoring.image and spec.container in ("", container.get("name")):
                yield Override((*here, "image"), tailoring.image)
            if tailoring.env:
                yield Override((*here, "env"), _env(container, tailoring.env))


def _env(container: Mapping[str, Any], more: Mapping[str, str]) -> list[Any]:
    """First, because a variable may only refer to those before it."""
    own = list(items(container.get("env")))
    taken = {at(variable, "name") for variable in own}
    return [*({"name": name, "value": value} for name, value in more.items() if name not in taken), *own]


def _each(document: Document, dialect: Dialect, job: Job) -> Iterator[tuple[ReplicaSpec, Loc]]:
    return zip(job.replica_specs, places(document, dialect, job), strict=True)
