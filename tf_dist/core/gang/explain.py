"""Why a gang waits."""

from __future__ import annotations

from tf_dist.core.gang import words
from tf_dist.core.gang.asks import Ask, Counts
from tf_dist.core.gang.books import Books, Entry
from tf_dist.core.gang.grants import Grants
from tf_dist.core.gang.model import (
    NAMESPACE_MISMATCH,
    NODES_REFUSED,
    PREEMPTING,
    RESOURCE_QUOTA,
    UNREADABLE,
    Order,
    Policy,
    Wait,
)
from tf_dist.core.gang.pending import Group, Pending
from tf_dist.core.gang.reservations import Known
from tf_dist.core.model import JobKey


def explain(books: Books, pending: Pending, policy: Policy, entry: Entry, now: float, known: Known) -> Wait:
    """The verdict on a gang that has not been admitted."""
    gang, ask = entry.gang, entry.ask
    if ask is None:
        return Wait(reason=UNREADABLE, message=entry.problem, never=True)
    if gang.inadmissible:
        return Wait(reason=NAMESPACE_MISMATCH, message=gang.inadmissible)
    if pending.asleep(entry.uid):
        return Wait(reason="Backoff", message=f"tries again at {words.moment(gang.not_before, now)}")
    waited = now - entry.since
    counts = ask.least if waited >= policy.shrink_after else ask.full
    hindered = hindrance(books, entry, ask)
    if hindered is not None:
        return hindered
    beyond = books.bounds.beyond(gang, counts)
    if beyond is not None:
        return Wait(reason=RESOURCE_QUOTA, message=str(beyond))
    lack = books.quotas.lack(entry.queue, ask.need(counts))
    reason, message = _blocked(books, entry, ask, counts) if lack is None else (lack.reason, str(lack))
    reason = PREEMPTING if gang.promised else reason
    number, ahead = pending.ahead(entry.uid, lambda group: _counts(books, group))
    first: list[JobKey] = []
    foremost = waited >= policy.patience or gang.promised
    for rank in ahead:
        first.append(rank.key)
        foremost = foremost and now - rank.created_at < policy.patience
        if len(first) >= words.NAMED and not foremost:
            break
    message += words.behind(number, first, gang.queue)
    if foremost:  # then it has a reservation
        message += _starts(books, entry, counts, now, known)
    return Wait(reason=reason, message=message, position=number + 1)


def hindrance(books: Books, entry: Entry, ask: Ask) -> Wait | None:
    """Why a gang cannot start however many others end, not even at its least; None: it can.

    It depends on nothing but the gang, the nodes, the queues and the ResourceQuotas themselves (``Books.limits``).
    """
    lack = books.quotas.lack(entry.queue, {})
    if lack is not None:
        return Wait(reason=lack.reason, message=str(lack))
    beyond = books.bounds.never(entry.gang, ask.least)
    if beyond is not None:
        return Wait(reason="NeverFits", message=str(beyond), never=True)
    hopeless = _hopeless(books, entry, ask)
    if hopeless is None:
        return None
    if words.refused(ask):
        return Wait(reason=NODES_REFUSED, message=hopeless)
    return Wait(reason="NeverFits", message=hopeless, never=True)


def _hopeless(books: Books, entry: Entry, ask: Ask) -> str | None:
    lack = books.quotas.lack(entry.queue, ask.need(ask.least))
    if lack is not None and lack.never:
        return str(lack)
    lacking = books.grants.never(ask) if books.grants else None
    return words.never(books.grants.room, ask, lacking) if books.grants and lacking is not None else None


def _blocked(books: Books, entry: Entry, ask: Ask, counts: Counts) -> tuple[str, str]:
    grants: Grants | None = books.grants
    if grants is not None:
        version, said = ask.said.get(counts, (-1, ""))
        if version == grants.version:
            return "WaitingForCapacity", said
        if grants.look(ask, counts) is None:
            said = words.shortage(grants.room, ask, counts, grants.short(ask, counts))
            ask.said[counts] = grants.version, said
            return "WaitingForCapacity", said
    if books.queues[entry.queue].order is Order.STRICT_FIFO:
        return "WaitingInQueue", "there is room for it, but its queue is served strictly in order"
    return "Reserved", "there is room for it, but that is reserved for those who have waited longer"


def _counts(books: Books, group: Group) -> bool:
    """Whether gangs of a group are in the way of others: not those that can never start."""
    return books.grants is None or books.grants.never(group.ask) is None


def _starts(books: Books, entry: Entry, counts: Counts, now: float, known: Known) -> str:
    # Who need only wait for those that are leaving has been told to in the same round: then that is known.
    reservation = known.reserve(books, entry, counts, now, ended=False) if books.departing else None
    reservation = reservation or known.reserve(books, entry, counts, now, ended=True)
    if reservation is None:
        return ""
    leaving = {one.gang.key for one in books.departing.values()}
    after = reservation.after.gang.key if reservation.after else None
    return words.starts(after, reservation.start, now, leaving)
