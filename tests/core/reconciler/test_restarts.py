"""The cost of restarts and where it is stored, and policies with timeouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import EVICTED, FAILED, ON_FAILURE, replicas, v1_job, volcano_job
from tests.core.reconciler.scenarios import started
from tests.core.world import World
from tf_dist.core.model import pods
from tf_dist.core.model.assignment import Preempt
from tf_dist.core.model.context import EmitEvent
from tf_dist.core.model.job import Action, CleanPodPolicy, Event, ExitCodes, Rule, RunPolicy, SuccessRule
from tf_dist.core.model.pods import Disruption, Exit
from tf_dist.core.model.status import Phase
from tf_dist.core.reconciler.lifecycle_policy import PodEvent
from tf_dist.core.reconciler.restarts import failure_of


@pytest.mark.parametrize(("by_kubelet", "phase"), [(0, Phase.RESTARTING), (1, Phase.RESTARTING), (2, Phase.FAILED)])
def test_pod_restarts_and_kubelet_restarts_share_one_budget(by_kubelet: int, phase: Phase) -> None:
    job = v1_job(replicas("PS", 1, rules=ON_FAILURE), replicas("Worker", 1, rules=ON_FAILURE))
    world = started(replace(job, run_policy=RunPolicy(max_restarts=2)))
    for _ in range(by_kubelet):
        world.restart_container(world.pods["mnist-ps-0"], 1)
    world.end(world.pods["mnist-worker-0"], 1)
    world.step()
    assert world.memory.phase is phase
    assert world.memory.reason == ("BackoffLimitExceeded" if phase is Phase.FAILED else "PodFailed")
    assert world.memory.restarts == ({} if phase is Phase.FAILED else {"PodFailed": 1})


@pytest.mark.parametrize(("limit", "said"), [(3, "; restart 1 of 3"), (None, "; restart 1")])
def test_restart_message_names_limit(limit: int | None, said: str) -> None:
    job = v1_job(replicas("Worker", 2, rules=ON_FAILURE))
    world = started(replace(job, run_policy=RunPolicy(max_restarts=limit)))
    world.end(world.pods["mnist-worker-0"], 1)
    world.step()
    assert world.memory.message.partition(" in ")[0].endswith(said)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({}, (None, "", "", "")),
        ({"exit": Exit(3, "Error", "boom")}, (3, "Error", "boom", "")),
        ({"exit": Exit(137), "disruption": Disruption("NodeLost", "gone", "n1")}, (137, "NodeLost", "gone", "n1")),
    ],
)
def test_failure_stores_exit_and_disruption(what: dict[str, Any], said: tuple[Any, ...]) -> None:
    found = failure_of(PodEvent(event=Event.POD_FAILED, spec=replicas("Worker", 1), **what), 5.0)
    assert (found.code, found.reason, found.message, found.node) == said
    assert (found.event, found.replica, found.at) == ("PodFailed", "worker", 5.0)


@pytest.mark.parametrize(
    ("action", "kept"), [(Action.RESTART_POD, 2), (Action.RESTART_TASK, 6), (Action.RESTART_JOB, 7)]
)
@pytest.mark.parametrize("counted", [True, False])
def test_counts_container_restarts_of_deleted_pods_once(action: Action, kept: int, counted: bool) -> None:
    """Remaining pods still report their restarts themselves, so nothing is counted twice."""
    workers = replicas("worker", 2, rules=(Rule(events=FAILED, action=action),))
    policy = RunPolicy(max_restarts=8, container_restarts_count=counted)
    world = started(volcano_job(replicas("ps", 1, rules=()), workers, run_policy=policy))
    for replica, times in (("ps-0", 1), ("worker-0", 2), ("worker-1", 4)):
        for _ in range(times):
            world.restart_container(world.pods[f"tf-dist-mnist-{replica}"], 1)
    world.settle()
    assert world.memory.container_restarts == 0
    failed = world.pods["tf-dist-mnist-worker-0"]
    failed["status"] |= {"phase": "Failed"}
    failed["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 1}}
    world.settle()
    assert world.memory.container_restarts == kept
    assert world.memory.phase is not Phase.FAILED
    assert world.memory.restarts == {"PodFailed": 1}


@pytest.mark.parametrize(
    ("action", "kept"), [(Action.RESTART_POD, 2), (Action.RESTART_TASK, 6), (Action.RESTART_JOB, 7)]
)
def test_counts_container_restarts_of_vanished_pods(action: Action, kept: int) -> None:
    workers = replicas("worker", 2, rules=(Rule(events=EVICTED, action=action),))
    policy = RunPolicy(max_restarts=8)
    world = started(volcano_job(replicas("ps", 1, rules=()), workers, run_policy=policy))
    for replica, times in (("ps-0", 1), ("worker-0", 2), ("worker-1", 4)):
        for _ in range(times):
            world.restart_container(world.pods[f"tf-dist-mnist-{replica}"], 1)
    world.settle()
    world.vanish(world.pods["tf-dist-mnist-worker-0"])
    world.settle()
    assert world.memory.container_restarts == kept
    assert world.memory.total_disruptions == 1


def container_restarts(world: World) -> list[str]:
    """The messages of the next Events about containers that were restarted in their pods."""
    plan, said = world.look(), []
    while plan.actions:
        events = [action for action in plan.actions if isinstance(action, EmitEvent)]
        said += [event.message for event in events if event.reason == "ContainerRestarted"]
        world.step()
        plan = world.look()
    return said


@pytest.mark.parametrize("gathers", [False, True])
def test_container_restart_emits_one_event_and_is_counted(gathers: bool) -> None:
    job = v1_job(replicas("PS", 2, rules=ON_FAILURE), replicas("Worker", 1, rules=ON_FAILURE))
    world = started(replace(job, run_policy=RunPolicy(max_restarts=9)))
    world.gathers = gathers
    assert container_restarts(world) == []
    world.restart_container(world.pods["mnist-ps-1"], 137)
    first = "ps-1 exited with code 137 (SIGKILL); its container was restarted in its pod (restart 1)"
    assert container_restarts(world) == [first]
    world.now += 60
    assert container_restarts(world) == []
    assert world.memory.total_restarts == 1
    world.restart_container(world.pods["mnist-ps-1"], 1)
    assert container_restarts(world) == ["ps-1 exited with code 1; its container was restarted in its pod (restart 2)"]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (CleanPodPolicy.NONE, {"mnist-ps-0"}),
        (CleanPodPolicy.RUNNING, set()),
        (CleanPodPolicy.ALL, set()),
    ],
)
def test_pod_that_spent_budget_is_kept_under_clean_pod_policy_none(policy: CleanPodPolicy, kept: set[str]) -> None:
    """The crashing pod never ends, so nothing else would keep its log. Healthy pods are stopped."""
    job = v1_job(replicas("PS", 2, rules=ON_FAILURE), replicas("Worker", 1, rules=ON_FAILURE))
    world = started(replace(job, run_policy=RunPolicy(max_restarts=1, clean_pods=policy)))
    for _ in range(2):
        world.restart_container(world.pods["mnist-ps-0"], 3)
    world.settle()
    assert world.memory.reason == "BackoffLimitExceeded"
    assert set(world.pods) == kept
    writes = world.writes
    for pod in world.pods.values():  # the kubelet continues
        world.restart_container(pod, 3)
    world.settle()
    assert (world.writes, world.memory.total_restarts) == (writes, 2)


def test_preempted_gang_keeps_count_of_kubelet_restarts() -> None:
    world = started(v1_job(replicas("Worker", 2, rules=ON_FAILURE), policy=RunPolicy(max_restarts=3)))
    for pod in world.pods.values():
        world.restart_container(pod, 1)
    world.verdict = Preempt(by=None, message="")
    world.step()
    assert (world.memory.admission, world.memory.container_restarts) == (None, 2)


def test_lowering_budget_below_spent_restarts_does_not_stop_job() -> None:
    world = started(v1_job(replicas("Worker", 1, rules=ON_FAILURE), policy=RunPolicy(max_restarts=3)))
    for _ in range(2):
        world.end(world.pods["mnist-worker-0"], 1)
        world.settle()
        world.now += 1000
        world.settle()
        world.run(world.pods["mnist-worker-0"])
        world.settle()
    world.job = replace(world.job, run_policy=RunPolicy(max_restarts=1))
    world.settle()
    assert (world.memory.phase, world.memory.charged_restarts) == (Phase.RUNNING, 2)


def test_job_of_only_parameter_servers_ends_with_them() -> None:
    for code, phase in ((0, Phase.COMPLETED), (1, Phase.FAILED)):
        world = started(volcano_job(replicas("ps", 2, rules=())))
        for pod in world.pods.values():
            world.end(pod, code)
        world.settle()
        assert world.memory.phase is phase


def timed(action: Action, code: int | None = None) -> tuple[Rule, ...]:
    rule = Rule(events=FAILED, action=action, timeout=60.0)
    return (rule if code is None else replace(rule, codes=ExitCodes(ranges=((code, code),))),)


@pytest.mark.parametrize("code", [None, 3])
@pytest.mark.parametrize(
    ("action", "phase"), [(Action.RESTART_JOB, Phase.RESTARTING), (Action.ABORT_JOB, Phase.ABORTED)]
)
@pytest.mark.parametrize("volcano", [True, False])
def test_failure_policy_acts_exactly_at_its_timeout(
    code: int | None, action: Action, phase: Phase, volcano: bool
) -> None:
    """Until then, the job does not fail, even if nothing runs and it could not succeed otherwise.

    The pod's status has the second in which the pod ended.
    """
    workers = replicas("worker", 1, rules=timed(action, code))
    world = started(volcano_job(workers) if volcano else v1_job(workers, success=(SuccessRule(type="worker"),)))
    second = int(world.now)
    world.now = second + 0.9
    [pod] = world.pods.values()
    world.end(pod, 3)
    plan = world.settle()
    assert world.memory.phase is Phase.RUNNING
    assert plan.wake_at == second + 61
    world.now = second + 60.9
    assert not world.look().actions
    world.now = second + 61
    world.step()
    assert world.memory.phase is phase


def test_policy_timeout_for_another_exit_code_does_not_delay_failure() -> None:
    world = started(volcano_job(replicas("worker", 1, rules=timed(Action.RESTART_JOB, 4))))
    [pod] = world.pods.values()
    world.end(pod, 3)
    world.settle()
    assert (world.memory.phase, world.memory.reason) == (Phase.FAILED, "PodFailed")


@pytest.mark.parametrize(
    ("size", "said", "limit"),
    [(1, None, 100), (10, None, 100), (11, None, 110), (500, None, 5000), (500, 3, 3), (1, 0, 0)],
)
def test_disruption_limit_depends_on_size_and_policy(size: int, said: int | None, limit: int) -> None:
    job = v1_job(replicas("Worker", size), policy=RunPolicy(max_disruptions=said))
    assert pods.disruption_limit(job) == limit
