"""A scripted API server: it sends prepared bytes as answers, including faulty ones, to one request after the other."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from tests.faults import messages
from tests.faults.listener import Listener, break_off
from tf_dist.cluster.api import Object


class End(Enum):
    """How a stream ends."""

    CLEAN = "the server says that it is over"
    CUT = "the connection closes without that"
    RESET = "the connection breaks"
    HOLD = "never: nothing more comes"


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of objects, or a page of one."""

    items: tuple[Object, ...]
    version: int
    token: str = ""

    def send(self, connection: Connection) -> None:
        metadata = {"resourceVersion": str(self.version), "continue": self.token}
        document = {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": list(self.items)}
        connection.raw(messages.answer(200, document))


@dataclass(frozen=True, slots=True)
class Refusal:
    """A Status with an error code."""

    code: int
    retry_after: int | None = None

    def send(self, connection: Connection) -> None:
        connection.raw(messages.refusal(self.code, "as scripted", self.retry_after))


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer at all: the connection is half open."""

    def send(self, connection: Connection) -> None:
        connection.hold()


@dataclass(frozen=True, slots=True)
class Events:
    """A watch: its events, where ``bytes`` are sent unchanged, and then its end, not before ``when``."""

    events: tuple[Object | bytes, ...]
    end: End = End.HOLD
    when: threading.Event | None = None

    def send(self, connection: Connection) -> None:
        connection.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in self.events:
            connection.raw(messages.chunk(event if isinstance(event, bytes) else messages.line(event)))
        if self.when is not None:
            self.when.wait(60)
        match self.end:
            case End.CLEAN:
                connection.raw(messages.chunk(b""))
            case End.CUT:
                connection.close()
            case End.RESET:
                connection.reset()
            case End.HOLD:
                connection.hold()


@dataclass(frozen=True, slots=True)
class Late:
    """An answer that is delayed until ``when`` is set."""

    answer: Listing | Refusal | Events
    when: threading.Event

    def send(self, connection: Connection) -> None:
        self.when.wait(60)
        self.answer.send(connection)


Answer = Listing | Refusal | Silence | Events | Late


def watched(*events: Object | bytes, end: End = End.HOLD, when: threading.Event | None = None) -> Events:
    """A watch with these events and this end. A reset discards unread data, so use it with ``when``."""
    return Events(events, end, when)


def listed(version: int, *items: Object, token: str = "") -> Listing:
    """A list at a version."""
    return Listing(items, version, token)


def event(type_: str, obj: Object) -> Object:
    """A line of a watch."""
    return {"type": type_, "object": obj}


def bookmark(version: int) -> Object:
    """Nothing has changed up to this version."""
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def gone() -> Object:
    """The version that the watch began at is too old."""
    return event("ERROR", messages.status(410, "too old resource version"))


@dataclass(frozen=True, slots=True)
class Asked:
    """A received request, with its time by the monotonic clock."""

    at: float
    path: str
    query: dict[str, str]

    def __str__(self) -> str:
        """``list``, ``list +token`` (a further page), or ``watch 7`` (from version 7)."""
        if "watch" in self.query:
            return f"watch {self.query.get('resourceVersion', '')}".rstrip()
        return f"list +{self.query['continue']}" if "continue" in self.query else "list"


class Connection:
    """A connection of the server, for use by an answer."""

    def __init__(self, sock: socket.socket, ended: threading.Event) -> None:
        self._sock = sock
        self._ended = ended
        self.open = True

    def raw(self, data: bytes) -> None:
        """Send these bytes."""
        self._sock.sendall(data)

    def hold(self) -> None:
        """Send nothing more until the server ends or the client closes the connection."""
        self.open = False
        with suppress(OSError):
            # Wait until the client closes the connection, or the end of the server shuts the socket down.
            while not self._ended.is_set() and self._sock.recv(4096):
                pass

    def close(self) -> None:
        """Close the connection."""
        self.open = False

    def reset(self) -> None:
        """Break the connection: the client's next read fails."""
        self.open = False
        break_off(self._sock)


@dataclass(eq=False)
class FlakyServer:
    """Answers requests in the order of their arrival with the answers of ``script``.

    After the script, ``last`` returns the answer to each further request. Without ``last``, further requests get the
    code 500 and count as ``unexpected``.
    """

    script: list[Answer]
    last: Callable[[Asked], Answer] | None = None
    asked: list[Asked] = field(default_factory=list)
    unexpected: list[Asked] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self._listener = Listener("flaky", self._serve)
        self.url = self._listener.url
        self._listener.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.end()

    def _serve(self, sock: socket.socket) -> None:
        connection, reader = Connection(sock, self._listener.ended), messages.Reader(sock)
        with suppress(OSError):
            while connection.open and (request := messages.Request.read(reader)):
                self._next(Asked(time.monotonic(), request.path, request.query)).send(connection)

    def _next(self, asked: Asked) -> Answer:
        with self._lock:
            self.asked.append(asked)
            if self.script:
                return self.script.pop(0)
            if self.last is None:
                self.unexpected.append(asked)
                return Refusal(500)
        return self.last(asked)

    def said(self) -> list[str]:
        """The requests so far as short texts."""
        with self._lock:
            return [str(asked) for asked in self.asked]
