"""Quotas computed from their definitions: every call sums everything again."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from tf_dist.core.gang.types import Resources
from tf_dist.core.model.gang_queue import Queue, Quota

NONE = Decimal(0)
UNSET = Quota(nominal=NONE)


class NaiveQuotas:
    """A valid forest of queues (no unknown parents, no cycles), and its gangs."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self.queues = {queue.name: queue for queue in queues}
        self.gangs: list[tuple[str, Resources]] = []

    def path(self, name: str) -> list[Queue]:
        """From the queue up to its root."""
        found = [self.queues[name]]
        while found[-1].parent:
            found.append(self.queues[found[-1].parent])
        return found

    def below(self, name: str) -> list[Queue]:
        return [queue for queue in self.queues.values() if queue.parent == name]

    def limited(self, name: str, resource: str) -> bool:
        return any(resource in queue.quotas for queue in self.path(name))

    def quota(self, name: str, resource: str) -> Decimal:
        own = self.queues[name].quotas.get(resource, UNSET).nominal
        return own + sum(
            (self.quota(q.name, resource) - self.guaranteed(q.name, resource) for q in self.below(name)), NONE
        )

    def guaranteed(self, name: str, resource: str) -> Decimal:
        limit = self.queues[name].quotas.get(resource, UNSET).lending_limit
        return NONE if limit is None else max(NONE, self.quota(name, resource) - limit)

    def usage(self, name: str, resource: str) -> Decimal:
        own = sum((need.get(resource, NONE) for queue, need in self.gangs if queue == name), NONE)
        total = own if self.limited(name, resource) else NONE
        for queue in self.below(name):
            total += max(NONE, self.usage(queue.name, resource) - self.guaranteed(queue.name, resource))
        return total

    def fits(self, name: str, need: Resources) -> bool:
        """Whether all limits that the gang affects still hold after its admission."""
        return all(self._fits(name, resource, value) for resource, value in need.items() if value)

    def _fits(self, name: str, resource: str, value: Decimal) -> bool:
        if not self.limited(name, resource):
            return True
        before = {queue.name: self.usage(queue.name, resource) for queue in self.path(name)}
        self.gangs.append((name, {resource: value}))
        after = {queue.name: self.usage(queue.name, resource) for queue in self.path(name)}
        self.gangs.pop()
        return all(
            self._holds(queue, resource, after[queue.name])
            for queue in self.path(name)
            if after[queue.name] != before[queue.name]
        )

    def _holds(self, queue: Queue, resource: str, usage: Decimal) -> bool:
        if not queue.parent:
            return usage <= self.quota(queue.name, resource)
        limit = queue.quotas.get(resource, UNSET).borrowing_limit
        covered = usage <= self.guaranteed(queue.name, resource)
        return covered or limit is None or usage <= self.quota(queue.name, resource) + limit

    # -- fair shares --

    def possible(self, name: str, resource: str) -> Decimal:
        """The maximum of a limited resource that gangs of a queue could use if no other gangs existed."""
        queue, quota = self.queues[name], self.quota(name, resource)
        if not queue.parent:
            return quota
        guaranteed = self.guaranteed(name, resource)
        limit = queue.quotas.get(resource, UNSET).borrowing_limit
        above = self.possible(queue.parent, resource)
        return guaranteed + (above if limit is None else min(above, quota + limit - guaranteed))

    def share(self, name: str, capacity: Resources) -> tuple[float, ...]:
        """From the root down to the queue: the share of what can be borrowed, and the used share of its own quota."""
        parts: list[float] = []
        for queue in reversed(self.path(name)):
            parts += [self._borrows(queue) / queue.weight, self._held(queue, capacity) / queue.weight]
        return tuple(parts)

    def _borrows(self, queue: Queue) -> float:
        most = 0.0
        for resource in {r for _, need in self.gangs for r in need}:
            over = self.usage(queue.name, resource) - self.quota(queue.name, resource)
            if over > 0 and queue.parent:
                above = self.possible(queue.parent, resource)
                most = max(most, float(over) / float(above) if above > 0 else float("inf"))
        return most

    def _held(self, queue: Queue, capacity: Resources) -> float:
        family = self._family(queue.name)
        most = 0.0
        for resource in {r for _, need in self.gangs for r in need}:
            held = sum((need.get(resource, NONE) for name, need in self.gangs if name in family), NONE)
            own = sum((self.queues[one].quotas.get(resource, UNSET).nominal for one in family), NONE)
            if not own and not self.limited(queue.name, resource):
                own = capacity.get(resource, NONE)
            most = max(most, float(held) / float(own) if own > 0 else 0.0)
        return most

    def _family(self, name: str) -> set[str]:
        return {name}.union(*(self._family(queue.name) for queue in self.below(name)))
