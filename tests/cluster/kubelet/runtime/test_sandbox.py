"""Isolated mode: each pod has its own network, file system and process table. The host does not change."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kubelet.bench import Bench, MakeBench, as_other, make_pod, py, sh, until
from tests.core.builders import replicas, template, v1_job, v1alpha1_job, volcano_job
from tf_dist.cluster.api import CONFIG_MAPS, NETWORK_POLICIES, SECRETS, SERVICES
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
from tf_dist.core.model import names
from tf_dist.core.model.job import Job, ReplicaId, ServiceStyle
from tf_dist.core.podbuilder import replica_pod, services

SERVE = """
import socket, sys
s = socket.create_server(("", 2222)); print("serving", flush=True)
while True:
    c, a = s.accept(); c.sendall(socket.gethostname().encode()); c.close()
"""
ASK = """
import socket, time
def ask(host):
    for _ in range(6000):
        try:
            return socket.create_connection((host, 2222)).recv(99).decode()
        except OSError:
            time.sleep(0.01)
print([ask(h) for h in ("ps-0.job", "ps-1.job.default.svc.cluster.local", "front.default")])
"""


def service(bench: Bench, name: str, **selector: str) -> None:
    spec = {"clusterIP": "None", "selector": selector, "ports": [{"port": 2222}]}
    bench.cluster.create(SERVICES, "default", {"metadata": {"name": name}, "spec": spec})


@pytest.mark.parametrize("first", [False, True])
def test_two_pods_serve_same_port_and_resolve_by_name(isolated: Bench, first: bool) -> None:
    """Also by a pod that runs before the other pods exist."""
    if first:
        isolated.create(py("asker", ASK))
        isolated.running("asker")
    service(isolated, "job", job="j")
    service(isolated, "front", role="1")
    for number in "01":
        labels = {"labels": {"job": "j", "role": number}}
        isolated.create(py(f"p{number}", SERVE, metadata=labels, hostname=f"ps-{number}", subdomain="job"))
    if not first:
        isolated.create(py("asker", ASK))
    isolated.over("asker")
    assert isolated.log("asker") == "['ps-0', 'ps-1', 'ps-1']\n"


RESOLVE = """
import json, os, socket
if "TF_CONFIG" in os.environ:
    host = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][1].rpartition(":")[0]
else:
    host = os.environ["VC_WORKER_HOSTS"].split(",")[1]
print(socket.gethostbyname(host), flush=True)
"""
HEADLESS = partial(v1_job, annotations={names.SERVICES: "headless"})
PER_JOB = partial(v1_job, services=ServiceStyle.PER_JOB)


@pytest.mark.parametrize("build", [v1_job, v1alpha1_job, HEADLESS, PER_JOB, volcano_job])
def test_replica_resolves_peer_before_its_pod_exists(isolated: Bench, build: Callable[..., Job]) -> None:
    training = template(containers=[{"name": "tensorflow", "image": "x", "command": [sys.executable, "-c", RESOLVE]}])
    job = build(replicas("Worker", 2, template=training, pod_restart_policy="Never"))
    for body in services.build_objects(job):
        kind = {"Service": SERVICES, "ConfigMap": CONFIG_MAPS, "NetworkPolicy": NETWORK_POLICIES}[body["kind"]]
        isolated.cluster.create(kind, "default", without_owner(body))

    def run(index: int) -> str:
        body = replica_pod.build_pod(job, ReplicaId("worker", index), "1.0.0")
        body["spec"]["nodeName"] = "local"
        return isolated.over(isolated.create(without_owner(body))["metadata"]["name"])["podIP"]

    assert run(0)
    name = names.pod_name(job, ReplicaId("worker", 0), "1.0.0")
    assert isolated.log(name).split() == [run(1)]


def without_owner(body: dict[str, Any]) -> dict[str, Any]:
    """The object without owner references. Its job is not stored, so the garbage collector would delete the object."""
    return {**body, "metadata": {key: value for key, value in body["metadata"].items() if key != "ownerReferences"}}


def test_recreated_pod_keeps_its_ip(isolated: Bench) -> None:
    first = isolated.run(sh("one", "true"))["podIP"]
    isolated.delete("one")
    isolated.gone("one")
    assert isolated.run(sh("one", "true"))["podIP"] == first


def test_volumes_are_mounted_without_changing_host(isolated: Bench, tmp_path: Path) -> None:
    before = (sorted(os.listdir("/")), sorted(os.listdir("/etc")))
    isolated.cluster.create(CONFIG_MAPS, "default", {"metadata": {"name": "cm"}, "data": {"ps.host": "a\n", "b": "2"}})
    isolated.cluster.create(SECRETS, "default", {"metadata": {"name": "s"}, "stringData": {"key": "secret\n"}})
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("on the host\n")
    volumes = [
        {"name": "cm", "configMap": {"name": "cm"}},
        {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400, "items": [{"key": "key", "path": "x/k"}]}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "data", "hostPath": {"path": f"{tmp_path}/data"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "model"}},
        {"name": "pod", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]
    mounts = [
        {"name": "cm", "mountPath": "/etc/volcano"},
        {"name": "cm", "mountPath": "/etc/one-file.conf", "subPath": "b"},
        {"name": "s", "mountPath": "/secrets/deep/down"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "mem", "mountPath": "/memory"},
        {"name": "data", "mountPath": "/data", "readOnly": True},
        {"name": "data", "mountPath": "/data-again/sub"},
        {"name": "claim", "mountPath": "/model"},
        {"name": "claim", "mountPath": "/model/nested/part", "subPath": "part"},
        {"name": "pod", "mountPath": "/tmp/podinfo"},
    ]
    script = (
        "set -e; cat /etc/volcano/ps.host /etc/one-file.conf; echo; cat /secrets/deep/down/x/k /data/file;"
        "cat /tmp/podinfo/n; echo; ls /tmp; stat -c %a /secrets/deep/down/x/k;"
        "echo 1 > /tmp/a; echo 2 > /memory/b; echo 3 > /model/saved;"
        "echo 4 > /model/nested/part/p; echo 5 > /data-again/sub/made; df --output=size /memory | tail -1; hostname;"
        "(echo no > /data/file) 2>/dev/null || echo read-only; (echo no > /etc/volcano/x) 2>/dev/null || echo also"
    )
    container = {"volumeMounts": mounts, "workingDir": "/model"}
    status = isolated.run(sh("one", script, volumes=volumes, container=container))
    assert status["phase"] == "Succeeded", (status, isolated.log("one"))
    expected = "a 2 secret on the host one podinfo 400 1024 one read-only also"
    assert isolated.log("one").split() == expected.split()
    assert (sorted(os.listdir("/")), sorted(os.listdir("/etc"))) == before
    assert sorted(os.listdir(tmp_path / "data")) == ["file", "made"]
    claim = isolated.kubelet.state_dir / "volumes" / "default" / "model"
    assert (claim / "saved").read_text() == "3\n"
    assert (claim / "part" / "p").read_text() == "4\n"


def test_claim_outlives_pod_and_containers_of_pod_share_empty_dir(isolated: Bench) -> None:
    memory = {"name": "e", "emptyDir": {"medium": "Memory"}}
    volumes = [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}, memory]
    mounts = [{"name": "c", "mountPath": "/claim"}, {"name": "e", "mountPath": "/scratch"}]
    init = {"name": "i", "image": "x", "command": ["sh", "-c", "echo 1 > /scratch/a"], "volumeMounts": mounts}
    both = {"volumes": volumes, "container": {"volumeMounts": mounts}}
    isolated.run(sh("one", "cat /scratch/a > /claim/kept", initContainers=[init], **both))
    isolated.delete("one")
    isolated.gone("one")
    isolated.run(sh("two", "cat /claim/kept; ls /scratch", **both))
    assert isolated.log("two") == "1\n"


def test_pod_sees_only_its_own_processes(isolated: Bench) -> None:
    isolated.run(sh("one", "ls -d /proc/[0-9]* | wc -l"))
    assert int(isolated.log("one")) < 8


def test_pod_waits_for_missing_host_path(isolated: Bench, tmp_path: Path) -> None:
    volumes = [{"name": "v", "hostPath": {"path": f"{tmp_path}/later", "type": "Directory"}}]
    isolated.create(sh("one", "true", volumes=volumes, container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]}))
    until(lambda: "is not a Directory" in str(isolated.container("one").get("state")))
    (tmp_path / "later").mkdir()
    assert isolated.over("one")["phase"] == "Succeeded"


def test_shared_mode_refuses_mounts_and_suggests_isolated_mode(benches: MakeBench, tmp_path: Path) -> None:
    shared = benches(network=NetworkMode.SHARED)
    volumes = [{"name": "v", "emptyDir": {}}]
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/etc/volcano"}]}
    status = shared.run(sh("one", "true", volumes=volumes, container=mount))
    assert (status["phase"], status["reason"]) == ("Failed", "CreateContainerConfigError")
    assert "isolated mode" in status["message"]
    same = [{"name": "v", "hostPath": {"path": str(tmp_path)}}]
    here = {"volumeMounts": [{"name": "v", "mountPath": str(tmp_path)}]}
    assert shared.run(sh("two", "true", volumes=same, container=here))["phase"] == "Succeeded"


UNPRIVILEGED = """
import sys
from pathlib import Path
from tests.cluster.kubelet.bench import Bench, settings, sh
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.kubelet.kubelet import Kubelet
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
with MemoryCluster() as cluster, Kubelet(
    cluster, settings=settings(Path(sys.argv[1]), network=NetworkMode.ISOLATED, workdir=Path("/"))
) as kubelet:
    bench = Bench(cluster, kubelet)
    volumes = [{"name": "v", "emptyDir": {}}]
    mounts = {"volumeMounts": [{"name": "v", "mountPath": p} for p in ("/etc/volcano", "/model")]}
    status = bench.run(sh("one", "touch /model/a; ls /etc/volcano; id -u", volumes=volumes, container=mounts))
    print(status["phase"], bench.log("one").split())
"""


@pytest.mark.parametrize("who", ["no rights", "nobody"])
def test_unprivileged_users_isolate_pods_by_user_namespaces(open_folder: Path, who: str) -> None:
    done = as_other(who, UNPRIVILEGED, str(open_folder))
    assert done.stdout == f"Succeeded ['a', '{65534 if who == 'nobody' else 0}']\n", done.stderr


def test_shared_memory_and_hostname_are_private(isolated: Bench) -> None:
    isolated.run(sh("one", "touch /dev/shm/of-one; hostname"))
    isolated.run(sh("two", "ls /dev/shm; hostname", hostname="other"))
    assert isolated.log("two") == "other\n"


def test_auto_mode_prefers_isolation(benches: MakeBench, isolated: Bench) -> None:
    del isolated  # skips the test without isolated mode
    assert benches(network=NetworkMode.AUTO).kubelet.network.mode == NetworkMode.ISOLATED


def test_pod_can_serve_port_below_1024(isolated: Bench) -> None:
    status = isolated.run(make_pod("one", "python", "-c", "import socket; socket.create_server(('', 80))"))
    assert status["phase"] == "Succeeded"
