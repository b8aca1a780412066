"""Registry of this process: shared job informers, closed by their last user, and wakers of event loops."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from tf_dist.airflow.shared.job_informer import SharedJobInformer


class LoopWaker:
    """Wakes tasks of one event loop from other threads."""

    def __init__(self) -> None:
        self._due: deque[asyncio.Event] = deque()
        self._called = False

    def wake(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        """Have the event set on its loop, soon."""
        self._due.append(event)
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._called = False  # before the first is taken: who comes from now on calls anew
        while self._due:
            self._due.popleft().set()


_wakers: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWaker] = WeakKeyDictionary()


def waker_of_running_loop() -> LoopWaker:
    """The waker of the running event loop."""
    return _wakers.setdefault(asyncio.get_running_loop(), LoopWaker())


@dataclass(slots=True)
class _RegistryEntry:
    """``ready`` guards ``informer``: users that come while it is made wait for it."""

    users: int
    ready: threading.Lock
    informer: SharedJobInformer | None = None


class SharedInformerRegistry:
    """Shared informers by cluster and namespace. Its methods block: keep them off an event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[object, _RegistryEntry] = {}

    def enter(self, key: object, make: Callable[[], SharedJobInformer]) -> SharedJobInformer:
        """The informer of ``key``, made if there is none; what ``make`` raises. ``leave`` once for each time."""
        with self._lock:
            shared = self._shared.setdefault(key, _RegistryEntry(0, threading.Lock()))
            shared.users += 1
        try:
            with shared.ready:
                if shared.informer is None:
                    shared.informer = make()
                return shared.informer
        except BaseException:
            self.leave(key)
            raise

    def leave(self, key: object) -> None:
        """One who entered has done with it; the last closes it."""
        with self._lock:
            shared = self._shared[key]
            shared.users -= 1
            if shared.users > 0:
                return
            del self._shared[key]
        if shared.informer is not None:
            shared.informer.close()

    def __len__(self) -> int:
        return len(self._shared)


SHARED_INFORMERS = SharedInformerRegistry()
"""Those of this process."""
