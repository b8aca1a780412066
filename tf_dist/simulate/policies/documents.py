"""Simulated jobs and nodes as Kubernetes has them: documents, in the words that users and kubelets write them in."""

from __future__ import annotations

from typing import Any, Final

from tf_dist.core import names
from tf_dist.core.times import format_time
from tf_dist.simulate.model import Cluster, SimJob

GPU: Final = "nvidia.com/gpu"
CONTAINER: Final = "tensorflow"
# More pods than this no simulated node has: only cores and GPUs are counted.
_PODS: Final = "100000"

Body = dict[str, Any]


def job_document(job: SimJob, uid: str, created_at: float) -> Body:
    """The TFJob of a simulated job. One of more than one size says so, as users do, by annotation."""
    annotations = {names.EXPECTED_DURATION: f"{job.estimate:f}s"} if job.estimate else {}
    if job.elastic:
        annotations |= {names.MIN_WORKERS: str(job.least), names.MAX_WORKERS: str(job.most)}
    servers = {"PS": _replicas(job.ps, {"cpu": str(job.ps_cpu)})} if job.ps else {}
    workers = _replicas(job.workers, {"cpu": str(job.cpu)} | ({GPU: str(job.gpus)} if job.gpus else {}))
    scheduling = {"priorityClass": priority_class(job.priority)} | ({"queue": job.queue} if job.queue else {})
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {
            "name": job.name,
            "namespace": "default",
            "uid": uid,
            "creationTimestamp": format_time(created_at),
            "annotations": annotations,
        },
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running", "schedulingPolicy": scheduling},
            "tfReplicaSpecs": {**servers, "Worker": workers},
        },
    }


def priority_class(priority: int) -> str:
    """The name of the class of a priority."""
    return f"priority-{priority}"


def _replicas(count: int, requests: dict[str, str]) -> Body:
    container = {"name": CONTAINER, "image": "simulated", "resources": {"requests": requests, "limits": requests}}
    return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}


def node_document(name: str, cluster: Cluster) -> Body:
    """An empty node."""
    gpus = {GPU: str(cluster.gpus)} if cluster.gpus else {}
    return {
        "metadata": {"name": name, "labels": {}},
        "status": {"allocatable": {"cpu": str(cluster.cpu), "pods": _PODS, **gpus}},
    }


def running_pod(body: Body, uid: str, now: float) -> Body:
    """A pod as it was asked for, on the node that it asks for, and running: here neither takes any time."""
    metadata = {**body["metadata"], "uid": uid, "creationTimestamp": format_time(now)}
    container = {"name": CONTAINER, "state": {"running": {}}, "restartCount": 0}
    status = {
        "phase": "Running",
        "startTime": format_time(now),
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [container],
    }
    return {**body, "metadata": metadata, "spec": {**body["spec"], "nodeName": _node(body)}, "status": status}


def _node(body: Body) -> str:
    """The node to which it was pinned (``core.affinity``); KeyError: to none, though all nodes can be seen."""
    required = body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    node: str = required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
    return node


def succeeded_pod(pod: Body, now: float) -> Body:
    """The pod when its process has ended well."""
    terminated = {"exitCode": 0, "finishedAt": format_time(now)}
    container = {"name": CONTAINER, "state": {"terminated": terminated}, "restartCount": 0}
    return {**pod, "status": {**pod["status"], "phase": "Succeeded", "containerStatuses": [container]}}
