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
    """What separates pods from one another. ``auto`` tries isolated once for real and falls back to shared."""

    AUTO = "auto"
    ISOLATED = "isolated"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class NetworkDescription:
    """The mode in force, why it is this one, and what it cannot do (one sentence each).

    ``no_way_out``: what would let pods reach something outside the machine; "" if they do.
    """

    mode: NetworkMode
    reason: str
    limits: tuple[str, ...] = ()
    no_way_out: str = ""


@dataclass(frozen=True, slots=True)
class RestartBackoff:
    """Waiting before a restart, as the kubelet does: at once, then ``base`` seconds doubling to ``cap``.

    An instance that ran for ``reset`` seconds starts the series anew.
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
    """Where nodes keep what lives as long as they do: one folder per user, on a local disk."""
    return Path(tempfile.gettempdir()) / f"tf-dist-{geteuid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Everything a kubelet needs to know beside its cluster."""

    name: str = "local"
    """The node's name: a DNS subdomain."""
    state_dir: Path = field(default_factory=default_state_dir)
    """Sockets, logs and volumes of running pods. ``ephemeral`` nodes each make a folder of their own inside it."""
    data_dir: Path | None = None
    """Where persistent volume claims live (``volumes/<namespace>/<claim>``); None: inside the state folder."""
    workdir: Path | None = None
    """Where a container runs that names no workingDir; None: where the kubelet was started."""
    network: NetworkMode = NetworkMode.AUTO
    """Which separation of pods to use."""
    capacity: Mapping[str, str] = field(default_factory=dict)
    """Overrides of what the node offers, as ``{"cpu": "32", "nvidia.com/gpu": "4"}``."""
    entrypoints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Image to the command it would run: a node has no images. A key may leave the tag out."""
    ephemeral: bool = True
    """True: pods and state folder end with this process, however it ends. False: they wait for the next kubelet."""
    keep_logs_dir: Path | None = None
    """Write logs here and keep them when pods go; None: logs go with their pod. Relative: inside the state folder."""
    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    """Restart delays."""
    log_limit: int = 10 << 20
    """Bytes after which a container's log file is rotated; four older files are kept."""
    heartbeat: float = 300.0
    """Seconds between reports of the Node's status, as the kubelet's nodeStatusReportFrequency."""


ISOLATED_LIMITS = (
    "the machine reaches no port of a pod",
    "pods reach the machine's services by its address, not by localhost",
)
CLOSED_LIMITS = (
    "the machine reaches no port of a pod",
    "pods reach each other but nothing outside: {}, or use network mode shared",
)
SHARED_LIMITS = (
    "pods share the machine's ports: a fixed port works for one replica only",
    "nothing can be mounted: volumes need isolated mode",
)


def candidate_modes(network: NetworkMode) -> Sequence[NetworkMode]:
    """The modes that settings allow, the best first."""
    if network != NetworkMode.AUTO:
        return (network,)
    return (NetworkMode.ISOLATED, NetworkMode.SHARED) if sys.platform == "linux" else (NetworkMode.SHARED,)


def network_hint(network: NetworkMode) -> str:
    """What to do when none of them is possible."""
    return "use network mode shared, or allow user namespaces" if network == NetworkMode.ISOLATED else ""


def describe_network(mode: NetworkMode, reason: str, *, forced: bool, no_way_out: str) -> NetworkDescription:
    """A mode in words; ``no_way_out`` says why isolated pods reach nothing outside, "" if they do."""
    why = "chosen in the settings" if forced else reason or "the system allows it"
    if mode == NetworkMode.SHARED:
        return NetworkDescription(mode, why, SHARED_LIMITS)
    closed = tuple(limit.format(no_way_out) for limit in CLOSED_LIMITS)
    return NetworkDescription(mode, why, closed if no_way_out else ISOLATED_LIMITS, no_way_out)
