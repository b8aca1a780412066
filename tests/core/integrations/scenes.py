"""One job with another gang scheduler, pass by pass."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.core.builders import START, v1_job, views
from tf_dist.core.integrations.dispatch import kind_key
from tf_dist.core.model.context import Create, Delete, Observed, Plan, ServedApis, Update, WriteStatus
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import Job
from tf_dist.core.model.status import Admission, Status
from tf_dist.core.reconciler.reconcile import reconcile

Body = dict[str, Any]
WORKLOAD, FLAVOR = "Workload.kueue.x-k8s.io", "ResourceFlavor.kueue.x-k8s.io"
SPOT = {
    "spec": {
        "nodeLabels": {"pool": "spot"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "nodeTaints": [{"key": "spot", "effect": "NoSchedule"}],
    }
}
SERVED = ServedApis(
    versions={WORKLOAD: "v1beta2", FLAVOR: "v1beta2"},
    shared={(FLAVOR, "spot"): SPOT, (FLAVOR, "plain"): {"spec": {}}},
    priorities={"high": 1000},
)


def condition(type_: str, value: bool = True, reason: str = "Because", message: str = "") -> dict[str, Any]:
    return {
        "type": type_,
        "status": "True" if value else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2027-01-15T07:00:00Z",
    }


def admission(**counts: int) -> dict[str, Any]:
    assigned = [{"name": name, "count": count, "flavors": {"cpu": "spot"}} for name, count in counts.items()]
    return {"clusterQueue": "all", "podSetAssignments": assigned}


def asking(gang: GangScheduler, job: Job | None = None, **scheduling: Any) -> Job:
    """A job that asks for a gang scheduler."""
    job = job or v1_job()
    return replace(job, scheduling=replace(job.scheduling, gang=gang, **scheduling))


class Scene:
    """The surroundings of a job. ``look`` is one pass. Its actions take effect at once."""

    def __init__(self, job: Job, served: ServedApis | None) -> None:
        self.job = job
        self.served = served
        self.now = START
        self.status = self._stored = Status()
        self._written: float | None = None
        self.objects: dict[tuple[str, str], Body] = {}
        self.pods: dict[str, Body] = {}
        self.plan = Plan(self.status)

    def look(self) -> Plan:
        """One pass."""
        observed = Observed(
            now=self.now,
            pods=views(*self.pods.values()),
            objects=self.objects,
            served=self.served,
            last_status=self.status,
            last_written=self._written,
        )
        self.plan = reconcile(self.job, observed, self._stored)
        self.status = self.plan.status
        for action in self.plan.actions:
            match action:
                case WriteStatus():
                    self._stored, self._written = self.plan.status, self.now
                case Create(body) if body["kind"] == "Pod":
                    self.pods[body["metadata"]["name"]] = body | {"status": {"phase": "Pending"}}
                    body["metadata"]["uid"] = f"uid-{body['metadata']['name']}"
                case Create(body):
                    self.objects[kind_key(body), body["metadata"]["name"]] = _stored(body)
                case Delete("Pod", name, _):
                    self.pods[name]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
                case Delete(kind, name, _):
                    del self.objects[kind, name]
                case Update(kind, name, patch):
                    _merge(self.objects[kind, name], patch)
        return self.plan

    def settle(self) -> Plan:
        """Passes until a pass has no actions."""
        for _ in range(20):
            if not self.look().actions:
                return self.plan
        raise AssertionError(f"not settled: {self.plan}")

    def place(self) -> Admission | None:
        """The admission of the job, if any."""
        return self.status.admission

    def gang(self) -> Body:
        """The one object of a gang scheduler."""
        [(_, body)] = [(key, body) for key, body in self.objects.items() if "." in key[0]]
        return body

    def gangs(self) -> list[str]:
        """The names of the gang schedulers' objects."""
        return [name for kind, name in self.objects if "." in kind]

    def tell(self, **status: Any) -> None:
        """Sets the status of the gang scheduler's object."""
        self.gang()["status"] = status

    def bind(self, *names: str, node: str = "n1", phase: str = "Pending") -> None:
        """Binds these pods, or all pods, to a node."""
        for name in names or list(self.pods):
            self.pods[name]["spec"]["nodeName"] = node
            self.pods[name]["status"] = {"phase": phase}

    def say(self, name: str, message: str) -> None:
        """Marks a pod as unschedulable."""
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self.pods[name]["status"] = {"phase": "Pending", "conditions": [unscheduled]}

    def bury(self) -> None:
        """Removes deleted pods."""
        self.pods = {k: v for k, v in self.pods.items() if "deletionTimestamp" not in v["metadata"]}


def _stored(body: Body) -> Body:
    stored: Body = json.loads(json.dumps(body))
    stored["metadata"] |= {"uid": f"uid-{body['metadata']['name']}", "resourceVersion": "7", "generation": 1}
    return stored


def _merge(there: Body, patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if isinstance(value, Mapping):
            if not isinstance(there.get(key), dict):
                there[key] = {}
            _merge(there[key], value)
        elif value is None:
            there.pop(key, None)
        else:
            there[key] = value
