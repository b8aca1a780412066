"""Views of a running job for all interfaces: state changes and log lines as text, or a table in a notebook."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tf_dist.core.diagnostics.display_text import visible_text

if TYPE_CHECKING:
    from tf_dist.client.log_follower import LogLines
    from tf_dist.client.monitor import JobSnapshot, JobView
    from tf_dist.core.model.job import Job

OWN_NAME: Final = "tf-dist"
"""The source of tf-dist's own lines."""
_UNREMARKABLE: Final = frozenset({"Waiting", "Pending", "Starting", "Gone"})  # the job's own state shows these
_REDRAW: Final = 0.5  # seconds between two drawings of a table
_MESSAGE_IS_NEWS: Final = frozenset({"Waiting", "Pending", "Running"})


def prefix_width(job: Job) -> int:
    """The length of the longest name of a replica that the job may have."""
    from tf_dist.core.model.assignment import possible_replicas

    return max(len(str(replica)) for replica in possible_replicas(job))


def prefixed_line(width: int, source: str, text: str) -> str:
    """A line after its source, in a column of this width."""
    return f"{source:<{width}} | {visible_text(text)}"


def state_changes(snapshot: JobSnapshot, shown: dict[str, str]) -> list[str]:
    """A sentence for each state that differs from ``shown``, which is updated."""
    changes = []
    status = snapshot.status
    message = f": {status.display_message}" if status.display_message else ""
    # In these states, the message is news: the position in the queue and missing capacity, or the running replicas.
    state = f"{snapshot.state}{message}" if snapshot.state in _MESSAGE_IS_NEWS or status.stalled else snapshot.state
    states = {"": (state, f"job {snapshot.job.key.name} is {snapshot.state}{message}")} if message else {}
    for row in snapshot.replicas:
        if row.state in _UNREMARKABLE:
            continue
        detail = f" ({row.detail})" if row.detail else ""
        where = f" on {row.node}" if row.node and row.state == "Running" else ""
        key = f"{row.state}{row.restarts}{row.node_silent}"
        states[str(row.replica)] = (key, f"{row.replica} is {row.state}{where}{detail}")
    for key, (state, text) in states.items():
        if shown.get(key) != state:
            shown[key] = state
            changes.append(text)
    return changes


class LineView:
    """A view of lines: the log lines of the replicas, and a line for each change of a state.

    ``write`` gets one or several whole lines. ``line`` makes a line from a source and a text.
    """

    tick: float | None = None

    def __init__(self, write: Callable[[str], object], line: Callable[[str, str], str]) -> None:
        self._write = write
        self._line = line
        self._shown: dict[str, str] = {}

    def show(self, snapshot: JobSnapshot, lines: list[LogLines]) -> None:
        """Write new lines and states."""
        if lines:
            self._write_lines(snapshot, lines)
        for text in state_changes(snapshot, self._shown):
            self.say(text)

    def _write_lines(self, snapshot: JobSnapshot, lines: list[LogLines]) -> None:
        self._write("\n".join(self._line(some.source, text) for some in lines for text in some.texts))

    def say(self, text: str, style: str = "") -> None:
        """Write lines of tf-dist."""
        for part in text.splitlines():
            self._write(self._line(OWN_NAME, part))

    def close(self) -> None:
        """Nothing to do."""


class NotebookView:
    """A view that is one table in the output of a notebook's cell. ``display`` is IPython's."""

    tick: float | None = _REDRAW  # changes that arrive too soon after a drawing are drawn at the next tick

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None
        self._snapshot: JobSnapshot | None = None
        self._drawn = 0.0

    def show(self, snapshot: JobSnapshot, lines: list[LogLines]) -> None:
        """Update the table, if the last update is old enough."""
        self._snapshot = snapshot
        if time.monotonic() - self._drawn >= _REDRAW:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._handle is None:
            self._handle = self._display(self._snapshot, display_id=True)
        else:
            self._handle.update(self._snapshot)

    def say(self, text: str, style: str = "") -> None:
        """Print a line below the table."""
        _print(text)

    def close(self) -> None:
        """Show the final state."""
        if self._snapshot is not None:
            self._draw()


def view_of(job: Job, *, show: bool) -> JobView:
    """The view for Python: a table in a notebook, else lines on standard output; none without ``show``."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if show and hasattr(shell, "kernel"):
        return NotebookView(sys.modules["IPython"].display.display)
    return LineView(_print if show else lambda _: None, partial(prefixed_line, prefix_width(job)))


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201


@contextmanager
def show_warnings(view: JobView) -> Iterator[None]:
    """Show warnings of tf-dist, such as those of a controller, on the view."""

    class Saying(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with suppress(Exception):  # a closed output must not fail the code that warns
                view.say(record.getMessage(), "yellow")

    handler, logger = Saying(logging.WARNING), logging.getLogger("tf_dist")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
