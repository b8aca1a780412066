"""Situations in which a job has a problem. docs/troubleshooting.md shows what ``tf-dist explain`` prints for each.

The cluster is the embedded store with a controller. The test acts as the kubelet and the scheduler, and uses the
messages of Kubernetes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from tests.controller.harness import World, disturbed, running, tfjob
from tests.leaderless import held_lease
from tf_dist.cli import findings
from tf_dist.client.stored_jobs import StoredJob, find_problems, leader_problems, pods_of
from tf_dist.cluster.api import NODES, PODS, QUEUES, TFJOBS, Object
from tf_dist.controller.controller import Controller
from tf_dist.controller.settings import ControllerSettings
from tf_dist.core.model import names
from tf_dist.errors import AlreadyExists, ClusterError, Forbidden

_LONG_AGO: Final = 1_768_464_000.0
QUEUE: Final[Object] = {
    "apiVersion": "tf-dist.dev/v1alpha1",
    "kind": "Queue",
    "metadata": {"name": "vision"},
    "spec": {"quotas": {"cpu": {"nominal": 4}}, "namespaceSelector": {"matchLabels": {"team": "vision"}}},
}


def explained(world: World, name: str) -> str:
    """The output of ``tf-dist explain`` without its last line, which names the leader."""
    with contextlib.suppress(AlreadyExists):
        held_lease(world.memory, world.clock.now)
    job = StoredJob(TFJOBS, world.job(name))
    lines = [f"{job.shown} is {job.state}."]
    found = (*leader_problems(world.cluster, [job]), *find_problems(job, pods_of(world.cluster, job)))
    findings.show_findings(found, lines.append)
    return "\n".join(lines)


def _submitted(world: World, name: str, job: Object | None = None, **options: Any) -> None:
    world.submit({**(job or tfjob(name, **options)), "metadata": {"name": name, "namespace": "default"}})
    world.settle()


def _held(world: World, reason: str, message: str) -> None:
    """The kubelet cannot start the workers."""
    _submitted(world, "mnist", workers=1)
    world.run_pods("mnist-ps-0")
    state = {"waiting": {"reason": reason, "message": message}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "tensorflow", "state": state, "restartCount": 0}]}
    world.set_status("mnist-worker-0", status)
    world.settle()


def _ended(world: World, pod: str, code: int, reason: str, message: str) -> None:
    world.run_pods()
    world.settle()
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "tensorflow", "state": state, "restartCount": 0}]}
    world.set_status(pod, status)
    world.settle()


def waits_for_room(world: World) -> None:
    """Another job uses the cluster."""
    _submitted(world, "resnet", workers=5)
    _submitted(world, "mnist", workers=3)


def too_large(world: World) -> None:
    """The cluster has 8 CPUs."""
    _submitted(world, "mnist", workers=9)


def unknown_queue(world: World) -> None:
    """The job names a queue that does not exist."""
    world.memory.create(QUEUES, None, {**QUEUE, "spec": {}})
    _submitted(world, "mnist", schedulingPolicy={"queue": "visoin"})


def no_quota(world: World) -> None:
    """The quota of the job's queue is in use."""
    world.memory.create(QUEUES, None, {**QUEUE, "spec": {"quotas": {"cpu": {"nominal": 4}}}})
    _submitted(world, "resnet", workers=2, schedulingPolicy={"queue": "vision"})
    _submitted(world, "mnist", workers=2, schedulingPolicy={"queue": "vision"})


def closed_queue(world: World) -> None:
    """The job's queue does not accept jobs of its namespace."""
    world.memory.create(QUEUES, None, QUEUE)
    _submitted(world, "mnist", schedulingPolicy={"queue": "vision"})


def cordoned(world: World) -> None:
    """The only node is cordoned."""
    world.memory.patch(NODES, None, "n1", {"spec": {"unschedulable": True}})
    _submitted(world, "mnist")


def image(world: World) -> None:
    """An image cannot be pulled."""
    _held(world, "ImagePullBackOff", 'Back-off pulling image "my-registry/train:8"')


def secret(world: World) -> None:
    """A Secret is missing."""
    _held(world, "CreateContainerConfigError", 'secret "s3-credentials" not found')


def memory(world: World) -> None:
    """A worker needs more memory than its limit."""
    _submitted(world, "mnist", job=_restarts("Never"))
    _ended(world, "mnist-worker-0", 137, "OOMKilled", "")


def command(world: World) -> None:
    """A module is missing in the image."""
    _submitted(world, "mnist", job=_restarts("Never"))
    _ended(world, "mnist-worker-0", 1, "Error", "ModuleNotFoundError: No module named 'tensorflow_io'")


def crash_loop(world: World) -> None:
    """The parameter server ends repeatedly."""
    _submitted(world, "mnist")
    world.run_pods()
    last = {"terminated": {"exitCode": 3, "reason": "Error", "message": "cannot bind port 2222"}}
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}
    container = {"name": "tensorflow", "state": state, "lastState": last, "restartCount": 3}
    world.set_status("mnist-ps-0", {**running(), "conditions": [], "containerStatuses": [container]})
    world.settle()


def evicted(world: World) -> None:
    """``kubectl drain`` has evicted a pod."""
    _submitted(world, "mnist")
    world.run_pods()
    world.settle()
    world.memory.evict("default", "mnist-worker-1")
    world.controller.step()
    world.bury()
    world.settle()
    world.clock.now += 30
    world.settle()
    world.run_pods()
    world.settle()


def too_often(world: World) -> None:
    """The job has more disruptions than it allows."""
    job = tfjob("mnist")
    job["metadata"]["annotations"] = {names.MAX_DISRUPTIONS: "0"}
    world.submit(job)
    world.settle()
    world.run_pods()
    world.settle()
    world.memory.evict("default", "mnist-worker-1")
    world.controller.step()
    world.bury()
    world.settle()


def invalid(world: World) -> None:
    """A running job was edited and is now invalid."""
    _submitted(world, "mnist")
    world.run_pods()
    world.settle()
    patch = {"spec": {"tfReplicaSpecs": {"Worker": {"restartPolicy": "Sometimes"}}}}
    with contextlib.suppress(ClusterError):
        world.memory.patch(TFJOBS, "default", "mnist", patch)
    world.settle()


def node_lost(world: World) -> None:
    """The node of a worker no longer reports."""
    _submitted(world, "mnist")
    world.run_pods()
    world.settle()
    silent = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    world.set_status("mnist-worker-1", {**running(), "conditions": silent})
    world.settle()


def _blind(world: World) -> None:
    """The controller cannot list nodes, so admission only considers quota."""

    def refuse(verb: str, resource: object = None, *_: object, **__: object) -> None:
        if verb in ("list", "watch") and resource == NODES:
            raise Forbidden("nodes is forbidden")

    settings = ControllerSettings(namespace="default")
    world.controller = Controller(
        disturbed(world.memory, refuse), clock=world.clock, monotonic=world.clock, settings=settings
    )


def quota_alone(world: World) -> None:
    """The job has just been admitted by quota."""
    _blind(world)
    _submitted(world, "mnist")


def unschedulable(world: World) -> None:
    """The scheduler has no node for the job's pods."""
    _blind(world)
    _submitted(world, "mnist", workers=1)
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    scheduled["message"] = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    for pod in world.pods().values():
        status = {"phase": "Pending", "conditions": [scheduled]}
        world.memory.replace(PODS, "default", pod["metadata"]["name"], {**pod, "status": status}, subresource="status")
    world.settle()


def leaderless(world: World) -> None:
    """The leader was killed, and no other controller leads."""
    held_lease(world.memory, _LONG_AGO)
    world.submit(tfjob("mnist"))


def _restarts(policy: str) -> Object:
    job = tfjob("mnist")
    job["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = policy
    return job


SITUATIONS: Final[dict[str, Callable[[World], None]]] = {
    play.__name__: play
    for play in (
        waits_for_room,
        too_large,
        unknown_queue,
        no_quota,
        closed_queue,
        cordoned,
        image,
        secret,
        memory,
        command,
        crash_loop,
        evicted,
        too_often,
        invalid,
        node_lost,
        quota_alone,
        unschedulable,
        leaderless,
    )
}
