"""Converting a document to another format, and saying what could not be carried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.core.dialects import writing
from tf_dist.core.dialects.losses import losses, place
from tf_dist.core.dialects.meaning import has_role, role_of
from tf_dist.core.dialects.problems import dotted
from tf_dist.core.dialects.reading import parse
from tf_dist.core.dialects.shape import TF_CONTAINER
from tf_dist.core.model import Dialect, Document, Job
from tf_dist.errors import InvalidJob, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A document in another format; ``lost``: what it does not say any more, by its place in the original."""

    document: dict[str, Any]
    lost: tuple[Problem, ...] = ()


_WRITERS: Final[Mapping[Dialect, Callable[[Job, Document], dict[str, Any]]]] = {
    Dialect.TFJOB_V1: writing.tfjob_v1,
    Dialect.TFJOB_V1ALPHA1: writing.tfjob_v1alpha1,
    Dialect.VOLCANO: writing.volcano,
}


def convert(document: Any, to: Dialect) -> Converted:
    """The document in another format; InvalidJob if it is none, or if it has no form there (roles, names).

    The result is one that ``parse`` accepts. Where it would run differently from the original, ``lost`` says how.
    """
    source = parse(document)
    if source.job.dialect is to:
        return Converted(document=source.document)
    _refuse(source.job, to)
    written = _WRITERS[to](source.job, source.document)
    result = parse(written)
    return Converted(document=written, lost=tuple(losses(source, result.job)))


def _refuse(job: Job, to: Dialect) -> None:
    """Raise where nothing sensible would be left: none of the replicas has a form there, or they run our server."""
    problems = []
    if to is not Dialect.VOLCANO and not any(map(has_role, job.replica_specs)):
        hint = "name the tasks ps, worker, chief or evaluator"
        problems.append(Problem("spec.tasks", f"no task is a TensorFlow role, and {to} has nothing else", hint))
    for spec in job.replica_specs:
        if spec.server_image:
            path = dotted((*place(job, role_of(spec)), "template"))
            hint = f"write a container named {TF_CONTAINER!r} that starts a tf.distribute.Server"
            problems.append(Problem(path, f"{to} has no standard parameter server", hint))
    if problems:
        raise InvalidJob(problems)
