"""Network modes: which to try, and how to describe the one in force."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tf_dist.cluster.node.settings import NetworkDescription, NetworkMode

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


def modes_to_try(network: NetworkMode) -> Sequence[NetworkMode]:
    """The modes that settings allow, the best first."""
    if network != NetworkMode.AUTO:
        return (network,)
    return (NetworkMode.ISOLATED, NetworkMode.SHARED) if sys.platform == "linux" else (NetworkMode.SHARED,)


def hint_for(network: NetworkMode) -> str:
    """What to do when none of them is possible."""
    return "use network mode shared, or allow user namespaces" if network == NetworkMode.ISOLATED else ""


def describe(mode: NetworkMode, reason: str, *, forced: bool, no_way_out: str) -> NetworkDescription:
    """A mode in words; ``no_way_out`` says why isolated pods reach nothing outside, "" if they do."""
    why = "chosen in the settings" if forced else reason or "the system allows it"
    if mode == NetworkMode.SHARED:
        return NetworkDescription(mode, why, SHARED_LIMITS)
    closed = tuple(limit.format(no_way_out) for limit in CLOSED_LIMITS)
    return NetworkDescription(mode, why, closed if no_way_out else ISOLATED_LIMITS)
