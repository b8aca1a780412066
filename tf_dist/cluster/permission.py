"""The right under which requests are sent: asked again before every attempt of a request, not once before the call.

A client repeats what got no answer, for a minute and more, and the right to write (a Lease) may be lost meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_PERMISSION: Final[ContextVar[Callable[[], float] | None]] = ContextVar("permission", default=None)


@contextmanager
def permitted_by(permission: Callable[[], float]) -> Iterator[None]:
    """Send the requests of this block, and of this thread, only while ``permission`` lasts.

    It gives the seconds that it surely still does, within which an attempt has to be over; once it has ended it raises
    what the request is to fail with.
    """
    token = _PERMISSION.set(permission)
    try:
        yield
    finally:
        _PERMISSION.reset(token)


def seconds_left() -> float:
    """For how long an attempt that begins now may take (inf: it needs no permission)."""
    permission = _PERMISSION.get()
    return math.inf if permission is None else permission()
