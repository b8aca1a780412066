"""When a gang that lacks nodes releases its admission: on time, and not while its old pods may still run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import ON_FAILURE, START, replicas, v1_job, views, volcano_job
from tests.core.reconciler.scenarios import started
from tests.core.world import World
from tf_dist.core.diagnostics.diagnose import pending_reasons
from tf_dist.core.dialects import read
from tf_dist.core.dialects.queue_resource import parse_queue
from tf_dist.core.model.assignment import Admit, Wait
from tf_dist.core.model.context import Observed
from tf_dist.core.model.job import Dependency, Job, Scheduling, TFConfigStyle
from tf_dist.core.model.pods import UnreadyNode, unready_node
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import Phase
from tf_dist.core.model.timestamps import format_time
from tf_dist.core.reconciler.job_context import node_loss_times, read_context
from tf_dist.errors import InvalidJob, InvalidQueue

WAITS = Wait(reason=Reason.WAITING_FOR_CAPACITY, message="no room")


def lose(world: World, replica: str) -> None:
    """A pod is gone, and its replacement gets no node."""
    world.schedules = False
    pod = world.pod(replica)
    world.remove(pod)
    world.settle()


def patient(seconds: float | None = None, **fields: Any) -> Job:
    return v1_job(scheduling=Scheduling(min_available=3, recovery_timeout=seconds), **fields)


@pytest.mark.parametrize(("said", "limit"), [(None, 300.0), (45.0, 45.0)])
def test_releases_admission_at_recovery_timeout(said: float | None, limit: float) -> None:
    world = started(patient(said))
    lose(world, "worker-1")
    begun = world.now
    world.verdict = WAITS
    while world.memory.admission is not None:
        plan = world.settle()
        assert plan.wake_at is not None
        assert plan.wake_at <= begun + limit
        world.now = plan.wake_at
        world.settle()
    assert world.now == pytest.approx(begun + limit)
    assert (world.memory.phase, world.memory.failure and world.memory.failure.event) == (
        Phase.PENDING,
        "RecoveryTimeout",
    )
    assert world.pods == {}
    assert (world.memory.charged_restarts, dict(world.memory.disruptions)) == (0, {"Deleted": 1})
    world.schedules = True
    world.verdict = Admit()
    world.settle()
    assert len(world.pods) == 3


def test_pending_reasons_include_earlier_recovery_timeout() -> None:
    world = started(patient())
    lose(world, "worker-1")
    world.verdict = WAITS
    world.now += 300
    world.settle()
    assert world.memory.reason == "WaitingForCapacity"
    found = list(pending_reasons(world.job, world.memory))
    assert "worker-1" in found[1].summary
    assert "300 s" in found[1].summary


@pytest.mark.parametrize(("limit", "late"), [(300.0, 60.001), (300.0, 3600.0), (45.0, 3600.0), (7200.0, 60.001)])
def test_recovery_timeout_starts_again_after_time_without_controller(limit: float, late: float) -> None:
    """If the clock was set ahead or no controller ran, the full timeout starts again."""
    world = started(patient(limit))
    lose(world, "worker-1")
    world.verdict = WAITS
    world.now += limit + late
    plan = world.settle()
    begun = world.now
    assert world.memory.admission is not None
    assert plan.wake_at == pytest.approx(begun + limit)
    world.now = begun + limit - 0.001
    world.settle()
    assert world.memory.admission is not None
    world.now = begun + limit
    world.settle()
    assert world.memory.admission is None


@pytest.mark.parametrize("late", [0.0, 1.0, 60.0])
def test_slightly_late_reconcile_does_not_extend_recovery_timeout(late: float) -> None:
    world = started(patient())
    lose(world, "worker-1")
    world.verdict = WAITS
    world.now += 300 + late
    world.settle()
    assert world.memory.admission is None


def test_nodes_found_in_time_stop_recovery_timeout() -> None:
    world = started(patient())
    for _ in range(5):
        lose(world, "worker-1")
        world.now += 250
        world.settle()
        pod = world.pod("worker-1")
        world.bind(pod)
        world.run(pod)
        world.now += 700
        world.settle()
    assert world.memory.phase is Phase.RUNNING
    assert world.admission.incomplete is None


def test_restart_backoff_is_not_lack_of_nodes() -> None:
    job = v1_job(replicas("Worker", 2, rules=ON_FAILURE), scheduling=Scheduling(min_available=2, recovery_timeout=5))
    world = started(job)
    for _ in range(4):
        pod = world.pods["mnist-worker-1"]
        world.end(pod, 1)
        plan = world.settle()
        world.now = max(world.now, plan.wake_at or 0.0)
        world.settle()
        world.run(world.pods["mnist-worker-1"])
        world.settle()
        assert world.memory.admission is not None
    assert "RecoveryTimeout" not in world.memory.restarts


def test_task_that_waits_for_dependency_is_not_missing() -> None:
    worker = replicas("worker", 1, depends=Dependency(on=("ps",)), rules=())
    world = started(volcano_job(replicas("ps", 1, rules=()), worker))
    for _ in range(2):
        for pod in world.pods.values():
            world.run(pod)
        world.settle()
    for name in ("worker-0", "ps-0"):
        pod = world.pod(name)
        world.remove(pod)
    world.settle()
    server = world.pod("ps-0")
    world.run(server, ready=False)
    world.now += 4000
    world.settle()
    assert world.memory.admission is not None


@pytest.mark.parametrize(
    ("lost", "least", "style", "left"),
    [
        ("worker-2", 2, TFConfigStyle.SPARSE, 2),
        ("worker-1", 2, TFConfigStyle.SPARSE, 2),
        ("worker-1", 2, TFConfigStyle.V1, 2),
        ("worker-1", 3, TFConfigStyle.V1, None),
        ("ps-0", 1, TFConfigStyle.V1, None),
    ],
)
def test_elastic_gang_shrinks_at_recovery_timeout(
    lost: str, least: int, style: TFConfigStyle, left: int | None
) -> None:
    specs = replicas("PS", 1), replicas("Worker", 3, min_replicas=least)
    world = started(v1_job(*specs, tf_config=style, scheduling=Scheduling(min_available=1 + least)))
    lose(world, lost)
    world.verdict = WAITS
    world.now += 300
    world.settle()
    place = world.memory.admission
    assert (None if place is None else place.sizes["worker"]) == left
    assert len(world.pods) == (0 if left is None else 1 + left)


@pytest.mark.parametrize("style", [TFConfigStyle.SPARSE, TFConfigStyle.V1])
@pytest.mark.parametrize("lost", ["worker-1", "worker-2"])
def test_gang_does_not_restart_smaller_while_old_pod_may_run(style: TFConfigStyle, lost: str) -> None:
    """A gang that shrinks live drops the replicas from the lost index on. A gang that must restart has to wait."""
    spec = replicas("Worker", 3, min_replicas=1)
    world = started(v1_job(spec, tf_config=style, scheduling=Scheduling(min_available=1)))
    pod = world.pod(lost)
    world.delete(pod)
    for _ in range(12):
        world.step()
        world.now += 60
    world.step()
    place = world.memory.admission
    if style is TFConfigStyle.V1:
        assert place is None
        assert "node n1" in world.memory.message
    else:
        assert place is not None
        assert place.sizes["worker"] == int(lost[-1])
    assert pod["metadata"]["name"] in world.pods


def test_gang_is_not_readmitted_before_old_pods_are_gone() -> None:
    world = started(patient())
    pod = world.pod("worker-1")
    world.delete(pod)
    for _ in range(20):
        world.step()
        for other in [one for one in world.pods.values() if one is not pod and "deletionTimestamp" in one["metadata"]]:
            world.remove(other)
        world.now += 60
    assert (list(world.pods), world.memory.admission) == ([pod["metadata"]["name"]], None)
    assert world.memory.unconfirmed == f"{pod['metadata']['name']} on n1"
    assert "out-of-service" in world.memory.message
    world.remove(pod)
    world.settle()
    assert (len(world.pods), world.memory.unconfirmed) == (3, "")


# -- nodes --------------------------------------------------------------------------------------------------------


def node(status: str) -> dict[str, Any]:
    condition = {"type": "Ready", "status": status, "lastTransitionTime": format_time(START)}
    return {"metadata": {"name": "n1"}, "status": {"conditions": [condition]}}


def test_node_is_ready_unless_its_condition_says_otherwise() -> None:
    assert unready_node(node("True")) is None
    assert unready_node({"metadata": {"name": "n1"}}) is None
    assert unready_node(node("Unknown")) == unready_node(node("False")) == UnreadyNode(START)
    assert unready_node(None) == UnreadyNode(gone=True)


@pytest.mark.parametrize(
    ("tolerations", "due"),
    [
        (None, 310.0),
        ([], 310.0),
        ([{"key": "gpu", "operator": "Exists", "tolerationSeconds": 5}], 310.0),
        ([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 5}], 15.0),
        ([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}], 310.0),
        ([{"operator": "Exists"}], None),
        ([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}], None),
        (["nonsense"], 310.0),
        (5, 310.0),
        ([{"operator": "Exists", "tolerationSeconds": True}], None),
    ],
)
def test_node_loss_time_follows_tolerations(tolerations: Any, due: float | None) -> None:
    job = v1_job(replicas("Worker", 1))
    spec = job.replica_specs[0]
    template = {"spec": {**spec.template["spec"], "tolerations": tolerations}}
    job = replace(job, replica_specs=(replace(spec, template=template),))
    world = started(job)
    pods = views(*world.pods.values())
    observed = Observed(now=START, pods=pods, unready={"n1": UnreadyNode(START)})
    assert list(node_loss_times(read_context(job, world.memory, observed))) == ([] if due is None else [START + due])


# -- settings -----------------------------------------------------------------------------------------------------


def document(**annotations: str) -> dict[str, Any]:
    worker = {"replicas": 1, "template": {"spec": {"containers": [{"name": "tensorflow", "image": "tf"}]}}}
    named = {f"tf-dist.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "mnist", "annotations": named},
        "spec": {"tfReplicaSpecs": {"Worker": worker}},
    }


def test_annotations_set_recovery_timeout_and_max_disruptions() -> None:
    job = read(document(recovery_timeout="1m30s", max_disruptions="7"))
    assert (job.scheduling.recovery_timeout, job.run_policy.max_disruptions) == (90.0, 7)


@pytest.mark.parametrize("text", ["", " 5m", "5m\n", "soon", "-5m", "5 minutes", "1e3", "9" * 400])
def test_rejects_invalid_recovery_timeout(text: str) -> None:
    with pytest.raises(InvalidJob, match=r"tf-dist.dev/recovery-timeout"):
        read(document(recovery_timeout=text))


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5", "9" * 400])
def test_rejects_invalid_max_disruptions(text: str) -> None:
    with pytest.raises(InvalidJob, match=r"tf-dist.dev/max-disruptions"):
        read(document(max_disruptions=text))


def test_queue_sets_recovery_timeout() -> None:
    queue = {
        "apiVersion": "tf-dist.dev/v1alpha1",
        "kind": "Queue",
        "metadata": {"name": "q"},
        "spec": {"recoveryTimeout": "10m"},
    }
    assert parse_queue(queue).queue.recovery_timeout == 600.0
    with pytest.raises(InvalidQueue, match=r"spec.recoveryTimeout"):
        parse_queue({**queue, "spec": {"recoveryTimeout": "soon"}})
