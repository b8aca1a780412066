"""The ways in which an API server calls a request wrong: children of Rejected that know their HTTP status."""

from __future__ import annotations

from collections.abc import Iterable

from tf_dist.errors import Forbidden, Problem, Rejected


class BadRequest(Rejected):
    """The request cannot be understood (400)."""

    code = 400


class Unauthorized(Forbidden):
    """The request carries no valid token (401)."""

    code = 401


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
