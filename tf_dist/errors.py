"""The error tree. Errors of libraries are mapped to it once, where tf-dist calls the library.

A message says what is wrong and where. ``hint`` says how to fix it. Interfaces print both, without a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class TFDistError(Exception):
    """The base class of all errors that tf-dist raises on purpose."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class MissingPackage(TFDistError, ModuleNotFoundError):
    """A package is not installed. An extra of tf-dist installs it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a document: its dotted path, the message, and a hint how to fix it."""

    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        return f"{text} ({self.hint})" if self.hint else text


class InvalidJob(TFDistError):
    """A document is not a valid job; ``problems`` lists every problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InvalidQueue(InvalidJob):
    """A document is not a valid queue; ``problems`` lists every problem."""


class ClusterError(TFDistError):
    """The cluster refused a request or did not answer. ``code`` is the HTTP status (0: no answer)."""

    code = 0


class NotFound(ClusterError):
    """The object does not exist (404)."""

    code = 404


class AlreadyExists(ClusterError):
    """An object with this name already exists (409 on create)."""

    code = 409


class Conflict(ClusterError):
    """The object changed after it was read, or was replaced (409)."""

    code = 409


class Gone(ClusterError):
    """The resource version is too old to watch from: list again (410)."""

    code = 410


class Forbidden(ClusterError):
    """A permission is missing (401, 403); the message names the verb and the resource."""

    code = 403


class Rejected(ClusterError):
    """The request is invalid; repeating it does not help (400, 405, 415, 422)."""

    code = 422


class Throttled(ClusterError):
    """The server requests a lower rate (429); ``after`` is the pause in seconds, if the server names one."""

    code = 429

    def __init__(self, message: str, *, hint: str = "", after: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.after = after


class Unavailable(ClusterError):
    """No answer, or a server error (5xx). The same request may work later."""

    code = 503
    restarting = False
    """Whether the server accepts no connections, or has just started and rejects all requests until it has read the
    roles. It may return with an older state from a backup."""


class JobOutcomeError(TFDistError):
    """The base class of errors about the end of a job, or of a wait for it.

    ``outcome``: what is known about that end (``core.diagnostics.outcome.Outcome``); None if nothing is known. Its type
    is Any, because this module imports no other module of tf-dist.
    """

    def __init__(self, message: str, *, hint: str = "", outcome: Any = None) -> None:
        super().__init__(message, hint=hint)
        self.outcome = outcome


class JobFailed(JobOutcomeError):
    """The job ended without success."""


class JobEvicted(JobFailed):
    """The job ended because it lost its admission. A retry may help."""


class ImagePullFailed(JobFailed):
    """An image cannot be pulled, so the job never ran."""


class JobTimeout(JobOutcomeError):
    """The job did not end within the caller's limit."""


class AdmissionTimeout(JobTimeout):
    """The gang was not admitted within the caller's limit."""
