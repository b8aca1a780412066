"""What is measured: tf-dist, Kueue with and without topology, Volcano, and a writer that decides nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.control_plane import NO_SCHEDULER, SPACE, job_of
from benchmarks.measure import until
from benchmarks.peers.servers import free_port, process
from tf_dist.cluster.api import NAMESPACES, QUEUES, TFJOBS, VOLCANO_JOBS, VOLCANO_QUEUES, Cluster, Object, Resource
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.errors import AlreadyExists, ClusterError
from tools.definitions import crds

JOBS: Final = Resource("batch", "v1", "Job", "jobs")
WORKLOADS: Final = Resource("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
_CLUSTER_QUEUES: Final = Resource("kueue.x-k8s.io", "v1beta2", "ClusterQueue", "clusterqueues", namespaced=False)
_FLAVORS: Final = Resource("kueue.x-k8s.io", "v1beta2", "ResourceFlavor", "resourceflavors", namespaced=False)
_TOPOLOGIES: Final = Resource("kueue.x-k8s.io", "v1beta2", "Topology", "topologies", namespaced=False)
_LOCAL_QUEUES: Final = Resource("kueue.x-k8s.io", "v1beta2", "LocalQueue", "localqueues")
POD_GROUPS: Final = Resource("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups")
SERVICE_ACCOUNTS: Final = Resource("", "v1", "ServiceAccount", "serviceaccounts")
QUEUE: Final = "team"
RACK: Final = "benchmark/rack"
"""The label of nodes with their rack."""
KUEUE: Final = "sigs.k8s.io/kueue@v0.17.0"
VOLCANO: Final = "volcano.sh/volcano@v1.10.0"
"""The last release that the Go module proxy has."""


class System(ABC):
    """One controller: what it decides about, and where it shows the decision. Its queue counts CPUs, one a pod."""

    name: str
    job_kind: Resource  # what a user creates
    shown_in: Resource  # the kind whose status shows an admission
    started: tuple[str, ...]  # for each of its processes, what is in its log once it works
    makes_pods = True

    def build(self) -> None:
        """Get what has to be built: nothing."""
        return

    @abstractmethod
    def install(self, cluster: Cluster) -> None:
        """Create definitions and queues."""

    @abstractmethod
    def job(self, number: int, pods: int, *, cpus: int = 1, scheduler: str = NO_SCHEDULER) -> Object:
        """A gang of so many pods, with so many CPUs each, for a scheduler."""

    @abstractmethod
    def admitted(self, stored: Object) -> str:
        """The name of the job that ``stored``, of the kind ``shown_in``, shows as admitted; "" if none."""

    @abstractmethod
    def set_quota(self, cluster: Cluster, cpus: int) -> None:
        """How much all gangs together may hold."""

    @abstractmethod
    def commands(self, kubeconfig: Path, folder: Path) -> Sequence[Sequence[str | Path]]:
        """How its processes are started."""

    @contextmanager
    def running(self, kubeconfig: Path, folder: Path) -> Iterator[list[int]]:
        """The ids of its processes; the output of each is in a log in the folder."""
        with ExitStack() as stack:
            logs = self._logs(folder)
            commands = self.commands(kubeconfig, folder)
            yield [
                stack.enter_context(process(command, log, KUBECONFIG=str(kubeconfig))).pid
                for command, log in zip(commands, logs, strict=True)
            ]

    def _logs(self, folder: Path) -> list[Path]:
        return [folder / f"{self.name}-{number}.log" for number in range(len(self.started))]

    def has_started(self, folder: Path) -> bool:
        """Whether its processes work."""
        return all(
            text in log.read_text(errors="replace") for text, log in zip(self.started, self._logs(folder), strict=True)
        )


class TfDist(System):
    """This project's controller, which also creates the pods."""

    name = "tf-dist"
    job_kind = shown_in = TFJOBS
    started = ("won leader election",)

    def install(self, cluster: Cluster) -> None:
        """See ``System``."""
        define(cluster, (crds.tfjobs(), crds.queues()), serves=(TFJOBS, QUEUES))
        for namespace in (SPACE, "tf-dist-system"):
            ensure(cluster, NAMESPACES, {"metadata": {"name": namespace}})
        ensure(cluster, QUEUES, {"metadata": {"name": QUEUE}, "spec": {"quotas": {"cpu": {"nominal": 0}}}})

    def job(self, number: int, pods: int, *, cpus: int = 1, scheduler: str = NO_SCHEDULER) -> Object:
        """See ``System``."""
        job = job_of(number, workers=pods - 1, scheduler=scheduler)
        for replicas in job["spec"]["tfReplicaSpecs"].values():
            spec = replicas["template"]["spec"]
            spec |= {"terminationGracePeriodSeconds": 0}
            spec["containers"][0]["resources"] = {"requests": {"cpu": str(cpus)}}
        job["spec"]["runPolicy"] = {"cleanPodPolicy": "All", "schedulingPolicy": {"queue": QUEUE}}
        return job

    def admitted(self, stored: Object) -> str:
        """See ``System``."""
        shown = (stored.get("status") or {}).get("tfDist") or {}
        return str(stored["metadata"]["name"]) if shown.get("admission") else ""

    def set_quota(self, cluster: Cluster, cpus: int) -> None:
        """See ``System``."""
        cluster.patch(QUEUES, None, QUEUE, {"spec": {"quotas": {"cpu": {"nominal": cpus}}}})

    def commands(self, kubeconfig: Path, folder: Path) -> Sequence[Sequence[str | Path]]:
        """See ``System``."""
        return [[sys.executable, "-m", "tf_dist", "controller", "--kubeconfig", kubeconfig, "--metrics-port", "0"]]


class Writer(TfDist):
    """Writes an admission for every job it sees while the queue has a quota, with the client of tf-dist."""

    name = "a writer that decides nothing"
    started = ("started",)
    makes_pods = False

    def commands(self, kubeconfig: Path, folder: Path) -> Sequence[Sequence[str | Path]]:
        """See ``System``."""
        return [[sys.executable, "-m", "benchmarks.peers.writer", kubeconfig]]


class Kueue(System):
    """Kueue admits Jobs by quota alone; with topology it chooses nodes, too, of one rack where it can.

    Kubernetes' Job controller creates their pods.
    """

    job_kind, shown_in = JOBS, WORKLOADS
    started = ('"msg":"Starting workers"',)

    def __init__(self, *, topology: bool = False) -> None:
        self.name = "Kueue with topology" if topology else "Kueue"
        self._queue = f"{QUEUE}-topology" if topology else QUEUE
        self._flavor = {"topologyName": "racks", "nodeLabels": {"benchmark/pool": "all"}} if topology else {}
        self._annotations = {"kueue.x-k8s.io/podset-preferred-topology": RACK} if topology else {}

    def build(self) -> None:
        """See ``System``."""
        build(KUEUE, "cmd/kueue")

    def install(self, cluster: Cluster) -> None:
        """See ``System``."""
        definitions = documents(source(KUEUE) / "config" / "components" / "crd" / "bases")
        define(cluster, definitions, serves=(WORKLOADS, _CLUSTER_QUEUES, _FLAVORS, _TOPOLOGIES, _LOCAL_QUEUES))
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

    def job(self, number: int, pods: int, *, cpus: int = 1, scheduler: str = NO_SCHEDULER) -> Object:
        """See ``System``."""
        job = indexed_job(number, pods, cpus, scheduler)
        job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": self._queue}
        job["spec"] |= {"suspend": True}
        job["spec"]["template"]["metadata"] = {"annotations": self._annotations}
        return job

    def admitted(self, stored: Object) -> str:
        """See ``System``."""
        conditions = (stored.get("status") or {}).get("conditions") or []
        if not any(one["type"] == "Admitted" and one["status"] == "True" for one in conditions):
            return ""
        return str(next((owner["name"] for owner in stored["metadata"].get("ownerReferences") or ()), ""))

    def set_quota(self, cluster: Cluster, cpus: int) -> None:
        """See ``System``."""
        cluster.patch(_CLUSTER_QUEUES, None, self._queue, {"spec": self._quota(cpus)})

    def commands(self, kubeconfig: Path, folder: Path) -> Sequence[Sequence[str | Path]]:
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
        return [[*start, program(KUEUE, "kueue"), f"--config={folder / 'kueue.json'}"]]


class Volcano(System):
    """Volcano's controllers and its scheduler. It admits a Job by the capability of its queue, and binds the pods."""

    name = "Volcano"
    job_kind, shown_in = VOLCANO_JOBS, POD_GROUPS
    started = ("start to run", "JobController is running")

    def build(self) -> None:
        """See ``System``."""
        build(VOLCANO, "cmd/scheduler", "vc-scheduler")
        build(VOLCANO, "cmd/controller-manager", "vc-controller-manager")

    def install(self, cluster: Cluster) -> None:
        """See ``System``."""
        definitions = [
            document
            for folder in ("volcano", "jobflow")
            for document in documents(source(VOLCANO) / "config" / "crd" / folder / "bases")
        ]
        define(cluster, definitions, serves=(VOLCANO_JOBS, POD_GROUPS, VOLCANO_QUEUES))
        for namespace in (SPACE, "volcano-system"):
            ensure(cluster, NAMESPACES, {"metadata": {"name": namespace}})
        for name in ("default", QUEUE):
            ensure(cluster, VOLCANO_QUEUES, {"metadata": {"name": name}, "spec": {"weight": 1, **self._quota(0)}})

    @staticmethod
    def _quota(cpus: int) -> Object:
        return {"capability": {"cpu": str(cpus or "1m")}}  # 0 means without a limit

    def job(self, number: int, pods: int, *, cpus: int = 1, scheduler: str = NO_SCHEDULER) -> Object:
        """See ``System``."""
        spec = _pod_spec(cpus)  # what its webhooks fill in is written out: they do not run
        task = {"name": "worker", "replicas": pods, "minAvailable": pods, "maxRetry": 3, "template": {"spec": spec}}
        return {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": {"name": f"job-{number:05}"},
            "spec": {
                "schedulerName": "volcano",
                "queue": QUEUE,
                "minAvailable": pods,
                "maxRetry": 3,
                "tasks": [task],
            },
        }

    def admitted(self, stored: Object) -> str:
        """See ``System``."""
        if (stored.get("status") or {}).get("phase") not in ("Inqueue", "Running"):
            return ""
        return str(next((owner["name"] for owner in stored["metadata"].get("ownerReferences") or ()), ""))

    def set_quota(self, cluster: Cluster, cpus: int) -> None:
        """See ``System``."""
        cluster.patch(VOLCANO_QUEUES, None, QUEUE, {"spec": self._quota(cpus)})

    def commands(self, kubeconfig: Path, folder: Path) -> Sequence[Sequence[str | Path]]:
        """See ``System``."""
        conf = source(VOLCANO) / "installer" / "helm" / "chart" / "volcano" / "config" / "volcano-scheduler.conf"
        (folder / "volcano").mkdir(exist_ok=True)
        (folder / "volcano" / "scheduler.conf").write_text(conf.read_text())
        common = [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "-v=2"]
        scheduler = [f"--scheduler-conf={folder / 'volcano' / 'scheduler.conf'}"]
        scheduler += [f"--listen-address=127.0.0.1:{free_port()}", f"--healthz-address=127.0.0.1:{free_port()}"]
        controllers = [f"--healthz-address=127.0.0.1:{free_port()}"]
        controllers += ["--kube-api-qps=5000", "--kube-api-burst=5000"]  # as they come: 50 and 100
        return [
            [program(VOLCANO, "vc-scheduler"), *common, *scheduler],
            [program(VOLCANO, "vc-controller-manager"), *common, *controllers],
        ]


def indexed_job(number: int, pods: int, cpus: int, scheduler: str) -> Object:
    """A gang as a Job of Kubernetes' own."""
    template = {"spec": {**_pod_spec(cpus), "schedulerName": scheduler}}
    counts = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"job-{number:05}"},
        "spec": {**counts, "template": template},
    }


def _pod_spec(cpus: int) -> Object:
    container = {"name": "tensorflow", "image": "tf", "resources": {"requests": {"cpu": str(cpus)}}}
    # No kubelet ends containers here, so a pod that is deleted has to go at once.
    return {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}


SYSTEMS: Final = (TfDist(), Kueue(), Kueue(topology=True), Volcano(), Writer())
LEFT_OUT: Final = {"the training-operator": "it leaves admission to Kueue, which is measured with Jobs"}
"""Other peers, and why they are not measured."""


def ensure(cluster: Cluster, resource: Resource, body: Object, namespace: str | None = None) -> None:
    """Create it unless it exists."""
    named = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
    with suppress(AlreadyExists):
        cluster.create(resource, namespace, named)


def define(cluster: Cluster, definitions: Iterable[Object], *, serves: Iterable[Resource]) -> None:
    """Create definitions, and wait until the API server serves these kinds."""
    for definition in definitions:
        ensure(cluster, CRDS, definition)

    def served(resource: Resource) -> bool:
        try:
            cluster.list(resource, limit=1)
        except ClusterError:
            return False
        return True

    until(lambda: all(served(resource) for resource in serves))


def source(module: str) -> Path:
    """The folder of a Go module, which Go downloads if it has to."""
    command = ["go", "mod", "download", "-json", module]
    answer = subprocess.run(command, check=True, capture_output=True, cwd=Path.home())
    return Path(json.loads(answer.stdout)["Dir"])


def program(module: str, name: str) -> Path:
    """Where ``build`` puts a program of a module: in the cache of this user."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tf-dist-peers" / module.rpartition("/")[2] / name


def build(module: str, package: str, name: str = "") -> None:
    """Go builds a program in its module's folder, which stays as it is; it is called as its package unless named."""
    target = program(module, name or package.rpartition("/")[2])
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        options = ["-mod=readonly", "-ldflags=-s -w", "-o", str(target), f"./{package}"]
        environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": ""}
        subprocess.run(["nice", "go", "build", *options], cwd=source(module), check=True, env=environment)


def documents(folder: Path) -> list[Object]:
    """The YAML documents of a folder's files."""
    return [
        document
        for file in sorted(folder.glob("*.yaml"))
        for document in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader)
        if document
    ]
