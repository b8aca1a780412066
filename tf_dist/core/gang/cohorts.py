"""The cohort tree of queues: for every queue and resource its quota, what it lends, and what is used.

An account's *quota* is the queue's nominal and what the queues below it lend. Of that it keeps *guaranteed* for itself
(all but its lending limit) and lends the rest to its parent. What is used beyond the guarantee is used at the parent,
too: so in any order of gangs that come and go ``used = own gangs + sum over children of max(0, used - guaranteed)``.
Amounts are whole billionths (Kubernetes' finest), so that nothing is lost in adding and taking away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Final

from tf_dist.core.gang.types import DEFAULT_QUEUE, Queue, Quota, Resources

_PER_UNIT: Final = Decimal(10**9)


def resources_in_billionths(resources: Resources) -> dict[str, int]:
    """Amounts as whole billionths, rounded up, without zeros."""
    return {resource: to_billionths(value) for resource, value in resources.items() if value}


@lru_cache(maxsize=4096)  # pods ask for the same few amounts again and again
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
    """The nominal quota of the queue, and what the queues below it lend."""
    guaranteed: int = 0
    """What of that it never lends."""
    ceiling: int | None = None
    """The most that may be used here at all, by its borrowing limit; None: no limit."""
    possible: int = 0
    """The most that gangs of this queue could have if no other queue had anything."""
    used: int = 0
    """What counts against the quota."""
    held: int = 0
    """All that gangs of this queue and of those below it have of a limited resource."""
    line: tuple[ResourceAccount, ...] = ()
    """The accounts from the root of its tree down to itself."""

    @property
    def parent(self) -> ResourceAccount | None:
        """The account it borrows from."""
        return self.line[-2] if len(self.line) > 1 else None

    def left(self) -> tuple[int, ResourceAccount]:
        """How much more may be used here, and the account that sets this limit."""
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
        """Hold more, or (below zero) less, here and in every account above; usage propagates as far up as it must."""
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
    """Its part in fair sharing."""
    defined: bool = True
    """It has a document; else it is only named as a parent, or was deleted while its gangs run on."""
    path: tuple[CohortNode, ...] = ()
    """From the root of its tree down to itself."""
    limits: dict[str, ResourceAccount] = field(default_factory=dict)
    """The accounts of the resources that bind the queue's own gangs: those with a quota here or above."""
    accounts: dict[str, ResourceAccount] = field(default_factory=dict)
    """Besides those, the resources that only queues below have quotas of and share among themselves."""
    nominal: dict[str, int] = field(default_factory=dict)
    """The sum of its nominal quotas and of all below."""
    own: dict[str, int] = field(default_factory=dict)
    """Its nominal quotas."""
    unlimited: dict[str, int] = field(default_factory=dict)
    """What it and the queues below hold of what no quota binds them in."""
    below: list[CohortNode] = field(default_factory=list)
    """The queues directly below it."""
    share: tuple[float, float] | None = None
    """What it borrows and what it holds, in proportion and by weight; None: to be computed again."""

    @property
    def root(self) -> CohortNode:
        """The top of its tree."""
        return self.path[0]

    def holding(self) -> dict[str, int]:
        """All that its gangs and those of the queues below it hold."""
        total = dict(self.unlimited)
        for resource, account in self.accounts.items():
            if account.held:
                total[resource] = total.get(resource, 0) + account.held
        return total


def build_cohorts(queues: Iterable[Queue]) -> tuple[dict[str, CohortNode], dict[str, str]]:
    """The nodes of the tree by name, and the problems of queues.

    A problem stops nothing: a parent that is not defined counts as one without quotas, so that its queues still
    share; queues that are each other's parents stand alone. ValueError: two queues of the same name.
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
    return _cohort_nodes(known, parents), problems


def circular_parents(parents: Mapping[str, str]) -> list[str]:
    """The queues whose parents (by name; "": none) lead back to themselves."""
    circular: list[str] = []
    settled: set[str] = set()
    for start in parents:
        path: dict[str, None] = {}
        name = start
        while name in parents and name not in settled and name not in path:
            path[name] = None
            name = parents[name]
        if name in path:
            walked = list(path)
            circular += walked[walked.index(name) :]
        settled.update(path)
    return circular


def _cohort_nodes(known: Mapping[str, Queue], parents: Mapping[str, str]) -> dict[str, CohortNode]:
    below: dict[str, list[str]] = {}
    for name in sorted(parents):
        below.setdefault(parents[name], []).append(name)
    branches: dict[str, CohortNode] = {}
    stack: list[tuple[str, tuple[CohortNode, ...]]] = [(name, ()) for name in reversed(below.get("", []))]
    while stack:
        name, above = stack.pop()
        queue = known.get(name)
        branch = CohortNode(name, max(1, queue.weight) if queue else 1, queue is not None)
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
    return branches


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
    """Set the accounts that limit a queue's gangs, and their ceilings; from the root to the leaves."""
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
