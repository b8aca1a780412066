"""One error tree. All that a library below raises is mapped to it once, at the edge.

A message says what went wrong and where; ``hint`` says how to mend it. Faces print both and no traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class TFDistError(Exception):
    """The root: catch it to catch everything that tf-dist raises on purpose."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a document: where (dotted path), what, and how to mend it."""

    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        return f"{text} ({self.hint})" if self.hint else text


class InvalidJob(TFDistError):
    """A document cannot become a job; ``problems`` holds every reason, not only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InvalidQueue(InvalidJob):
    """A document cannot become a queue; ``problems`` holds every reason."""


class ClusterError(TFDistError):
    """The cluster refused, or could not be asked. ``code`` is the HTTP status (0: no answer)."""

    code = 0


class NotFound(ClusterError):
    """No such object (404)."""

    code = 404


class AlreadyExists(ClusterError):
    """An object of that name is there (409 on create)."""

    code = 409


class Conflict(ClusterError):
    """The object changed since it was read, or is another one by now (409)."""

    code = 409


class Gone(ClusterError):
    """The resource version is too old to watch from: list again (410)."""

    code = 410


class Forbidden(ClusterError):
    """Not allowed (401, 403); the message names the verb and resource to grant."""

    code = 403


class Rejected(ClusterError):
    """The request itself is wrong and will stay wrong (400, 405, 415, 422)."""

    code = 422


class Throttled(ClusterError):
    """The server asks to slow down (429); ``after`` is its wish in seconds, if it said one."""

    code = 429

    def __init__(self, message: str, *, hint: str = "", after: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.after = after


class Unavailable(ClusterError):
    """No answer, or a server error (5xx): the same request may work later."""

    code = 503


class JobOutcomeError(TFDistError):
    """Base of the errors about how a job, or the wait for it, ended.

    ``outcome``: all that is known of that (``core.diagnostics.outcome.Outcome``), None where nothing is. Its type is
    not named here, because this module imports nothing.
    """

    def __init__(self, message: str, *, hint: str = "", outcome: Any = None) -> None:
        super().__init__(message, hint=hint)
        self.outcome = outcome


class JobFailed(JobOutcomeError):
    """The job ended and did not succeed."""


class JobEvicted(JobFailed):
    """The job ended because the cluster took its place away: worth another try."""


class ImagePullFailed(JobFailed):
    """The image of a container cannot be had, so the job never began."""


class JobTimeout(JobOutcomeError):
    """The job was not done in the time the caller gave it."""


class AdmissionTimeout(JobTimeout):
    """The gang was not admitted in the time the caller gave it."""
