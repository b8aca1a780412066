"""One driver of the whole cluster decides about places; every other one waits for what it tells their jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given

from tests.controller.harness import Clock, Hands, World, disturbed, tfjob
from tests.controller.turns import TURNS, Process, Turn, admitted, leave, play
from tests.thorough import thorough
from tests.waiting import until
from tf_dist.cluster.api import LEASES, NAMESPACES, NODES, PODS, TFJOBS, Cluster, Resource
from tf_dist.controller.driver import Driver
from tf_dist.controller.driver_settings import DriverSettings, JobRef
from tf_dist.controller.gang_admission.admission_leader import AdmissionLeader, LeaseAdmissionLeader
from tf_dist.controller.leases import lease
from tf_dist.controller.leases.lease import LeaseRef, admission_leader_lease, pending_admissions_lease, system_namespace
from tf_dist.controller.leases.lease_monitor import LEASE_POLL_INTERVAL
from tf_dist.core.api import names
from tf_dist.core.api.timestamps import format_time
from tf_dist.errors import Forbidden, Unavailable


class Believer:
    """One that believes that it decides for all, always: no clock and no Lease keeps it back."""

    def __init__(self, leadership: Hands) -> None:
        self._leadership = leadership
        self.believes = True

    @property
    def epoch(self) -> int:
        return self._leadership.epoch

    def start(self, *, sees_all: bool) -> None:
        assert sees_all

    def stop(self) -> None: ...

    def listen(self, listener: Any) -> None: ...

    def decides(self) -> bool:
        return self.believes

    def for_all(self) -> bool:
        return self.believes

    def pause(self) -> float:
        return 0.0


def inline(
    world: World, name: str, arbiter: AdmissionLeader, cluster: Cluster | None = None, namespace: str = "default"
) -> Driver:
    """A driver of one job, under a Lease of its own."""
    return Driver(
        cluster or world.memory,
        clock=world.clock,
        monotonic=world.clock,
        leadership=Hands(f"default/driver-of-{name}", takes_over=False),
        settings=DriverSettings(namespace=namespace, only=JobRef(TFJOBS, namespace, name), can_lead_admission=True),
        admission_leader=arbiter,
    )


def submit(world: World, name: str) -> None:
    """A job that its own driver is to drive."""
    document = tfjob(name)
    document["metadata"]["annotations"] = {names.DRIVER: f"default/driver-of-{name}"}
    world.submit(document)
    claim(world, name)


def claim(world: World, name: str) -> None:
    """What the driver of a job writes first."""
    memory = {"phase": "Pending", "driver": f"default/driver-of-{name}"}
    world.memory.patch(TFJOBS, "default", name, {"status": {"tfDist": memory}}, subresource="status")


class Believing(Process):
    """A process that decides for all; the second one drives one job and no other."""

    def __init__(self, world: World, only: str = "") -> None:
        super().__init__(world)
        cluster: Any = self.wire
        if only:
            self.leadership = Hands(f"default/driver-of-{only}", takes_over=False)
        self.driver = Driver(
            cluster,
            clock=world.clock,
            monotonic=world.clock,
            leadership=self.leadership,
            settings=DriverSettings(can_lead_admission=True, only=JobRef(TFJOBS, "default", only) if only else None),
            admission_leader=Believer(self.leadership),
        )


@given(TURNS)
@thorough(100)
def test_a_driver_of_one_job_and_one_of_all_never_give_more_than_there_is(turns: list[Turn]) -> None:
    world = World(cpu="4")
    processes = [Believing(world), Believing(world, "own")]
    submit(world, "own")
    for number in range(3):
        world.submit(tfjob(f"m-{number}"))
    play(world, processes, turns)


@pytest.fixture
def world() -> World:
    return World(cpu="4")


@pytest.fixture
def arbiters(world: World) -> Iterator[list[LeaseAdmissionLeader]]:
    made = [LeaseAdmissionLeader(world.memory), LeaseAdmissionLeader(world.memory)]
    yield made
    for arbiter in made:
        arbiter.stop()


def test_who_decides_tells_the_jobs_of_others_and_their_drivers_do_the_rest(
    world: World, arbiters: list[LeaseAdmissionLeader]
) -> None:
    first, second = inline(world, "a", arbiters[0]), inline(world, "b", arbiters[1])
    submit(world, "a")
    submit(world, "b")
    first.step()
    until(arbiters[0].for_all, 60)
    second.step()
    assert not arbiters[1].decides()
    first.step()
    first.step()
    assert admitted(world) == ["a"]
    assert "cpu" in world.status("b")["message"]
    assert world.status("b")["driver"] == "default/driver-of-b"
    second.step()
    assert {pod.rpartition("-")[0].split("-")[0] for pod in world.pods()} == {"a"}
    leave(world)
    first.step()
    first.step()
    assert admitted(world) == ["b"]
    assert world.pods() == {}, "who decides makes no pods for the jobs of others"
    second.step()
    second.step()
    assert sorted(world.pods()) == ["b-ps-0", "b-worker-0", "b-worker-1"]


def test_the_pods_of_a_job_that_is_told_another_size_are_listed_first(
    world: World, arbiters: list[LeaseAdmissionLeader]
) -> None:
    """The watch of who decides may be behind the job's driver: pods it has not seen must not be taken for evicted."""
    first, second = inline(world, "a", arbiters[0]), inline(world, "b", arbiters[1])
    document = tfjob("b", workers=1)
    document["metadata"]["annotations"] = {names.DRIVER: "default/driver-of-b", names.MAX_WORKERS: "2"}
    document["spec"]["enableDynamicWorker"] = True
    first.informers.start()
    try:
        until(first.synced, 60)
        first.informers._reflectors[PODS].stop()  # its watch brings nothing any more
        world.submit(document)
        first.step()
        until(arbiters[0].for_all, 60)

        def go_on() -> bool:
            second.step()
            first.step()
            world.run_pods()
            return bool(world.status("b").get("phase") == "Running")

        until(go_on, 60)
        seen = world.job("b")["metadata"]["resourceVersion"]
        until(lambda: known_version(first, "b") == seen, 60)
        world.clock.now += 100
        first.step()
        assert world.status("b")["admission"]["sizes"] == {"ps": 1, "worker": 2}
        assert world.status("b")["attempts"] == {"job": 1}
        assert "disruptions" not in world.status("b")
    finally:
        first.stop()


def known_version(driver: Driver, name: str) -> str:
    """The version of a job that a driver has seen."""
    job = driver.informers.job(JobRef(TFJOBS, "default", name))
    return str(job["metadata"]["resourceVersion"]) if job is not None else ""


def test_who_decides_no_more_does_not_say_any_more_why_a_job_waits(world: World) -> None:
    """What it knew last is out of date: two drivers would exchange their texts as fast as they can write."""
    before, after = Believer(Hands()), Believer(Hands())
    after.believes = False
    first, second = inline(world, "b", before), inline(world, "a", after)
    submit(world, "a")
    submit(world, "b")
    first.step()
    first.step()
    assert "free: cpu 1" in world.status("b")["message"]
    before.believes, after.believes = False, True
    node = world.memory.get(NODES, None, "n1")
    larger = {**node, "status": {"allocatable": {"cpu": "5", "memory": "64Gi", "pods": "110"}}}
    world.memory.replace(NODES, None, "n1", larger, subresource="status")
    world.clock.now += 1  # its text is not written anew at once
    second.step()
    said = world.status("b")["message"]
    assert "free: cpu 1" not in said
    for driver in (first, second, first):
        world.clock.now += 1
        driver.step()
        assert world.status("b")["message"] == said


def test_a_place_that_comes_too_early_by_a_clock_that_was_set_back_is_told_again_in_time(world: World) -> None:
    """Its own driver knows nothing of it, so no other would."""
    steady, breaks = Clock(), [False]

    def away(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if breaks[0] and (verb, resource) == ("replace", TFJOBS):
            breaks[0] = False
            raise Unavailable("it is away")

    driver = Driver(
        disturbed(world.memory, away),
        clock=world.clock,
        monotonic=steady,
        leadership=Hands("default/driver-of-a", takes_over=False),
        settings=DriverSettings(namespace="default", only=JobRef(TFJOBS, "default", "a"), can_lead_admission=True),
        admission_leader=Believer(Hands()),
    )
    submit(world, "b")
    after = format_time(world.clock.now + 50)
    memory = {"phase": "Pending", "driver": "default/driver-of-b", "reason": "ScheduleTimeout", "notBefore": after}
    world.memory.patch(TFJOBS, "default", "b", {"status": {"tfDist": memory}}, subresource="status")

    def go_on(seconds: int) -> None:
        for _ in range(seconds):
            world.clock.now += 1
            steady.now += 1
            driver.step(driver._queue.take())

    driver.step()
    go_on(10)
    breaks[0] = True
    while breaks[0]:
        go_on(1)
    world.clock.now -= 20
    go_on(18)
    assert admitted(world) == []
    go_on(3)
    assert admitted(world) == ["b"]


def test_when_it_is_gone_the_next_one_decides(world: World, arbiters: list[LeaseAdmissionLeader]) -> None:
    first, second = inline(world, "a", arbiters[0]), inline(world, "b", arbiters[1])
    submit(world, "b")
    first.step()
    until(arbiters[0].decides, 60)
    second.step()
    arbiters[0].stop()
    until(arbiters[1].decides, 60)
    second.step()
    second.step()
    assert admitted(world) == ["b"]


def test_who_does_not_want_to_decide_any_more_gives_the_lease_back(world: World) -> None:
    wanted = [True]
    arbiter = LeaseAdmissionLeader(world.memory, wanted=lambda: wanted[0], renew_every=0.05)
    arbiter.start(sees_all=True)
    until(arbiter.decides, 60)
    wanted[0] = False
    until(lambda: world.memory.get(LEASES, *admission_leader_lease())["spec"]["holderIdentity"] == "", 60)
    assert not arbiter.decides()
    arbiter.stop()


def test_who_begins_to_want_the_lease_takes_it_at_once(world: World) -> None:
    """The next look of one that stands by would be in half an hour."""
    looked, wanted = threading.Event(), [False]

    def wants() -> bool:
        wish = wanted[0]
        if threading.current_thread() is not threading.main_thread():
            looked.set()
        return wish

    arbiter = LeaseAdmissionLeader(world.memory, wanted=wants, renew_every=3600.0)
    arbiter.start(sees_all=True)
    assert looked.wait(30)
    wanted[0] = True
    arbiter.start(sees_all=True)
    until(arbiter.decides, 30)
    arbiter.stop()


class Narrow:
    """A cluster of which one may see a namespace only, and the arbiter's Lease if ``leases``."""

    def __init__(self, world: World, *, leases: bool = True) -> None:
        self._inner = world.memory
        self._leases = leases
        self.away = False

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._inner, verb)
        if verb in ("wait", "addresses", "close"):
            return call

        def asked(resource: Resource, namespace: str | None = None, *args: Any, **kwargs: Any) -> Any:
            if self.away:
                raise Unavailable("it is away")
            if namespace is None or (
                namespace == admission_leader_lease().namespace and not (self._leases and verb == "get")
            ):
                raise Forbidden(f"may not {verb} {resource.plural} there")
            return call(resource, namespace, *args, **kwargs)

        return asked


def held(world: World, holder: str) -> None:
    """Another driver holds the arbiter's Lease, and renews it."""
    body = lease.new_lease(admission_leader_lease(), holder, 15, 0, {})
    world.memory.create(LEASES, admission_leader_lease().namespace, body)


def narrow(world: World, **rights: bool) -> tuple[Driver, LeaseAdmissionLeader, Clock, Any]:
    time = Clock()
    cluster: Any = Narrow(world, **rights)
    arbiter = LeaseAdmissionLeader(cluster, monotonic=time)
    return inline(world, "a", arbiter, cluster), arbiter, time, cluster


def test_who_sees_one_namespace_leaves_the_decision_to_one_who_sees_all(world: World) -> None:
    driver, arbiter, time, cluster = narrow(world)
    held(world, "a-controller")
    submit(world, "a")
    driver.step()
    driver.step()
    assert not arbiter.decides()
    assert admitted(world) == []
    time.now += 14
    cluster.away = True
    assert not arbiter.decides(), "what cannot be asked is as it was"
    cluster.away = False
    time.now += 5
    assert arbiter.decides(), "it has not been renewed for its whole duration"
    driver.step()
    driver.step()
    assert admitted(world) == ["a"]


def test_decides_nothing_before_the_first_answer_about_the_leader(world: World) -> None:
    _, arbiter, time, cluster = narrow(world)
    held(world, "a-controller")
    cluster.away = True
    assert not arbiter.decides()
    time.now += 60
    assert not arbiter.decides()
    cluster.away = False
    time.now += 5
    assert not arbiter.decides(), "the Lease is seen for the first time, and may be renewed yet"


@pytest.mark.parametrize("leases", [True, False])
def test_who_sees_one_namespace_decides_about_its_job_where_nobody_else_does(world: World, leases: bool) -> None:
    driver, _, _, _ = narrow(world, leases=leases)
    if not leases:
        held(world, "one that it may not see")
    submit(world, "a")
    driver.step()
    driver.step()
    assert admitted(world) == ["a"]


def test_a_lease_that_was_given_back_binds_nobody(world: World) -> None:
    driver, _, _, _ = narrow(world)
    held(world, "")
    submit(world, "a")
    driver.step()
    driver.step()
    assert admitted(world) == ["a"]


def test_one_that_decides_for_itself_alone_waits_between_its_rounds(world: World) -> None:
    """It does not say how the queues stand, and that this is due is no reason to come round again at once."""
    driver, _, _, _ = narrow(world)
    submit(world, "a")
    driver.step()
    driver.step()
    assert admitted(world) == ["a"]
    assert driver._longest_wait() > 0


def test_who_leaves_the_decision_to_another_looks_in_time_whether_that_one_lives_while_a_job_waits(
    world: World,
) -> None:
    driver, _, time, _ = narrow(world)
    held(world, "a-controller")
    driver.step()
    assert driver._longest_wait() > LEASE_POLL_INTERVAL
    submit(world, "a")
    driver.step()
    driver.step()
    assert driver._longest_wait() == LEASE_POLL_INTERVAL
    time.now += 1
    assert driver._longest_wait() == LEASE_POLL_INTERVAL - 1


def test_who_may_not_hold_the_lease_does_not_wait_for_it(world: World) -> None:
    class Reading(Narrow):
        """All may be seen, and no Lease written."""

        def __getattr__(self, verb: str) -> Any:
            call = getattr(self._inner, verb)

            def asked(resource: Any, namespace: str | None = None, *args: Any, **kwargs: Any) -> Any:
                if resource is LEASES and verb != "get":
                    raise Forbidden("may not write leases")
                return call(resource, namespace, *args, **kwargs)

            return asked if verb in ("create", "replace") else call

    cluster: Any = Reading(world)
    arbiter = LeaseAdmissionLeader(cluster, renew_every=0.05)
    driver = inline(world, "a", arbiter, cluster)
    submit(world, "a")

    def started() -> bool:
        driver.step()
        return admitted(world) == ["a"]

    until(started, 60)
    driver.stop()


def test_where_drivers_have_no_place_to_meet_each_decides_about_its_own_jobs(world: World) -> None:
    """tf-dist was never installed in this cluster."""
    world.memory.delete(NAMESPACES, None, admission_leader_lease().namespace)
    arbiter = LeaseAdmissionLeader(world.memory, renew_every=0.05)
    driver = inline(world, "a", arbiter)
    submit(world, "a")
    submit(world, "b")

    def started() -> bool:
        driver.step()
        return admitted(world) != []

    until(started, 60)
    assert admitted(world) == ["a"]
    assert not arbiter.for_all()
    driver.stop()


def test_an_install_says_elsewhere_where_drivers_meet(world: World) -> None:
    arbiter = LeaseAdmissionLeader(
        world.memory, namespace=system_namespace({"TF_DIST_SYSTEM_NAMESPACE": "kube-system"})
    )
    arbiter.start(sees_all=True)
    until(arbiter.for_all, 60)
    assert world.memory.get(LEASES, "kube-system", admission_leader_lease().name)["spec"]["holderIdentity"]
    arbiter.stop()
    assert system_namespace({}) == admission_leader_lease().namespace


def test_jobs_of_other_namespaces_are_seen_and_never_driven(world: World) -> None:
    world.memory.create(NAMESPACES, None, {"metadata": {"name": "other"}})
    document = tfjob("x")
    document["metadata"]["namespace"] = "other"
    world.memory.create(TFJOBS, "other", document)
    leadership = Hands("default/controller-of-default")
    driver = Driver(
        world.memory,
        clock=world.clock,
        monotonic=world.clock,
        leadership=leadership,
        settings=DriverSettings(
            namespace="default", can_lead_admission=True, admissions=LeaseRef("default", "admissions")
        ),
        admission_leader=Believer(leadership),
    )
    for _ in range(3):
        driver.step()
    assert "status" not in world.memory.get(TFJOBS, "other", "x"), "it has no driver, so nothing is written"
    assert world.memory.list(NODES).items


def test_what_did_not_reach_the_job_of_another_driver_is_told_again(
    world: World, arbiters: list[LeaseAdmissionLeader]
) -> None:
    """It is not this driver's job, so that no other would try it again."""

    class Losing:
        """A cluster that cannot be reached for one write into a job."""

        def __init__(self) -> None:
            self.left = 1

        def __getattr__(self, verb: str) -> Any:
            return getattr(world.memory, verb)

        def replace(self, resource: Resource, *args: Any, **kwargs: Any) -> Any:
            if resource is TFJOBS and self.left:
                self.left -= 1
                raise Unavailable("no route")
            return world.memory.replace(resource, *args, **kwargs)

    losing: Any = Losing()
    deciding = inline(world, "a", arbiters[0], losing)
    submit(world, "b")

    def tried() -> bool:
        deciding.step([])
        return losing.left == 0

    until(tried, 60)
    deciding.step([])
    assert admitted(world) == []
    world.clock.now += 1
    deciding.step(deciding._queue.take())
    assert admitted(world) == ["b"]


def test_who_cannot_open_the_list_decides_nothing_and_drives_on(world: World) -> None:
    """Places can wait; jobs that run cannot."""

    class Refusing:
        """A cluster in which the list of intentions may not be written for a while."""

        refuses = False

        def __getattr__(self, verb: str) -> Any:
            return getattr(world.memory, verb)

        def replace(self, resource: Resource, namespace: str | None, name: str, *args: Any, **kwargs: Any) -> Any:
            if self.refuses and (namespace, name) == pending_admissions_lease():
                raise Forbidden("may not update leases there")
            return world.memory.replace(resource, namespace, name, *args, **kwargs)

    cluster: Any = Refusing()
    leadership = Hands("default/driver-of-a")
    driver = Driver(
        cluster,
        clock=world.clock,
        monotonic=world.clock,
        leadership=leadership,
        settings=DriverSettings(can_lead_admission=True),
        admission_leader=Believer(leadership),
    )
    submit(world, "a")
    driver.step()
    driver.step()
    submit(world, "b")
    cluster.refuses, leadership.epoch = True, 1
    world.run_pods()
    driver.step()
    assert world.status("a")["phase"] == "Running"
    leave(world)
    driver.step()
    assert admitted(world) == []
    assert driver._longest_wait() > 0, "it asks again, and not all the time"
    cluster.refuses = False
    driver.step()
    assert admitted(world) == []
    world.clock.now += 5
    driver.step()
    assert admitted(world) == ["b"]
