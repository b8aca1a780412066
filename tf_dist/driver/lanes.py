"""The order in which workers take keys: what has changed before what is only looked at now and then."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# So many urgent keys are taken for one of the others that wait beside them: a driver that always has something urgent
# to do still comes to everything.
_SHARE: Final = 10


class Lanes(Generic[K]):
    """Keys that wait for a worker, each once: the urgent ones, and the others. Not thread-safe."""

    def __init__(self) -> None:
        # When each began to wait.
        self._urgent: OrderedDict[K, float] = OrderedDict()
        self._others: OrderedDict[K, float] = OrderedDict()
        self._in_a_row = 0  # urgent ones that were taken while others waited

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def add(self, key: K, since: float, *, urgent: bool) -> bool:
        """Have ``key`` wait, if it does not yet; whether that is new. One that has become urgent moves up."""
        if key in self._urgent:
            return False
        before = self._others.get(key)
        if before is not None and urgent:
            del self._others[key]
        if urgent:
            self._urgent[key] = since if before is None else before
        elif before is None:
            self._others[key] = since
        return before is None

    def take(self) -> tuple[K, float]:
        """The next one, and since when it has waited; KeyError if there is none."""
        if self._others and (not self._urgent or self._in_a_row >= _SHARE):
            self._in_a_row = 0
            return self._others.popitem(last=False)
        self._in_a_row += bool(self._others)
        return self._urgent.popitem(last=False)
