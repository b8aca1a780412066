"""``Quotas``: how much each queue may still have, who has borrowed from whom, and which queue is served next.

Each queue has a nominal quota of its own; what it does not use, the other queues of its tree may borrow, within the
borrowing limit of the one and the lending limit of the other. Limits hold level by level: what a department borrows
is limited by the department, whoever of its teams asks.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from tf_dist.core.gang.model import Queue, Resources
from tf_dist.core.gang.queue_lack import Lack
from tf_dist.core.gang.queue_tree import DEFAULT, Account, Branch, amount, billionths, grow

__all__ = ["Lack", "Quotas", "Share"]

Share = tuple[float, ...]
"""How much a queue has, for comparing: per level from the root, what is borrowed and then what is held."""

_NOTHING: Final[Resources] = MappingProxyType({})
_NOTHING_MORE: Final[Mapping[str, int]] = MappingProxyType({})


class Quotas:
    """What all queues hold and may have. A step costs O(depth of the tree × resources), however many queues there are.

    What is held depends only on what was taken and given, not on the order. A queue "" is the queue ``default``.
    ``problems``: by name, what is wrong with a queue; none of it stops the others. ValueError: two of one name.
    ``capacity``: what the cluster has; by it the shares of queues without quotas are measured.
    """

    def __init__(self, queues: Iterable[Queue], capacity: Resources = _NOTHING) -> None:
        self._branches, problems = grow(queues)
        self.problems: Mapping[str, str] = problems
        self._capacity: dict[str, int] = {}
        self._gives = 0
        self.put_capacity(capacity)

    def put_capacity(self, capacity: Resources) -> None:
        """What the cluster has, where that has changed."""
        whole = billionths(capacity)
        if whole == self._capacity:
            return
        self._capacity = whole
        self._gives += 1
        for branch in self._branches.values():
            branch.share = None

    def __contains__(self, queue: str) -> bool:
        """Whether jobs may name this queue."""
        branch = self._branches.get(queue or DEFAULT)
        return branch is not None and branch.defined

    @property
    def gives(self) -> int:
        """A number that grows whenever the share of some queue may have become smaller."""
        return self._gives

    @property
    def names(self) -> list[str]:
        """All queues that jobs may name."""
        return sorted(name for name, branch in self._branches.items() if branch.defined)

    def lack(self, queue: str, need: Resources) -> Lack | None:
        """Why a gang that needs so much in all does not fit into its queue now; None if it does.

        Of several resources it names one that will never fit, if there is one, else the first by name.
        """
        name = queue or DEFAULT
        if name not in self:
            near = difflib.get_close_matches(name, self.names)
            return Lack(queue=name, at=name, nearest=near[0] if near else "")
        limits = self._branches[name].limits
        if not limits:
            return None
        worst: tuple[bool, str, int] | None = None
        for resource, value in billionths(need).items():
            account = limits.get(resource)
            if account is not None and value > account.left()[0]:
                found = (value <= account.possible, resource, value)
                worst = found if worst is None else min(worst, found)
        return None if worst is None else _lack(name, worst[1], worst[2], limits[worst[1]])

    def fits(self, queue: str, need: Resources) -> bool:
        """Whether such a gang fits into its queue now: whether there is no ``lack``."""
        branch = self._branches.get(queue or DEFAULT)
        if branch is None or not branch.defined:
            return False
        if branch.limits:
            for resource, value in billionths(need).items():
                account = branch.limits.get(resource)
                if account is not None and value > account.left()[0]:
                    return False
        return True

    def could_fit(self, queue: str, need: Resources) -> bool:
        """Whether it would with every other gang gone. (Into a queue that does not exist: it may yet be made.)"""
        branch = self._branches.get(queue or DEFAULT)
        if branch is None or not branch.limits:
            return True
        limits = branch.limits
        return all(r not in limits or value <= limits[r].possible for r, value in billionths(need).items())

    def most(self, queue: str, need: Resources, limit: int) -> int:
        """How many times ``need`` fits into the queue, up to ``limit``; none into a queue that does not exist."""
        if queue not in self:
            return 0
        limits = self._branches[queue or DEFAULT].limits
        for resource, value in billionths(need).items():
            if resource in limits:
                limit = min(limit, max(0, limits[resource].left()[0]) // value)
        return limit

    def take(self, queue: str, need: Resources) -> None:
        """A gang of the queue has so much from now on, whether it fits or not: what runs, runs."""
        self._move(self._branch(queue), need, 1)

    def give(self, queue: str, need: Resources) -> None:
        """It has so much no more."""
        branch = self._branch(queue)
        self._move(branch, need, -1)
        branch.root.freed += 1
        self._gives += 1

    def epoch(self, queue: str) -> int:
        """A number that grows whenever a gang that did not fit into the queue's quota might fit now."""
        return self._branch(queue).root.freed

    def used(self, queue: str) -> dict[str, Decimal]:
        """What the gangs of this queue and of those below it hold."""
        return {resource: amount(value) for resource, value in sorted(self._branch(queue).holding().items()) if value}

    def borrowed(self, queue: str) -> dict[str, Decimal]:
        """What of that is more than its own, and hence another queue's."""
        accounts = sorted(self._branch(queue).accounts.items())
        return {resource: amount(a.used - a.quota) for resource, a in accounts if a.used > a.quota}

    def nominal(self, queue: str) -> dict[str, Decimal]:
        """What is its own, with that of the queues below it."""
        return {resource: amount(value) for resource, value in sorted(self._branch(queue).nominal.items())}

    def share(self, queue: str, need: Resources = _NOTHING) -> Share:
        """How much the queue has, with ``need`` added: of two queues the one with less is to be served first.

        It compares first the trees, then, within one, branch with branch and so on down. A branch's share is the
        largest, over the resources, of what it borrows in proportion to what there is to borrow, and if that is alike
        of what it holds in proportion to what is its own (where it has no quota: to the cluster); by its weight.
        """
        branch = self._branch(queue)
        if not need:
            return tuple(part for one in branch.path for part in one.share or self._measure(one))
        extra = billionths(need)
        rest = {resource: value for resource, value in extra.items() if resource in branch.limits}
        levels = []
        for one in reversed(branch.path):
            levels.append(self._proportions(one, rest, extra))
            rest = {r: one.accounts[r].beyond(value) - one.accounts[r].beyond(0) for r, value in rest.items()}
        return tuple(part for level in reversed(levels) for part in level)

    def fill(self, queue: str) -> float:
        """How much of what is its own the queue holds, of the resource where that is most; 1: all, more: it borrows.

        A queue without quotas: of the cluster; 0 if that is not known.
        """
        return self._holding(self._branch(queue), _NOTHING_MORE)

    def reclaims(self, queue: str, need: Resources, victim: str) -> bool:
        """Whether ``queue`` may take back from ``victim`` what it needs.

        It may if it is ``entitled``, and the victim's branch has more than its own of something that is needed.
        """
        if not self.entitled(queue, need, victim):
            return False
        ours, theirs = self._branch(queue), self._branch(victim)
        parting = _parting(ours, theirs)
        return any(_over(theirs, parting, resource) > 0 for resource in billionths(need) if resource in ours.limits)

    def entitled(self, queue: str, need: Resources, victim: str) -> bool:
        """Whether, seen from where the two branches part, that of ``queue`` stays within what is its own."""
        ours, theirs = self._branch(queue), self._branch(victim)
        if ours is theirs or ours.root is not theirs.root:
            return False
        parting = _parting(ours, theirs)
        wanted = {resource: value for resource, value in billionths(need).items() if resource in ours.limits}
        return all(_over(ours, parting, resource) + value <= 0 for resource, value in wanted.items())

    def _branch(self, queue: str) -> Branch:
        """A queue's branch; one that is not there (any more) holds what its gangs hold, and counts nowhere else."""
        name = queue or DEFAULT
        branch = self._branches.get(name)
        if branch is None:
            branch = self._branches[name] = Branch(name, defined=False)
            branch.path = (branch,)
        return branch

    def _move(self, branch: Branch, need: Resources, sign: int) -> None:
        for one in branch.path:
            one.share = None
        for resource, value in billionths(need).items():
            if resource in branch.limits:
                branch.limits[resource].add(sign * value)
                continue
            for one in branch.path:
                one.unlimited[resource] = one.unlimited.get(resource, 0) + sign * value

    def _measure(self, branch: Branch) -> tuple[float, float]:
        branch.share = self._proportions(branch, _NOTHING_MORE, _NOTHING_MORE)
        return branch.share

    def _proportions(self, branch: Branch, borrowed: Mapping[str, int], held: Mapping[str, int]) -> tuple[float, float]:
        """Its borrowing and its holding, each with so much more, by its weight."""
        return _borrowing(branch, borrowed) / branch.weight, self._holding(branch, held) / branch.weight

    def _holding(self, branch: Branch, extra: Mapping[str, int]) -> float:
        most = 0.0
        holding = branch.holding()
        for resource in {**holding, **extra}:
            whole = branch.nominal.get(resource, 0)
            if not whole and resource not in branch.limits:
                whole = self._capacity.get(resource, 0)
            if whole > 0:
                most = max(most, (holding.get(resource, 0) + extra.get(resource, 0)) / whole)
        return most


def _lack(queue: str, resource: str, value: int, account: Account) -> Lack:
    left, narrowest = account.left()
    return Lack(
        queue=queue,
        at=narrowest.at,
        resource=resource,
        needed=amount(value),
        free=amount(max(0, left)),
        limit=amount(account.possible),
    )


def _borrowing(branch: Branch, extra: Mapping[str, int]) -> float:
    most = 0.0
    for resource, account in branch.accounts.items():
        over = account.used + extra.get(resource, 0) - account.quota
        parent = account.parent
        if over > 0 and parent:
            most = max(most, over / parent.possible if parent.possible > 0 else float("inf"))
    return most


def _over(branch: Branch, parting: int, resource: str) -> int:
    """By how much the branch below the parting has more than its own; below zero: so much it has left.

    A queue that is itself the parting has its own gangs and its own nominal, without those of the queues below it.
    """
    if parting < len(branch.path):
        account = branch.path[parting].accounts.get(resource)
        return account.used - account.quota if account else 0
    held = branch.accounts[resource].held if resource in branch.accounts else 0
    below = sum(one.accounts[resource].held for one in branch.below if resource in one.accounts)
    return held - below - branch.own.get(resource, 0)


def _parting(one: Branch, other: Branch) -> int:
    """How many levels from the root two branches have in common."""
    return sum(1 for mine, theirs in zip(one.path, other.path, strict=False) if mine is theirs)
