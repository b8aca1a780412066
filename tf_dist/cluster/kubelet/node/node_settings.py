"""Settings of a kubelet, and its network modes."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from os import geteuid
from pathlib import Path


class NetworkMode(StrEnum):
    """How pods are separated. ``auto`` tests isolated mode once, and falls back to shared mode."""

    AUTO = "auto"
    ISOLATED = "isolated"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class NetworkDescription:
    """The active mode, the reason for it, and its limits, each as a sentence.

    ``no_way_out``: how to let pods reach other networks; "" if they can.
    """

    mode: NetworkMode
    reason: str
    limits: tuple[str, ...] = ()
    no_way_out: str = ""


@dataclass(frozen=True, slots=True)
class RestartBackoff:
    """The pause before a restart, as in the kubelet: none, then ``base`` seconds, doubling up to ``cap``.

    After an instance that ran for ``reset`` seconds, the series starts again.
    """

    base: float = 10.0
    cap: float = 300.0
    reset: float = 600.0

    def delay(self, streak: int) -> float:
        """Seconds from the end of an instance to its next start, after ``streak`` restarts in a row."""
        if streak <= 0:
            return 0.0
        return float(min(self.base * 2.0 ** min(streak - 1, 30), self.cap))


def default_state_dir() -> Path:
    """The parent of all state folders: one folder per user, on a local disk."""
    return Path(tempfile.gettempdir()) / f"tf-dist-{geteuid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """All settings of a kubelet except its cluster."""

    name: str = "local"
    """The node's name: a DNS subdomain."""
    state_dir: Path = field(default_factory=default_state_dir)
    """The folder of sockets, logs and volumes of running pods. Each ``ephemeral`` node creates its own folder in it."""
    data_dir: Path | None = None
    """The folder of persistent volume claims (``volumes/<namespace>/<claim>``); None: inside the state folder."""
    workdir: Path | None = None
    """The working directory of containers without a workingDir; None: that of the kubelet."""
    network: NetworkMode = NetworkMode.AUTO
    """The separation of pods."""
    capacity: Mapping[str, str] = field(default_factory=dict)
    """Overrides of the node's capacity, as ``{"cpu": "32", "nvidia.com/gpu": "4"}``."""
    entrypoints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The command of each image, because a node has no images. A key may omit the tag."""
    ephemeral: bool = True
    """True: pods and state folder end with this process, however it ends. False: they remain for the next kubelet."""
    keep_logs_dir: Path | None = None
    """Write logs to this folder and keep them after pods are deleted; None: logs are deleted with their pod. A relative
    path is inside the state folder.
    """
    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    """Restart delays."""
    log_limit: int = 10 << 20
    """Bytes after which a container's log file is rotated; four older files are kept."""
    heartbeat: float = 300.0
    """Seconds between reports of the Node's status, as the kubelet's nodeStatusReportFrequency."""


ISOLATED_LIMITS = (
    "the machine cannot reach the ports of pods",
    "pods reach the machine's services by its address, not by localhost",
)
CLOSED_LIMITS = (
    "the machine cannot reach the ports of pods",
    "pods reach each other but nothing outside: {}, or use network mode shared",
)
SHARED_LIMITS = (
    "pods share the machine's ports: a fixed port works for one replica only",
    "nothing can be mounted: volumes need isolated mode",
)


def candidate_modes(network: NetworkMode) -> Sequence[NetworkMode]:
    """The modes that the settings allow, the preferred mode first."""
    if network != NetworkMode.AUTO:
        return (network,)
    return (NetworkMode.ISOLATED, NetworkMode.SHARED) if sys.platform == "linux" else (NetworkMode.SHARED,)


def network_hint(network: NetworkMode) -> str:
    """The hint for the case that none of the modes is possible."""
    return "use network mode shared, or allow user namespaces" if network == NetworkMode.ISOLATED else ""


def describe_network(mode: NetworkMode, reason: str, *, forced: bool, no_way_out: str) -> NetworkDescription:
    """A description of a mode. ``no_way_out``: how to let isolated pods reach other networks, "" if they can."""
    why = "chosen in the settings" if forced else reason or "the system allows it"
    if mode == NetworkMode.SHARED:
        return NetworkDescription(mode, why, SHARED_LIMITS)
    closed = tuple(limit.format(no_way_out) for limit in CLOSED_LIMITS)
    return NetworkDescription(mode, why, closed if no_way_out else ISOLATED_LIMITS, no_way_out)
