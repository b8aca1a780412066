"""Keeps an ``Admitter`` up to date with snapshots, by telling it what has changed and nothing else."""

from __future__ import annotations

from dataclasses import replace

from tf_dist.core.gang.admit import Admitter
from tf_dist.core.gang.bounds import Quotas
from tf_dist.core.gang.model import Gang, Node, Place, Queue, Snapshot


class Feed:
    """What an admitter has been told so far."""

    def __init__(self, admitter: Admitter) -> None:
        self._admitter = admitter
        self._nodes: dict[str, Node] = {}
        # None: what it was told last is out of date.
        self._gangs: dict[str, Gang | None] = {}
        self._queues: tuple[Queue, ...] | None = None
        self._bounds: Quotas = {}

    def take(self, seen: Snapshot) -> None:
        """Tell it what is new, what has changed and what is gone."""
        if seen.queues != self._queues:
            self._queues = seen.queues
            self._admitter.put_queues(seen.queues)
        if seen.bounds != self._bounds:
            self._bounds = seen.bounds
            self._admitter.put_bounds(seen.bounds)
        self._take_nodes({node.name: node for node in seen.nodes or ()})
        self._take_gangs({gang.uid: gang for gang in seen.gangs})

    def assume(self, uid: str, place: Place) -> None:
        """This gang was given a place before, by another admitter, and it has not been written down yet."""
        gang = self._gangs.get(uid)
        if gang is not None and gang.place is None:
            self._admitter.put_gang(replace(gang, place=place))

    def again(self, uid: str) -> None:
        """What it has decided about this gang has not come to pass: tell it afresh how the gang stands."""
        if uid in self._gangs:
            self._gangs[uid] = None

    def _take_nodes(self, nodes: dict[str, Node]) -> None:
        for name in self._nodes.keys() - nodes.keys():
            self._admitter.remove_node(name)
        for name, node in nodes.items():
            known = self._nodes.get(name)
            if known is not node and known != node:
                self._admitter.put_node(node)
        self._nodes = nodes

    def _take_gangs(self, gangs: dict[str, Gang]) -> None:
        for uid in self._gangs.keys() - gangs.keys():
            self._admitter.remove_gang(uid)
        for uid, gang in gangs.items():
            known = self._gangs.get(uid)
            if known is not gang and known != gang:
                self._admitter.put_gang(gang)
        self._gangs = dict(gangs)
