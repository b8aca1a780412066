"""Why a gang does not fit into its queue."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from tf_dist.core.quantity import format_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Why a gang does not fit into its queue.

    Of ``resource`` it needs ``needed``; the queue may still have ``free``, and with every other gang gone ``limit``.
    ``at``: the queue or ancestor whose quota or borrowing limit says so. No ``resource``: there is no such queue;
    ``nearest`` is the one most like it, "" if none is.
    """

    queue: str
    at: str
    resource: str = ""
    needed: Decimal = Decimal(0)
    free: Decimal = Decimal(0)
    limit: Decimal = Decimal(0)
    nearest: str = ""

    @property
    def missing(self) -> Decimal:
        """How much more the queue would have to have left."""
        return self.needed - self.free

    @property
    def never(self) -> bool:
        """Whether it does not fit even when the queue has everything it can borrow. (A queue may yet be made.)"""
        return bool(self.resource) and self.needed > self.limit

    @property
    def reason(self) -> str:
        """The reason of the wait, in CamelCase as in a condition."""
        return "QuotaExceeded" if self.resource else "QueueNotFound"

    def __str__(self) -> str:
        """For people: what is short, and where."""
        if not self.resource:
            meant = f"did you mean {self.nearest}?" if self.nearest else "tf-dist queues lists those there are"
            return f"there is no queue {self.queue}; {meant}"
        needed = f"needs {self._text(self.needed)} {self.resource}"
        if self.never:
            return f"{needed}, and queue {self.queue} can never have more than {self._text(self.limit)}"
        whose = "" if self.at == self.queue else f": {self.at}, which it borrows from, allows no more"
        return f"{needed}, {self._text(self.missing)} more than the quota of queue {self.queue} leaves{whose}"

    def _text(self, value: Decimal) -> str:
        return format_quantity(value, self.resource)
