"""Builders of nodes, members and gangs, and a world that applies verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from tf_dist.core.gang.resources.resource_quota import ResourceQuotas
from tf_dist.core.gang.scheduling import Scheduler
from tf_dist.core.gang.types import AdmissionPolicy, AssignedPods, Gang, Node, PodSet, UnavailableNode
from tf_dist.core.model.assignment import Admit, Preempt, Resize, Verdict, Wait
from tf_dist.core.model.gang_queue import Queue, Quota
from tf_dist.core.model.job import JobKey
from tf_dist.core.model.reasons import Reason

GPU = "nvidia.com/gpu"


def amounts(**values: float | str) -> dict[str, Decimal]:
    return {GPU if key == "gpu" else key: Decimal(str(value)) for key, value in values.items()}


def node(name: str, *, labels: Any = None, taints: Any = (), used: Any = None, **values: float) -> Node:
    whole, taken = amounts(**values), amounts(**(used or {}))
    free = {resource: value - taken.get(resource, 0) for resource, value in whole.items()}
    return Node(name=name, allocatable=whole, free=free, labels=labels or {}, taints=tuple(taints))


def member(
    type_: str,
    count: int,
    *,
    least: int | None = None,
    most: int | None = None,
    start: int | None = None,
    selector: Any = None,
    tolerations: Any = (),
    **values: float,
) -> PodSet:
    constraints = {"nodeSelector": selector or {}, "tolerations": list(tolerations)}
    sizes: dict[str, Any] = {"least": least, "most": most, "start": start}
    return PodSet(type=type_, count=count, requests=amounts(**values), constraints=constraints, **sizes)


def workers(
    count: int, *, least: int | None = None, most: int | None = None, start: int | None = None, gpu: float = 1
) -> PodSet:
    return member("worker", count, least=least, most=most, start=start, gpu=gpu)


def gang(name: str, *members: PodSet, at: float = 0, **rest: Any) -> Gang:
    return Gang(key=JobKey("ml", name), uid=name, created_at=at, members=members, **rest)


def or_else(first: Gang, *others: Gang, tried_from: float = 0) -> Gang:
    """The gang with its fallbacks, built as the snapshot builds them: with the same job and age."""
    found = tuple(
        replace(
            other,
            key=first.key,
            uid=f"{first.uid}/{number}",
            created_at=first.created_at,
            fallback=number,
            fallback_of=first.uid,
            tried_from=tried_from,
        )
        for number, other in enumerate(others, 1)
    )
    return replace(first, fallbacks=found)


def placed(gang: Gang, placement: Mapping[str, Mapping[str, int]], *, at: float = 0, **rest: Any) -> Gang:
    """The gang, admitted with the pods of the placement."""
    sizes = {member.type: sum(placement.get(member.type, {}).values()) for member in gang.members}
    return replace(gang, assigned=AssignedPods(at=at, sizes=sizes, placement=placement), **rest)


def running(name: str, on: Mapping[str, int], *, at: float = 0, gpu: float = 1, **rest: Any) -> Gang:
    """A gang of workers that is assigned to these nodes."""
    least, most = rest.pop("least", None), rest.pop("most", None)
    wanted = rest.pop("wanted", sum(on.values()))
    waiting = gang(name, workers(wanted, least=least, most=most, gpu=gpu), at=at, **rest)
    return placed(waiting, {"worker": on}, at=at)


def bound(gang: Gang) -> Gang:
    """The gang with all its pods bound to their assigned nodes."""
    return replace(gang, bound=gang.assigned.placement if gang.assigned else {})


def queue(
    name: str, *, gpu: float | None = None, borrow: float | None = None, lend: float | None = None, **rest: Any
) -> Queue:
    def maybe(value: float | None) -> Decimal | None:
        return None if value is None else Decimal(str(value))

    quota = (
        Quota(nominal=Decimal(str(gpu)), borrowing_limit=maybe(borrow), lending_limit=maybe(lend))
        if gpu is not None
        else None
    )
    return Queue(name=name, quotas={GPU: quota} if quota else {}, **rest)


def reason(verdict: Verdict | None) -> str:
    return verdict.reason if isinstance(verdict, Wait) else type(verdict).__name__


def message(verdict: Verdict) -> str:
    assert isinstance(verdict, Wait | Resize | Preempt)
    return verdict.message


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The input of a decision."""

    gangs: tuple[Gang, ...]
    nodes: tuple[Node, ...] | None
    now: float = 0.0
    queues: tuple[Queue, ...] = ()
    policy: AdmissionPolicy = field(default_factory=AdmissionPolicy)
    resource_quotas: ResourceQuotas = field(default_factory=dict)
    unavailable: Mapping[str, UnavailableNode] = field(default_factory=dict)


def admit(snapshot: Snapshot) -> dict[str, Verdict]:
    """The verdicts of a new scheduler, by the gang's uid."""
    scheduler = Scheduler(snapshot.policy, sees_nodes=snapshot.nodes is not None)
    scheduler.cache.put_queues(snapshot.queues)
    scheduler.cache.put_resource_quotas(snapshot.resource_quotas)
    for node in snapshot.nodes or ():
        scheduler.cache.put_node(node)
    scheduler.cache.put_unavailable(snapshot.unavailable)
    for gang in snapshot.gangs:
        scheduler.put_gang(gang)
    verdicts = scheduler.cycle(snapshot.now).verdicts
    return {gang.uid: verdicts.get(gang.uid) or scheduler.explain(gang.uid) for gang in snapshot.gangs}


def gangs_of(scheduler: Scheduler) -> list[Gang]:
    """The gangs of all jobs at the last decision."""
    return [entry.gang for entry in scheduler.cache.entries.values() if not entry.gang.fallback_of]


def waiting(scheduler: Scheduler) -> list[str]:
    """The waiting jobs."""
    return sorted(gang.uid for gang in gangs_of(scheduler) if gang.assigned is None)


class World:
    """Stored gangs, nodes and queues, and a scheduler that receives every change."""

    def __init__(
        self, nodes: Iterable[Node] = (), queues: Iterable[Queue] = (), policy: AdmissionPolicy | None = None
    ) -> None:
        self.policy = policy or AdmissionPolicy()
        self.nodes = {node.name: node for node in nodes}
        self.queues = tuple(queues)
        self.gangs: dict[str, Gang] = {}
        self.asked: dict[str, Gang] = {}  # the last version without an admission
        self.scheduler = Scheduler(self.policy)
        self.scheduler.cache.put_queues(self.queues)
        for node in self.nodes.values():
            self.scheduler.cache.put_node(node)

    def put(self, *gangs: Gang) -> None:
        for one in gangs:
            self.gangs[one.uid] = one
            if one.assigned is None:
                self.asked[one.uid] = one
            self.scheduler.put_gang(one)

    def remove(self, *uids: str) -> None:
        for uid in uids:
            del self.gangs[uid]
            self.scheduler.remove_gang(uid)

    def put_node(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.scheduler.cache.put_node(node)

    def remove_node(self, name: str) -> None:
        del self.nodes[name]
        self.scheduler.cache.remove_node(name)

    def snapshot(self, now: float) -> Snapshot:
        return Snapshot(
            gangs=tuple(self.gangs.values()),
            nodes=tuple(self.nodes.values()),
            now=now,
            queues=self.queues,
            policy=self.policy,
        )

    def decide(self, now: float) -> dict[str, Verdict]:
        """Decide, and apply the verdicts."""
        verdicts = dict(self.scheduler.cycle(now).verdicts)
        for uid in sorted(verdicts):
            one = obeyed(self.gangs[uid], verdicts[uid], now)
            lost = one.assigned is None and self.gangs[uid].assigned is not None
            self.put(replace(self.asked[uid], nominated=False) if lost and one.fallback else one)
        return verdicts

    def settle(self, now: float) -> list[dict[str, Verdict]]:
        """Decide until all verdicts are Wait."""
        rounds = []
        while True:
            verdicts = self.decide(now)
            if all(isinstance(verdict, Wait) for verdict in verdicts.values()):
                return rounds
            rounds.append(verdicts)
            assert len(rounds) < 50, "it never comes to rest"


def obeyed(gang: Gang, verdict: Verdict, now: float) -> Gang:
    """The gang after its verdict is applied."""
    match verdict:
        case Admit():
            if gang.assigned is not None:
                return gang
            place = AssignedPods(at=now, sizes=verdict.sizes, placement=verdict.placement)
            return gang.admitted(place, verdict.fallback)
        case Resize():
            at = gang.assigned.at if gang.assigned else now
            place = AssignedPods(at=at, sizes=verdict.sizes, placement=verdict.placement, resized=now)
            return replace(gang, assigned=place)
        case Preempt():
            return replace(gang, assigned=None)
        case Wait():
            return replace(gang, nominated=gang.nominated or verdict.reason == Reason.PREEMPTING)
    return gang
