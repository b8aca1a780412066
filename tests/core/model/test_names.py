from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import replicas, v1_job, v1alpha1_job, volcano_job
from tf_dist.core.model import names
from tf_dist.core.model.job import Job, JobKey, ReplicaId, ServiceStyle

V1 = v1_job(replicas("PS", 1), replicas("Worker", 2))
V1ALPHA1 = v1alpha1_job()
VOLCANO = volcano_job()


def labels(job: Job, replica: str) -> dict[str, str]:
    type_, _, index = replica.rpartition("-")
    spec = job.spec(type_)
    assert spec is not None
    return names.replica_labels(job, spec, int(index))


def test_v1_names_contain_job_type_and_index() -> None:
    assert names.replica_name(V1, ReplicaId("worker", 1)) == "mnist-worker-1"
    assert names.pod_name(V1, ReplicaId("worker", 1), "1.0.0") == "mnist-worker-1"
    assert names.replica_host(V1, ReplicaId("worker", 1)) == "mnist-worker-1.default.svc"


def test_v1alpha1_names_contain_forty_characters_and_runtime_id() -> None:
    job = v1alpha1_job(key=JobKey("default", "a" * 60))
    assert names.replica_name(job, ReplicaId("ps", 1)) == "a" * 40 + "-ps-76no-1"
    assert names.replica_host(V1ALPHA1, ReplicaId("ps", 1)) == "example-ps-76no-1"


def test_v1alpha1_pod_name_ends_with_hash_of_attempt() -> None:
    first, again, second = (names.pod_name(V1ALPHA1, ReplicaId("ps", 1), a) for a in ("1.0.0", "1.0.0", "1.0.1"))
    assert re.fullmatch("example-ps-76no-1-[a-z0-9]{5}", first)
    assert first == again != second


def test_volcano_names_contain_job_task_and_index() -> None:
    assert names.pod_name(VOLCANO, ReplicaId("ps", 0), "3.0.0") == "tf-dist-mnist-ps-0"
    assert names.replica_host(VOLCANO, ReplicaId("ps", 0)) == "tf-dist-mnist-ps-0.tf-dist-mnist"


def test_v1_host_is_below_service_of_job() -> None:
    job = v1_job(services=ServiceStyle.PER_JOB)
    assert names.replica_host(job, ReplicaId("worker", 1)) == "mnist-worker-1.mnist.default.svc"


def test_v1_labels_are_current_and_legacy_set() -> None:
    assert labels(V1, "worker-0") == {
        "tf-dist.dev/job-uid": "uid-mnist",
        "tf-dist.dev/job-name": "mnist",
        "tf-dist.dev/replica-type": "worker",
        "tf-dist.dev/replica-index": "0",
        "training.kubeflow.org/operator-name": "tfjob-controller",
        "training.kubeflow.org/job-name": "mnist",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "0",
        "training.kubeflow.org/job-role": "master",
        "group-name": "kubeflow.org",
        "job-name": "mnist",
        "tf-job-name": "mnist",
        "replica-type": "worker",
        "replica-index": "0",
        "controller-name": "tf-operator",
        "job-role": "master",
    }


def test_worker_0_is_master_only_without_chief() -> None:
    led = v1_job(replicas("Chief", 1), replicas("Worker", 1))
    assert "job-role" not in labels(V1, "worker-1")
    assert "job-role" not in labels(V1, "ps-0")
    assert "job-role" not in labels(led, "worker-0")
    assert labels(led, "chief-0")["training.kubeflow.org/job-role"] == "master"


def test_v1alpha1_labels_are_those_of_original_operator() -> None:
    found = {key: value for key, value in labels(V1ALPHA1, "ps-1").items() if not key.startswith("tf-dist.dev/")}
    assert found == {
        "kubeflow.org": "",
        "job_type": "PS",
        "runtime_id": "76no",
        "tf_job_name": "example",
        "task_index": "1",
    }


def test_volcano_labels_name_job_task_index_and_queue() -> None:
    found = {key: value for key, value in labels(VOLCANO, "worker-1").items() if not key.startswith("tf-dist.dev/")}
    assert found == {
        "volcano.sh/job-name": "tf-dist-mnist",
        "volcano.sh/job-namespace": "default",
        "volcano.sh/task-spec": "worker",
        "volcano.sh/task-index": "1",
        "volcano.sh/queue-name": "default",
    }


@given(st.lists(st.text(), min_size=1, max_size=4), st.integers(1, 12))
def test_short_hash_is_deterministic_and_uses_name_characters(parts: list[str], length: int) -> None:
    assert re.fullmatch(f"[0-9a-z]{{{length}}}", names.short_hash(*parts, length=length))
    assert names.short_hash(*parts, length=length) == names.short_hash(*parts, length=length)


def test_short_hash_depends_on_boundaries_of_parts() -> None:
    assert names.short_hash("ab", "c") != names.short_hash("a", "bc")


@pytest.mark.parametrize(
    ("labels", "owners", "belongs"),
    [
        ({names.JOB_UID: "u"}, [{"uid": "u", "controller": True}], True),
        ({names.JOB_UID: "u"}, [{"uid": "x"}, {"uid": "u", "controller": True}], True),
        ({names.JOB_UID: "u"}, [], False),  # any user may write the label
        ({names.JOB_UID: "u"}, [{"uid": "u"}], False),
        ({names.JOB_UID: "u"}, [{"uid": "x", "controller": True}], False),
        ({}, [{"uid": "u", "controller": True}], False),
    ],
)
def test_object_belongs_to_job_that_is_its_controller(labels: Any, owners: Any, belongs: bool) -> None:
    stored = {"metadata": {"namespace": "team", "labels": labels, "ownerReferences": owners}}
    assert names.owner_key(stored) == (names.owned_by_key("team", "u") if belongs else "")


@pytest.mark.parametrize("text", ["", "a", "7", "A.b-c_d", "x" * 63])
def test_valid_label_values(text: str) -> None:
    assert names.is_label_value(text)


@pytest.mark.parametrize("text", ["-a", "a-", ".", "_a", "a b", "a/b", "\u00e4", "a\n", "x" * 64])
def test_invalid_label_values(text: str) -> None:
    assert not names.is_label_value(text)


@pytest.mark.parametrize(
    ("labels", "owners", "key"),
    [
        ({names.JOB_UID: "u"}, None, "team//u"),
        ({names.JOB_UID: "u"}, [], "team//u"),
        ({names.JOB_UID: "u"}, [{"uid": "v"}], "team//u"),
        ({names.JOB_UID: "u"}, [{"uid": "v", "controller": True}], ""),
        ({names.JOB_UID: ""}, [], ""),
        ({}, [], ""),
        (None, None, ""),
    ],
)
def test_orphan_has_uid_of_job_and_no_controller(labels: Any, owners: Any, key: str) -> None:
    metadata = {"namespace": "team", "labels": labels, "ownerReferences": owners}
    assert names.orphan_key({"metadata": metadata}) == key
