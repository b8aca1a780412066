"""The ways in which an API server refuses a request, finer than our error tree: children of its classes."""

from __future__ import annotations

from collections.abc import Iterable

from tf_dist.errors import AlreadyExists, Forbidden, NotFound, Problem, Rejected


class BadRequest(Rejected):
    """The request cannot be understood (400)."""

    code = 400


class LengthRequired(BadRequest):
    """The request has a body and does not say how long it is (411)."""

    code = 411


class Unauthorized(Forbidden):
    """The request carries no valid token (401)."""

    code = 401


class Disallowed(Forbidden):
    """A rule of the cluster refuses this very object, no matter who asks (403)."""


class QuotaExceeded(Forbidden):
    """The namespace's quota has no room for the object now (403); it may have later."""


class NotServed(NotFound):
    """The API server does not serve this kind (404): its definition is not installed."""


class PerhapsOurs(AlreadyExists):
    """The object is there, and may be the one asked for: the answer to an earlier try was lost (409)."""


class MethodNotAllowed(Rejected):
    """The resource does not know this verb (405)."""

    code = 405


class TooLarge(Rejected):
    """The body is larger than the server reads (413)."""

    code = 413


class UnsupportedMedia(Rejected):
    """The body is of a type that the resource does not take (415)."""

    code = 415


class Invalid(Rejected):
    """The object breaks rules (422); ``problems`` names every one of them by its field."""

    def __init__(self, subject: str, problems: Iterable[Problem], *, message: str = "") -> None:
        self.subject = subject
        self.problems = tuple(problems)
        super().__init__(message or invalid_message(subject, self.problems))


def invalid_message(subject: str, problems: tuple[Problem, ...]) -> str:
    """The sentence of an API server: ``Pod "x" is invalid: spec.a: Required value``."""
    texts = [str(problem) for problem in problems]
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return f"{subject} is invalid: {joined}"
