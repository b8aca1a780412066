"""State changes and log lines of a job as text, the same in every face."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tf_dist.client.monitor import JobSnapshot, JobView
    from tf_dist.core.api.job import Job

_UNREMARKABLE: Final = frozenset({"Waiting", "Pending", "Starting", "Gone"})  # what the job's own state says already
_MESSAGE_IS_NEWS: Final = frozenset({"Waiting", "Pending", "Running"})
_CONTROLS: Final = re.compile(r"\x1b\[[0-9;?]*[A-LN-Za-ln-z]|\x1b[^\[]|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]")


def visible_text(text: str) -> str:
    """What a line shows in the end: progress bars draw over themselves, and only colours may steer a terminal."""
    shown = next((part for part in reversed(text.split("\r")) if part), "")
    return _CONTROLS.sub("", shown)


def prefix_width(job: Job) -> int:
    """How wide the longest name of a replica is that the job may have."""
    from tf_dist.core.api.assignment import largest_job

    return max((len(str(replica)) for replica in largest_job(job).replicas), default=0)


def state_changes(snapshot: JobSnapshot, shown: dict[str, str]) -> list[str]:
    """A sentence for each state that is not the one in ``shown``, which is brought up to date."""
    changes = []
    status = snapshot.status
    message = f": {status.display_message}" if status.display_message else ""
    # While it waits the reason is the news: its place in the line, and what is missing; and how many run is, too.
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


@contextmanager
def show_warnings(view: JobView) -> Iterator[None]:
    """What tf-dist warns of, as a driver does, is shown where everything is shown."""

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
