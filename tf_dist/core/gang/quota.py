"""Quotas of queues: available quota, borrowing within a cohort, fair shares, and status.

Each queue has a nominal quota. Other queues of its tree may borrow the unused part, within their borrowing limit and
the queue's lending limit. Limits apply at each level: a department's limit applies to all of its teams.

The tree has an account for every queue and resource. Its *quota* is the queue's nominal quota plus the quota that the
queues below it lend. The queue keeps the *guaranteed* part (all except its lending limit) and lends the rest to its
parent. Use beyond the guaranteed part also counts at the parent, so for any order of gangs ``used = own gangs + sum
over children of max(0, used - guaranteed)``. Amounts are whole billionths (Kubernetes' smallest unit), so that sums are
exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from tf_dist.core.gang.types import Resources
from tf_dist.core.model.fieldpath import nearest_word
from tf_dist.core.model.gang_queue import DEFAULT_QUEUE, Queue, Quota, circular_parents
from tf_dist.core.model.quantity import format_quantity
from tf_dist.core.model.reasons import Reason

_PER_UNIT: Final = Decimal(10**9)


def resources_in_billionths(resources: Resources) -> dict[str, int]:
    """Amounts as whole billionths, rounded up, without zeros."""
    return {resource: to_billionths(value) for resource, value in resources.items() if value}


@lru_cache(maxsize=4096)  # many pods request the same few amounts
def to_billionths(value: Decimal) -> int:
    """An amount in billionths."""
    return int((value * _PER_UNIT).to_integral_value(ROUND_CEILING))


def from_billionths(billionths: int) -> Decimal:
    """Billionths as an amount."""
    units, rest = divmod(billionths, 10**9)
    return Decimal(units) + Decimal(rest) / _PER_UNIT if rest else Decimal(units)


@dataclass(slots=True, eq=False)
class ResourceAccount:
    """Account of one resource of one queue."""

    at: str
    """The queue."""
    quota: int
    """The nominal quota of the queue, plus the quota that the queues below it lend."""
    guaranteed: int = 0
    """The part that the queue never lends."""
    ceiling: int | None = None
    """The maximum use, by its borrowing limit; None: no limit."""
    possible: int = 0
    """The maximum for gangs of this queue if no other queue used anything."""
    used: int = 0
    """The use that counts against the quota."""
    held: int = 0
    """The use of the resource by gangs of this queue and of the queues below it."""
    line: tuple[ResourceAccount, ...] = ()
    """The accounts from the root of its tree down to itself."""

    def left(self) -> tuple[int, ResourceAccount]:
        """The available amount, and the account that limits it."""
        root = self.line[0]
        left, narrowest = root.quota - root.used, root
        for account in self.line[1:]:
            kept = account.guaranteed - account.used
            if account.ceiling is not None:
                own = account.ceiling - (account.guaranteed if kept > 0 else account.used)
                if own < left:
                    left, narrowest = own, account
            left = (left if left > 0 else 0) + (kept if kept > 0 else 0)
        return left, narrowest

    def add(self, more: int) -> None:
        """Add (or, if negative, subtract) use here and in every account above, as far as it propagates."""
        extra = more
        for account in reversed(self.line):
            account.held += more
            if extra:
                before = account.used - account.guaranteed
                account.used += extra
                after = before + extra
                # The parent's part: usage beyond the guarantee now, less what it was before.
                extra = (after if after > 0 else 0) - (before if before > 0 else 0)


@dataclass(slots=True, eq=False)
class CohortNode:
    """A queue in its tree, with its accounts."""

    name: str
    """The name of the queue."""
    weight: int = 1
    """Its weight in fair sharing."""
    defined: bool = True
    """Whether the queue has a document. Otherwise, it is only named as a parent, or was deleted while its gangs run."""
    path: tuple[CohortNode, ...] = ()
    """From the root of its tree down to itself."""
    limits: dict[str, ResourceAccount] = field(default_factory=dict)
    """The accounts of resources that limit the queue's own gangs: resources with a quota here or above."""
    accounts: dict[str, ResourceAccount] = field(default_factory=dict)
    """The accounts in ``limits``, and of resources for which only queues below have quotas."""
    nominal: dict[str, int] = field(default_factory=dict)
    """The sums of its nominal quotas and those of all queues below it."""
    own: dict[str, int] = field(default_factory=dict)
    """Its nominal quotas."""
    unlimited: dict[str, int] = field(default_factory=dict)
    """The use of resources without a quota by it and the queues below."""
    below: list[CohortNode] = field(default_factory=list)
    """The queues directly below it."""
    share: tuple[float, float] | None = None
    """Its relative borrowing and use, by weight; None if they must be computed again."""

    def holding(self) -> dict[str, int]:
        """The use by gangs of the queue and of the queues below it."""
        total = dict(self.unlimited)
        for resource, account in self.accounts.items():
            if account.held:
                total[resource] = total.get(resource, 0) + account.held
        return total


def build_cohorts(queues: Iterable[Queue]) -> tuple[dict[str, CohortNode], dict[str, str]]:
    """The nodes of the tree by name, and the problems of queues.

    Problems do not prevent decisions. An undefined parent counts as a queue without quotas, so that its queues still
    share. Queues in a cycle count as queues without a parent. Raises ValueError if two queues have the same name.
    """
    known: dict[str, Queue] = {}
    for queue in queues:
        if queue.name in known:
            raise ValueError(f"two queues are named {queue.name}")
        known[queue.name] = queue
    known.setdefault(DEFAULT_QUEUE, Queue(name=DEFAULT_QUEUE))
    problems = {}
    parents = {name: known[name].parent for name in sorted(known)}
    for name in circular_parents(parents):
        problems[name] = f"its parents lead back to itself ({parents[name]}): it stands alone and cannot borrow"
    parents.update(dict.fromkeys(problems, ""))
    for name, parent in list(parents.items()):
        if parent and parent not in known:
            parents[parent] = ""
            problems[name] = f"its parent {parent} does not exist: it is taken for a queue without quotas"
    below: dict[str, list[str]] = {}
    for name in sorted(parents):
        below.setdefault(parents[name], []).append(name)
    branches: dict[str, CohortNode] = {}
    stack: list[tuple[str, tuple[CohortNode, ...]]] = [(name, ()) for name in reversed(below.get("", []))]
    while stack:
        name, above = stack.pop()
        branch = CohortNode(name, max(1, known[name].weight) if name in known else 1, name in known)
        branch.path = (*above, branch)
        branches[name] = branch
        if above:
            above[-1].below.append(branch)
        stack += [(child, branch.path) for child in reversed(below.get(name, []))]
    ordered = list(branches.values())  # parents before their children
    for branch in reversed(ordered):
        _add_up(branch, known[branch.name].quotas if branch.defined else {})
    for branch in ordered:
        _draw_limits(branch, known[branch.name].quotas if branch.defined else {})
    return branches, problems


def _add_up(branch: CohortNode, quotas: Mapping[str, Quota]) -> None:
    """Sum up quotas from the leaves to the root."""
    branch.own = {resource: to_billionths(quota.nominal) for resource, quota in quotas.items()}
    totals = dict(branch.own)
    lent = dict(branch.own)
    for child in branch.below:
        for resource, account in child.accounts.items():
            lent[resource] = lent.get(resource, 0) + account.quota - account.guaranteed
        for resource, value in child.nominal.items():
            totals[resource] = totals.get(resource, 0) + value
    branch.nominal = totals
    for resource, value in lent.items():
        account = branch.accounts[resource] = ResourceAccount(branch.name, value)
        quota = quotas.get(resource)
        if quota is None or len(branch.path) == 1:
            continue  # the root has no queue to borrow from or to lend to
        if quota.lending_limit is not None:
            account.guaranteed = max(0, value - to_billionths(quota.lending_limit))
        if quota.borrowing_limit is not None:
            account.ceiling = value + to_billionths(quota.borrowing_limit)


def _draw_limits(branch: CohortNode, quotas: Mapping[str, Quota]) -> None:
    """Set the accounts that limit a queue's gangs, and their maximums, from the root to the leaves."""
    parent = branch.path[-2] if len(branch.path) > 1 else None
    for resource in parent.limits if parent else ():
        branch.accounts.setdefault(resource, ResourceAccount(branch.name, 0))
    for resource, account in branch.accounts.items():
        above = parent.accounts[resource] if parent else None
        account.line = (*above.line, account) if above else (account,)
        account.possible = account.quota
        if above:
            borrowed = above.possible
            if account.ceiling is not None:
                borrowed = min(borrowed, account.ceiling - account.guaranteed)
            account.possible = account.guaranteed + borrowed
        if resource in quotas or (parent and resource in parent.limits):
            branch.limits[resource] = account


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaShortage:
    """Why a gang does not fit into its queue."""

    queue: str
    """The queue of the gang."""
    at: str
    """The queue or ancestor whose quota or borrowing limit is too small."""
    resource: str = ""
    """The resource that is short; "" if the queue does not exist."""
    needed: Decimal = Decimal(0)
    """The amount that the gang needs."""
    missing: Decimal = Decimal(0)
    """The part of ``needed`` that is missing."""
    limit: Decimal = Decimal(0)
    """The maximum if no other gang used anything."""
    nearest: str = ""
    """The queue with the most similar name, if the queue does not exist."""

    @property
    def never(self) -> bool:
        """Whether the gang needs more than the queue can ever have. False for a missing queue: it may be created."""
        return bool(self.resource) and self.needed > self.limit

    @property
    def reason(self) -> Reason:
        """The reason of the wait."""
        return Reason.QUOTA_EXCEEDED if self.resource else Reason.QUEUE_NOT_FOUND

    def __str__(self) -> str:
        """The message: the missing resource, and the queue."""
        if not self.resource:
            meant = f"did you mean {self.nearest}?" if self.nearest else "tf-dist queues lists the queues"
            return f"there is no queue {self.queue}; {meant}"
        needed = f"needs {self._text(self.needed)} {self.resource}"
        if self.never:
            return f"{needed}, and queue {self.queue} can never have more than {self._text(self.limit)}"
        whose = "" if self.at == self.queue else f": {self.at}, which it borrows from, allows no more"
        return f"{needed}, {self._text(self.missing)} more than the quota of queue {self.queue} leaves{whose}"

    def _text(self, value: Decimal) -> str:
        return format_quantity(value, self.resource)


Share = tuple[float, ...]
"""The share of a queue, for comparison: the borrowed and the held share at each level from the root."""


class Quotas:
    """Quotas and usage of all queues. A change costs O(depth of the tree × resources) for any number of queues.

    The state depends only on the taken and given amounts, not on their order. A queue "" is the queue ``default``.
    ``problems``: the problems of queues, by name. ``capacity``: the capacity of the cluster, which determines the
    shares of queues without quotas. Raises ValueError if two queues have the same name.
    """

    def __init__(self, queues: Iterable[Queue], capacity: Resources = MappingProxyType({})) -> None:
        self._branches, problems = build_cohorts(queues)
        self.problems: Mapping[str, str] = problems
        self.gives = 0
        """Increases whenever the share of some queue may have decreased."""
        self._capacity: dict[str, int] = {}
        self.put_capacity(capacity)

    def put_capacity(self, capacity: Resources) -> None:
        """Set the capacity of the cluster."""
        whole = resources_in_billionths(capacity)
        if whole == self._capacity:
            return
        self._capacity = whole
        self.gives += 1
        for branch in self._branches.values():
            branch.share = None

    def __contains__(self, queue: str) -> bool:
        """Whether jobs may name this queue."""
        branch = self._branches.get(queue or DEFAULT_QUEUE)
        return branch is not None and branch.defined

    @property
    def names(self) -> list[str]:
        """All queues that jobs may name."""
        return sorted(name for name, branch in self._branches.items() if branch.defined)

    def lack(self, queue: str, need: Resources) -> QuotaShortage | None:
        """Why a gang with this request does not fit into its queue now; None if it does.

        If several resources are short, the result names a resource that can never fit, otherwise the first by name.
        """
        name = queue or DEFAULT_QUEUE
        if name not in self:
            return QuotaShortage(queue=name, at=name, nearest=nearest_word(name, self.names))
        limits = self._branches[name].limits
        if not limits:
            return None
        short = (
            (value <= limits[resource].possible, resource, value)
            for resource, value in resources_in_billionths(need).items()
            if resource in limits and value > limits[resource].left()[0]
        )
        worst = min(short, default=None)
        if worst is None:
            return None
        _, resource, value = worst
        left, narrowest = limits[resource].left()
        return QuotaShortage(
            queue=name,
            at=narrowest.at,
            resource=resource,
            needed=from_billionths(value),
            missing=from_billionths(value - max(0, left)),
            limit=from_billionths(limits[resource].possible),
        )

    def fits(self, queue: str, need: Resources) -> bool:
        """Whether a gang with this request fits into its queue now: ``lack`` returns None."""
        branch = self._branches.get(queue or DEFAULT_QUEUE)
        if branch is None or not branch.limits:
            return branch is not None and branch.defined
        for resource, value in resources_in_billionths(need).items():
            account = branch.limits.get(resource)
            if account is not None and value > account.left()[0]:
                return False
        return branch.defined

    def could_fit(self, queue: str, need: Resources) -> bool:
        """Whether it would fit if no other gang used anything. True for a missing queue, which may be created."""
        branch = self._branches.get(queue or DEFAULT_QUEUE)
        if branch is None or not branch.limits:
            return True
        limits = branch.limits
        return all(r not in limits or value <= limits[r].possible for r, value in resources_in_billionths(need).items())

    def take(self, queue: str, need: Resources) -> None:
        """Add the usage of a running gang to its queue, even if it does not fit."""
        self._move(self._branch(queue), need, 1)

    def give(self, queue: str, need: Resources) -> None:
        """Subtract usage of a gang from its queue."""
        self._move(self._branch(queue), need, -1)
        self.gives += 1

    def used(self, queue: str) -> dict[str, Decimal]:
        """The usage of the gangs of this queue and of the queues below it."""
        holding = sorted(self._branch(queue).holding().items())
        return {resource: from_billionths(value) for resource, value in holding if value}

    def borrowed(self, queue: str) -> dict[str, Decimal]:
        """The part of a queue's usage beyond its own quota, which is borrowed."""
        accounts = sorted(self._branch(queue).accounts.items())
        return {resource: from_billionths(a.used - a.quota) for resource, a in accounts if a.used > a.quota}

    def nominal(self, queue: str) -> dict[str, Decimal]:
        """The nominal quota of a queue and of the queues below it."""
        return {resource: from_billionths(value) for resource, value in sorted(self._branch(queue).nominal.items())}

    def share(self, queue: str) -> Share:
        """The share of a queue. Of two queues, the queue with the smaller share is served first.

        Shares are compared from the root down: first trees, then branches. The share of a branch is the maximum, over
        the resources, of its borrowing relative to the lendable quota. If these are equal, it is the maximum of its use
        relative to its own quota (without a quota: to the cluster). Both are divided by its weight.
        """
        shares: list[float] = []
        for branch in self._branch(queue).path:
            if branch.share is None:
                most = 0.0
                for account in branch.accounts.values():
                    over = account.used - account.quota
                    if over > 0 and len(account.line) > 1:
                        lendable = account.line[-2].possible
                        most = max(most, over / lendable if lendable > 0 else float("inf"))
                branch.share = most / branch.weight, self._holding(branch) / branch.weight
            shares += branch.share
        return tuple(shares)

    def fill(self, queue: str) -> float:
        """The used share of a queue's nominal quota, for the resource with the highest share. Above 1, it borrows.

        For a queue without quotas, this is the share of the cluster's capacity, or 0 if the capacity is unknown.
        """
        return self._holding(self._branch(queue))

    def reclaims(self, queue: str, need: Resources, victim: str) -> bool:
        """Whether ``queue`` may take back quota from ``victim``.

        It may if it is ``entitled``, and the victim's branch uses more than its own quota of a needed resource.
        """
        if not self.entitled(queue, need, victim):
            return False
        ours, theirs = self._branch(queue), self._branch(victim)
        parting = _common_depth(ours, theirs)
        return any(_over(theirs, parting, r) > 0 for r, value in need.items() if value and r in ours.limits)

    def entitled(self, queue: str, need: Resources, victim: str) -> bool:
        """Whether ``queue``'s branch, below the queues' common ancestor, stays within its quota with ``need``."""
        ours, theirs = self._branch(queue), self._branch(victim)
        if ours is theirs or ours.path[0] is not theirs.path[0]:
            return False
        parting, wanted = _common_depth(ours, theirs), resources_in_billionths(need)
        return all(_over(ours, parting, r) + value <= 0 for r, value in wanted.items() if r in ours.limits)

    def _branch(self, queue: str) -> CohortNode:
        """A queue's node in the tree. A missing or deleted queue has no quotas, only the usage of its gangs."""
        name = queue or DEFAULT_QUEUE
        branch = self._branches.get(name)
        if branch is None:
            branch = self._branches[name] = CohortNode(name, defined=False)
            branch.path = (branch,)
        return branch

    def _move(self, branch: CohortNode, need: Resources, sign: int) -> None:
        for one in branch.path:
            one.share = None
        for resource, value in resources_in_billionths(need).items():
            if resource in branch.limits:
                branch.limits[resource].add(sign * value)
                continue
            for one in branch.path:
                one.unlimited[resource] = one.unlimited.get(resource, 0) + sign * value

    def _holding(self, branch: CohortNode) -> float:
        most = 0.0
        for resource, held in branch.holding().items():
            whole = branch.nominal.get(resource, 0)
            if not whole and resource not in branch.limits:
                whole = self._capacity.get(resource, 0)
            if whole > 0:
                most = max(most, held / whole)
        return most


def _over(branch: CohortNode, parting: int, resource: str) -> int:
    """The amount by which the branch below the common ancestor exceeds its own quota; if negative, the amount left.

    If the queue itself is the common ancestor, its own gangs and nominal quota count, without the queues below it.
    """
    if parting < len(branch.path):
        account = branch.path[parting].accounts.get(resource)
        return account.used - account.quota if account else 0
    held = branch.accounts[resource].held if resource in branch.accounts else 0
    below = sum(one.accounts[resource].held for one in branch.below if resource in one.accounts)
    return held - below - branch.own.get(resource, 0)


def _common_depth(one: CohortNode, other: CohortNode) -> int:
    """The number of levels from the root that two branches share."""
    return sum(1 for mine, theirs in zip(one.path, other.path, strict=False) if mine is theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUsage:
    """The state of a queue."""

    pending: int
    """The number of waiting gangs, without the queues below it."""
    admitted: int
    """The number of admitted gangs, without the queues below it."""
    used: Resources
    """The usage of its gangs and of the queues below it."""
    borrowed: Resources
    """The usage beyond its quota."""
    nominal: Resources
    """The nominal quota, with the queues below it."""
    share: float
    """The used share of its nominal quota, for the resource with the highest share; 1: all."""
    problem: str = ""
    """The problems of its document."""


def queue_usage(quotas: Quotas, queue: str, *, pending: int, admitted: int) -> QueueUsage:
    """The usage of a queue."""
    return QueueUsage(
        pending=pending,
        admitted=admitted,
        used=quotas.used(queue),
        borrowed=quotas.borrowed(queue),
        nominal=quotas.nominal(queue),
        share=quotas.fill(queue),
        problem=quotas.problems.get(queue, ""),
    )


def queue_status(found: QueueUsage) -> dict[str, Any]:
    """The status of a Queue object. It is equal for equal usage, so that an unchanged status is not written."""
    status: dict[str, Any] = {
        "pending": found.pending,
        "admitted": found.admitted,
        "used": {name: exact_quantity(value, name) for name, value in sorted(found.used.items()) if value},
        "borrowed": {name: exact_quantity(value, name) for name, value in sorted(found.borrowed.items()) if value},
        "usage": _usage_text(found.used, found.nominal),
        "share": f"{found.share:.0%}",
    }
    return {**status, "message": found.problem} if found.problem else status


def exact_quantity(value: Decimal, resource: str) -> str:
    """An amount as an exact and readable quantity: ``64Gi``, ``1500m``, ``4``."""
    if value == value.to_integral_value():
        if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
            for power, suffix in zip(range(6, 0, -1), ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"), strict=True):
                count, rest = divmod(int(value), 1024**power)
                if count and not rest:
                    return f"{count}{suffix}"
        return f"{int(value)}"
    thousandths = value * 1000
    return f"{int(thousandths)}m" if thousandths == thousandths.to_integral_value() else f"{value.normalize():f}"


def _usage_text(used: Resources, nominal: Resources) -> str:
    """``nvidia.com/gpu 6/8, cpu 12``: usage of the nominal quota, scarce resources first."""
    parts = []
    shown = {resource for resource in {**nominal, **used} if resource in nominal or resource != "pods"}
    for resource in sorted(shown, key=lambda resource: ("/" not in resource, resource)):
        amount = format_quantity(used.get(resource, Decimal(0)), resource)
        of = f"/{format_quantity(nominal[resource], resource)}" if resource in nominal else ""
        parts.append(f"{resource} {amount}{of}")
    return ", ".join(parts)
