"""The subresources that only pods have: log, binding, eviction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tf_dist.cluster.api import LogOptions, Stream
from tf_dist.cluster.http.calls import Call, object_of, options_of, success
from tf_dist.cluster.http.messages import Reply, Request, Streamed, line
from tf_dist.cluster.memory.objects import seconds_of
from tf_dist.cluster.refusals import BadRequest
from tf_dist.errors import NotFound


def _log(call: Call) -> Streamed:
    request = call.request
    options = LogOptions(
        container=request.query.get("container", ""),
        follow=request.flag("follow"),
        tail=request.number("tailLines"),
        since_seconds=_since(call),
        timestamps=request.flag("timestamps"),
        previous=request.flag("previous"),
    )
    stream = call.cluster.logs(_needed(call), call.route.name, options)
    return Streamed(_limited(stream, request.number("limitBytes")), stream.close, "text/plain")


def _limited(lines: Stream[bytes], limit: int | None) -> Iterator[bytes]:
    left = limit
    with lines:
        for text in lines:
            yield text if left is None else text[:left]
            if left is not None:
                left -= len(text)
                if left <= 0:
                    return


def _since(call: Call) -> float | None:
    time = call.request.query.get("sinceTime")
    if not time:
        return call.request.number("sinceSeconds")
    try:
        return max(0.0, call.cluster.clock() - seconds_of(time))
    except ValueError:
        raise BadRequest(f"invalid sinceTime {time!r}: an RFC 3339 time") from None


def _needed(call: Call) -> str:
    if not call.space:
        raise NotFound("the server could not find the requested resource")
    return call.space


def _bind(call: Call) -> Reply:
    target = object_of(call).get("target") or {}
    if not isinstance(target, dict) or not target.get("name"):
        raise BadRequest("a binding needs target.name, the node")
    if not call.request.dry_run:
        call.cluster.bind(_needed(call), call.route.name, str(target["name"]))
    return Reply(201, success(code=201))


def _evict(call: Call) -> Reply:
    body = object_of(call).get("deleteOptions") or {}
    inner = Request("DELETE", "", {}, body=line(body))
    options, dry_run = options_of(inner)
    call.cluster.evict(_needed(call), call.route.name, options, dry_run=dry_run or call.request.dry_run)
    return Reply(201, success(code=201))


POD_SUBRESOURCES: Mapping[str, Mapping[str, Callable[[Call], Reply | Streamed]]] = {
    "log": {"GET": _log},
    "binding": {"POST": _bind},
    "eviction": {"POST": _evict},
}
