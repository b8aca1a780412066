"""The end of a replica's log as evidence of a failure: the exception, its location, and the lines before it.

Tensors, repeated lines and start-up lines of TensorFlow's libraries are omitted, because they fill the end of most
logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_LINES: Final = 10  # lines shown of a log with a known exception
_MORE_LINES: Final = 40  # lines shown of a log without a known exception
_LONGEST: Final = 300  # characters shown of a line
_LONGEST_MESSAGE: Final = 2000  # maximum number of lines of an exception with open brackets
_READ: Final = 4096  # characters of a line that are read

_TRACEBACK: Final = re.compile(r"\s*Traceback \(most recent call last\):")
_FRAME: Final = re.compile(r'\s+File "([^"]+)", line (\d+)(?:, in (.+))?')
_IGNORED: Final = "Exception ignored "  # at the end of a process; the exception is not the reason of the failure
_STACK: Final = "(most recent call first):"  # of a thread of a program that crashed: no exception follows
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;?:]*[ -/]*[@-~]")
_CHAINED: Final = re.compile(r"During handling of the above exception|The above exception was the direct cause")
_LIBRARY: Final = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<frozen ")
_NODE: Final = "Node: '"  # the operation of a TensorFlow graph; the next line has the reason
_CARETS: Final = re.compile(r"\s*[~^]+\s*$")
_NOISE: Final = re.compile(
    r"[IW]\d{4} \d\d:\d\d:\d\d|[IW]0000 00:00:\d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] "
    r"|WARNING: All log messages before absl|To enable the following instructions: "
)
# Lines that are not the reason of a failure by themselves: of native libraries, which also log optional parts that they
# lack as errors, and of a lower level than an error.
_NO_REASON: Final = re.compile(
    r"[IWE]\d{4} \d\d:\d\d:\d\d|[IWE]0000 00:00:\d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "
    r"|.{0,60}\b(?:DEBUG|INFO|WARN|WARNING)\b|.{0,200}Warning: "
)
# The parts of a line of a printed array. If nothing else is in a line, the line is part of an array.
_ARRAY_WORDS: Final = re.compile(
    r"(?:tf\.Tensor|array)\(|(?:dtype|shape|numpy)=[\w.()<>, ]*|\b(?:nan|inf|e)\b|[\d\s.,eE+\-\[\]()>'…]"
)
_NUMBERS_IN_BRACKETS: Final = re.compile(r"\[[\d\s.,eE+\-\[\]naif]{40,}")
_VARIABLE: Final = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[━─╸╺=>.]{3,}")


@dataclass(slots=True)
class _Traceback:
    """A traceback of a log. ``exception`` is "" until the last line of the traceback is read."""

    ignored: bool
    frames: list[str] = field(default_factory=list)
    source: dict[str, str] = field(default_factory=dict)
    exception: str = ""
    causes: str = ""
    """The exceptions before it in its chain."""
    before: int = 0
    """The number of lines outside tracebacks before its end."""

    @property
    def place(self) -> Iterator[str]:
        """The innermost frame outside installed packages, and its source line."""
        own = [frame for frame in self.frames if (found := _FRAME.match(frame)) and not _LIBRARY.search(found[1])]
        for frame in (own or self.frames)[-1:]:
            yield f"  {frame.strip()}"
            if source := self.source.get(frame):
                yield f"    {source.strip()}"


def log_evidence(lines: Sequence[str]) -> str:
    """The lines about a failure at the end of a log, most important first."""
    lines = [_drawn(line) for line in lines]
    raised, others = _read(lines)
    shown = [_shortened(line) for line in others if not (_is_array(line) or _NOISE.match(line))]
    if raised is None:
        return "\n".join(_folded(shown if others else lines)[-_MORE_LINES:])
    rest = _folded(line for line in shown if line.strip())[-_LINES:]
    before = ["its last lines:", *(f"  {line}" for line in rest)] if rest else []
    return "\n".join([_shortened(raised.exception), *raised.place, *before])


class FailureReasons(NamedTuple):
    """The parts of a failed program's log that may state the reason."""

    last: str
    """The last exception and the exceptions of its chain. Without an exception, the last line."""
    others: str
    """The lines after the exception, without warnings. Without an exception, all such lines."""


def failure_reasons(lines: Sequence[str]) -> FailureReasons:
    """The reasons in a failed program's log. Programs also write about errors that they handle."""
    raised, others = _read([_ESCAPE.sub("", line) for line in lines])
    rest = [line for line in others[raised.before if raised else 0 :] if line.strip() and not _NO_REASON.match(line)]
    last = f"{raised.exception}\n{raised.causes}" if raised else "".join(rest[-1:])
    return FailureReasons(last, "\n".join(rest))


def _read(lines: Sequence[str]) -> tuple[_Traceback | None, list[str]]:
    """The last traceback of a log, and the lines outside tracebacks."""
    last: _Traceback | None = None
    now: _Traceback | None = None
    others: list[str] = []
    ignored = chained = False
    closed = -1  # the line in which the message of the last exception ends
    stack = False
    for number, line in enumerate(lines):
        if number <= closed:
            continue
        stack = line.rstrip().endswith(_STACK) or (stack and line[:1].isspace())
        if stack:
            others.append(line)
            continue
        if _TRACEBACK.match(line) or (now is None and _FRAME.match(line)):
            now = _Traceback(ignored)
            if last is not None and chained:
                now.causes = f"{last.exception}\n{last.causes}"
            ignored = chained = False
            if _TRACEBACK.match(line):
                continue
        if now is None:
            ignored = line.startswith(_IGNORED)
            chained = chained or _CHAINED.match(line) is not None
            if not ignored and not _CHAINED.match(line):
                others.append(line)
        elif _NOISE.match(line) or line.startswith(_NODE):
            continue  # native libraries write into the tracebacks of Python
        elif _FRAME.match(line):
            now.frames.append(line)
        elif line[:1].isspace() or not line:
            if now.frames and not _CARETS.match(line):
                now.source.setdefault(now.frames[-1], line)
        else:
            closed = _closing(lines, number)
            now.before = len(others)
            now.exception = line if closed == number else f"{line} … {lines[closed].strip()}"
            last = last if now.ignored else now
            now = None
    return last, others


def _depth(line: str) -> int:
    """The number of brackets that a line opens and does not close."""
    return sum(line.count(one) for one in "([{") - sum(line.count(one) for one in ")]}")


def _closing(lines: Sequence[str], first: int) -> int:
    """The index of the line that closes the brackets of an exception's line, otherwise the index of that line."""
    depth = 0
    for number, line in enumerate(lines[first : first + _LONGEST_MESSAGE], start=first):
        depth += _depth(line[:_READ])
        if depth <= 0:
            return number
    return first


def _is_array(line: str) -> bool:
    parts = "[" in line or "]" in line or "dtype=" in line or line.rstrip().endswith(",")
    return parts and not _ARRAY_WORDS.sub("", line)


def _drawn(line: str) -> str:
    """The line without colours, and without text that a progress bar overwrote."""
    if "\r" in line:
        line = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    return _ESCAPE.sub("", line) if "\x1b" in line else line


def _shortened(line: str) -> str:
    text = _NUMBERS_IN_BRACKETS.sub(_shortened_array, line[:_READ]) if "[" in line else line
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _shortened_array(found: re.Match[str]) -> str:
    array = found[0]
    begin, end = len(array) - len(array.lstrip("[")) + 20, array.rfind("]")
    return f"{array[:begin]}…]{array[end + 1 :]}" if end >= begin + 20 else array


def _folded(lines: Iterable[str]) -> list[str]:
    """The lines. Consecutive lines that differ only in numbers are replaced by the last of them, with their count."""
    folded: list[tuple[str, str, int]] = []
    for line in lines:
        shape = _VARIABLE.sub("0", line)
        often = folded.pop()[2] + 1 if folded and folded[-1][0] == shape and line.strip() else 1
        folded.append((shape, line, often))
    return [f"{line}  ({often} lines like this)" if often > 1 else line for _, line, often in folded]
