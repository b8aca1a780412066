"""Decision whether a signal stops the workflow or only the launcher's pod, and suspension with the workflow.

In both cases, the launcher receives the same signal. The Workflow object, if the launcher may read it, distinguishes
the cases: ``argo stop`` and ``argo terminate`` set its ``spec.shutdown`` (Argo Workflows 4.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from tf_dist.core.model.timestamps import parse_time

_FINISHED: Final = frozenset({"Succeeded", "Failed", "Error"})
_SLACK: Final = 5.0  # seconds by which the signal may seem to precede the deadline that caused it


LAUNCHER: Final = "argo-launch"
"""The launcher suspended the job; the next try resumes it."""
WORKFLOW: Final = "workflow"
"""The job is suspended because its workflow is suspended."""


class JobFate(StrEnum):
    """What a session does with its job at the end."""

    DELETE = "delete"
    SUSPEND = "suspend"  # its pods are deleted, and the next try resumes the job
    LEAVE = "leave"  # the job continues without this process
    MARK = "mark"  # the job is kept, with a note that its end was reported


class StopDecision(NamedTuple):
    """What happens to the job, with the reason as a message. ``problem``: why that failed ("": it did not fail)."""

    what: JobFate
    why: str
    problem: str = ""


def decide_stop(
    workflow: Mapping[str, Any] | None, *, now: float, deadline: float | None, retried: bool
) -> StopDecision:
    """What a signal means for the job of a step. ``workflow``: the Workflow object; None if it is deleted.

    ``deadline``: when Argo stops the pod (epoch seconds). ``retried``: whether Argo starts the step again afterwards.
    Both come from the step's template. Without a next try, no process would return to a job that continues.
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
    """Whether the job of a step must be suspended (True) or resumed (False); None: no change.

    ``argo suspend`` sets ``spec.suspend`` of the workflow. The workflow then starts no further steps, but its pods
    continue. ``suspended``: whether the job is suspended. ``by_workflow``: whether it was suspended with the workflow.
    A job that a user has suspended stays suspended, and a job that a user has resumed continues.
    """
    if (workflow.get("spec") or {}).get("suspend"):
        return None if suspended or by_workflow else True
    return False if by_workflow else None
