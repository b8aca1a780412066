"""The books: room, work and time add up, and what is not there cannot be given."""

from __future__ import annotations

import pytest

from tf_dist.simulate.model import Cluster, Layout, Scenario, SimJob, Speed
from tf_dist.simulate.room import Floor, NoRoom
from tf_dist.simulate.world import World

CLUSTER = Cluster(nodes=2, gpus=4, cpu=64)


def a_world(*jobs: SimJob) -> World:
    return World(Scenario(name="test", cluster=CLUSTER, jobs=jobs, speed=Speed(remote=0.5, overhead=0, restart=10)))


def job(**fields: object) -> SimJob:
    return SimJob(**({"name": "a", "submit": 0.0, "duration": 100.0, "workers": 2, "most": 4, "ps": 1} | fields))  # type: ignore[arg-type]


def end(world: World) -> float:
    world.now = world.next_end()
    world.end_next()
    return world.now


def test_a_job_beside_its_parameter_server_runs_for_its_duration() -> None:
    world = a_world(job())
    world.resume(world.runs[0], Layout({0: 2}, {0: 1}))
    assert end(world) == 100
    assert (world.runs[0].held, world.runs[0].busy, world.runs[0].left) == (200, 200, 0)


def test_workers_elsewhere_are_slower() -> None:
    world = a_world(job())
    world.resume(world.runs[0], Layout({0: 1, 1: 1}, {0: 1}))
    assert end(world) == pytest.approx(200 / 1.5)


def test_without_parameter_servers_the_node_with_most_workers_is_home() -> None:
    world = a_world(job(ps=0, workers=3))
    world.resume(world.runs[0], Layout({0: 1, 1: 2}))
    assert end(world) == pytest.approx(300 / 2.5)


def test_work_is_conserved_when_workers_go_and_growing_costs_a_restart() -> None:
    world = a_world(job())
    run = world.runs[0]
    world.resume(run, Layout({0: 2}, {0: 1}))
    world.now = 50
    world.resize(run, Layout({0: 1}, {0: 1}))  # 100 of 200 are left, for one worker
    world.now = 100
    world.resize(run, Layout({0: 4}, {0: 1}))  # 50 are left: 10 s of restart and 12.5 s of four workers
    assert end(world) == pytest.approx(122.5)
    assert run.held == pytest.approx(2 * 50 + 50 + 4 * 22.5)
    assert run.busy == pytest.approx(2 * 50 + 50 + 4 * 12.5)
    assert (run.done, run.resizes, run.restarts) == (pytest.approx(200), 2, 0)


def test_a_job_that_was_stopped_goes_on_from_its_checkpoint() -> None:
    world = a_world(job())
    run = world.runs[0]
    world.resume(run, Layout({0: 2}, {0: 1}))
    world.now = 40
    world.take(run)
    assert (world.waiting, world.working, world.floor.free) == (0, 0, 8)
    world.now = 60
    world.resume(run, Layout({1: 2}, {1: 1}))
    assert end(world) == 60 + 10 + 60
    assert run.restarts == 1


def test_a_restart_in_a_restart_does_not_add_up() -> None:
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
    assert (run.held, run.busy) == (30 + 200, 200)


def test_no_more_can_be_given_than_there_is() -> None:
    world = a_world(job(workers=4, most=8), job(workers=2))
    world.resume(world.runs[0], Layout({0: 4}, {0: 1}))
    with pytest.raises(NoRoom, match="node 0"):
        world.resume(world.runs[1], Layout({0: 1, 1: 1}, {1: 1}))


def test_no_more_can_be_given_back_than_was_taken() -> None:
    floor = Floor(CLUSTER)
    with pytest.raises(NoRoom):
        floor.change(0, 1, 0)


def test_admissions_take_their_time_at_a_given_rate() -> None:
    jobs = tuple(job(name=str(number), workers=1, most=1) for number in range(3))
    world = World(Scenario(name="test", cluster=CLUSTER, jobs=jobs, rate=2.0))
    for run in world.runs:
        world.resume(run, Layout({0: 1}, {0: 1}))
    assert [end(world) for _ in jobs] == [100.5, 101.0, 101.5]
