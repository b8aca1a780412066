"""Keeps an ``Admitter`` up to date with what has changed."""

from __future__ import annotations

from dataclasses import replace

from tf_dist.core.gang.admit import Admitter
from tf_dist.core.gang.bounds import Quotas
from tf_dist.core.gang.model import Gang, Place, Queue
from tf_dist.core.gang.snapshot import Changes


class Feed:
    """What an admitter has been told so far. The first changes that it takes have to be all there is."""

    def __init__(self, admitter: Admitter) -> None:
        self._admitter = admitter
        self._gangs: dict[str, Gang] = {}
        self._again: dict[str, None] = {}
        self._queues: tuple[Queue, ...] | None = None
        self._bounds: Quotas = {}

    def take(self, seen: Changes) -> None:
        """Tell it what is new, what has changed and what is gone."""
        if seen.queues != self._queues:
            self._queues = seen.queues
            self._admitter.put_queues(seen.queues)
        if seen.bounds != self._bounds:
            self._bounds = seen.bounds
            self._admitter.put_bounds(seen.bounds)
        for name, node in seen.nodes.items():
            if node is not None:
                self._admitter.put_node(node)
            else:
                self._admitter.remove_node(name)
        for uid, gang in seen.gangs.items():
            if gang is not None:
                self._gangs[uid] = gang
                self._again[uid] = None
            elif self._gangs.pop(uid, None) is not None:
                self._admitter.remove_gang(uid)
        again, self._again = self._again, {}
        for uid in again:
            if uid in self._gangs:
                self._admitter.put_gang(self._gangs[uid])

    def assume(self, uid: str, place: Place) -> None:
        """This gang was given a place before, by another admitter, and it has not been written down yet."""
        gang = self._gangs.get(uid)
        if gang is not None and gang.place is None:
            self._admitter.put_gang(replace(gang, place=place))

    def again(self, uid: str) -> None:
        """What it has decided about this gang has not come to pass: tell it afresh how the gang stands."""
        self._again[uid] = None
