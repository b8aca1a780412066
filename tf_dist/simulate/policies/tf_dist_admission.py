"""tf-dist's own admission: the controller's ``Scheduler`` on the virtual clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from math import inf
from typing import Final

from tf_dist.core.gang.scheduling import Scheduler
from tf_dist.core.gang.types import AdmissionPolicy, Gang, Node, PodSet
from tf_dist.core.model.assignment import Admit, Placement, Preempt, Verdict, Wait
from tf_dist.core.model.job import JobKey
from tf_dist.simulate.engine import JobRun, World
from tf_dist.simulate.scenario import Layout, Scenario, SimJob

_ROUNDS: Final = 20
_TICK: Final = 0.01
GPU: Final = "nvidia.com/gpu"
_PS, _WORKER = "ps", "worker"


class TfDistAdmission:
    """Passes nodes, queues and gangs to the scheduler, as a controller does. Nodes do not count the gangs' pods yet.

    Preempted jobs go back to their queues. ``restart`` replaces the scheduler, as when a new leader takes over.
    """

    def __init__(self, scenario: Scenario, policy: AdmissionPolicy | None = None) -> None:
        self._scenario = scenario
        self._policy = policy or AdmissionPolicy(restart_cost=scenario.speed.restart)
        self._members: dict[tuple[int, ...], tuple[PodSet, ...]] = {}
        self._gangs: dict[str, Gang] = {}
        self._names = [f"node-{number:05}" for number in range(scenario.cluster.nodes)]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._scheduler = self._new()

    def restart(self) -> None:
        """Restart as after a crash: the new scheduler knows only the stored state."""
        self._scheduler = self._new()
        for gang in self._gangs.values():
            self._scheduler.put_gang(gang)

    def arrived(self, run: JobRun, world: World) -> None:
        """Add a gang, which waits, to the scheduler."""
        job = run.job
        self._put(
            Gang(
                key=JobKey("default", job.name),
                uid=str(run.number),
                created_at=job.submit,
                members=self._members_of(job),
                queue=job.queue,
                priority=job.priority,
                estimate=job.estimate,
                live=False,
            )
        )

    def ended(self, run: JobRun, world: World) -> None:
        """Remove a gang."""
        del self._gangs[str(run.number)]
        self._scheduler.remove_gang(str(run.number))

    def act(self, world: World) -> float | None:
        """Decide and apply verdicts until no verdict is left. Preempted jobs free their capacity immediately.

        Gangs that preempt each other in turn would do so forever at the same instant: time advances in between.
        """
        for _ in range(_ROUNDS):
            verdicts = self._scheduler.cycle(world.now, reasons=False).verdicts
            if not sum(self._obey(uid, verdict, world) for uid, verdict in verdicts.items()):
                wake = self._scheduler.wake_at(world.now)
                return None if wake == inf else max(wake, world.now + _TICK)
        return world.now + _TICK

    def _obey(self, uid: str, verdict: Verdict, world: World) -> bool:
        """Apply a verdict; whether it changed anything."""
        gang, run = self._gangs[uid], world.runs[int(uid)]
        if isinstance(verdict, Preempt):
            world.take(run)
            self._put(replace(gang, assigned=None))
        elif isinstance(verdict, Wait) or (isinstance(verdict, Admit) and gang.assigned is not None):
            return False
        elif gang.assigned is None:  # Admit, or the Resize of a gang that was admitted in the same cycle
            world.resume(run, self._layout(verdict.placement))
            self._put(self._scheduler.cache.entries[uid].gang)
        else:
            world.resize(run, self._layout(verdict.placement))
            place = replace(gang.assigned, sizes=verdict.sizes, placement=verdict.placement, resized=world.now)
            self._put(replace(gang, assigned=place))
        return True

    def _put(self, gang: Gang) -> None:
        self._gangs[gang.uid] = gang
        self._scheduler.put_gang(gang)

    def _new(self) -> Scheduler:
        scheduler = Scheduler(self._policy)
        cluster = self._scenario.cluster
        room = {"cpu": Decimal(cluster.cpu)} | ({GPU: Decimal(cluster.gpus)} if cluster.gpus else {})
        for name in self._names:
            scheduler.cache.put_node(Node(name=name, allocatable=room, free=room))
        scheduler.cache.put_queues(self._scenario.queues)
        return scheduler

    def _members_of(self, job: SimJob) -> tuple[PodSet, ...]:
        key = (job.workers, job.least, job.most, job.gpus, job.cpu, job.ps, job.ps_cpu)
        if key not in self._members:
            asks = {"cpu": Decimal(job.cpu)} | ({GPU: Decimal(job.gpus)} if job.gpus else {})
            workers = PodSet(type=_WORKER, count=job.workers, least=job.least, most=job.most, requests=asks)
            servers = PodSet(type=_PS, count=job.ps, requests={"cpu": Decimal(job.ps_cpu)})
            self._members[key] = (servers, workers) if job.ps else (workers,)
        return self._members[key]

    def _layout(self, placement: Placement) -> Layout:
        def numbered(nodes: Mapping[str, int]) -> dict[int, int]:
            return {self._numbers[node]: count for node, count in nodes.items() if count}

        return Layout(numbered(placement.get(_WORKER, {})), numbered(placement.get(_PS, {})))
