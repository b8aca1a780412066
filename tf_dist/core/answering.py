"""The rule that answers what happened: the policy table says what to do, this module does it to the memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tf_dist.core import restarts
from tf_dist.core.facts import occurrences
from tf_dist.core.policies import GRAVITY, Answered, decide
from tf_dist.core.policy_model import Action
from tf_dist.core.situation import Situation
from tf_dist.core.status import Phase, Status
from tf_dist.core.text import describe, describe_all


def answer(s: Situation) -> Status | None:
    """Give the gravest answer that the policy table has for what happened."""
    if not s.live:
        return None
    answers: dict[Action, Answered] = {}
    for occurrence in occurrences(s.job, s.status, s.facts):
        decision = decide(s.job, occurrence, s.now)
        answers.setdefault(decision.action, []).append((occurrence, decision))
    for action in GRAVITY:
        if action in answers:
            return _ANSWERS[action](s, answers[action])
    return None


def _end(phase: Phase) -> Callable[[Situation, Answered], Status]:
    def end(s: Situation, answered: Answered) -> Status:
        occurrence = answered[0][0]
        failed = replace(s.status, failure=restarts.failure_of(occurrence, s.now))
        return failed.to(phase, s.now, str(occurrence.event), describe_all(s.job, [o for o, _ in answered]))

    return end


def _complete(s: Situation, answered: Answered) -> Status:
    occurrence = answered[0][0]
    return s.status.to(Phase.COMPLETING, s.now, str(occurrence.event), describe(s.job, occurrence))


_ANSWERS: Final[dict[Action, Callable[[Situation, Answered], Status]]] = {
    Action.FAIL_JOB: _end(Phase.FAILED),
    Action.TERMINATE_JOB: _end(Phase.TERMINATING),
    Action.ABORT_JOB: _end(Phase.ABORTING),
    Action.COMPLETE_JOB: _complete,
    Action.RESTART_JOB: lambda s, answered: restarts.restart_job(s.job, s.status, s.facts, answered, s.now),
    Action.RESTART_TASK: lambda s, answered: restarts.restart_tasks(s.job, s.status, s.facts, answered, s.now),
    Action.RESTART_POD: lambda s, answered: restarts.restart_pods(s.job, s.status, s.facts, answered, s.now),
}
