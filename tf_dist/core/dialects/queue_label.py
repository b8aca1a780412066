"""The queue of a job by its label ``tf-dist.dev/queue``: for the format that has no field for it, and for any other."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tf_dist.core.dialects.problems import Findings, Loc
from tf_dist.core.dialects.shape import at
from tf_dist.core.model import Document, Job
from tf_dist.core.names import QUEUE

_PLACE: Final[Loc] = ("metadata", "labels", QUEUE)
_FIELDS: Final[tuple[Loc, ...]] = (("spec", "runPolicy", "schedulingPolicy", "queue"), ("spec", "queue"))


def check(document: Document, out: Findings) -> None:
    """An error where label and field name different queues. ``default`` may have come from a server's defaults."""
    named = at(document, *map(str, _PLACE))
    for field in _FIELDS:
        other = at(document, *map(str, field))
        if named and other not in (None, "", "default", named):
            out.error(_PLACE, f"names the queue {named}, and {'.'.join(map(str, field))} names {other}", "keep one")


def queued(job: Job) -> Job:
    """The job in the queue that its label names; the same if it has none."""
    named = job.labels.get(QUEUE)
    return replace(job, scheduling=replace(job.scheduling, queue=named)) if named else job
