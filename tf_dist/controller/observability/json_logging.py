"""Structured logs: one JSON object for each line. It contains the job that the record is about."""

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
# tf-dist's API metrics already count their requests, and their debug lines contain data that must not be logged.
_QUIET_LOGGERS: Final = ("urllib3", "kubernetes")


class LogFormat(StrEnum):
    """The format of log lines."""

    JSON = "json"
    TEXT = "text"


@contextmanager
def job_log_context(job: str) -> Iterator[None]:
    """Mark everything that this thread logs inside as about ``job`` (``namespace/name``)."""
    token = current_job.set(job)
    try:
        yield
    finally:
        current_job.reset(token)


class JobLogFilter(logging.Filter):
    """Adds the current job to records: ``job``, and ``about`` for text formats. The filter accepts all records.

    Add it to a handler: the filters of a logger do not process the records of its child loggers.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Mark the record. A record with its own job (``extra={"job": …}``) keeps it."""
        job = getattr(record, "job", "") or current_job.get()
        record.job = job
        record.about = f"{job}: " if job else ""
        return True


class JsonFormatter(logging.Formatter):
    """Formats records as JSON objects: time (RFC 3339, UTC), level, logger, message and, if any, job and exception."""

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
    """Make the root logger write in ``form`` to ``stream`` (standard error). Returns the handler, for its removal."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(JobLogFilter())
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else logging.Formatter(_TEXT))
    root = logging.getLogger()
    root.setLevel(level)
    root.addHandler(handler)
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler
