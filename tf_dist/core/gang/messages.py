"""Messages of admission: why a gang waits, what it waits for, and why a gang is preempted or resized."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tf_dist.core.gang.backfill import ReservationCache
from tf_dist.core.gang.cache import EquivalentGangs, SchedulerCache, Workload
from tf_dist.core.gang.placement.node_snapshot import NodeSnapshot
from tf_dist.core.gang.placement.pod_sets import Counts, GangRequest, PodSetRequest
from tf_dist.core.gang.placement.predicates import REFUSED_NODES
from tf_dist.core.gang.queue import PendingQueues
from tf_dist.core.gang.types import AdmissionPolicy, Gang, Resources, UnavailableNode
from tf_dist.core.model import timestamps
from tf_dist.core.model.assignment import Sizes, Wait, replica_change_text
from tf_dist.core.model.gang_queue import QueueingStrategy
from tf_dist.core.model.job import JobKey
from tf_dist.core.model.quantity import format_quantity
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.wording import MAX_LISTED, are, counted, join_names

_MOST_RESOURCES: Final = 16  # the maximum number of resources of a member in a message


def time_of_day(time: float, now: float) -> str:
    """A time of day, with its date if that is not today."""
    then, today = timestamps.utc_datetime(time), timestamps.utc_datetime(now)
    return f"{then:%H:%M} UTC" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M} UTC"


# -- shortages --


def pods_text(want: PodSetRequest, count: int) -> str:
    """``4 × (nvidia.com/gpu 1) for worker``."""
    return f"{count} × ({_text(want.member.requests)}) for {want.type}"


def _text(requests: Resources) -> str:
    shown, more = _shown(requests)
    parts = [f"{resource} {format_quantity(requests[resource], resource)}" for resource in shown]
    return ", ".join([*parts, more] if more else parts)


def _shown(requests: Resources) -> tuple[list[str], str]:
    """The resources that a message names, and its text about other resources."""
    found = sorted(resource for resource in requests if resource != "pods") or sorted(requests)
    more = len(found) - _MOST_RESOURCES
    return found[:_MOST_RESOURCES], f"{more} more resources" if more > 0 else ""


def never_fits_text(
    nodes: NodeSnapshot, request: GangRequest, lacking: int, unavailable: Mapping[str, UnavailableNode]
) -> str:
    """Why a gang does not fit even on empty nodes. ``lacking``: the member that does not fit.

    ``unavailable``: nodes that currently accept no pods, and would not help.
    """
    want, count = request.wants[lacking], request.least[lacking]
    needs = f"needs {pods_text(want, count)}"
    if not nodes.nodes:
        text = "no node accepts pods now" if unavailable else "the cluster has no node"
    elif not _allowed(nodes, want).any():
        text = f"{needs}, but no node matches its node selector, affinity and tolerations"
    elif nodes.most_ever(want.shape) >= count:
        needed = _all(request, request.least)
        text = f"needs {needed}, and even the empty cluster has no capacity for all of them{_where(request)}"
    else:
        text = f"{needs}, and even the empty cluster has only {_there(nodes, want, whole=True)}"
    nor = f"; {_listed(unavailable)} would not help" if unavailable else ""
    return f"{text}{nor}{_refused_text(request)}"


def shortage_text(nodes: NodeSnapshot, request: GangRequest, counts: Counts, short: int | None) -> str:
    """The missing capacity. ``short``: the member that does not fit even alone; None if each member fits alone."""
    if short is None:
        missing = f"needs {_all(request, counts)}, and there is no free capacity for all of them{_where(request)}"
        return missing + _refused_text(request)
    want, count = request.wants[short], counts[short]
    more = count - nodes.most(want.shape)
    free = _there(nodes, want, whole=False)
    return f"needs {pods_text(want, count)}, {more} more than fit; free: {free}{_refused_text(request)}"


def _listed(nodes: Mapping[str, UnavailableNode]) -> str:
    return join_names([f"{name} ({nodes[name].why})" for name in sorted(nodes)])


def _refused_nodes(request: GangRequest) -> list[str]:
    """The nodes that are excluded because the cluster's scheduler refused them."""
    return sorted({node for want in request.wants for node in want.member.constraints.get(REFUSED_NODES, ())})


def _refused_text(request: GangRequest) -> str:
    nodes = _refused_nodes(request)
    return f"; left out for now, refused by the cluster's scheduler: {join_names(nodes)}" if nodes else ""


def _all(request: GangRequest, counts: Counts) -> str:
    return " and ".join(pods_text(want, count) for want, count in zip(request.wants, counts, strict=True) if count)


def _where(request: GangRequest) -> str:
    locality = request.locality
    return f" within one {locality.label}" if locality and locality.required else " at once"


def _allowed(nodes: NodeSnapshot, want: PodSetRequest) -> NDArray[np.bool_]:
    """The nodes on which pods of the member may run."""
    rows = nodes.mask(want.shape)
    return np.ones(len(nodes.nodes), np.bool_) if rows is None else rows


def _there(nodes: NodeSnapshot, want: PodSetRequest, *, whole: bool) -> str:
    """The requested resources on the eligible nodes, and the number of these nodes."""
    allowed = _allowed(nodes, want)
    amounts_of = nodes.table.whole if whole else nodes.table.free
    shown = _shown(want.member.requests)[0] or ["pods"]
    totals = {r: int(amounts_of[nodes.catalogue.column(r), allowed].clip(0).sum()) for r in shown}
    amounts = {r: Decimal(total) / (1000 if r == "cpu" else 1) for r, total in totals.items()}
    found = f"{_text(amounts)} on {counted(int(allowed.sum()), 'node')}"
    for one in want.member.exclusives:
        left = int((amounts_of[nodes.catalogue.column(one.name), allowed] >= one.amount).sum())
        found += f", {left} of them with its {one.text} free"
    return found


# -- queue positions --


def gang_text(gang: Gang, reader: JobKey) -> str:
    """A gang in a message to the users of ``reader``.

    A gang of another namespace is named by its queue, because tenants must not see the names of each other's jobs.
    """
    if gang.key.namespace == reader.namespace:
        return str(gang.key)
    return f"a job of queue {gang.queue}" if gang.queue else "a job of another namespace"


def queue_position_text(number: int, ahead: Sequence[JobKey], queue: str, reader: JobKey) -> str:
    """The position of a gang in its queue, with ``number`` gangs ahead, the first of which are ``ahead``."""
    own = [key for key in ahead if key.namespace == reader.namespace]
    if len(own) == len(ahead):
        behind = join_names(ahead, number)
    else:
        shown = own[:MAX_LISTED]
        others = counted(number - len(shown), "other job") if number > len(shown) else ""
        behind = " and ".join(filter(None, (", ".join(map(str, shown)), others)))
    return f"; position {number + 1}{f' in queue {queue}' if queue else ''}" + (f", behind {behind}" if number else "")


def reserved_start_text(after: str, start: float, now: float, leaving: Iterable[str]) -> str:
    """When a gang with a reservation starts. ``after``: the gang that has to end before ("": none)."""
    gone = sorted(leaving)
    if not after:
        release = are(len(gone), "has released its", "have released their")
        return f"; starts when {join_names(gone)} {release} capacity" if gone else ""
    when = f" (about {time_of_day(start, now)})" if start < inf else ""
    return f"; starts when {after} ends{when} or is stopped"


# -- preemption and resizing --


def shrink_text(before: Sizes, sizes: Sizes, other: str) -> str:
    """The message of a gang that shrinks for another gang."""
    return f"{replica_change_text(before, sizes)}: {other} waits for capacity"


def grow_text(before: Sizes, sizes: Sizes) -> str:
    """The message of a gang that grows."""
    return f"{replica_change_text(before, sizes)}: no other gang waits for capacity"


def rest_text(before: Sizes, sizes: Sizes) -> str:
    """The message of a gang when replicas beyond its minimum start."""
    more = (f"{sizes[t] - before.get(t, 0)} more {t}" for t in sizes if sizes[t] != before.get(t))
    return f"there is capacity for {' and '.join(more)}"


def leaves_nodes_text(left: Mapping[str, Mapping[str, int]], found: Sequence[Mapping[str, int]] | None) -> str:
    """The message of a gang with pods that cannot run on their nodes. ``found``: other nodes, or None."""
    pods = " and ".join(f"{sum(nodes.values())} {type_}" for type_, nodes in left.items())
    closed = sorted({node for nodes in left.values() for node in nodes})
    text = f"{pods} cannot go to {join_names(closed)}, which {are(len(closed), 'accepts', 'accept')} no pods now; "
    if found is None:
        return f"{text}admission knows no other node with capacity, so the cluster's scheduler may choose any"
    return f"{text}assigned instead: {join_names(sorted({node for nodes in found for node in nodes}))}"


def preempted_text(victim: Gang, gang: Gang) -> str:
    """Why a gang is preempted for another gang."""
    if gang.priority > victim.priority and (gang.queue or "") == (victim.queue or ""):
        return f"its priority is higher ({gang.priority} > {victim.priority})"
    return "its queue reclaims its own quota"


# -- why a gang waits --


def explain_wait(
    cache: SchedulerCache,
    pending: PendingQueues,
    policy: AdmissionPolicy,
    entry: Workload,
    now: float,
    known: ReservationCache,
) -> Wait:
    """The verdict on a gang that was not admitted, without its rank."""
    wait = _explain_wait(cache, pending, policy, entry, now, known)
    for one in (cache.entries[gang.uid] for gang in entry.gang.fallbacks if gang.uid in cache.entries):
        if pending.in_backoff(one.uid):
            said = f"is tried from {time_of_day(one.gang.wakes_at, now)} on"
        else:
            said = f"also waits: {_explain_wait(cache, pending, policy, one, now, known).message}"
        which = f"fallback {one.gang.fallback}" if one.gang.fallback else "the job as its document has it"
        wait = replace(wait, message=f"{wait.message}; {which} {said}")
        if wait.reason.row.unreachable and not one.problem and unsatisfiable(cache, one) is None:
            wait = replace(wait, reason=Reason.WAITING_FOR_CAPACITY)
    return wait


def _explain_wait(
    cache: SchedulerCache,
    pending: PendingQueues,
    policy: AdmissionPolicy,
    entry: Workload,
    now: float,
    known: ReservationCache,
) -> Wait:
    gang, request = entry.gang, entry.request
    if entry.problem:
        return Wait(reason=Reason.UNREADABLE, message=entry.problem)
    if gang.inadmissible:
        return Wait(reason=gang.inadmissible_reason, message=gang.inadmissible)
    if pending.in_backoff(entry.uid):
        return Wait(reason=Reason.BACKOFF, message=f"tries again at {time_of_day(gang.not_before, now)}")
    waited = now - entry.since
    counts = request.least if waited >= policy.shrink_after else request.full
    blocked_by = unsatisfiable(cache, entry)
    if blocked_by is not None:
        return blocked_by
    beyond = cache.resource_quotas.beyond(gang, counts)
    if beyond is not None:
        return Wait(reason=Reason.RESOURCE_QUOTA_EXCEEDED, message=str(beyond))
    lack = cache.quotas.lack(entry.queue, request.need(counts))
    reason, message = _blocked(cache, entry, counts) if lack is None else (lack.reason, str(lack))

    def counts_as_ahead(group: EquivalentGangs) -> bool:  # except gangs that can never start
        return cache.assumed_pods.never(group.request) is None

    number, ahead = pending.ahead(entry.uid, counts_as_ahead)
    first: list[JobKey] = []
    is_foremost = waited >= policy.patience_of(gang) or gang.nominated
    for rank in ahead:
        first.append(rank.key)
        is_foremost = is_foremost and now - rank.created_at < policy.patience_of(cache.entries[rank.uid].gang)
        if len(first) >= MAX_LISTED and not is_foremost:
            break
    message += queue_position_text(number, first, gang.queue, gang.key)
    if is_foremost:  # it has a reservation; if it only waits for terminating pods, the last cycle has made it
        reservation = known.reserve(cache, entry, counts, now, ended=False) if cache.departing else None
        reservation = reservation or known.reserve(cache, entry, counts, now, ended=True)
        if reservation is not None:
            leaving = {gang_text(one.gang, gang.key) for one in cache.departing.values()}
            after = gang_text(reservation.after.gang, gang.key) if reservation.after else ""
            message += reserved_start_text(after, reservation.start, now, leaving)
    reason = Reason.PREEMPTING if gang.nominated else reason
    return Wait(reason=reason, message=message, position=number + 1)


def unsatisfiable(cache: SchedulerCache, entry: Workload) -> Wait | None:
    """Why a gang cannot start with its minimum even if all other gangs end; None if it can.

    The result depends only on the gang, the nodes, the queues and the ResourceQuotas (``SchedulerCache.limits``).
    """
    request, lack = entry.request, cache.quotas.lack(entry.queue, {})
    if lack is not None:
        return Wait(reason=lack.reason, message=str(lack))
    beyond = cache.resource_quotas.beyond(entry.gang, request.least, empty=True)
    if beyond is not None:
        return Wait(reason=Reason.NEVER_FITS, message=str(beyond))
    lack = cache.quotas.lack(entry.queue, request.need(request.least))
    if lack is not None and lack.never:
        return Wait(reason=Reason.NEVER_FITS, message=str(lack))
    assumed_pods = cache.assumed_pods
    lacking = assumed_pods.never(request)
    if lacking is None:
        return None
    unavailable = assumed_pods.unavailable
    if assumed_pods.fits_with_unavailable(request):
        text = f"it would fit with nodes that accept no pods now: {_listed(unavailable)}"
        return Wait(reason=Reason.NODES_UNAVAILABLE, message=text)
    reason = Reason.NODES_REFUSED if _refused_nodes(request) else Reason.NEVER_FITS
    return Wait(reason=reason, message=never_fits_text(assumed_pods.snapshot, request, lacking, unavailable))


def _blocked(cache: SchedulerCache, entry: Workload, counts: Counts) -> tuple[Reason, str]:
    assumed_pods, request = cache.assumed_pods, entry.request
    version, said = request.said.get(counts, (-1, ""))
    if version == assumed_pods.version:
        return Reason.WAITING_FOR_CAPACITY, said
    if assumed_pods.look(request, counts) is None:
        said = shortage_text(assumed_pods.snapshot, request, counts, assumed_pods.short(request, counts))
        request.said[counts] = assumed_pods.version, said
        return Reason.WAITING_FOR_CAPACITY, said
    if cache.queues[entry.queue].order is QueueingStrategy.STRICT_FIFO:
        return Reason.WAITING_IN_QUEUE, "it would fit, but its queue is served strictly in order"
    return Reason.RESERVED, "it would fit, but the capacity is reserved for gangs that have waited longer"
