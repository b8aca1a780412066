"""What is measured: tf-dist, Kueue with and without topology, and a writer that decides nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.control_plane import NO_SCHEDULER, SPACE, job_of
from benchmarks.measure import until
from benchmarks.peers.servers import free_port, process
from tf_dist.cluster.api import NAMESPACES, QUEUES, TFJOBS, Cluster, Object, Resource
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.errors import AlreadyExists, ClusterError
from tools.definitions import crds

JOBS: Final = Resource("batch", "v1", "Job", "jobs")
WORKLOADS: Final = Resource("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
_CLUSTER_QUEUES: Final = Resource("kueue.x-k8s.io", "v1beta2", "ClusterQueue", "clusterqueues", namespaced=False)
_FLAVORS: Final = Resource("kueue.x-k8s.io", "v1beta2", "ResourceFlavor", "resourceflavors", namespaced=False)
_TOPOLOGIES: Final = Resource("kueue.x-k8s.io", "v1beta2", "Topology", "topologies", namespaced=False)
_LOCAL_QUEUES: Final = Resource("kueue.x-k8s.io", "v1beta2", "LocalQueue", "localqueues")
SERVICE_ACCOUNTS: Final = Resource("", "v1", "ServiceAccount", "serviceaccounts")
QUEUE: Final = "team"
RACK: Final = "benchmark/rack"
"""The label of nodes with their rack."""
KUEUE: Final = "sigs.k8s.io/kueue@v0.17.0"


class System(ABC):
    """One controller: what it decides about, and where it shows the decision. Its queue counts CPUs, one a pod."""

    name: str
    job_kind: Resource  # what a user creates
    shown_in: Resource  # the kind whose status shows an admission
    started: str  # in its log, once its process has started and works
    makes_pods = True

    def build(self) -> None:
        """Get what has to be built: nothing."""
        return

    @abstractmethod
    def install(self, cluster: Cluster) -> None:
        """Create definitions and queues."""

    @abstractmethod
    def job(self, number: int, pods: int) -> Object:
        """A gang of so many pods, one CPU each."""

    @abstractmethod
    def admitted(self, stored: Object) -> str:
        """The name of the job that ``stored``, of the kind ``shown_in``, shows as admitted; "" if none."""

    @abstractmethod
    def set_quota(self, cluster: Cluster, cpus: int) -> None:
        """How much all gangs together may hold."""

    @abstractmethod
    def command(self, kubeconfig: Path, folder: Path) -> Sequence[str | Path]:
        """How its process is started."""

    @contextmanager
    def running(self, kubeconfig: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Its process; its output is in ``log``."""
        command = self.command(kubeconfig, folder)
        with process(command, self.log(folder), KUBECONFIG=str(kubeconfig)) as started:
            yield started

    def log(self, folder: Path) -> Path:
        """What its process writes."""
        return folder / f"{self.name}.log"

    def has_started(self, folder: Path) -> bool:
        """Whether its process works."""
        return self.started in self.log(folder).read_text(errors="replace")


class TfDist(System):
    """This project's controller, which also creates the pods."""

    name = "tf-dist"
    job_kind = shown_in = TFJOBS
    started = "won leader election"

    def install(self, cluster: Cluster) -> None:
        """See ``System``."""
        _define(cluster, (crds.tfjobs(), crds.queues()), serves=(TFJOBS, QUEUES))
        for namespace in (SPACE, "tf-dist-system"):
            ensure(cluster, NAMESPACES, {"metadata": {"name": namespace}})
        ensure(cluster, QUEUES, {"metadata": {"name": QUEUE}, "spec": {"quotas": {"cpu": {"nominal": 0}}}})

    def job(self, number: int, pods: int) -> Object:
        """See ``System``."""
        job = job_of(number, workers=pods - 1, scheduler=NO_SCHEDULER)
        for replicas in job["spec"]["tfReplicaSpecs"].values():
            replicas["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        job["spec"]["runPolicy"] = {"cleanPodPolicy": "All", "schedulingPolicy": {"queue": QUEUE}}
        return job

    def admitted(self, stored: Object) -> str:
        """See ``System``."""
        shown = (stored.get("status") or {}).get("tfDist") or {}
        return str(stored["metadata"]["name"]) if shown.get("admission") else ""

    def set_quota(self, cluster: Cluster, cpus: int) -> None:
        """See ``System``."""
        cluster.patch(QUEUES, None, QUEUE, {"spec": {"quotas": {"cpu": {"nominal": cpus}}}})

    def command(self, kubeconfig: Path, folder: Path) -> Sequence[str | Path]:
        """See ``System``."""
        return [sys.executable, "-m", "tf_dist", "controller", "--kubeconfig", kubeconfig, "--metrics-port", "0"]


class Writer(TfDist):
    """Writes an admission for every job it sees while the queue has a quota, with the client of tf-dist."""

    name = "a writer that decides nothing"
    started = "started"
    makes_pods = False

    def command(self, kubeconfig: Path, folder: Path) -> Sequence[str | Path]:
        """See ``System``."""
        return [sys.executable, "-m", "benchmarks.peers.writer", kubeconfig]


class Kueue(System):
    """Kueue admits Jobs by quota alone; with topology it chooses nodes, too, of one rack where it can.

    Kubernetes' Job controller creates their pods.
    """

    job_kind, shown_in = JOBS, WORKLOADS
    started = '"msg":"Starting workers"'

    def __init__(self, *, topology: bool = False) -> None:
        self.name = "Kueue with topology" if topology else "Kueue"
        self._queue = f"{QUEUE}-topology" if topology else QUEUE
        self._flavor = {"topologyName": "racks", "nodeLabels": {"benchmark/pool": "all"}} if topology else {}
        self._annotations = {"kueue.x-k8s.io/podset-preferred-topology": RACK} if topology else {}

    def build(self) -> None:
        """Go builds it in its module's folder, which stays as it is; the program goes to the cache of this user."""
        if not self._program().exists():
            self._program().parent.mkdir(parents=True, exist_ok=True)
            command: list[str | Path] = [
                "nice",
                "go",
                "build",
                "-mod=readonly",
                "-ldflags=-s -w",
                "-o",
                self._program(),
                "./cmd/kueue",
            ]
            subprocess.run(command, cwd=_source(), check=True, env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": ""})

    @staticmethod
    def _program() -> Path:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "tf-dist-peers" / KUEUE.rpartition("/")[2] / "kueue"

    def install(self, cluster: Cluster) -> None:
        """See ``System``."""
        files = sorted((_source() / "config" / "components" / "crd" / "bases").glob("*.yaml"))
        definitions = [yaml.load(file.read_text(), Loader=yaml.CSafeLoader) for file in files]
        _define(cluster, definitions, serves=(WORKLOADS, _CLUSTER_QUEUES, _FLAVORS, _TOPOLOGIES, _LOCAL_QUEUES))
        for namespace in (SPACE, "kueue-system"):
            ensure(cluster, NAMESPACES, {"metadata": {"name": namespace}})
        levels = [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]
        ensure(cluster, _TOPOLOGIES, {"metadata": {"name": "racks"}, "spec": {"levels": levels}})
        ensure(cluster, _FLAVORS, {"metadata": {"name": self._queue}, "spec": self._flavor})
        ensure(cluster, _CLUSTER_QUEUES, {"metadata": {"name": self._queue}, "spec": self._quota(0)})
        local = {"metadata": {"name": self._queue}, "spec": {"clusterQueue": self._queue}}
        ensure(cluster, _LOCAL_QUEUES, local, SPACE)

    def _quota(self, cpus: int) -> Object:
        flavor = {"name": self._queue, "resources": [{"name": "cpu", "nominalQuota": str(cpus)}]}
        return {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [flavor]}]}

    def job(self, number: int, pods: int) -> Object:
        """See ``System``."""
        container = {"name": "tensorflow", "image": "tf", "resources": {"requests": {"cpu": "1"}}}
        spec = {"containers": [container], "restartPolicy": "Never", "schedulerName": NO_SCHEDULER}
        template = {"metadata": {"annotations": self._annotations}, "spec": spec}
        counts = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
        labels = {"kueue.x-k8s.io/queue-name": self._queue}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": f"job-{number:05}", "labels": labels},
            "spec": {**counts, "suspend": True, "template": template},
        }

    def admitted(self, stored: Object) -> str:
        """See ``System``."""
        conditions = (stored.get("status") or {}).get("conditions") or []
        if not any(one["type"] == "Admitted" and one["status"] == "True" for one in conditions):
            return ""
        return str(next((owner["name"] for owner in stored["metadata"].get("ownerReferences") or ()), ""))

    def set_quota(self, cluster: Cluster, cpus: int) -> None:
        """See ``System``."""
        cluster.patch(_CLUSTER_QUEUES, None, self._queue, {"spec": self._quota(cpus)})

    def command(self, kubeconfig: Path, folder: Path) -> Sequence[str | Path]:
        """See ``System``."""
        certificates = folder / "webhook"
        if not certificates.exists():
            certificates.mkdir()
            request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kueue", "-days", "1"]
            request += ["-keyout", str(certificates / "tls.key"), "-out", str(certificates / "tls.crt")]
            subprocess.run(request, check=True, capture_output=True)
        settings: dict[str, Any] = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": "kueue-system",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
            "metrics": {"bindAddress": f"127.0.0.1:{free_port()}"},
            "webhook": {"port": free_port(), "host": "127.0.0.1", "certDir": str(certificates)},
            "internalCertManagement": {"enable": False},
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"qps": -1, "burst": -1},  # no limit; as it comes: 50 a second
            "controller": {"groupKindConcurrency": {"Job.batch": 5, "Workload.kueue.x-k8s.io": 5}},
            "integrations": {"frameworks": ["batch/job"]},
            "featureGates": {"VisibilityOnDemand": False},
        }
        (folder / "kueue.json").write_text(json.dumps(settings))
        # It reads the certificate of its metrics from /etc/kueue, so it gets an /etc that only itself sees.
        inside = "mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics"
        inside += ' && ln -s "$0" /etc/kueue/metrics/certs && exec "$@"'
        start: list[str | Path] = ["unshare", "--map-root-user", "--mount", "sh", "-c", inside, certificates]
        return [*start, self._program(), f"--config={folder / 'kueue.json'}"]


SYSTEMS: Final = (TfDist(), Kueue(), Kueue(topology=True), Writer())
LEFT_OUT: Final = {
    "the training-operator": "it leaves admission to Kueue, which is measured with Jobs",
    "Volcano": "the Go module proxy does not have volcano.sh/volcano",
    "coscheduling": "it is a plugin of kube-scheduler: nothing here binds pods",
}
"""Other peers, and why they are not measured."""


def ensure(cluster: Cluster, resource: Resource, body: Object, namespace: str | None = None) -> None:
    """Create it unless it exists."""
    named = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
    with suppress(AlreadyExists):
        cluster.create(resource, namespace, named)


def _define(cluster: Cluster, definitions: Iterable[Object], *, serves: Iterable[Resource]) -> None:
    for definition in definitions:
        ensure(cluster, CRDS, definition)

    def served(resource: Resource) -> bool:
        try:
            cluster.list(resource, limit=1)
        except ClusterError:
            return False
        return True

    until(lambda: all(served(resource) for resource in serves))


def _source() -> Path:
    """The folder of Kueue's module, which Go downloads if it has to."""
    answer = subprocess.run(["go", "mod", "download", "-json", KUEUE], check=True, capture_output=True, cwd=Path.home())
    return Path(json.loads(answer.stdout)["Dir"])
