"""Structured logs: one JSON object a line, with the job it is about in every record."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Final, TextIO

from tf_dist.core.model.timestamps import format_micro_time

current_job: Final[ContextVar[str]] = ContextVar("current_job", default="")
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(about)s%(message)s"
# Their every request is our API metric already, and their debug lines hold what must not be logged.
_QUIET_LOGGERS: Final = ("urllib3", "kubernetes")


class LogFormat(StrEnum):
    """How log lines are written."""

    JSON = "json"
    TEXT = "text"


@contextmanager
def job_log_context(job: str) -> Iterator[None]:
    """All that is logged inside, by any code in this thread, is about ``job`` (``namespace/name``)."""
    token = current_job.set(job)
    try:
        yield
    finally:
        current_job.reset(token)


class JobLogFilter(logging.Filter):
    """Puts the current job into records: ``job``, and ``job_log_context`` for text formats. Lets every record pass.

    It belongs on a handler: filters of a logger do not see the records of the loggers below it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Mark the record; one that names its job itself (``extra={"job": …}``) keeps it."""
        job = getattr(record, "job", "") or current_job.get()
        record.job = job
        record.about = f"{job}: " if job else ""
        return True


class JsonFormatter(logging.Formatter):
    """Records as JSON objects: time (RFC 3339, UTC), level, logger, message, job and exception where there are any."""

    def format(self, record: logging.LogRecord) -> str:
        """One line without line breaks."""
        found = {
            "time": format_micro_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "job": getattr(record, "job", ""),
            "exception": self._exception(record),
        }
        return json.dumps({key: value for key, value in found.items() if value or key == "message"}, ensure_ascii=False)

    def _exception(self, record: logging.LogRecord) -> str:
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        return "\n".join(text for text in (record.exc_text, record.stack_info) if text)


def configure_logging(form: LogFormat, *, level: int = logging.INFO, stream: TextIO | None = None) -> logging.Handler:
    """Make the root logger write in ``form`` to ``stream`` (standard error); the handler, to take it off again."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(JobLogFilter())
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else logging.Formatter(_TEXT))
    root = logging.getLogger()
    root.setLevel(level)
    root.addHandler(handler)
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler
