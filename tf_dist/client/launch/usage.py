"""How long a job held GPUs, as its pods tell it: Argo counts only the launcher's own pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tf_dist.cluster.api import Object
from tf_dist.core.quantity import parse_quantity
from tf_dist.core.times import parse_time

_ENDED = ("Succeeded", "Failed")


class _Held(NamedTuple):
    gpus: float
    since: float
    until: float | None


class Usage:
    """GPUs times seconds of every pod that was noticed. Times are epoch seconds."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def note(self, pods: Mapping[str, Object], now: float) -> None:
        """These pods are there; one that was and is no more has ended now."""
        for uid, pod in pods.items():
            if (held := _held(pod)) is not None:
                self._held[uid] = held
        for uid, held in self._held.items():
            if uid not in pods and held.until is None:
                self._held[uid] = held._replace(until=now)

    def gpu_seconds(self, now: float) -> float:
        """Up to now."""
        return sum(held.gpus * max(0.0, (held.until or now) - held.since) for held in self._held.values())


def _held(pod: Object) -> _Held | None:
    status = pod.get("status") or {}
    since = parse_time(status.get("startTime"))
    if since is None:
        return None
    statuses = status.get("containerStatuses") or ()
    ends = [parse_time(((one.get("state") or {}).get("terminated") or {}).get("finishedAt")) for one in statuses]
    until = max((end for end in ends if end is not None), default=since) if status.get("phase") in _ENDED else None
    return _Held(_gpus((pod.get("spec") or {}).get("containers") or ()), since, until)


def _gpus(containers: Iterable[Mapping[str, Any]]) -> float:
    """Whatever vendor: extended resources whose name ends in ``gpu``; an extended resource is requested as limited."""
    total = 0.0
    for container in containers:
        resources = container.get("resources") or {}
        asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        for name, quantity in asked.items():
            if name.partition("/")[2].endswith("gpu"):
                total += float(parse_quantity(quantity))
    return total
