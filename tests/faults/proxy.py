"""An HTTP proxy between a client and an API server that injects faults.

A fault specifies which requests it affects, and how often. Other requests pass. ``calm`` ends all faults. All threads
and sockets end with the proxy.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self

from tests.faults import messages
from tests.faults.calls import Call
from tests.faults.listener import Listener, break_off
from tests.faults.messages import Answer, Reader, Request


class Kind(Enum):
    """What a fault does to a request, or to the stream of a watch."""

    REFUSE = "answers with a code; the request never reaches the server"
    RESET = "breaks the connection before the request reaches the server"
    LOSE = "the server acts, and the connection breaks before its answer"
    LATE = "breaks the connection, and the request reaches the server later"
    HANG = "nothing is heard for some seconds, then the connection breaks"
    SLOW = "takes some seconds longer"
    STALE = "a list is answered as it was answered some time ago"
    GONE = "the watch says that its version is too old, after so many events"
    CUT = "the watch breaks in the middle of the line after so many events"
    TWICE = "the watch says every event twice, and the one before once more"


_ONLY = {Kind.GONE: "watch", Kind.CUT: "watch", Kind.TWICE: "watch", Kind.STALE: "list"}


@dataclass(eq=False)
class Fault:
    """A fault of requests with these ``verbs`` and ``resources`` (empty: all), ``times`` times (None: until ``calm``).

    REFUSE uses ``code`` and ``retry_after``. HANG and SLOW use ``seconds``. Streams use ``after``, a number of events.
    """

    kind: Kind
    verbs: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    skip: int = 0
    times: int | None = 1
    code: int = 503
    retry_after: int | None = None
    seconds: float = 0.02
    after: int = 0

    def takes(self, call: Call) -> bool:
        """Whether the fault affects this request. Counts affected requests."""
        if (self.verbs and call.verb not in self.verbs) or self.times == 0:
            return False
        if self.resources and call.resource.partition("/")[0] not in self.resources:
            return False
        if call.verb != _ONLY.get(self.kind, call.verb):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(frozen=True, slots=True)
class Passed:
    """A request that reached the proxy, and its result.

    ``code`` is the server's, or 0 if the request did not reach the server. ``answer`` is the body of the answer to a
    write.
    """

    call: Call
    body: bytes
    code: int
    fault: Kind | None
    answer: bytes = b""


@dataclass(eq=False)
class Proxy:
    """Listens on loopback and forwards requests to ``upstream`` (host, port). Passes each finished request to ``told``.

    It supports REFUSE, RESET, LOSE, HANG and SLOW. The simulated network (``wire``) supports the other faults.
    """

    upstream: tuple[str, int]
    told: Callable[[Passed], None] = lambda _: None
    passed: list[Passed] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._calmed = threading.Event()
        self._listener = Listener("proxy", self._serve)
        self.url = self._listener.url
        self._listener.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.calm()
        self._listener.end()

    # Methods for tests

    def inject(self, *faults: Fault) -> None:
        """Add faults. The first matching fault affects a request."""
        with self._lock:
            self._calmed.clear()
            self._faults += faults

    def calm(self) -> None:
        """End all faults, and break hanging requests."""
        with self._lock:
            self._faults.clear()
            self._calmed.set()

    def disconnect(self) -> None:
        """Break all connections."""
        self._listener.disconnect()

    # Threads

    def _serve(self, client: socket.socket) -> None:
        # Closed connections are expected.
        with suppress(OSError, ValueError), self._listener.dialled(self.upstream) as server:
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asking, answering = Reader(client), Reader(server)
            while (request := Request.read(asking)) and self._pass(request, client, server, answering):
                pass

    def _pass(self, request: Request, client: socket.socket, server: socket.socket, answering: Reader) -> bool:
        """Handle a request, and return whether the connection continues."""
        fault = self._struck(request.call)
        kind = fault.kind if fault is not None else None
        match fault:
            case Fault(kind=Kind.REFUSE):
                self._note(request, 0, kind)
                client.sendall(messages.refusal(fault.code, "so says the proxy", fault.retry_after))
                return True
            case Fault(kind=Kind.RESET | Kind.HANG):
                self._note(request, 0, kind)
                if kind is Kind.HANG:
                    self._calmed.wait(fault.seconds)
                break_off(client)
                return False
            case Fault(kind=Kind.SLOW):
                self._calmed.wait(fault.seconds)
        server.sendall(request.head + request.body)
        answer = Answer.read(answering)
        self._note(request, answer.code, kind, answer.body if request.call.writes else b"")
        if kind is Kind.LOSE:
            break_off(client)
            return False
        client.sendall(answer.head + answer.body)
        return not answer.chunked or _stream(client, server, answering)

    def _struck(self, call: Call) -> Fault | None:
        with self._lock:
            fault = next((fault for fault in self._faults if fault.takes(call)), None)
            if fault is not None and fault.times == 0:
                self._faults.remove(fault)
            return replace(fault) if fault is not None else None

    def _note(self, request: Request, code: int, fault: Kind | None, answer: bytes = b"") -> None:
        passed = Passed(request.call, request.body, code, fault, answer)
        self.passed.append(passed)
        self.told(passed)


def _stream(client: socket.socket, server: socket.socket, answering: Reader) -> bool:
    """Forward the chunks of a watch. Return whether the server ended the watch, so that the connection continues."""
    while answering.ahead or client not in select.select([client, server], [], [])[0]:
        head = answering.readline()
        if not head:
            return False
        size = int(head.partition(b";")[0], 16)
        client.sendall(head + answering.read(size + 2))
        if not size:
            return True
    return False
