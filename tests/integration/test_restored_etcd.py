"""etcd is restored from a backup while a controller and a watcher run. Both adopt the older state."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.control_plane import NO_SCHEDULER, SPACE
from benchmarks.peers.servers import DECIDER, LOAD, Servers, binaries, process
from benchmarks.peers.systems import SERVICE_ACCOUNTS, TfDist, ensure
from tests.controller.controller_processes import Process
from tests.controller.harness import running
from tests.waiting import until
from tf_dist.client.monitor import JobEvent, ObjectChanged, ObjectWatcher
from tf_dist.cluster.api import NODES, PODS, TFJOBS, Cluster, Object, Resource
from tf_dist.cluster.client.client_config import load_config
from tf_dist.errors import ClusterError, Forbidden, NotFound

pytestmark = pytest.mark.cluster
BINDINGS = Resource("", "v1", "Binding", "bindings")
NODE = {"kind": "Node", "name": "node"}
BOUND = Resource("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False)


class RestorableServers(Servers):
    """A control plane whose servers can restart, optionally with the data of etcd from a backup."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._commands: dict[str, Sequence[str | Path]] = {}
        self._running: dict[str, tuple[subprocess.Popen[bytes], ExitStack]] = {}

    def _run(self, name: str, *command: str | Path) -> subprocess.Popen[bytes]:
        stack = self._stack.enter_context(ExitStack())
        started = stack.enter_context(process(command, self.folder / f"{name}.log"))
        self._commands[name], self._running[name] = command, (started, stack)
        return started

    def halt(self, *names: str) -> None:
        for name in names:
            started, stack = self._running.pop(name)
            if name != "etcd":
                started.kill()  # on SIGTERM, an API server would wait for its watches, which do not end
            stack.close()

    def resume(self, *names: str) -> None:
        for name in names:
            self._run(name, *self._commands[name])
            until(self._etcd_answers if name == "etcd" else self._ready, 120)

    def back_up(self) -> None:
        self.halt("etcd")
        shutil.copytree(self.folder / "etcd", self.folder / "backup")
        self.resume("etcd")
        until(self._ready, 120)

    def restore(self, *, bump: int) -> None:
        """``bump``: the number of revisions to skip, as ``etcdutl snapshot restore --bump-revision`` does."""
        self.halt("kube-controller-manager", "kube-apiserver", "etcd")
        shutil.rmtree(self.folder / "etcd")
        shutil.copytree(self.folder / "backup", self.folder / "etcd")
        self.resume("etcd")
        if bump:
            key = base64.b64encode(b"bumped").decode()
            for _ in range(bump):
                revision = self._etcd("kv/put", key=key)["header"]["revision"]
            self._etcd("kv/compaction", revision=revision)
        self.resume("kube-apiserver", "kube-controller-manager")

    def _etcd(self, path: str, **body: Any) -> Any:
        (url,) = (str(one).partition("=")[2] for one in self._commands["etcd"] if "listen-client-urls" in str(one))
        with urllib.request.urlopen(f"{url}/v3/{path}", data=json.dumps(body).encode(), timeout=10) as answer:
            return json.load(answer)

    def _etcd_answers(self) -> bool:
        with suppress(OSError):
            return bool(self._etcd("kv/range", key=base64.b64encode(b"x").decode()))
        return False


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[RestorableServers]:
    try:
        binaries()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with RestorableServers(tmp_path) as servers:
        yield servers


def job(name: str) -> Object:
    pod = {"containers": [{"name": "tensorflow", "image": "tf"}], "schedulerName": NO_SCHEDULER}
    worker = {"replicas": 2, "restartPolicy": "OnFailure", "template": {"spec": pod}}
    return {"metadata": {"name": name}, "spec": {"tfReplicaSpecs": {"Worker": worker}}}


def kubelet(cluster: Cluster, ended: set[str]) -> None:
    """Run every pod on the only node. Pods of ``ended`` jobs succeed, and deleted pods are removed."""
    for pod in cluster.list(PODS, SPACE).items:
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        succeeds = {"phase": "Succeeded"} if labels["training.kubeflow.org/job-name"] in ended else {}
        with suppress(NotFound):
            if "deletionTimestamp" in pod["metadata"]:
                cluster.delete(PODS, SPACE, name, grace_period=0)
            elif not pod["spec"].get("nodeName"):
                cluster.create(
                    BINDINGS, SPACE, {"metadata": {"name": name}, "target": {"kind": "Node", "name": "node"}}
                )
            elif pod["status"]["phase"] != "Succeeded":
                status = {**running(), **succeeds}
                cluster.patch(PODS, SPACE, name, {"status": status}, subresource="status")


def seen(cluster: Cluster) -> tuple[dict[str, str], Counter[str]]:
    """The phases of all jobs, and the numbers of their pods."""
    jobs = {one["metadata"]["name"]: phase(one) for one in cluster.list(TFJOBS, SPACE).items}
    pods = cluster.list(PODS, SPACE).items
    return jobs, Counter(one["metadata"]["labels"]["training.kubeflow.org/job-name"] for one in pods)


def phase(stored: Object) -> str:
    return str(stored.get("status", {}).get("tfDist", {}).get("phase"))


@contextmanager
def watched(servers: Servers, folder: Path) -> Iterator[Callable[[str], list[str]]]:
    """The events that a client observes for each job. A starting API server refuses the client's user at first."""
    config, file = json.loads(servers.kubeconfig(LOAD).read_text()), folder / "user.kubeconfig"
    config["users"][0]["user"]["as"] = "tenant"
    file.write_text(json.dumps(config))
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}
    with servers.cluster() as admin, load_config(str(file)).cluster() as cluster:
        ensure(admin, BOUND, {"metadata": {"name": "tenant"}, "roleRef": role, "subjects": [subject]})
        events: list[JobEvent] = []
        until(lambda: not isinstance(_listed(cluster), Forbidden), 30)
        watcher = ObjectWatcher(cluster, TFJOBS, SPACE, events.append)

        def seen_of(name: str) -> list[str]:
            assert not [event for event in events if isinstance(event, ClusterError)]
            changes = (event for event in tuple(events) if isinstance(event, ObjectChanged))
            return [
                f"{event.type} {phase(event.object)}" for event in changes if event.object["metadata"]["name"] == name
            ]

        try:
            yield seen_of
        finally:
            watcher.close()


def _listed(cluster: Cluster) -> ClusterError | None:
    try:
        cluster.list(TFJOBS, SPACE)
    except ClusterError as error:
        return error
    return None


@pytest.mark.parametrize("bump", [0, 3000], ids=["revisions-again", "revisions-skipped"])
def test_controller_and_watcher_adopt_state_of_restored_etcd(
    servers: RestorableServers, bump: int, tmp_path: Path
) -> None:
    cluster, ended = servers.cluster(), set[str]()

    def reached(jobs: dict[str, str]) -> bool:
        """Whether exactly these jobs exist in these phases, with two pods each."""
        try:
            kubelet(cluster, ended)
            return seen(cluster) == (jobs, Counter(dict.fromkeys(jobs, 2)))
        except ClusterError:
            return False

    TfDist().install(cluster)
    ensure(cluster, NODES, {"metadata": {"name": "node"}})
    room = {"cpu": "8", "memory": "64Gi", "pods": "110"}
    ready = {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]}
    cluster.patch(NODES, None, "node", {"status": ready}, subresource="status")
    until(lambda: any(one["metadata"]["name"] == "default" for one in cluster.list(SERVICE_ACCOUNTS, SPACE).items), 60)
    with Process(servers.kubeconfig(DECIDER), tmp_path / "controller.log"), watched(servers, tmp_path) as watching:
        for name in ("kept", "deleted"):
            cluster.create(TFJOBS, SPACE, job(name))
        until(lambda: reached({"kept": "Running", "deleted": "Running"}), 60)
        servers.back_up()
        cluster.delete(TFJOBS, SPACE, "deleted")
        cluster.create(TFJOBS, SPACE, job("lost"))
        until(lambda: reached({"kept": "Running", "lost": "Running"}), 60)
        until(lambda: "MODIFIED Running" in watching("lost"), 60)
        ended.add("lost")
        servers.restore(bump=bump)
        until(lambda: reached({"kept": "Running", "deleted": "Running"}), 90)
        cluster.create(TFJOBS, SPACE, job("new"))
        until(lambda: reached({"kept": "Running", "deleted": "Running", "new": "Running"}), 90)
        until(lambda: "DELETED Running" in watching("lost"), 90)
        ended.update(("kept", "deleted", "new"))
        until(lambda: reached({"kept": "Completed", "deleted": "Completed", "new": "Completed"}), 90)
        until(lambda: all(watching(name)[-1] == "MODIFIED Completed" for name in ("kept", "deleted", "new")), 90)
