"""Streamed responses, which any thread may end: container logs and watches."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import urllib3

from tf_dist.cluster.api import Stream, WatchEvent
from tf_dist.cluster.api_errors import RequestInfo, StreamSilent, error_from_status
from tf_dist.cluster.client.connection_pool import pace
from tf_dist.cluster.client.read_pacer import ReadPacer
from tf_dist.errors import Unavailable

_CHUNK = 256 * 1024
_LOG_CHUNK = 64 * 1024
_MANAGED_FIELDS = b',"managedFields":['
# The text after managed fields. Members of built-in kinds have a fixed order; those of other kinds are sorted.
_AFTER_MANAGED_FIELDS = (b']},"spec":', b'],"name":')
# A server accepts 10,000 levels. Python's parser fails at a depth between 1,000 and that, which depends on the release.
# No field that a decision reads is deeper than this: only values of unknown fields are.
_MAX_DEPTH = 200
_TOO_DEEP = b'"(nested too deeply for tf-dist)"'
_STRUCTURE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]')


def decode_json(data: bytes) -> Any:
    """The parsed JSON, without managed fields at any level where they are easy to find; ValueError, RecursionError.

    No caller uses managed fields. They are up to half of a pod, and decoding is most of the cost of following a
    cluster. If a value is nested too deeply to be parsed, its innermost part is replaced by a text. Otherwise one
    object could prevent that the others of its kind are listed.
    """
    shown = _without_managed_fields(data)
    try:
        return json.loads(shown)
    except RecursionError:
        return json.loads(_without_deep_values(shown))


def _without_deep_values(data: bytes) -> bytes:
    """The text with a short text in place of each object and array at the maximum depth."""
    kept, begun, depth = [], 0, 0
    for token in _STRUCTURE.finditer(data):
        first = data[token.start()]
        if first in b"[{":
            depth += 1
            if depth == _MAX_DEPTH:
                kept += [data[begun : token.start()], _TOO_DEEP]
        elif first in b"]}":
            if depth == _MAX_DEPTH:
                begun = token.end()
            depth -= 1
    return b"".join((*kept, data[begun:]))


def _without_managed_fields(data: bytes) -> bytes:
    """The text without managed fields that are written as an API server writes them and contain no brackets.

    A quotation mark inside a string has a backslash before it, so the pattern never matches inside a string.
    """
    kept, begun = [], 0
    at = data.find(_MANAGED_FIELDS)
    while at >= 0:
        inside = at + len(_MANAGED_FIELDS)
        end = data.find(b"]", inside)
        if data.startswith(_AFTER_MANAGED_FIELDS, end) and data.find(b"[", inside, end) < 0:
            kept.append(data[begun:at])
            begun = end + 1
        at = data.find(_MANAGED_FIELDS, inside)
    return b"".join((*kept, data[begun:])) if kept else data


def parse_body(data: bytes) -> Any:
    """A body as JSON (see ``decode_json``); text as the message of a Status; None if there is none."""
    try:
        return decode_json(data)
    except (ValueError, RecursionError):
        return {"message": data.decode(errors="replace").strip()} if data.strip() else None


def error_reason(error: BaseException) -> str:
    """The text of a library's error, without memory addresses of objects."""
    cause = getattr(error, "reason", None) or error
    text = str(cause)
    return text.partition(">: ")[2] or text.rpartition("): ")[2] or text


class LineStream(Stream[bytes]):
    """The lines of a streamed body. One thread iterates; any thread may close.

    A read that times out ends the stream if ``silence_ends``, otherwise it raises StreamSilent. A broken connection
    raises Unavailable. ``pacer``: paces the reads. ``together``: whole lines that have arrived together are one item.
    """

    def __init__(
        self,
        response: urllib3.BaseHTTPResponse,
        asked: RequestInfo,
        *,
        silence_ends: bool = False,
        pacer: ReadPacer | None = None,
        together: bool = False,
    ) -> None:
        self._response = response
        self._asked = asked
        self._silence_ends = silence_ends
        self._pacer = pacer
        if pacer is not None:
            pace(response, pacer)
        # Reentrant: a signal handler may close the stream while the interrupted thread is closing it.
        self._lock = threading.RLock()
        self._reading = self._closed = self._released = False
        self._most = _LOG_CHUNK if together else _CHUNK
        self._lines = self._read() if together else self._split()

    def _read(self) -> Iterator[bytes]:
        """Whole lines as they arrive; at the end, the rest without a line end."""
        begun: list[bytes] = []
        while chunk := self._chunk():
            end = chunk.rfind(b"\n") + 1
            begun.append(chunk[:end] or chunk)
            if end:
                yield b"".join(begun)
                begun = [chunk[end:]]
        if rest := b"".join(begun):
            yield rest

    def _split(self) -> Iterator[bytes]:
        for lines in self._read():
            *whole, rest = lines.split(b"\n")
            yield from (text + b"\n" for text in whole)
            if rest:
                yield rest

    def _chunk(self) -> bytes:
        """The data that has arrived, at least one byte; empty at the end."""
        if not self._begin_reading():
            return b""
        try:
            return self._response.read1(self._most)
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            # Another thread may close the body during the read (an ssl socket then loses its inner object).
            quiet = self._silence_ends and isinstance(error, urllib3.exceptions.ReadTimeoutError)
            if self._closed or quiet:
                return b""
            silent = isinstance(error, urllib3.exceptions.ReadTimeoutError)
            kind = StreamSilent if silent else Unavailable
            raise kind(f"{self._asked}: the stream broke: {error_reason(error)}") from error
        finally:
            with self._lock:
                self._reading = False
                if self._closed:
                    self._release()

    def _begin_reading(self) -> bool:
        with self._lock:
            self._reading = not self._closed
            return self._reading

    def __next__(self) -> bytes:
        text = next(self._lines, b"")
        if self._closed or not text:
            self.close()
            raise StopIteration
        return text

    def close(self) -> None:
        """End the stream: a reader that waits in another thread wakes up at once."""
        with self._lock:
            self._closed = True
            if self._pacer is not None:
                self._pacer.end()
            # A response must not be closed while another thread reads it. The reader closes it after the read.
            if not self._reading:
                self._release()
                return
            with suppress(OSError, ValueError, RuntimeError, TypeError):
                self._response.shutdown()

    def _release(self) -> None:
        """Close the body once, and its connection if it cannot be reused. The caller holds the lock."""
        if not self._released:
            self._released = True
            with suppress(OSError, ValueError):
                self._response.close()


class WatchEventStream(Stream[WatchEvent]):
    """The events of a watch. An ERROR event is raised, usually as Gone."""

    def __init__(self, lines: LineStream, asked: RequestInfo) -> None:
        self._lines = lines
        self._asked = asked

    def __next__(self) -> WatchEvent:
        for text in self._lines:
            event = self._event(text)
            if event["type"] == "ERROR":
                self.close()
                status = event["object"]
                raise error_from_status(int(status.get("code") or 500), status, asked=self._asked)
            return WatchEvent(str(event["type"]), event["object"])
        raise StopIteration

    def _event(self, text: bytes) -> dict[str, Any]:
        try:
            event = decode_json(text)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict) or not {"type", "object"} <= event.keys():
            self.close()
            raise Unavailable(f"{self._asked}: the stream broke: {text[:80]!r} is not an event")
        return event

    def close(self) -> None:
        """End the watch: a reader that waits in another thread wakes up at once."""
        self._lines.close()
