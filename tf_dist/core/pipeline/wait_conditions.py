"""The conditions of a job that a client can wait for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tf_dist.core.model.status import LIVE, Phase, Status


def _is_scheduled(status: Status) -> bool:
    """Whether every pod of the gang has its node, or had it at one moment of this attempt."""
    return status.admission_holds and status.admission is not None and status.admission.complete is not None


WAIT_CONDITIONS: Final[Mapping[str, Callable[[Status | None], bool]]] = {
    "succeeded": lambda status: status is not None and status.phase is Phase.COMPLETED,
    "failed": lambda status: status is not None and status.phase in (Phase.FAILED, Phase.TERMINATED),
    "finished": lambda status: status is not None and status.finished,
    "running": lambda status: status is not None and status.phase is Phase.RUNNING,
    # A job that has succeeded was admitted and scheduled before.
    "admitted": lambda status: status is not None and (status.admission_holds or status.phase is Phase.COMPLETED),
    "scheduled": lambda status: status is not None and (_is_scheduled(status) or status.phase is Phase.COMPLETED),
    "suspended": lambda status: status is not None and status.phase is Phase.ABORTED,
    "deleted": lambda status: status is None,
}
"""By name. The argument is the job's status, None once the job is deleted."""


def was_admitted(status: Status) -> bool:
    """Whether a job that is not live any more was admitted before."""
    return status.phase not in LIVE and status.start_time is not None


def goal_unreachable(goal: str, status: Status | None) -> bool:
    """Whether a job in this state can never reach ``goal`` any more."""
    if status is None:
        return goal != "deleted"
    return status.finished and goal != "deleted" and not WAIT_CONDITIONS[goal](status)
