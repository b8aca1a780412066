"""Pods that other clients delete and that stop within their grace period, for every policy table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import EXIT_CODE, NEVER, ON_FAILURE, replicas, v1_job, volcano_job
from tests.core.reconciler.scenarios import started
from tests.core.world import World, pinned_to
from tf_dist.core.model import names
from tf_dist.core.model.assignment import Admit, Resize
from tf_dist.core.model.job import Action, Event, Job, Rule, SuccessRule
from tf_dist.core.model.status import LIVE, Phase
from tf_dist.core.model.timestamps import format_time
from tf_dist.core.reconciler.gang_rules import UNPIN_AFTER

GRACE = 30.0
TIMEOUT = 60.0
EVICTED = frozenset({Event.POD_EVICTED})
# Volcano's "*", as the dialect reads it.
ANY = frozenset({Event.POD_FAILED, Event.POD_EVICTED, Event.POD_PENDING, Event.NODE_LOST, Event.UNKNOWN})
ACTIONS = [
    Action.RESTART_POD,
    Action.RESTART_TASK,
    Action.RESTART_JOB,
    Action.ABORT_JOB,
    Action.TERMINATE_JOB,
    Action.COMPLETE_JOB,
    Action.RESUME_JOB,
]

_TABLES = [NEVER, ON_FAILURE, EXIT_CODE]


def with_policy(action: Action, timeout: float, events: frozenset[Event] = EVICTED) -> Job:
    rules = (Rule(events=events, action=action, timeout=timeout),)
    return volcano_job(replicas("ps", 1, rules=()), replicas("worker", 2, rules=()), rules=rules)


def passes(world: World) -> None:
    """Reconcile at the same time until nothing changes. Terminating pods stay."""
    while world.step():
        pass


def delete(world: World, replica: str) -> dict[str, Any]:
    """Another client deletes the pod, which runs until its grace period ends."""
    pod = world.pod(replica)
    pod["metadata"]["deletionTimestamp"] = format_time(world.now + GRACE)
    passes(world)
    return pod


def stop(world: World, pod: dict[str, Any], code: int | None) -> None:
    """The container ends (None: with its pod), and the pod is gone ten seconds later."""
    world.now += 5
    if code is not None:
        world.end(pod, code)
    passes(world)
    world.now += 10
    world.remove(pod)
    passes(world)


def run_all(world: World) -> None:
    for pod in world.pods.values():
        world.run(pod)
    passes(world)


@pytest.mark.parametrize("events", [EVICTED, ANY], ids=["PodEvicted", "any"])
@pytest.mark.parametrize("code", [None, 143, 1, 0])
@pytest.mark.parametrize("replica", ["ps-0", "worker-0"])
@pytest.mark.parametrize("action", ACTIONS)
def test_pod_returns_before_timeout_of_its_policy(
    action: Action, replica: str, code: int | None, events: frozenset[Event]
) -> None:
    world = started(with_policy(action, TIMEOUT, events))
    stop(world, delete(world, replica), code)
    assert world.has(replica)
    run_all(world)
    world.now += 10 * TIMEOUT
    passes(world)
    assert (world.memory.phase, world.memory.policy_timeouts) == (Phase.RUNNING, {})
    assert world.memory.disruptions == {"Deleted": 1}
    assert world.memory.total_restarts == 0


@pytest.mark.parametrize("action", ACTIONS)
def test_timeout_starts_when_pod_is_gone(action: Action) -> None:
    """A timeout shorter than the grace period does not end a job whose pod had no time to return."""
    world = started(with_policy(action, GRACE / 2))
    pod = delete(world, "worker-1")
    world.now += GRACE - 1
    world.remove(pod)
    passes(world)
    run_all(world)
    world.now += TIMEOUT
    passes(world)
    assert world.memory.phase is Phase.RUNNING


def test_timeout_starts_at_end_of_grace_period_if_pod_stays() -> None:
    world = started(with_policy(Action.TERMINATE_JOB, TIMEOUT))
    at = int(world.now) + GRACE + TIMEOUT
    delete(world, "worker-1")
    plan = world.look()
    assert plan.wake_at == at
    world.now = at - 0.1
    passes(world)
    assert world.memory.phase is Phase.RUNNING
    world.now = at
    passes(world)
    assert (world.memory.phase, world.memory.reason) == (Phase.TERMINATING, "PodEvicted")


def test_policy_acts_when_pod_does_not_return_in_time() -> None:
    world = started(with_policy(Action.ABORT_JOB, TIMEOUT))
    stop(world, delete(world, "worker-1"), 143)
    world.now += TIMEOUT - 1
    passes(world)
    assert world.memory.phase is not Phase.ABORTING
    world.now += 2
    passes(world)
    assert (world.memory.phase, world.memory.reason) == (Phase.ABORTING, "PodEvicted")


@pytest.mark.parametrize("action", ACTIONS)
def test_pod_evicted_by_kubelet_returns_before_timeout_of_its_policy(action: Action) -> None:
    """Unlike a deleted pod, the Failed pod remains, and has to be deleted first."""
    world = started(with_policy(action, TIMEOUT))
    pod = world.pod("worker-0")
    world.evict(pod)
    world.settle()
    assert [one["status"]["phase"] for one in world.pods.values()].count("Pending") == 1
    run_all(world)
    world.now += 10 * TIMEOUT
    passes(world)
    assert (world.memory.phase, world.memory.policy_timeouts) == (Phase.RUNNING, {})
    assert world.memory.total_disruptions == 1


def test_repeated_evictions_do_not_extend_timeout() -> None:
    world = started(with_policy(Action.ABORT_JOB, TIMEOUT))
    began = world.now
    while world.memory.phase in LIVE:
        pod = world.pod("worker-0")
        pod["status"] = {"phase": "Failed", "reason": "Evicted"}
        world.settle()
        world.now += 7
        assert world.now < began + 2 * TIMEOUT
    assert world.memory.reason == "PodEvicted"


@pytest.mark.parametrize("code", [None, 143, 1, 0])
@pytest.mark.parametrize("replica", ["ps-0", "worker-0", "worker-1"])
@pytest.mark.parametrize(
    "job",
    [
        *(v1_job(replicas("PS", 1, rules=rules), replicas("Worker", 2, rules=rules)) for rules in _TABLES),
        volcano_job(rules=(Rule(events=frozenset({Event.POD_FAILED}), action=Action.ABORT_JOB),)),
        *(with_policy(action, 0.0) for action in ACTIONS),
    ],
)
def test_deleted_pod_counts_as_eviction_for_any_exit_code(job: Job, replica: str, code: int | None) -> None:
    """No policy table treats the exit code of a stopped pod as a failure or success of the program."""
    world = started(job)
    stop(world, delete(world, replica), code)
    memory = world.memory
    assert memory.charged_restarts == 0
    if memory.phase in LIVE:
        assert memory.disruptions == {"Deleted": 1}
        world.settle()
        run_all(world)
        assert world.memory.phase is Phase.RUNNING
    else:
        assert memory.reason == "PodEvicted"


@pytest.mark.parametrize("code", [None, 143, 1, 0])
@pytest.mark.parametrize("rules", _TABLES)
def test_worker_scaled_down_and_up_again_does_not_end_job(rules: tuple[Rule, ...], code: int | None) -> None:
    """The old pod was already being deleted when the replica returned, so the replica is not disrupted."""
    world = started(v1_job(replicas("Worker", 2, rules=rules), success=(SuccessRule(type="worker"),)))
    world.scale("worker", 1)
    pod = delete(world, "worker-1")
    world.scale("worker", 2)
    stop(world, pod, code)
    run_all(world)
    assert (world.memory.phase, world.memory.disruptions) == (Phase.RUNNING, {})
    assert len(world.pods) == 2


def test_message_counts_only_running_pods_while_pod_terminates() -> None:
    world = started(with_policy(Action.RESTART_JOB, TIMEOUT))
    assert world.memory.message == "3 of 3 replicas are running"
    delete(world, "worker-0")
    assert (world.memory.phase, world.memory.message) == (Phase.RUNNING, "2 of 3 replicas are running")


def drained(world: World, node: str) -> None:
    """``kubectl drain``: the node accepts no more pods, and its pods are evicted."""
    world.closed_nodes = frozenset({node})
    pods = [pod for pod in world.pods.values() if pod["spec"]["nodeName"] == node]
    for pod in pods:
        pod["metadata"]["deletionTimestamp"] = format_time(world.now + GRACE)
    passes(world)
    for pod in pods:
        world.remove(pod)
    passes(world)


def on_two_nodes(job: Job) -> World:
    world = World(job)
    world.verdict = Admit(placement={"ps": {"n1": 1}, "worker": {"n1": 1, "n2": 1}})
    world.settle()
    run_all(world)
    return world


@pytest.mark.parametrize("rules", _TABLES)
def test_pods_of_drained_node_wait_for_newly_assigned_nodes(rules: tuple[Rule, ...]) -> None:
    world = on_two_nodes(v1_job(replicas("PS", 1, rules=rules), replicas("Worker", 2, rules=rules)))
    stays = next(pod for pod in world.pods.values() if pod["spec"]["nodeName"] == "n2")["metadata"]["uid"]
    drained(world, "n1")
    assert [pinned_to(pod) for pod in world.pods.values()] == ["n2"]
    placement = {"ps": {"n3": 1}, "worker": {"n2": 1, "n3": 1}}
    world.verdict = Resize(sizes={"ps": 1, "worker": 2}, placement=placement, message="other nodes")
    world.settle()
    assert sorted(pinned_to(pod) for pod in world.pods.values()) == ["n2", "n3", "n3"]
    assert stays in {pod["metadata"]["uid"] for pod in world.pods.values()}
    run_all(world)
    assert world.memory.phase is Phase.RUNNING
    assert world.admission.placement == placement
    assert not world.step()


def test_pods_of_drained_node_go_to_any_node_without_verdict() -> None:
    world = on_two_nodes(v1_job())
    drained(world, "n1")
    world.now += UNPIN_AFTER
    world.settle()
    assert sorted(pinned_to(pod) for pod in world.pods.values()) == ["", "", "n2"]
    assert world.admission.placement == {"worker": {"n2": 1}}


def test_verdict_takes_precedence_when_wait_for_nodes_ends() -> None:
    """The verdict covers only one of two replicas. The other waits for the next verdict, or goes to any node."""
    world = on_two_nodes(v1_job())
    drained(world, "n1")
    world.now += UNPIN_AFTER
    placement = {"ps": {"n1": 1}, "worker": {"n2": 1, "n3": 1}}
    world.verdict = Resize(sizes={"ps": 1, "worker": 2}, placement=placement, message="other nodes")
    world.step()
    assert sorted(pinned_to(pod) for pod in world.pods.values()) == ["n2", "n3"]
    world.verdict = None
    world.settle()
    assert sorted(pinned_to(pod) for pod in world.pods.values()) == ["", "n2", "n3"]


def test_pods_of_drained_node_go_to_any_node_if_topology_is_required() -> None:
    """This is allowed only because the gang was complete in one domain."""
    annotations = {names.TOPOLOGY: "zone", names.TOPOLOGY_REQUIRED: "true"}
    world = on_two_nodes(replace(v1_job(), annotations=annotations))
    drained(world, "n1")
    assert sorted(pinned_to(pod) for pod in world.pods.values()) == ["", "", "n2"]


def test_unbound_pod_of_cordoned_node_is_replaced_immediately() -> None:
    world = on_two_nodes(v1_job())
    pod = world.pod("worker-1")
    node = pinned_to(pod)
    pod["status"] = {"phase": "Pending"}
    world.hold_back(pod)
    world.closed_nodes = frozenset({node})
    world.settle()
    assert not world.has("worker-1")
    world.verdict = Resize(
        sizes={"ps": 1, "worker": 2}, placement={"ps": {"n1": 1}, "worker": {"n1": 1, "n3": 1}}, message="other nodes"
    )
    world.settle()
    new = world.pod("worker-1")
    assert (pinned_to(new), new["metadata"]["labels"]["tf-dist.dev/attempt"]) == ("n3", "1.0.1")
    assert world.memory.total_disruptions == world.memory.total_restarts == 0
