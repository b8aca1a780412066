"""``tf-dist scale``, against a real local cluster with real processes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Program, eventually
from tests.cli.processes import FOREVER, name


def submit(local: Program, *, workers: int, annotations: dict[str, str] | None = None, dynamic: bool = True) -> str:
    job = local.job(FOREVER, workers=workers, name=name())
    job["metadata"]["annotations"] = annotations or {}
    job["spec"]["enableDynamicWorker"] = dynamic
    found = local("submit", local.write("job.yaml", job))
    assert found.returncode == 0, found.stderr
    called = str(job["metadata"]["name"])
    assert local("wait", called, "--for", "running", "--timeout", "30s").returncode == 0
    return called


def replicas(local: Program, job: str) -> dict[str, Any]:
    found = json.loads(local("get", job, "-o", "json").stdout)
    return {"asked": found["spec"]["tfReplicaSpecs"]["Worker"]["replicas"], "ready": found["status"]["tfDist"]["ready"]}


def test_workers_come_and_go(local: Program) -> None:
    job = submit(local, workers=1)
    found = local("scale", job, "--workers", "3")
    assert (found.returncode, found.stdout) == (0, f"tfjob/{job} scaled from 1 to 3 workers\n"), found.stderr
    assert eventually(lambda: replicas(local, job) == {"asked": 3, "ready": "3/3"})
    assert local("scale", job, "-w", "3").stdout == f"tfjob/{job} has 3 workers already\n"
    assert local("scale", f"tfjob/{job}", "-w", "2").stdout == f"tfjob/{job} scaled from 3 to 2 workers\n"
    assert eventually(lambda: replicas(local, job) == {"asked": 2, "ready": "2/2"})
    assert local("delete", job, "--wait").returncode == 0


def test_its_bounds_hold_and_are_told(local: Program) -> None:
    bounds = {"tf-dist.dev/min-workers": "1", "tf-dist.dev/max-workers": "2"}
    job = submit(local, workers=1, annotations=bounds)
    refused = local("scale", job, "--workers", "4")
    assert refused.returncode == 2
    assert 'metadata.annotations["tf-dist.dev/max-workers"]' in refused.stderr
    assert "with 4 workers" in refused.stderr
    assert "Traceback" not in refused.stderr
    scaled = local("scale", job, "--workers", "2")
    assert scaled.returncode == 0
    assert "it is elastic: depending on what waits, it has from 1 to 2 workers" in scaled.stderr
    assert local("delete", job, "--wait").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody", "-w", "2"], "there is no job nobody"),
        (["nobody", "-w", "-1"], "equal to 0"),
        (["nobody"], "--workers"),
    ],
)
def test_what_is_asked_wrongly(local: Program, arguments: list[str], said: str) -> None:
    found = local("scale", *arguments)
    assert found.returncode == 2
    assert said in found.stderr


def test_a_job_that_is_over_is_not_scaled(local: Program) -> None:
    document = local.job("true", name=name())
    document["spec"]["runPolicy"]["cleanPodPolicy"] = "None"
    job = document["metadata"]["name"]
    local("submit", local.write("job.yaml", document))
    assert local("wait", job, "--timeout", "30s").returncode == 0
    found = local("scale", job, "--workers", "2")
    assert found.returncode == 2
    assert "it is over" in found.stderr
    assert local("delete", job, "--wait").returncode == 0
