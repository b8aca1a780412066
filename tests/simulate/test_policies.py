"""Each policy follows its rules, in small cases computed by hand, on 2 nodes with 4 GPUs each."""

from __future__ import annotations

import pytest

from tests.simulate.gangs import LONG, RIGID, gang
from tf_dist.simulate.engine import Interval, World, simulate
from tf_dist.simulate.policies import POLICIES
from tf_dist.simulate.scenario import Cluster, Scenario, SimJob, Speed


def run(policy: str, *jobs: SimJob, nodes: int = 2, speed: Speed = RIGID) -> World:
    cluster = Cluster(nodes=nodes, gpus=4, cpu=64)
    scenario = Scenario(name="golden", cluster=cluster, jobs=jobs, speed=speed)
    return simulate(scenario, POLICIES[policy](scenario), record=True)


def starts(world: World) -> dict[str, float | None]:
    return {run.job.name: run.started for run in world.runs}


def at(world: World, time: float) -> dict[str, dict[int, int]]:
    """GPUs of each job per node at a time."""
    found: dict[str, dict[int, int]] = {}
    pieces: list[Interval] = world.pieces or []
    for piece in pieces:
        if piece.start <= time < piece.end:
            found.setdefault(world.runs[piece.run].job.name, {})[piece.node] = piece.units
    return found


# -- queues --

HEADED = (gang("a", 0, 4, 100), gang("b", 0, 2, 50), gang("c", 1, 8, 100), gang("d", 2, 2, 30), gang("e", 3, 1))


def test_fifo_starts_jobs_in_order() -> None:
    found = starts(run("fifo", *HEADED))
    assert found == {"a": 0, "b": 0, "c": 100, "d": 200, "e": 200}


def test_skip_starts_any_job_that_fits() -> None:
    world = run("skip", *HEADED)
    assert starts(world) == {"a": 0, "b": 0, "c": 32 + LONG, "d": 2, "e": 32}


def test_easy_backfills_jobs_that_end_before_reservation() -> None:
    found = starts(run("easy", *HEADED))
    assert found == {"a": 0, "b": 0, "c": 100, "d": 2, "e": 200}


def test_easy_backfills_jobs_that_do_not_use_reserved_capacity() -> None:
    found = starts(run("easy", gang("a", 0, 4, 100), gang("b", 0, 2, 50), gang("c", 1, 6, 100), gang("e", 3, 1)))
    assert found == {"a": 0, "b": 0, "c": 100, "e": 3}


def test_easy_continues_when_estimates_are_wrong() -> None:
    late = gang("a", 0, 8, 500, estimate=100)
    world = run("easy", late, gang("b", 1, 8, 50), gang("c", 2, 1, 50, estimate=None))
    assert starts(world) == {"a": 0, "b": 500, "c": 550}


def test_gang_spreads_and_locality_packs() -> None:
    job = gang("a", 0, 4)
    assert at(run("gang", job), 1) == {"a": {0: 2, 1: 2}}
    assert at(run("gang+locality", job), 1) == {"a": {0: 4}}


# -- kube-scheduler --


def test_incomplete_gangs_block_each_other_under_default_policy() -> None:
    """Two gangs of 4 fit. When one ends, the others share its capacity, and none of them ever works."""
    world = run("default", *(gang(f"s{number}", 0, 4, 10.0 * (number + 1)) for number in range(12)))
    stuck = [run for run in world.runs if run.ended is None]
    assert len(stuck) == 10
    assert sum(run.spent.held for run in stuck) == pytest.approx(4 * 10)
    assert sum(run.spent.trained for run in stuck) == 0


def test_timeout_lets_all_blocked_gangs_end() -> None:
    world = run("default+timeout", *(gang(f"s{number}", 0, 4, 10) for number in range(12)))
    assert all(run.ended is not None for run in world.runs)
    assert sum(run.timeouts for run in world.runs) > 0


# -- auto-scale --


def test_auto_scale_shrinks_first_started_job_after_wait_of_two_minutes() -> None:
    jobs = (gang("a", 0, 4, least=2), gang("b", 1, 4, least=2), gang("c", 10, 2))
    world = run("auto-scale", *jobs)
    assert starts(world) == {"a": 0, "b": 1, "c": 150}  # starving from 130; the controller acts at 150
    assert at(world, 149) == {"a": {0: 4}, "b": {1: 4}}
    assert at(world, 151) == {"a": {0: 2}, "b": {1: 4}, "c": {0: 2}}


def test_auto_scale_shrinks_for_smallest_minimum_before_longest_wait() -> None:
    jobs = (gang("a", 0, 4, least=1), gang("b", 0, 4), gang("c", 10, 3), gang("d", 11, 1))
    world = run("auto-scale", *jobs)
    assert (starts(world)["d"], at(world, 151)["a"]) == (150, {0: 3})


def test_auto_scale_starts_jobs_at_full_or_minimum_size() -> None:
    world = run("auto-scale", gang("a", 0, 4), gang("b", 0, 2), gang("c", 1, 4, least=1))
    assert at(world, 2)["c"] == {1: 1}  # two would fit


def test_auto_scale_grows_on_node_of_parameter_server_after_one_minute() -> None:
    world = run("auto-scale", gang("a", 0, 2, most=8))
    assert at(world, 59)["a"] == {0: 2}
    assert at(world, 61)["a"] == {0: 4}
    assert world.runs[0].ended == pytest.approx(60 + 15 + (LONG - 60) / 2)


# -- DRAGON v2 --


def test_dragon_shrinks_jobs_after_wait_of_thirty_seconds() -> None:
    jobs = (gang("a", 0, 4, least=2), gang("b", 1, 4, least=2), gang("c", 10, 2))
    world = run("dragon", *jobs)
    assert starts(world) == {"a": 0, "b": 1, "c": 60}
    assert at(world, 61) == {"a": {0: 2}, "b": {1: 4}, "c": {0: 2}}


def test_dragon_first_removes_workers_away_from_parameter_server() -> None:
    world = run("dragon", gang("x", 0, 3, 20), gang("a", 0, 4, least=1), gang("c", 25, 6, least=5))
    assert at(world, 10)["a"] == {1: 4}
    spread = run("dragon", gang("x", 0, 2), gang("y", 0, 3), gang("a", 1, 3, least=1), gang("c", 25, 2))
    assert at(spread, 10)["a"] == {0: 2, 1: 1}
    assert at(spread, 61) == {"x": {0: 2}, "y": {1: 3}, "a": {0: 1}, "c": {0: 1, 1: 1}}


def test_dragon_starts_jobs_at_any_size_from_minimum() -> None:
    world = run("dragon", gang("a", 0, 4), gang("b", 0, 2), gang("c", 1, 4, least=1))
    assert at(world, 2)["c"] == {1: 2}


def test_dragon_blocks_all_jobs_for_starving_job() -> None:
    """auto-scale does not, because a job starves there only after two minutes."""
    jobs = (gang("a", 0, 4, 200), gang("b", 0, 3, 200), gang("c", 10, 2, 10), gang("d", 50, 1, 10))
    assert starts(run("dragon", *jobs)) == {"a": 0, "b": 0, "c": 200, "d": 200}
    assert starts(run("auto-scale", *jobs))["d"] == 50


def test_dragon_grows_node_by_node_regardless_of_parameter_server() -> None:
    world = run("dragon", gang("a", 0, 2, most=6))
    assert at(world, 59)["a"] == {0: 2}
    assert at(world, 61)["a"] == {0: 4, 1: 2}
