"""Read and write HTTP/1.1 messages as bytes."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl

from tests.faults.calls import Call
from tf_dist.cluster.api import Object

_REASONS = {403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 429: "TooManyRequests"}


class Reader:
    """Reads from a socket, and keeps the data that it has read ahead."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.ahead = b""

    def readline(self) -> bytes:
        """Read up to and including the next line end, or less at the end of the connection."""
        while b"\n" not in self.ahead:
            if not self._receive():
                break
        line, end, self.ahead = self.ahead.partition(b"\n")
        return line + end

    def read(self, size: int) -> bytes:
        """Read this number of bytes. Raises ConnectionError if the connection ends earlier."""
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
class Request:
    """A received request. ``target`` is its path with the query."""

    head: bytes
    body: bytes
    method: str
    target: str

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """The next request of a connection, or None at its end."""
        line = reader.readline()
        if not line.endswith(b"\n"):
            return None
        headers = _Headers.read(reader)
        method, target, _ = line.decode().split(" ", 2)
        return cls(line + headers.data, reader.read(headers.length), method, target)

    @property
    def call(self) -> Call:
        """The verb and the object of the request."""
        return Call.of(self.method, self.path, self.query)

    @property
    def path(self) -> str:
        """The path without the query."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the query."""
        return dict(parse_qsl(self.target.partition("?")[2]))


@dataclass(frozen=True, slots=True)
class Answer:
    """A received answer, without the body of a stream."""

    head: bytes
    code: int
    chunked: bool
    body: bytes = b""

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """The next answer of a connection. Raises ConnectionError at its end."""
        line = reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the server has hung up")
        headers = _Headers.read(reader)
        body = b"" if headers.chunked else reader.read(headers.length)
        return cls(line + headers.data, int(line.split(b" ", 2)[1]), headers.chunked, body)


class _Headers(NamedTuple):
    """The headers with the empty line after them, the length of the body, and whether it comes in chunks."""

    data: bytes
    length: int
    chunked: bool

    @classmethod
    def read(cls, reader: Reader) -> Self:
        data, length, chunked = [], 0, False
        while (line := reader.readline()).strip():
            name, _, value = line.partition(b":")
            match name.lower():
                case b"content-length":
                    length = int(value)
                case b"transfer-encoding":
                    chunked = b"chunked" in value
            data.append(line)
        if not line:
            raise ConnectionError("cut off in the headers")
        return cls(b"".join(data) + line, length, chunked)


def answer(code: int, document: Any, *headers: str) -> bytes:
    """A complete answer, after which the connection stays open."""
    data = json.dumps(document).encode()
    lines = (f"HTTP/1.1 {code} X", "Content-Type: application/json", f"Content-Length: {len(data)}", *headers, "", "")
    return "\r\n".join(lines).encode() + data


def refusal(code: int, message: str, retry_after: int | None = None) -> bytes:
    """A complete answer with an error."""
    headers = () if retry_after is None else (f"Retry-After: {retry_after}",)
    return answer(code, status(code, message), *headers)


def status(code: int, message: str) -> Object:
    """A Status with an error code."""
    return {"kind": "Status", "code": code, "reason": _REASONS.get(code, ""), "message": message}


def chunk(data: bytes) -> bytes:
    """A chunk of a stream. An empty chunk ends the stream."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def line(document: Any) -> bytes:
    """A line of a watch."""
    return json.dumps(document).encode() + b"\n"
