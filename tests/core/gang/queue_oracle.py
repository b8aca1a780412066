"""Quotas from their definitions alone: everything is added up anew at every question."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from tf_dist.core.gang.model import Queue, Quota, Resources

NONE = Decimal(0)
UNSET = Quota(nominal=NONE)


class NaiveQuotas:
    """A forest that is in order (no unknown parents, no circles), and the gangs in it."""

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
        """Whether, with the gang in, every limit that it presses on still holds."""
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
