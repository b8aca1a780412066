"""Registry of this process: shared job informers, closed by their last user, and wakers of event loops."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from tf_dist.airflow.shared.job_informer import SharedJobInformer


class _Settable(Protocol):
    def set(self) -> None: ...


class LoopWaker:
    """Wakes tasks of one event loop from other threads."""

    def __init__(self) -> None:
        self._due: deque[_Settable] = deque()
        self._called = False

    def wake(self, loop: asyncio.AbstractEventLoop, event: _Settable) -> None:
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


class Wakeup:
    """An event for one task of the running loop; any thread sets it by calling it.

    An ``asyncio.Event`` has a queue and a coroutine for each task that waits, and a thousand triggers wait.
    """

    __slots__ = ("_loop", "_set", "_waiter", "_waker")

    def __init__(self) -> None:
        self._loop, self._waker = asyncio.get_running_loop(), waker_of_running_loop()
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def __call__(self) -> None:
        """Set it, soon; from any thread."""
        self._waker.wake(self._loop, self)

    def set(self) -> None:
        """Let the task go on; on its loop."""
        self._set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """From now on it is waited for again."""
        self._set = False

    def wait(self) -> asyncio.Future[None]:
        """Done once it is set."""
        self._waiter = self._loop.create_future()
        if self._set:
            self._waiter.set_result(None)
        return self._waiter


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
