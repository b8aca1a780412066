"""A small job, and nodes and pods as a cluster stores them."""

from __future__ import annotations

from typing import Any

from tests.core.builders import START, replicas, template, v1_job
from tf_dist.core.api.job import Job
from tf_dist.core.api.status import Admission, Phase, Status


def container(restart: str = "", **values: str) -> dict[str, Any]:
    body: dict[str, Any] = {"resources": {"requests": values}}
    return {**body, "restartPolicy": restart} if restart else body


def job() -> Job:
    pod = template(containers=[container(cpu="1")])
    return v1_job(replicas("PS", 1, template=pod), replicas("Worker", 2, template=pod))


def node(name: str = "n", *, ready: str = "True", unschedulable: bool = False) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"unschedulable": unschedulable},
        "status": {"allocatable": {"cpu": "8", "pods": "10"}, "conditions": [{"type": "Ready", "status": ready}]},
    }


def pod(
    on: str | None = "n", phase: str = "Running", owner: str = "", type_: str = "worker", index: int = 0
) -> dict[str, Any]:
    labels = {"tf-dist.dev/job-uid": owner, "tf-dist.dev/replica-type": type_} if owner else None
    if labels:
        labels["tf-dist.dev/replica-index"] = str(index)
    spec = {"containers": [container(cpu="1")]} | ({"nodeName": on} if on else {})
    metadata: dict[str, Any] = {"name": "p", "namespace": "default", "labels": labels}
    if owner:
        metadata["ownerReferences"] = [{"uid": owner, "controller": True}]
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


ADMITTED = Status(
    phase=Phase.RUNNING,
    admission=Admission(START, {"worker": {"n": 1, "m": 1}}, sizes={"ps": 1, "worker": 2}, resized=START + 9),
)
