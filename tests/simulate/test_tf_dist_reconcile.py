"""The ``reconcile`` of the controller on the virtual clock gives the same results as admission alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest

from tests.simulate.gangs import RIGID, gang
from tf_dist.core.model.gang_queue import Queue, Quota
from tf_dist.core.model.usage import Usage
from tf_dist.simulate.engine import JobRun, Policy, World, simulate
from tf_dist.simulate.policies import POLICIES, faithful
from tf_dist.simulate.policies.tf_dist_reconcile import TfDistReconcile
from tf_dist.simulate.scenario import Cluster, Scenario, Speed
from tf_dist.simulate.traces import TRACES, TraceOptions


def both(scenario: Scenario) -> tuple[World, World]:
    """Simulate a trace with admission alone, and with every job reconciled."""
    makers: tuple[Callable[[Scenario], Policy], ...] = (POLICIES["ours"], faithful)
    first, second = (simulate(scenario, make(scenario), record=True) for make in makers)
    return first, second


def agree(scenario: Scenario) -> World:
    """Check that both give the same start, end, resizes and restarts of each job. Returns the reconciled world."""
    alone, whole = both(scenario)
    for one, other in zip(alone.runs, whole.runs, strict=True):
        assert (one.resizes, one.restarts) == (other.resizes, other.restarts), one.job.name
        # Documents contain times since 1970 in microseconds.
        assert other.started == pytest.approx(one.started, abs=1e-3), one.job.name
        assert other.ended == pytest.approx(one.ended, abs=1e-3), one.job.name
    return whole


def drawn(trace: str, wish: TraceOptions, priorities: tuple[int, ...] = (0,)) -> Scenario:
    """A trace whose jobs have random priorities from this list."""
    scenario, dice = TRACES[trace](wish), random.Random(1)
    return replace(scenario, jobs=tuple(replace(job, priority=dice.choice(priorities)) for job in scenario.jobs))


def test_elastic_and_preempted_jobs_agree_on_overloaded_cluster() -> None:
    world = agree(drawn("dragon", TraceOptions(jobs=30, nodes=2, load=1.3), priorities=(0, 0, 5)))
    assert all(run.ended is not None for run in world.runs)
    assert sum(run.resizes for run in world.runs) > 3
    assert sum(run.restarts for run in world.runs) > 0


class _Accounted(TfDistReconcile):
    """Keeps the usage of each ended job as accounted by the reconciler."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.usages: dict[str, Usage] = {}

    def ended(self, run: JobRun, world: World) -> None:
        driven = self._driven[str(run.number)]
        super().ended(run, world)
        self.usages[run.job.name] = driven.memory.usage


def test_world_and_reconciler_account_same_usage() -> None:
    """Compare the held, trained and lost GPU seconds of preempted jobs that need no time to start."""
    scenario = drawn("philly", TraceOptions(jobs=40, nodes=2, gpus=4, load=1.4), priorities=(0, 5, 9))
    # Statuses of pods contain times of containers in whole seconds.
    whole = [replace(job, submit=round(job.submit), duration=round(job.duration)) for job in scenario.jobs]
    scenario = replace(scenario, jobs=tuple(whole), speed=replace(RIGID, restart=0.0))
    policy = _Accounted(scenario)
    world = simulate(scenario, policy)
    assert sum(run.restarts for run in world.runs) > 0
    for run in world.runs:
        gpus = policy.usages[run.job.name].gpus
        assert gpus.held == pytest.approx(run.spent.held, abs=0.1), run.job.name
        assert gpus.trained == pytest.approx(run.spent.trained, abs=0.1), run.job.name
        assert gpus.lost == pytest.approx(run.spent.lost, abs=0.1), run.job.name


def test_rigid_jobs_with_estimates_agree() -> None:
    agree(drawn("philly", TraceOptions(jobs=40, nodes=3, load=1.1)))


def test_jobs_of_queues_that_lend_quota_agree() -> None:
    quota = {"nvidia.com/gpu": Quota(nominal=Decimal(4))}
    queues = (Queue(name="a", parent="all", quotas=quota), Queue(name="b", parent="all", quotas=quota))
    jobs = [gang(f"j{n}", 5.0 * n, 1 + n % 3, 50, queue="ab"[n % 2]) for n in range(12)]
    cluster = Cluster(nodes=2, gpus=4, cpu=64)
    agree(Scenario(name="queues", cluster=cluster, jobs=tuple(jobs), queues=queues, speed=RIGID))


def test_grown_gang_restarts_only_once() -> None:
    """All of its pods are new, so it pauses once."""
    lone = gang("lone", 0, 2, 5000, least=1, most=4)
    scenario = Scenario(name="lone", cluster=Cluster(nodes=1, gpus=4, cpu=64), jobs=(lone,), speed=Speed())
    world = agree(scenario)
    assert [(piece.units, piece.works) for piece in world.pieces or ()] == [(2, True), (4, False), (4, True)]


def test_job_with_fallback_keeps_its_age_in_queue() -> None:
    """The job falls back from 8 GPUs to 3 after 100 s. It gets GPUs that become free at 200 s before a younger job."""
    notes = {"tf-dist.dev/fallback": '[{"workers": 3}]', "tf-dist.dev/admission-timeout": "100s"}
    jobs = (
        gang("long", 0, 5, 5000, ps=0),
        gang("short", 0, 3, 200, ps=0),
        gang("falls-back", 10, 8, 300, ps=0, annotations=notes),
        gang("younger", 50, 3, 300, ps=0),
    )
    scenario = Scenario(name="fallback", cluster=Cluster(nodes=2, gpus=4, cpu=64), jobs=jobs, speed=RIGID)
    world = simulate(scenario, faithful(scenario), record=True)
    started = {run.job.name: run.started for run in world.runs}
    assert started["falls-back"] == pytest.approx(200, abs=0.1)
    # With 3 of 8 workers, the job takes 800 s. Then the younger job starts.
    assert started["younger"] == pytest.approx(1000, abs=0.1)
