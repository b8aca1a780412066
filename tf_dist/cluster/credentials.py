"""Who we are to an API server: headers that may wear out, and a client certificate that may go with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


class Credentials(Protocol):
    """What ``RestCluster`` asks before every request, and when the server did not know us (401)."""

    def headers(self) -> Mapping[str, str]:
        """The headers to send now; ClusterError when there are none to be had."""

    def renew(self, rejected: Mapping[str, str]) -> bool:
        """Replace what ``headers`` returned before; False when there is nothing newer, so that asking again is vain."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Credentials as they were given. ``seconds``: how long they are good (None: until they are refused).

    ``certificate``: chain and key of a client, in PEM.
    """

    headers: Mapping[str, str]
    certificate: bytes = b""
    seconds: float | None = None


class Renewed:
    """Credentials from a ``source``, asked again when they are over or were refused. Thread-safe.

    ``use`` is given each new client certificate, for the handshakes to come.
    """

    def __init__(
        self,
        source: Callable[[], Grant],
        *,
        use: Callable[[bytes], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._use = use
        self._clock = clock
        self._lock = threading.Lock()
        self._held: tuple[Grant, float | None] | None = None  # with the moment when it is over

    def headers(self) -> Mapping[str, str]:
        """The headers of a grant that is good by now."""
        grant = self._good()
        if grant is None:
            with self._lock:  # one asks, the others wait for what it gets
                grant = self._good() or self._ask()
        return grant.headers

    def renew(self, rejected: Mapping[str, str]) -> bool:
        """Ask the source again, unless somebody has since ``rejected`` was returned."""
        with self._lock:
            before = self._held[0] if self._held else None
            if before is None or before.headers is not rejected:
                return True
            after = self._ask()
            return (after.headers, after.certificate) != (before.headers, before.certificate)

    def _good(self) -> Grant | None:
        if self._held is None:
            return None
        grant, until = self._held
        return grant if until is None or self._clock() < until else None

    def _ask(self) -> Grant:
        grant = self._source()
        if grant.certificate and (self._held is None or grant.certificate != self._held[0].certificate):
            self._use(grant.certificate)
        self._held = grant, None if grant.seconds is None else self._clock() + grant.seconds
        return grant


def fixed(headers: Mapping[str, str]) -> Renewed:
    """Headers that stay what they are."""
    grant = Grant(dict(headers))
    return Renewed(lambda: grant)
