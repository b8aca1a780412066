"""Jobs and queues that the embedded cluster rejects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.controller.harness import tfjob
from tf_dist.cluster.api import QUEUES, TFJOBS
from tf_dist.cluster.api_errors import Invalid
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.core.model.names import TRAINING_OPERATOR
from tf_dist.local.embedded import ADMISSION_VALIDATORS


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with MemoryCluster(validators=ADMISSION_VALIDATORS) as made:
        yield made


@pytest.mark.parametrize("manager", ["kubeflow.org/traning-operator", "example.com/mine", ""])
def test_rejects_unknown_manager(cluster: MemoryCluster, manager: str) -> None:
    with pytest.raises(Invalid, match=r"spec\.runPolicy\.managedBy: unknown value"):
        cluster.create(TFJOBS, "default", tfjob(managedBy=manager))


MULTIKUEUE = "kueue.x-k8s.io/multikueue"


@pytest.mark.parametrize(
    ("before", "after"), [(None, MULTIKUEUE), (TRAINING_OPERATOR, MULTIKUEUE), (MULTIKUEUE, TRAINING_OPERATOR)]
)
def test_rejects_change_of_manager(cluster: MemoryCluster, before: str | None, after: str) -> None:
    cluster.create(TFJOBS, "default", tfjob(managedBy=before))
    with pytest.raises(Invalid, match=f"managedBy: cannot be changed from .* to {after}"):
        cluster.patch(TFJOBS, "default", "mnist", {"spec": {"runPolicy": {"managedBy": after}}})


def test_rejects_queue_with_unknown_key(cluster: MemoryCluster) -> None:
    queue = {"metadata": {"name": "vision"}, "spec": {"quota": {"cpu": {"nominal": 4}}}}
    with pytest.raises(Invalid, match=r"spec\.quota: unknown key \(did you mean quotas\?\)"):
        cluster.create(QUEUES, None, queue)
    made = cluster.create(QUEUES, None, {**queue, "spec": {"quotas": {"cpu": {"nominal": 4}}}})
    cluster.replace(QUEUES, None, "vision", {**made, "status": {"pending": 1}}, subresource="status")
    patched = cluster.patch(QUEUES, None, "vision", {"spec": {"weight": 2}})
    assert patched["spec"]["weight"] == 2


def test_accepts_update_with_default_manager(cluster: MemoryCluster) -> None:
    cluster.create(TFJOBS, "default", tfjob())
    changed = cluster.patch(TFJOBS, "default", "mnist", {"spec": {"runPolicy": {"managedBy": TRAINING_OPERATOR}}})
    assert changed["spec"]["runPolicy"]["managedBy"] == TRAINING_OPERATOR


def test_rejects_job_with_too_long_tf_config(cluster: MemoryCluster) -> None:
    with pytest.raises(Invalid, match=r"TF_CONFIG would have [0-9]+ bytes"):
        cluster.create(TFJOBS, "default", tfjob(workers=5_000))
