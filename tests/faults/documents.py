"""Jobs, queues and priorities of the schedules, in every dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tf_dist.cluster.api import TFJOBS, TFJOBS_V1ALPHA1, VOLCANO_JOBS, Object, Resource
from tf_dist.core.dialects.common_schema import SERVICES_ANNOTATION
from tf_dist.core.model import names

TEAM = "team"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The requests of a job. ``fewest`` and ``most`` are the limits of its number of workers."""

    dialect: str = "v1"
    workers: int = 2
    ps: int = 0
    cpu: int = 1
    fewest: int | None = None
    most: int | None = None
    policy: str = "ExitCode"
    clean: str = "Running"
    backoff: int | None = None
    deadline: int | None = None
    ttl: int | None = None
    priority: str = ""
    queue: str = ""
    per_job: bool = False
    depends: bool = False
    evicted: str = "RestartJob"

    @property
    def resource(self) -> Resource:
        """The kind of the document."""
        return {"v1": TFJOBS, "v1alpha1": TFJOBS_V1ALPHA1, "volcano": VOLCANO_JOBS}[self.dialect]

    @property
    def restarts(self) -> int | None:
        """The limit of restarts after failures. None means that there is no limit."""
        if self.dialect == "volcano":
            return (3 if self.backoff is None else max(1, self.backoff)) - 1
        return self.backoff if self.dialect == "v1" else None

    def document(self, name: str) -> Object:
        """The job as its user writes it."""
        match self.dialect:
            case "v1":
                return self._v1(name)
            case "v1alpha1":
                return self._v1alpha1(name)
        return self._volcano(name)

    def _pods(self, policy: str = "") -> Object:
        container = {
            "name": "tensorflow",
            "image": "tf",
            "command": ["python", "train.py"],
            "resources": {"requests": {"cpu": str(self.cpu)}},
        }
        spec: Object = {"containers": [container]}
        if policy:
            spec["restartPolicy"] = policy
        if self.priority and self.dialect == "v1alpha1":
            spec["priorityClassName"] = self.priority
        return {"spec": spec}

    def _metadata(self, name: str) -> Object:
        notes: dict[str, str] = {}
        if self.dialect != "v1alpha1":
            if self.fewest is not None and self.dialect == "v1":
                notes[names.MIN_WORKERS] = str(self.fewest)
            if self.most is not None:
                notes[names.MAX_WORKERS] = str(self.most)
        if self.per_job and self.dialect == "v1":
            notes[SERVICES_ANNOTATION] = "per-job"
        labels = {names.QUEUE: self.queue} if self.queue else {}
        return {"name": name, "namespace": TEAM, "annotations": notes, "labels": labels}

    def _v1(self, name: str) -> Object:
        policy: Object = {"cleanPodPolicy": self.clean}
        if self.backoff is not None:
            policy["backoffLimit"] = self.backoff
        if self.deadline is not None:
            policy["activeDeadlineSeconds"] = self.deadline
        if self.ttl is not None:
            policy["ttlSecondsAfterFinished"] = self.ttl
        if self.priority:
            policy["schedulingPolicy"] = {"priorityClass": self.priority}
        specs: Object = {"Worker": {"replicas": self.workers, "restartPolicy": self.policy, "template": self._pods()}}
        if self.ps:
            specs = {"PS": {"replicas": self.ps, "restartPolicy": "OnFailure", "template": self._pods()}, **specs}
        spec: Object = {"runPolicy": policy, "tfReplicaSpecs": specs}
        if self.most is not None or self.fewest is not None:
            spec["enableDynamicWorker"] = True
        return {
            "apiVersion": TFJOBS.api_version,
            "kind": TFJOBS.kind,
            "metadata": self._metadata(name),
            "spec": spec,
        }

    def _v1alpha1(self, name: str) -> Object:
        specs: list[Any] = [
            {"replicas": 1, "tfReplicaType": "MASTER", "template": self._pods("OnFailure")},
            {"replicas": self.workers, "tfReplicaType": "WORKER", "template": self._pods("OnFailure")},
        ]
        if self.ps:
            specs.append({"replicas": self.ps, "tfReplicaType": "PS", "template": self._pods("OnFailure")})
        return {
            "apiVersion": TFJOBS_V1ALPHA1.api_version,
            "kind": TFJOBS_V1ALPHA1.kind,
            "metadata": self._metadata(name),
            "spec": {"replicaSpecs": specs},
        }

    def _volcano(self, name: str) -> Object:
        worker: Object = {
            "name": "worker",
            "replicas": self.workers,
            "policies": [{"event": "TaskCompleted", "action": "CompleteJob"}],
            "template": self._pods("Never"),
        }
        tasks: list[Object] = [worker]
        if self.ps:
            tasks.insert(0, {"name": "ps", "replicas": self.ps, "template": self._pods("Never")})
            if self.depends:
                worker["dependsOn"] = {"name": ["ps"]}
        fewest = self.workers if self.fewest is None else self.fewest
        spec: Object = {
            "minAvailable": self.ps + fewest,
            "plugins": {"svc": [], "env": []},
            "policies": [
                {"event": "PodEvicted", "action": self.evicted},
                {"event": "PodFailed", "action": "RestartJob"},
            ],
            "tasks": tasks,
        }
        if self.backoff is not None:
            spec["maxRetry"] = max(1, self.backoff)
        if self.ttl is not None:
            spec["ttlSecondsAfterFinished"] = self.ttl
        if self.priority:
            spec["priorityClassName"] = self.priority
        return {
            "apiVersion": VOLCANO_JOBS.api_version,
            "kind": VOLCANO_JOBS.kind,
            "metadata": self._metadata(name),
            "spec": spec,
        }


def queue(name: str, cpu: int, *, parent: str = "", borrow: int | None = None, order: str = "") -> Object:
    """A Queue with this quota of CPUs."""
    quota: Object = {"nominal": cpu}
    if borrow is not None:
        quota["borrowingLimit"] = borrow
    spec: Object = {"quotas": {"cpu": quota}}
    if parent:
        spec["parent"] = parent
    if order:
        spec["order"] = order
    return {"metadata": {"name": name}, "spec": spec}
