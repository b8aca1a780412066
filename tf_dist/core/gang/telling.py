"""Those who are to give way are told so, and what they give up is noted."""

from __future__ import annotations

from collections.abc import Mapping

from tf_dist.core.gang import holding, words
from tf_dist.core.gang.asks import total
from tf_dist.core.gang.books import Books, Entry
from tf_dist.core.gang.holding import Pods
from tf_dist.core.gang.model import Preempt, Resize, Verdict
from tf_dist.core.gang.preempt import Plan


def tell(books: Books, plan: Plan, entry: Entry) -> dict[str, Verdict]:
    """Carry out a plan made for a gang: what is said to whom, by uid."""
    verdicts: dict[str, Verdict] = {}
    for uid, fewer in plan.fewer.items():
        victim = books.entries[uid]
        before = holding.sizes(victim.gang)
        sizes = {type_: size - fewer.get(type_, 0) for type_, size in before.items()}
        verdicts[uid] = Resize(
            sizes=sizes,
            placement=holding.placement(victim.gang, sizes),
            message=words.shrinks(before, sizes, entry.gang.key),
        )
        goes = total((member.requests, fewer.get(member.type, 0)) for member in victim.gang.members)
        books.tell(victim, _given_up(victim, fewer), goes)
    for victim in plan.whole:
        verdicts[victim.uid] = Preempt(by=entry.gang.key, message=words.preempted(victim.gang, entry.gang))
        books.tell(victim, victim.held.staying, victim.held.staying_quota)
    return verdicts


def _given_up(victim: Entry, fewer: Mapping[str, int]) -> list[Pods]:
    """Where the last pods of each type are."""
    pods = []
    for want in victim.ask.wants if victim.ask else ():
        seats = holding.last(victim.seating(want.type), fewer.get(want.type, 0))
        if want.shape is not None:
            pods += [Pods(want.shape, node, count) for node, count in sorted(seats.items()) if node]
    return pods
