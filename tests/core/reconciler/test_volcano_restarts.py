"""The cost of a Volcano job's restarts: simultaneous failures count once, and later failures are charged."""

from __future__ import annotations

import pytest

from tests.core.builders import FAILED, replicas, volcano_job
from tests.core.reconciler.scenarios import ended, started
from tests.core.world import World
from tf_dist.core.model.job import Action, CleanPodPolicy, Rule, RunPolicy
from tf_dist.core.model.status import Phase
from tf_dist.core.model.timestamps import format_time

LIMIT = 3


def restarting(action: Action) -> World:
    """A job of three workers that stays Restarting, because the old pod of worker-0 does not stop."""
    rules = (Rule(events=FAILED, action=action),)
    policy = RunPolicy(clean_pods=CleanPodPolicy.NONE, max_restarts=LIMIT, failures_count_together=True)
    world = started(volcano_job(replicas("worker", 3, rules=rules), run_policy=policy))
    [name, pod] = next(item for item in world.pods.items() if item[0].endswith("worker-0"))
    fail(world, "worker-0")
    pod["metadata"]["deletionTimestamp"] = format_time(world.now + 30)
    world.pods[name] = pod
    return world


def fail(world: World, replica: str) -> None:
    """The pod fails before a reconcile observes it running, and the policy acts."""
    pod = world.pod(replica)
    world.run(pod)
    world.end(pod, 1)
    world.step()


def make_anew(world: World, replica: str, *, behind: float = 0.0) -> None:
    """The old pod is gone, and a new pod is created. The API server's clock is ``behind`` seconds behind."""
    if world.has(replica):
        world.remove(world.pod(replica))
    pause = world.memory.backoffs.get(replica)
    world.now = max(world.now, pause.until if pause else 0.0)
    while world.step():
        pass
    new = world.pod(replica)
    new["metadata"]["creationTimestamp"] = format_time(world.now - behind)


@pytest.mark.parametrize("behind", [0.0, 3.0, 3600.0])
def test_failures_of_new_pods_are_charged_during_another_restart(behind: float) -> None:
    """This holds for any time between the restart and the new pod, and for any clock skew."""
    world = restarting(Action.RESTART_POD)
    for spent in range(1, LIMIT + 1):
        assert (world.memory.phase, world.memory.charged_restarts) == (Phase.RESTARTING, spent)
        if spent == 1:
            fail(world, "worker-1")  # simultaneous with the first failure
            assert world.memory.charged_restarts == 1
        make_anew(world, "worker-1", behind=behind)
        fail(world, "worker-1")
    assert ended(world) == (Phase.FAILED, "BackoffLimitExceeded")
    assert world.memory.charged_restarts == LIMIT


@pytest.mark.parametrize("ahead", [0.0, 3.0, 3600.0])
def test_failures_of_old_pods_belong_to_current_restart(ahead: float) -> None:
    """This also holds if the API server's clock is ahead, so that the pods seem younger than the restart."""
    world = restarting(Action.RESTART_POD)
    for replica in ("worker-1", "worker-2"):
        pod = world.pod(replica)
        pod["metadata"]["creationTimestamp"] = format_time(world.now + ahead)
        fail(world, replica)
    assert (world.memory.phase, world.memory.charged_restarts) == (Phase.RESTARTING, 1)


@pytest.mark.parametrize("behind", [0.0, 3600.0])
@pytest.mark.parametrize("action", [Action.RESTART_TASK, Action.RESTART_JOB])
def test_failure_after_restart_of_all_pods_is_charged(action: Action, behind: float) -> None:
    world = restarting(action)
    world.settle()
    assert {one["metadata"]["labels"]["tf-dist.dev/attempt"] for one in world.pods.values()} != {"1.0.0"}
    for pod in world.pods.values():
        pod["metadata"]["creationTimestamp"] = format_time(world.now - behind)
    fail(world, "worker-1")
    assert world.memory.charged_restarts == 2
