"""Adoption: what a retried pipeline step does with jobs of its earlier tries, and which controller runs its job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tf_dist.core.model.reasons import DISRUPTED, OutcomeKind
from tf_dist.core.model.status import Status, outcome_kind


class DriverChoice(StrEnum):
    """The controller that reconciles the job of a step, task or run."""

    AUTO = "auto"  # the leader; without a leader, the waiting program leads the namespace while it waits
    CONTROLLER = "controller"  # a controller in another process: the program only waits


class AdoptionAction(StrEnum):
    """The first action of a try."""

    CREATE = "create"
    ADOPT = "adopt"
    REUSE_RESULT = "reuse-result"  # use the result of a job that has ended
    REPLACE = "replace"  # delete the job, and decide again after it is deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionCandidate:
    """A job that an earlier try of the same task created.

    ``marked_for_deletion``: it is being deleted, or was abandoned. ``done``: it has ended. ``succeeded``: it has
    succeeded. ``result_used``: a try has already used its result. ``created``: epoch seconds.
    """

    uid: str
    created: float
    marked_for_deletion: bool = False
    done: bool = False
    succeeded: bool = False
    result_used: bool = False


@dataclass(frozen=True, slots=True)
class AdoptionDecision:
    """A decision about adoption. ``uid``: the job to adopt or reuse. ``surplus``: active jobs to delete."""

    answer: AdoptionAction
    uid: str = ""
    surplus: tuple[str, ...] = ()


def decide_adoption(candidates: Sequence[AdoptionCandidate], *, durable: bool = True) -> AdoptionDecision:
    """Decide what to do with the jobs of earlier tries.

    The newest active job is adopted. If no job is active, an unused result is reused. Otherwise, a new job is created.
    Without ``durable``, a try always creates a new job. All other active jobs are surplus.
    """
    newest = sorted(candidates, key=lambda one: (one.created, one.uid), reverse=True)
    live = [one.uid for one in newest if not one.done and not one.marked_for_deletion]
    if not durable:
        return AdoptionDecision(AdoptionAction.CREATE, surplus=tuple(live))
    if live:
        return AdoptionDecision(AdoptionAction.ADOPT, live[0], tuple(live[1:]))
    unused = (one.uid for one in newest if one.succeeded and not one.result_used and not one.marked_for_deletion)
    return next(
        (AdoptionDecision(AdoptionAction.REUSE_RESULT, uid) for uid in unused), AdoptionDecision(AdoptionAction.CREATE)
    )


def decide_existing_job(status: Status, *, reported: bool, reattach: bool = True) -> AdoptionAction:
    """Whether a retried step continues with the job of its last try.

    ``reported``: the last try has reported the end of the job, so a failed job is replaced. A succeeded job is adopted
    even if its end was reported. Without ``reattach``, every job that has not succeeded is replaced.
    """
    kind = outcome_kind(status)
    if not reattach and kind is not OutcomeKind.SUCCEEDED:
        return AdoptionAction.REPLACE
    if kind in (None, OutcomeKind.SUCCEEDED, OutcomeKind.SUSPENDED):
        return AdoptionAction.ADOPT
    return AdoptionAction.REPLACE if kind in DISRUPTED or reported else AdoptionAction.ADOPT
