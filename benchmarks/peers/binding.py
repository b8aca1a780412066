"""Gangs that compete for nodes, and which of them get all their nodes: schedulers, alone and behind an admission."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.control_plane import SPACE
from benchmarks.measure import Row, until
from benchmarks.peers.scenarios import Figures, Plane
from benchmarks.peers.servers import DECIDER, binaries, free_port, process
from benchmarks.peers.systems import (
    JOBS,
    Kueue,
    System,
    TfDist,
    Volcano,
    build,
    define,
    documents,
    ensure,
    indexed_job,
    program,
    source,
)
from tf_dist.cluster.api import NAMESPACES, PODS, Cluster, Object, Resource
from tf_dist.cluster.client.informer import Informer
from tf_dist.core.model.pods import required_node
from tf_dist.errors import NotFound

COSCHEDULING: Final = "sigs.k8s.io/scheduler-plugins@v0.33.5"
NODES, NODE_CPUS = 125, 8
GANGS, PODS_EACH, CPUS = 100, 8, 3
LIMIT, RUNS = 60.0, 5.0  # seconds of the scenario, and for which a gang runs
_SCHEDULER: Final = "default-scheduler"
_WORKLOADS: Final = Resource("scheduling.k8s.io", "v1alpha1", "Workload", "workloads")
_POD_GROUPS: Final = Resource("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups")
FEATURES: Final = ("--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1alpha1=true")
"""Options of an API server that has Kubernetes' own gang scheduling."""

_LOAD: Final = (
    f"{GANGS} gangs of {PODS_EACH} pods with {CPUS} CPUs each are created together for {NODES} nodes with {NODE_CPUS} "
    f"CPUs, where {NODES * (NODE_CPUS // CPUS) // PODS_EACH} of them have space together. One whose pods all have "
    f"nodes ends {RUNS:.0f} s later. After {LIMIT:.0f} s: "
)
ROWS: Final = (
    Row("bind.ended", _LOAD + "gangs that have ended.", "gangs", better="higher"),
    Row(
        "bind.stuck",
        _LOAD + f"gangs of which some pods have had nodes for {RUNS:.0f} s, and others have none.",
        "gangs",
    ),
    Row("bind.wasted", _LOAD + "CPUs held by gangs without all their nodes, of all there are, on average.", "%"),
    Row("bind.rate", _LOAD + "pods bound a second, from the first creation to the 200th.", "pods/s", better="higher"),
    Row("bind.wrong", _LOAD + "pods that were bound to another node than admission had chosen.", "pods"),
)


@dataclass(frozen=True, slots=True)
class Binder:
    """A scheduler, and who admits gangs before their pods exist."""

    name: str
    admits: System | None = None
    """The controller that admits; None: nobody."""
    gang: Callable[[int], Iterator[tuple[Resource, Object]]] | None = None
    """The objects of a gang; None: the job of ``admits``."""
    module: str = ""
    """The Go module whose kube-scheduler is built; "": Kubernetes' own."""
    config: dict[str, Any] | None = None
    """The profile of kube-scheduler; None: the default."""
    gates: Sequence[str] = ()
    """Options of kube-scheduler."""
    binds: bool = True
    """Whether kube-scheduler runs; else ``admits`` binds pods itself."""

    def build(self) -> None:
        """Get what has to be built."""
        if self.admits:
            self.admits.build()
        if self.module:
            build(self.module, "cmd/scheduler", "kube-scheduler")

    def install(self, cluster: Cluster) -> None:
        """Create definitions and queues."""
        if self.admits:
            self.admits.install(cluster)
            self.admits.set_quota(cluster, NODES * NODE_CPUS)
        if self.module:
            folder = source(self.module) / "manifests" / "coscheduling"
            define(cluster, [one for one in documents(folder) if one.get("metadata")], serves=(_POD_GROUPS,))
        ensure(cluster, NAMESPACES, {"metadata": {"name": SPACE}})

    def objects(self, number: int) -> Iterator[tuple[Resource, Object]]:
        """What is created for a gang."""
        if self.gang:
            yield from self.gang(number)
        elif self.admits:
            yield self.admits.job_kind, self.admits.job(number, PODS_EACH, cpus=CPUS, scheduler=_SCHEDULER)

    @property
    def job_kind(self) -> Resource:
        """What is deleted when a gang ends."""
        return self.admits.job_kind if self.admits else JOBS

    @contextmanager
    def running(self, plane: Plane) -> Iterator[None]:
        """The scheduler, and the controller that admits."""
        kubeconfig = plane.kubeconfig(DECIDER)
        with ExitStack() as stack:
            if self.admits:
                admits = self.admits
                stack.enter_context(admits.running(kubeconfig, plane.folder))
                until(lambda: admits.has_started(plane.folder), 60)
            if self.binds:
                log = plane.folder / "kube-scheduler.log"
                stack.enter_context(process(self._scheduler(plane.folder, kubeconfig), log))
                until(lambda: "Caches populated" in log.read_text(errors="replace"), 60)
            yield

    def _scheduler(self, folder: Path, kubeconfig: Path) -> Sequence[str | Path]:
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            # Its default of 50 requests a second would be all that is measured.
            "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 5000},
            "profiles": [{"schedulerName": _SCHEDULER, **(self.config or {})}],
        }
        (folder / "kube-scheduler.json").write_text(json.dumps(config))
        command = program(self.module, "kube-scheduler") if self.module else binaries() / "kube-scheduler"
        options = [f"--config={folder / 'kube-scheduler.json'}", f"--secure-port={free_port()}", "-v=2", *self.gates]
        options += [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"]
        return [command, "--bind-address=127.0.0.1", *options]


def _plain(number: int) -> Iterator[tuple[Resource, Object]]:
    yield JOBS, indexed_job(number, PODS_EACH, CPUS, _SCHEDULER)


def _workload(number: int) -> Iterator[tuple[Resource, Object]]:
    job = indexed_job(number, PODS_EACH, CPUS, _SCHEDULER)
    group = {"name": "gang", "policy": {"gang": {"minCount": PODS_EACH}}}
    yield _WORKLOADS, {"metadata": {"name": job["metadata"]["name"]}, "spec": {"podGroups": [group]}}
    job["spec"]["template"]["spec"]["workloadRef"] = {"name": job["metadata"]["name"], "podGroup": "gang"}
    yield JOBS, job


def _pod_group(number: int) -> Iterator[tuple[Resource, Object]]:
    job = indexed_job(number, PODS_EACH, CPUS, _SCHEDULER)
    name = job["metadata"]["name"]
    yield _POD_GROUPS, {"metadata": {"name": name}, "spec": {"minMember": PODS_EACH, "scheduleTimeoutSeconds": 10}}
    job["spec"]["template"]["metadata"] = {"labels": {"scheduling.x-k8s.io/pod-group": name}}
    yield JOBS, job


_GATES: Final = "--feature-gates=GenericWorkload=true,GangScheduling=true"
_NO_PINS: Final = {"plugins": {"multiPoint": {"disabled": [{"name": "NodeAffinity"}]}}}
_COSCHEDULING: Final = {
    "plugins": {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
        "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
    },
    "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}}],
}
BINDERS: Final = (
    Binder("tf-dist", TfDist()),
    Binder("tf-dist, its choice of nodes ignored", TfDist(), config=_NO_PINS),
    Binder("kube-scheduler", gang=_plain),
    Binder("with its gang scheduling", gang=_workload, gates=(_GATES,)),
    Binder("with coscheduling", gang=_pod_group, module=COSCHEDULING, config=_COSCHEDULING),
    Binder("Kueue", Kueue()),
    Binder("Kueue with topology", Kueue(topology=True)),
    Binder("Volcano", Volcano(), binds=False),
)


class _Bound:
    """The gangs of pods, as they are bound: when, and to which nodes."""

    def __init__(self, cluster: Cluster, kind: Resource) -> None:
        self._cluster, self._kind = cluster, kind
        self.moments: dict[str, dict[str, float]] = defaultdict(dict)  # by job and pod
        self.ended: dict[str, float] = {}
        self.wrong = 0
        self._due: list[tuple[float, str]] = []
        self._pods = Informer(cluster, PODS, namespace=SPACE, changed=self._changed)

    def __enter__(self) -> _Bound:
        self._pods.start()
        until(self._pods.synced)
        return self

    def __exit__(self, *exc: object) -> None:
        self._pods.stop()

    def _changed(self, _: Object | None, new: Object | None) -> None:
        node = str(new["spec"].get("nodeName") or "") if new else ""
        if new is None or not node or new["metadata"].get("deletionTimestamp"):
            return
        job, pod = new["metadata"]["ownerReferences"][0]["name"], new["metadata"]["uid"]
        if pod in self.moments[job]:
            return
        self.moments[job][pod] = time.monotonic()
        self.wrong += (required_node(new["spec"]) or node) != node
        if len(self.moments[job]) == PODS_EACH:
            self._due.append((time.monotonic() + RUNS, job))

    def end(self) -> None:
        """Delete the gangs that have run for long enough."""
        while self._due and self._due[0][0] <= time.monotonic():
            _, job = self._due.pop(0)
            self.ended[job] = time.monotonic()
            with suppress(NotFound):
                self._cluster.delete(self._kind, SPACE, job)

    def figures(self, begun: float) -> Figures:
        """What the rows say of the time from then to now."""
        now = time.monotonic()
        stuck, idle = 0, 0.0
        for pods in self.moments.values():
            whole = max(pods.values()) if len(pods) >= PODS_EACH else now
            idle += sum(whole - at for at in pods.values()) * CPUS
            stuck += len(pods) < PODS_EACH and now - min(pods.values()) >= RUNS
        moments = sorted(at for pods in self.moments.values() for at in pods.values())[:200]
        return {
            "bind.ended": float(len(self.ended)),
            "bind.stuck": float(stuck),
            "bind.wasted": idle / (NODES * NODE_CPUS * (now - begun)) * 100,
            "bind.rate": len(moments) / (moments[-1] - begun) if moments else 0.0,
            "bind.wrong": float(self.wrong),
        }


def measure_binding(binder: Binder, plane: Plane, cluster: Cluster) -> Figures:
    """All figures of one binder. The plane has what ``binder.install`` creates, and the nodes."""

    def create(number: int) -> None:
        for resource, body in binder.objects(number):
            cluster.create(resource, SPACE, {"apiVersion": resource.api_version, "kind": resource.kind, **body})

    with binder.running(plane), _Bound(cluster, binder.job_kind) as bound:
        begun = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(create, range(GANGS)))
        while time.monotonic() - begun < LIMIT and len(bound.ended) < GANGS:
            bound.end()
            time.sleep(0.05)
        return bound.figures(begun)
