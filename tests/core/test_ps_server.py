"""The program of the default parameter server, really run, with a TensorFlow that only pretends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.builders import replicas, v1alpha1_job
from tf_dist.core import ps_server
from tf_dist.core.model import Job

CLUSTER = "master|example-master-76no-0:2222,ps|example-ps-76no-0:2222;example-ps-76no-1:2222"

FAKE = """
class compat:
    pass
class train:
    class ClusterSpec(dict):
        pass
    class Server:
        target = "grpc://localhost:2222"
        def __init__(self, cluster, job_name, task_index):
            print(dict(cluster), job_name, task_index, flush=True)
        def join(self):
            import time
            time.sleep(600)
"""
NEW = FAKE + "compat.v1 = type('v1', (), {'train': train})\ntrain = None\n"


def job() -> Job:
    server = replicas("PS", 2, template={"spec": {}}, server_image="tensorflow/tensorflow:1.3.0")
    return v1alpha1_job(replicas("MASTER", 1), server)


def test_the_cluster_is_written_as_the_seed_writes_it() -> None:
    assert ps_server.cluster_flag(job(), {}) == CLUSTER


def test_addresses_replace_names_where_dns_does_not_reach() -> None:
    flag = ps_server.cluster_flag(job(), {"example-ps-76no-1:2222": "127.0.0.1:4000"})
    assert flag == "master|example-master-76no-0:2222,ps|example-ps-76no-0:2222;127.0.0.1:4000"


def test_the_container_runs_the_program_in_the_jobs_tensorflow_image() -> None:
    spec = job().replica_specs[1]
    container = ps_server.container(job(), spec, 1, {})
    assert (container["name"], container["image"]) == ("tensorflow", "tensorflow/tensorflow:1.3.0")
    assert container["command"][:2] == ["python", "-c"]
    assert container["command"][3:] == [f"--cluster_spec={CLUSTER}", "--job_name=ps", "--task_id=1"]


@pytest.fixture(params=[FAKE, NEW], ids=["TensorFlow 1", "TensorFlow 2"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "tensorflow.py").write_text(request.param)
    command = ps_server.container(job(), job().replica_specs[1], 1, {})["command"]
    process = subprocess.Popen(
        [sys.executable, *command[1:]],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_stop_and_ends_as_if_killed(
    server: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert server.stdout is not None
    cluster = {"master": ["example-master-76no-0:2222"], "ps": ["example-ps-76no-0:2222", "example-ps-76no-1:2222"]}
    assert server.stdout.readline() == f"{cluster} ps 1\n"
    assert server.stdout.readline() == "serving ps-1 at grpc://localhost:2222\n"
    assert server.poll() is None
    server.send_signal(number)
    assert server.wait(timeout=60) == 128 + number
