"""Timeouts of lifecycle policies: since when an event lasts that nothing else dates.

Volcano's controller keeps a timer in memory for each (``AddDelayActionForJob``). Here the moment is in the status, so
that the next driver goes on with it, and the timer of another attempt never fires.
"""

from __future__ import annotations

from dataclasses import replace

from tf_dist.core.api.context import ReconcileContext
from tf_dist.core.api.job import Event
from tf_dist.core.api.lifecycle_policy import policy_timeouts
from tf_dist.core.api.pod_events import derive_events, event_key
from tf_dist.core.api.status import Status


def start_policy_timeouts(s: ReconcileContext) -> Status | None:
    """Record since when events last whose policy has a timeout; replicas that were taken away come back meanwhile."""
    timeouts = policy_timeouts(s.job, s.status, s.facts, s.now)
    if timeouts == s.status.policy_timeouts:
        return None
    taken = {
        occurrence.replica
        for occurrence in derive_events(s.job, s.status, s.facts)
        if occurrence.event is Event.POD_EVICTED and event_key(occurrence, s.status.attempts) in timeouts
    }
    seen = frozenset(r for r in s.status.observed_replicas if r not in taken or r in s.facts.current)
    return replace(s.status, policy_timeouts=timeouts, observed_replicas=seen)
