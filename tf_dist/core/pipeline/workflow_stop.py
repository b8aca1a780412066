"""Stop decision: whether a signal stops the workflow, or only the launcher's pod; and suspension with the workflow.

Both are the same signal. The Workflow object distinguishes them, where it may be read: ``argo stop`` and ``argo
terminate`` set its ``spec.shutdown`` (Argo Workflows 4.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from tf_dist.core.model.timestamps import parse_time

_FINISHED: Final = frozenset({"Succeeded", "Failed", "Error"})
_SLACK: Final = 5.0  # seconds by which a deadline and the signal that it causes may seem to be apart


LAUNCHER: Final = "argo-launch"
"""The launcher suspended the job; the next try resumes it."""
WORKFLOW: Final = "workflow"
"""The job is suspended while its workflow is."""


class JobFate(StrEnum):
    """What a session does with its job at the end."""

    DELETE = "delete"
    SUSPEND = "suspend"  # its pods are deleted, and the next try resumes the job
    LEAVE = "leave"  # it continues without this process
    MARK = "mark"  # it stays, with a note that its end was reported


class StopDecision(NamedTuple):
    """What happens to the job, and why, as a message. ``problem``: why that failed, "" if it did not."""

    what: JobFate
    why: str
    problem: str = ""


def decide_stop(
    workflow: Mapping[str, Any] | None, *, now: float, deadline: float | None, retried: bool
) -> StopDecision:
    """What a signal means for the job of a step. ``workflow``: the Workflow object, None if it is gone.

    ``deadline``: when Argo stops the pod for its time, ``retried``: Argo will start the step again after this (epoch
    seconds, both from the step's template). Without a next try, no process would return to a job that is left.
    """
    if workflow is None:
        return StopDecision(JobFate.DELETE, "the workflow no longer exists")
    metadata, spec, status = (workflow.get(key) or {} for key in ("metadata", "spec", "status"))
    if metadata.get("deletionTimestamp"):
        return StopDecision(JobFate.DELETE, "the workflow is being deleted")
    if spec.get("shutdown"):
        return StopDecision(JobFate.DELETE, f"the workflow was asked to shut down ({spec['shutdown']})")
    if status.get("phase") in _FINISHED:
        return StopDecision(JobFate.DELETE, f"the workflow is {status['phase']}")
    started, seconds = parse_time(status.get("startedAt")), spec.get("activeDeadlineSeconds")
    own = None if started is None or not isinstance(seconds, int) else started + seconds
    ends = [end for end in (deadline, own) if end is not None]
    if ends and now >= min(ends) - _SLACK:
        return StopDecision(JobFate.DELETE, "the workflow's deadline has passed")
    if not retried:
        return StopDecision(JobFate.DELETE, "the step is not retried")
    return StopDecision(JobFate.LEAVE, "the workflow continues and the step is retried: only this pod must stop")


def decide_suspension(workflow: Mapping[str, Any], *, suspended: bool, by_workflow: bool) -> bool | None:
    """Whether the job of a step is suspended now (True) or resumed (False); None: it stays as it is.

    ``argo suspend`` sets ``spec.suspend`` of the workflow, which begins no further step then; its pods go on by
    themselves. ``suspended``: the job is; ``by_workflow``: it was suspended for that. A job that a user has suspended
    stays so, and one that a user has resumed meanwhile goes on.
    """
    if (workflow.get("spec") or {}).get("suspend"):
        return None if suspended or by_workflow else True
    return False if by_workflow else None
