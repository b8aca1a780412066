"""Kueue: admitted before there is any pod, evicted as a whole, and told what a job's controller tells it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import ON_FAILURE, replicas, template, v1_job, v1alpha1_job
from tests.core.integrations.scenes import FLAVOR, SERVED, WORKLOAD, Scene, admission, asking, condition
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.integrations.dispatch import planned_context, wanted_objects
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


def test_the_workload_says_what_the_gang_asks_for() -> None:
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


def test_the_standard_parameter_server_is_among_what_it_asks_for() -> None:
    """v1alpha1 lets a parameter server have no container of its own."""
    ps = replicas("PS", 1, rules=ON_FAILURE, template={"spec": {}}, server_image="tf-grpc")
    made = scene(v1alpha1_job(replicas("MASTER", 1), ps))
    _, servers = made.gang()["spec"]["podSets"]
    assert [one["image"] for one in servers["template"]["spec"]["containers"]] == ["tf-grpc"]


def test_the_older_version_has_other_words_for_a_priority() -> None:
    older = ServedApis(versions={WORKLOAD: "v1beta1", FLAVOR: "v1beta1"}, priorities={"high": 1000})
    spec = scene(served=older, priority_class="high").gang()["spec"]
    assert spec["priorityClassName"] == "high"
    assert (spec["priorityClassSource"], spec["priority"]) == ("scheduling.k8s.io/priorityclass", 1000)


def test_a_class_that_is_not_there_is_not_named() -> None:
    """Kueue would refuse the whole Workload; the API server says on the pods what is wrong with the class."""
    assert not {"priority", "priorityClassRef"} & scene(priority_class="unknown").gang()["spec"].keys()


QUICK = {"kueue.x-k8s.io/priority-class": "quick"}
CLASSES = {(PRIORITY, "quick"): {"value": 7}, (PRIORITY, "nothing"): {"value": 0}}


def with_class(served: ServedApis = SERVED) -> ServedApis:
    return replace(served, shared={**served.shared, **CLASSES})


def test_kueues_own_priority_class_comes_before_that_of_the_pods() -> None:
    made = scene(replace(v1_job(), labels=QUICK), with_class(), priority_class="high")
    spec = made.gang()["spec"]
    assert spec["priority"] == 7
    assert spec["priorityClassRef"] == {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "quick"}


def test_in_the_older_version_it_is_named_by_its_source() -> None:
    served = replace(with_class(), versions={WORKLOAD: "v1beta1", FLAVOR: "v1beta1", PRIORITY: "v1beta1"})
    spec = scene(replace(v1_job(), labels=QUICK), served).gang()["spec"]
    told = (spec["priorityClassName"], spec["priorityClassSource"], spec["priority"])
    assert told == ("quick", "kueue.x-k8s.io/workloadpriorityclass", 7)


def test_a_class_of_value_zero_is_a_class() -> None:
    job = replace(v1_job(), labels={"kueue.x-k8s.io/priority-class": "nothing"})
    spec = scene(job, with_class(), priority_class="high").gang()["spec"]
    assert (spec["priority"], spec["priorityClassRef"]["name"]) == (0, "nothing")


def test_without_the_class_it_names_a_job_does_not_queue_up_and_says_so() -> None:
    made = scene(replace(v1_job(), labels=QUICK))
    assert made.objects == {}
    assert "its WorkloadPriorityClass quick does not exist, or tf-dist may not read it" in made.status.message
    assert made.plan.wake_at == made.now + 30  # nothing wakes the driver when it comes
    made.served = with_class()
    made.settle()
    assert made.gang()["spec"]["priority"] == 7


def test_a_plan_takes_the_class_to_be_there() -> None:
    """Who asks for one before there is a job has no cluster to look into."""
    job = asking(GangScheduler.KUEUE, replace(v1_job(), labels=QUICK))
    assert [body["kind"] for body in wanted_objects(planned_context(job))] == ["Workload"]


def test_a_class_that_goes_takes_nothing_from_who_has_queued_up_with_it() -> None:
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
def test_why_it_waits_is_said_in_kueues_words(status: dict[str, Any], reason: str, message: str) -> None:
    made = scene()
    made.tell(**status)
    made.settle()
    assert (made.status.reason, made.status.message) == (reason, f"waits in Kueue's queue default: {message}")
    assert made.pods == {}


def test_one_that_was_switched_off_stays_so() -> None:
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


def test_job_runs_at_the_admitted_size() -> None:
    made = admitted(v1_job(replicas("PS", 1), replicas("Worker", 4, min_replicas=1)), ps=1, worker=3)
    assert list(made.pods) == ["mnist-ps-0", "mnist-worker-0", "mnist-worker-1", "mnist-worker-2"]
    assert made.status.message == "begins with 3 worker instead of 4"


def test_without_its_flavor_nobody_knows_where_it_may_go() -> None:
    made = scene(served=ServedApis(versions=SERVED.versions))
    made.tell(conditions=ADMITTED, admission=admission(ps=1, worker=2))
    made.settle()
    assert (made.status.reason, made.pods) == ("QueueRefused", {})
    assert "its resource flavor spot is not there" in made.status.message
    made.served = SERVED
    made.settle()
    assert len(made.pods) == 3


def test_pods_look_as_admission_checks_ask() -> None:
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


def test_kueue_opens_the_gate_of_pods_whose_rack_it_chooses() -> None:
    made = scene()
    place = admission(ps=1, worker=2)
    place["podSetAssignments"][1]["topologyAssignment"] = {"levels": ["rack"], "slices": []}
    made.tell(conditions=ADMITTED, admission=place)
    made.settle()
    pod = made.pods["mnist-worker-0"]
    assert pod["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
    assert pod["metadata"]["annotations"]["kueue.x-k8s.io/workload"] == made.gang()["metadata"]["name"]
    assert "schedulingGates" not in made.pods["mnist-ps-0"]["spec"]


def test_an_evicted_job_stops_first_and_gives_its_quota_back_then() -> None:
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


def test_after_a_timeout_kueue_says_itself_when_it_is_queued_again() -> None:
    made = admitted()
    evicted = condition("Evicted", reason="PodsReadyTimeout", message="too slow")
    made.tell(conditions=[*ADMITTED, evicted], admission=admission(ps=1, worker=2))
    made.settle()
    made.bury()
    made.settle()
    [again] = [one for one in made.gang()["status"]["conditions"] if one["type"] == "Requeued"]
    assert again["status"] == "False"


def test_reports_pods_ready_once() -> None:
    """Where Kueue waits for that, it would take the place away again."""
    made = admitted()
    made.bind()
    made.settle()
    assert not [one for one in made.gang()["status"]["conditions"] if one["type"] == "PodsReady"]
    for pod in made.pods.values():
        pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    made.settle()
    [ready] = [one for one in made.gang()["status"]["conditions"] if one["type"] == "PodsReady"]
    assert (ready["status"], ready["reason"]) == ("True", "Started")


def test_a_deleted_workload_stops_the_job_and_is_made_anew_when_it_has_stopped() -> None:
    made = admitted(v1_job(replicas("PS", 1, rules=ON_FAILURE), replicas("Worker", 2, rules=ON_FAILURE)))
    made.bind(phase="Running")
    made.settle()
    made.objects = {key: body for key, body in made.objects.items() if key[0] != WORKLOAD}
    made.settle()
    assert (made.status.message, made.gangs()) == ("gave up its admission: its Workload in Kueue was deleted", [])
    made.bury()
    made.settle()
    assert len(made.gangs()) == 1


def test_a_gang_that_finds_no_nodes_gives_its_quota_back_for_a_while() -> None:
    """Kueue counts quota; whether there are nodes for all pods of the gang at once, it does not ask by itself."""
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


def test_while_it_waits_it_follows_the_job_and_once_admitted_it_stays() -> None:
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


def test_a_job_that_is_over_holds_no_quota() -> None:
    made = admitted()
    made.bind(phase="Running")
    made.settle()
    made.bind("mnist-worker-0", phase="Succeeded")
    made.settle()
    assert (made.status.phase, len(made.gangs())) == (Phase.COMPLETING, 1)
    made.bury()
    made.settle()
    assert (made.status.phase, made.gangs()) == (Phase.COMPLETED, [])
