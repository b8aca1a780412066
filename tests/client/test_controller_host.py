"""Programs that wait for a job lead its namespace if it has no leader, with the embedded API server and a real one."""

from __future__ import annotations

import base64
import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tests.cluster.conftest import REAL, SERVICE_ACCOUNTS, kubeconfig
from tests.cluster.support import cluster_of_kubeconfig, node, tf_job_definition, wait_for
from tests.controller.harness import tfjob
from tests.faults.calls import Call
from tests.faults.proxy import Fault, Kind, Proxy
from tests.leaderless import controller
from tests.waiting import until
from tf_dist.client.connection import connect
from tf_dist.client.controller_host import ControllerHost, hosted_controller
from tf_dist.client.stored_jobs import StoredJob, leaders_of
from tf_dist.cluster.api import LEASES, NAMESPACES, NODES, PODS, TFJOBS, Object, Resource
from tf_dist.cluster.apiserver.server import ApiServer, make_kubeconfig
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.auth import Credential
from tf_dist.cluster.client.client_config import KubeContext
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.lease import SYSTEM_NAMESPACE_VARIABLE, leader_lease, system_namespace
from tf_dist.core.model import names
from tf_dist.core.model.job import Dialect, JobKey
from tf_dist.core.pipeline.adoption import DriverChoice
from tf_dist.errors import AlreadyExists, ClusterError, Forbidden, NotFound

__all__ = ["kubeconfig"]

SECONDS = 60.0
_ROLES = Resource("rbac.authorization.k8s.io", "v1", "Role", "roles")
_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
_SECRETS = Resource("", "v1", "Secret", "secrets")
_LEADING = """
import sys
from tf_dist.client.connection import connect
from tf_dist.client.controller_host import ControllerHost
from tf_dist.cluster.api import TFJOBS
found = connect(sys.argv[1])
with ControllerHost(found.place, found.cluster, sys.argv[2], (TFJOBS,)):
    sys.stdin.read()
"""


class _InTheNamespace(Fault):
    def takes(self, call: Call) -> bool:
        return call.namespace != system_namespace() and super().takes(call)


@dataclass
class Arena:
    """A namespace of a cluster with one node without a kubelet. ``admin`` has all rights."""

    admin: RestCluster
    kubeconfig: str
    namespace: str
    stack: ExitStack
    folder: Path
    real: bool

    def host(self, kubeconfig: str = "") -> ControllerHost:
        """A host that is not started yet. For the cluster, it looks like another process."""
        connection = connect(kubeconfig or self.kubeconfig)
        self.stack.callback(connection.close)
        assert connection.place is not None
        return ControllerHost(connection.place, connection.cluster, self.namespace, (TFJOBS,))

    def submit(self, name: str) -> StoredJob:
        document = tfjob(name)
        document["metadata"]["namespace"] = self.namespace
        return StoredJob(TFJOBS, self.admin.create(TFJOBS, self.namespace, document))

    def pods(self, name: str) -> list[str]:
        """The uids of a job's pods."""
        found = self.admin.list(PODS, self.namespace, labels=f"{names.JOB_NAME}={name}").items
        return sorted(pod["metadata"]["uid"] for pod in found)

    def until_led(self, name: str) -> list[str]:
        """Wait until a controller has created the job's pods, and return their uids."""
        until(lambda: len(self.pods(name)) == 3, SECONDS)
        return self.pods(name)

    def holder(self) -> str:
        """The holder of the namespace's Lease."""
        try:
            return str(self.admin.get(LEASES, *leader_lease(TFJOBS, self.namespace))["spec"].get("holderIdentity"))
        except NotFound:
            return ""

    def without_leases(self) -> str:
        """A kubeconfig whose user can read only the Lease of the cluster."""
        document = yaml.safe_load(Path(self.kubeconfig).read_text())
        if self.real:
            (user,) = document["users"]
            user["user"] = {"token": self._reader_of_the_clusters_lease()}
        else:
            place = document["clusters"][0]["cluster"]
            server = urlsplit(place["server"])
            proxy = self.stack.enter_context(Proxy((str(server.hostname), int(server.port or 0))))
            proxy.inject(_InTheNamespace(Kind.REFUSE, resources=frozenset({"leases"}), times=None, code=403))
            place["server"] = place["server"].replace(
                f"{server.hostname}:{server.port}", proxy.url.removeprefix("http://")
            )
        path = self.folder / "without-leases"
        path.write_text(json.dumps(document))
        return str(path)

    def _reader_of_the_clusters_lease(self) -> str:
        group, of = "rbac.authorization.k8s.io", leader_lease(TFJOBS, None, system_namespace())
        rule: Object = {"apiGroups": [LEASES.group], "resources": ["leases"], "verbs": ["get", "list", "watch"]}
        rule["resourceNames"] = [of.name]
        name = f"reader-{self.namespace}"
        self.admin.create(_ROLES, of.namespace, {"metadata": {"name": name}, "rules": [rule]})
        subject = {"kind": "ServiceAccount", "name": "default", "namespace": self.namespace}
        reference = {"apiGroup": group, "kind": "Role", "name": name}
        bound: Object = {"metadata": {"name": name}, "subjects": [subject], "roleRef": reference}
        self.admin.create(_BINDINGS, of.namespace, bound)
        annotations = {"kubernetes.io/service-account.name": "default"}
        kind = "kubernetes.io/service-account-token"
        self.admin.create(
            _SECRETS, self.namespace, {"metadata": {"name": name, "annotations": annotations}, "type": kind}
        )
        wait_for(self.admin, _SECRETS, self.namespace, name, lambda found: "token" in (found or {}).get("data", {}))
        return base64.b64decode(self.admin.get(_SECRETS, self.namespace, name)["data"]["token"]).decode()


@pytest.fixture(params=["embedded", REAL])
def arena(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    namespace = f"test-{secrets.token_hex(4)}"
    # A separate system namespace, because other tests also run controllers of the cluster on a real server.
    monkeypatch.setenv(SYSTEM_NAMESPACE_VARIABLE, f"{namespace}-system")
    with ExitStack() as stack:
        real = request.param == "real"
        if real:
            path = request.getfixturevalue("kubeconfig")
        else:
            server = stack.enter_context(ApiServer(stack.enter_context(MemoryCluster())))
            path = str(tmp_path / "kubeconfig")
            Path(path).write_text(json.dumps(make_kubeconfig(server.app.url, server.token)))
        admin = stack.enter_context(cluster_of_kubeconfig(path))
        for name in (namespace, system_namespace()):
            admin.create(NAMESPACES, None, {"metadata": {"name": name}})
            stack.callback(_tidy, admin, name)
        if real:
            with suppress(AlreadyExists):
                admin.create(CRDS, None, tf_job_definition())
            wait_for(admin, SERVICE_ACCOUNTS, namespace, "default", bool)
        machine = node(f"n-{namespace}", cpu="64", memory="256Gi")
        admin.create(NODES, None, machine)
        stack.callback(admin.delete, NODES, None, machine["metadata"]["name"])
        admin.patch(NODES, None, machine["metadata"]["name"], {"status": machine["status"]}, subresource="status")
        yield Arena(admin, path, namespace, stack, tmp_path, real)


def _tidy(admin: RestCluster, namespace: str) -> None:
    with suppress(ClusterError):
        admin.delete(NAMESPACES, None, namespace)


def test_second_host_leads_after_first_ends(arena: Arena) -> None:
    """The leader reconciles the jobs of both hosts."""
    first = arena.host().start()
    try:
        a = arena.until_led(arena.submit("a").name)
        second = arena.stack.enter_context(arena.host())
        b = arena.until_led(arena.submit("b").name)
        assert (first.leads(TFJOBS), second.leads(TFJOBS)) == (True, False)
        assert second.controller is None, "it follows nothing but Leases"
        assert arena.holder() == first.leadership.identity
    finally:
        first.stop()
    until(lambda: second.leads(TFJOBS), SECONDS)
    arena.until_led(arena.submit("c").name)
    assert (arena.pods("a"), arena.pods("b")) == (a, b)


def test_second_host_leads_after_first_is_killed(arena: Arena) -> None:
    command = [sys.executable, "-c", _LEADING, arena.kubeconfig, arena.namespace]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        until(lambda: bool(arena.holder()), SECONDS)
        a, dead = arena.until_led(arena.submit("a").name), arena.holder()
        with arena.host() as second:
            assert not second.leads(TFJOBS)
            process.send_signal(signal.SIGKILL)
            until(lambda: second.leads(TFJOBS), SECONDS)
            arena.until_led(arena.submit("b").name)
            assert arena.pods("a") == a
            assert arena.holder() not in ("", dead)
    finally:
        process.kill()
        process.communicate()


def test_host_yields_to_leader_of_cluster(arena: Arena) -> None:
    with arena.host() as host:
        job = arena.submit("a")
        pods = arena.until_led("a")
        with controller(arena.admin) as leadership:
            until(lambda: host.controller is None, SECONDS)
            until(lambda: bool(leadership.kinds()), SECONDS)
            arena.until_led(arena.submit("b").name)
            assert arena.pods("a") == pods
            assert arena.holder() == ""
            (leader,) = leaders_of(arena.admin, [job])
            assert (leader.holder, leader.cluster) == (leadership.identity, True)
        until(lambda: host.leads(TFJOBS), SECONDS)
        arena.until_led(arena.submit("c").name)


def test_host_without_lease_rights_waits_for_existing_leader(arena: Arena) -> None:
    with controller(arena.admin) as leadership:
        until(lambda: bool(leadership.kinds()), SECONDS)
        with arena.host(arena.without_leases()) as host:
            arena.until_led(arena.submit("a").name)
            assert host.controller is None
            assert host.refused() is None


@pytest.mark.parametrize("released", [False, True], ids=["none was there", "a Lease is left"])
def test_host_without_lease_rights_and_leader_reports_missing_right(arena: Arena, released: bool) -> None:
    if released:
        with controller(arena.admin) as leadership:
            until(lambda: bool(leadership.kinds()), SECONDS)
    with pytest.raises(Forbidden) as caught:
        arena.host(arena.without_leases()).start()
    assert "leases" in f"{caught.value} {caught.value.hint}"
    assert arena.namespace in f"{caught.value} {caught.value.hint}"


def test_missing_namespace_suggests_creation(arena: Arena) -> None:
    arena.namespace = "nowhere"
    with pytest.raises(NotFound) as caught:
        arena.host().start()
    assert caught.value.hint == "kubectl create namespace nowhere"


@pytest.mark.parametrize("choice", DriverChoice)
def test_driver_choice_decides_about_hosted_controller(arena: Arena, choice: DriverChoice) -> None:
    connection = connect(arena.kubeconfig)
    arena.stack.callback(connection.close)
    key = JobKey(arena.namespace, "a")
    with hosted_controller(connection, Dialect.TFJOB_V1, key, choice=choice) as host:
        assert (host is None) is (choice is DriverChoice.CONTROLLER)


def test_host_waits_for_api_server() -> None:
    """The host itself does not fail, because the caller's own requests report the missing API server."""
    place = KubeContext("here", "http://127.0.0.1:9", "default", {}, lambda: Credential({}))
    with place.cluster() as cluster, ControllerHost(place, cluster, "default", (TFJOBS,)) as host:
        assert not host.leads(TFJOBS)
        assert host.refused() is None
