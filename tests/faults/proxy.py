"""An HTTP proxy that stands between a client and an API server, and breaks what passes as it is told.

Faults are laid out beforehand: each says which requests it is for and how often it strikes. What no fault is for
passes. ``calm`` ends them all. Every thread and socket ends with the proxy.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self
from urllib.parse import parse_qsl

from tests.faults.calls import Call

_RESET = struct.pack("ii", 1, 0)
_REASONS = {403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 429: "TooManyRequests"}
# How many answers to one GET are remembered, to be given again when they are out of date.
_REMEMBERED = 4


class Kind(Enum):
    """What a fault does to a request, or to the stream of a watch."""

    REFUSE = "answers with a code; the server never hears of it"
    RESET = "breaks the connection before the server hears of it"
    LOSE = "the server acts, and the connection breaks before its answer"
    LATE = "breaks the connection, and the server hears of it when `deliver` is called"
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
    """Listens on loopback and passes on to ``upstream`` (host, port). ``told`` hears of each request in the end."""

    upstream: tuple[str, int]
    told: Callable[[Passed], None] = lambda _: None
    passed: list[Passed] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._ended = threading.Event()
        self._calmed = threading.Event()
        self._flowing = threading.Event()
        self._flowing.set()
        self._late: deque[_Request] = deque()
        self._answers: dict[str, deque[bytes]] = {}
        self._sockets: set[socket.socket] = set()
        self._watches: dict[socket.socket, str] = {}
        self._threads: set[threading.Thread] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._acceptor = threading.Thread(target=self._accept, name="proxy-accept", daemon=True)
        self._acceptor.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self.calm()
        # Closing a socket does not wake a thread that waits in accept; a connection does.
        with suppress(OSError), socket.create_connection(self._listener.getsockname()):
            pass
        self._acceptor.join()
        self._listener.close()
        self.disconnect()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()

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
                answer = _Answer.read(_Reader(sock))
            self._note(request, answer.code, Kind.LATE, answer.body)
            count += 1
        return count

    def forget_late(self) -> None:
        """What was to come late never does."""
        self._late.clear()

    def disconnect(self, resources: frozenset[str] = frozenset()) -> None:
        """Break the connections of the watches of these resources; of none: every connection there is."""
        with self._lock:
            broken = [sock for sock, resource in self._watches.items() if resource in resources]
            for sock in broken if resources else self._sockets:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    # Its threads

    def _accept(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            with self._lock:
                if self._ended.is_set():
                    sock.close()
                    return
                thread = threading.Thread(target=self._serve, args=(sock,), name="proxy-connection", daemon=True)
                self._sockets.add(sock)
                self._threads.add(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        try:
            server = socket.socket()
            server.connect(self.upstream)
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets.add(server)
                ended = self._ended.is_set()
            asking, link = _Reader(client), _Link(client, server, _Reader(server))
            while not ended and (request := _Request.read(asking)) and self._pass(link, request):
                pass
        except (OSError, ValueError):
            pass  # a side that hangs up is what this is all about
        finally:
            with self._lock:
                for sock in (client, server):
                    if sock is not None:
                        self._sockets.discard(sock)
                        self._watches.pop(sock, None)
                        sock.close()
                self._threads.discard(threading.current_thread())

    def _pass(self, link: _Link, request: _Request) -> bool:
        """Deal with one request; whether the connection goes on."""
        fault = self._struck(request.call)
        kind = fault.kind if fault is not None else None
        if fault is not None and kind not in STREAMED:
            done = self._strike(link, request, fault)
            if done is not None:
                return done
        link.server.sendall(request.head + request.body)
        answer = _Answer.read(link.answering)
        self._note(request, answer.code, kind, answer.body if request.call.writes else b"")
        if kind is Kind.LOSE:
            return link.reset()
        if answer.chunked:
            with self._lock:
                self._watches[link.client] = request.call.resource
            link.client.sendall(answer.head)
            return self._stream(link, fault)
        if request.call.verb == "list" and answer.code == 200:
            self._remember(request.target, answer.head + answer.body)
        link.client.sendall(answer.head + answer.body)
        return True

    def _struck(self, call: Call) -> Fault | None:
        with self._lock:
            fault = next((fault for fault in self._faults if fault.takes(call)), None)
            if fault is not None and fault.times == 0:
                self._faults.remove(fault)
            return replace(fault) if fault is not None else None

    def _strike(self, link: _Link, request: _Request, fault: Fault) -> bool | None:
        """What a fault does before the server hears of the request; None: it is to hear of it."""
        match fault.kind:
            case Kind.REFUSE:
                self._note(request, 0, fault.kind)
                link.client.sendall(_refusal(fault))
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
                status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old, says the proxy"}
                link.chunk(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
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
            link.client.sendall(b"0\r\n\r\n")
        return link.ended_well

    def _remember(self, target: str, answer: bytes) -> None:
        with self._lock:
            self._answers.setdefault(target, deque(maxlen=_REMEMBERED)).append(answer)

    def _note(self, request: _Request, code: int, fault: Kind | None, answer: bytes = b"") -> None:
        passed = Passed(request.call, request.body, code, fault, answer)
        self.passed.append(passed)
        self.told(passed)


class _Reader:
    """Reads from a socket, and knows what it has read ahead."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.ahead = b""

    def readline(self) -> bytes:
        """Up to and with the next line end; less at the end of the connection."""
        while b"\n" not in self.ahead:
            if not self._receive():
                break
        line, end, self.ahead = self.ahead.partition(b"\n")
        return line + end

    def read(self, size: int) -> bytes:
        """So many bytes; ConnectionError when the connection ends before."""
        while len(self.ahead) < size:
            if not self._receive():
                raise ConnectionError("cut off in a body")
        data, self.ahead = self.ahead[:size], self.ahead[size:]
        return data

    def _receive(self) -> bool:
        data = self._sock.recv(256 * 1024)
        self.ahead += data
        return bool(data)


@dataclass(frozen=True, slots=True)
class _Request:
    head: bytes
    body: bytes
    target: str
    call: Call

    @classmethod
    def read(cls, reader: _Reader) -> _Request | None:
        """The next request of a connection; None at its end."""
        line = reader.readline()
        if not line.endswith(b"\n"):
            return None
        head, length, _ = _headers(reader)
        body = reader.read(length)
        method, target, _ = line.decode().split(" ", 2)
        path, _, query = target.partition("?")
        return cls(line + head, body, target, Call.of(method, path, dict(parse_qsl(query))))


@dataclass(frozen=True, slots=True)
class _Answer:
    head: bytes
    code: int
    chunked: bool
    body: bytes = b""

    @classmethod
    def read(cls, reader: _Reader) -> _Answer:
        """The next answer of a connection, but for the body of a stream; ConnectionError at its end."""
        line = reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the server has hung up")
        head, length, chunked = _headers(reader)
        return cls(line + head, int(line.split(b" ", 2)[1]), chunked, b"" if chunked else reader.read(length))


def _headers(reader: _Reader) -> tuple[bytes, int, bool]:
    """The headers with their end, the length of the body, and whether it comes in chunks."""
    head, length, chunked = [], 0, False
    while (line := reader.readline()).strip():
        name, _, value = line.partition(b":")
        match name.lower():
            case b"content-length":
                length = int(value)
            case b"transfer-encoding":
                chunked = b"chunked" in value
        head.append(line)
    if not line:
        raise ConnectionError("cut off in the headers")
    return b"".join(head) + line, length, chunked


@dataclass(eq=False)
class _Link:
    """A client's connection and the one to the server that belongs to it."""

    client: socket.socket
    server: socket.socket
    answering: _Reader
    ended_well: bool = False

    def chunk(self, data: bytes) -> None:
        self.client.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def reset(self) -> bool:
        """Break the client's connection."""
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        return False

    def hung_up(self) -> bool:
        """Whether the client is gone: it has nothing else to say while it watches."""
        readable, _, _ = select.select([self.client], [], [], 0)
        return bool(readable)

    def lines(self) -> Iterator[bytes]:
        """The lines of the server's chunks, until the stream ends or the client hangs up."""
        begun = b""
        while self._more():
            size = int(self.answering.readline().partition(b";")[0].strip() or b"0", 16)
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


def _refusal(fault: Fault) -> bytes:
    code = fault.code
    status = {"kind": "Status", "code": code, "reason": _REASONS.get(code, ""), "message": "so says the proxy"}
    body = json.dumps(status).encode()
    extra = f"Retry-After: {fault.retry_after}\r\n" if fault.retry_after is not None else ""
    head = f"HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body
