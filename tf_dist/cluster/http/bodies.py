"""Bodies of requests: how long they are, and reading them within a limit.

What two readers could understand differently is refused: several lengths, a length beside chunks, other codings.
"""

from __future__ import annotations

import re
from email.message import Message
from io import BufferedIOBase
from typing import Final

from tf_dist.cluster.refusals import BadRequest, LengthRequired, TooLarge

MAX_BODY: Final = 3 * 1024 * 1024  # bytes, as a Kubernetes API server
_WITH_BODY: Final = ("POST", "PUT", "PATCH")
_LONGEST_LINE: Final = 1024  # bytes of a line between chunks
_TRAILERS: Final = 16
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")


def body_length(method: str, headers: Message) -> int | None:
    """How many bytes follow the head, None for chunks; BadRequest, LengthRequired, TooLarge."""
    lengths, codings = headers.get_all("Content-Length", []), headers.get_all("Transfer-Encoding", [])
    if lengths and codings:
        raise BadRequest("a request has either Content-Length or Transfer-Encoding, not both")
    if codings:
        if [coding.strip().lower() for coding in codings] != ["chunked"]:
            raise BadRequest(f"unsupported Transfer-Encoding {', '.join(codings)!r}: only chunked")
        return None
    if len(lengths) > 1:
        raise BadRequest(f"several Content-Length: {', '.join(lengths)}")
    if not lengths:
        if method in _WITH_BODY:
            raise LengthRequired(f"a {method} needs Content-Length or Transfer-Encoding: chunked")
        return 0
    text = lengths[0].strip()
    if text.isascii() and text.isdecimal() and not _LENGTH.fullmatch(text):
        raise _too_large()
    if not _LENGTH.fullmatch(text):
        raise BadRequest(f"invalid Content-Length {text[:40]!r}")
    if int(text) > MAX_BODY:
        raise _too_large()
    return int(text)


def read_body(stream: BufferedIOBase, length: int | None) -> bytes:
    """The body of so many bytes, or in chunks; BadRequest when it ends early, TooLarge."""
    if length is None:
        return _chunks(stream)
    return _exactly(stream, length)


def _exactly(stream: BufferedIOBase, length: int) -> bytes:
    data = stream.read(length) if length else b""
    if len(data) != length:
        raise BadRequest(f"the body ended after {len(data)} of {length} bytes")
    return data


def _chunks(stream: BufferedIOBase) -> bytes:
    parts: list[bytes] = []
    size = 0
    while length := _chunk_length(stream):
        size += length
        if size > MAX_BODY:
            raise _too_large()
        parts.append(_exactly(stream, length))
        if stream.readline(3) not in (b"\r\n", b"\n"):
            raise BadRequest("a chunk does not end where it said")
    for _ in range(_TRAILERS):  # they say nothing that matters here
        line = stream.readline(_LONGEST_LINE)
        if line in (b"\r\n", b"\n"):
            return b"".join(parts)
        if not line.endswith(b"\n"):
            break
    raise BadRequest("the trailers after the last chunk do not end")


def _chunk_length(stream: BufferedIOBase) -> int:
    line = stream.readline(_LONGEST_LINE)
    match = _CHUNK.fullmatch(line)
    if match is None:
        raise BadRequest(f"invalid chunk length {line[:40]!r}")
    return int(match[1], 16)


def _too_large() -> TooLarge:
    return TooLarge(f"the request is too large: the limit is {MAX_BODY} bytes")
