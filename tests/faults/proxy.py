"""An HTTP proxy that stands between a client and an API server, and injects the faults that it is given.

Faults are laid out beforehand: each says which requests it is for and how often it strikes. What no fault is for
passes. ``calm`` ends them all. Every thread and socket ends with the proxy.
"""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self

from tests.faults import messages
from tests.faults.calls import Call
from tests.faults.listener import Listener, break_off, hang_up
from tests.faults.messages import Answer, Reader, Request

# How many answers to one GET are remembered, to be given again when they are out of date.
_REMEMBERED = 4


class Kind(Enum):
    """What a fault does to a request, or to the stream of a watch."""

    REFUSE = "answers with a code; the request never reaches the server"
    RESET = "breaks the connection before the request reaches the server"
    LOSE = "the server acts, and the connection breaks before its answer"
    LATE = "breaks the connection, and the request reaches the server when `deliver` is called"
    HANG = "nothing is heard for some seconds, then the connection breaks"
    SLOW = "takes some seconds longer"
    STALE = "a list is answered as it was answered some time ago"
    GONE = "the watch says that its version is too old, after so many events"
    CUT = "the watch breaks in the middle of the line after so many events"
    TWICE = "the watch says every event twice, and the one before once more"


STREAMED = frozenset({Kind.GONE, Kind.CUT, Kind.TWICE})
_ONLY = {**dict.fromkeys(STREAMED, "watch"), Kind.STALE: "list"}


@dataclass(eq=False)
class Fault:
    """``verbs`` and ``resources`` say for which requests (empty: all); ``times`` how often (None: until it is calm).

    ``code`` is for REFUSE, ``retry_after`` goes with it; ``seconds`` for HANG and SLOW; ``after`` (events) for streams.
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
        """Whether it strikes this request; counts it if so."""
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
    """A request that reached the proxy: what it asked, how it was sent, and what became of it.

    ``code`` is the server's (0: it never heard of it); ``fault`` what struck; ``answer`` the body of a write's answer.
    """

    call: Call
    body: bytes
    code: int
    fault: Kind | None
    answer: bytes = b""


@dataclass(eq=False)
class Proxy:
    """Listens on loopback and passes on to ``upstream`` (host, port). ``told`` gets each request in the end."""

    upstream: tuple[str, int]
    told: Callable[[Passed], None] = lambda _: None
    passed: list[Passed] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._calmed = threading.Event()
        self._flowing = threading.Event()
        self._flowing.set()
        self._late: deque[Request] = deque()
        self._answers: dict[str, deque[bytes]] = {}
        self._watches: dict[socket.socket, str] = {}
        self._listener = Listener("proxy", self._serve)
        self.url = self._listener.url
        self._listener.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.calm()
        self._listener.end()

    # What a test says

    def inject(self, *faults: Fault) -> None:
        """Lay these out; a request is struck by the first that takes it."""
        with self._lock:
            self._calmed.clear()
            self._faults += faults

    def calm(self) -> None:
        """End all faults, let held events flow; what hangs breaks. What was to be delivered late is still to be."""
        with self._lock:
            self._faults.clear()
            self._calmed.set()
        self._flowing.set()

    def withdraw(self, fault: Fault) -> None:
        """End one fault."""
        with self._lock:
            if fault in self._faults:
                self._faults.remove(fault)

    def hold_events(self) -> None:
        """Keep the events of every watch back until ``release_events``."""
        self._flowing.clear()

    def release_events(self) -> None:
        """Let them come."""
        self._flowing.set()

    def deliver(self) -> int:
        """Bring the server every request that was to come late, oldest first; how many."""
        count = 0
        while self._late:
            request = self._late.popleft()
            with socket.create_connection(self.upstream) as sock:
                sock.sendall(request.head + request.body)
                answer = Answer.read(Reader(sock))
            self._note(request, answer.code, Kind.LATE, answer.body)
            count += 1
        return count

    def forget_late(self) -> None:
        """What was to come late never does."""
        self._late.clear()

    def disconnect(self, resources: frozenset[str] = frozenset()) -> None:
        """Break the connections of the watches of these resources; of none: every connection there is."""
        if not resources:
            self._listener.disconnect()
        with self._lock:
            for sock, resource in self._watches.items():
                if resource in resources:
                    hang_up(sock)

    # Its threads

    def _serve(self, client: socket.socket) -> None:
        # A side that hangs up is what this is all about.
        with suppress(OSError, ValueError), self._listener.dialled(self.upstream) as server:
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asking, link = Reader(client), _Link(client, server, Reader(server))
            while (request := Request.read(asking)) and self._pass(link, request):
                pass

    def _pass(self, link: _Link, request: Request) -> bool:
        """Deal with one request; whether the connection goes on."""
        fault = self._struck(request.call)
        kind = fault.kind if fault is not None else None
        if fault is not None and kind not in STREAMED:
            done = self._strike(link, request, fault)
            if done is not None:
                return done
        link.server.sendall(request.head + request.body)
        answer = Answer.read(link.answering)
        self._note(request, answer.code, kind, answer.body if request.call.writes else b"")
        if kind is Kind.LOSE:
            return link.reset()
        if answer.chunked:
            with self._watched(link.client, request.call.resource):
                link.client.sendall(answer.head)
                return self._stream(link, fault)
        if request.call.verb == "list" and answer.code == 200:
            self._remember(request.target, answer.head + answer.body)
        link.client.sendall(answer.head + answer.body)
        return True

    @contextmanager
    def _watched(self, client: socket.socket, resource: str) -> Iterator[None]:
        with self._lock:
            self._watches[client] = resource
        try:
            yield
        finally:
            with self._lock:
                del self._watches[client]

    def _struck(self, call: Call) -> Fault | None:
        with self._lock:
            fault = next((fault for fault in self._faults if fault.takes(call)), None)
            if fault is not None and fault.times == 0:
                self._faults.remove(fault)
            return replace(fault) if fault is not None else None

    def _strike(self, link: _Link, request: Request, fault: Fault) -> bool | None:
        """What a fault does before the request reaches the server; None: it is passed on."""
        match fault.kind:
            case Kind.REFUSE:
                self._note(request, 0, fault.kind)
                link.client.sendall(messages.refusal(fault.code, "so says the proxy", fault.retry_after))
                return True
            case Kind.RESET | Kind.LATE | Kind.HANG:
                if fault.kind is Kind.LATE:
                    self._late.append(request)
                else:
                    self._note(request, 0, fault.kind)
                if fault.kind is Kind.HANG:
                    self._calmed.wait(fault.seconds)
                return link.reset()
            case Kind.SLOW:
                self._calmed.wait(fault.seconds)
            case Kind.STALE:
                with self._lock:
                    answers = self._answers.get(request.target)
                    old = answers[0] if answers else None
                if old is not None:
                    self._note(request, 0, fault.kind)
                    link.client.sendall(old)
                    return True
        return None

    def _stream(self, link: _Link, fault: Fault | None) -> bool:
        """Pass on the events of a watch; False: the connection is over."""
        before = b""
        for count, line in enumerate(link.lines()):
            while not self._flowing.wait(0.01):
                if link.hung_up():
                    return False
            if fault is not None and fault.kind is Kind.GONE and count >= fault.after:
                error = {"type": "ERROR", "object": messages.status(410, "too old, says the proxy")}
                link.chunk(messages.line(error))
                return False
            if fault is not None and fault.kind is Kind.CUT and count >= fault.after:
                link.chunk(line[: len(line) // 2])
                return link.reset()
            link.chunk(line)
            if fault is not None and fault.kind is Kind.TWICE:
                link.chunk(line)
                if before:
                    link.chunk(before)
            before = line
        if link.ended_well:
            link.chunk(b"")
        return link.ended_well

    def _remember(self, target: str, answer: bytes) -> None:
        with self._lock:
            self._answers.setdefault(target, deque(maxlen=_REMEMBERED)).append(answer)

    def _note(self, request: Request, code: int, fault: Kind | None, answer: bytes = b"") -> None:
        passed = Passed(request.call, request.body, code, fault, answer)
        self.passed.append(passed)
        self.told(passed)


@dataclass(eq=False)
class _Link:
    """A client's connection and the one to the server that belongs to it."""

    client: socket.socket
    server: socket.socket
    answering: Reader
    ended_well: bool = False

    def chunk(self, data: bytes) -> None:
        self.client.sendall(messages.chunk(data))

    def reset(self) -> bool:
        """Break the client's connection."""
        break_off(self.client)
        return False

    def hung_up(self) -> bool:
        """Whether the client is gone: it has nothing else to say while it watches."""
        readable, _, _ = select.select([self.client], [], [], 0)
        return bool(readable)

    def lines(self) -> Iterator[bytes]:
        """The lines of the server's chunks, until the stream ends or the client hangs up."""
        begun = b""
        while self._more():
            head = self.answering.readline()
            if not head:
                return  # the server hung up: not the end of what it had to say
            size = int(head.partition(b";")[0].strip(), 16)
            data = self.answering.read(size)
            self.answering.readline()
            if not size:
                self.ended_well = True
                return
            *lines, begun = (begun + data).split(b"\n")
            yield from (line + b"\n" for line in lines)

    def _more(self) -> bool:
        """Wait for the server; False when the client has hung up."""
        if self.answering.ahead:
            return True
        readable, _, _ = select.select([self.client, self.server], [], [])
        return self.client not in readable
