"""The common controller of training-operator 1.9: the tables of ``pkg/controller.v1/common``, ``control``, ``pkg/util``
and ``pkg/common/util``, and those of ``tensorflow/job_test.go`` and ``tfjob_controller_test.go`` that are about it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.tfjob_v1_jobs import NAME, document, end, events, run_all, true_conditions, world
from tests.core.builders import services_by_name
from tests.core.world import World
from tf_dist.core.dialects import parse
from tf_dist.core.dialects.common_schema import SERVICES_ANNOTATION
from tf_dist.core.model import names
from tf_dist.core.model.job import ReplicaId
from tf_dist.core.podbuilder import replica_pod

Doc = dict[str, Any]


@pytest.mark.parametrize(
    ("clean", "ending", "left"),
    [
        # common/job_test.go, TestDeletePodsAndServices, in its order: one pod runs, one has succeeded.
        ("Running", "Succeeded", {"worker-1"}),
        # Here, the log of a completed pod is kept until the resume. The original deletes both pods.
        ("Running", "Suspended", {"worker-1"}),
        ("All", "Succeeded", set()),
        ("None", "Failed", {"worker-0", "worker-1", "worker-2"}),
        ("None", "Suspended", {"worker-1"}),
    ],
)
def test_delete_pods_and_services(clean: str, ending: str, left: set[str]) -> None:
    content = document("Never", chief=1, worker=3)
    content["metadata"]["annotations"] = {SERVICES_ANNOTATION: "headless"}  # the original's services are headless
    made = world(content, cleanPodPolicy=clean)
    end(made, worker_1=0)
    made.settle()
    if ending == "Suspended":
        made.suspend(True)
    else:
        end(made, **({"chief_0": 0} if ending == "Succeeded" else {"worker_2": 1}))
    made.settle()
    assert ending in true_conditions(made)
    workers = {name.removeprefix(f"{NAME}-") for name in made.pods if "worker" in name}
    assert workers == left
    published = {name.removeprefix(f"{NAME}-") for _, name in made.objects if "worker" in name}
    assert published == (set() if ending == "Suspended" else left)


@pytest.mark.parametrize(
    ("policy", "restarts", "limit", "fails"),
    [
        # TestPastBackoffLimit, in its order. The original fails at its second limit; here, 3 restarts are allowed.
        ("OnFailure", 0, 0, False),
        ("OnFailure", 3, 3, False),
        ("OnFailure", 4, 3, True),
        ("OnFailure", 1, 0, True),
        # From the same function, without a case in the original test.
        ("Always", 4, 3, True),
        ("ExitCode", 4, 3, True),
        ("Never", 4, 3, False),
        ("OnFailure", 9, None, False),
    ],
)
@pytest.mark.parametrize("init", [False, True])
def test_past_backoff_limit(policy: str, restarts: int, limit: int | None, fails: bool, init: bool) -> None:
    """Restarts of all containers, including init containers, count if the policy restarts containers."""
    made = world(document(policy, worker=3), **({} if limit is None else {"backoffLimit": limit}))
    end(made, worker_1=0)
    pod = made.pod("worker-2")
    sidecar = {"name": "proxy", "state": {"running": {}}, "restartCount": restarts if init else 0}
    pod["status"]["initContainerStatuses"] = [sidecar]
    pod["status"]["containerStatuses"][0]["restartCount"] = 0 if init else restarts
    made.settle()
    assert ("Failed" in true_conditions(made)) is fails


def test_update_job_replica_statuses() -> None:
    """common/status_test.go: 2 pods have failed, 3 have succeeded, 1 is active, and 1 is being deleted while it runs.

    The original counts the last pod as failed, which fails a job without dynamic workers. Here it is a disruption, and
    is not counted until the pod is gone.
    """
    content = document(worker=7)
    content["spec"]["enableDynamicWorker"] = True
    made = world(content)
    end(made, worker_1=1, worker_2=1, worker_3=0, worker_4=0, worker_5=0)
    made.settle()
    made.delete(made.pod("worker-6"))
    made.step()
    counts = made.status["replicaStatuses"]["Worker"]
    assert {key: counts[key] for key in ("failed", "succeeded", "active")} == {"failed": 2, "succeeded": 3, "active": 1}
    made.settle()
    run_all(made)
    assert made.status["replicaStatuses"]["Worker"]["active"] == 2


@pytest.mark.parametrize(
    ("replicas", "there", "left"),
    [
        # common/pod_test.go, TestCalculatePodSliceSize: a slot for each replica, and for each excess pod, which is
        # deleted (ReconcilePods).
        (3, [0, 1, 2], [0, 1, 2]),
        (4, [0, 1, 2], [0, 1, 2, 3]),
        (2, [0, 1, 2], [0, 1]),
        (3, [0, 1, 2, 4], [0, 1, 2]),
    ],
)
def test_calculate_pod_slice_size(replicas: int, there: list[int], left: list[int]) -> None:
    content = document(ps=1, worker=5)
    content["spec"]["enableDynamicWorker"] = True
    made = world(content)
    for name in [name for name in made.pods if "worker" in name and int(name[-1]) not in there]:
        del made.pods[name]
    made.scale("worker", replicas)
    made.settle()
    assert sorted(name for name in made.pods if "worker" in name) == [f"{NAME}-worker-{index}" for index in left]
    assert {name for _, name in made.objects} == set(made.pods)


def kinds(made: World) -> list[tuple[str, str]]:
    return [(one["type"], one["status"]) for one in conditions_in_order(made)]


def conditions_in_order(made: World) -> list[Doc]:
    ours = ("Admitted", "SpecAccepted", "Stalled")
    return [one for one in made.status["conditions"] if one["type"] not in ours]


def test_update_job_conditions() -> None:
    """pkg/util/status_test.go, TestUpdateJobConditions: a new condition is the last one. Running and Restarting exclude
    each other. A failure sets Running to False.
    """
    made = World(parse(document("ExitCode", worker=2)).job)
    made.settle()
    assert kinds(made) == [("Created", "True")]
    run_all(made)
    assert kinds(made) == [("Created", "True"), ("Running", "True")]
    end(made, worker_1=137)
    made.step()
    assert kinds(made) == [("Created", "True"), ("Restarting", "True")]
    run_all(made)
    assert kinds(made) == [("Created", "True"), ("Running", "True")]
    end(made, worker_1=1)
    made.settle()
    assert kinds(made) == [("Created", "True"), ("Running", "False"), ("Failed", "True")]


@pytest.mark.parametrize("ending", [{"worker_0": 0}, {"worker_0": 1}])
def test_conditions_do_not_change_after_end(ending: dict[str, int]) -> None:
    """TestIsFinished, and setCondition: conditions do not change after a failure."""
    made = world(document(worker=2))
    end(made, **ending)
    made.settle()
    before = conditions_in_order(made)
    made.suspend(True)
    made.now += 60
    made.settle()
    assert conditions_in_order(made) == before


def test_conditions_of_suspension() -> None:
    """tfjob_controller_test.go, "TFJob with suspend semantics": the whole list in order, and the start time."""
    made = World(parse(document(chief=1, worker=1), strict=True).job)
    made.suspend(True)
    made.settle()
    created = ("Created", "True", "TFJobCreated", f"TFJob {NAME} is created.")
    suspended = ("Suspended", "True", "TFJobSuspended", f"TFJob {NAME} is suspended.")
    running = ("Running", "True", "TFJobRunning", f"TFJob default/{NAME} is running.")
    stopped = ("Running", "False", "TFJobSuspended", f"TFJob {NAME} is suspended.")
    resumed = ("Suspended", "False", "TFJobResumed", f"TFJob {NAME} is resumed.")
    assert told(made) == [created, suspended]
    assert "startTime" not in made.status
    made.suspend(False)
    run_all(made)
    assert told(made) == [created, resumed, running]
    started = made.status["startTime"]
    made.now += 60
    made.suspend(True)
    made.settle()
    assert told(made)[-1] == suspended
    assert stopped in told(made)
    assert (made.status["startTime"], made.pods, made.objects) == (started, {}, {})
    made.suspend(False)
    run_all(made)
    assert told(made) == [created, resumed, running]
    assert made.status["startTime"] > started


def told(made: World) -> list[tuple[str, str, str, str]]:
    return [(one["type"], one["status"], one["reason"], one["message"]) for one in conditions_in_order(made)]


def test_managed_by_another_controller() -> None:
    """ "Should not reconcile a job while managed by external controller": no status, no pods, suspended or not."""
    content = document(chief=1, worker=1)
    content["spec"]["runPolicy"] = {"managedBy": "kueue.x-k8s.io/multikueue"}
    made = World(parse(content).job)
    for suspended in (True, False):
        made.suspend(suspended)
        assert not made.step()
    assert (made.status, made.pods, made.objects) == ({}, {}, {})


@pytest.mark.parametrize(
    ("ttl", "finished", "suspended", "after", "removed"),
    [
        # job_test.go, "TFJob is created and is cleaned up", and util_test.go, TestDurationUntilExpireTime.
        (None, True, False, 86400, False),
        (None, False, True, 86400, False),
        (10, False, True, 86400, False),
        (10, False, False, 86400, False),
        (180, True, False, 86400, True),
        (0, True, False, 0, True),
        (5, True, False, 4, False),
        (5, True, False, 6, True),
    ],
)
@pytest.mark.parametrize("code", [0, 1])
def test_cleanup_job(ttl: int | None, finished: bool, suspended: bool, after: int, removed: bool, code: int) -> None:
    made = world(document(worker=1), **({} if ttl is None else {"ttlSecondsAfterFinished": ttl}))
    if suspended:
        made.suspend(True)
    if finished:
        end(made, worker_0=code)
    made.settle()
    made.now += after
    made.settle()
    assert made.job_gone is removed


def test_create_new_service() -> None:
    """job_test.go, CreateNewService: name, owner, labels and ports. The selector uses tf-dist's own labels."""
    content = document(worker=2)
    content["metadata"]["annotations"] = {SERVICES_ANNOTATION: "headless"}
    made = parse(content).job
    body = services_by_name(made)[f"{NAME}-worker-0"]
    metadata = body["metadata"]
    named = {"job-name": NAME, "operator-name": "tfjob-controller", "replica-index": "0", "replica-type": "worker"}
    labels = {f"training.kubeflow.org/{key}": value for key, value in named.items()}
    assert labels.items() <= metadata["labels"].items()
    assert metadata["ownerReferences"] == [names.owner_reference(made)]
    assert body["spec"]["clusterIP"] == "None"
    assert body["spec"]["ports"] == [{"name": "tfjob-port", "port": 2222, "targetPort": 2222}]
    pod = replica_pod.build_pod(made, ReplicaId("worker", 0), "1.0.0")
    assert body["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


def test_gen_owner_reference_and_labels() -> None:
    """tensorflow/util_test.go, and common/util_test.go, TestGenGeneralName: ``JOB-TYPE-INDEX`` in lower case."""
    made = parse(document(worker=2)).job
    pod = replica_pod.build_pod(made, ReplicaId("worker", 1), "1.0.0")["metadata"]
    assert pod["name"] == f"{NAME}-worker-1"
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": NAME, "uid": "uid-1"}
    assert pod["ownerReferences"] == [{**owner, "controller": True, "blockOwnerDeletion": True}]
    labels = {"training.kubeflow.org/job-name": NAME, "training.kubeflow.org/operator-name": "tfjob-controller"}
    assert labels.items() <= pod["labels"].items()


@pytest.mark.parametrize(
    ("counts", "master"),
    # tensorflow_types_test.go, TestIsChiefOrMaster, and IsMasterRole: without a chief or master, worker 0 has the role.
    [({"chief": 1, "worker": 2}, "chief-0"), ({"master": 1, "worker": 2}, "master-0"), ({"worker": 2}, "worker-0")],
)
def test_is_chief_or_master(counts: Any, master: str) -> None:
    made = world(document(**counts))
    role = "training.kubeflow.org/job-role"
    found = {name.removeprefix(f"{NAME}-") for name, pod in made.pods.items() if role in pod["metadata"]["labels"]}
    assert found == {master}


WAITS = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        # core/job.go, RecordAbnormalPods: here once, in the original in every pass.
        ([("tensorflow", WAITS)], f"container tensorflow waiting message: {WAITS['message']}"),
        ([("tensorflow", None), ("proxy", WAITS)], f"container proxy waiting message: {WAITS['message']}"),
        ([("tensorflow", {"reason": "ContainerCreating"})], ""),
        ([("tensorflow", {"reason": "ImagePullBackOff"})], ""),
    ],
)
def test_record_abnormal_pods(containers: Any, expected: str) -> None:
    made = World(parse(document(worker=2)).job)
    made.settle()
    made.run(made.pod("worker-0"))
    pod = made.pod("worker-1")
    states = [(name, {"waiting": said or {"reason": "ContainerCreating"}}) for name, said in containers]
    statuses = [{"name": name, "state": state, "restartCount": 0} for name, state in states]
    pod["status"]["containerStatuses"] = statuses
    found = [one for one in events(made) if one[1] == "ImagePullBackOff"]
    assert found == ([("Warning", "ImagePullBackOff", f"Error pod {NAME}-worker-1 {expected}")] if expected else [])
    made.now += 600
    assert not [one for one in events(made) if one[1] == "ImagePullBackOff"]
