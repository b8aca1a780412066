"""How a job's memory moves on: an ordered list of rules, each a pure function that speaks or stays silent.

The first rule that speaks gives the next status; then the list is read again, until all are silent. So one pass, and
one write, carries a job as far as what is there allows. Rules, in order:

1. ``end_graceful_stop``  Completing, Terminating, Aborting end when nothing is left to stop.
2. ``suspend``/``resume`` the wish of the user; costs no restart budget.
3. ``deadline``           active longer than allowed: Failed.
4. ``succeed``            a success rule holds: Completing. Before failures: a chief that is done is done.
5. ``answer``             what happened, looked up in the policy table.
6. ``judge_by_counting``  Volcano: all replicas that end have ended.
7. ``hopeless``           no success rule can hold any more: Failed, instead of running for ever.
8. ``overspent``          the kubelet's own restarts used up the budget: Failed.
9. ``give_way``           another gang needs the place: the job waits again, or ends.
10. ``release``           pods found no node in time: the place is given back for a while.
11. ``recover``           nodes were lost: the gang goes on with less, or gives its place back.
12. ``unpin``             the scheduler refuses a pod its node: it may go to any.
13. ``resize``            admission, or the document, has changed the number of replicas.
14. ``wait_for_lost_nodes`` pods of an earlier attempt may still run: the job asks for no place.
15. ``admit``             the gang has its place.
16. ``follow_pods``       Pending, Restarting and Running follow from the pods.

``ending`` holds the rules by which a job ends, ``requeue`` those by which it waits again, ``living`` those by which it
goes on. All are told the size that the job has been granted as if its document said it (``sizes.granted``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tf_dist.core import restarts
from tf_dist.core.answering import answer
from tf_dist.core.ending import deadline, end_graceful_stop, hopeless, judge_by_counting, overspent, succeed
from tf_dist.core.facts import Facts, gather
from tf_dist.core.gang.model import Resize
from tf_dist.core.living import admit, follow_pods, resume, suspend
from tf_dist.core.lost_nodes import pods_of
from tf_dist.core.model import Job
from tf_dist.core.observed import Observed
from tf_dist.core.recovery import followed, recover, wait_for_lost_nodes
from tf_dist.core.requeue import give_way, is_complete, release
from tf_dist.core.resizing import resize
from tf_dist.core.situation import Rule, Situation
from tf_dist.core.sizes import granted
from tf_dist.core.status import LIVE, NO_PODS, Counts, Phase, Status
from tf_dist.core.unpinning import unexpired, unpin

RULES: Final[tuple[Rule, ...]] = (
    end_graceful_stop,
    suspend,
    resume,
    deadline,
    succeed,
    answer,
    judge_by_counting,
    hopeless,
    overspent,
    give_way,
    release,
    recover,
    unpin,
    resize,
    wait_for_lost_nodes,
    admit,
    follow_pods,
)

# What another driver than the job's own may do that has a verdict for it, and what it leaves to that one meanwhile.
# What the other rules say comes before the verdict, and is for the job's own driver to find out, too: it sees the pods
# that it made itself, by its own clock. Two drivers that wrote what each of them sees would write for ever.
_OF_VERDICTS: Final = frozenset({give_way, resize, admit})
_LEFT: Final = frozenset({release, recover, unpin, wait_for_lost_nodes, follow_pods})

# More steps in one pass than there are phases would be a circle.
_MOST_STEPS: Final = 2 * len(Phase)


def advance(job: Job, status: Status, observed: Observed) -> tuple[Status, Facts]:
    """The status after this moment, with the facts it was decided on; the same object when nothing changed."""
    now = observed.now
    before = status
    if status.created is None and status.phase is Phase.PENDING:
        status = replace(status, created=now, since=now, reason="JobCreated", message="the job has been accepted")
    sized = granted(job, status)
    pods = pods_of(job, observed)
    facts = gather(sized, status, pods, observed.gone)
    for _ in range(_MOST_STEPS):
        following = _first(Situation(sized, status, facts, observed, job))
        if following is None:
            break
        if status.phase in LIVE and following.phase not in LIVE:
            # Its pods may go from now on, and their restart counters with them: the end, too, says how many there were.
            following = restarts.forget(following, facts.current, facts)
        if status.succeeded - following.succeeded and isinstance(observed.verdict, Resize):
            # It was reckoned with the room of replicas that were done, and now run again.
            observed = replace(observed, verdict=None)
        if (following.attempts, following.admission) != (status.attempts, status.admission):
            sized = granted(job, following)
            facts = gather(sized, following, pods, observed.gone)
        status = following
    status = _within(sized, status) if observed.verdict_only else _remember(sized, status, facts, observed)
    return (before if status == before else status), facts


def _first(situation: Situation) -> Status | None:
    if situation.observed.verdict_only:
        return _of_verdict(situation)
    for rule in RULES:
        following = rule(situation)
        if following is not None and following != situation.status:
            return following
    return None


def _of_verdict(situation: Situation) -> Status | None:
    """What the verdict alone makes of the memory. One that waits loses nothing by it, whatever else has happened."""
    waits = situation.status.admission is None
    for rule in RULES:
        following = rule(situation) if rule is admit or not (waits or rule in _LEFT) else None
        if following is not None and following != situation.status:
            return following if rule in _OF_VERDICTS else None
    return None


def _within(job: Job, status: Status) -> Status:
    """The memory without replicas that the job is not to have any more: they are no loss."""
    sizes = {spec.type: spec.replicas for spec in job.replica_specs}
    seen = frozenset(replica for replica in status.seen if replica.index < sizes.get(replica.type, 0))
    return status if seen == status.seen else replace(status, seen=seen)


def _remember(job: Job, status: Status, facts: Facts, observed: Observed) -> Status:
    """Fold what is seen now into the memory, so that what goes missing later is missed."""
    sizes = {spec.type: spec.replicas for spec in job.replica_specs}
    # A pod that was on its way out when it came in sight (scaled away, and wanted again) is nobody's loss.
    staying = {replica for replica, pod in facts.current.items() if not pod.deleting}
    known = status.seen | staying if status.phase in LIVE else status.seen
    seen = frozenset(replica for replica in known if replica.index < sizes.get(replica.type, 0))
    counts = facts.counts if status.phase in LIVE else _kept_failures(status.counts, facts.counts)
    refused = unexpired(status.refused_nodes, observed.now)
    remembered = replace(status, seen=seen, succeeded=facts.succeeded, counts=counts, refused_nodes=refused)
    return followed(job, _completed(job, remembered, facts, observed.now), facts, observed)


def _completed(job: Job, status: Status, facts: Facts, now: float) -> Status:
    """A gang that has had all its nodes keeps its place, whatever happens to one of its pods."""
    place = status.admission
    if status.phase not in LIVE or place is None or place.complete is not None or not is_complete(job, facts):
        return status
    return replace(status, admission=replace(place, complete=now), requeues=0, not_before=0.0)


def _kept_failures(before: Mapping[str, Counts], now: Mapping[str, Counts]) -> dict[str, Counts]:
    """A job that is over says how many failed even when their pods are gone."""
    return {
        type_: replace(counts, failed=max(counts.failed, before.get(type_, NO_PODS).failed))
        for type_, counts in now.items()
    }
