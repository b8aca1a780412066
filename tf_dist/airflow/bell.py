"""Waking those who wait on an event loop, from any thread: a thousand at once wake the loop once."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from weakref import WeakKeyDictionary


class Bell:
    """The bell of one event loop."""

    def __init__(self) -> None:
        self._due: deque[asyncio.Event] = deque()
        self._called = False

    def ring(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        """Have the event set on its loop, soon."""
        self._due.append(event)
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._called = False  # before the first is taken: who comes from now on calls anew
        while self._due:
            self._due.popleft().set()


_bells: WeakKeyDictionary[asyncio.AbstractEventLoop, Bell] = WeakKeyDictionary()


def bell_here() -> Bell:
    """The bell of the running event loop."""
    return _bells.setdefault(asyncio.get_running_loop(), Bell())
