"""The rules by which a job goes on: it is suspended and resumed, admitted, and follows its pods."""

from __future__ import annotations

from dataclasses import replace

from tf_dist.core import names
from tf_dist.core.gang.model import Admit, Wait
from tf_dist.core.recovery import overdue
from tf_dist.core.resizing import size_text
from tf_dist.core.schedulers.table import scheduler_of
from tf_dist.core.situation import Situation
from tf_dist.core.sizes import granted
from tf_dist.core.status import RUNNING, STOPPED, Admission, Phase, Status


def suspend(s: Situation) -> Status | None:
    """The user asks the job to stop for a while."""
    if not (s.job.run_policy.suspend and s.live):
        return None
    return s.status.to(Phase.ABORTING, s.now, "Suspended", "suspended by the user; its pods are stopped")


def resume(s: Situation) -> Status | None:
    """The suspension was lifted, or somebody answered an AbortJob policy with a resume of this very attempt.

    Replicas that are done stay done, as in Volcano and in a Kubernetes Job; the others start anew.
    """
    if s.status.phase not in STOPPED or s.job.run_policy.suspend:
        return None
    by_command = s.job.annotations.get(names.RESUME_ATTEMPT) == str(s.status.attempts.job)
    if s.status.reason != "Suspended" and not by_command:
        return None
    attempts = s.status.attempts.next_job()
    fresh = replace(
        s.status,
        attempts=attempts,
        seen=frozenset(),
        start_time=None,
        admission=None,
        last_sizes={},
        requeues=0,
        refused_nodes={},
        not_before=0.0,
        pauses={},
    )
    return fresh.to(Phase.PENDING, s.now, "Resumed", "resumed; waits for its place")


def admit(s: Situation) -> Status | None:
    """Take the verdict of admission into the memory; no pod is made before that is written."""
    if not s.live or s.status.admission is not None or s.now < s.status.not_before or overdue(s.facts, s.now):
        return None
    verdict = s.observed.verdict
    if isinstance(verdict, Wait):
        return replace(s.status, reason=verdict.reason, message=verdict.message)
    if isinstance(verdict, Admit):
        other = scheduler_of(s.asked, s.status)
        place = Admission(s.now, verdict.placement, verdict.sizes, by=other.name if other else "")
        admitted = replace(s.status, admission=place, start_time=s.now)
        smaller = size_text(s.asked, granted(s.asked, admitted))
        message = f"begins with {smaller}" if smaller else f"all {len(s.asked.replicas)} replicas have their place"
        return replace(admitted, reason="Admitted", message=message)
    return None


def follow_pods(s: Situation) -> Status | None:
    """Pending, Restarting and Running are what the pods make of it."""
    if not s.live or s.status.admission is None:
        return None
    phase = s.status.phase
    if phase is Phase.RESTARTING and (s.facts.stale or len(s.facts.current) < _expected(s)):
        return None
    if _runs(s):
        if phase is not Phase.RUNNING:
            return s.status.to(Phase.RUNNING, s.now, RUNNING, _running_text(s))
        return replace(s.status, message=_running_text(s)) if s.status.reason == RUNNING else None
    if phase is Phase.RESTARTING:
        return s.status.to(Phase.PENDING, s.now, "PodsPending", "the new pods have not started yet")
    if phase is Phase.RUNNING and _too_few(s):
        return s.status.to(Phase.PENDING, s.now, "PodsPending", "too few pods are running")
    return None


def _expected(s: Situation) -> int:
    return len(s.job.replicas) - sum(1 for r in s.facts.succeeded if r not in s.facts.current)


def _running_text(s: Situation) -> str:
    return f"{s.facts.total().running} of {len(s.job.replicas)} replicas are running"


def _runs(s: Situation) -> bool:
    if s.job.running_types:
        return any(s.facts.count(type_).running for type_ in s.job.running_types)
    total = s.facts.total()
    return total.running + total.succeeded + total.failed >= max(1, s.job.scheduling.min_available)


def _too_few(s: Situation) -> bool:
    """Volcano takes Running back when too many pods are pending; a TFJob stays Running."""
    if s.job.running_types:
        return False
    return s.facts.total().pending > len(s.job.replicas) - s.job.scheduling.min_available
