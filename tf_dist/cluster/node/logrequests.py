"""Requests for logs as the API server sends them to a node. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from tf_dist.cluster.api import LogOptions
from tf_dist.cluster.refusals import BadRequest
from tf_dist.core.times import parse_time
from tf_dist.errors import NotFound


@dataclass(frozen=True, slots=True)
class LogRequest:
    """Which log; at most ``limit`` bytes of it (None: all)."""

    namespace: str
    pod: str
    options: LogOptions
    limit: int | None


def read_request(target: str, now: float) -> LogRequest:
    """A request's target, ``/containerLogs/NAMESPACE/POD/CONTAINER?...``; NotFound for others, BadRequest."""
    parts = urlsplit(target)
    head, *path = [unquote(part) for part in parts.path.strip("/").split("/")]
    if head != "containerLogs" or len(path) != 3 or not all(path):
        raise NotFound("404 page not found")
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    options = LogOptions(
        container=path[2],
        follow=_flag(query, "follow"),
        tail=_number(query, "tailLines"),
        since_seconds=_since(query, now),
        timestamps=_flag(query, "timestamps"),
        previous=_flag(query, "previous"),
    )
    return LogRequest(path[0], path[1], options, _number(query, "limitBytes"))


def _flag(query: dict[str, str], name: str) -> bool:
    value = query.get(name, "false").lower()
    if value not in ("true", "1", "false", "0"):
        raise BadRequest(f"{name}={query[name]} is neither true nor false")
    return value in ("true", "1")


def _number(query: dict[str, str], name: str) -> int | None:
    value = query.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal()):
        raise BadRequest(f"{name}={value} is no number")
    return int(value)


def _since(query: dict[str, str], now: float) -> float | None:
    if "sinceTime" not in query:
        return _number(query, "sinceSeconds")
    time = parse_time(query["sinceTime"])
    if time is None:
        raise BadRequest(f"sinceTime={query['sinceTime']} is no RFC 3339 time")
    return max(0.0, now - time)
