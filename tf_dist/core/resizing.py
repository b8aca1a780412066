"""The rule by which an admitted job gets another size: admission gives or takes, or its document asks for less.

Whoever leaves are the highest indexes; that is no failure. Where those who stay cannot go on beside another number of
replicas (``sizes.must_restart``), all start again, at no cost to the budget.
"""

from __future__ import annotations

from dataclasses import replace

from tf_dist.core import restarts
from tf_dist.core.gang.model import Resize
from tf_dist.core.model import Job
from tf_dist.core.seats import within
from tf_dist.core.situation import Situation
from tf_dist.core.sizes import Sizes, must_restart, sizes_of
from tf_dist.core.status import RESIZED, Admission, Phase, Status


def resize(s: Situation) -> Status | None:
    """Take another size, or another distribution over the nodes, into the memory; pods follow from that."""
    admission = s.status.admission
    if not s.live or admission is None:
        return None
    verdict = s.observed.verdict
    if isinstance(verdict, Resize):
        wanted, placement, why = {**admission.sizes, **verdict.sizes}, verdict.placement, verdict.message
    elif admission.sizes:
        wanted, placement, why = dict(admission.sizes), admission.placement, ""
    else:
        return None
    after = {spec.type: min(wanted.get(spec.type, spec.replicas), spec.most) for spec in s.asked.replica_specs}
    before = {**sizes_of(s.job), **admission.sizes}
    changed = any(before.get(type_) != count for type_, count in after.items())
    at = s.now if changed else admission.resized
    place = replace(admission, sizes=after, placement=within(s.asked, placement, after), resized=at)
    if not changed:
        return None if place == admission else replace(s.status, admission=place)
    return resized(s, place, before, why or f"{change_text(s.asked, before, after)}, as the job asks for now")


def resized(s: Situation, place: Admission, before: Sizes, message: str) -> Status:
    """The memory with this place, of other sizes than ``before``."""
    after = place.sizes
    leaving = [replica for replica in s.facts.current if replica.index >= after.get(replica.type, 0)]
    if not s.facts.current or not must_restart(s.asked, before, after):
        status = restarts.forget(s.status, leaving, s.facts)
        return replace(status, admission=place, reason=RESIZED, message=message)
    status = restarts.forget(s.status, s.facts.current, s.facts)
    spent = {**status.restarts, RESIZED: status.restarts.get(RESIZED, 0) + 1}
    anew = replace(
        status,
        admission=place,
        attempts=status.attempts.next_job(),
        seen=frozenset(),
        pauses={},
        restarts=spent,
    )
    message += "; all replicas start again, because TF_CONFIG names every one of them"
    return anew.to(Phase.RESTARTING, s.now, RESIZED, message)


def change_text(job: Job, before: Sizes, after: Sizes) -> str:
    """``goes from 2 to 4 worker``, for every type of which the number changes."""
    parts = [
        f"from {before.get(spec.type, 0)} to {after[spec.type]} {spec.type}"
        for spec in job.replica_specs
        if before.get(spec.type, 0) != after[spec.type]
    ]
    return f"goes {' and '.join(parts)}"


def size_text(asked: Job, sized: Job) -> str:
    """``3 worker instead of 5``, for every type that has another number of replicas than asked for; "" if none has."""
    pairs = zip(asked.replica_specs, sized.replica_specs, strict=True)
    return ", ".join(f"{b.replicas} {a.type} instead of {a.replicas}" for a, b in pairs if a.replicas != b.replicas)
