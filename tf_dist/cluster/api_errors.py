"""API errors: the refusals of an API server, conversion between Status objects and our errors, RBAC hints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from tf_dist import errors
from tf_dist.cluster.api import Object, Resource
from tf_dist.errors import AlreadyExists, ClusterError, Forbidden, NotFound, Problem, Rejected, Unavailable


class RequestInfo(NamedTuple):
    """A verb on a kind, for messages and metrics. ``namespace``: "" for all, or for a cluster-scoped kind."""

    verb: str
    resource: Resource
    subresource: str = ""
    namespace: str = ""

    @property
    def plural(self) -> str:
        """``pods``, ``tfjobs/status``."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    @property
    def granted(self) -> str:
        """The kind in the form of ``kubectl create role --resource``: ``tfjobs.kubeflow.org/status``."""
        group = f".{self.resource.group}" if self.resource.group else ""
        return f"{self.resource.plural}{group}{'/' if self.subresource else ''}{self.subresource}"

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace and self.resource.namespaced else ""
        return f"{self.verb} {self.granted}{where}"


class BadRequest(Rejected):
    """The request cannot be understood (400)."""

    code = 400


class LengthRequired(BadRequest):
    """The request has a body without a declared length (411)."""

    code = 411


class Unauthorized(Forbidden):
    """The request carries no valid token (401)."""

    code = 401


class AdmissionDenied(Forbidden):
    """Admission refuses this object for every user (403)."""


class QuotaExceeded(Forbidden):
    """The object exceeds the namespace's quota now (403); it may fit later."""


class NotServed(NotFound):
    """The API server does not serve this kind (404): its definition is not installed."""


class AmbiguousCreate(AlreadyExists):
    """The object exists, and an earlier attempt whose response was lost may have created it (409)."""


class StreamSilent(Unavailable):
    """Nothing arrived within the client's timeout: the peer is silent, or the connection is dead."""


class MethodNotAllowed(Rejected):
    """The resource does not support this verb (405)."""

    code = 405


class RequestEntityTooLarge(Rejected):
    """The body is larger than the server reads (413)."""

    code = 413


class UnsupportedMediaType(Rejected):
    """The resource does not accept this type of body (415)."""

    code = 415


class Invalid(Rejected):
    """The object is invalid (422); ``problems`` lists every violation with its field."""

    def __init__(self, subject: str, problems: Iterable[Problem], *, message: str = "") -> None:
        self.subject = subject
        self.problems = tuple(problems)
        super().__init__(message or invalid_message(subject, self.problems))


def is_invalid_object(error: Rejected) -> bool:
    """Whether the object itself is invalid, so that retries cannot succeed.

    The API server's validation names fields; a body that is not an object of its kind cannot be decoded (400).
    Admission policies and webhooks may answer with the same codes, and their rules change.
    """
    if any(rule in str(error) for rule in _RULES_OF_THE_CLUSTER):
        return False
    if isinstance(error, Invalid):
        return any(problem.path for problem in error.problems)
    return type(error) is BadRequest


_RULES_OF_THE_CLUSTER: Final = ("admission webhook", "ValidatingAdmissionPolicy")


def invalid_message(subject: str, problems: tuple[Problem, ...]) -> str:
    """The message in the form of an API server: ``Pod "x" is invalid: spec.a: Required value``."""
    texts = [str(problem) for problem in problems]
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return f"{subject} is invalid: {joined}"


# The message of the API server's authorizer. Other responses with code 403 are from admission, and no grant helps.
_AUTHORIZER: Final = re.compile(r'User "(?P<user>[^"]*)" cannot ')
_ACCOUNT: Final = "system:serviceaccount:"
_ANONYMOUS: Final = "system:anonymous"
_ALL: Final = "tf-dist install prints roles with every right that tf-dist needs"


def is_admission_denial(message: str) -> bool:
    """Whether admission refused the object; otherwise RBAC refused the request."""
    return _AUTHORIZER.search(message) is None and "forbidden:" in message


def rbac_hint(asked: RequestInfo, message: str) -> str:
    """The hint for a Forbidden with this message of the server."""
    who = _AUTHORIZER.search(message)
    user = who["user"] if who else ""
    if user == _ANONYMOUS:
        return "the request carried no credentials: log in, or name another user in the kubeconfig"
    if is_admission_denial(message):
        return "a rule of the cluster refuses this object for every user: change it, or ask the owner of the rule"
    return f"grant it: {_grant_commands(asked, user)} ({_ALL})"


def _grant_commands(asked: RequestInfo, user: str) -> str:
    everywhere = not (asked.resource.namespaced and asked.namespace)
    kind, place = ("clusterrole", "") if everywhere else ("role", f" -n {asked.namespace}")
    name = re.sub(r"[^a-z0-9]+", "-", f"tf-dist-{asked.verb}-{asked.plural}")
    made = f"kubectl create {kind} {name} --verb={asked.verb} --resource={asked.granted}{place}"
    return f"{made} && kubectl create {kind}binding {name} --{kind}={name} {_subject(user)}{place}"


def _subject(user: str) -> str:
    if user.startswith(_ACCOUNT):
        return f"--serviceaccount={user.removeprefix(_ACCOUNT)}"
    return f"--user={user}" if user else "--user=YOU"


# The longest Retry-After that is respected, in seconds. An informer that waits for a day would not notice a recovery.
MAX_RETRY_AFTER: Final = 300.0

_REASONS: tuple[tuple[type[ClusterError], str], ...] = (
    (errors.NotFound, "NotFound"),
    (errors.AlreadyExists, "AlreadyExists"),
    (errors.Conflict, "Conflict"),
    (errors.Gone, "Expired"),
    (Unauthorized, "Unauthorized"),
    (errors.Forbidden, "Forbidden"),
    (BadRequest, "BadRequest"),
    (MethodNotAllowed, "MethodNotAllowed"),
    (RequestEntityTooLarge, "RequestEntityTooLarge"),
    (UnsupportedMediaType, "UnsupportedMediaType"),
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
_REJECTED: Mapping[int, type[errors.Rejected]] = {
    400: BadRequest,
    405: MethodNotAllowed,
    413: RequestEntityTooLarge,
    415: UnsupportedMediaType,
}


def status_from_error(error: ClusterError, **details: str) -> Object:
    """The Status of an error; ``details`` are the name, group and kind of the object."""
    code = error.code or 500
    shown: Object = {key: value for key, value in details.items() if value}
    if isinstance(error, Invalid):
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


def error_from_status(code: int, status: Any, *, asked: RequestInfo, retry_after: str = "") -> ClusterError:
    """The error of a response, from its HTTP code and, if the body is a Status, from the body."""
    body: Mapping[str, Any] = status if isinstance(status, Mapping) else {}
    message = str(body.get("message") or f"the server answered {code}")
    if code in (401, 403):
        return _forbidden(code, message, asked)
    if code == 404:
        return _not_found(message, asked)
    if code == 409:
        return (errors.AlreadyExists if body.get("reason") == "AlreadyExists" else errors.Conflict)(message)
    if code == 410:
        return errors.Gone(message, hint="list again, then watch from there")
    if code == 429:
        return errors.Throttled(message, after=_retry_after(retry_after, body))
    if 400 <= code < 500:
        return _rejected(code, message, body)
    failure = errors.Unavailable(f"{asked}: {message}")
    failure.code = code
    return failure


def _forbidden(code: int, message: str, asked: RequestInfo) -> errors.Forbidden:
    if code == 401 and asked.subresource == "log" and message != "Unauthorized":
        hint = (
            "the node did not authenticate the API server: nodes must trust the API server's "
            "--kubelet-client-certificate"
        )
        return errors.Forbidden(f"{asked}: the node refuses to return the log: {message}", hint=hint)
    if code == 401:
        return Unauthorized(
            f"{asked}: {message}",
            hint="the server rejects the credentials: log in again, or correct the kubeconfig's user",
        )
    if "exceeded quota" in message:
        hint = f"kubectl describe resourcequota -n {asked.namespace} shows the use and the limit"
        return QuotaExceeded(f"{asked}: {message}", hint=hint)
    kind = AdmissionDenied if is_admission_denial(message) else errors.Forbidden
    return kind(f"{asked}: {message}", hint=rbac_hint(asked, message))


def _not_found(message: str, asked: RequestInfo) -> errors.NotFound:
    # For a missing object, the message names it. For a kind that is not served, it is one of these two.
    if message.startswith("404 page not found") or "could not find the requested resource" in message:
        what = f"the cluster does not serve {asked.resource.plural} of {asked.resource.api_version}"
        return NotServed(f"{asked}: {what}")
    return errors.NotFound(message)


def _rejected(code: int, message: str, body: Mapping[str, Any]) -> errors.Rejected:
    if body.get("kind") != "Status":
        foreign = errors.Rejected(message, hint="a proxy may have answered instead of the API server")
        foreign.code = code
        return foreign
    if kind := _REJECTED.get(code):
        return kind(message)
    causes = (body.get("details") or {}).get("causes") or ()
    problems = [Problem(str(cause.get("field", "")), str(cause.get("message", ""))) for cause in causes]
    return Invalid("", problems, message=message) if problems else errors.Rejected(message)


def _retry_after(header: str, body: Mapping[str, Any]) -> float | None:
    said = header or str((body.get("details") or {}).get("retryAfterSeconds") or "")
    return min(float(said), MAX_RETRY_AFTER) if said.isascii() and said.isdecimal() else None
