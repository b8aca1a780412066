"""What a Volcano job's restarts cost: failures of the same moment count once, and no failure is free twice."""

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
    """A job of three workers that stays Restarting: worker-0 is to start again, and its old pod does not stop."""
    rules = (Rule(events=FAILED, action=action),)
    policy = RunPolicy(clean_pods=CleanPodPolicy.NONE, max_restarts=LIMIT, failures_count_together=True)
    world = started(volcano_job(replicas("worker", 3, rules=rules), run_policy=policy))
    [name, pod] = next(item for item in world.pods.items() if item[0].endswith("worker-0"))
    fail(world, "worker-0")
    pod["metadata"]["deletionTimestamp"] = format_time(world.now + 30)
    world.pods[name] = pod
    return world


def fail(world: World, replica: str) -> None:
    """The pod ends before any pass has seen it run, and the policy answers."""
    pod = world.pod(replica)
    world.run(pod)
    world.end(pod, 1)
    world.step()


def make_anew(world: World, replica: str, *, behind: float = 0.0) -> None:
    """The old pod is gone, and the new one is created; the API server's clock is so far behind the driver's."""
    if world.has(replica):
        world.remove(world.pod(replica))
    pause = world.memory.backoffs.get(replica)
    world.now = max(world.now, pause.until if pause else 0.0)
    while world.step():
        pass
    new = world.pod(replica)
    new["metadata"]["creationTimestamp"] = format_time(world.now - behind)


@pytest.mark.parametrize("behind", [0.0, 3.0, 3600.0])
def test_failures_of_new_pods_are_charged_while_another_restart_is_under_way(behind: float) -> None:
    """However few seconds lie between the restart and the new pod, and whatever the clocks say."""
    world = restarting(Action.RESTART_POD)
    for spent in range(1, LIMIT + 1):
        assert (world.memory.phase, world.memory.charged_restarts) == (Phase.RESTARTING, spent)
        if spent == 1:
            fail(world, "worker-1")  # of the moment of the first failure
            assert world.memory.charged_restarts == 1
        make_anew(world, "worker-1", behind=behind)
        fail(world, "worker-1")
    assert ended(world) == (Phase.FAILED, "BackoffLimitExceeded")
    assert world.memory.charged_restarts == LIMIT


@pytest.mark.parametrize("ahead", [0.0, 3.0, 3600.0])
def test_failures_of_old_pods_are_part_of_the_restart_under_way(ahead: float) -> None:
    """Also where the API server's clock is ahead of the driver's, so that they seem to be younger than the restart."""
    world = restarting(Action.RESTART_POD)
    for replica in ("worker-1", "worker-2"):
        pod = world.pod(replica)
        pod["metadata"]["creationTimestamp"] = format_time(world.now + ahead)
        fail(world, replica)
    assert (world.memory.phase, world.memory.charged_restarts) == (Phase.RESTARTING, 1)


@pytest.mark.parametrize("behind", [0.0, 3600.0])
@pytest.mark.parametrize("action", [Action.RESTART_TASK, Action.RESTART_JOB])
def test_a_restart_of_all_leaves_no_old_pod_whose_failure_would_be_free(action: Action, behind: float) -> None:
    world = restarting(action)
    world.settle()
    assert {one["metadata"]["labels"]["tf-dist.dev/attempt"] for one in world.pods.values()} != {"1.0.0"}
    for pod in world.pods.values():
        pod["metadata"]["creationTimestamp"] = format_time(world.now - behind)
    fail(world, "worker-1")
    assert world.memory.charged_restarts == 2
