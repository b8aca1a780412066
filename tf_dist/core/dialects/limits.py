"""Limits that no format has a field for, as annotations that are the same in all of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from tf_dist.core.dialects.problems import Findings, Loc, described
from tf_dist.core.dialects.shape import INT32_MAX, written_number
from tf_dist.core.gang.snapshot import seconds
from tf_dist.core.model import Document, Job
from tf_dist.core.names import MAX_DISRUPTIONS, RECOVERY_TIMEOUT
from tf_dist.core.untyped import at

DURATION: Final = r"^([0-9]+|([0-9]+(\.[0-9]+)?(h|ms|m|s))+)$"
LONGEST_DURATION: Final = 64


def check(document: Document, out: Findings) -> None:
    """Errors for what is no limit."""
    for key, reads, what, hint in (
        (MAX_DISRUPTIONS, _count, "number of disruptions", 'write one from 0 up: "20"'),
        (RECOVERY_TIMEOUT, duration, "duration", "such as 90s, 10m or 1h30m"),
    ):
        place: Loc = ("metadata", "annotations", key)
        said = at(document, *map(str, place))
        if isinstance(said, str) and reads(said) is None:
            out.error(place, f"{described(said)} is no {what}", hint)


def limited(job: Job) -> Job:
    """The job with the limits that its annotations say; the same if they say none."""
    most = _count(job.annotations.get(MAX_DISRUPTIONS, ""))
    if most is not None:
        job = replace(job, run_policy=replace(job.run_policy, max_disruptions=most))
    recovery = duration(job.annotations.get(RECOVERY_TIMEOUT, ""))
    if recovery is not None:
        job = replace(job, scheduling=replace(job.scheduling, recovery_timeout=recovery))
    return job


def duration(text: str) -> float | None:
    """Seconds of ``90``, ``10m`` or ``1h30m``, 0 for nothing but noughts; None if it is none of these."""
    if len(text) > LONGEST_DURATION or not re.fullmatch(DURATION, text):
        return None
    return min(seconds(text) or 0.0, float(INT32_MAX))


def _count(text: str) -> int | None:
    return written_number(text, 0, INT32_MAX)
