"""The words of admission: what a gang asks for, what nodes have, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, NamedTuple

from tf_dist.core.gang.resource_quota import Charges, ResourceQuota
from tf_dist.core.labels import Requirements
from tf_dist.core.model import Document, JobKey

Resources = Mapping[str, Decimal]


# Of what no node has twice, every node has so much; no node has more pods than this.
FULL: Final = 1 << 20
EXCLUSIVE: Final = "exclusive:"


def exclusive(number: int) -> str:
    """The name of a column for something that no node has twice; as a resource it could not be called so."""
    return f"{EXCLUSIVE}{number}"


class Exclusive(NamedTuple):
    """What one pod takes of what no node has twice (a host port, say): the name of its column, how much, in words."""

    name: str
    amount: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """``count`` equal pods of a gang: what one requests, and what says which nodes it may go to.

    The gang may start with ``least`` of them (None: with no fewer than ``count``) and may grow to ``most`` (None: not
    beyond ``count``). ``constraints`` are the parts of the pod spec that ``fit`` reads: node selector, affinity,
    tolerations; and the nodes that have been refused. ``exclusives``: what keeps pods apart (see ``exclusive``).
    """

    type: str
    count: int
    requests: Resources
    constraints: Document = field(default_factory=dict)
    least: int | None = None
    most: int | None = None
    exclusives: tuple[Exclusive, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """All pods of a gang on nodes that agree in the value of ``label``: if possible, or (``required``) not at all."""

    label: str
    required: bool = False


Sizes = Mapping[str, int]
Placement = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a gang was given: how many pods per type, and per type on which nodes (node -> count) where that is known.

    ``at``: since when; ``resized``: when ``sizes`` changed last (None: never). Epoch seconds.
    """

    at: float
    sizes: Sizes
    placement: Placement = field(default_factory=dict)
    resized: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A job as admission sees it.

    ``place``: what it has been given (None: it waits). ``bound``: its pods that nodes count already, per type and node;
    with a place, those beyond its sizes are on their way out; without one, all of them are. ``done``: per type the
    replicas that have finished for good and need no room any more. ``seats``: per type the nodes of its pods by replica
    index, "" where there is none or it is not known; ``vacated``: how many of the seats of its place belong to replicas
    that are done, per type and node. ``not_before``: it is not considered before this time (epoch
    seconds). ``estimate``: seconds it is expected to run (None: nobody knows). ``preempts``: whether it may have others
    stopped for it; ``promised``: others have been told to give way to it, and it comes first until it has its place.
    ``live``: its size can change while it runs (False: it must start again to grow). ``pinned``: its pods are sent to
    the nodes that are found for them (False: to as many as have room, and the cluster's scheduler chooses).
    ``charges``: what it counts as in the ResourceQuotas of its namespace (None: there are none), and ``created``: how
    many pods of each type are there, on nodes or not. ``problem``: why it cannot be counted ("": it can): then it only
    waits, or keeps what its pods hold. ``inadmissible``: why its queue takes no jobs from its namespace ("": it does):
    then it waits, or keeps its place and does not grow.
    """

    key: JobKey
    uid: str
    created_at: float
    members: tuple[Member, ...]
    queue: str = ""
    priority: int = 0
    preempts: bool = True
    promised: bool = False
    live: bool = True
    pinned: bool = True
    charges: Charges | None = None
    created: Sizes = field(default_factory=dict)
    locality: Locality | None = None
    estimate: float | None = None
    not_before: float = 0.0
    place: Place | None = None
    bound: Placement = field(default_factory=dict)
    seats: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    done: Sizes = field(default_factory=dict)
    vacated: Placement = field(default_factory=dict)
    problem: str = ""
    inadmissible: str = ""


class Undecidable(Exception):
    """Deciding about one gang has failed: it is to be left out, and the admitter is to be made anew."""

    def __init__(self, uid: str, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.uid = uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node's room: all it has to give, and what the pods on it leave of that."""

    name: str
    allocatable: Resources
    free: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()


class Order(StrEnum):
    """Whether a gang that cannot start holds back those behind it in its queue."""

    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"


class Preemption(StrEnum):
    """Whom the gangs of a queue may have stopped: nobody, gangs of lower priority in the queue, or besides that gangs
    of other queues that have borrowed what is nominally this queue's."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    RECLAIM = "Reclaim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Of one resource: what is the queue's own, how much more it may borrow, how much of its own it lends.

    None: no limit (borrow whatever others lend; lend all).
    """

    nominal: Decimal
    borrowing_limit: Decimal | None = None
    lending_limit: Decimal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue of gangs. Queues with the same ``parent`` share what they do not use.

    A resource without a quota, here and in every ancestor, is not limited by quota. ``recovery_timeout``: seconds, see
    ``core.recovery`` (None: the default). ``namespace_selector``: whose labels a namespace must have for its jobs to be
    in this queue (None: no matter which); it says nothing of the queues below.
    """

    name: str
    parent: str = ""
    weight: int = 1
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    order: Order = Order.BEST_EFFORT_FIFO
    preemption: Preemption = Preemption.RECLAIM
    default_priority: int = 0
    recovery_timeout: float | None = None
    namespace_selector: Requirements | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The tunable part of admission; seconds.

    ``patience``: a gang that has waited so long gets a reservation, and nobody passes it who would delay it.
    ``starving``: from then on it comes before everybody of its priority. ``stretch``: a gang lets those of its priority
    go first that come up to so many times its estimate later, but never longer than ``starving``; who gives no estimate
    is taken to run for ``assumed``. ``shrink_after``: so long a gang waits before overgrown others are made smaller for
    it, or before it starts with less than it wanted; ``squeeze_after``: before others, of no higher priority, are made
    smaller than they wanted to be. ``grow_after``: for so long nobody must have waited before gangs grow; ``steady``: a
    gang is not resized again (unless for a waiting one) within this time. ``restart_cost``: what growing costs a gang
    that must start again for it.
    """

    patience: float = 900.0
    starving: float = 86_400.0
    stretch: float = 0.5
    assumed: float = 3600.0
    shrink_after: float = 30.0
    squeeze_after: float = 900.0
    grow_after: float = 20.0
    steady: float = 60.0
    restart_cost: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything one admission pass decides on. ``now``: epoch seconds.

    ``nodes`` None: they may not be seen, and quotas alone decide. ``bounds``: the ResourceQuotas by namespace.
    """

    gangs: tuple[Gang, ...]
    nodes: tuple[Node, ...] | None
    now: float = 0.0
    queues: tuple[Queue, ...] = ()
    policy: Policy = field(default_factory=Policy)
    bounds: Mapping[str, tuple[ResourceQuota, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """The gang may start, with ``sizes`` pods per type (empty: as many as it wants), on the nodes of ``placement``."""

    placement: Placement = field(default_factory=dict)
    sizes: Sizes = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The gang waits. ``never``: no change of load will let it start, only a change of the job or of the nodes.

    ``position``: its place in its queue, from 1 (0: it has none).
    """

    reason: str
    message: str
    never: bool = False
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """An admitted gang is to have other ``sizes`` from now on; ``placement`` says where all of its pods then are."""

    sizes: Sizes
    placement: Placement
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """An admitted gang gives its place up for the gang ``by`` (None: nobody says for whom)."""

    by: JobKey | None
    message: str


# Others give way to a gang that waits for this reason: it is to be put as ``promised`` from then on.
PREEMPTING: Final = "Preempting"

# Only the nodes that the scheduler refused the gang are large enough for it; they are tried again after a while.
NODES_REFUSED: Final = "NodesRefused"

# A ResourceQuota of its namespace has no room for a gang.
RESOURCE_QUOTA: Final = "ResourceQuotaExceeded"

# Its queue takes no jobs from the namespace of a gang.
NAMESPACE_MISMATCH: Final = "NamespaceMismatch"

# The reasons of a wait that no change of load will end.
UNREADABLE: Final = "Unreadable"
NEVER: Final = frozenset({"NeverFits", UNREADABLE})

Verdict = Admit | Wait | Resize | Preempt
