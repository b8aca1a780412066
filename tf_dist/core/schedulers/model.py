"""What a gang scheduler is to tf-dist: the objects it wants to see, and five questions about one job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.core.actions import Update
from tf_dist.core.gang.model import Verdict
from tf_dist.core.gang_scheduler import GangScheduler
from tf_dist.core.model import Document, ReplicaId
from tf_dist.core.schedulers.served import Api, Served
from tf_dist.core.situation import Situation

Body = dict[str, Any]

# Reasons of a wait that only other gang schedulers have: it is not there; it does not serve the queue; somebody has
# switched the job off.
SCHEDULER_MISSING: Final = "GangSchedulerMissing"
QUEUE_REFUSED: Final = "QueueRefused"
DEACTIVATED: Final = "Deactivated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """One gang scheduler, as data. All functions are pure; ``Served`` is never one with something ``missing``.

    ``apis``: its kinds; of several alternatives the first that is served is used. ``pods_first``: it binds pods, and so
    the gang waits as pods without nodes (else it is asked before there is any pod).

    ``wanted``: the objects that should exist while a job lives. ``updates``: what to change in one that is there.
    ``verdict``: what it says of a job that lives (None: nothing new, or nothing yet). ``takes_pods``: whether pods may
    be created now. ``decorate``: what a pod must carry so that the scheduler knows it.
    """

    name: GangScheduler
    apis: tuple[tuple[Api, ...], ...]
    pods_first: bool
    wanted: Callable[[Situation, Served], Iterable[Body]]
    updates: Callable[[Situation, Served, Document, Body], Iterable[Update]]
    verdict: Callable[[Situation, Served], Verdict | None]
    takes_pods: Callable[[Situation, Served], bool]
    decorate: Callable[[Situation, Served, ReplicaId, Body], None]
