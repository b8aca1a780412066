"""Retry policy of requests, and the fence (a leader's lease) that is checked before every attempt.

A client retries for a minute and more, and the right to write (a Lease) may be lost meanwhile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeVar

from tf_dist.cluster.api_errors import AmbiguousCreate
from tf_dist.errors import AlreadyExists, ClusterError, Throttled

T = TypeVar("T")

RETRYABLE_CODES: Final = frozenset({0, 429, 500, 502, 503, 504})
"""Codes (0: no answer) that another try may mend. Every other answer is the server's last word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How a request is repeated: at most ``max_retries`` times, and not once ``max_elapsed`` seconds have gone by.

    Pauses double from ``initial_delay`` to ``max_delay`` seconds. A server may ask for a longer one, but not for more
    than ``max_retry_after`` seconds: then the error is raised, and the caller decides.
    """

    max_retries: int = 3
    initial_delay: float = 0.2
    max_delay: float = 5.0
    max_retry_after: float = 10.0
    max_elapsed: float = 60.0

    def pause(self, code: int, error: ClusterError, *, tries: int, elapsed: float, jitter: float) -> float | None:
        """Seconds before the next try after ``tries`` of them in ``elapsed`` seconds; None: give up.

        ``jitter`` in 0..1 spreads clients that failed together: up to a half less, or a quarter more of what was asked.
        """
        if code not in RETRYABLE_CODES or tries > self.max_retries or elapsed >= self.max_elapsed:
            return None
        own = min(self.max_delay, self.initial_delay * 2.0 ** min(tries - 1, 16)) * (0.5 + jitter / 2)
        asked = error.after if isinstance(error, Throttled) else None
        if asked is None:
            return own
        return None if asked > self.max_retry_after else max(own, asked * (1 + jitter / 4))


def call_with_retries(
    attempt: Callable[[], T],
    pause: Callable[[ClusterError, int], float | None],
    sleep: Callable[[float], bool],
) -> T:
    """What ``attempt`` returns, after as many tries as it takes and is worth; else the error of the last one.

    ``pause`` gives the seconds before the next try after an error and so many tries (None: give up); ``sleep`` waits,
    and says whether to go on. A creation that meets an object which an earlier try may have made is
    ``AmbiguousCreate``.
    """
    doubtful = False
    for tries in itertools.count(1):
        try:
            return attempt()
        except AlreadyExists as error:
            if not doubtful:
                raise
            raise AmbiguousCreate(str(error), hint=error.hint) from error
        except ClusterError as error:
            seconds = pause(error, tries) if _RETRIED.get() else None
            if seconds is None or not sleep(seconds):
                raise
            # Any error but a refusal to begin may have happened after the server had acted.
            doubtful = doubtful or not isinstance(error, Throttled)
    raise AssertionError("unreachable")


_FENCE: Final[ContextVar[Callable[[], float] | None]] = ContextVar("permission", default=None)
_RETRIED: Final[ContextVar[bool]] = ContextVar("retried", default=True)


@contextmanager
def fenced_by(permission: Callable[[], float], *, retried: bool = True) -> Iterator[None]:
    """Send the requests of this block, and of this thread, only while ``permission`` lasts.

    It gives the seconds that it surely still does, within which an attempt has to be over; once it has ended it raises
    what the request is to fail with. ``retried``: False when the caller repeats them itself, and must not wait here.
    """
    fence, policy = _FENCE.set(permission), _RETRIED.set(retried)
    try:
        yield
    finally:
        _FENCE.reset(fence)
        _RETRIED.reset(policy)


def fence_seconds_left() -> float:
    """For how long an attempt that begins now may take (inf: it needs no permission)."""
    permission = _FENCE.get()
    return math.inf if permission is None else permission()
