"""With every policy and trace, jobs end or are reported as stuck, and the results depend only on the seed.

Capacity, work and time add up, and no more capacity is assigned than exists.
"""

from __future__ import annotations

from dataclasses import asdict
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.thorough import thorough
from tf_dist.core.model.gang_queue import Queue, Quota
from tf_dist.core.model.usage import Spent
from tf_dist.simulate.engine import JobRun, World, simulate
from tf_dist.simulate.metrics import averaged, figures, quantile
from tf_dist.simulate.placement import FreeCapacity, NoRoom
from tf_dist.simulate.policies import POLICIES
from tf_dist.simulate.policies.tf_dist_admission import TfDistAdmission
from tf_dist.simulate.scenario import Cluster, Layout, Scenario, SimJob, Speed
from tf_dist.simulate.traces import TRACES, TraceOptions

CLUSTER = Cluster(nodes=3, gpus=4, cpu=64)
ELASTIC = {"auto-scale", "dragon", "ours"}


@st.composite
def jobs(draw: st.DrawFn) -> SimJob:
    workers = draw(st.integers(1, 8))
    least = draw(st.integers(1, workers))
    duration = draw(st.floats(1, 5000))
    return SimJob(
        name=f"j{draw(st.integers(0, 9999))}",
        submit=draw(st.floats(0, 2000)),
        duration=duration,
        workers=workers,
        least=least,
        most=draw(st.integers(workers, 12)),
        ps=draw(st.integers(0, 2)),
        estimate=draw(st.none() | st.floats(1, 10_000)),
        priority=draw(st.integers(0, 1)),
    )


@pytest.mark.parametrize("policy", POLICIES)
@thorough(30)
@given(trace=st.lists(jobs(), min_size=1, max_size=15), seed=st.integers(0, 3))
def test_capacity_work_and_time_add_up(policy: str, trace: list[SimJob], seed: int) -> None:
    scenario = Scenario(name="any", cluster=CLUSTER, jobs=tuple(trace), seed=seed)
    world = simulate(scenario, POLICIES[policy](scenario), record=True)
    assert world.floor.units == [4, 4, 4]
    assert world.floor.cpu == [64, 64, 64]
    for run in world.runs:
        _check_run(run, world, policy)
    pieces = world.pieces or []
    units_seconds = sum(piece.units * (piece.end - piece.start) for piece in pieces)
    # Spent counts milliseconds.
    assert units_seconds == pytest.approx(sum(run.spent.held for run in world.runs), abs=1e-3 * len(pieces))
    for moment in {piece.start for piece in pieces}:
        for node in range(3):
            assert sum(p.units for p in pieces if p.node == node and p.start <= moment < p.end) <= 4
    assert figures(world).stuck == sum(run.ended is None for run in world.runs)


def _check_run(run: JobRun, world: World, policy: str) -> None:
    if run.ended is None:
        assert policy == "default"  # only with this policy, jobs can block each other forever
        return
    assert run.started is not None
    assert run.job.submit <= run.started <= run.ended
    assert run.done == pytest.approx(world.speed.work(run.job))
    assert run.spent.lost <= run.spent.trained <= run.spent.held + 1e-3
    if policy not in ELASTIC:
        assert (run.resizes, run.restarts) == (0, 0)
        assert run.spent.held >= run.job.workers * (run.ended - run.started) - 1e-3 * len(world.pieces or ())
        assert run.spent.lost == 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("trace", TRACES)
def test_same_seed_gives_same_results(policy: str, trace: str) -> None:
    def once(seed: int) -> World:
        scenario = TRACES[trace](TraceOptions(jobs=60, seed=seed))
        return simulate(scenario, POLICIES[policy](scenario))

    first, again = once(1), once(1)
    assert asdict(figures(first)) == asdict(figures(again))
    assert [run.ended for run in first.runs] == [run.ended for run in again.runs]


@pytest.mark.parametrize("trace", ["philly", "helios", "dragon"])
def test_other_seed_gives_other_trace_of_same_load(trace: str) -> None:
    one, other = (TRACES[trace](TraceOptions(jobs=3000, load=0.9, seed=seed)) for seed in (1, 2))
    assert one.jobs != other.jobs
    for scenario in (one, other):
        asked = sum(job.duration * job.workers * job.gpus for job in scenario.jobs)
        assert asked / (scenario.span * scenario.cluster.units) == pytest.approx(0.9, rel=0.1)
        assert [job.submit for job in scenario.jobs] == sorted(job.submit for job in scenario.jobs)


def test_job_sizes_and_durations_match_original_clusters() -> None:
    philly = TRACES["philly"](TraceOptions(jobs=20_000, seed=3)).jobs
    singles = sum(job.workers * job.gpus == 1 for job in philly) / len(philly)
    runs = sorted(job.duration for job in philly)
    assert singles == pytest.approx(0.722, abs=0.03)  # sweeps make it uneven
    assert quantile(runs, 0.5) == pytest.approx(1186, rel=0.1)
    assert quantile(runs, 0.9) == pytest.approx(12_859, rel=0.1)
    helios = sorted(job.duration for job in TRACES["helios"](TraceOptions(jobs=20_000, seed=3)).jobs)
    assert quantile(helios, 0.5) == pytest.approx(206, rel=0.1)
    known = [job for job in philly if job.estimate is not None]
    assert len(known) / len(philly) == pytest.approx(0.8, abs=0.02)
    short = sum((job.estimate or 0) < job.duration for job in known) / len(philly)
    assert short == pytest.approx(0.1, abs=0.02)


def test_kueue_workload_matches_its_description() -> None:
    scenario = TRACES["kueue"](TraceOptions())
    assert len(scenario.jobs) == 15_000
    assert sum(job.cpu * job.duration for job in scenario.jobs) / 600 == pytest.approx(66)
    assert len(scenario.queues) == 35


def test_utilisation_counts_cores_without_gpus() -> None:
    cluster = Cluster(nodes=1, gpus=0, cpu=8)
    trace = tuple(SimJob(name=str(n), submit=0, duration=10, gpus=0, cpu=4) for n in range(4))
    scenario = Scenario(name="cpu", cluster=cluster, jobs=trace, speed=Speed())
    found = figures(simulate(scenario, POLICIES["fifo"](scenario)))
    assert (found.makespan, found.utilisation, found.wait_max) == (20, 1.0, 10)


def test_figures_equal_hand_computed_values() -> None:
    cluster = Cluster(nodes=1, gpus=2, cpu=64)
    trace = (
        SimJob(name="a", submit=0, duration=600, workers=2),
        SimJob(name="b", submit=100, duration=300, workers=2),
        SimJob(name="c", submit=1000, duration=100, workers=1),
    )
    scenario = Scenario(name="hand", cluster=cluster, jobs=trace, speed=Speed(overhead=0.0))
    found = figures(simulate(scenario, POLICIES["fifo"](scenario)))
    assert (found.elapsed_mean, found.elapsed_p50, found.elapsed_max) == ((600 + 800 + 100) / 3, 600, 800)
    assert (found.wait_mean, found.wait_max) == (500 / 3, 500)
    assert found.slowdown == pytest.approx((1 + 800 / 600 + 1) / 3)
    assert (found.utilisation, found.done, found.makespan) == (0.9, pytest.approx(0.9), 1100)
    both = averaged([found, found])
    assert (both.jobs, both.makespan) == (6, 1100)


class _Forgetful(TfDistAdmission):
    """Restarts its admitter before every decision."""

    def act(self, world: World) -> float | None:
        self.restart()
        return super().act(world)


@pytest.mark.parametrize("trace", ["dragon", "kueue", "storm", "philly"])
def test_restarted_admitter_makes_same_decisions(trace: str) -> None:
    scenario = TRACES[trace](TraceOptions(jobs=120, nodes=4, gpus=4, load=1.1))
    steady, forgetful = (simulate(scenario, policy(scenario)) for policy in (TfDistAdmission, _Forgetful))
    assert [run.ended for run in forgetful.runs] == [run.ended for run in steady.runs]
    assert figures(forgetful) == figures(steady)


def test_queue_quotas_are_respected() -> None:
    """Two queues of 2 cores do not lend to each other. At most 2 cores of each queue work at a time."""
    queues = tuple(Queue(name=name, quotas={"cpu": Quota(nominal=Decimal(2))}) for name in ("red", "blue"))
    names = ("red", "red", "red", "blue")
    trace = tuple(SimJob(name=f"j{n}", submit=n, duration=10, gpus=0, cpu=1, queue=q) for n, q in enumerate(names))
    cluster = Cluster(nodes=1, gpus=0, cpu=100)
    scenario = Scenario(name="queues", cluster=cluster, jobs=trace, queues=queues)
    assert [run.started for run in simulate(scenario, TfDistAdmission(scenario)).runs] == [0, 1, 10, 3]


SMALL_CLUSTER = Cluster(nodes=2, gpus=4, cpu=64)


def a_world(*jobs: SimJob) -> World:
    return World(
        Scenario(name="test", cluster=SMALL_CLUSTER, jobs=jobs, speed=Speed(remote=0.5, overhead=0, restart=10))
    )


def job(**fields: object) -> SimJob:
    return SimJob(**({"name": "a", "submit": 0.0, "duration": 100.0, "workers": 2, "most": 4, "ps": 1} | fields))  # type: ignore[arg-type]


def end(world: World) -> float:
    world.now = world.next_end()
    world.end_next()
    return world.now


def test_job_on_node_of_parameter_server_runs_for_its_duration() -> None:
    world = a_world(job())
    world.resume(world.runs[0], Layout({0: 2}, {0: 1}))
    assert end(world) == 100
    assert world.runs[0].spent == Spent(held=200, trained=200)
    assert world.runs[0].left == 0


def test_workers_on_other_nodes_are_slower() -> None:
    world = a_world(job())
    world.resume(world.runs[0], Layout({0: 1, 1: 1}, {0: 1}))
    assert end(world) == pytest.approx(200 / 1.5)


def test_node_with_most_workers_is_home_without_parameter_servers() -> None:
    world = a_world(job(ps=0, workers=3))
    world.resume(world.runs[0], Layout({0: 1, 1: 2}))
    assert end(world) == pytest.approx(300 / 2.5)


def test_shrinking_conserves_work_and_growing_costs_restart() -> None:
    world = a_world(job())
    run = world.runs[0]
    world.resume(run, Layout({0: 2}, {0: 1}))
    world.now = 50
    world.resize(run, Layout({0: 1}, {0: 1}))  # 100 of 200 are left, for one worker
    world.now = 100
    world.resize(run, Layout({0: 4}, {0: 1}))  # 50 are left: 10 s of restart and 12.5 s of four workers
    assert end(world) == pytest.approx(122.5)
    assert run.spent.held == pytest.approx(2 * 50 + 50 + 4 * 22.5)
    assert run.spent.trained == pytest.approx(2 * 50 + 50 + 4 * 12.5)
    assert (run.done, run.resizes, run.restarts) == (pytest.approx(200), 2, 0)


@pytest.mark.parametrize(("checkpoint", "lost"), [(None, 40), (15, 10), (20, 0), (50, 40)])
def test_stopped_job_repeats_work_since_last_checkpoint(checkpoint: float | None, lost: float) -> None:
    world = a_world(job(checkpoint=checkpoint))
    run = world.runs[0]
    world.resume(run, Layout({0: 2}, {0: 1}))
    world.now = 40
    world.take(run)
    assert (world.waiting, world.working, world.floor.free) == (0, 0, 8)
    assert run.done == 2 * (40 - lost)
    world.now = 60
    world.resume(run, Layout({1: 2}, {1: 1}))
    assert end(world) == 60 + 10 + 60 + lost
    assert run.restarts == 1
    assert run.spent == Spent(held=2 * (40 + 70 + lost), trained=2 * (40 + 60 + lost), lost=2 * lost)
    found = figures(world)
    assert found.lost_hours == pytest.approx(2 * lost / 3600)
    assert found.goodput == run.spent.goodput == round(200 / (2 * (110 + lost)), 4)


def test_checkpoint_interval_counts_working_time_across_resizes() -> None:
    """Checkpoints every 30 s: at 30 with 2 workers, at 60 with 1. Growth saves, and starts a new interval."""
    world = a_world(job(checkpoint=30, duration=1000))
    run = world.runs[0]
    world.resume(run, Layout({0: 2}, {0: 1}))
    world.now = 50
    world.resize(run, Layout({0: 1}, {0: 1}))
    world.now = 70
    world.take(run)
    assert run.spent.lost == 1 * 10
    world.now = 100
    world.resume(run, Layout({0: 2}, {0: 1}))
    world.now = 115  # it has worked since 110
    world.resize(run, Layout({0: 4}, {0: 1}))  # and again since 125
    world.now = 130
    world.take(run)
    assert run.spent.lost == 10 + 4 * 5
    world.now = 200
    world.resume(run, Layout({0: 1}, {0: 1}))
    world.now = 205  # it still loads its checkpoint
    world.take(run)
    assert run.spent.lost == 10 + 4 * 5
    assert run.done == pytest.approx(2 * 50 + 10 + 2 * 5)


def test_overlapping_restart_times_do_not_add_up() -> None:
    world = a_world(job(workers=1))
    run = world.runs[0]
    world.resume(run, Layout({0: 1}, {0: 1}))
    world.resize(run, Layout({0: 2}, {0: 1}))
    world.now = 5
    world.resize(run, Layout({0: 4}, {0: 1}))
    assert end(world) == 5 + 10 + 25


def test_held_pods_do_no_work() -> None:
    world = a_world(job())
    run = world.runs[0]
    world.give(run, Layout({0: 1}, {0: 1}), works=False)
    assert world.next_end() == float("inf")
    world.now = 30
    world.give(run, Layout({0: 2}, {0: 1}))
    assert end(world) == 130
    assert run.spent == Spent(held=30 + 200, trained=200)


def test_assignment_beyond_free_capacity_is_an_error() -> None:
    world = a_world(job(workers=4, most=8), job(workers=2))
    world.resume(world.runs[0], Layout({0: 4}, {0: 1}))
    with pytest.raises(NoRoom, match="node 0"):
        world.resume(world.runs[1], Layout({0: 1, 1: 1}, {1: 1}))


def test_release_beyond_used_capacity_is_an_error() -> None:
    floor = FreeCapacity(SMALL_CLUSTER)
    with pytest.raises(NoRoom):
        floor.change(0, 1, 0)


def test_admission_rate_delays_starts() -> None:
    jobs = tuple(job(name=str(number), workers=1, most=1) for number in range(3))
    world = World(Scenario(name="test", cluster=SMALL_CLUSTER, jobs=jobs, rate=2.0))
    for run in world.runs:
        world.resume(run, Layout({0: 1}, {0: 1}))
    assert [end(world) for _ in jobs] == [100.5, 101.0, 101.5]
