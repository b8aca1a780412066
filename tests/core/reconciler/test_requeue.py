"""A job gives up its admission because it is preempted, or because it gets no nodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import (
    EVICTED,
    pod,
    replicas,
    running,
    v1_job,
    v1alpha1_job,
    views,
    volcano_job,
    written_status,
)
from tests.core.world import World, pinned_to
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.model import names
from tf_dist.core.model.assignment import Admit, Preempt, Wait
from tf_dist.core.model.context import EmitEvent
from tf_dist.core.model.job import (
    DEFAULT_SCHEDULE_TIMEOUT,
    Action,
    Dependency,
    Job,
    JobKey,
    Rule,
    RunPolicy,
    Scheduling,
)
from tf_dist.core.model.reasons import Category, OutcomeKind, Reason
from tf_dist.core.model.status import Phase, display_phase, outcome_kind
from tf_dist.core.model.timestamps import format_time
from tf_dist.core.reconciler.gang_rules import requeue_backoff

BY = Preempt(by=JobKey("default", "urgent"), message="its priority is 1000, that of this job 0")
WAITS = Wait(reason=Reason.WAITING_FOR_CAPACITY, message="needs 2 × (cpu 4) for worker")


def started(job: Job) -> World:
    world = World(job)
    world.settle()
    for one in world.pods.values():
        world.run(one)
    world.settle()
    return world


def attempts(world: World) -> set[str]:
    return {one["metadata"]["labels"][names.ATTEMPT] for one in world.pods.values()}


def true_conditions(world: World) -> list[str]:
    return [c["type"] for c in world.status["conditions"] if c["status"] == "True"]


# -- preemption ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [v1_job(), v1alpha1_job(), volcano_job()], ids=lambda job: job.dialect.name)
def test_preempted_job_waits_again_without_charged_restart(job: Job) -> None:
    world = started(job)
    world.verdict = BY
    world.settle()
    assert world.pods == {}
    memory = world.memory
    assert (memory.phase, memory.reason, memory.admission) == (Phase.PENDING, "Preempted", None)
    assert memory.message == "gave up its admission to default/urgent: its priority is 1000, that of this job 0"
    assert (dict(memory.restarts), memory.charged_restarts) == ({"Preempted": 1}, 0)
    assert (memory.start_time, display_phase(memory)) == (None, "Waiting")
    world.verdict = Admit()
    world.settle()
    assert attempts(world) == {"2.0.0"}


def test_names_preemptor_while_job_waits() -> None:
    world = started(v1_job())
    world.verdict = BY
    told = [action for action in world.look().actions if isinstance(action, EmitEvent)]
    assert [(one.type, one.reason) for one in told] == [("Warning", "Preempted")]
    assert "default/urgent" in told[0].message
    world.settle()
    assert diagnose(world.job, world.memory, (), world.now)[0].category is Category.PREEMPTED
    world.verdict = WAITS
    world.settle()
    first, second = diagnose(world.job, world.memory, (), world.now)
    assert (first.category, first.summary) == (Category.ADMISSION, WAITS.message)
    assert second.category is Category.PREEMPTED
    assert "default/urgent" in second.summary


def test_preempted_tfjob_has_restarting_condition_until_it_runs() -> None:
    world = started(v1_job())
    assert true_conditions(world)[-1] == "Running"
    world.verdict = BY
    world.settle()
    assert true_conditions(world) == ["Created", "Restarting"]
    assert "default/urgent" in world.status["conditions"][-1]["message"]
    world.verdict = WAITS
    world.settle()
    assert true_conditions(world) == ["Created", "Restarting"]
    world.verdict = Admit()
    world.settle()
    for one in world.pods.values():
        world.run(one)
    world.settle()
    assert true_conditions(world) == ["Admitted", "Created", "Running"]


@pytest.mark.parametrize(
    ("action", "phase", "result"),
    [
        (Action.ABORT_JOB, Phase.ABORTED, OutcomeKind.PREEMPTED),
        (Action.TERMINATE_JOB, Phase.TERMINATED, OutcomeKind.PREEMPTED),
        (Action.FAIL_JOB, Phase.FAILED, OutcomeKind.PREEMPTED),
        (Action.COMPLETE_JOB, Phase.COMPLETED, OutcomeKind.SUCCEEDED),
        (Action.RESTART_POD, Phase.PENDING, None),
        (Action.RESTART_TASK, Phase.PENDING, None),
        (Action.IGNORE, Phase.PENDING, None),
    ],
)
def test_eviction_policy_applies_to_preempted_job(action: Action, phase: Phase, result: OutcomeKind | None) -> None:
    world = started(volcano_job(rules=(Rule(events=EVICTED, action=action),)))
    world.verdict = BY
    world.settle()
    memory = world.memory
    assert (memory.phase, memory.reason) == (phase, "Preempted")
    assert outcome_kind(memory) is result
    assert memory.admission is None
    assert not world.pods


def test_job_aborted_by_eviction_policy_can_be_resumed() -> None:
    world = started(volcano_job(rules=(Rule(events=EVICTED, action=Action.ABORT_JOB),)))
    world.verdict = BY
    world.settle()
    world.verdict = Admit()
    world.job = replace(world.job, annotations={names.RESUME_ATTEMPT: str(world.memory.attempts.job)})
    world.settle()
    assert attempts(world) == {"2.0.0"}


def test_most_severe_policy_of_any_task_applies() -> None:
    abort = Rule(events=EVICTED, action=Action.ABORT_JOB)
    restart = Rule(events=EVICTED, action=Action.RESTART_TASK)
    job = volcano_job(replicas("ps", 1, rules=(restart,)), replicas("worker", 2, rules=(abort,)))
    world = started(job)
    world.verdict = BY
    world.settle()
    assert world.memory.phase is Phase.ABORTED


def test_succeeded_job_is_not_preempted() -> None:
    world = started(v1_job())
    world.verdict = BY
    done = world.pod("worker-0")
    world.end(done, 0)
    world.settle()
    assert world.memory.phase is Phase.COMPLETED


def test_repeated_preemptions_charge_no_restarts() -> None:
    world = started(v1_job(policy=RunPolicy(max_restarts=0)))
    for count in (1, 2, 3):
        world.verdict = BY
        world.settle()
        assert dict(world.memory.restarts) == {"Preempted": count}
        world.verdict = Admit()
        world.settle()
        for one in world.pods.values():
            world.run(one)
        world.settle()
        assert world.memory.phase is Phase.RUNNING
    assert attempts(world) == {"4.0.0"}


# -- no nodes in time ---------------------------------------------------------------------------------------------


def unscheduled(job: Job) -> World:
    """A world in which a job is admitted, and its last worker gets no node."""
    world = World(job)
    world.schedules = False
    world.settle()
    *others, last = sorted(world.pods)
    for name in others:
        world.bind(world.pods[name])
    world.hold_back(world.pods[last])
    world.settle()
    return world


def test_unschedulable_gang_is_not_shown_as_admitted() -> None:
    world = unscheduled(v1_job())
    for name in sorted(world.pods)[:-1]:
        world.run(world.pods[name])
    world.settle()
    memory = world.memory
    assert (memory.phase, memory.reason, display_phase(memory)) == (Phase.PENDING, "Unschedulable", "Waiting")
    assert memory.message == "the gang waits for its nodes: worker-1 lacks its node (0/3 nodes are available)"
    assert "Admitted" not in true_conditions(world)
    assert diagnose(world.job, memory, (), world.now)[0].summary == memory.message
    last = world.pods[max(world.pods)]
    world.bind(last)
    world.run(last)
    world.settle()
    assert (world.memory.phase, world.memory.admission_holds) == (Phase.RUNNING, True)
    assert "Admitted" in true_conditions(world)


def test_job_does_not_succeed_with_part_of_its_gang() -> None:
    """Regression: with 3 workers and capacity for 2, the job succeeded when the first worker ended."""
    world = unscheduled(v1_job())
    for name in sorted(world.pods)[:-1]:
        world.run(world.pods[name])
    world.settle()
    world.end(world.pod("worker-0"), 0)
    world.bind(world.pod("worker-1"))
    world.settle()
    memory = world.memory
    assert (memory.phase, memory.reason, memory.admission) == (Phase.PENDING, "ScheduleTimeout", None)
    assert memory.message.startswith("worker-0 ended before worker-1 had a node")
    assert (memory.succeeded, world.pods) == (frozenset(), {})
    world.now = memory.not_before
    world.settle()
    assert {"worker-0", "worker-1", "ps-0"} <= {str(one) for one in world.memory.observed_replicas}


@pytest.mark.parametrize("last", ["starts in time", "is not needed", "was never refused"])
def test_sufficiently_complete_gang_succeeds(last: str) -> None:
    job = v1_job(replicas("PS", 1), replicas("Worker", 2, min_replicas=1), scheduling=Scheduling(min_available=2))
    world = unscheduled(job if last == "is not needed" else v1_job())
    for name in sorted(world.pods)[:-1]:
        world.run(world.pods[name])
    if last == "was never refused":
        world = World(v1_job())
        world.schedules = False
        world.settle()
        for name in sorted(world.pods)[:-1]:
            world.bind(world.pods[name])
            world.run(world.pods[name])
    world.settle()
    if last == "starts in time":
        world.bind(world.pod("worker-1"))
        world.run(world.pod("worker-1"))
    world.end(world.pod("worker-0"), 0)
    world.settle()
    assert outcome_kind(world.memory) is OutcomeKind.SUCCEEDED


def patient(seconds: float | None, recovery: float | None = None) -> Job:
    return v1_job(scheduling=Scheduling(min_available=3, timeout=seconds, recovery_timeout=recovery))


@pytest.mark.parametrize(
    ("asked", "limit"), [(None, DEFAULT_SCHEDULE_TIMEOUT), (0.0, DEFAULT_SCHEDULE_TIMEOUT), (20.0, 20.0)]
)
def test_gang_without_nodes_releases_admission_at_schedule_timeout(asked: float | None, limit: float) -> None:
    world = unscheduled(patient(asked))
    plan = world.look()
    assert plan.wake_at == pytest.approx(world.now + limit, rel=0, abs=1e-3)
    assert not plan.actions
    world.now += limit
    begun = world.now
    told = [action for action in world.look().actions if isinstance(action, EmitEvent)]
    assert [(one.type, one.reason) for one in told] == [("Warning", "ScheduleTimeout")]
    world.settle()
    memory = world.memory
    assert (memory.phase, memory.reason, memory.admission, memory.requeues) == (
        Phase.PENDING,
        "ScheduleTimeout",
        None,
        1,
    )
    assert world.pods == {}
    assert memory.message.startswith(f"worker-1 got no node (0/3 nodes are available) within {limit:g} s")
    assert format_time(memory.not_before) in memory.message
    assert 54 <= memory.not_before - begun <= 60
    assert dict(memory.restarts) == {}
    assert diagnose(world.job, memory, (), world.now)[0].category is Category.SCHEDULE_TIMEOUT


def test_requeue_backoff_applies_to_every_verdict() -> None:
    world = unscheduled(patient(20))
    world.now += 20
    plan = world.settle()
    assert plan.wake_at == world.memory.not_before
    for verdict in (Admit(), WAITS, None):
        world.verdict = verdict
        world.now = world.memory.not_before - 0.001
        assert not world.look().actions
    world.verdict = Admit()
    world.now = world.memory.not_before
    world.settle()
    assert attempts(world) == {"2.0.0"}


def test_requeue_backoff_doubles_until_gang_is_complete() -> None:
    world = unscheduled(patient(20))
    backoffs = []
    for _ in range(3):
        world.now += 20
        world.settle()
        backoffs.append(world.memory.not_before - world.now)
        world.now = world.memory.not_before
        world.settle()
    for one in world.pods.values():
        world.bind(one)
    world.settle()
    assert [round(pause / 60) for pause in backoffs] in ([1, 2, 4], [1, 2, 3])
    assert (world.memory.requeues, world.memory.not_before) == (0, 0.0)
    assert world.admission.complete == world.now


def test_complete_gang_keeps_admission_while_pod_is_replaced() -> None:
    world = started(patient(20, recovery=5000))
    world.schedules = False
    lost = world.pod("worker-1")
    world.remove(lost)
    world.settle()
    world.now += 1000
    world.settle()
    again = world.pod("worker-1")
    world.hold_back(again)
    world.now += 1000
    world.settle()
    assert world.memory.admission is not None
    assert world.memory.phase is Phase.RUNNING


def test_completed_admission_causes_no_separate_write() -> None:
    world = World(patient(20), gathers=True)
    world.schedules = False
    world.settle()
    writes = world.writes
    for one in world.pods.values():
        world.bind(one)
    world.settle()
    assert (world.writes, world.memory.admission and world.admission.complete) == (writes, None)
    assert world.remembered is not None
    assert world.remembered.admission is not None
    assert world.remembered.admission.complete == world.now
    world.now += 1000
    world.settle()
    assert world.admission.complete is not None


def test_schedule_timeout_of_later_pods_starts_with_them() -> None:
    worker = replicas("worker", 2, depends=Dependency(on=("ps",)), rules=())
    job = volcano_job(replicas("ps", 1, rules=()), worker)
    world = World(job)
    world.settle()
    world.now += 5 * DEFAULT_SCHEDULE_TIMEOUT
    world.settle()
    server = world.pod("ps-0")
    world.schedules = False
    world.run(server)
    world.settle()
    assert len(world.pods) == 3
    plan = world.look()
    assert plan.wake_at is not None
    assert world.now + DEFAULT_SCHEDULE_TIMEOUT - 1 <= plan.wake_at <= world.now + DEFAULT_SCHEDULE_TIMEOUT


def test_schedule_timeout_applies_to_pods_not_created() -> None:
    job = patient(20)
    world = World(job)
    world.step(most=2)
    assert world.pods == {}
    world.now += 20
    world.settle()
    assert world.memory.reason == "ScheduleTimeout"


def test_requeue_keeps_succeeded_replicas() -> None:
    world = unscheduled(patient(20))
    first = world.pod("ps-0")
    world.run(first)
    world.end(first, 0)
    world.settle()
    world.now += 20
    world.settle()
    assert {str(replica) for replica in world.memory.succeeded} == {"ps-0"}


def test_resume_clears_requeue_backoff() -> None:
    world = unscheduled(patient(20))
    world.now += 20
    world.settle()
    world.suspend(True)
    world.settle()
    world.suspend(False)
    world.settle()
    assert (world.memory.requeues, world.memory.not_before, len(world.pods)) == (0, 0.0, 3)


@given(st.text(max_size=10), st.integers(1, 100))
def test_requeue_backoff_is_deterministic_and_grows_to_one_hour(uid: str, count: int) -> None:
    pause = requeue_backoff(uid, count)
    assert pause == requeue_backoff(uid, count)
    assert 0.9 * min(3600, 60 * 2 ** (count - 1)) <= pause <= min(3600, 60 * 2 ** (count - 1))


def test_requeue_backoff_differs_between_gangs() -> None:
    backoffs = sorted(requeue_backoff(f"uid-{number}", 4) for number in range(50))
    assert len(set(backoffs)) == 50
    assert max(later - sooner for sooner, later in pairwise(backoffs)) < 15


def test_running_pod_has_node() -> None:
    job = v1_job()
    waiting, up = views(pod(job, "worker-0"), pod(job, "worker-1", running()))
    assert (waiting.has_node, up.has_node) == (False, True)


# -- a node that is closed ----------------------------------------------------------------------------------------


def pinned(world: World) -> dict[str, str]:
    return {name: pinned_to(one) for name, one in world.pods.items()}


def returned(job: Job, message: str = "0/3 nodes are available") -> World:
    """A world in which a worker of a complete gang is replaced, and its node refuses the new pod."""
    world = World(job)
    world.verdict = Admit(sizes={"ps": 1, "worker": 2}, placement={"ps": {"n1": 1}, "worker": {"n1": 1, "n2": 1}})
    world.settle()
    for one in world.pods.values():
        world.run(one)
    world.settle()
    lost = world.pod("worker-1")
    world.remove(lost)
    world.settle()
    again = world.pod("worker-1")
    assert pinned(world)["mnist-worker-1"] == "n2"
    world.hold_back(again, message)
    world.settle()
    return world


def test_pod_refused_by_its_node_may_go_to_any_node() -> None:
    world = returned(v1_job())
    plan = world.look()
    assert plan.wake_at is not None
    assert 29 <= plan.wake_at - world.now <= 30
    assert not plan.actions
    world.now = plan.wake_at
    told = [action for action in world.look().actions if isinstance(action, EmitEvent)]
    assert [(one.reason, "worker-1 from n2 (0/3 nodes are available)" in one.message) for one in told] == [
        ("Unpinned", True)
    ]
    world.settle()
    assert pinned(world) == {"mnist-ps-0": "n1", "mnist-worker-0": "n1", "mnist-worker-1": ""}
    assert world.admission.placement == {"ps": {"n1": 1}, "worker": {"n1": 1}}
    assert (world.memory.phase, dict(world.memory.disruptions)) == (Phase.RUNNING, {"Deleted": 1})


@pytest.mark.parametrize(
    "reason",
    [
        "1 node(s) didn't match PersistentVolume's node affinity",
        "1 node(s) had volume node affinity conflict",
        "1 node(s) had no available volume zone",
    ],
)
def test_pod_with_volume_on_another_node_is_unpinned_immediately(reason: str) -> None:
    world = returned(v1_job(), f"0/3 nodes are available: {reason}, 2 node(s) didn't match Pod's node affinity.")
    assert pinned(world)["mnist-worker-1"] == ""
    assert world.memory.refused_nodes.keys() == {"n2"}


def test_refused_node_is_available_again_after_a_while_without_any_event() -> None:
    """Otherwise, replicas that the admitted job still lacks would wait until the next change of the job."""
    world = returned(v1_job())
    world.now += 30
    world.settle()
    world.run(world.pod("worker-1"))
    world.settle()
    assert world.memory.refused_nodes.keys() == {"n2"}
    ends = world.memory.refused_nodes["n2"]
    while (next_pass := world.settle().wake_at) is not None and world.now < ends:
        world.now = next_pass
    assert (world.now, world.memory.refused_nodes) == (ends, {})


def test_only_refused_replica_is_unpinned_and_only_once() -> None:
    world = returned(patient(None, recovery=9000))
    world.now += 40
    world.settle()
    for _ in range(3):
        again = world.pod("worker-1")
        world.hold_back(again)
        world.now += 1000
        assert world.settle().wake_at is None or not world.look().actions
    assert world.memory.attempts.pods == dict.fromkeys(world.memory.attempts.pods, 2)
    other = world.pod("worker-0")
    world.remove(other)
    world.now += 1000
    world.settle()
    assert pinned(world)["mnist-worker-0"] == "n1"


def test_keeps_only_latest_refused_nodes() -> None:
    world = returned(v1_job())
    earlier = {f"m{number}": world.now + 100 + number for number in range(1, 41)}
    world.status = written_status(world.job, replace(world.memory, refused_nodes=earlier), world.now)
    world.now += 31
    world.settle()
    assert world.memory.refused_nodes.keys() == {"n2", *(f"m{number}" for number in range(10, 41))}


def refused(complete: bool, **annotations: str) -> World:
    """A world in which a node refuses a worker that is pinned to it, after or before the gang was complete."""
    job = replace(v1_job(), annotations=annotations)
    if complete:
        return returned(job)
    world = World(job)
    world.verdict = Admit(sizes={"ps": 1, "worker": 2}, placement={"ps": {"n1": 1}, "worker": {"n1": 1, "n2": 1}})
    world.schedules = False
    world.settle()
    for one in world.pods.values():
        world.hold_back(one)
    world.settle()
    return world


@pytest.mark.parametrize(
    ("complete", "required", "unpinned"),
    [(True, "true", True), (True, "false", True), (False, "true", False), (False, "false", True)],
)
def test_gang_with_required_domain_is_unpinned_only_after_completion(
    complete: bool, required: str, unpinned: bool
) -> None:
    world = refused(complete, **{names.TOPOLOGY: "zone", names.TOPOLOGY_REQUIRED: required})
    world.now += 31
    told = {action.reason for action in world.look().actions if isinstance(action, EmitEvent)}
    assert ("Unpinned" in told) is unpinned


def test_refused_nodes_are_remembered_when_admission_is_released() -> None:
    world = refused(False, **{names.TOPOLOGY: "zone", names.TOPOLOGY_REQUIRED: "true"})
    world.now += DEFAULT_SCHEDULE_TIMEOUT
    world.settle()
    assert (world.memory.reason, world.memory.admission) == ("ScheduleTimeout", None)
    assert world.memory.refused_nodes.keys() == {"n1", "n2"}
