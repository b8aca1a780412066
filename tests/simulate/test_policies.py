"""Each policy does what its rules say: small cases worked out by hand, on 2 nodes with 4 GPUs each."""

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


def test_fifo_lets_nobody_pass() -> None:
    found = starts(run("fifo", *HEADED))
    assert found == {"a": 0, "b": 0, "c": 100, "d": 200, "e": 200}


def test_skip_lets_everybody_pass() -> None:
    world = run("skip", *HEADED)
    assert starts(world) == {"a": 0, "b": 0, "c": 32 + LONG, "d": 2, "e": 32}


def test_easy_lets_those_pass_who_end_before_the_reservation() -> None:
    found = starts(run("easy", *HEADED))
    assert found == {"a": 0, "b": 0, "c": 100, "d": 2, "e": 200}


def test_easy_lets_those_pass_who_leave_the_reserved_room_alone() -> None:
    found = starts(run("easy", gang("a", 0, 4, 100), gang("b", 0, 2, 50), gang("c", 1, 6, 100), gang("e", 3, 1)))
    assert found == {"a": 0, "b": 0, "c": 100, "e": 3}


def test_easy_believes_estimates_and_goes_on_when_they_are_wrong() -> None:
    late = gang("a", 0, 8, 500, estimate=100)
    world = run("easy", late, gang("b", 1, 8, 50), gang("c", 2, 1, 50, estimate=None))
    assert starts(world) == {"a": 0, "b": 500, "c": 550}


def test_gang_spreads_and_locality_packs() -> None:
    job = gang("a", 0, 4)
    assert at(run("gang", job), 1) == {"a": {0: 2, 1: 2}}
    assert at(run("gang+locality", job), 1) == {"a": {0: 4}}


# -- kube-scheduler --


def test_pods_hold_room_for_pods_that_have_none() -> None:
    """Room for two gangs of 4: when one ends, the others share what it leaves, and none of them ever works."""
    world = run("default", *(gang(f"s{number}", 0, 4, 10.0 * (number + 1)) for number in range(12)))
    stuck = [run for run in world.runs if run.ended is None]
    assert len(stuck) == 10
    assert sum(run.spent.held for run in stuck) == pytest.approx(4 * 10)
    assert sum(run.spent.trained for run in stuck) == 0


def test_with_a_timeout_all_end_at_last() -> None:
    world = run("default+timeout", *(gang(f"s{number}", 0, 4, 10) for number in range(12)))
    assert all(run.ended is not None for run in world.runs)
    assert sum(run.timeouts for run in world.runs) > 0


# -- those of auto-scale --


def test_auto_scale_shrinks_the_first_started_for_a_job_that_waits_two_minutes() -> None:
    jobs = (gang("a", 0, 4, least=2), gang("b", 1, 4, least=2), gang("c", 10, 2))
    world = run("auto-scale", *jobs)
    assert starts(world) == {"a": 0, "b": 1, "c": 150}  # starving from 130; the controller looks at 150
    assert at(world, 149) == {"a": {0: 4}, "b": {1: 4}}
    assert at(world, 151) == {"a": {0: 2}, "b": {1: 4}, "c": {0: 2}}


def test_auto_scale_shrinks_for_the_smallest_minimum_not_for_the_longest_wait() -> None:
    jobs = (gang("a", 0, 4, least=1), gang("b", 0, 4), gang("c", 10, 3), gang("d", 11, 1))
    world = run("auto-scale", *jobs)
    assert (starts(world)["d"], at(world, 151)["a"]) == (150, {0: 3})


def test_auto_scale_starts_with_the_minimum_but_with_nothing_in_between() -> None:
    world = run("auto-scale", gang("a", 0, 4), gang("b", 0, 2), gang("c", 1, 4, least=1))
    assert at(world, 2)["c"] == {1: 1}  # there is room for two


def test_auto_scale_grows_beside_the_parameter_server_after_a_minute() -> None:
    world = run("auto-scale", gang("a", 0, 2, most=8))
    assert at(world, 59)["a"] == {0: 2}
    assert at(world, 61)["a"] == {0: 4}
    assert world.runs[0].ended == pytest.approx(60 + 15 + (LONG - 60) / 2)


# -- DRAGON v2's rules --


def test_dragon_shrinks_for_whoever_waits_thirty_seconds() -> None:
    jobs = (gang("a", 0, 4, least=2), gang("b", 1, 4, least=2), gang("c", 10, 2))
    world = run("dragon", *jobs)
    assert starts(world) == {"a": 0, "b": 1, "c": 60}
    assert at(world, 61) == {"a": {0: 2}, "b": {1: 4}, "c": {0: 2}}


def test_dragon_takes_workers_away_from_the_parameter_server_first() -> None:
    world = run("dragon", gang("x", 0, 3, 20), gang("a", 0, 4, least=1), gang("c", 25, 6, least=5))
    assert at(world, 10)["a"] == {1: 4}
    spread = run("dragon", gang("x", 0, 2), gang("y", 0, 3), gang("a", 1, 3, least=1), gang("c", 25, 2))
    assert at(spread, 10)["a"] == {0: 2, 1: 1}
    assert at(spread, 61) == {"x": {0: 2}, "y": {1: 3}, "a": {0: 1}, "c": {0: 1, 1: 1}}


def test_dragon_starts_with_any_size_from_the_minimum_on() -> None:
    world = run("dragon", gang("a", 0, 4), gang("b", 0, 2), gang("c", 1, 4, least=1))
    assert at(world, 2)["c"] == {1: 2}


def test_dragon_holds_all_back_for_a_job_that_cannot_be_helped() -> None:
    """And auto-scale does not: there it is only starving after two minutes."""
    jobs = (gang("a", 0, 4, 200), gang("b", 0, 3, 200), gang("c", 10, 2, 10), gang("d", 50, 1, 10))
    assert starts(run("dragon", *jobs)) == {"a": 0, "b": 0, "c": 200, "d": 200}
    assert starts(run("auto-scale", *jobs))["d"] == 50


def test_dragon_grows_node_by_node_wherever_the_parameter_server_is() -> None:
    world = run("dragon", gang("a", 0, 2, most=6))
    assert at(world, 59)["a"] == {0: 2}
    assert at(world, 61)["a"] == {0: 4, 1: 2}
