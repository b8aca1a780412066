"""Another number of workers in a document: where each format says it, and what the job says to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tf_dist.core.dialects.formats import dialect_of, laid_out
from tf_dist.core.dialects.problems import Loc, dotted
from tf_dist.core.dialects.reading import read
from tf_dist.core.model import Dialect, Document, Job, Role
from tf_dist.core.untyped import at, mapping
from tf_dist.errors import InvalidJob, Problem

_SPECS: Final[Mapping[Dialect, tuple[str, str]]] = {
    Dialect.TFJOB_V1: ("spec", "tfReplicaSpecs"),
    Dialect.TFJOB_V1ALPHA1: ("spec", "replicaSpecs"),
    Dialect.VOLCANO: ("spec", "tasks"),
}


def scale_patch(document: Document, workers: int) -> dict[str, Any]:
    """The JSON merge patch that gives a job so many workers.

    InvalidJob where it has none, or would not be a valid job with so many. Two formats keep their replicas in a list,
    which a patch replaces as a whole; so it holds for the version of the object that was seen (Conflict, else).
    """
    dialect = laid_out(document, dialect_of(document))
    place = _workers(document, dialect)
    top, field = _SPECS[dialect]
    before = document[top][field]
    if isinstance(before, Mapping):
        change: Any = {place[-1]: {"replicas": workers}}
        after: Any = {**before, place[-1]: {**before[place[-1]], "replicas": workers}}
    else:
        change = after = [
            {**entry, "replicas": workers} if index == place[-1] else entry for index, entry in enumerate(before)
        ]
    try:
        read({**document, top: {**document[top], field: after}})
    except InvalidJob as error:
        raise InvalidJob([*_told(error, dotted(place), workers)]) from error
    version = at(document, "metadata", "resourceVersion")
    fence = {"metadata": {"resourceVersion": version}} if version and not isinstance(before, Mapping) else {}
    return {**fence, top: {field: change}}


def _workers(document: Document, dialect: Dialect) -> Loc:
    """Where the document speaks of its workers."""
    job = read(document)
    for spec, place in zip(job.replica_specs, places(document, dialect, job), strict=True):
        if spec.role is Role.WORKER:
            return place
    have = ", ".join(spec.name for spec in job.replica_specs)
    raise InvalidJob([Problem(dotted(_SPECS[dialect]), f"the job has no workers to scale: {have}")])


def places(document: Document, dialect: Dialect, job: Job) -> tuple[Loc, ...]:
    """Where the document speaks of each of the job's replica specs."""
    top, field = _SPECS[dialect]
    if dialect is not Dialect.TFJOB_V1:
        return tuple((top, field, index) for index in range(len(job.replica_specs)))
    # Whatever its case: `worker` is Worker.
    keys = {str(key).casefold(): key for key in mapping(document[top][field])}
    return tuple((top, field, keys[spec.type]) for spec in job.replica_specs)


def _told(error: InvalidJob, place: str, workers: int) -> Iterator[Problem]:
    """What is wrong with the job as it would be; nobody has written such a file, so its beginning says why."""
    for problem in error.problems:
        asked = "1 worker" if workers == 1 else f"{workers} workers"
        yield Problem(problem.path or place, f"with {asked}: {problem.message}", problem.hint)
