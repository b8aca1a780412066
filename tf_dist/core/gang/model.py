"""The words of admission: what a gang asks for, what nodes have, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from tf_dist.core.model import Document, JobKey

Resources = Mapping[str, Decimal]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """``count`` equal pods of a gang: what one requests, and what says which nodes it may go to.

    ``constraints`` are the parts of the pod spec that ``fit`` reads: node selector, affinity, tolerations.
    """

    type: str
    count: int
    requests: Resources
    constraints: Document = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A job as admission sees it: the pods it still needs room for.

    ``admitted``: it has its place already, and its members are only those that no node counts yet.
    """

    key: JobKey
    uid: str
    created_at: float
    members: tuple[Member, ...]
    queue: str = ""
    admitted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node's room: all it has to give, and what the pods on it leave of that."""

    name: str
    allocatable: Resources
    free: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything one admission pass decides on."""

    gangs: tuple[Gang, ...]
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """The gang may start. ``placement`` names nodes per replica type where admission chose them (node -> count)."""

    placement: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The gang waits. ``never``: no change of load will let it start, only a change of the job or of the nodes."""

    reason: str
    message: str
    never: bool = False


# The reasons of a wait that no change of load will end.
NEVER: Final = frozenset({"NeverFits", "Unreadable"})

Verdict = Admit | Wait
