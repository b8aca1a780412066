"""Which jobs a driver drives, when it must stop, and what it does on a cluster that keeps less than ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.controller.harness import ME, OTHER, START, Counting, Hands, World, claimed_by, disturbed, tfjob
from tests.waiting import until
from tf_dist.cluster.api import NODES, PODS, TFJOBS, Resource
from tf_dist.controller.driver import Driver
from tf_dist.controller.driver_settings import DriverSettings, JobRef
from tf_dist.controller.informers import transforms
from tf_dist.controller.job_index import JobIndex
from tf_dist.core.api import names
from tf_dist.core.api.pods import PodPhase, pod_views
from tf_dist.core.reconciler.ownership import driver_of
from tf_dist.errors import Conflict, Forbidden, Unavailable

SECONDS = 60


def driven(world: World, leadership: Hands, **settings: Any) -> Driver:
    return Driver(
        world.cluster,
        clock=world.clock,
        monotonic=world.clock,
        leadership=leadership,
        settings=DriverSettings(**settings),
    )


def settle(driver: Driver, most: int = 30) -> None:
    for _ in range(most):
        if driver.step() == 0:
            return
    raise AssertionError("not settled")


@pytest.fixture
def world() -> World:
    return World()


def test_a_job_names_its_driver_with_its_first_status(world: World) -> None:
    world.submit(tfjob())
    settle(driven(world, Hands()))
    assert driver_of(world.job()) == ME


def test_a_job_of_another_driver_is_left_alone_until_that_driver_is_dead(world: World) -> None:
    world.submit(claimed_by(OTHER))
    leadership = Hands()
    driver = driven(world, leadership)
    settle(driver)
    assert world.pods() == {}
    assert world.job().get("status") is None
    assert leadership.watched == {OTHER}
    leadership.dead = frozenset({OTHER})
    settle(driver)
    assert driver_of(world.job()) == ME
    assert len(world.pods()) == 3


def test_leaves_a_job_alone_when_its_driver_came_back_while_the_loop_was_blocked(world: World) -> None:
    """A worker asks between two rounds of the loop, which knows only who was dead at the last one."""
    world.submit(claimed_by(OTHER))
    leadership = Hands()
    driver = driven(world, leadership)
    settle(driver)
    [(ref, _)] = driver.informers.jobs()
    known = driver._job_index.get(ref)
    leadership.dead = frozenset({OTHER})
    driver._takeover.refresh({OTHER})
    assert driver._takeover.drives(known)
    leadership.dead = frozenset()
    assert not driver._takeover.drives(known)


def test_a_job_that_is_taken_over_goes_on_where_it_was(world: World) -> None:
    world.submit(tfjob())
    settle(driven(world, Hands(OTHER)))
    world.run_pods()
    settle(driven(world, Hands(OTHER)))
    before = world.pods()
    second = Hands()
    second.dead = frozenset({OTHER})
    driver = driven(world, second)
    settle(driver)
    assert {name: pod["metadata"]["uid"] for name, pod in world.pods().items()} == {
        name: pod["metadata"]["uid"] for name, pod in before.items()
    }
    status = world.status()
    assert (status["phase"], status["driver"]) == ("Running", ME)
    assert "restarts" not in status


def test_what_a_driver_left_behind_of_a_finished_job_is_cleared_away(world: World) -> None:
    """It died between the last status and the last deletion."""
    world.submit(tfjob())
    first = Hands(OTHER)
    driver = driven(world, first)
    settle(driver)
    world.run_pods()
    settle(driver)
    world.end_pod("mnist-worker-0", 3)
    first.left = 2  # the pass, and the status
    driver.step()
    assert world.status()["phase"] == "Failed"
    assert not any("deletionTimestamp" in pod["metadata"] for pod in world.pods().values())
    second = Hands()
    heir = driven(world, second)
    settle(heir)
    assert second.watched == {OTHER}
    second.dead = frozenset({OTHER})
    settle(heir)
    world.bury()
    settle(heir)
    assert list(world.pods()) == ["mnist-worker-0"]
    settle(heir)
    assert second.watched == set()


def test_who_takes_nothing_over_does_not_care_how_drivers_of_finished_jobs_fare(world: World) -> None:
    world.submit(tfjob())
    first = Hands(OTHER)
    driver = driven(world, first)
    settle(driver)
    world.run_pods()
    settle(driver)
    world.end_pod("mnist-worker-0", 3)
    first.left = 2  # it died before it cleared away
    driver.step()
    second = Hands(takes_over=False)
    second.dead = frozenset({OTHER})
    before = world.pods()
    settle(driven(world, second))
    assert second.watched == set()
    assert world.pods() == before


def test_a_finished_job_of_a_dead_driver_goes_after_its_time_to_live(world: World) -> None:
    world.submit(tfjob(ttlSecondsAfterFinished=10))
    driver = driven(world, Hands(OTHER))
    settle(driver)
    world.run_pods()
    world.end_pod("mnist-worker-0", 0)
    settle(driver)
    world.bury()
    settle(driver)
    second = Hands()
    second.dead = frozenset({OTHER})
    heir = driven(world, second)
    heir.step()
    assert second.watched == set()
    world.clock.now += 11
    heir.step()
    assert world.memory.list(TFJOBS).items == []


@pytest.mark.parametrize(("dead", "starts"), [(True, True), (False, False)])
def test_a_waiting_job_has_its_turn_as_long_as_its_driver_lives(world: World, dead: bool, starts: bool) -> None:
    """One whose driver is dead, and that this one may not take over, must not stand in the way of those behind it."""
    world.submit(claimed_by(OTHER, name="before", workers=7))
    status = {"status": {"tfDist": {"phase": "Pending", "driver": OTHER}}}
    world.memory.patch(TFJOBS, "default", "before", status, subresource="status")
    world.clock.now += 5
    world.submit(claimed_by(ME, name="mine", workers=3))
    leadership = Hands(takes_over=False)
    leadership.dead = frozenset({OTHER} if dead else ())
    settle(driven(world, leadership))
    assert (len(world.pods()) == 4) is starts
    assert leadership.watched == {OTHER}


def test_two_drivers_that_want_the_same_job_do_not_both_get_it(world: World) -> None:
    world.submit(tfjob())
    first, second = driven(world, Hands(ME)), driven(world, Hands(OTHER))
    for driver in (first, second):
        driver.informers.refresh()
    first.step()
    second.step()
    assert driver_of(world.job()) == ME
    settle(second)
    assert driver_of(world.job()) == ME


def test_an_inline_driver_takes_only_the_job_it_was_given(world: World) -> None:
    world.submit(claimed_by(ME, name="mine"))
    world.submit(tfjob("stray"))
    world.submit(claimed_by(ME, name="twin"))
    leadership = Hands(takes_over=False)
    settle(driven(world, leadership, only=JobRef(TFJOBS, "default", "mine")))
    assert {name.split("-")[0] for name in world.pods()} == {"mine"}


def test_a_waiting_job_that_nobody_drives_does_not_block_one_that_somebody_does(world: World) -> None:
    world.submit(tfjob("stray", workers=7))
    world.clock.now += 5
    world.submit(claimed_by(ME, name="mine", workers=3))
    settle(driven(world, Hands(takes_over=False), only=JobRef(TFJOBS, "default", "mine")))
    assert len(world.pods()) == 4


@pytest.mark.parametrize("left", range(1, 9))
def test_a_driver_whose_mandate_ends_between_two_writes_writes_no_more(world: World, left: int) -> None:
    world.submit(tfjob())
    leadership = Hands()
    leadership.left = left
    counting = Counting(world.memory)
    driver = Driver(counting, clock=world.clock, monotonic=world.clock, leadership=leadership)  # type: ignore[arg-type]
    driver.step()
    writes = [call for call in counting.calls if call.split()[0] in ("create", "replace", "patch", "delete")]
    events = [call for call in writes if call == "create events"]
    # The first question is the pass's own; each write has one, but for events, which come after all others.
    assert len(writes) - len(events) == left - 1
    assert bool(events) == (left == 8)
    assert driver.step() == 0
    other = Hands(OTHER)
    other.dead = frozenset({ME})
    settle(driven(world, other))
    assert len(world.pods()) == 3


def test_without_the_right_to_see_nodes_a_gang_is_admitted_and_other_pods_are_not_looked_at(world: World) -> None:
    class Namespaced(Counting):
        def list(self, resource: Resource, namespace: str | None = None, **kwargs: Any) -> Any:
            if resource == NODES or namespace is None:
                raise Forbidden(f"may not list {resource.plural}")
            return self.inner.list(resource, namespace, **kwargs)

    world.submit(tfjob(workers=50))
    driver = Driver(
        Namespaced(world.memory),  # type: ignore[arg-type]
        clock=world.clock,
        monotonic=world.clock,
        settings=DriverSettings(namespace="default"),
    )
    driver.step()
    assert len(world.pods()) == 51


def test_a_driver_of_the_whole_cluster_does_not_go_on_without_seeing_its_nodes(world: World) -> None:
    class Blind(Counting):
        def list(self, resource: Resource, *args: Any, **kwargs: Any) -> Any:
            if resource == NODES:
                raise Forbidden("may not list nodes")
            return self.inner.list(resource, *args, **kwargs)

    world.submit(tfjob(workers=50))
    driver = Driver(Blind(world.memory), clock=world.clock, monotonic=world.clock)  # type: ignore[arg-type]
    with pytest.raises(Forbidden):
        driver.step()
    assert world.pods() == {}


# Followed, not listed


@pytest.fixture
def following(world: World) -> Iterator[tuple[Driver, Counting, Hands]]:
    counting, leadership, begun = Counting(world.memory), Hands(), time.monotonic()
    # A clock that goes: what has to be tried again is, after a while.
    driver = Driver(counting, clock=lambda: START + time.monotonic() - begun, leadership=leadership)  # type: ignore[arg-type]
    driver.start()
    try:
        # Who has listed is synced; but only when everything is watched, too, does nothing more come of the start.
        until(lambda: driver.synced() and asked(counting, "watch") == asked(counting, "list"), SECONDS)
        yield driver, counting, leadership
    finally:
        driver.stop()


def asked(counting: Counting, verb: str) -> set[str]:
    """The kinds that were asked for with this verb."""
    return {call.split()[1] for call in list(counting.calls) if call.split()[0] == verb}


def phase(world: World) -> str:
    return str(world.status().get("phase", ""))


def test_a_followed_job_runs_to_its_end_with_no_request_that_is_not_a_write(
    world: World, following: tuple[Driver, Counting, Hands]
) -> None:
    _, counting, _ = following
    begun = len(counting.calls)
    world.submit(tfjob())
    until(lambda: len(world.pods()) == 3, SECONDS)
    world.run_pods()
    until(lambda: phase(world) == "Running", SECONDS)
    world.end_pod("mnist-worker-1", 137)
    until(lambda: goes(world, "mnist-worker-1"), SECONDS)
    world.bury()
    until(lambda: attempt(world) == "1.0.1", SECONDS)
    world.run_pods()
    world.end_pod("mnist-worker-0", 0)

    def buried() -> bool:
        # Who reads "Completing" may come before the pods were asked to go.
        world.bury()
        return phase(world) == "Completed"

    until(buried, SECONDS)
    verbs = {call.split()[0] for call in counting.calls[begun:]}
    assert verbs <= {"create", "replace", "delete", "addresses"}


def goes(world: World, name: str) -> bool:
    """Whether the first pod of this name was asked to go, or is gone already."""
    metadata = world.pods().get(name, {"metadata": {}})["metadata"]
    return "deletionTimestamp" in metadata or metadata.get("labels", {}).get(names.ATTEMPT) != "1.0.0"


def attempt(world: World) -> str:
    pod = world.pods().get("mnist-worker-1")
    return str(pod["metadata"]["labels"][names.ATTEMPT]) if pod else ""


def test_a_mandate_won_anew_means_to_look_anew(world: World, following: tuple[Driver, Counting, Hands]) -> None:
    driver, counting, leadership = following
    lists = counting.calls.count("list pods")
    leadership.epoch += 1
    leadership.changed()
    until(lambda: counting.calls.count("list pods") > lists and driver.synced(), SECONDS)
    world.submit(tfjob())
    until(lambda: len(world.pods()) == 3, SECONDS)


def seen(driver: Driver, world: World) -> bool:
    """Whether a driver that follows the cluster knows the job as it is stored now."""
    job = driver.informers.job(JobRef(TFJOBS, "default", "mnist"))
    return job is not None and job["metadata"]["resourceVersion"] == world.job()["metadata"]["resourceVersion"]


def test_pods_made_by_the_driver_before_are_found_when_a_job_is_taken_over(world: World) -> None:
    """The watch of the new driver may be behind the one that died: its pods must not be taken for evicted ones."""
    leadership = Hands()
    driver = Driver(world.memory, clock=world.clock, monotonic=world.clock, leadership=leadership)
    driver.informers.start()
    try:
        until(driver.synced, SECONDS)
        pods = next(r for kind, r in driver.informers._reflectors.items() if kind == PODS)
        pods.stop()  # its watch brings nothing any more
        world.submit(tfjob())
        other = driven(world, Hands(OTHER))
        settle(other)
        world.run_pods()
        settle(other)
        until(lambda: seen(driver, world), SECONDS)
        leadership.dead = frozenset({OTHER})
        driver.step()
        driver.step()
        assert driver_of(world.job()) == ME
        assert "restarts" not in world.status()
        assert {pod["metadata"]["labels"][names.ATTEMPT] for pod in world.pods().values()} == {"1.0.0"}
    finally:
        driver.stop()


def test_a_pod_is_read_by_what_it_says_and_not_by_its_version(world: World) -> None:
    """A server that was set back has given the version of a pod that runs to its end, too."""
    world.submit(tfjob())
    settle(driven(world, Hands()))
    world.run_pods()
    job_index = JobIndex()
    job = job_index.read(JobRef(TFJOBS, "default", "mnist"), world.job()).job
    assert job is not None
    runs = [transforms.pod(pod) for pod in world.pods().values()]
    ends = [transforms.pod({**pod, "status": {"phase": "Succeeded"}}) for pod in runs]
    assert {view.phase for view in pod_views(job, runs)} == {PodPhase.RUNNING}
    assert {view.phase for view in pod_views(job, ends)} == {PodPhase.SUCCEEDED}
    assert all(one is two for one, two in zip(pod_views(job, runs), pod_views(job, runs), strict=True)), "read once"
    copied = [{**pod, "status": {"phase": "Succeeded"}} for pod in runs]
    assert {view.phase for view in pod_views(job, copied)} == {PodPhase.SUCCEEDED}


def test_a_job_whose_pods_cannot_be_looked_for_is_not_taken_over(world: World) -> None:
    """Nor by writing into it why: the next pass would take it for one whose pods are known."""
    leadership, asked = Hands(), [0]

    def refuse(verb: str, resource: Resource, *_: Any, **how: Any) -> None:
        if (verb, resource) == ("list", PODS) and f"{names.JOB_UID}=" in (how.get("labels") or ""):
            asked[0] += 1
            raise Unavailable("list pods: no answer")

    driver = Driver(disturbed(world.memory, refuse), clock=world.clock, monotonic=world.clock, leadership=leadership)
    driver.informers.start()
    try:
        until(driver.synced, SECONDS)
        world.submit(tfjob())
        other = driven(world, Hands(OTHER))
        settle(other)
        # Only as it is stored now: of an earlier version it does not say that it cannot go on.
        until(lambda: seen(driver, world), SECONDS)
        leadership.dead = frozenset({OTHER})
        for _ in range(6):
            driver.step()
            world.clock.now += 31  # longer than any pause after a failure
        assert asked[0] >= 5
        assert driver_of(world.job()) == OTHER
        assert "obstacle" not in world.status()
    finally:
        driver.stop()


def test_a_deletion_that_the_server_refuses_is_not_taken_for_done(world: World) -> None:
    """A conflict may say that another object has the name by now, or anything else. What is followed is not listed."""
    refusals = [2]

    def refuse(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("delete", PODS) and refusals[0]:
            refusals[0] -= 1
            raise Conflict("try again")

    driver = Driver(disturbed(world.memory, refuse), clock=world.clock, monotonic=world.clock)
    driver.informers.start()
    try:
        until(driver.synced, SECONDS)
        world.submit(tfjob())

        def step(condition: Callable[[], bool]) -> None:
            """Pass after pass, each when the pause after a failure is over and the watch has told of the job."""

            def stepped() -> bool:
                if seen(driver, world):
                    world.clock.now += 31
                    driver.step()
                return condition()

            until(stepped, SECONDS)

        step(lambda: len(world.pods()) == 3)
        world.run_pods()
        step(lambda: phase(world) == "Running")
        world.memory.patch(TFJOBS, "default", "mnist", {"spec": {"runPolicy": {"suspend": True}}})
        step(lambda: all("deletionTimestamp" in pod["metadata"] for pod in world.pods().values()))
        assert (refusals, len(world.pods())) == ([0], 3)
        for _ in range(3):
            driver.step()
        assert world.status()["phase"] == "Aborting"
    finally:
        driver.stop()
