"""The queue of a job by its label ``tf-dist.dev/queue``: for the format that has no field for it, and for any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tf_dist.core.dialects.problems import Findings, Loc
from tf_dist.core.model import Dialect, Document, Job
from tf_dist.core.names import QUEUE
from tf_dist.core.overrides import Override
from tf_dist.core.untyped import at

_PLACE: Final[Loc] = ("metadata", "labels", QUEUE)
_FIELDS: Final[Mapping[Dialect, Loc]] = {
    Dialect.TFJOB_V1: ("spec", "runPolicy", "schedulingPolicy", "queue"),
    Dialect.VOLCANO: ("spec", "queue"),
}


def check(document: Document, out: Findings) -> None:
    """An error where label and field name different queues. ``default`` may have come from a server's defaults."""
    named = at(document, *map(str, _PLACE))
    for field in _FIELDS.values():
        other = at(document, *map(str, field))
        if named and other not in (None, "", "default", named):
            out.error(_PLACE, f"names the queue {named}, and {'.'.join(map(str, field))} names {other}", "keep one")


def queued(job: Job) -> Job:
    """The job in the queue that its label names; the same if it has none."""
    named = job.labels.get(QUEUE)
    return replace(job, scheduling=replace(job.scheduling, queue=named)) if named else job


def into_queue(document: Any, dialect: Dialect, queue: str) -> tuple[Override, ...]:
    """What puts a job into a queue: the format's field for it, and the label where it names one or is all there is."""
    field = _FIELDS.get(dialect)
    labelled = field is None or at(document, *map(str, _PLACE)) is not None
    return (
        *((Override(field, queue),) if field is not None else ()),
        *((Override(_PLACE, queue),) if labelled else ()),
    )
