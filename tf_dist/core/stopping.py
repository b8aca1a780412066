"""Which pods have to go: when a job ends or is suspended, and when a restart has made them stale."""

from __future__ import annotations

from typing import Final

from tf_dist.core.disruptions import EXCEEDED
from tf_dist.core.facts import Facts
from tf_dist.core.model import CleanPodPolicy, Job
from tf_dist.core.observed import PodView
from tf_dist.core.status import LIVE, STOPPED, Status

# Ends at which whatever still runs has to stop, though the policy would keep it: it is what the limit was set for.
_CUT_SHORT: Final = frozenset({"DeadlineExceeded", "BackoffLimitExceeded", EXCEEDED})


def clean_policy(job: Job, status: Status) -> CleanPodPolicy:
    """Which pods go in a phase in which the job is not live."""
    if status.phase in STOPPED:
        return CleanPodPolicy.RUNNING
    policy = job.run_policy.clean_pods
    if policy is CleanPodPolicy.NONE and status.reason in _CUT_SHORT:
        return CleanPodPolicy.RUNNING
    return policy


def doomed(job: Job, status: Status, facts: Facts) -> tuple[PodView, ...]:
    """The pods that must not be there any more, those already on their way out included."""
    if status.phase in LIVE:
        return facts.stale
    match clean_policy(job, status):
        case CleanPodPolicy.ALL:
            return (*facts.stale, *facts.current.values())
        case CleanPodPolicy.RUNNING:
            return tuple(pod for pod in (*facts.stale, *facts.current.values()) if not pod.finished)
        case CleanPodPolicy.NONE:
            return ()
