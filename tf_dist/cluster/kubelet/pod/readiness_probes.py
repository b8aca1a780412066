"""Readiness probes: their schedule and the meaning of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tf_dist.cluster.api import Object
from tf_dist.cluster.kubelet.pod.pod_status import ContainerRun, ContainerState

ProbeRunner = Callable[
    [str, Mapping[str, Any], Callable[[int], None]], None
]  # container, probe request, callback for the exit code


@dataclass(slots=True)
class _ProbeResults:
    """The results of one container instance so far."""

    attempt: int
    due: float
    ready: bool = False
    same: int = 0
    pending: bool = False


class ReadinessProber:
    """The readiness of one pod's containers. ``changed`` is called, from any thread, when a verdict changes."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._series: dict[str, _ProbeResults] = {}

    def look(
        self, pod: Object, runs: Mapping[str, ContainerRun], ip: str, now: float, ask: ProbeRunner
    ) -> float | None:
        """Run the probes that are due. Returns when the next probe is due."""
        times = [
            self._look(item, runs[item["name"]], ip, now, ask)
            for item in _probed(pod)
            if item["name"] in runs and runs[item["name"]].state == ContainerState.RUNNING
        ]
        return min(times, default=None)

    def verdicts(self, pod: Object) -> dict[str, bool]:
        """Containers with a probe, and whether they are ready."""
        return {name: name in self._series and self._series[name].ready for name in (i["name"] for i in _probed(pod))}

    def _look(self, item: Object, run: ContainerRun, ip: str, now: float, ask: ProbeRunner) -> float:
        probe, name = item["readinessProbe"], item["name"]
        series = self._series.get(name)
        if series is None or series.attempt != run.attempt:
            series = _ProbeResults(run.attempt, run.started + float(probe.get("initialDelaySeconds", 0)))
            self._series[name] = series
        if now >= series.due and not series.pending:
            series.pending, series.due = True, now + float(probe.get("periodSeconds", 10))
            found = series
            ask(name, probe_request(item, ip), lambda code: self._answer(probe, found, code == 0))
        return series.due

    def _answer(self, probe: Object, series: _ProbeResults, good: bool) -> None:
        series.pending = False
        series.same = 0 if good == series.ready else series.same + 1
        threshold = probe.get("successThreshold", 1) if good else probe.get("failureThreshold", 3)
        if series.same >= threshold:
            series.ready, series.same = good, 0
            self._changed()


def _probed(pod: Object) -> Iterable[Object]:
    return (item for item in pod["spec"]["containers"] if item.get("readinessProbe"))


def probe_request(item: Object, ip: str) -> dict[str, Any]:
    """A probe in the form in which the supervisor runs it."""
    probe = item["readinessProbe"]
    asked: dict[str, Any] = {"timeout": float(probe.get("timeoutSeconds", 1))}
    if "exec" in probe:
        return asked | {"argv": probe["exec"]["command"]}
    if "httpGet" in probe:
        http = probe["httpGet"]
        headers = {entry["name"]: entry["value"] for entry in http.get("httpHeaders") or []}
        where = {"host": http.get("host") or ip, "port": _port(item, http["port"]), "path": http.get("path") or "/"}
        return asked | {"http": where | {"headers": headers}}
    socket = probe.get("tcpSocket") or probe.get("grpc") or {"port": 0}
    return asked | {"tcp": {"host": socket.get("host") or ip, "port": _port(item, socket["port"])}}


def _port(item: Object, port: int | str) -> int:
    """A port by its number, or by its name in the container."""
    if isinstance(port, int) or port.isdigit():
        return int(port)
    named = {entry.get("name"): entry["containerPort"] for entry in item.get("ports") or []}
    return int(named.get(port, 0))
