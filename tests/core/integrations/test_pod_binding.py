"""Volcano, coscheduling and Kubernetes' own gang scheduling bind pods, so a gang waits after its pods are created."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import ON_FAILURE, replicas, template, v1_job, views, volcano_job
from tests.core.dialects.documents import volcano
from tests.core.integrations.scenes import Scene, asking
from tests.core.world import World
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.dialects import read
from tf_dist.core.integrations.dispatch import decorate_pod, planned_context
from tf_dist.core.model.context import EmitEvent, ServedApis
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import Dependency, Job, RunPolicy
from tf_dist.core.model.names import ATTEMPT
from tf_dist.core.model.reasons import Category, Reason
from tf_dist.core.model.status import Phase
from tf_dist.core.model.status_codec import FIELD, dump_status, load_status
from tf_dist.core.podbuilder.replica_pod import build_pod

VOLCANO = ServedApis(versions={"PodGroup.scheduling.volcano.sh": "v1beta1"})
COSCHEDULING = ServedApis(versions={"PodGroup.scheduling.x-k8s.io": "v1alpha1"})
BETA = ServedApis(versions={"PodGroup.scheduling.k8s.io": "v1beta1"})
ALPHA = ServedApis(versions={"PodGroup.scheduling.k8s.io": "v1alpha2"})
FIRST = ServedApis(versions={"Workload.scheduling.k8s.io": "v1alpha1"})

PODS = ["mnist-ps-0", "mnist-worker-0", "mnist-worker-1"]

# The scheduler, its served APIs, and the status of its object when it wants pods.
BINDING = [
    pytest.param(GangScheduler.VOLCANO, VOLCANO, {"phase": "Inqueue"}, id="volcano"),
    pytest.param(GangScheduler.COSCHEDULING, COSCHEDULING, {}, id="coscheduling"),
    pytest.param(GangScheduler.WORKLOAD, BETA, {}, id="workload"),
    pytest.param(GangScheduler.WORKLOAD, ALPHA, {}, id="workload-1.36"),
    pytest.param(GangScheduler.WORKLOAD, FIRST, {}, id="workload-1.35"),
]


def waiting(gang: GangScheduler, served: ServedApis, status: dict[str, Any], job: Job | None = None) -> Scene:
    """A gang whose pods exist and have no nodes."""
    scene = Scene(asking(gang, job), served)
    scene.settle()
    scene.tell(**status)
    scene.settle()
    return scene


@pytest.mark.parametrize(("gang", "served", "status"), BINDING)
def test_gang_starts_once_all_its_pods_have_nodes(
    gang: GangScheduler, served: ServedApis, status: dict[str, Any]
) -> None:
    scene = waiting(gang, served, status)
    assert (list(scene.pods), scene.place()) == (PODS, None)
    scene.bind("mnist-ps-0", "mnist-worker-0")
    scene.say("mnist-worker-1", "0/4 nodes are available: 4 Insufficient cpu.")
    scene.settle()
    assert scene.place() is None
    assert scene.status.message.endswith(
        ": worker-1 of 3 pods has no node: 0/4 nodes are available: 4 Insufficient cpu."
    )
    scene.now += 3600.0
    scene.bind("mnist-worker-1")
    scene.settle()
    place = scene.place()
    assert place is not None
    assert (place.by, scene.status.start_time) == (gang.value, scene.now)
    assert load_status({FIELD: dump_status(scene.status)}) == scene.status
    assert (scene.status.reason, list(scene.pods)) == ("Admitted", PODS)


@pytest.mark.parametrize(("gang", "served", "status"), BINDING)
def test_waits_in_queue_of_scheduler_without_limit(
    gang: GangScheduler, served: ServedApis, status: dict[str, Any]
) -> None:
    """The schedule timeout withdraws an admission, and this gang has none."""
    scene = waiting(gang, served, status)
    scene.now += 86_400.0
    assert not scene.settle().actions
    assert (scene.status.phase, scene.status.requeues, list(scene.pods)) == (Phase.PENDING, 0, PODS)


@pytest.mark.parametrize(("gang", "served", "status"), BINDING)
def test_gang_object_is_deleted_after_last_pod_has_stopped(
    gang: GangScheduler, served: ServedApis, status: dict[str, Any]
) -> None:
    scene = waiting(gang, served, status)
    scene.bind(phase="Running")
    scene.settle()
    scene.bind("mnist-worker-0", phase="Succeeded")
    scene.settle()
    assert scene.status.phase is Phase.COMPLETING
    assert len(scene.gangs()) == 1
    scene.bury()
    scene.settle()
    assert (scene.status.phase, scene.gangs()) == (Phase.COMPLETED, [])


@pytest.mark.parametrize(("gang", "served", "status"), BINDING)
def test_waits_for_missing_kinds_and_reports_them(
    gang: GangScheduler, served: ServedApis, status: dict[str, Any]
) -> None:
    scene = Scene(asking(gang), ServedApis(missing=f"gang scheduler {gang} cannot be used: no such kind"))
    plan = scene.settle()
    assert (scene.status.reason, scene.gangs(), scene.pods) == ("GangSchedulerMissing", [], {})
    assert plan.wake_at == scene.now + 30.0
    [finding] = diagnose(scene.job, scene.status, (), scene.now)
    assert finding.category is Category.SCHEDULER_MISSING
    assert "gangSchedulers of the Helm chart" in finding.resolution
    scene.served = served
    scene.settle()
    assert len(scene.gangs()) == 1


@pytest.mark.parametrize(("gang", "served", "status"), BINDING)
def test_nothing_changes_while_served_apis_are_unknown(
    gang: GangScheduler, served: ServedApis, status: dict[str, Any]
) -> None:
    scene = waiting(gang, served, status)
    known, scene.served = scene.served, None
    plan = scene.settle()
    assert (len(scene.gangs()), list(scene.pods), plan.wake_at) == (1, PODS, scene.now + 1.0)
    scene.served = known
    assert not scene.settle().actions


@pytest.mark.parametrize(("gang", "served", "status"), BINDING)
def test_suspended_job_has_no_gang_object(gang: GangScheduler, served: ServedApis, status: dict[str, Any]) -> None:
    job = v1_job(policy=RunPolicy(suspend=True))
    scene = Scene(asking(gang, job), served)
    scene.settle()
    assert (scene.status.phase, scene.gangs(), scene.pods) == (Phase.ABORTED, [], {})


def test_volcano_pod_group_describes_gang() -> None:
    specs = (replicas("PS", 1), replicas("Worker", 4, min_replicas=2, template=template(priorityClassName="high")))
    job = v1_job(*specs, annotations={"volcano.sh/sla-waiting-time": "1h", "other": "x"})
    scene = Scene(asking(GangScheduler.VOLCANO, job, min_available=3, queue="research"), VOLCANO)
    scene.settle()
    group = scene.gang()
    assert (group["apiVersion"], group["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
    assert group["spec"] == {
        "minMember": 3,
        "minTaskMember": {"ps": 1, "worker": 2},
        "minResources": {},
        "queue": "research",
        "priorityClassName": "high",
    }
    assert group["metadata"]["annotations"] == {"volcano.sh/sla-waiting-time": "1h"}
    assert [owner["uid"] for owner in group["metadata"]["ownerReferences"]] == [job.uid]
    assert scene.pods == {}
    scene.tell(phase="Inqueue")
    scene.settle()
    pod = scene.pods["mnist-worker-3"]
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["metadata"]["annotations"] == {
        "scheduling.k8s.io/group-name": group["metadata"]["name"],
        "volcano.sh/task-spec": "worker",
    }
    scene.bind("mnist-ps-0", "mnist-worker-0")
    scene.settle()
    assert scene.place() is None
    scene.bind("mnist-worker-3")
    scene.settle()
    assert scene.place() is not None


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({}, "Volcano has not processed its PodGroup yet (is its scheduler running?)"),
        (
            {"phase": "Pending"},
            "Volcano has no capacity for its PodGroup yet (kubectl describe podgroups.scheduling.volcano.sh {} tells "
            "more)",
        ),
        (
            {"phase": "Pending", "conditions": [{"type": "Unschedulable", "status": "True", "message": "3/3 tasks"}]},
            "3/3 tasks",
        ),
    ],
)
def test_no_pods_are_created_before_volcano_enqueues_gang(status: dict[str, Any], message: str) -> None:
    scene = waiting(GangScheduler.VOLCANO, VOLCANO, status)
    assert (scene.pods, scene.status.reason) == ({}, "WaitingInQueue")
    told = message.format(scene.gang()["metadata"]["name"])
    assert scene.status.message == f"waits in Volcano's queue default: {told}"


def test_message_of_volcano_precedes_message_of_pod() -> None:
    said = [{"type": "Unschedulable", "status": "True", "message": "1/3 tasks in gang unschedulable"}]
    scene = waiting(GangScheduler.VOLCANO, VOLCANO, {"phase": "Inqueue", "conditions": said})
    scene.say("mnist-ps-0", "pod group is not ready")
    scene.settle()
    assert scene.status.message.endswith("3 pods have no node: 1/3 tasks in gang unschedulable")


def test_dependent_task_is_not_in_minimum_of_pod_group() -> None:
    later = replicas("worker", 2, rules=(), depends=Dependency(on=("ps",)))
    job = volcano_job(replicas("ps", 1, rules=()), later)
    scene = Scene(asking(GangScheduler.VOLCANO, job), VOLCANO)
    scene.settle()
    assert scene.gang()["spec"]["minTaskMember"] == {"ps": 1}
    assert scene.gang()["spec"]["minMember"] == 1


def asks(cpu: str, priority: str = "") -> dict[str, Any]:
    return template(
        containers=[{"name": "tensorflow", "image": "any", "resources": {"requests": {"cpu": cpu}}}],
        **({"priorityClassName": priority} if priority else {}),
    )


@pytest.mark.parametrize(
    ("min_available", "tasks", "cpu"),
    [
        (1, {"master": 1, "worker": 1}, "250m"),  # any pod counts, and the highest priority comes first
        (2, {"master": 1, "worker": 1}, "1250m"),
        (3, {"master": 1, "worker": 1}, "1500m"),  # the rest is filled by priority
        (5, {"master": 1, "worker": 1}, "2"),
    ],
)
def test_pod_group_has_minimums_of_tasks_and_requests_of_first_pods(
    min_available: int, tasks: dict[str, int], cpu: str
) -> None:
    """Volcano's getMinTaskMember and CalcPGMinResources."""
    master = replicas("master", 1, min_available=1, template=asks("1"), rules=())
    worker = replicas("worker", 4, min_available=1, template=asks("250m", "high"), rules=())
    job = volcano_job(master, worker, min_available=min_available)
    scene = Scene(asking(GangScheduler.VOLCANO, job), replace(VOLCANO, priorities={"high": 1000}))
    scene.settle()
    spec = scene.gang()["spec"]
    assert (spec["minMember"], spec["minTaskMember"], spec["minResources"]) == (min_available, tasks, {"cpu": cpu})


def test_pod_group_follows_job_size_and_keeps_fields_of_others() -> None:
    scene = waiting(GangScheduler.VOLCANO, VOLCANO, {"phase": "Pending"})
    scene.gang()["spec"] |= {"queue": "by-namespace", "minResources": {"cpu": "1"}}
    scene.job = asking(GangScheduler.VOLCANO, v1_job(replicas("PS", 1), replicas("Worker", 5)))
    scene.settle()
    spec = scene.gang()["spec"]
    assert (spec["minMember"], spec["queue"], spec["minResources"]) == (6, "by-namespace", {"cpu": "1"})


def test_coscheduling_selects_pods_by_label() -> None:
    own = v1_job(replicas("PS", 1), replicas("Worker", 1, template=template(schedulerName="mine")))
    scene = Scene(asking(GangScheduler.COSCHEDULING, own, timeout=90.0), COSCHEDULING)
    scene.settle()
    group = scene.gang()
    assert group["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
    assert group["spec"] == {"minMember": 2, "minResources": {}, "scheduleTimeoutSeconds": 90}
    for name, scheduler in (("mnist-ps-0", "scheduler-plugins-scheduler"), ("mnist-worker-0", "mine")):
        pod = scene.pods[name]
        assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == group["metadata"]["name"]
        assert pod["spec"]["schedulerName"] == scheduler


def test_long_job_name_gives_valid_label_value() -> None:
    scene = Scene(asking(GangScheduler.COSCHEDULING, v1_job(name="a" * 56 + "." + "b" * 40)), COSCHEDULING)
    scene.settle()
    [name] = scene.gangs()
    assert len(name) <= 63
    assert name.startswith("a" * 56 + "-")


@pytest.mark.parametrize(
    ("served", "spec", "pod"),
    [
        (
            BETA,
            {
                "schedulingPolicy": {"gang": {"minCount": 3}},
                "disruptionMode": {"all": {}},
                "priorityClassName": "high",
            },
            {"schedulingGroup": {"podGroupName": "NAME"}},
        ),
        (ALPHA, {"schedulingPolicy": {"gang": {"minCount": 3}}}, {"schedulingGroup": {"podGroupName": "NAME"}}),
        (
            FIRST,
            {
                "controllerRef": {"apiGroup": "kubeflow.org", "kind": "TFJob", "name": "mnist"},
                "podGroups": [{"name": "gang", "policy": {"gang": {"minCount": 3}}}],
            },
            {"workloadRef": {"name": "NAME", "podGroup": "gang"}},
        ),
    ],
    ids=["1.37", "1.36", "1.35"],
)
def test_kubernetes_objects_match_served_version(served: ServedApis, spec: dict[str, Any], pod: dict[str, Any]) -> None:
    scene = Scene(asking(GangScheduler.WORKLOAD, priority_class="high"), served)
    scene.settle()
    assert scene.gang()["spec"] == spec
    [name] = scene.gangs()
    [(key, value)] = pod.items()
    named = {field: name if part == "NAME" else part for field, part in value.items()}
    assert scene.pods["mnist-ps-0"]["spec"][key] == named
    assert "schedulerName" not in scene.pods["mnist-ps-0"]["spec"]


def test_wait_message_contains_reason_of_kubernetes() -> None:
    false = {"type": "PodGroupInitiallyScheduled", "status": "False", "message": "only 2 of 3 pods fit"}
    scene = waiting(GangScheduler.WORKLOAD, BETA, {"conditions": [false]})
    assert scene.status.message == (
        "waits in the cluster's scheduling queue: ps-0, worker-0, worker-1 of 3 pods have no node: only 2 of 3 pods fit"
    )


def test_preempted_gang_waits_with_new_pod_group() -> None:
    """The conditions of a pod group never go back, so it cannot be used a second time."""
    scene = waiting(
        GangScheduler.WORKLOAD, BETA, {}, v1_job(replicas("PS", 1), replicas("Worker", 2, rules=ON_FAILURE))
    )
    scene.bind(phase="Running")
    scene.settle()
    [first] = scene.gangs()
    scene.tell(conditions=[{"type": "DisruptionTarget", "status": "True", "message": "preempted by a/b"}])
    scene.settle()
    assert (scene.status.phase, scene.place()) == (Phase.PENDING, None)
    assert (scene.status.reason, scene.status.message) == (Reason.PREEMPTED, "gave up its admission: preempted by a/b")
    assert (scene.gangs(), scene.status.charged_restarts) == ([first], 0)
    scene.bury()
    scene.settle()
    [second] = scene.gangs()
    assert second != first
    assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in scene.pods.values()} == {second}


def test_every_restart_of_job_has_its_own_pod_group() -> None:
    scene = waiting(GangScheduler.WORKLOAD, BETA, {}, volcano_job())
    scene.bind(phase="Running")
    scene.settle()
    [first] = scene.gangs()
    gone = scene.pods.pop("tf-dist-mnist-worker-0")
    assert isinstance(gone, dict)
    scene.settle()
    scene.bury()
    scene.settle()
    [second] = scene.gangs()
    assert (second != first, len(scene.pods), scene.status.phase) == (True, 3, Phase.PENDING)


def test_scheduler_that_admitted_job_stays_responsible() -> None:
    """The controller's default may change when it restarts. Running jobs are not affected."""
    scene = waiting(GangScheduler.VOLCANO, VOLCANO, {"phase": "Inqueue"})
    scene.bind(phase="Running")
    scene.settle()
    scene.job = asking(GangScheduler.BUILTIN, scene.job)
    assert not scene.settle().actions
    assert scene.status.phase is Phase.RUNNING


def test_gang_that_waits_with_pods_has_one_diagnosis() -> None:
    scene = waiting(GangScheduler.COSCHEDULING, COSCHEDULING, {})
    for name in PODS:
        scene.say(name, "0/4 nodes are available")
    scene.settle()
    [finding] = diagnose(scene.job, scene.status, views(*scene.pods.values()), scene.now)
    assert (finding.category, finding.summary) == (Category.ADMISSION, scene.status.message)


def test_finished_job_is_checked_again_until_served_apis_are_known() -> None:
    scene = waiting(GangScheduler.VOLCANO, VOLCANO, {"phase": "Inqueue"})
    scene.bind(phase="Running")
    scene.settle()
    scene.served = None
    scene.bind("mnist-worker-0", phase="Succeeded")
    scene.settle()
    scene.bury()
    plan = scene.settle()
    assert (scene.status.phase, len(scene.gangs()), plan.wake_at) == (Phase.COMPLETED, 1, scene.now + 1.0)
    scene.served = ServedApis(missing="it was removed")
    assert scene.settle().wake_at is None
    scene.served = VOLCANO
    assert scene.settle().wake_at is None
    assert scene.gangs() == []


@pytest.mark.parametrize(("gang", "served", "status"), BINDING)
def test_running_job_follows_size_of_spec(gang: GangScheduler, served: ServedApis, status: dict[str, Any]) -> None:
    """TF_CONFIG names every replica: all start again when a replica is added. The others continue when one leaves."""
    scene = waiting(gang, served, status)
    scene.bind(phase="Running")
    scene.settle()
    scene.job = asking(gang, v1_job(replicas("PS", 1), replicas("Worker", 3)))
    scene.settle()
    assert scene.status.message.startswith("goes from 2 to 3 worker, as the job now requests; all replicas start again")
    scene.bury()
    scene.settle()
    assert {pod["metadata"]["labels"][ATTEMPT] for pod in scene.pods.values()} == {"2.0.0"}
    assert (len(scene.pods), scene.status.charged_restarts) == (4, 0)
    scene.bind(phase="Running")
    scene.settle()
    scene.job = asking(gang, v1_job(replicas("PS", 1), replicas("Worker", 1)))
    scene.settle()
    scene.bury()
    assert not scene.settle().actions
    assert (sorted(scene.pods), scene.status.phase) == (["mnist-ps-0", "mnist-worker-0"], Phase.RUNNING)


@pytest.mark.parametrize(
    ("at", "name", "gang", "left"),
    [
        ("job", "volcano", None, None),
        ("template", "volcano", None, None),
        ("job", "volcano", "volcano", "volcano"),
        ("job", "mine", None, "mine"),
        ("template", "mine", None, "mine"),
    ],
)
def test_scheduler_name_volcano_is_ignored_if_tf_dist_admits(
    at: str, name: str, gang: str | None, left: str | None
) -> None:
    document = volcano()
    spec = document["spec"]
    del spec["schedulerName"]
    (spec if at == "job" else spec["tasks"][0]["template"]["spec"])["schedulerName"] = name
    if gang:
        document["metadata"]["annotations"] = {"tf-dist.dev/gang-scheduler": gang}
    job = read(document)
    pod = build_pod(job, job.replicas[0], "a")
    decorate_pod(planned_context(job), job.replicas[0], pod)
    assert pod["spec"].get("schedulerName") == left


@pytest.mark.parametrize(("name", "told"), [("volcano", ["SchedulerNameNotUsed"]), ("mine", [])])
def test_event_reports_ignored_scheduler_name_once(name: str, told: list[str]) -> None:
    document = volcano()
    document["spec"]["schedulerName"] = name
    world = World(read(document))
    actions = list(world.look().actions)
    world.settle()
    actions += world.look().actions
    found = [one.reason for one in actions if isinstance(one, EmitEvent) and one.reason == "SchedulerNameNotUsed"]
    assert found == told
