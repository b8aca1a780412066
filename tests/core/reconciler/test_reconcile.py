"""Invariants under all events in any order, with controller crashes at any point."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.strategies import JOBS
from tests.core.world import WAIT, World
from tests.thorough import examples, thorough
from tf_dist.core.model.assignment import Admit, Preempt, Resize
from tf_dist.core.model.job import Job, JobKey
from tf_dist.core.model.status import LIVE, STOPPED, TERMINAL

PODS = st.integers(0, 3)
CODES = (0, 1, 127, 128, 137, 143)
OPS = (
    "run",
    "run_all",
    "evict",
    "lose_node",
    "hold_back",
    "delete",
    "kill",
    "remove",
    "succeed",
    "fail",
    "die",
    "oom",
    "container",
)


SIZES = st.fixed_dictionaries({"worker": st.integers(1, 4)}, optional={"ps": st.just(1), "master": st.just(1)})


def placed(sizes: dict[str, int], on: list[str]) -> dict[str, dict[str, int]]:
    """A placement of these numbers of pods on the nodes of a list, in its order."""
    return {type_: dict(Counter(on[:count])) for type_, count in sizes.items()}


def happen(world: World, op: str, which: int, code: int = 1) -> None:
    """Apply one operation of a kubelet, a node or a person to a pod, if pods exist."""
    if op == "run_all":
        for pod in list(world.pods.values()):
            world.run(pod)
        return
    if not world.pods:
        return
    pod = world.pods[sorted(world.pods)[which % len(world.pods)]]
    match op:
        case "succeed":
            world.end(pod, 0)
        case "fail":
            world.end(pod, 1)
        case "die":
            world.end(pod, 137)
        case "oom":
            world.end(pod, 137, "OOMKilled")
        case "container":
            world.restart_container(pod, code)
        case "remove":
            if "deletionTimestamp" in pod["metadata"] or pod["status"]["phase"] in ("Succeeded", "Failed"):
                world.remove(pod)
        case _:
            getattr(world, op)(pod)


def run_to_the_end(world: World) -> None:
    """From now on, every pod gets a node and runs, and trainers succeed."""
    world.suspend(False)
    for _ in range(40):
        world.verdict = Admit()
        plan = world.settle()
        if world.memory.admission is not None and world.memory.admission.placement:
            # The drawn verdicts may have assigned fewer nodes than the job has pods. Admission assigns the others.
            sizes = {
                spec.type: world.memory.admission.sizes.get(spec.type, spec.replicas)
                for spec in world.job.replica_specs
            }
            world.verdict = Resize(sizes=sizes, placement=placed(sizes, ["n1"] * 9), message="all have nodes")
            plan = world.settle()
        if world.memory.phase in TERMINAL or world.memory.phase in STOPPED or world.job_gone:
            return
        for pod in list(world.pods.values()):
            world.run(pod)
        world.settle()
        for pod in list(world.pods.values()):
            if pod["metadata"]["labels"]["tf-dist.dev/replica-type"] != "ps":
                world.end(pod, 0)
        plan = world.settle()
        if plan.wake_at is not None:
            world.now = plan.wake_at
    raise AssertionError(f"never ends: {world.memory}")


class Life(RuleBasedStateMachine):
    """Any order of events, reconciles, crashes and waits."""

    @initialize(job=JOBS, admitted=st.booleans())
    def begin(self, job: Job, admitted: bool) -> None:
        self.world = World(job)
        self.world.verdict = Admit() if admitted else WAIT
        self.settled = False

    @precondition(lambda self: not self.world.job_gone)
    @rule(most=st.one_of(st.none(), st.integers(0, 4)))
    def look(self, most: int | None) -> None:
        self.world.step(most)

    @precondition(lambda self: not self.world.job_gone)
    @rule()
    def settle(self) -> None:
        world = self.world
        plan = world.settle()
        if world.job_gone:
            return
        writes, moment = world.writes, world.now
        for _ in range(3):
            if plan.wake_at is None or world.now + 0.1 < plan.wake_at:
                world.now += 0.01
                assert not world.look().actions
        world.now = moment
        assert world.writes == writes

    @rule(op=st.sampled_from(OPS), which=PODS, code=st.sampled_from(CODES))
    def happen(self, op: str, which: int, code: int) -> None:
        happen(self.world, op, which, code)

    @precondition(lambda self: not self.world.job_gone)
    @rule(which=PODS, op=st.sampled_from(("succeed", "fail", "die", "evict", "delete")))
    def run_then(self, which: int, op: str) -> None:
        self.world.settle()
        happen(self.world, "run_all", which)
        self.world.step()
        happen(self.world, op, which)

    @rule(seconds=st.sampled_from((0.000001, 0.3, 9.7, 20.5, 61.0, 4000.0)))
    def wait(self, seconds: float) -> None:
        self.world.now = round(self.world.now + seconds, 6)

    @precondition(lambda self: not self.world.job_gone)
    @rule()
    def sleep_until_woken(self) -> None:
        plan = self.world.look()
        if plan.wake_at is not None:
            self.world.now = plan.wake_at

    @rule(wish=st.booleans())
    def suspend(self, wish: bool) -> None:
        self.world.suspend(wish)

    @rule(admitted=st.booleans())
    def admission(self, admitted: bool) -> None:
        self.world.verdict = Admit() if admitted else WAIT

    @rule(sizes=SIZES, on=st.lists(st.sampled_from(("n1", "n2")), min_size=5, max_size=5))
    def admission_with_sizes(self, sizes: dict[str, int], on: list[str]) -> None:
        self.world.verdict = Admit(sizes=sizes, placement=placed(sizes, on))

    @rule(sizes=SIZES, on=st.lists(st.sampled_from(("n1", "n2")), min_size=5, max_size=5))
    def resize(self, sizes: dict[str, int], on: list[str]) -> None:
        self.world.verdict = Resize(sizes=sizes, placement=placed(sizes, on), message="others wait")

    @rule()
    def preempt(self) -> None:
        self.world.verdict = Preempt(by=JobKey("default", "urgent"), message="")

    @rule(count=st.integers(1, 3))
    def scale_workers(self, count: int) -> None:
        self.world.scale("worker", count)

    @invariant()
    def no_doubles(self) -> None:
        if hasattr(self, "world"):
            self.world.look()

    def teardown(self) -> None:
        if hasattr(self, "world") and not self.world.job_gone:
            run_to_the_end(self.world)


Life.TestCase.settings = settings(max_examples=examples(250), stateful_step_count=30)
test_every_life_keeps_the_rules_and_ends = pytest.mark.thorough(Life.TestCase)

VERDICTS = {
    "admit": Admit(sizes={"worker": 1}),
    "grow": Resize(sizes={"worker": 3}, placement={"worker": {"n1": 2, "n2": 1}}, message="no gang waits"),
    "shrink": Resize(sizes={"worker": 1}, placement={"worker": {"n2": 1}}, message="others wait"),
    "preempt": Preempt(by=JobKey("default", "urgent"), message=""),
}

SEQUENCES = st.lists(
    st.tuples(
        st.sampled_from((*OPS, "run_all", "run_all", "run_all", "wait", "sleep", "suspend", "resume", *VERDICTS)),
        PODS,
        st.sampled_from(CODES),
    ),
    max_size=14,
)


def replay(job: Job, sequence: list[tuple[str, int, int]], most: int | None) -> list[object]:
    """The memory after each event, if every reconcile stops after ``most`` actions."""
    world, memories = World(job), []
    world.settle(most)
    for op, which, code in sequence:
        match op:
            case "wait":
                world.now = round(world.now + 9.7, 6)
            case "sleep":
                world.now = world.look().wake_at or world.now
            case "suspend" | "resume":
                world.suspend(op == "suspend")
            case _ if op in VERDICTS:
                world.verdict = VERDICTS[op]
            case _:
                happen(world, op, which, code)
        if not world.job_gone:
            world.settle(most)
        memories.append((world.memory, sorted(world.pods), sorted(world.objects)))
    return memories


@thorough(400)
@given(job=JOBS, sequence=SEQUENCES)
def test_crashes_after_every_action_lead_to_same_states(job: Job, sequence: list[tuple[str, int, int]]) -> None:
    assert replay(job, sequence, most=1) == replay(job, sequence, most=None)


@thorough(300)
@given(job=JOBS, sequence=SEQUENCES)
def test_waking_at_planned_times_enforces_every_time_limit(job: Job, sequence: list[tuple[str, int, int]]) -> None:
    world = World(job)
    replay_on(world, sequence)
    for _ in range(100):
        plan = world.settle()
        if plan.wake_at is None or world.job_gone:
            break
        world.now = plan.wake_at
    memory = world.memory
    assert job.run_policy.active_deadline is None or memory.phase not in LIVE
    assert job.run_policy.ttl is None or memory.phase not in TERMINAL or world.job_gone


def replay_on(world: World, sequence: list[tuple[str, int, int]]) -> None:
    for op, which, code in sequence:
        if op in OPS:
            happen(world, op, which, code)
            world.step()
