"""The status of a TFJob v1alpha1: ``replicas_test.go`` (``TestTFReplicaSetStatusFromPodList``), ``training_test.go``
(``TestIsRetryableTerminationState``, ``TestJobSetup``) and ``training.go`` of tf-operator and the DRAGON fork.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.test_tfjob_v1alpha1 import entry, tfjob
from tests.core.builders import START
from tests.core.reconciler.scenarios import started
from tests.core.world import World
from tf_dist.core.dialects import parse, read
from tf_dist.core.model.context import WriteStatus
from tf_dist.core.model.status import RefusedSpec, Status
from tf_dist.core.podbuilder.services import build_objects
from tf_dist.core.reconciler.accepted_spec import plan_for_invalid_spec
from tf_dist.errors import InvalidJob

Doc = dict[str, Any]
RUNNING: Doc = {"running": {}}
DONE = {"exitCode": 0}


def terminated(code: int, reason: str = "") -> Doc:
    return {"terminated": {"exitCode": code, "reason": reason}}


def world_with(master: list[Doc], phase: str) -> World:
    """A running master and worker, and then these containers of the master."""
    made = started(parse(tfjob("job", entry("MASTER"), entry("WORKER"))).job)
    pod = made.pod("master-0")
    pod["status"] |= {"phase": phase, "containerStatuses": master}
    made.settle()
    return made


def container(state: Doc, last: Doc | None = None, name: str = "tensorflow") -> Doc:
    return {"name": name, "state": state, "restartCount": int(last is not None), "lastState": last or {}}


@pytest.mark.parametrize(
    ("containers", "pod_phase", "expected"),
    [
        # TestTFReplicaSetStatusFromPodList, in its order. Here, a replica has one pod.
        ([container(RUNNING)], "Running", ("Running", "Running")),
        ([container(terminated(0))], "Succeeded", ("Done", "Succeeded")),
        ([container(RUNNING, name="other"), container(terminated(0))], "Running", ("Done", "Succeeded")),
        ([container(RUNNING, terminated(100))], "Running", ("Done", "Failed")),
        ([container(terminated(100))], "Failed", ("Done", "Failed")),
        # TestIsRetryableTerminationState: in a container that the kubelet restarts.
        ([container(RUNNING, terminated(1))], "Running", ("Done", "Failed")),
        ([container(RUNNING, terminated(127))], "Running", ("Done", "Failed")),
        ([container(RUNNING, terminated(128))], "Running", ("Running", "Running")),
        ([container(RUNNING, terminated(137))], "Running", ("Running", "Running")),
        ([container(RUNNING, terminated(244))], "Running", ("Running", "Running")),
        ([container(RUNNING, terminated(244, "OOMKilled"))], "Running", ("Done", "Failed")),
        ([container(RUNNING, terminated(137, "OOMKilled"))], "Running", ("Done", "Failed")),
        # The same, in a finished pod.
        ([container(terminated(1))], "Failed", ("Done", "Failed")),
        ([container(terminated(244))], "Failed", ("Running", "Running")),
        ([container(terminated(244, "OOMKilled"))], "Failed", ("Done", "Failed")),
        # Other containers do not count.
        ([container(terminated(3), name="other"), container(RUNNING)], "Running", ("Running", "Running")),
        ([container(terminated(3), name="other"), container(terminated(0))], "Failed", ("Done", "Succeeded")),
        ([container(RUNNING, name="other"), container(terminated(1))], "Running", ("Done", "Failed")),
        ([container(RUNNING, name="other"), container(terminated(244))], "Running", ("Running", "Running")),
        ([container({"waiting": {"reason": "ContainerCreating"}})], "Pending", ("Running", "Running")),
    ],
)
def test_chief_decides_phase_and_state(containers: list[Doc], pod_phase: str, expected: tuple[str, str]) -> None:
    status = world_with(containers, pod_phase).status
    assert (status["phase"], status["state"]) == expected


def test_status_after_setup() -> None:
    """``setup``: phase Creating, state Running. A replica set whose pods are still missing is Running."""
    made = World(parse(tfjob("job", entry("MASTER"), entry("PS", 2))).job)
    made.settle()
    assert (made.status["phase"], made.status["state"]) == ("Creating", "Running")
    assert made.status["replicaStatuses"] == [
        {"tf_replica_type": "MASTER", "state": "Running", "ReplicasStates": {"Running": 1}},
        {"tf_replica_type": "PS", "state": "Running", "ReplicasStates": {"Running": 2}},
    ]


GPU = "nvidia-gpu"
WORKER_CHIEF = {"chief": {"replicaName": "WORKER", "replicaIndex": 0}}


def gpu_job(**spec: Any) -> Doc:
    workers = entry("WORKER", 2, 10)
    workers["template"]["spec"]["containers"][0]["resources"] = {"requests": {GPU: 1}}
    return tfjob("job", workers, **spec)


@pytest.mark.parametrize("document", [tfjob("job", entry("MASTER", 1, 10)), gpu_job(terminationPolicy=WORKER_CHIEF)])
def test_setup(document: Doc) -> None:
    """``TestJobSetup``: its two valid jobs."""
    assert read(document).runtime_id


@pytest.mark.parametrize(
    ("document", "path"),
    [
        # "invalid job spec: Missing ReplicaSpec for chief: MASTER", the third of TestJobSetup.
        (gpu_job(), "spec.terminationPolicy.chief.replicaName"),
        # ValidateTFJobSpec and validation_test.go.
        (tfjob("job", {"tfReplicaType": "MASTER"}), "spec.replicaSpecs[0].template"),
        (tfjob("job", {**entry("MASTER"), "tfReplicaType": "EVALUATOR"}), "spec.replicaSpecs[0].tfReplicaType"),
        (
            tfjob("job", {"template": {"spec": {"containers": [{"name": "tf", "image": "x"}]}}}),
            "spec.replicaSpecs[0].template.spec.containers",
        ),
        (tfjob("job", entry("WORKER", 2)), "spec.terminationPolicy.chief.replicaName"),
    ],
)
def test_refuses_jobs_that_setup_refuses(document: Doc, path: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse(document)
    assert path in [problem.path for problem in caught.value.problems]


def test_invalid_job_waits_for_correction() -> None:
    """A deliberate difference: in the original, ``setup`` fails the job for good."""
    refused = RefusedSpec(generation=1, digest="d", message="there is no chief")
    plan = plan_for_invalid_spec(gpu_job(), Status(), refused, START)
    (status,) = (action.status for action in plan.actions if isinstance(action, WriteStatus))
    assert (status["phase"], status["state"]) == ("Creating", "Running")
    assert "there is no chief" in status["reason"]
    assert not plan.status.finished


def test_gang_has_no_disruption_budget_by_default() -> None:
    """A deliberate difference: ``TestPDBForGangScheduling`` has one, ``tf-job-pdb-NAME``, with its option on."""
    job = parse(tfjob("some-meta-name", entry("MASTER"), entry("WORKER"), RuntimeId="some-runtime-id")).job
    assert {body["kind"] for body in build_objects(job)} == {"Service"}


def test_services_select_by_labels_of_tf_dist() -> None:
    """A deliberate difference: pods of an earlier job of the same name have the original's labels as well."""
    (service, *_) = build_objects(read(tfjob("job", entry("MASTER"), RuntimeId="r")))
    assert all(key.startswith("tf-dist.dev/") for key in service["spec"]["selector"])
    labels = {"tf_job_name": "job", "job_type": "MASTER", "runtime_id": "r", "task_index": "0"}
    assert labels.items() <= service["metadata"]["labels"].items()


def test_failed_worker_with_running_sidecar_is_replaced() -> None:
    """With ``restartPolicy: Never``, the kubelet restarts nothing, and the pod runs as long as the sidecar."""
    workers = entry("WORKER", 2)
    workers["template"]["spec"]["restartPolicy"] = "Never"
    made = started(parse(tfjob("job", entry("MASTER"), workers)).job)
    failed = made.pod("worker-1")
    failed["status"]["containerStatuses"] = [container(terminated(1)), container(RUNNING, name="proxy")]
    made.settle()
    again = made.pod("worker-1")
    assert again["metadata"]["uid"] != failed["metadata"]["uid"]
    assert again["status"]["phase"] == "Pending"
