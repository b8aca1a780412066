"""Errors on the wire: the Status objects of an API server, to and from our error tree. The one place that maps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tf_dist import errors
from tf_dist.cluster import grants, refusals
from tf_dist.cluster.api import Object
from tf_dist.cluster.asked import Asked
from tf_dist.errors import ClusterError, Problem

# Seconds to wait that a server is believed to mean: an informer that slept for a day would miss the end of its trouble.
LONGEST_WISH: Final = 300.0

_REASONS: tuple[tuple[type[ClusterError], str], ...] = (
    (errors.NotFound, "NotFound"),
    (errors.AlreadyExists, "AlreadyExists"),
    (errors.Conflict, "Conflict"),
    (errors.Gone, "Expired"),
    (refusals.Unauthorized, "Unauthorized"),
    (errors.Forbidden, "Forbidden"),
    (refusals.BadRequest, "BadRequest"),
    (refusals.MethodNotAllowed, "MethodNotAllowed"),
    (refusals.TooLarge, "RequestEntityTooLarge"),
    (refusals.UnsupportedMedia, "UnsupportedMediaType"),
    (errors.Rejected, "Invalid"),
    (errors.Throttled, "TooManyRequests"),
    (errors.Unavailable, "ServiceUnavailable"),
)
_CAUSES: tuple[tuple[str, str], ...] = (
    ("Required value", "FieldValueRequired"),
    ("Duplicate value", "FieldValueDuplicate"),
    ("Unsupported value", "FieldValueNotSupported"),
    ("Forbidden", "FieldValueForbidden"),
    ("Not found", "FieldValueNotFound"),
    ("Too long", "FieldValueTooLong"),
)
_REFUSED: Mapping[int, type[errors.Rejected]] = {
    400: refusals.BadRequest,
    405: refusals.MethodNotAllowed,
    413: refusals.TooLarge,
    415: refusals.UnsupportedMedia,
}


def status_of(error: ClusterError, **details: str) -> Object:
    """The Status that says an error; ``details`` are the name, group and kind it is about."""
    code = error.code or 500
    shown: Object = {key: value for key, value in details.items() if value}
    if isinstance(error, refusals.Invalid):
        kind, _, name = error.subject.partition(' "')
        if name:
            shown |= {"kind": kind.partition(".")[0], "name": name.rstrip('"')}
        shown["causes"] = [_cause(problem) for problem in error.problems]
    if isinstance(error, errors.Throttled) and error.after is not None:
        shown["retryAfterSeconds"] = max(1, round(error.after))
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(error),
        "reason": next((reason for kind, reason in _REASONS if isinstance(error, kind)), "InternalError"),
        **({"details": shown} if shown else {}),
        "code": code,
    }


def _cause(problem: Problem) -> Object:
    reason = next((reason for prefix, reason in _CAUSES if problem.message.startswith(prefix)), "FieldValueInvalid")
    text = f"{problem.message} ({problem.hint})" if problem.hint else problem.message
    return {"reason": reason, "message": text, "field": problem.path}


def error_of(code: int, status: Any, *, asked: Asked, retry_after: str = "") -> ClusterError:
    """The error that a reply says: its HTTP code, its body if that is a Status."""
    body: Mapping[str, Any] = status if isinstance(status, Mapping) else {}
    message = str(body.get("message") or f"the server answered {code}")
    if code in (401, 403):
        return _denied(code, message, asked)
    if code == 404:
        return _absent(message, asked)
    if code == 409:
        return (errors.AlreadyExists if body.get("reason") == "AlreadyExists" else errors.Conflict)(message)
    if code == 410:
        return errors.Gone(message, hint="list again, then watch from there")
    if code == 429:
        return errors.Throttled(message, after=_seconds(retry_after, body))
    if 400 <= code < 500:
        return _refusal(code, message, body)
    failure = errors.Unavailable(f"{asked}: {message}")
    failure.code = code
    return failure


def _denied(code: int, message: str, asked: Asked) -> errors.Forbidden:
    if code == 401 and asked.subresource == "log" and message != "Unauthorized":
        hint = "the node asks the API server who it is: its --kubelet-client-certificate must be one that nodes trust"
        return errors.Forbidden(f"{asked}: the node keeps the log back: {message}", hint=hint)
    if code == 401:
        return refusals.Unauthorized(
            f"{asked}: {message}", hint="the server does not know us: log in again, or mend the kubeconfig's user"
        )
    if "exceeded quota" in message:
        hint = (
            f"kubectl describe resourcequota -n {asked.namespace} shows what is used, and by how much it is too little"
        )
        return refusals.QuotaExceeded(f"{asked}: {message}", hint=hint)
    kind = refusals.Disallowed if grants.is_of_a_rule(message) else errors.Forbidden
    return kind(f"{asked}: {message}", hint=grants.hint(asked, message))


def _absent(message: str, asked: Asked) -> errors.NotFound:
    # An absent object is named; for an absent kind the server has these two sentences.
    if message.startswith("404 page not found") or "could not find the requested resource" in message:
        what = f"the cluster does not serve {asked.resource.plural} of {asked.resource.api_version}"
        return refusals.NotServed(f"{asked}: {what}")
    return errors.NotFound(message)


def _refusal(code: int, message: str, body: Mapping[str, Any]) -> errors.Rejected:
    if kind := _REFUSED.get(code):
        return kind(message)
    causes = (body.get("details") or {}).get("causes") or ()
    problems = [Problem(str(cause.get("field", "")), str(cause.get("message", ""))) for cause in causes]
    return refusals.Invalid("", problems, message=message) if problems else errors.Rejected(message)


def _seconds(header: str, body: Mapping[str, Any]) -> float | None:
    said = header or str((body.get("details") or {}).get("retryAfterSeconds") or "")
    return min(float(said), LONGEST_WISH) if said.isascii() and said.isdecimal() else None
