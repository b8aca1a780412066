"""The hubs of this process: made for the first who comes, closed with the last who leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_dist.airflow.hub import Hub


@dataclass(slots=True)
class _Shared:
    """``ready`` guards ``hub``: whoever comes while it is being made waits for it."""

    guests: int
    ready: threading.Lock
    hub: Hub | None = None


class Hubs:
    """Hubs by what tells their clusters apart. Its methods block: keep them off an event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[object, _Shared] = {}

    def enter(self, key: object, make: Callable[[], Hub]) -> Hub:
        """The hub of ``key``, made if there is none; what ``make`` raises. ``leave`` once for each time."""
        with self._lock:
            shared = self._shared.setdefault(key, _Shared(0, threading.Lock()))
            shared.guests += 1
        try:
            with shared.ready:
                if shared.hub is None:
                    shared.hub = make()
                return shared.hub
        except BaseException:
            self.leave(key)
            raise

    def leave(self, key: object) -> None:
        """One who entered has done with it; the last closes it."""
        with self._lock:
            shared = self._shared[key]
            shared.guests -= 1
            if shared.guests > 0:
                return
            del self._shared[key]
        if shared.hub is not None:
            shared.hub.close()

    def __len__(self) -> int:
        return len(self._shared)


HUBS = Hubs()
"""Those of this process."""
