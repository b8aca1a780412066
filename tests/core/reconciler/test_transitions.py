"""The rules by which jobs live and end, told as stories on the small cluster of ``world``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import (
    EXIT_CODE,
    FAILED,
    NEVER,
    ON_FAILURE,
    START,
    observed,
    replicas,
    v1_job,
    v1alpha1_job,
    volcano_job,
)
from tests.core.world import WAIT, World
from tf_dist.core.api.assignment import Admit
from tf_dist.core.api.context import Create, Delete, DeleteJob, WriteStatus
from tf_dist.core.api.job import (
    Action,
    Backoff,
    CleanPodPolicy,
    CompletionByCounts,
    Dependency,
    Event,
    Job,
    Rule,
    RunPolicy,
    SuccessRule,
)
from tf_dist.core.api.pods import DISRUPTIONS_EXCEEDED
from tf_dist.core.api.status import Phase, Status
from tf_dist.core.reconciler.reconcile import reconcile
from tf_dist.core.reconciler.sync import effective_clean_pod_policy

KEEP = CleanPodPolicy.NONE


def started(job: Job) -> World:
    """A world in which every pod of the job runs."""
    world = World(job)
    world.settle()
    for pod in world.pods.values():
        world.run(pod)
    world.settle()
    return world


def end(world: World, replica: str, code: int = 0, reason: str = "") -> None:
    pod = world.pod(replica)
    assert pod is not None
    world.end(pod, code, reason)
    world.settle()


def again(world: World) -> None:
    """Let pauses pass and new pods run."""
    world.now += 1000
    world.settle()
    for pod in world.pods.values():
        world.run(pod)
    world.settle()


def lose(world: World, replica: str) -> None:
    pod = world.pod(replica)
    assert pod is not None
    world.remove(pod)
    world.settle()


def ended(world: World) -> tuple[Phase, str]:
    return world.memory.phase, world.memory.reason


# -- start and success --------------------------------------------------------------------------------------------


def test_no_pod_and_no_service_before_the_gang_is_admitted() -> None:
    world = World(v1_job())
    world.verdict = WAIT
    world.settle()
    assert (world.pods, world.objects) == ({}, {})
    assert (world.memory.phase, world.memory.reason, world.memory.message) == (Phase.PENDING, WAIT.reason, WAIT.message)
    world.verdict = Admit()
    world.settle()
    assert len(world.pods) == len(world.objects) == 3


def test_the_status_is_written_before_everything_that_depends_on_it() -> None:
    plan = reconcile(v1_job(), observed(v1_job()))
    kinds = [type(action) for action in plan.actions]
    assert kinds[0] is WriteStatus
    assert kinds == [WriteStatus] + [Create] * 6
    bodies = [action.body["kind"] for action in plan.actions if isinstance(action, Create)]
    assert bodies == ["Service"] * 3 + ["Pod"] * 3


def test_worker_0_ends_the_job_and_what_still_runs_is_stopped() -> None:
    world = started(v1_job())
    assert world.memory.phase is Phase.RUNNING
    end(world, "worker-0")
    assert ended(world) == (Phase.COMPLETED, "JobSucceeded")
    assert set(world.pods) == {"mnist-worker-0"}
    assert set(world.objects) == {("Service", "mnist-worker-0")}


def test_with_all_workers_to_succeed_one_is_not_enough() -> None:
    world = started(v1_job(success=(SuccessRule(type="worker"),)))
    end(world, "worker-0")
    assert world.memory.phase is Phase.RUNNING
    end(world, "worker-1")
    assert ended(world) == (Phase.COMPLETED, "JobSucceeded")


def test_a_chief_alone_decides_and_a_worker_that_is_done_does_not() -> None:
    world = started(v1_job(replicas("Chief", 1), replicas("Worker", 1)))
    end(world, "worker-0")
    assert world.memory.phase is Phase.RUNNING
    end(world, "chief-0")
    assert world.memory.phase is Phase.COMPLETED


def test_a_chief_that_is_done_wins_over_a_worker_that_fails_at_the_same_moment() -> None:
    world = started(v1_job(replicas("Chief", 1), replicas("Worker", 1)))
    world.end(world.pods["mnist-worker-0"], 1)
    end(world, "chief-0")
    types = {c["type"]: c["status"] for c in world.status["conditions"]}
    assert types["Succeeded"] == "True"
    assert "Failed" not in types


def test_a_failed_worker_fails_a_v1_job_and_the_status_says_who_and_why() -> None:
    world = started(v1_job())
    end(world, "worker-1", 1)
    memory = world.memory
    assert ended(world) == (Phase.FAILED, "PodFailed")
    assert memory.message == "worker-1 exited with code 1"
    assert memory.failure is not None
    assert (memory.failure.replica, memory.failure.code) == ("worker-1", 1)
    assert memory.counts["worker"].failed == 1


def test_the_final_counts_do_not_take_pods_that_were_told_to_stop_for_failures() -> None:
    world = started(v1_job())
    world.end(world.pods["mnist-worker-0"], 0)
    world.step()
    world.kill(world.pods["mnist-ps-0"])
    world.settle()
    counts = world.memory.counts
    assert (counts["ps"].failed, counts["worker"].failed, counts["worker"].succeeded) == (0, 0, 1)


def test_failures_stay_in_the_final_counts_when_their_pods_are_gone() -> None:
    world = started(v1_job(policy=RunPolicy(clean_pods=CleanPodPolicy.ALL)))
    end(world, "worker-1", 1)
    assert not world.pods
    assert world.memory.counts["worker"].failed == 1


def test_a_finished_pod_that_is_collected_is_not_run_again() -> None:
    world = started(v1_job(success=(SuccessRule(type="worker"),)))
    end(world, "worker-0")
    lose(world, "worker-0")
    assert world.pod("worker-0") is None
    assert world.memory.counts["worker"].succeeded == 1
    end(world, "worker-1")
    assert world.memory.phase is Phase.COMPLETED


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (CleanPodPolicy.ALL, set()),
        (CleanPodPolicy.RUNNING, {"mnist-worker-0"}),
        (KEEP, {"mnist-worker-0", "mnist-worker-1", "mnist-ps-0"}),
    ],
)
def test_what_is_left_of_a_finished_job_is_its_clean_up_policys_choice(policy: CleanPodPolicy, left: set[str]) -> None:
    world = started(v1_job(policy=RunPolicy(clean_pods=policy)))
    end(world, "worker-0")
    assert set(world.pods) == left
    assert {name for _, name in world.objects} == left


# -- restarts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("exit", "BackoffLimitExceeded"),
        ("evict", "MaxDisruptionsExceeded"),
        ("delete", "MaxDisruptionsExceeded"),
        ("node", "MaxDisruptionsExceeded"),
    ],
)
def test_failures_and_disruptions_have_a_bound_each(limit: int, how: str, reason: str) -> None:
    """n allow n; what was spent of one is not missing in the other."""
    bounds = {"max_restarts": 0, "max_disruptions": 0} | {"max_restarts" if how == "exit" else "max_disruptions": limit}
    policy = RunPolicy(clean_pods=CleanPodPolicy.RUNNING, **bounds)
    world = started(v1_job(replicas("Worker", 2, rules=EXIT_CODE), policy=policy))
    for restart in range(limit + 1):
        pod = world.pods["mnist-worker-1"]
        {
            "exit": lambda pod: world.end(pod, 137),
            "evict": world.evict,
            "delete": world.remove,
            "node": world.lose_node,
        }[how](pod)
        world.settle()
        if restart < limit:
            assert world.memory.total_restarts + world.memory.total_disruptions == restart + 1
            again(world)
            assert world.memory.phase is Phase.RUNNING
    assert ended(world) == (Phase.FAILED, reason)
    spent = (world.memory.total_restarts, world.memory.total_disruptions)
    assert spent == ((limit, 0) if how == "exit" else (0, limit))


def test_restarts_by_the_kubelet_count_against_the_budget() -> None:
    job = v1_job(replicas("Worker", 1, rules=ON_FAILURE), policy=RunPolicy(max_restarts=2))
    world = started(job)
    for _ in range(2):
        world.restart_container(world.pods["mnist-worker-0"], 1)
        world.settle()
    assert world.memory.phase is Phase.RUNNING
    world.restart_container(world.pods["mnist-worker-0"], 1)
    world.settle()
    assert ended(world) == (Phase.FAILED, "BackoffLimitExceeded")


def test_restarts_by_the_kubelet_are_not_forgotten_with_their_pod() -> None:
    job = v1_job(replicas("Worker", 1, rules=ON_FAILURE), policy=RunPolicy(max_restarts=2))
    world = started(job)
    world.restart_container(world.pods["mnist-worker-0"], 1)
    world.settle()
    world.suspend(True)
    world.settle()
    world.suspend(False)
    again(world)
    assert world.memory.container_restarts == 1
    world.restart_container(world.pods["mnist-worker-0"], 1)
    world.settle()
    assert world.memory.phase is Phase.RUNNING
    world.restart_container(world.pods["mnist-worker-0"], 1)
    world.settle()
    assert world.memory.phase is Phase.FAILED


def test_a_job_that_has_ended_still_says_how_often_the_kubelet_restarted_its_pods() -> None:
    world = started(v1_job(replicas("PS", 1, rules=ON_FAILURE), replicas("Worker", 1)))
    world.restart_container(world.pods["mnist-ps-0"], 137)
    world.settle()
    world.end(world.pods["mnist-worker-0"], 0)
    world.settle()
    assert "mnist-ps-0" not in world.pods
    assert world.memory.container_restarts == 1


def test_the_first_restart_is_at_once_and_the_next_ones_wait_longer_and_longer() -> None:
    world = started(v1_job(replicas("Worker", 1, rules=ON_FAILURE)))
    waits = []
    for _ in range(7):
        world.pods["mnist-worker-0"]["status"] = {"phase": "Failed"}
        plan = world.settle()
        waits.append(0.0 if plan.wake_at is None else plan.wake_at - world.now)
        world.now = plan.wake_at or world.now
        world.settle()
    assert waits == pytest.approx([0, 10, 20, 40, 80, 160, 300])


def test_a_replica_that_ran_long_enough_starts_counting_afresh_even_if_its_pod_is_gone() -> None:
    world = started(v1_job(replicas("Worker", 1, rules=ON_FAILURE)))
    lose(world, "worker-0")
    again(world)
    world.now += 700
    lose(world, "worker-0")
    assert world.memory.backoffs["worker-0"].count == 1


def test_a_new_pod_waits_until_the_old_one_is_gone() -> None:
    world = started(v1_job(replicas("Worker", 2, rules=ON_FAILURE)))
    world.lose_node(world.pods["mnist-worker-1"])
    world.step()
    world.step()
    assert "deletionTimestamp" in world.pods["mnist-worker-1"]["metadata"]
    assert not world.step()
    world.remove(world.pods["mnist-worker-1"])
    world.settle()
    assert world.pods["mnist-worker-1"]["metadata"]["labels"]["tf-dist.dev/attempt"] == "1.0.1"


def test_no_replica_of_a_restarted_task_comes_back_before_all_of_its_old_ones_are_gone() -> None:
    rule = Rule(events=FAILED, action=Action.RESTART_TASK)
    world = started(volcano_job(replicas("ps", 1, rules=()), replicas("worker", 2, rules=(rule,))))
    world.end(world.pods["tf-dist-mnist-worker-1"], 1)
    world.step()
    assert world.pod("worker-1") is None
    created = [action for action in world.look().actions if isinstance(action, Create)]
    assert not created, "worker-0 of the old attempt is still stopping"
    world.settle()
    assert world.pod("worker-1") is not None


def test_two_things_that_happen_to_one_replica_cost_one_restart() -> None:
    rule = Rule(events=frozenset({Event.POD_PENDING, Event.UNKNOWN}), action=Action.RESTART_POD, timeout=5)
    world = World(volcano_job(replicas("worker", 2, rules=(rule,))))
    world.settle()
    world.run(world.pods["tf-dist-mnist-worker-0"])
    world.hold_back(world.pods["tf-dist-mnist-worker-1"])
    world.now += 10
    world.step()
    assert world.memory.total_restarts == 1


def test_restart_job_runs_everything_anew_what_was_done_included() -> None:
    evicted = Rule(events=frozenset({Event.POD_EVICTED}), action=Action.RESTART_JOB)
    world = started(volcano_job(rules=(evicted,)))
    end(world, "worker-0")
    lose(world, "ps-0")
    attempts = {pod["metadata"]["labels"]["tf-dist.dev/attempt"] for pod in world.pods.values()}
    assert (len(world.pods), attempts) == (3, {"2.0.0"})
    assert world.memory.succeeded == frozenset()


def test_restart_task_leaves_the_other_tasks_alone() -> None:
    rule = Rule(events=FAILED, action=Action.RESTART_TASK)
    world = started(volcano_job(replicas("ps", 1, rules=()), replicas("worker", 2, rules=(rule,))))
    end(world, "worker-1", 1)
    attempts = {name: pod["metadata"]["labels"]["tf-dist.dev/attempt"] for name, pod in world.pods.items()}
    assert attempts == {
        "tf-dist-mnist-ps-0": "1.0.0",
        "tf-dist-mnist-worker-0": "1.1.0",
        "tf-dist-mnist-worker-1": "1.1.0",
    }


@pytest.mark.parametrize("action", [Action.RESTART_POD, Action.RESTART_TASK, Action.RESTART_JOB])
@pytest.mark.parametrize("event", list(Event))
def test_every_restart_can_answer_every_event_within_the_budget(event: Event, action: Action) -> None:
    rule = Rule(events=frozenset({event}), action=action, timeout=5 if event is Event.POD_PENDING else 0)
    job = volcano_job(replicas("ps", 1, rules=()), replicas("worker", 2, rules=(rule,), container_restarts=1))
    world = started(job)
    for _ in range(5):
        for pod in [pod for pod in world.pods.values() if "worker" in pod["metadata"]["name"]]:
            {
                Event.POD_FAILED: lambda pod: world.end(pod, 1),
                Event.POD_EVICTED: world.evict,
                Event.POD_PENDING: lambda pod: None,
                Event.NODE_LOST: world.lose_node,
                Event.TASK_COMPLETED: lambda pod: world.end(pod, 0),
                Event.TASK_FAILED: lambda pod: world.restart_container(pod, 1),
                Event.UNKNOWN: world.hold_back,
            }[event](pod)
        world.settle()
        again(world)
    assert sum(world.memory.restarts.values()) <= 2


def test_task_failed_needs_so_many_restarts_by_the_kubelet_over_all_replicas() -> None:
    rule = Rule(events=frozenset({Event.TASK_FAILED}), action=Action.TERMINATE_JOB)
    world = started(volcano_job(replicas("worker", 2, rules=(rule,), container_restarts=3)))
    for name in ("tf-dist-mnist-worker-0", "tf-dist-mnist-worker-1"):
        world.restart_container(world.pods[name], 1)
    world.settle()
    assert world.memory.phase is Phase.RUNNING
    world.restart_container(world.pods["tf-dist-mnist-worker-1"], 1)
    world.settle()
    assert ended(world) == (Phase.TERMINATED, "TaskFailed")


def test_an_evicted_pod_without_a_policy_comes_back_for_nothing() -> None:
    world = started(volcano_job(rules=(Rule(events=frozenset(), action=Action.ABORT_JOB),)))
    for _ in range(4):
        world.evict(world.pods["tf-dist-mnist-worker-1"])
        world.settle()
        again(world)
    assert world.memory.phase is Phase.RUNNING
    assert world.memory.total_restarts == 0


# -- limits of time -----------------------------------------------------------------------------------------------


def test_a_deadline_fires_on_time_and_counts_from_admission() -> None:
    world = World(v1_job(policy=RunPolicy(active_deadline=100)))
    world.verdict = WAIT
    world.settle()
    world.now += 5000
    assert world.settle().wake_at is None
    world.verdict = Admit()
    plan = world.settle()
    assert plan.wake_at == pytest.approx(world.now + 100)
    world.now = plan.wake_at - 0.001
    assert not world.look().actions
    world.now = plan.wake_at
    world.settle()
    assert ended(world) == (Phase.FAILED, "DeadlineExceeded")
    assert not world.pods, "what the limit was set for has to stop, whatever the clean-up policy"


@given(st.floats(1e9, 4e9), st.floats(0, 1e6))
def test_at_the_moment_a_pass_asks_to_be_woken_it_acts(now: float, limit: float) -> None:
    world = World(v1_job(policy=RunPolicy(active_deadline=limit, ttl=limit)))
    world.now = round(now, 6)
    while (plan := world.settle()).wake_at is not None:
        world.now = plan.wake_at
        assert world.look().actions
    assert world.job_gone


def test_a_finished_job_is_deleted_when_its_time_to_live_is_over() -> None:
    world = started(v1_job(policy=RunPolicy(ttl=60)))
    end(world, "worker-0")
    world.now += 59.999999
    assert not world.look().actions
    world.now += 0.000001
    assert world.look().actions == (DeleteJob(),)


def test_a_job_whose_last_pod_outlives_its_time_to_live_is_deleted_at_once() -> None:
    world = started(v1_job(policy=RunPolicy(ttl=60, clean_pods=CleanPodPolicy.ALL)))
    world.end(world.pods["mnist-worker-0"], 0)
    world.step()
    world.now += 100
    for pod in list(world.pods.values()):
        world.remove(pod)
    plan = world.look()
    assert isinstance(plan.actions[0], WriteStatus)
    assert plan.actions[-1] == DeleteJob()


def test_a_pod_that_is_pending_too_long_is_answered_when_its_timeout_is_over() -> None:
    rule = Rule(events=frozenset({Event.POD_PENDING}), action=Action.ABORT_JOB, timeout=60)
    world = World(volcano_job(rules=(rule,)))
    plan = world.settle()
    assert plan.wake_at is not None
    world.now = plan.wake_at
    world.settle()
    assert ended(world) == (Phase.ABORTED, "PodPending")


@given(st.floats(1e9, 4e9), st.floats(0.000001, 1e6))
def test_a_pause_is_stored_as_exactly_as_it_is_kept(now: float, base: float) -> None:
    policy = RunPolicy(backoff=Backoff(base=base, healthy=1e9))
    world = World(v1_job(replicas("Worker", 1, rules=ON_FAILURE), policy=policy))
    world.now = round(now, 6)
    world.settle()
    for count in range(1, 4):
        world.remove(world.pods["mnist-worker-0"])
        plan = world.settle()
        assert world.memory.backoffs == plan.status.backoffs
        assert world.memory.backoffs["worker-0"].count == count
        world.now = plan.wake_at or world.now
        world.settle()


# -- suspension ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [v1_job, v1alpha1_job, volcano_job])
def test_suspension_is_free_however_often(make: Any) -> None:
    world = started(make())
    for _ in range(5):
        world.suspend(True)
        world.settle()
        assert ended(world) == (Phase.ABORTED, "Suspended")
        assert not world.pods
        assert world.memory.admission is None
        world.suspend(False)
        world.settle()
        again(world)
        assert world.memory.phase is Phase.RUNNING
    assert world.memory.total_restarts == 0


def test_a_job_that_is_suspended_from_the_start_waits_without_pods() -> None:
    world = World(v1_job())
    world.suspend(True)
    world.settle()
    assert (world.memory.phase, world.pods) == (Phase.ABORTED, {})
    world.suspend(False)
    world.settle()
    assert len(world.pods) == 3


def test_the_deadline_starts_anew_with_a_resume() -> None:
    world = started(v1_job(policy=RunPolicy(active_deadline=100)))
    world.now += 90
    world.suspend(True)
    world.settle()
    world.now += 500
    world.suspend(False)
    plan = world.settle()
    assert plan.wake_at == pytest.approx(world.now + 100)


def test_a_resume_waits_for_its_place_and_for_the_old_pods_to_be_gone() -> None:
    world = started(v1_job())
    world.suspend(True)
    world.step()
    world.suspend(False)
    world.verdict = WAIT
    world.step()
    assert (world.memory.phase, world.memory.reason) == (Phase.PENDING, WAIT.reason)
    world.verdict = Admit()
    world.step()
    assert all("deletionTimestamp" in pod["metadata"] for pod in world.pods.values())
    world.settle()
    assert {pod["metadata"]["labels"]["tf-dist.dev/attempt"] for pod in world.pods.values()} == {"2.0.0"}


def test_a_job_that_its_policy_aborted_goes_on_only_when_this_very_attempt_is_resumed() -> None:
    rule = Rule(events=FAILED, action=Action.ABORT_JOB)
    world = started(volcano_job(rules=(rule,)))
    end(world, "worker-0", 1)
    assert ended(world) == (Phase.ABORTED, "PodFailed")
    world.job = replace(world.job, annotations={"tf-dist.dev/resume-attempt": "7"})
    assert not world.look().actions
    world.job = replace(world.job, annotations={"tf-dist.dev/resume-attempt": "1"})
    world.settle()
    assert world.memory.attempts.job == 2
    assert len(world.pods) == 3
    end_again = world.pods["tf-dist-mnist-worker-0"]
    world.run(end_again)
    world.end(end_again, 1)
    world.settle()
    assert world.memory.phase is Phase.ABORTED, "the resume was for the attempt before"


# -- Volcano's counting -------------------------------------------------------------------------------------------


def test_a_worker_that_failed_beside_an_endless_parameter_server_ends_the_job_as_failed() -> None:
    world = started(volcano_job())
    end(world, "worker-0", 1)
    assert world.memory.phase is Phase.RUNNING, "the other worker may still be of use"
    end(world, "worker-1")
    assert ended(world) == (Phase.FAILED, "PodFailed")
    assert "worker-0" in world.memory.message


def test_all_workers_done_complete_the_job_though_nobody_said_so() -> None:
    world = started(volcano_job(replicas("ps", 1, rules=()), replicas("worker", 2, rules=())))
    end(world, "worker-0")
    end(world, "worker-1")
    assert ended(world) == (Phase.COMPLETED, "JobSucceeded")


@pytest.mark.parametrize(
    ("min_available", "task_minimum", "codes", "phase"),
    [
        (3, 3, (0, 0, 0), Phase.COMPLETED),
        (3, 3, (0, 0, 1), Phase.FAILED),
        (2, 3, (0, 0, 1), Phase.COMPLETED),
        (2, 3, (0, 1, 1), Phase.FAILED),
        (2, 2, (0, 0, 1), Phase.COMPLETED),
        (2, 2, (0, 1, 1), Phase.FAILED),
        (0, 0, (1, 1, 1), Phase.COMPLETED),
    ],
)
def test_so_many_have_to_succeed(min_available: int, task_minimum: int, codes: tuple[int, ...], phase: Phase) -> None:
    job = volcano_job(replicas("worker", 3, rules=(), min_replicas=task_minimum), min_available=min_available)
    world = started(job)
    for index, code in enumerate(codes):
        world.end(world.pods[f"tf-dist-mnist-worker-{index}"], code)
    world.settle()
    assert world.memory.phase is phase


def test_min_success_completes_at_once_and_fails_when_out_of_reach() -> None:
    job = volcano_job(replicas("worker", 3, rules=()), counting=CompletionByCounts(min_available=3, min_success=2))
    enough, short = started(job), started(job)
    end(enough, "worker-0")
    end(enough, "worker-2")
    assert ended(enough) == (Phase.COMPLETED, "MinSuccess")
    for index, code in enumerate((0, 1, 1)):
        short.end(short.pods[f"tf-dist-mnist-worker-{index}"], code)
    short.settle()
    assert ended(short) == (Phase.FAILED, "PodFailed")


@pytest.mark.parametrize("max_restarts", [0, 1, 2])
def test_max_retry_n_is_n_minus_1_restarts(max_restarts: int) -> None:
    rule = Rule(events=FAILED, action=Action.RESTART_JOB)
    policy = RunPolicy(max_restarts=max_restarts, container_restarts_count=False)
    world = started(volcano_job(rules=(rule,), run_policy=policy))
    for _ in range(max_restarts):
        end(world, "worker-0", 1)
        again(world)
        assert world.memory.phase is Phase.RUNNING
    end(world, "worker-0", 1)
    assert ended(world) == (Phase.FAILED, "BackoffLimitExceeded")
    assert world.status["retryCount"] == max_restarts + 1, "the refused one is counted"


def test_task_completed_completes_the_job_only_when_every_replica_has_succeeded() -> None:
    world = started(volcano_job())
    end(world, "worker-0")
    assert world.memory.phase is Phase.RUNNING
    end(world, "worker-1")
    assert ended(world) == (Phase.COMPLETED, "TaskCompleted")


@pytest.mark.parametrize(("any_", "pods"), [(False, 1), (True, 2)])
def test_dependents_wait_until_what_they_depend_on_is_ready(any_: bool, pods: int) -> None:
    specs = (
        replicas("ps", 1, rules=()),
        replicas("cache", 1, rules=(), depends=Dependency(on=("ps",))),
        replicas("worker", 1, rules=(), depends=Dependency(on=("ps", "cache"), any=any_)),
    )
    world = World(volcano_job(*specs))
    world.settle()
    assert set(world.pods) == {"tf-dist-mnist-ps-0"}
    world.run(world.pods["tf-dist-mnist-ps-0"], ready=False)
    world.settle()
    assert len(world.pods) == 1, "running is not ready"
    world.pods["tf-dist-mnist-ps-0"]["status"]["conditions"][0]["status"] = "True"
    world.settle()
    assert len(world.pods) == pods + 1


def test_min_success_beyond_what_ends_by_itself_fails_the_job_and_says_so() -> None:
    counting = CompletionByCounts(min_available=3, min_success=3)
    world = started(volcano_job(replicas("ps", 1, rules=()), replicas("worker", 2, rules=()), counting=counting))
    end(world, "worker-0")
    end(world, "worker-1")
    assert ended(world) == (Phase.FAILED, "PodFailed")
    assert world.memory.message == "every replica that ends has ended, and too few have succeeded"


def test_tasks_that_wait_in_a_row_for_one_that_failed_for_good_end_the_job() -> None:
    specs = (
        replicas("ps", 1, rules=()),
        replicas("cache", 1, rules=(), depends=Dependency(on=("ps", "unknown"))),
        replicas("worker", 1, rules=(), depends=Dependency(on=("cache",))),
    )
    world = World(volcano_job(*specs))
    world.settle()
    world.run(world.pods["tf-dist-mnist-ps-0"], ready=False)
    end(world, "ps-0", 1)
    assert ended(world) == (Phase.FAILED, "PodFailed")


def test_workers_that_wait_for_a_parameter_server_that_failed_for_good_end_the_job() -> None:
    specs = (replicas("ps", 1, rules=()), replicas("worker", 1, rules=(), depends=Dependency(on=("ps",))))
    world = World(volcano_job(*specs))
    world.settle()
    world.run(world.pods["tf-dist-mnist-ps-0"], ready=False)
    end(world, "ps-0", 1)
    assert ended(world) == (Phase.FAILED, "PodFailed")
    assert "ps-0" in world.memory.message


def test_a_volcano_job_is_pending_again_when_too_many_of_its_pods_are() -> None:
    world = started(volcano_job(rules=(Rule(events=frozenset(), action=Action.ABORT_JOB),)))
    lose(world, "worker-1")
    assert world.memory.phase is Phase.PENDING


# -- v1alpha1 -----------------------------------------------------------------------------------------------------


def test_a_v1alpha1_chief_is_judged_by_the_exit_before_its_container_was_restarted() -> None:
    done, failed, retried = started(v1alpha1_job()), started(v1alpha1_job()), started(v1alpha1_job())
    for world, code in ((done, 0), (failed, 1), (retried, 137)):
        pod = world.pod("master-0")
        assert pod is not None
        world.restart_container(pod, code)
        world.settle()
    assert ended(done) == (Phase.COMPLETED, "JobSucceeded")
    assert ended(failed) == (Phase.FAILED, "PodFailed")
    assert retried.memory.phase is Phase.RUNNING


def test_the_failure_of_a_v1alpha1_worker_does_not_fail_the_job() -> None:
    world = started(v1alpha1_job())
    end(world, "worker-0", 1)
    again(world)
    assert world.memory.phase is Phase.RUNNING
    end(world, "master-0")
    assert world.memory.phase is Phase.COMPLETED


# -- stability ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [v1_job, v1alpha1_job, volcano_job])
@pytest.mark.parametrize("state", ["waiting", "pending", "running", "suspended", "completed", "failed"])
def test_a_thousand_passes_over_the_same_objects_write_nothing(make: Any, state: str) -> None:
    world = World(make())
    world.verdict = WAIT if state == "waiting" else Admit()
    world.settle()
    if state not in ("waiting", "pending"):
        world = started(make())
    lead = "master-0" if make is v1alpha1_job else "worker-0"
    match state:
        case "suspended":
            world.suspend(True)
        case "completed" | "failed":
            for replica in (lead, "worker-1"):
                if world.pod(replica):
                    world.end(world.pod(replica) or {}, 0 if state == "completed" else 1)
    world.settle()
    for _ in range(1000):
        world.now += 7.77
        assert world.look().actions == ()


def test_a_job_of_another_controller_is_left_alone() -> None:
    job = v1_job(managed_elsewhere=True)
    assert reconcile(job, observed(job)).actions == ()


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    assert reconcile(v1_job(), observed(v1_job(), deleting=True)).actions == ()


def test_what_another_operator_said_about_a_job_it_ended_is_left_as_it_is() -> None:
    stored = {
        "conditions": [{"type": "Failed", "status": "True", "reason": "TFJobFailed", "message": "because"}],
        "completionTime": "2027-01-15T08:00:00Z",
    }
    job = v1_job(policy=RunPolicy(ttl=3600))
    plan = reconcile(job, observed(job, status=stored))
    assert plan.actions == ()
    assert plan.wake_at == START + 3600
    assert reconcile(job, observed(job, status=stored, at=3600)).actions == (DeleteJob(),)


def test_a_worker_that_is_scaled_away_goes_with_its_service_and_may_come_back() -> None:
    world = started(v1_job(replicas("PS", 1), replicas("Worker", 3)))
    world.scale("worker", 2)
    world.settle()
    assert set(world.pods) == {"mnist-ps-0", "mnist-worker-0", "mnist-worker-1"}
    assert ("Service", "mnist-worker-2") not in world.objects
    world.scale("worker", 3)
    world.settle()
    assert world.pod("worker-2") is not None
    assert world.memory.total_restarts == 0


def test_the_host_files_follow_the_number_of_workers() -> None:
    world = started(volcano_job())
    world.scale("worker", 1)
    world.settle()
    data = world.objects["ConfigMap", "tf-dist-mnist-svc"]["data"]
    assert data["worker.host"] == "tf-dist-mnist-worker-0.tf-dist-mnist"


def test_of_two_pods_for_one_replica_one_goes() -> None:
    world = started(v1_job(replicas("Worker", 1)))
    double = {**world.pods["mnist-worker-0"], "metadata": {**world.pods["mnist-worker-0"]["metadata"]}}
    double["metadata"] |= {"name": "copy", "uid": "copy"}
    world.pods["copy"] = double
    plan = world.look()
    assert [action for action in plan.actions if isinstance(action, Delete)] == [Delete("Pod", "copy", "copy")]


def test_pods_of_unknown_attempts_and_types_are_removed_before_new_ones_come() -> None:
    world = World(v1_job(replicas("Worker", 1)))
    stray = {
        "metadata": {
            "name": "stray",
            "uid": "s",
            "labels": {"tf-dist.dev/replica-type": "gone", "tf-dist.dev/replica-index": "0"},
        },
        "status": {"phase": "Running"},
    }
    plan = reconcile(world.job, observed(world.job, stray))
    assert any(action == Delete("Pod", "stray", "s") for action in plan.actions)
    assert not any(isinstance(action, Create) and action.body["kind"] == "Pod" for action in plan.actions)


def test_never_means_never_even_for_a_parameter_server() -> None:
    world = started(v1_job(replicas("PS", 1, rules=NEVER), replicas("Worker", 1)))
    end(world, "ps-0", 1)
    assert ended(world) == (Phase.FAILED, "PodFailed")


def test_a_tolerated_failure_of_the_only_replica_that_could_succeed_ends_the_job() -> None:
    tolerant = (Rule(events=FAILED, action=Action.IGNORE),)
    world = started(v1_job(replicas("Worker", 2, rules=tolerant)))
    end(world, "worker-1", 1)
    assert world.memory.phase is Phase.RUNNING
    end(world, "worker-0", 1)
    assert ended(world) == (Phase.FAILED, "PodFailed")
    assert "cannot succeed" in world.memory.message


@pytest.mark.parametrize("reason", ["DeadlineExceeded", "BackoffLimitExceeded", DISRUPTIONS_EXCEEDED])
def test_a_limit_stops_what_runs_though_the_policy_would_keep_it(reason: str) -> None:
    kept = v1_job(policy=RunPolicy(clean_pods=CleanPodPolicy.NONE))
    assert effective_clean_pod_policy(kept, Status(phase=Phase.FAILED, reason=reason)) is CleanPodPolicy.RUNNING
    assert effective_clean_pod_policy(kept, Status(phase=Phase.FAILED, reason="PodFailed")) is CleanPodPolicy.NONE
    everything = v1_job(policy=RunPolicy(clean_pods=CleanPodPolicy.ALL))
    assert effective_clean_pod_policy(everything, Status(phase=Phase.FAILED, reason=reason)) is CleanPodPolicy.ALL
