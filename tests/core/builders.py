"""Short ways to make jobs and pods for tests of the core."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tf_dist.core.dialects.kubeflow_v1 import RESTART_POLICIES
from tf_dist.core.dialects.kubeflow_v1alpha1 import REPLACE_POD, chief_rules
from tf_dist.core.model.assignment import Admit
from tf_dist.core.model.context import Observed, Plan, WriteStatus
from tf_dist.core.model.job import (
    Action,
    CleanPodPolicy,
    CompletionByCounts,
    Dialect,
    Event,
    Job,
    JobKey,
    Plugins,
    ReplicaId,
    ReplicaSpec,
    Role,
    Rule,
    RunPolicy,
    Scheduling,
    ServiceStyle,
    SuccessRule,
    TFConfigStyle,
)
from tf_dist.core.model.pods import PodView, pod_view
from tf_dist.core.model.status import Status
from tf_dist.core.podbuilder import replica_pod, services
from tf_dist.core.reconciler.job_context import read_context
from tf_dist.core.reconciler.status_writer import build_status

START = 1_800_000_000.0
EVICTED = frozenset({Event.POD_EVICTED, Event.NODE_LOST})
FAILED = frozenset({Event.POD_FAILED})

# The rules that the dialects assign.
NEVER, ON_FAILURE, EXIT_CODE = (RESTART_POLICIES[policy] for policy in ("Never", "OnFailure", "ExitCode"))
REPLACED = (REPLACE_POD,)
CHIEF = chief_rules(0)


def template(**spec: Any) -> dict[str, Any]:
    container = {"name": "tensorflow", "image": "tf", "command": ["python", "train.py"]}
    return {"spec": {"containers": [container], **spec}}


def replicas(name: str, count: int, *, rules: tuple[Rule, ...] = NEVER, **fields: Any) -> ReplicaSpec:
    type_ = name.lower()
    role = Role(type_) if type_ in set(Role) else Role.OTHER
    defaults: dict[str, Any] = {
        "role": role,
        "min_replicas": count,
        "template": template(),
        "container": "tensorflow",
        "port": 2222,
    }
    return ReplicaSpec(name=name, type=type_, replicas=count, rules=rules, **{**defaults, **fields})


def v1_job(
    *specs: ReplicaSpec, name: str = "mnist", policy: RunPolicy | None = None, success: Any = None, **fields: Any
) -> Job:
    specs = specs or (replicas("PS", 1), replicas("Worker", 2))
    lead = next((spec.type for spec in specs if spec.role.leads), "worker")
    default_success = (SuccessRule(type=lead, index=0 if lead == "worker" else None),)
    total = sum(spec.replicas for spec in specs)
    return Job(
        dialect=Dialect.TFJOB_V1,
        key=JobKey("default", name),
        uid=f"uid-{name}",
        replica_specs=specs,
        success=default_success if success is None else success,
        running_types=(lead,),
        run_policy=policy or RunPolicy(clean_pods=CleanPodPolicy.RUNNING),
        **{"scheduling": Scheduling(min_available=total), "tf_config": TFConfigStyle.V1, **fields},
    )


def volcano_job(
    *specs: ReplicaSpec, rules: tuple[Rule, ...] = (), min_available: int | None = None, **fields: Any
) -> Job:
    """The tutorial's job: PodEvicted restarts it, and it is complete when all workers are."""
    done = Rule(events=frozenset({Event.TASK_COMPLETED}), action=Action.COMPLETE_JOB)
    specs = specs or (replicas("ps", 1, rules=()), replicas("worker", 2, rules=(done,)))
    evicted = Rule(events=frozenset({Event.POD_EVICTED}), action=Action.RESTART_JOB)
    needed = sum(spec.replicas for spec in specs) if min_available is None else min_available
    defaults: dict[str, Any] = {
        "key": JobKey("default", "tf-dist-mnist"),
        "uid": "uid-volcano",
        "run_policy": RunPolicy(
            clean_pods=CleanPodPolicy.RUNNING,
            max_restarts=2,
            container_restarts_count=False,
            resume_keeps_succeeded=True,
        ),
        "counting": CompletionByCounts(),
        "services": ServiceStyle.PER_JOB,
        "plugins": Plugins(env=True, svc=True),
        "scheduling": Scheduling(min_available=needed, queue="default", scheduler_name="volcano"),
        "tf_config": TFConfigStyle.NONE,
    }
    return Job(dialect=Dialect.VOLCANO, replica_specs=specs, rules=rules or (evicted,), **{**defaults, **fields})


def pod(job: Job, replica: str, status: Mapping[str, Any] | None = None, *, attempt: str = "1.0.0", **meta: Any) -> Any:
    """A raw pod of a job as the cluster stores it; ``status`` as in Kubernetes."""
    type_, _, index = replica.rpartition("-")
    body = replica_pod.build_pod(job, ReplicaId(type_, int(index)), attempt)
    body["metadata"] |= {"uid": f"{replica}@{attempt}", "creationTimestamp": "2027-01-15T08:00:00Z", **meta}
    return {**body, "status": dict(status or {"phase": "Pending"})}


def running(*, ready: bool = True, restarts: int = 0, last: int | None = None) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "tensorflow", "state": {"running": {}}, "restartCount": restarts}
    if last is not None:
        container["lastState"] = {"terminated": {"exitCode": last}}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"phase": "Running", "conditions": conditions, "containerStatuses": [container]}


def ended(code: int, reason: str = "", message: str = "") -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    phase = "Succeeded" if code == 0 else "Failed"
    return {"phase": phase, "containerStatuses": [{"name": "tensorflow", "state": state, "restartCount": 0}]}


def views(*pods: Any) -> tuple[PodView, ...]:
    """Raw pods as decisions see them."""
    found = [pod_view(raw, "tensorflow") for raw in json.loads(json.dumps(pods))]
    return tuple(view for view in found if view is not None)


def v1alpha1_job(*specs: ReplicaSpec, policy: RunPolicy | None = None, **fields: Any) -> Job:
    """The job of tf-operator's README: a master that decides, a worker and parameter servers."""
    specs = specs or (
        replicas("MASTER", 1, rules=CHIEF, last_exit_counts=True),
        replicas("WORKER", 1, rules=REPLACED, last_exit_counts=True),
        replicas("PS", 2, rules=REPLACED, last_exit_counts=True),
    )
    defaults: dict[str, Any] = {
        "key": JobKey("default", "example"),
        "uid": "uid-v1alpha1",
        "success": (SuccessRule(type="master", index=0),),
        "running_types": ("master",),
        "run_policy": policy or RunPolicy(clean_pods=CleanPodPolicy.RUNNING),
        "scheduling": Scheduling(min_available=sum(spec.replicas for spec in specs)),
        "tf_config": TFConfigStyle.V1ALPHA1,
        "runtime_id": "76no",
    }
    return Job(dialect=Dialect.TFJOB_V1ALPHA1, replica_specs=specs, **{**defaults, **fields})


def observed(job: Job, *pods: Any, at: float = 0.0, status: Any = None, verdict: Any = None, **fields: Any) -> Observed:
    """What a pass observes ``at`` seconds after START. By default, the job is admitted."""
    return Observed(
        now=START + at,
        stored_status=status or {},
        pods=views(*pods),
        verdict=Admit() if verdict is None else verdict,
        **fields,
    )


def written(plan: Plan) -> dict[str, Any]:
    """The status that a plan writes. Raises AssertionError if it writes none."""
    status = next((action.status for action in plan.actions if isinstance(action, WriteStatus)), None)
    assert status is not None
    return json.loads(json.dumps(status))  # type: ignore[no-any-return]


def written_status(job: Job, status: Status, now: float = START) -> dict[str, Any]:
    """The raw status that is written first for a job."""
    return build_status(read_context(job, status, Observed(now=now)))


def services_by_name(job: Job) -> dict[str, dict[str, Any]]:
    return {body["metadata"]["name"]: body for body in services.build_objects(job) if body["kind"] == "Service"}
