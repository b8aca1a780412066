"""A tiny model of a cluster for tests of the core: a dict of objects, a kubelet that the test moves, a clock.

``World`` applies plans action by action, may die after any action, and checks the invariants with every action.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.core.builders import START
from tf_dist.core.model import names, pods
from tf_dist.core.model.assignment import Admit, Verdict, Wait
from tf_dist.core.model.context import Action, Create, Delete, DeleteJob, Observed, PatchJob, Plan, Update, WriteStatus
from tf_dist.core.model.job import Job, ReplicaId
from tf_dist.core.model.pods import PodView, pod_view
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import ALLOWED_TRANSITIONS, LIVE, TERMINAL, Admission, Phase, Status
from tf_dist.core.model.status_codec import FIELD, dump_status, load_status
from tf_dist.core.model.timestamps import format_micro_time, format_time
from tf_dist.core.reconciler.reconcile import reconcile

WAIT = Wait(reason=Reason.WAITING_FOR_CAPACITY, message="no room")
_MOST_PASSES = 60
_SHOWN = ("state", "ready", "why", "selector", "outcome")  # derived, and not read back
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class World:
    """One job in one cluster."""

    def __init__(self, job: Job, *, gathers: bool = False) -> None:
        """``gathers``: small changes are written together, as in life; else each at once, so that all can be seen."""
        self.job = job
        self.gathers = gathers
        self.remembered: Status | None = None
        self.last_written: float | None = None
        self.now = START + 0.123456
        self.status: dict[str, Any] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.verdict: Verdict | None = Admit()
        self.job_gone = False
        self.schedules = True
        self.closed_nodes: frozenset[str] = frozenset()  # to pods of any type
        self.gone: list[PodView] = []
        self.writes = 0
        self._uids = 0

    # -- the controller -------------------------------------------------------------------------------------------

    def look(self) -> Plan:
        views = (pod_view(pod, "tensorflow") for pod in self.pods.values())
        plan = reconcile(
            self.job,
            Observed(
                now=self.now,
                stored_status=self.status,
                pods=tuple(view for view in views if view is not None),
                objects=self.objects,
                verdict=self.verdict,
                closed_nodes={spec.type: self.closed_nodes for spec in self.job.replica_specs},
                last_status=self.remembered,
                last_written=self.last_written,
                departed=tuple(self.gone),
            ),
            self.memory,
        )
        self.remembered = plan.status if self.gathers else None
        assert plan.wake_at is None or plan.wake_at > self.now
        return plan

    def step(self, most: int | None = None) -> bool:
        """One pass that stops after ``most`` actions. Returns whether the plan had actions."""
        plan = self.look()
        if plan.actions and not self.job_gone:
            assert not any(isinstance(action, WriteStatus) for action in plan.actions[1:])
        for action in plan.actions[:most]:
            self._apply(action, plan)
        return bool(plan.actions)

    def settle(self, most: int | None = None) -> Plan:
        """Passes at one moment until nothing is left to do. Deleted pods stop."""
        for _ in range(_MOST_PASSES):
            busy = self.step(most) and not self.job_gone
            for pod in [pod for pod in self.pods.values() if "deletionTimestamp" in pod["metadata"]]:
                self.remove(pod)
                busy = True
            if not busy:
                return self.look()
        raise AssertionError(f"does not settle: {self.look()}")

    @property
    def memory(self) -> Status:
        return load_status(self.status)

    @property
    def admission(self) -> Admission:
        """The admission of an admitted job."""
        assert self.memory.admission is not None, "the job is not admitted"
        return self.memory.admission

    def _apply(self, action: Action, plan: Plan) -> None:
        match action:
            case WriteStatus():
                self._write(action.status, plan)
            case Create() if action.body["kind"] == "Pod":
                self._create_pod(json.loads(json.dumps(action.body)))
            case Create():
                key = (action.body["kind"], action.body["metadata"]["name"])
                assert self.memory.admission is not None
                assert key not in self.objects
                self.objects[key] = json.loads(json.dumps(action.body))
            case Update():
                for part, values in action.patch.items():
                    there = self.objects[action.kind, action.name][part]
                    there |= values
                    for key in [key for key, value in there.items() if value is None]:
                        del there[key]
            case Delete() if action.kind == "Pod":
                self.delete(self.pods[action.name], action.uid)
            case Delete():
                del self.objects[action.kind, action.name]
            case PatchJob():
                assert action.patch == {"spec": self.job.spec_defaults}
                self.job = replace(self.job, spec_defaults={})
            case DeleteJob():
                assert self.memory.phase in TERMINAL
                self.job_gone = True

    def _write(self, status: Any, plan: Plan) -> None:
        before = self.memory
        self.status = json.loads(json.dumps(status))
        after = self.memory
        self.writes += 1
        self.last_written = self.now if self.gathers else None
        assert after == plan.status
        # The codec neither drops nor adds anything.
        stored = {key: value for key, value in self.status[FIELD].items() if key not in _SHOWN}
        assert dump_status(after) == stored
        assert after != before
        assert after.phase is before.phase or after.phase in _reachable(before.phase)
        if before.phase in TERMINAL:
            assert (after.phase, after.reason) == (before.phase, before.reason)
        limit = self.job.run_policy.max_restarts
        assert limit is None or after.charged_restarts <= limit
        assert after.total_disruptions <= pods.disruption_limit(self.job)
        if after.phase not in (Phase.PENDING, Phase.RUNNING):
            assert after.reason
            assert after.message
        self._check_words()

    def _check_words(self) -> None:
        true = {c["type"] for c in self.status.get("conditions", ()) if c.get("status") == "True"}
        assert not {"Succeeded", "Failed"} <= true
        assert not {"Running", "Restarting"} <= true
        types = [c["type"] for c in self.status.get("conditions", ()) if "type" in c]
        assert len(types) == len(set(types))

    def _create_pod(self, body: dict[str, Any]) -> None:
        memory, metadata = self.memory, body["metadata"]
        replica, attempt = _replica(body), metadata["labels"][names.ATTEMPT].split(".")
        assert memory.admission is not None, "a pod before its gang was admitted"
        assert memory.phase in LIVE
        assert attempt == memory.attempts.label(replica).split(".")
        asked = self.job.spec(replica.type)
        assert asked is not None
        assert replica.index < min(memory.admission.sizes.get(replica.type, asked.replicas), asked.most)
        self._check_node(body, replica, memory.admission.placement)
        for other in self.pods.values():
            made = other["metadata"]["labels"][names.ATTEMPT].split(".")
            assert _replica(other) != replica, "two pods for one replica"
            assert made[0] == attempt[0], "two attempts of the job overlap"
            assert _replica(other).type != replica.type or made[1] == attempt[1], "two attempts of a task overlap"
        self._uids += 1
        metadata |= {"uid": f"pod-{self._uids}", "creationTimestamp": format_time(self.now)}
        body["status"] = {"phase": "Pending"}
        if self.schedules:
            body["spec"]["nodeName"] = pinned_to(body) or "n1"
        assert metadata["name"] not in self.pods
        self.pods[metadata["name"]] = body

    def _check_node(self, body: dict[str, Any], replica: ReplicaId, placement: Any) -> None:
        """No node gets more pods than were assigned there, counting pods that are pinned to it or run on it."""
        node = pinned_to(body)
        if node:
            others = (pod for pod in self.pods.values() if _replica(pod).type == replica.type)
            taken = sum(node == (pod["spec"].get("nodeName") or pinned_to(pod)) for pod in others)
            assert taken < placement.get(replica.type, {}).get(node, 0)

    # -- the kubelet, the cluster, and users ----------------------------------------------------------------------

    def has(self, replica: str) -> bool:
        return any(str(_replica(pod)) == replica for pod in self.pods.values())

    def pod(self, replica: str) -> dict[str, Any]:
        assert self.has(replica), f"{replica} has no pod: {sorted(self.pods)}"
        return next(pod for pod in self.pods.values() if str(_replica(pod)) == replica)

    def run(self, pod: dict[str, Any], *, ready: bool = True) -> None:
        if pod["status"]["phase"] not in ("Pending", "Unknown"):
            return
        container = {"name": "tensorflow", "state": {"running": {}}, "restartCount": 0}
        pod["status"] = {
            "phase": "Running",
            "startTime": format_micro_time(self.now),
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [container],
        }

    def end(self, pod: dict[str, Any], code: int, reason: str = "") -> None:
        if pod["status"]["phase"] not in ("Running", "Unknown"):
            return
        terminated = {"exitCode": code, "reason": reason, "finishedAt": format_time(self.now)}
        pod["status"] |= {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": "tensorflow", "state": {"terminated": terminated}, "restartCount": 0}],
        }

    def restart_container(self, pod: dict[str, Any], code: int) -> None:
        if pod["status"]["phase"] != "Running":
            return
        container = pod["status"]["containerStatuses"][0]
        container["lastState"] = {"terminated": {"exitCode": code}}
        container["restartCount"] += 1

    def evict(self, pod: dict[str, Any]) -> None:
        if pod["status"]["phase"] in ("Pending", "Running"):
            pod["status"] = {"phase": "Failed", "reason": "Evicted"}

    def lose_node(self, pod: dict[str, Any]) -> None:
        if pod["status"]["phase"] == "Running":
            pod["status"]["phase"] = "Unknown"

    def bind(self, pod: dict[str, Any], node: str = "") -> None:
        pod["spec"]["nodeName"] = node or pinned_to(pod) or "n1"
        pod["status"].pop("conditions", None)

    def hold_back(self, pod: dict[str, Any], message: str = "0/3 nodes are available") -> None:
        if pod["status"]["phase"] == "Pending":
            pod["spec"].pop("nodeName", None)
            condition = {"type": "PodScheduled", "status": "False", "message": message}
            pod["status"]["conditions"] = [condition]

    def delete(self, pod: dict[str, Any], uid: str = "") -> None:
        assert uid in ("", pod["metadata"]["uid"])
        pod["metadata"].setdefault("deletionTimestamp", format_time(self.now))
        if pod["status"]["phase"] not in ("Running", "Unknown"):
            self.remove(pod)

    def kill(self, pod: dict[str, Any]) -> None:
        """The container of a pod that is being deleted ends before the pod is gone."""
        if "deletionTimestamp" in pod["metadata"]:
            self.end(pod, 143)

    def remove(self, pod: dict[str, Any]) -> None:
        self.pods.pop(pod["metadata"]["name"], None)

    def vanish(self, pod: dict[str, Any]) -> None:
        """The pod disappears at once, and its last state is remembered."""
        view = pod_view(pod, "tensorflow")
        self.gone += [view] if view is not None else []
        self.remove(pod)

    def suspend(self, wish: bool) -> None:
        self.job = replace(self.job, run_policy=replace(self.job.run_policy, suspend=wish))

    def scale(self, type_: str, count: int) -> None:
        specs = tuple(
            replace(spec, replicas=count, min_replicas=min(count, spec.min_replicas)) if spec.type == type_ else spec
            for spec in self.job.replica_specs
        )
        self.job = replace(self.job, replica_specs=specs)


def pinned_to(pod: dict[str, Any]) -> str:
    """The node that a pod requires by name, "" for none."""
    required = (pod["spec"].get("affinity") or {}).get("nodeAffinity", {}).get(_REQUIRED, {})
    terms = [[rule["values"] for rule in term.get("matchFields", ())] for term in required.get("nodeSelectorTerms", ())]
    names_ = {tuple(values) for term in terms for values in term}
    assert len(names_) <= 1, "pinned to several nodes"
    return next(iter(names_))[0] if names_ else ""


def _reachable(phase: Phase) -> set[Phase]:
    found: set[Phase] = set()
    edge = {phase}
    while edge:
        edge = {following for one in edge for following in ALLOWED_TRANSITIONS[one]} - found
        found |= edge
    return found


def _replica(pod: dict[str, Any]) -> ReplicaId:
    labels = pod["metadata"]["labels"]
    return ReplicaId(labels[names.REPLICA_TYPE], int(labels[names.REPLICA_INDEX]))
