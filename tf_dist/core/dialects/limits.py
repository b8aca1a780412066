"""Limits that no format has a field for, as annotations that are the same in all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tf_dist.core.dialects.problems import Findings, Loc
from tf_dist.core.dialects.shape import INT32_MAX, at
from tf_dist.core.model import Document, Job
from tf_dist.core.names import MAX_DISRUPTIONS

_DIGITS: Final = 10


def check(document: Document, out: Findings) -> None:
    """An error for what is no limit."""
    place: Loc = ("metadata", "annotations", MAX_DISRUPTIONS)
    said = at(document, *map(str, place))
    if isinstance(said, str) and _count(said) is None:
        out.error(place, f"{said!r} is no number of disruptions", 'write one from 0 up: "20"')


def limited(job: Job) -> Job:
    """The job with the limits that its annotations say; the same if they say none."""
    most = _count(job.annotations.get(MAX_DISRUPTIONS, ""))
    return job if most is None else replace(job, run_policy=replace(job.run_policy, max_disruptions=most))


def _count(text: str) -> int | None:
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS:
        return None
    return int(text) if int(text) <= INT32_MAX else None
