"""Kueue: jobs are admitted before they have pods, evicted as a whole, and report their state to Kueue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import ON_FAILURE, replicas, template, v1_job, v1alpha1_job
from tests.core.integrations.scenes import FLAVOR, SERVED, WORKLOAD, Scene, admission, asking, condition
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.integrations.dispatch import planned_context, wanted_objects
from tf_dist.core.model import names
from tf_dist.core.model.context import ServedApis
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import Job
from tf_dist.core.model.reasons import Category, Reason
from tf_dist.core.model.status import Phase

PRIORITY = "WorkloadPriorityClass.kueue.x-k8s.io"


ADMITTED = [condition("QuotaReserved"), condition("Admitted")]


def scene(job: Job | None = None, served: ServedApis = SERVED, **scheduling: Any) -> Scene:
    made = Scene(asking(GangScheduler.KUEUE, job, **scheduling), served)
    made.settle()
    return made


def admitted(job: Job | None = None, **counts: int) -> Scene:
    made = scene(job)
    made.tell(conditions=ADMITTED, admission=admission(**(counts or {"ps": 1, "worker": 2})))
    made.settle()
    return made


def test_workload_describes_gang() -> None:
    container = {"name": "tensorflow", "image": "tf", "resources": {"requests": {"cpu": "2"}}, "command": ["train"]}
    worker = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {"containers": [container], "nodeSelector": {"gpu": "yes"}, "priorityClassName": "high"},
    }
    specs = replicas("PS", 1), replicas("Worker", 4, min_replicas=2, template=worker), replicas("Evaluator", 0)
    made = scene(v1_job(*specs), min_available=3, queue="research")
    workload = made.gang()
    assert (workload["apiVersion"], workload["kind"]) == ("kueue.x-k8s.io/v1beta2", "Workload")
    assert workload["metadata"]["labels"]["kueue.x-k8s.io/job-uid"] == made.job.uid
    assert [owner["uid"] for owner in workload["metadata"]["ownerReferences"]] == [made.job.uid]
    spec = workload["spec"]
    assert {key: spec[key] for key in ("queueName", "priority", "priorityClassRef")} == {
        "queueName": "research",
        "priority": 1000,
        "priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"},
    }
    ps, workers = spec["podSets"]
    assert ps == {
        "name": "ps",
        "count": 1,
        "template": {"spec": {"containers": [{"name": "tensorflow", "image": "tf"}]}},
    }
    assert workers == {
        "name": "worker",
        "count": 4,
        "minCount": 2,
        "template": {
            "metadata": {"labels": {"team": "a"}},
            "spec": {
                "containers": [{key: container[key] for key in ("name", "image", "resources")}],
                "nodeSelector": {"gpu": "yes"},
                "priorityClassName": "high",
            },
        },
    }
    assert made.pods == {}


def test_workload_contains_standard_parameter_server() -> None:
    """In v1alpha1, a parameter server needs no container."""
    ps = replicas("PS", 1, rules=ON_FAILURE, template={"spec": {}}, server_image="tf-grpc")
    made = scene(v1alpha1_job(replicas("MASTER", 1), ps))
    _, servers = made.gang()["spec"]["podSets"]
    assert [one["image"] for one in servers["template"]["spec"]["containers"]] == ["tf-grpc"]


def test_older_version_has_other_priority_fields() -> None:
    older = ServedApis(versions={WORKLOAD: "v1beta1", FLAVOR: "v1beta1"}, priorities={"high": 1000})
    spec = scene(served=older, priority_class="high").gang()["spec"]
    assert spec["priorityClassName"] == "high"
    assert (spec["priorityClassSource"], spec["priority"]) == ("scheduling.k8s.io/priorityclass", 1000)


def test_missing_priority_class_is_not_named() -> None:
    """Kueue would refuse the whole Workload. The API server reports the missing class when it refuses the pods."""
    assert not {"priority", "priorityClassRef"} & scene(priority_class="unknown").gang()["spec"].keys()


QUICK = {"kueue.x-k8s.io/priority-class": "quick"}
CLASSES = {(PRIORITY, "quick"): {"value": 7}, (PRIORITY, "nothing"): {"value": 0}}


def with_class(served: ServedApis = SERVED) -> ServedApis:
    return replace(served, shared={**served.shared, **CLASSES})


def test_kueue_priority_class_overrides_that_of_pods() -> None:
    made = scene(replace(v1_job(), labels=QUICK), with_class(), priority_class="high")
    spec = made.gang()["spec"]
    assert spec["priority"] == 7
    assert spec["priorityClassRef"] == {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "quick"}


def test_older_version_names_source_of_kueue_priority_class() -> None:
    served = replace(with_class(), versions={WORKLOAD: "v1beta1", FLAVOR: "v1beta1", PRIORITY: "v1beta1"})
    spec = scene(replace(v1_job(), labels=QUICK), served).gang()["spec"]
    told = (spec["priorityClassName"], spec["priorityClassSource"], spec["priority"])
    assert told == ("quick", "kueue.x-k8s.io/workloadpriorityclass", 7)


def test_priority_class_of_value_zero_is_used() -> None:
    job = replace(v1_job(), labels={"kueue.x-k8s.io/priority-class": "nothing"})
    spec = scene(job, with_class(), priority_class="high").gang()["spec"]
    assert (spec["priority"], spec["priorityClassRef"]["name"]) == (0, "nothing")


def test_job_waits_while_its_workload_priority_class_is_missing() -> None:
    made = scene(replace(v1_job(), labels=QUICK))
    assert made.objects == {}
    assert "its WorkloadPriorityClass quick does not exist, or tf-dist may not read it" in made.status.message
    assert made.plan.wake_at == made.now + 30  # no event wakes the controller when the class is created
    made.served = with_class()
    made.settle()
    assert made.gang()["spec"]["priority"] == 7


def test_planned_objects_assume_priority_class_exists() -> None:
    """A plan that is made before the job exists cannot read the cluster."""
    job = asking(GangScheduler.KUEUE, replace(v1_job(), labels=QUICK))
    assert [body["kind"] for body in wanted_objects(planned_context(job))] == ["Workload"]


def test_deleted_priority_class_does_not_affect_queued_workload() -> None:
    made = scene(replace(v1_job(), labels=QUICK), with_class())
    made.served = SERVED
    made.settle()
    assert made.gang()["spec"]["priority"] == 7
    made.tell(conditions=ADMITTED, admission=admission(ps=1, worker=2))
    made.settle()
    assert made.place() is not None
    assert made.gang()["spec"]["priority"] == 7


@pytest.mark.parametrize(
    ("annotations", "request_"),
    [
        ({"required-topology": "rack"}, {"required": "rack"}),
        ({"preferred-topology": "zone"}, {"preferred": "zone"}),
        ({"required-topology": "rack", "preferred-topology": "zone"}, {"required": "rack"}),
        ({"required-topology": "rack", "group-name": "g"}, {"required": "rack", "podSetGroupName": "g"}),
        ({"unconstrained-topology": "true"}, {"unconstrained": True}),
        ({"unconstrained-topology": "True"}, {"unconstrained": True}),
        ({"unconstrained-topology": "false"}, None),
        ({}, None),
    ],
)
def test_topology_annotations_reach_the_workload(annotations: dict[str, str], request_: dict[str, Any] | None) -> None:
    asked = {f"kueue.x-k8s.io/podset-{key}": value for key, value in annotations.items()}
    worker = {"metadata": {"annotations": asked}, "spec": template()["spec"]}
    sets = scene(v1_job(replicas("PS", 1), replicas("Worker", 2, template=worker))).gang()["spec"]["podSets"]
    ranked = request_ and {**request_, "podIndexLabel": "tf-dist.dev/replica-index"}
    assert [one.get("topologyRequest") for one in sets] == [None, ranked]


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        ({}, "WaitingInQueue", "Kueue has not processed its Workload yet (is it running?)"),
        (
            {
                "conditions": [
                    condition("QuotaReserved", False, "Pending", "insufficient unused quota for cpu, 2 more needed")
                ]
            },
            "WaitingInQueue",
            "insufficient unused quota for cpu, 2 more needed",
        ),
        (
            {"conditions": [condition("QuotaReserved", False, "ExceedsMaxQuota", "more than the quota")]},
            "NeverFits",
            "more than the quota",
        ),
        (
            {"conditions": [condition("QuotaReserved", False, "Inadmissible", "LocalQueue default doesn't exist")]},
            "QueueRefused",
            "LocalQueue default doesn't exist",
        ),
        (
            {
                "conditions": [condition("QuotaReserved")],
                "admissionChecks": [{"name": "buy", "state": "Pending", "message": "nodes come"}, {"state": "Ready"}],
            },
            "WaitingInQueue",
            "its quota is reserved; waits for admission check buy (nodes come)",
        ),
        (
            {"conditions": [condition("QuotaReserved", False, message="x")], "requeueState": {"requeueAt": "T"}},
            "WaitingInQueue",
            "x; it is queued again at T",
        ),
    ],
)
def test_wait_message_contains_reason_of_kueue(status: dict[str, Any], reason: str, message: str) -> None:
    made = scene()
    made.tell(**status)
    made.settle()
    assert (made.status.reason, made.status.message) == (reason, f"waits in Kueue's queue default: {message}")
    assert made.pods == {}


def test_deactivated_workload_stays_deactivated() -> None:
    made = scene()
    made.gang()["spec"]["active"] = False
    made.settle()
    assert made.status.reason == "Deactivated"
    [finding] = diagnose(made.job, made.status, (), made.now)
    assert finding.category is Category.ADMISSION
    assert len(made.gangs()) == 1


def test_admitted_pods_select_nodes_of_their_flavor() -> None:
    made = admitted(v1_job(replicas("PS", 1), replicas("Worker", 2, template=template(nodeSelector={"gpu": "yes"}))))
    assert (made.status.reason, len(made.pods)) == ("Admitted", 3)
    pod = made.pods["mnist-worker-1"]
    assert pod["spec"]["nodeSelector"] == {"gpu": "yes", "pool": "spot"}
    assert pod["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "worker"
    assert "schedulingGates" not in pod["spec"]
    assert "kueue.x-k8s.io/queue-name" not in pod["metadata"]["labels"]


def test_job_runs_at_admitted_size() -> None:
    made = admitted(v1_job(replicas("PS", 1), replicas("Worker", 4, min_replicas=1)), ps=1, worker=3)
    assert list(made.pods) == ["mnist-ps-0", "mnist-worker-0", "mnist-worker-1", "mnist-worker-2"]
    assert made.status.message == "begins with 3 worker instead of 4"


def test_job_waits_while_its_flavor_is_missing() -> None:
    made = scene(served=ServedApis(versions=SERVED.versions))
    made.tell(conditions=ADMITTED, admission=admission(ps=1, worker=2))
    made.settle()
    assert (made.status.reason, made.pods) == ("QueueRefused", {})
    assert "its resource flavor spot is not there" in made.status.message
    made.served = SERVED
    made.settle()
    assert len(made.pods) == 3


def test_pods_have_updates_of_admission_checks() -> None:
    made = scene()
    update = {
        "name": "worker",
        "labels": {"a": "1"},
        "annotations": {"b": "2"},
        "nodeSelector": {"bought": "yes"},
        "tolerations": [{"key": "spot", "operator": "Exists"}, {"key": "new"}],
    }
    checks = [{"name": "buy", "state": "Ready", "podSetUpdates": [update]}]
    made.tell(conditions=ADMITTED, admission=admission(ps=1, worker=2), admissionChecks=checks)
    made.settle()
    pod, server = made.pods["mnist-worker-0"], made.pods["mnist-ps-0"]
    assert pod["spec"]["nodeSelector"] == {"pool": "spot", "bought": "yes"}
    assert pod["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}, {"key": "new"}]
    assert (pod["metadata"]["labels"]["a"], pod["metadata"]["annotations"]["b"]) == ("1", "2")
    assert server["spec"]["nodeSelector"] == {"pool": "spot"}


@pytest.mark.parametrize(
    "label", [names.JOB_UID, names.REPLICA_TYPE, names.REPLICA_INDEX, names.ATTEMPT, "kueue.x-k8s.io/podset"]
)
def test_admission_check_does_not_change_labels_of_pods(label: str) -> None:
    made = scene()
    checks = [
        {"name": "c", "state": "Ready", "podSetUpdates": [{"name": "worker", "labels": {label: "7", "new": "1"}}]}
    ]
    made.tell(conditions=ADMITTED, admission=admission(ps=1, worker=2), admissionChecks=checks)
    made.settle()
    labels = made.pods["mnist-worker-0"]["metadata"]["labels"]
    assert (labels[label] != "7", labels["new"]) == (True, "1")


def test_pods_with_topology_assignment_have_scheduling_gate() -> None:
    made = scene()
    place = admission(ps=1, worker=2)
    place["podSetAssignments"][1]["topologyAssignment"] = {"levels": ["rack"], "slices": []}
    made.tell(conditions=ADMITTED, admission=place)
    made.settle()
    pod = made.pods["mnist-worker-0"]
    assert pod["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
    assert pod["metadata"]["annotations"]["kueue.x-k8s.io/workload"] == made.gang()["metadata"]["name"]
    assert "schedulingGates" not in made.pods["mnist-ps-0"]["spec"]


def test_evicted_job_stops_before_it_releases_quota() -> None:
    made = admitted(v1_job(replicas("PS", 1, rules=ON_FAILURE), replicas("Worker", 2, rules=ON_FAILURE)))
    made.bind(phase="Running")
    made.settle()
    evicted = condition("Evicted", reason="Preempted", message="a higher priority")
    made.tell(conditions=[*ADMITTED, evicted], admission=admission(ps=1, worker=2))
    made.settle()
    assert (made.status.reason, made.status.charged_restarts) == (Reason.PREEMPTED, 0)
    assert made.status.message == "gave up its admission: Kueue evicted it: a higher priority"
    assert made.gang()["status"]["admission"] is not None
    made.bury()
    made.settle()
    status = made.gang()["status"]
    said = {one["type"]: (one["status"], one["reason"], one["observedGeneration"]) for one in status["conditions"][:2]}
    assert said == {"QuotaReserved": ("False", "Pending", 1), "Admitted": ("False", "NoReservation", 1)}
    [again] = [one for one in status["conditions"] if one["type"] == "Requeued"]
    assert (again["status"], again["message"]) == ("True", "a higher priority")
    assert all(one["lastTransitionTime"] and one["reason"] for one in status["conditions"])
    assert ("admission" not in status, made.pods) == (True, {})
    assert made.status.message == "waits in Kueue's queue default: a higher priority"
    reset = condition("Evicted", False)
    made.tell(conditions=[*ADMITTED, reset], admission=admission(ps=1, worker=2))
    made.settle()
    assert {pod["metadata"]["labels"]["tf-dist.dev/attempt"] for pod in made.pods.values()} == {"2.0.0"}


def test_job_leaves_requeue_to_kueue_after_pods_ready_timeout() -> None:
    made = admitted()
    evicted = condition("Evicted", reason="PodsReadyTimeout", message="too slow")
    made.tell(conditions=[*ADMITTED, evicted], admission=admission(ps=1, worker=2))
    made.settle()
    made.bury()
    made.settle()
    [again] = [one for one in made.gang()["status"]["conditions"] if one["type"] == "Requeued"]
    assert again["status"] == "False"


def test_reports_pods_ready_when_all_pods_are_ready() -> None:
    """Without this condition, Kueue may evict the job."""
    made = admitted()
    made.bind()
    made.settle()
    assert not [one for one in made.gang()["status"]["conditions"] if one["type"] == "PodsReady"]
    for pod in made.pods.values():
        pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    made.settle()
    [ready] = [one for one in made.gang()["status"]["conditions"] if one["type"] == "PodsReady"]
    assert (ready["status"], ready["reason"]) == ("True", "Started")


def test_deleted_workload_is_created_again_after_job_stopped() -> None:
    made = admitted(v1_job(replicas("PS", 1, rules=ON_FAILURE), replicas("Worker", 2, rules=ON_FAILURE)))
    made.bind(phase="Running")
    made.settle()
    made.objects = {key: body for key, body in made.objects.items() if key[0] != WORKLOAD}
    made.settle()
    assert (made.status.message, made.gangs()) == ("gave up its admission: its Workload in Kueue was deleted", [])
    made.bury()
    made.settle()
    assert len(made.gangs()) == 1


def test_gang_without_nodes_releases_quota_until_backoff_ends() -> None:
    """Kueue counts quota. It does not check by itself whether all pods of a gang find nodes."""
    made = admitted()
    made.bind("mnist-ps-0")
    made.now += 301.0
    made.settle()
    assert (made.status.reason, len(made.gangs())) == ("ScheduleTimeout", 1)
    made.bury()
    made.settle()
    assert made.gangs() == []
    made.now = made.status.not_before
    made.settle()
    assert len(made.gangs()) == 1


def test_workload_follows_job_until_admission() -> None:
    made = scene()
    made.job = asking(GangScheduler.KUEUE, v1_job(replicas("PS", 1), replicas("Worker", 5)), queue="other")
    made.settle()
    spec = made.gang()["spec"]
    assert (spec["queueName"], [one["count"] for one in spec["podSets"]]) == ("other", [1, 5])
    made.tell(conditions=ADMITTED, admission=admission(ps=1, worker=5))
    made.settle()
    made.job = asking(GangScheduler.KUEUE, v1_job(replicas("PS", 1), replicas("Worker", 7)), queue="third")
    made.settle()
    assert made.gang()["spec"] == spec
    assert len(made.pods) == 6


def test_completed_job_holds_no_quota() -> None:
    made = admitted()
    made.bind(phase="Running")
    made.settle()
    made.bind("mnist-worker-0", phase="Succeeded")
    made.settle()
    assert (made.status.phase, len(made.gangs())) == (Phase.COMPLETING, 1)
    made.bury()
    made.settle()
    assert (made.status.phase, made.gangs()) == (Phase.COMPLETED, [])
