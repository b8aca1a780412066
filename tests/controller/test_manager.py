"""Replicas of the controller: one replica leads, and the others are on standby."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.controller.controller_processes import Process, ask, settings
from tests.controller.harness import tfjob
from tests.faults.proxy import Fault, Kind, Proxy
from tests.waiting import until
from tf_dist.cluster.api import LEASES, NAMESPACES, NODES, PODS, TFJOBS, Cluster
from tf_dist.cluster.apiserver.server import ApiServer, make_kubeconfig
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.client.transport import READ_TIMEOUT
from tf_dist.cluster.lease import leader_lease
from tf_dist.controller.manager import Manager, ShutdownTimeouts, limit_shutdown_time
from tf_dist.core.model import names
from tf_dist.errors import ClusterError, Unavailable

LEASE = leader_lease(TFJOBS, None)


@pytest.fixture
def memory() -> Iterator[MemoryCluster]:
    """A cluster with capacity, and with the Lease that `tf-dist install` creates."""
    with MemoryCluster() as memory:
        room = {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "500"}}
        node = memory.create(NODES, None, {"metadata": {"name": "n1"}})
        memory.replace(NODES, None, "n1", {**node, "status": room}, subresource="status")
        memory.create(LEASES, LEASE.namespace, {"metadata": {"name": LEASE.name}})
        yield memory


def driven(cluster: Cluster, name: str) -> bool:
    """Whether all pods of the job exist."""
    return len(cluster.list(PODS, None, labels=f"{names.JOB_NAME}={name}").items) == 3


def test_manager_runs_jobs_and_serves_probes_and_metrics(memory: MemoryCluster) -> None:
    with Manager(memory, settings()) as controller:
        memory.create(TFJOBS, "default", tfjob())
        until(lambda: driven(memory, "mnist"), 60)
        for page in ("/readyz", "/healthz"):
            until(lambda page=page: ask(controller, page) == (200, "ok\n"), 60)
        counted = (
            "tf_dist_leading 1.0",
            'tf_dist_actions_total{kind="Create",result="ok"}',
            'tf_dist_heartbeats_total{result="ok"}',
        )
        for sample in counted:
            until(lambda sample=sample: sample in ask(controller, "/metrics")[1], 60)
        assert memory.get(LEASES, *LEASE)["spec"]["holderIdentity"] == controller.identity
    assert memory.get(LEASES, *LEASE)["spec"]["holderIdentity"] == ""


def test_stop_ends_all_threads(memory: MemoryCluster) -> None:
    before = set(threading.enumerate())
    with Manager(memory, settings()) as controller:
        until(lambda: controller.unready() == "", 60)
    assert set(threading.enumerate()) <= before


def test_standby_continues_after_leader_stops(memory: MemoryCluster) -> None:
    with ExitStack() as stack:
        one, two = (stack.enter_context(Manager(memory, settings())) for _ in range(2))
        until(lambda: all(ask(replica, "/readyz")[0] == 200 for replica in (one, two)), 60)
        memory.create(TFJOBS, "default", tfjob("first"))
        until(lambda: driven(memory, "first"), 60)
        until(lambda: leading(one, two) is not None, 60)
        leader = leading(one, two) or one
        standby = two if leader is one else one
        leader.stop()
        assert memory.get(LEASES, *LEASE)["spec"]["holderIdentity"] != leader.identity
        memory.create(TFJOBS, "default", tfjob("second"))
        until(lambda: driven(memory, "second"), 60)
        assert standby.leads()
        memory.patch(TFJOBS, "default", "first", {"spec": {"runPolicy": {"suspend": True}}})
        until(lambda: not driven(memory, "first"), 60)


def leading(*replicas: Manager) -> Manager | None:
    return next((replica for replica in replicas if replica.leads()), None)


class Cut:
    """The connection of a replica to the cluster. It can be cut for Leases, and counts other writes."""

    def __init__(self, inner: MemoryCluster) -> None:
        self._inner = inner
        self.cut = False
        self.writes = 0

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._inner, verb)

        def called(resource: Any, *args: Any, **kwargs: Any) -> Any:
            if self.cut and resource is LEASES:
                raise Unavailable("no way to the server")
            if verb in ("create", "replace", "patch", "delete") and resource is not LEASES:
                self.writes += 1
            return call(resource, *args, **kwargs)

        return called if verb not in ("addresses", "logs") else call


def test_leader_that_cannot_renew_becomes_standby(memory: MemoryCluster) -> None:
    wire, short = Cut(memory), settings(duration=5.0)
    with Manager(wire, short) as one:  # type: ignore[arg-type]  # by __getattr__
        memory.create(TFJOBS, "default", tfjob("first"))
        until(lambda: driven(memory, "first"), 60)
        wire.cut = True
        until(lambda: not one.leads(), 60)
        with Manager(memory, short) as two:
            until(two.leads, 60)
            before = wire.writes
            memory.create(TFJOBS, "default", tfjob("second"))
            until(lambda: driven(memory, "second"), 60)
            assert wire.writes == before
            until(lambda: ask(one, "/readyz")[0] == 200, 60)  # a standby is ready
            wire.cut = False
        until(one.leads, 60)
        memory.create(TFJOBS, "default", tfjob("third"))
        until(lambda: driven(memory, "third"), 60)


def phases(controller: Manager) -> dict[str, float]:
    """The exposed numbers of jobs by phase."""
    found = re.findall(r'^tf_dist_jobs\{phase="(\w+)"\} (\S+)$', ask(controller, "/metrics")[1], re.MULTILINE)
    return {phase: float(count) for phase, count in found}


def test_only_leader_exposes_numbers_of_jobs(memory: MemoryCluster) -> None:
    """The numbers of all replicas can be added up, even after a deletion or the loss of the Lease."""
    wire, short = Cut(memory), settings(duration=5.0)
    with Manager(wire, short) as one:  # type: ignore[arg-type]  # by __getattr__
        for name in ("first", "second"):
            memory.create(TFJOBS, "default", tfjob(name))
        until(lambda: sum(phases(one).values()) == 2, 60)
        memory.delete(TFJOBS, "default", "second")
        until(lambda: sum(phases(one).values()) == 1, 60)
        assert 'tf_dist_admitted_gangs{queue=""} 1.0' in ask(one, "/metrics")[1]
        with Manager(memory, short) as two:
            until(lambda: ask(two, "/readyz")[0] == 200, 60)
            assert phases(two) == {}
            wire.cut = True
            until(two.leads, 60)
            until(lambda: phases(one) == {} and sum(phases(two).values()) == 1, 60)
            wire.cut = False


class Stuck(Cut):
    """A cluster on which the creation of pods hangs until ``let_go`` is set."""

    def __init__(self, inner: MemoryCluster) -> None:
        super().__init__(inner)
        self.let_go = threading.Event()

    def create(self, resource: Any, *args: Any) -> Any:
        if resource is PODS:
            self.let_go.wait()
        return self._inner.create(resource, *args)


def test_stuck_worker_makes_healthz_fail(memory: MemoryCluster) -> None:
    wire = Stuck(memory)
    try:
        with Manager(wire, settings(worker_stuck=0.2)) as controller:  # type: ignore[arg-type]  # by __getattr__
            memory.create(TFJOBS, "default", tfjob())
            until(lambda: "busy with default/mnist" in ask(controller, "/healthz")[1], 60)
            assert ask(controller, "/healthz")[0] == 503
            assert "tf_dist_active_workers 1.0" in ask(controller, "/metrics")[1]
            wire.let_go.set()
            until(lambda: ask(controller, "/healthz") == (200, "ok\n"), 60)
            until(lambda: "tf_dist_active_workers 0.0" in ask(controller, "/metrics")[1], 60)
    finally:
        wire.let_go.set()


def test_manager_of_chosen_namespaces_ignores_other_namespaces(memory: MemoryCluster) -> None:
    for namespace in ("team-a", "team-b", "team-c"):
        memory.create(NAMESPACES, None, {"metadata": {"name": namespace}})
        job = tfjob(namespace)
        job["metadata"]["namespace"] = namespace
        memory.create(TFJOBS, namespace, job)
    chosen = ("team-a", "team-b")
    with Manager(memory, settings(namespaces=chosen)):
        until(lambda: driven(memory, "team-a") and driven(memory, "team-b"), 60)
        assert "status" not in memory.get(TFJOBS, "team-c", "team-c")
    assert memory.list(LEASES, None, labels=names.LEADER).items == [], "nothing is left in the namespaces"


def test_metrics_port_in_use_is_reported(memory: MemoryCluster) -> None:
    with Manager(memory, settings()) as one, pytest.raises(ClusterError, match="cannot serve metrics"):
        Manager(memory, settings(metrics_port=one.port)).start()


def test_readyz_reports_kind_that_cannot_be_listed(memory: MemoryCluster) -> None:
    with Manager(Blind(memory), settings()) as controller:  # type: ignore[arg-type]  # by __getattr__
        until(lambda: "no way to list nodes" in ask(controller, "/readyz")[1], 60)
        until(lambda: ask(controller, "/readyz")[0] == 503, 60)
        until(lambda: ask(controller, "/healthz")[0] == 200, 60)  # a restart would not help


class Blind:
    """A cluster that cannot list nodes, except with the limit 1."""

    def __init__(self, inner: MemoryCluster) -> None:
        self._inner = inner

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._inner, verb)

    def list(self, resource: Any, *args: Any, **kwargs: Any) -> Any:
        if resource is NODES and kwargs.get("limit") != 1:
            raise Unavailable("no way to list nodes")
        return self._inner.list(resource, *args, **kwargs)


# As a process


def config_file(folder: Path, url: str, token: str) -> Path:
    file = folder / "kubeconfig"
    file.touch(mode=0o600)
    file.write_text(json.dumps(make_kubeconfig(url, token)))
    return file


def address_of(server: ApiServer) -> tuple[str, int]:
    host, _, port = server.app.url.removeprefix("http://").partition(":")
    return host, int(port)


@pytest.fixture
def served(memory: MemoryCluster, tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of the cluster, which is served over HTTP."""
    with ApiServer(memory) as server:
        yield config_file(tmp_path, server.app.url, server.token)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_controller_and_releases_lease(
    memory: MemoryCluster, served: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with Process(served, tmp_path / "log") as process:
        memory.create(TFJOBS, "default", tfjob())
        until(lambda: driven(memory, "mnist"), 60)
        until(lambda: ask(process.port(), "/healthz") == (200, "ok\n"), 60)
        until(lambda: process.created() == 3, 60)
        assert process.end(number) == 0, process.log.read_text()
    assert memory.get(LEASES, *LEASE)["spec"]["holderIdentity"] == ""
    records = [json.loads(line) for line in process.log.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(record) for record in records)


@pytest.fixture
def proxied(memory: MemoryCluster, tmp_path: Path) -> Iterator[tuple[Proxy, Process]]:
    """A controller that has started a job, with a proxy between the controller and the server."""
    with (
        ApiServer(memory) as server,
        Proxy(address_of(server)) as proxy,
        Process(config_file(tmp_path, proxy.url, server.token), tmp_path / "log") as process,
    ):
        memory.create(TFJOBS, "default", tfjob("first"))
        until(lambda: driven(memory, "first"), 60)
        yield proxy, process


def unanswered(memory: MemoryCluster, proxy: Proxy) -> None:
    """Make requests of the leader election and of the controller hang."""
    proxy.inject(Fault(Kind.HANG, times=None, seconds=3600))
    for number in range(4):
        memory.create(TFJOBS, "default", tfjob(f"more-{number}"))
    waiting = {"leases", "tfjobs/status"}
    until(lambda: waiting <= {one.call.resource for one in proxy.passed if one.fault is Kind.HANG}, 60)


def test_manager_stops_when_server_does_not_answer(memory: MemoryCluster) -> None:
    """It stops within the timeout of a single request, while requests wait for an answer."""
    with ApiServer(memory) as server, Proxy(address_of(server)) as proxy:
        cluster, leases = (RestCluster(proxy.url, token=server.token) for _ in range(2))
        with cluster, leases, Manager(cluster, settings(), lease_cluster=leases):
            memory.create(TFJOBS, "default", tfjob("first"))
            until(lambda: driven(memory, "first"), 60)
            unanswered(memory, proxy)
            asked = time.monotonic()
            limit_shutdown_time(cluster, leases, ShutdownTimeouts(0.2, 0.6, None))
        assert time.monotonic() - asked < READ_TIMEOUT


@pytest.mark.slow  # takes 12 s, the timeout of requests for Leases; the previous test covers shorter timeouts
def test_signal_stops_controller_when_server_does_not_answer(
    memory: MemoryCluster, proxied: tuple[Proxy, Process]
) -> None:
    proxy, process = proxied
    unanswered(memory, proxy)
    asked = time.monotonic()
    assert process.end() == 0, process.log.read_text()
    assert time.monotonic() - asked < READ_TIMEOUT


def test_controller_finishes_started_writes_after_signal(memory: MemoryCluster, proxied: tuple[Proxy, Process]) -> None:
    """A slow server still receives all started writes and the release of the Lease."""
    proxy, process = proxied
    slow = Fault(Kind.SLOW, verbs=frozenset({"update"}), resources=frozenset({"tfjobs"}), times=50, seconds=1.0)
    proxy.inject(slow)
    memory.create(TFJOBS, "default", tfjob("second"))
    until(lambda: slow.times != 50, 60)
    assert process.end() == 0, process.log.read_text()
    assert "tfDist" in memory.get(TFJOBS, "default", "second")["status"]
    assert memory.get(LEASES, *LEASE)["spec"]["holderIdentity"] == ""


def test_missing_kubeconfig_is_reported_without_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tf_dist", "controller", "--kubeconfig", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert str(tmp_path / "none") in done.stderr
