"""Bounds on the times of a stored status: what a clock that was ahead has written postpones nothing.

A moment that has passed cannot lie in the future, and a pause is never longer than it would be if it began now. So a
driver whose clock was an hour ahead, or one that was set back by an hour since, costs a job one write and no waiting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, overload

from tf_dist.core.model import Job
from tf_dist.core.requeue import requeue_pause
from tf_dist.core.status import Admission, Pause, Status
from tf_dist.core.times import round_time
from tf_dist.core.unpinning import REFUSED_FOR

# Seconds by which clocks of one cluster may differ: less than this is not worth a write of every job at a fail-over.
TOLERANCE: Final = 5.0


def is_ahead(moment: float, now: float) -> bool:
    """Whether something that has happened is said to have happened later than ``now``."""
    return moment > now + TOLERANCE


def without_skew(job: Job, status: Status, now: float) -> Status:
    """``status`` with its times bounded; the same object when none of them is ahead."""
    pause = requeue_pause(job.uid, max(1, status.requeues))
    bounded = replace(
        status,
        since=_past(status.since, now),
        created=_past(status.created, now),
        start_time=_past(status.start_time, now),
        completion_time=_past(status.completion_time, now),
        admission=_admission(status.admission, now),
        failure=status.failure and replace(status.failure, at=_past(status.failure.at, now)),
        pauses={key: _pause(job, pause, now) for key, pause in status.pauses.items()},
        not_before=_within(status.not_before, pause, now),
        refused_nodes={node: _within(at, pause + REFUSED_FOR, now) for node, at in status.refused_nodes.items()},
    )
    return status if bounded == status else bounded


@overload
def _past(moment: float, now: float) -> float: ...
@overload
def _past(moment: float | None, now: float) -> float | None: ...
def _past(moment: float | None, now: float) -> float | None:
    return now if moment is not None and is_ahead(moment, now) else moment


def _within(until: float, longest: float, now: float) -> float:
    return round_time(now + longest) if until > now + longest + TOLERANCE else until


def _pause(job: Job, pause: Pause, now: float) -> Pause:
    return replace(pause, until=_within(pause.until, job.run_policy.backoff.delay(pause.count), now))


def _admission(place: Admission | None, now: float) -> Admission | None:
    if place is None:
        return None
    return replace(
        place,
        at=_past(place.at, now),
        resized=_past(place.resized, now),
        complete=_past(place.complete, now),
        incomplete=_past(place.incomplete, now),
    )
