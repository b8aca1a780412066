"""Code that is submitted with a job, on a real API server: its ConfigMaps, its pods, and its deletion."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.waiting import until
from tf_dist import TFJob
from tf_dist.client.job_files import one_job
from tf_dist.client.submission import create_job
from tf_dist.cluster.api import CONFIG_MAPS, PODS
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.core.dialects import read
from tf_dist.core.model.job import ReplicaId
from tf_dist.core.model.names import CODE
from tf_dist.core.model.status import Attempts
from tf_dist.core.podbuilder.replica_pod import build_pod

pytestmark = pytest.mark.cluster

# The security context that restricted Pod Security requires of containers.
SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def test_config_maps_with_code_are_created_and_deleted_with_job(
    real: RestCluster, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "data").write_bytes(os.urandom(8_300_000))
    job = TFJob.from_script(tmp_path / "train.py", image="tf:1", container={"securityContext": SECURITY})
    created = create_job(real, one_job(job.files()), namespace, workdir="")
    parts = real.list(CONFIG_MAPS, namespace, labels=CODE).items
    assert len(parts) == 10
    replica = ReplicaId("worker", 0)
    pod = build_pod(read(created.stored), replica, Attempts().label(replica))
    stored = real.create(PODS, namespace, pod)
    (unpacks,) = stored["spec"]["initContainers"]
    assert {key: unpacks["securityContext"][key] for key in SECURITY} == SECURITY
    real.delete(created.resource, namespace, created.name, uid=created.uid)
    until(lambda: not real.list(CONFIG_MAPS, namespace, labels=CODE).items, 60)
