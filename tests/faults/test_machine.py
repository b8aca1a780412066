"""Any order of faults, deaths and hands on a cluster: what must hold holds, and once it is calm every job gets there.

``TF_DIST_FAULT_RUNS`` says how many stories are told (CI tells 2,000, ``make soak`` 50,000).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.faults.proxy import Fault, Kind
from tests.faults.puppet import Company, Puppet
from tests.faults.rules import Rules
from tests.faults.site import TEAM, Site, alive, deleting, memory_of, name, owner_uid, replica, uid
from tf_dist.cluster.api import CONFIG_MAPS, LEASES, PODS, SERVICES, TFJOBS, Object
from tf_dist.cluster.http import ApiServer
from tf_dist.cluster.http.app import App
from tf_dist.cluster.memory import MemoryCluster

RUNS = int(os.environ.get("TF_DIST_FAULT_RUNS") or 60)
STEPS = 16
# The most that the end of a story may take: true seconds of the story, and (a story that hangs) of ours, of which a
# machine that has other things to do may need very many.
_LONGEST = 3000.0
_PATIENCE = 120.0

Shape = dict[str, Any]
WRITES = frozenset({"create", "update", "patch", "delete"})
WHICH = st.integers(0, 5)
TIMES = st.integers(1, 3)
SELDOM = st.sampled_from((False, False, True))
JOBS = st.sampled_from(("a", "b"))
VERBS = st.sampled_from((WRITES, frozenset({"create"}), frozenset({"update"}), frozenset({"delete"})))
WHAT = st.sampled_from(
    tuple(
        frozenset(names)
        for names in (("pods",), ("pods",), ("tfjobs",), ("pods", "tfjobs"), ("services",), ("leases",), ("nodes",), ())
    )
)
WRITE_FAULTS = (
    *((Kind.REFUSE, code) for code in (409, 429, 500, 503)),
    *((kind, 0) for kind in (Kind.RESET, Kind.LOSE, Kind.LOSE, Kind.LATE, Kind.LATE, Kind.HANG, Kind.SLOW)),
)
READ_FAULTS = (
    *((Kind.REFUSE, code) for code in (410, 429, 500)),
    *((kind, 0) for kind in (Kind.RESET, Kind.HANG, Kind.SLOW, Kind.STALE, Kind.STALE)),
)
WATCH_FAULTS = (
    *((Kind.REFUSE, code) for code in (410, 429, 503)),
    *((kind, 0) for kind in (Kind.GONE, Kind.CUT, Kind.TWICE, Kind.SLOW, Kind.RESET, Kind.HANG)),
)
LAGGING = st.sampled_from(tuple(frozenset(kinds) for kinds in (("queues",), ("tfjobs",), ("queues", "tfjobs"))))
BLOWS = st.sampled_from(("kill", "evict", "suspend", "resume", "run", ""))
BLOWS_HARD = st.sampled_from(("kill", "evict", "suspend"))
# Edits that leave a job unreadable, each of which only adds something.
NONSENSE = st.sampled_from(
    (
        {"spec": {"runPolicy": {"schedulingPolicy": {"minAvailable": 99}}}},
        {"metadata": {"annotations": {"tf-dist.dev/max-workers": "many"}}},
        {"spec": {"successPolicy": "Nonsense"}},
    )
)
SHAPES = st.fixed_dictionaries(
    {
        "workers": st.integers(1, 3),
        "ps": st.integers(0, 1),
        "cleanPodPolicy": st.sampled_from(("Running", "All", "None")),
        "policy": st.sampled_from(("ExitCode", "ExitCode", "OnFailure", "Never")),
        "dynamic": st.booleans(),
        "per_job": st.booleans(),
    },
    optional={"backoffLimit": st.sampled_from((0, 1, 3))},
)


class Story(RuleBasedStateMachine):
    """One cluster, its drivers, and what befalls them. No rule depends on how far a thread has come."""

    server: ApiServer
    url: str

    @initialize(
        company=st.sampled_from((Company.ALONE, *Company)),
        retries=st.sampled_from((0, 2)),
        cpus=st.sampled_from((("16",), ("4",), ("8", "8"), ("4", "2"))),
        late=st.booleans(),
        prompt=st.sampled_from((True, True, False)),
        first=SHAPES,
        second=st.one_of(st.none(), SHAPES),
        rounds=st.integers(0, 4),
        weather=st.lists(st.tuples(WHICH, st.sampled_from(WRITE_FAULTS), VERBS, st.integers(0, 8)), max_size=4),
        doom=st.integers(0, 12),
    )
    def begin(
        self,
        company: Company,
        retries: int,
        cpus: tuple[str, ...],
        late: bool,
        prompt: bool,
        first: Shape,
        second: Shape | None,
        rounds: int,
        weather: list[tuple[int, Any, frozenset[str], int]],
        doom: int,
    ) -> None:
        self.site = Site(cpus)
        self.server.app = App(self.site.memory)
        self.server.app.url = self.url
        self.company, self.retries, self.prompt = company, retries, prompt
        self.rules = Rules(self.site, company)
        self.rules.late = late
        self.puppets: list[Puppet] = []
        self.alone_since = 0
        for _ in range(1 if company is Company.ALONE else 2):
            self._appear()
        while company is Company.REPLICAS and not any(puppet.mandate.valid() for puppet in self.puppets):
            # The very first holder of a Lease makes sure that there was none before.
            self.site.seconds += 2
            for puppet in self.puppets:
                puppet.beat()
        for called, shape in (("a", first), ("b", second)):
            if shape is not None:
                self.site.submit(called, **shape)
        for which, fault, verbs, skip in weather:
            self._inject(which, fault, verbs, skip=skip)
        if doom:
            self._puppet(doom).doom(doom)
        for _ in range(rounds):
            self._live(3.0)

    def _inject(self, which: int, fault: tuple[Kind, int], verbs: frozenset[str], **fields: Any) -> None:
        kind, code = fault
        if kind is Kind.LATE and not self.rules.late:
            kind = Kind.LOSE
        self._puppet(which).proxy.inject(Fault(kind, verbs, code=code, **fields))

    def _appear(self) -> None:
        number = len(self.puppets) + 1
        told = self.rules.told
        self.puppets.append(Puppet(self.site, self.server, self.company, number, retries=self.retries, told=told))

    def _living(self) -> list[Puppet]:
        return [puppet for puppet in self.puppets if not puppet.dead]

    def _puppet(self, which: int) -> Puppet:
        return self.puppets[-1 - which % min(2, len(self.puppets))]

    def _live(self, seconds: float = 1.0) -> None:
        """Drivers look once, and kubelets do what they are told. A cluster does not stay without a driver for long."""
        self.site.seconds += seconds
        for puppet in self._living():
            puppet.work()
            _wait_a_moment(puppet)
        if self.prompt:
            self.site.bury()
            self.site.run_all()
        self.alone_since = 0 if self._living() else self.alone_since + 1
        if self.alone_since > 1:
            self._appear()

    # Drivers

    @rule(rounds=st.integers(1, 5), seconds=st.sampled_from((0.5, 1.0, 3.0)))
    def life_goes_on(self, rounds: int, seconds: float) -> None:
        for _ in range(rounds):
            self._live(seconds)

    @rule(which=WHICH)
    def one_works_alone(self, which: int) -> None:
        self._puppet(which).work()

    @rule(
        which=WHICH, writes=st.integers(1, 6), blow=st.sampled_from(("kill", "evict", "suspend", "resume", "run", ""))
    )
    def doom(self, which: int, writes: int, blow: str) -> None:
        self._puppet(which).doom(writes)
        self._strike(which, blow)
        self._live()

    @rule(which=WHICH, writes=st.integers(1, 4), seconds=st.sampled_from((3.0, 6.0)), blow=BLOWS_HARD)
    def a_driver_sleeps(self, which: int, writes: int, seconds: float, blow: str) -> None:
        """In the middle of a pass it is stopped for so long that others take over, and then it goes on."""
        awake = [puppet for puppet in self._living() if puppet.mandate.valid()]
        if not awake:
            return
        sleeper = awake[which % len(awake)]

        def meanwhile() -> None:
            for _ in range(7):
                self.site.seconds += seconds
                for puppet in self._living():
                    if puppet is not sleeper:
                        puppet.work()
                        _wait_a_moment(puppet)
                self.site.bury()

        sleeper.stop_for_a_while(writes, meanwhile)
        self._strike(which, blow)
        self._live()
        sleeper.wire.nap = None

    @rule(which=WHICH, clean=st.booleans())
    def a_driver_ends(self, which: int, clean: bool) -> None:
        puppet = self._puppet(which)
        puppet.leave() if clean else puppet.die()

    @rule()
    def a_new_driver(self) -> None:
        if len(self._living()) < (1 if self.company is Company.ALONE else 2):
            self._appear()

    # Time

    @rule(seconds=st.sampled_from((1.0, 5.0, 14.0, 31.0)))
    def nobody_does_anything(self, seconds: float) -> None:
        self.site.seconds += seconds

    @rule(which=WHICH, seconds=st.sampled_from((-400.0, -7.0, 7.0, 400.0)))
    def clock_jumps(self, which: int, seconds: float) -> None:
        self._puppet(which).skew += seconds
        self._live()

    @rule(seconds=st.sampled_from((-3600.0, 3600.0)))
    def the_wall_clock_is_stepped(self, seconds: float) -> None:
        """On every machine at once, as when a time server comes back; it stays so."""
        for puppet in self.puppets:
            puppet.skew += seconds
        self._live()

    # Nodes

    @rule(which=WHICH, stay=SELDOM)
    def a_node_is_drained(self, which: int, stay: bool) -> None:
        node = self._node(which)
        self.site.drain(node)
        self._live()
        self._live()
        if not stay:
            self.site.restore_node(node)
            self._live()

    @rule(which=WHICH, rounds=st.integers(1, 3), seconds=st.sampled_from((3.0, 120.0)), good=SELDOM)
    def a_node_is_lost(self, which: int, rounds: int, seconds: float, good: bool) -> None:
        """Its kubelet is silent; then it comes back, or (``good``) it is removed and never does."""
        node = self._node(which)
        self.site.lose_node(node)
        for _ in range(rounds):
            self._live(seconds)
        if good and len(self.site.nodes()) > 1:
            self.site.remove_node(node, for_good=True)
        else:
            self.site.restore_node(node)
        self._live()

    def _node(self, which: int) -> str:
        nodes = self.site.nodes()
        return nodes[which % len(nodes)]

    # Faults

    @rule(
        which=WHICH,
        fault=st.sampled_from(WRITE_FAULTS),
        verbs=VERBS,
        skip=st.integers(0, 3),
        times=TIMES,
        blow=BLOWS,
    )
    def a_write_breaks(self, which: int, fault: Any, verbs: Any, skip: int, times: int, blow: str) -> None:
        self._inject(which, fault, verbs, skip=skip, times=times)
        self._strike(which, blow)
        self._live()
        self._live()

    def _strike(self, which: int, blow: str) -> None:
        """Something that makes a driver write."""
        pod = self.site.pod(which)
        match blow:
            case "kill" if pod:
                self.site.run(pod)
                self.site.end(self.site.again(pod), 137)
            case "evict" if pod:
                self.site.evict(pod)
            case "suspend" | "resume":
                for called in ("a", "b"):
                    self.site.patch_job(called, {"runPolicy": {"suspend": blow == "suspend"}})
            case "run":
                self.site.bury()
                self.site.run_all()

    @rule(which=WHICH, fault=st.sampled_from(READ_FAULTS), times=TIMES, resource=WHAT)
    def a_list_breaks(self, which: int, fault: Any, times: int, resource: Any) -> None:
        kind, code = fault
        self._puppet(which).proxy.inject(
            Fault(Kind.REFUSE, frozenset({"watch"}), resource, code=410),
            Fault(kind, frozenset({"list", "get"}), resource, times=times, code=code),
        )
        self._puppet(which).proxy.disconnect(resource)
        self._live()

    @rule(
        which=WHICH,
        fault=st.sampled_from(WATCH_FAULTS),
        resource=WHAT,
        times=TIMES,
        after=st.integers(0, 3),
    )
    def a_watch_breaks(self, which: int, fault: Any, resource: frozenset[str], times: int, after: int) -> None:
        kind, code = fault
        proxy = self._puppet(which).proxy
        proxy.inject(Fault(kind, frozenset({"watch"}), resource, times=times, code=code, after=after))
        proxy.disconnect(resource)
        self._live()

    @rule(which=WHICH)
    def what_is_late_arrives(self, which: int) -> None:
        self._puppet(which).proxy.deliver()
        self._live()

    @rule(which=WHICH, stay=SELDOM, blow=BLOWS)
    def events_are_delayed(self, which: int, stay: bool, blow: str) -> None:
        proxy = self._puppet(which).proxy
        proxy.hold_events()
        self._strike(which, blow)
        self._live()
        self._live()
        if not stay:
            proxy.release_events()

    @rule()
    def history_is_forgotten(self) -> None:
        for puppet in self.puppets:
            puppet.proxy.disconnect()
        self.site.memory.compact()
        self._live()

    @rule(
        which=WHICH,
        verbs=st.sampled_from((frozenset(), frozenset({"list", "watch"}), WRITES)),
        resource=WHAT,
        stay=SELDOM,
        blow=BLOWS,
    )
    def rights_are_withdrawn(
        self, which: int, verbs: frozenset[str], resource: frozenset[str], stay: bool, blow: str
    ) -> None:
        proxy = self._puppet(which).proxy
        withdrawn = Fault(Kind.REFUSE, verbs, resource, times=None, code=403)
        proxy.inject(withdrawn)
        proxy.disconnect(resource)
        self._strike(which, blow)
        self._live()
        self._live()
        if not stay:
            proxy.withdraw(withdrawn)
            self._live()

    @rule(which=WHICH, kinds=LAGGING, stay=SELDOM)
    def discovery_lags(self, which: int, kinds: frozenset[str], stay: bool) -> None:
        """To a driver that has just started, or has just reconnected, some kinds are not served yet."""
        proxy = self._puppet(which).proxy
        absent = Fault(Kind.REFUSE, frozenset({"list", "watch"}), kinds, times=None, code=404)
        proxy.inject(absent)
        proxy.disconnect(kinds)
        self.a_new_driver()
        self._live()
        self._live()
        if not stay:
            proxy.withdraw(absent)
            self._live()

    @rule(shape=SHAPES)
    def definition_is_removed(self, shape: Shape) -> None:
        """With it go all its objects, and nobody can ask for the kind any more; then it comes back."""
        for job in self.site.jobs():
            self.site.delete_job(name(job))
        absent = Fault(Kind.REFUSE, frozenset(), frozenset({"tfjobs"}), times=None, code=404)
        for puppet in self.puppets:
            puppet.proxy.inject(absent)
            puppet.proxy.disconnect(frozenset({"tfjobs"}))
        self._live()
        self._live()
        for puppet in self.puppets:
            puppet.proxy.withdraw(absent)
        self.site.submit("a", **shape)
        self._live()

    @rule()
    def it_is_calm(self) -> None:
        for puppet in self.puppets:
            puppet.proxy.calm()
        self._live()

    # Hands

    @rule(called=JOBS, shape=SHAPES)
    def submit(self, called: str, shape: Shape) -> None:
        self.site.submit(called, **shape)
        self._live()

    @rule(which=WHICH, code=st.sampled_from((0, 1, 137, 137)), life=st.booleans())
    def a_pod_ends(self, which: int, code: int, life: bool) -> None:
        if pod := self.site.pod(which):
            self.site.run(pod)
            self.site.end(self.site.again(pod), code)
        if life:
            self._live()

    @rule(which=WHICH, gently=st.booleans(), life=st.booleans())
    def a_pod_is_taken(self, which: int, gently: bool, life: bool) -> None:
        if pod := self.site.pod(which):
            self.site.delete_pod(pod) if gently else self.site.evict(pod)
        if life:
            self._live()

    @rule()
    def kubelets_work(self) -> None:
        self.site.bury()
        self.site.run_all()

    @rule(called=JOBS, wish=st.booleans())
    def suspend(self, called: str, wish: bool) -> None:
        self.site.patch_job(called, {"runPolicy": {"suspend": wish}})
        self._live()

    @rule(called=JOBS, workers=st.integers(1, 3))
    def scale(self, called: str, workers: int) -> None:
        self.site.scale(called, workers)
        self._live()

    @rule(called=JOBS, how=NONSENSE, rounds=st.integers(0, 3), stay=SELDOM)
    def edited_into_nonsense(self, called: str, how: Shape, rounds: int, stay: bool) -> None:
        self.site.spoil(called, how)
        for _ in range(rounds):
            self._live()
        if not stay:
            self.site.mend(called)
            self._live()

    @rule(how=NONSENSE)
    def submitted_unreadable(self, how: Shape) -> None:
        self.site.submit_unreadable("c", how)
        self._live()

    @rule(count=st.integers(0, 3), stay=SELDOM)
    def quota_closes(self, count: int, stay: bool) -> None:
        self.site.limit_pods(count)
        self._live()
        self._live()
        if not stay:
            self.site.limit_pods(None)
            self._live()

    @rule(called=JOBS)
    def delete(self, called: str) -> None:
        self.site.delete_job(called)
        self._live()

    @rule(shape=SHAPES, rounds=st.integers(0, 2))
    def namespace_is_deleted(self, shape: Shape, rounds: int) -> None:
        """While its pods stop it is there and takes nothing new; then somebody makes it again."""
        self.site.delete_namespace()
        for _ in range(rounds):
            self._live()
        self.site.bury()
        self.site.make_namespace()
        self.site.submit("a", **shape)
        self._live()

    # What must hold

    @invariant()
    def all_rules_hold(self) -> None:
        if hasattr(self, "rules"):
            self.rules.check(self.puppets)

    def teardown(self) -> None:
        if not hasattr(self, "site"):
            return
        try:
            self._calm_down()
            self._converge(self._at_rest)
            for job in self.site.jobs():
                self.site.delete_job(name(job))
            self._converge(self._nothing_left)
            self._leave()
        finally:
            for puppet in self.puppets:
                puppet.close()
            self.site.memory.close()
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("reflect", "proxy"))]

    def _calm_down(self) -> None:
        for puppet in self.puppets:
            puppet.proxy.calm()
            puppet.proxy.deliver()
            puppet.wire.after = puppet.wire.nap = None
            puppet.skew = 0.0
        for node in self.site.nodes():
            self.site.restore_node(node)
        for called in ("a", "b"):
            self.site.mend(called)
        self.site.limit_pods(None)
        self.site.bury()
        self.site.make_namespace()
        self.a_new_driver()

    def _converge(self, done: Any) -> None:
        """Time goes on, kubelets do their work, until it is done."""
        end, give_up = self.site.seconds + _LONGEST, time.monotonic() + _PATIENCE
        pace = 20.0 if self.company is Company.ALONE else 3.0
        while not done():
            late = self.site.seconds > end or time.monotonic() > give_up
            assert not late, f"never comes to rest: {self._described()}"
            busy = sum(puppet.work() for puppet in self._living())
            self.site.bury()
            self.site.run_all()
            self.rules.check(self.puppets)
            for puppet in self._living():
                _wait_a_moment(puppet, 0.2)
            if not busy:
                self.site.seconds += pace

    def _at_rest(self) -> bool:
        """Every job is over, stopped by its user, waits for room, or runs with all its pods."""
        return all(self._job_at_rest(job) for job in self.site.jobs())

    def _job_at_rest(self, job: Object) -> bool:
        memory, spec = memory_of(job), job["spec"]
        if name(job) in self.site.spoiled:
            return self._is_refused(job)
        suspended = spec["runPolicy"].get("suspend", False)
        living = [pod for pod in alive(self.site.pods()) if owner_uid(pod) == uid(job)]
        match memory.get("phase"):
            case "Completed" | "Failed":
                return not living or spec["runPolicy"]["cleanPodPolicy"] == "None"
            case "Aborted":
                return suspended and not living
            case "Running":
                kinds = spec["tfReplicaSpecs"].items()
                wanted = {f"{kind.lower()}-{index}" for kind, one in kinds for index in range(one["replicas"])}
                there = {replica(pod) for pod in self.site.pods() if owner_uid(pod) == uid(job) and not deleting(pod)}
                # A replica that is done stays done, even when its pod was taken away.
                missing = wanted - there - self.site.truth[uid(job)].succeeded
                return not suspended and there <= wanted and (not missing or self._lacks_room(job, 1))
            case "Pending":
                waits = memory.get("reason", "").startswith(("Waiting", "NeverFits"))
                size = sum(one["replicas"] for one in spec["tfReplicaSpecs"].values())
                return not suspended and not living and waits and self._lacks_room(job, size)
        return False

    def _lacks_room(self, job: Object, pods: int) -> bool:
        """Whether there is no room for so many pods of a job, or another job that waits has a claim on it."""
        others = (memory_of(one) for one in self.site.jobs() if uid(one) != uid(job))
        return pods > self.site.free() or any(
            one.get("phase") == "Pending" and one.get("reason", "").startswith("Waiting") for one in others
        )

    def _is_refused(self, job: Object) -> bool:
        """A job that never was readable waits for its user, says so, and has no pods."""
        waits = memory_of(job).get("phase") == "Pending" and memory_of(job).get("why") == "InvalidSpec"
        return waits and not any(owner_uid(pod) == uid(job) for pod in self.site.pods())

    def _nothing_left(self) -> bool:
        kinds = (PODS, SERVICES, CONFIG_MAPS, TFJOBS)
        return not any(self.site.memory.list(kind, TEAM).items for kind in kinds)

    def _leave(self) -> None:
        """Who ends in order leaves no Lease of its own behind; one that others had to break is swept up later."""
        held = [puppet.tenure for puppet in self._living() if puppet.tenure and puppet.tenure.valid()]
        for puppet in self._living():
            puppet.leave()
        left = {name(lease) for lease in self.site.memory.list(LEASES, "default").items}
        assert self.company is not Company.PEERS or not left & {tenure.ref.name for tenure in held}

    def _described(self) -> str:
        jobs = [(name(job), memory_of(job), job["spec"]["runPolicy"]) for job in self.site.jobs()]
        pods = [(name(pod), (pod.get("status") or {}).get("phase"), deleting(pod)) for pod in self.site.pods()]
        drivers = [(p.number, p.mandate.valid(), p.mandate.stale(), p.driver.caches.problems()) for p in self._living()]
        return "\n".join([f"{jobs} {pods} {drivers}", *self.site.log])


def _wait_a_moment(puppet: Puppet, longest: float = 0.003) -> None:
    """Let its reflectors come to see what there is, if they can."""
    end = time.monotonic() + longest
    pause = threading.Event()
    while puppet.driver.caches.followed and not puppet.sees_all() and time.monotonic() < end:
        pause.wait(0.0005)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    # Everything that happens here is worth a warning; there would be a hundred thousand.
    logging.disable(logging.CRITICAL)
    with MemoryCluster() as memory, ApiServer(memory) as server:
        yield server
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(600 + 3 * RUNS)
def test_whatever_happens_every_job_keeps_the_rules_and_gets_there(server: ApiServer) -> None:
    class Told(Story):
        url = server.app.url

    Told.server = server
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Told,
        settings=settings(
            max_examples=RUNS,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=RUNS <= 2000,
            # Threads make a story differ a little each time, so the search for a shorter one takes its time: if wished.
            phases=(Phase.generate, Phase.shrink) if os.environ.get("TF_DIST_FAULT_SHRINK") else (Phase.generate,),
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
