"""Which queue is served next, while serving changes what is fair."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from tf_dist.core.gang.queues import Quotas, Share


class Turns:
    """The queues that have something to be served, the one with the smallest share first.

    ``ties``: by queue, what decides between equal shares (anything comparable, such as the priority and age of its
    first gang); after that, the name. What is taken from ``Quotas`` meanwhile only makes shares larger, so a queue is
    measured again when it comes to the top; what is given makes them smaller, and then all are.
    """

    def __init__(self, quotas: Quotas, ties: Mapping[str, Any]) -> None:
        self._quotas = quotas
        self._heap = [(quotas.share(queue), tie, queue) for queue, tie in ties.items()]
        heapify(self._heap)
        self._gives = quotas.gives

    def __bool__(self) -> bool:
        """Whether a queue is left."""
        return bool(self._heap)

    def next(self) -> str:
        """Take out the queue whose turn it is. IndexError: none is left."""
        if self._gives != self._quotas.gives:
            self._gives = self._quotas.gives
            self._heap = [(self._quotas.share(queue), tie, queue) for _, tie, queue in self._heap]
            heapify(self._heap)
        while True:
            share, tie, queue = self._heap[0]
            now = self._quotas.share(queue)
            if now == share:
                return heappop(self._heap)[2]
            heapreplace(self._heap, (now, tie, queue))

    def back(self, queue: str, tie: Any) -> None:
        """It has more to be served: put it back in line."""
        share: Share = self._quotas.share(queue)
        heappush(self._heap, (share, tie, queue))
