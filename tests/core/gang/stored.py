"""A small job, and nodes and pods as a cluster stores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.core.builders import START, replicas, template, v1_job
from tests.core.gang.gangs import gangs_of
from tf_dist.core.gang.admission import AdmissionChanges, Admitter
from tf_dist.core.gang.resources.admission_config import LabelsOf
from tf_dist.core.gang.resources.resource_quota import ResourceQuotas
from tf_dist.core.gang.types import NO_ADMISSION_CONFIG, AdmissionConfig, AdmissionRequest, Gang, Node
from tf_dist.core.model.assignment import Verdict
from tf_dist.core.model.job import Job
from tf_dist.core.model.status import Admission, Phase, Status


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
    on: str | None = "n",
    phase: str = "Running",
    owner: str = "",
    type_: str = "worker",
    index: int = 0,
    cpu: str = "1",
) -> dict[str, Any]:
    labels = {"tf-dist.dev/job-uid": owner, "tf-dist.dev/replica-type": type_} if owner else None
    if labels:
        labels["tf-dist.dev/replica-index"] = str(index)
    spec = {"containers": [container(cpu=cpu)]} | ({"nodeName": on} if on else {})
    metadata: dict[str, Any] = {"name": "p", "namespace": "default", "labels": labels}
    if owner:
        metadata["ownerReferences"] = [{"uid": owner, "controller": True}]
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


ADMITTED = Status(
    phase=Phase.RUNNING,
    admission=Admission(START, {"worker": {"n": 1, "m": 1}}, sizes={"ps": 1, "worker": 2}, resized=START + 9),
)


def admitter_of(
    requests: Iterable[AdmissionRequest] = (),
    nodes: Iterable[Mapping[str, Any]] | None = (),
    pods: Iterable[Mapping[str, Any]] = (),
    *,
    config: AdmissionConfig = NO_ADMISSION_CONFIG,
    resource_quotas: ResourceQuotas | None = None,
    namespaces: LabelsOf = lambda _: None,
) -> Admitter:
    """An admitter with these objects that has not decided yet. ``nodes`` None: nodes cannot be listed."""
    admitter = Admitter(sees_nodes=nodes is not None, namespaces=namespaces)
    changes = AdmissionChanges(
        jobs={request.job.uid: request for request in requests},
        nodes={node["metadata"]["name"]: node for node in nodes or ()},
        pods={str(number): pod for number, pod in enumerate(pods)},
        config=config,
        resource_quotas=resource_quotas,
    )
    admitter.update(changes)
    admitter.refresh()
    return admitter


@dataclass(frozen=True)
class Seen:
    """The gangs and nodes that an admitter builds from the documents."""

    gangs: Mapping[str, Gang]
    nodes: Mapping[str, Node]


def seen(admitter: Admitter) -> Seen:
    gangs = {gang.uid: gang for gang in gangs_of(admitter.scheduler)}
    snapshot = admitter.scheduler.cache.assumed_pods.snapshot
    return Seen(gangs, {name: snapshot.node(name) for name in snapshot.nodes})


def verdicts(admitter: Admitter, now: float = 0.0) -> dict[str, Verdict]:
    """The verdict on every job."""
    uids = [gang.uid for gang in gangs_of(admitter.scheduler)]
    found = admitter.cycle(now).verdicts
    return {uid: found.get(uid) or admitter.explain(uid) for uid in uids}
