"""Who is to decide about a gang: the annotation ``tf-dist.dev/gang-scheduler``, the same in all formats.

``schedulerName`` says nothing about it: it is who binds the pods, and many Volcano Jobs name volcano there only because
every example does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tf_dist.core.dialects.problems import Findings, Loc, suggest
from tf_dist.core.gang_scheduler import GangScheduler
from tf_dist.core.model import Document, Job
from tf_dist.core.names import GANG_SCHEDULER
from tf_dist.core.untyped import at

_PLACE: Final[Loc] = ("metadata", "annotations", GANG_SCHEDULER)
_KNOWN: Final[Mapping[str, GangScheduler]] = {one.value: one for one in GangScheduler}


def check(document: Document, out: Findings) -> None:
    """An error for a name that nobody has."""
    named = at(document, *map(str, _PLACE))
    if isinstance(named, str) and named not in _KNOWN:
        out.error(_PLACE, f"{named!r} is no gang scheduler that tf-dist knows", suggest(named, _KNOWN))


def chosen(job: Job) -> Job:
    """The job with the gang scheduler that it names; the same if it names none."""
    named = _KNOWN.get(job.annotations.get(GANG_SCHEDULER, ""))
    return job if named is None else replace(job, scheduling=replace(job.scheduling, gang=named))
