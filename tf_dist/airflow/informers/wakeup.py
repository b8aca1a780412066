"""Wake-ups of tasks on an event loop by other threads."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Protocol
from weakref import WeakKeyDictionary


class _Settable(Protocol):
    def set(self) -> None: ...


class LoopWaker:
    """Wakes tasks of one event loop from other threads."""

    def __init__(self) -> None:
        self._due: deque[_Settable] = deque()
        self._called = False

    def wake(self, loop: asyncio.AbstractEventLoop, event: _Settable) -> None:
        """Set the event on its loop, soon."""
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
    """An event for one task of the running loop. Any thread sets it by calling it.

    An ``asyncio.Event`` needs a queue and a coroutine for each waiting task, and a thousand triggers wait.
    """

    __slots__ = ("_loop", "_set", "_waiter", "_waker")

    def __init__(self) -> None:
        self._loop, self._waker = asyncio.get_running_loop(), waker_of_running_loop()
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def __call__(self) -> None:
        """Set the event, soon, from any thread."""
        self._waker.wake(self._loop, self)

    def set(self) -> None:
        """Wake the task, on its loop."""
        self._set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Reset the event."""
        self._set = False

    def wait(self) -> asyncio.Future[None]:
        """A future that is done when the event is set."""
        self._waiter = self._loop.create_future()
        if self._set:
            self._waiter.set_result(None)
        return self._waiter
