"""TF_CONFIG byte for byte: the expected strings are those of the original operators (reference/tfjob.md 1.6 and 2.5,
volcano.md 2).

Exceptions are evaluators, and the chief and parameter servers of a sparse cluster.

The program of the default parameter server runs with a fake TensorFlow.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.core.builders import replicas, template, v1_job, v1alpha1_job, volcano_job
from tf_dist.core.model.job import Job, Plugins, ReplicaId, Role, TFConfigStyle
from tf_dist.core.podbuilder import ps_server, replica_pod, volcano_plugins
from tf_dist.core.podbuilder.tf_config import build_tf_config, cluster_hosts, tf_config_endpoints

V1 = v1_job(replicas("Worker", 2), replicas("PS", 1), replicas("Chief", 1), replicas("Evaluator", 1), name="j")
V1ALPHA1 = v1alpha1_job()
SPARSE = v1_job(
    replicas("PS", 2),
    replicas("Worker", 2),
    replicas("Chief", 1),
    replicas("Evaluator", 1),
    name="j",
    tf_config=TFConfigStyle.SPARSE,
)
VOLCANO = volcano_job(
    replicas("evaluator", 1),
    replicas("chief", 1),
    replicas("worker", 2),
    replicas("ps", 1),
    replicas("sidekick", 1),
    tf_config=TFConfigStyle.VOLCANO,
)

V1_CLUSTER = (
    '{"chief":["j-chief-0.default.svc:2222"],'
    '"ps":["j-ps-0.default.svc:2222"],"worker":["j-worker-0.default.svc:2222","j-worker-1.default.svc:2222"]}'
)
V1_CLUSTER_WITH_EVALUATOR = V1_CLUSTER.replace('"ps"', '"evaluator":["j-evaluator-0.default.svc:2222"],"ps"')
V1ALPHA1_CLUSTER = (
    '{"master":["example-master-76no-0:2222"],"ps":["example-ps-76no-0:2222","example-ps-76no-1:2222"],'
    '"worker":["example-worker-76no-0:2222"]}'
)
VOLCANO_CLUSTER = (
    '{"ps":["tf-dist-mnist-ps-0.tf-dist-mnist:2222"],'
    '"worker":["tf-dist-mnist-worker-0.tf-dist-mnist:2222","tf-dist-mnist-worker-1.tf-dist-mnist:2222"],'
    '"chief":["tf-dist-mnist-chief-0.tf-dist-mnist:2222"]}'
)
VOLCANO_CLUSTER_WITH_EVALUATOR = (
    VOLCANO_CLUSTER.removesuffix("}") + ',"evaluator":["tf-dist-mnist-evaluator-0.tf-dist-mnist:2222"]}'
)
SPARSE_CHIEF = '"chief":["j-chief-0.default.svc:2222"]'


def with_evaluator_everywhere(job: Job) -> Job:
    return replace(job, annotations={"tf-dist.dev/evaluator-in-cluster": "true"})


@pytest.mark.parametrize(
    ("job", "replica", "expected"),
    [
        (
            V1,
            ReplicaId("worker", 1),
            f'{{"cluster":{V1_CLUSTER},"task":{{"type":"worker","index":1}},"environment":"cloud"}}',
        ),
        (
            V1,
            ReplicaId("chief", 0),
            f'{{"cluster":{V1_CLUSTER},"task":{{"type":"chief","index":0}},"environment":"cloud"}}',
        ),
        (
            V1,
            ReplicaId("evaluator", 0),
            f'{{"cluster":{V1_CLUSTER_WITH_EVALUATOR},"task":{{"type":"evaluator","index":0}},"environment":"cloud"}}',
        ),
        (
            with_evaluator_everywhere(V1),
            ReplicaId("worker", 1),
            f'{{"cluster":{V1_CLUSTER_WITH_EVALUATOR},"task":{{"type":"worker","index":1}},"environment":"cloud"}}',
        ),
        (
            V1ALPHA1,
            ReplicaId("ps", 1),
            f'{{"cluster":{V1ALPHA1_CLUSTER},"task":{{"type":"ps","index":1}},"environment":"cloud"}}',
        ),
        (
            SPARSE,
            ReplicaId("worker", 1),
            f'{{"cluster":{{{SPARSE_CHIEF},"worker":{{"1":"j-worker-1.default.svc:2222"}},'
            '"ps":["j-ps-0.default.svc:2222","j-ps-1.default.svc:2222"]},"task":{"type":"worker","index":1}}',
        ),
        (
            SPARSE,
            ReplicaId("ps", 1),
            f'{{"cluster":{{{SPARSE_CHIEF},"worker":{{}},'
            '"ps":["j-ps-0.default.svc:2222","j-ps-1.default.svc:2222"]},"task":{"type":"ps","index":1}}',
        ),
        (
            SPARSE,
            ReplicaId("chief", 0),
            f'{{"cluster":{{{SPARSE_CHIEF},'
            '"worker":{"0":"j-worker-0.default.svc:2222","1":"j-worker-1.default.svc:2222"},'
            '"ps":["j-ps-0.default.svc:2222","j-ps-1.default.svc:2222"]},"task":{"type":"chief","index":0}}',
        ),
        (
            SPARSE,
            ReplicaId("evaluator", 0),
            f'{{"cluster":{{{SPARSE_CHIEF},"worker":{{}},"ps":[],"evaluator":["j-evaluator-0.default.svc:2222"]}},'
            '"task":{"type":"evaluator","index":0}}',
        ),
        (VOLCANO, ReplicaId("ps", 0), f'{{"cluster":{VOLCANO_CLUSTER},"task":{{"type":"ps","index":0}}}}'),
        (VOLCANO, ReplicaId("worker", 1), f'{{"cluster":{VOLCANO_CLUSTER},"task":{{"type":"worker","index":1}}}}'),
        (VOLCANO, ReplicaId("sidekick", 0), f'{{"cluster":{VOLCANO_CLUSTER},"task":{{"type":"sidekick","index":0}}}}'),
        (
            VOLCANO,
            ReplicaId("evaluator", 0),
            f'{{"cluster":{VOLCANO_CLUSTER_WITH_EVALUATOR},"task":{{"type":"evaluator","index":0}}}}',
        ),
        (
            with_evaluator_everywhere(VOLCANO),
            ReplicaId("ps", 0),
            f'{{"cluster":{VOLCANO_CLUSTER_WITH_EVALUATOR},"task":{{"type":"ps","index":0}}}}',
        ),
        (volcano_job(), ReplicaId("worker", 0), None),
        (V1, ReplicaId("missing", 0), None),
    ],
)
def test_builds_tf_config_of_every_replica(job: Job, replica: ReplicaId, expected: str | None) -> None:
    assert build_tf_config(job, replica, cluster_hosts(job)) == expected


def test_sparse_cluster_contains_own_task() -> None:
    """TensorFlow starts a server for the task's own entry only ("Task 1 was not defined in job ps")."""
    for replica in SPARSE.replicas:
        config = json.loads(build_tf_config(SPARSE, replica, cluster_hosts(SPARSE)) or "")
        listed = config["cluster"][replica.type]
        found = listed[str(replica.index)] if isinstance(listed, dict) else listed[replica.index]
        assert found == f"j-{replica}.default.svc:2222"


def test_each_type_has_its_own_port() -> None:
    job = v1alpha1_job(replicas("MASTER", 1, port=22), replicas("PS", 1, port=23))
    assert build_tf_config(job, ReplicaId("master", 0), cluster_hosts(job)) == (
        '{"cluster":{"master":["example-master-76no-0:22"],"ps":["example-ps-76no-0:23"]},'
        '"task":{"type":"master","index":0},"environment":"cloud"}'
    )


def test_sparse_worker_without_parameter_servers_lists_only_itself() -> None:
    job = v1_job(replicas("Worker", 2), name="j", tf_config=TFConfigStyle.SPARSE)
    expected = '{"cluster":{"worker":{"0":"j-worker-0.default.svc:2222"},"ps":[]},"task":{"type":"worker","index":0}}'
    assert build_tf_config(job, ReplicaId("worker", 0), cluster_hosts(job)) == expected


def test_addresses_replace_host_names() -> None:
    job = v1_job(replicas("Worker", 2), name="j")
    addresses = {"j-worker-0.default.svc:2222": "127.0.0.1:40001"}
    assert build_tf_config(job, ReplicaId("worker", 0), cluster_hosts(job, addresses)) == (
        '{"cluster":{"worker":["127.0.0.1:40001","j-worker-1.default.svc:2222"]},'
        '"task":{"type":"worker","index":0},"environment":"cloud"}'
    )


@pytest.mark.parametrize("job", [V1, V1ALPHA1, SPARSE, VOLCANO])
def test_every_address_in_tf_config_can_be_mapped(job: Job) -> None:
    addresses = {endpoint: f"mapped-{number}" for number, endpoint in enumerate(tf_config_endpoints(job))}
    for replica in job.replicas:
        assert ":2222" not in (build_tf_config(job, replica, cluster_hosts(job, addresses)) or "")


@pytest.mark.parametrize(
    ("fixed", "hosts", "listed"),
    [
        ({}, ["tf-dist-mnist-worker-0.tf-dist-mnist", "tf-dist-mnist-worker-1.tf-dist-mnist"], 2),
        ({"hostname": "", "subdomain": None}, ["tf-dist-mnist-worker-0.tf-dist-mnist"], 2),
        ({"subdomain": "peers"}, ["tf-dist-mnist-worker-0.peers", "tf-dist-mnist-worker-1.peers"], 2),
        ({"hostname": "node"}, ["node.tf-dist-mnist", "node.tf-dist-mnist"], 1),
        ({"hostname": "node", "subdomain": "peers"}, ["node.peers", "node.peers"], 1),
    ],
)
def test_hostnames_of_template_are_in_volcano_tf_config_and_host_files(
    fixed: dict[str, Any], hosts: list[str], listed: int
) -> None:
    """MakeDomainName and GenerateHosts of Volcano: an address for each replica, but a line for each host name."""
    workers = replicas("worker", 2, template=template(**fixed))
    job = volcano_job(workers, tf_config=TFConfigStyle.VOLCANO)
    found = json.loads(build_tf_config(job, ReplicaId("worker", 1), cluster_hosts(job)) or "")["cluster"]["worker"]
    assert found[: len(hosts)] == [f"{host}:2222" for host in hosts]
    assert len(found) == 2
    data = volcano_plugins.host_file_data(job)
    assert data["worker.host"].split("\n")[: len(hosts)] == hosts[:listed]
    assert data["VC_WORKER_HOSTS"] == ",".join(data["worker.host"].split("\n"))
    assert data["VC_WORKER_NUM"] == str(listed)
    made = replica_pod.build_pod(job, ReplicaId("worker", 1), "1.0.0")["spec"]
    assert f"{made['hostname']}.{made['subdomain']}:2222" == found[1]


@pytest.mark.parametrize("make", [v1_job, v1alpha1_job])
def test_replica_services_are_addresses_regardless_of_template(make: Any) -> None:
    fixed = [replicas("Worker", 2, template=template(hostname="node", subdomain="peers"))]
    assert tf_config_endpoints(make(*fixed)) == tf_config_endpoints(make(replicas("Worker", 2)))


def test_volcano_roles_come_from_plugin() -> None:
    job = volcano_job(
        replicas("trainer", 2, role=Role.WORKER), tf_config=TFConfigStyle.VOLCANO, plugins=Plugins(svc=True)
    )
    assert build_tf_config(job, ReplicaId("trainer", 1), cluster_hosts(job)) == (
        '{"cluster":{"worker":["tf-dist-mnist-trainer-0.tf-dist-mnist:2222","tf-dist-mnist-trainer-1.tf-dist-mnist:2222"]},'
        '"task":{"type":"worker","index":1}}'
    )


def test_job_with_its_own_tf_config_has_no_endpoints() -> None:
    assert tf_config_endpoints(volcano_job()) == ()


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


def test_ps_server_flag_matches_original_operator() -> None:
    assert ps_server.cluster_flag(cluster_hosts(job())) == CLUSTER


def test_ps_server_flag_uses_mapped_addresses() -> None:
    flag = ps_server.cluster_flag(cluster_hosts(job(), {"example-ps-76no-1:2222": "127.0.0.1:4000"}))
    assert flag == "master|example-master-76no-0:2222,ps|example-ps-76no-0:2222;127.0.0.1:4000"


def test_ps_server_container_uses_image_of_job() -> None:
    spec = job().replica_specs[1]
    container = ps_server.ps_server_container(job(), spec, 1, cluster_hosts(job()))
    assert (container["name"], container["image"]) == ("tensorflow", "tensorflow/tensorflow:1.3.0")
    assert container["command"][:2] == ["python", "-c"]
    assert container["command"][3:] == [f"--cluster_spec={CLUSTER}", "--job_name=ps", "--task_id=1"]


@pytest.fixture(params=[FAKE, NEW], ids=["TensorFlow 1", "TensorFlow 2"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "tensorflow.py").write_text(request.param)
    command = ps_server.ps_server_container(job(), job().replica_specs[1], 1, cluster_hosts(job()))["command"]
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
def test_standard_server_serves_until_signal(server: subprocess.Popen[str], number: signal.Signals) -> None:
    assert server.stdout is not None
    cluster = {"master": ["example-master-76no-0:2222"], "ps": ["example-ps-76no-0:2222", "example-ps-76no-1:2222"]}
    assert server.stdout.readline() == f"{cluster} ps 1\n"
    assert server.stdout.readline() == "serving ps-1 at grpc://localhost:2222\n"
    assert server.poll() is None
    server.send_signal(number)
    assert server.wait(timeout=60) == 128 + number
