"""Retry policy of requests, and the fence (a leader's lease) that is checked before every attempt.

A client may retry for more than a minute, and the right to write (a Lease) may be lost in that time.
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
"""Codes (0: no response) after which a retry may succeed. Every other response is final."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a request is repeated: at most ``max_retries`` times, and within ``max_elapsed`` seconds.

    Pauses double from ``initial_delay`` to ``max_delay`` seconds. A server may request a longer pause. If it exceeds
    ``max_retry_after`` seconds, the error is raised, and the caller decides.
    """

    max_retries: int = 3
    initial_delay: float = 0.2
    max_delay: float = 5.0
    max_retry_after: float = 10.0
    max_elapsed: float = 60.0

    def pause(self, code: int, error: ClusterError, *, tries: int, elapsed: float, jitter: float) -> float | None:
        """Seconds before the next try after ``tries`` tries in ``elapsed`` seconds; None: give up.

        ``jitter`` in 0..1 spreads clients that failed together: it shortens a pause by up to a half, or prolongs a
        requested pause by up to a quarter.
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
    """The result of ``attempt``, retried while that makes sense; otherwise the error of the last try.

    ``pause`` returns the seconds before the next try after an error and a number of tries (None: give up). ``sleep``
    waits, and returns whether to continue. A creation that finds an object which an earlier try may have created raises
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
            # After any error except throttling, the server may have executed the request.
            doubtful = doubtful or not isinstance(error, Throttled)
    raise AssertionError("unreachable")


_FENCE: Final[ContextVar[Callable[[], float] | None]] = ContextVar("permission", default=None)
_RETRIED: Final[ContextVar[bool]] = ContextVar("retried", default=True)


@contextmanager
def fenced_by(permission: Callable[[], float], *, retried: bool = True) -> Iterator[None]:
    """Send the requests of this block, in this thread, only while ``permission`` lasts.

    ``permission`` returns the seconds for which it certainly lasts, which limit each attempt. After its end, it raises
    the error with which the request fails. ``retried``: False if the caller retries itself, and must not wait here.
    """
    fence, policy = _FENCE.set(permission), _RETRIED.set(retried)
    try:
        yield
    finally:
        _FENCE.reset(fence)
        _RETRIED.reset(policy)


def fence_seconds_left() -> float:
    """The time limit of an attempt that starts now (inf: no permission is needed)."""
    permission = _FENCE.get()
    return math.inf if permission is None else permission()
