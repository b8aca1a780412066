"""The kubelet's state of one pod: its plan and folders, and the operations that carry out a decision."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tf_dist.cluster.api import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, SECRETS, Cluster, Object, Resource
from tf_dist.cluster.kubelet.node import machine
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
from tf_dist.cluster.kubelet.node.runtime_client import RuntimeClient
from tf_dist.cluster.kubelet.pod import pod_volumes
from tf_dist.cluster.kubelet.pod.container_logs import log_tail
from tf_dist.cluster.kubelet.pod.pod_status import (
    ContainerRun,
    CreateSandbox,
    PodStartError,
    RemoveSandbox,
    RuntimePodStatus,
    StartContainer,
    StopContainers,
    config_error,
    run_from_record,
)
from tf_dist.cluster.kubelet.pod.pod_volumes import (
    EmptyDirVolume,
    Volume,
    VolumeManager,
    is_token_volume,
    plan_volume,
    refuse_mounts,
    resolve_mounts,
)
from tf_dist.cluster.kubelet.pod.podspec import ContainerPlan, PlanContext, plan_container, pod_hostname
from tf_dist.cluster.kubelet.pod.readiness_probes import ReadinessProber
from tf_dist.cluster.kubelet.pod.security_context import fs_group
from tf_dist.cluster.kubelet.runtime.remove_tree import remove_tree
from tf_dist.errors import ClusterError, NotFound

if TYPE_CHECKING:
    from tf_dist.cluster.kubelet.node.node_runtime import NodeEnvironment

_KINDS = {
    "ConfigMap": CONFIG_MAPS,
    "Secret": SECRETS,
    "PersistentVolumeClaim": PERSISTENT_VOLUME_CLAIMS,
    "PersistentVolume": Resource("", "v1", "PersistentVolume", "persistentvolumes", namespaced=False),
}
NOT_HONOURED = "NotHonoured"
_KEPT_ATTEMPTS = 4  # earlier attempts of a container whose logs are kept
_KEPT_PODS = 10  # pods of one name whose logs are kept in ``keep_logs_dir``
# It begins only where a word begins: a long text without a dot must not be read again from each of its characters.
_PEER = re.compile(r"(?<![-a-z0-9])-*([a-z0-9][-a-z0-9]*\.[a-z0-9][-a-z0-9]*)")
_RETRY = 2.0  # seconds until a missing object is looked up again


def peer_names(text: str) -> list[str]:
    """The texts in a variable that may be names of replicas, such as ``mnist-worker-0.mnist``."""
    return _PEER.findall(text)


@dataclass(slots=True, eq=False)
class PodState:
    """The kubelet's state of a pod; everything in it can be recovered or repeated."""

    uid: str
    namespace: str
    name: str
    home: NodeEnvironment
    ip: str = ""
    plans: Mapping[str, ContainerPlan] | None = None
    peers: frozenset[str] = frozenset()
    """Names in the form ``HOST.SERVICE`` in the environments of its containers."""
    volumes: Mapping[str, Volume] = field(default_factory=dict)
    paths: Mapping[str, Path] = field(default_factory=dict)
    problem: PodStartError | None = None
    reported_problem: str = ""
    warnings: list[PodStartError] = field(default_factory=list)
    retry_at: float = 0.0
    stopping: bool = False
    deleted: bool = False
    hosts: str = ""
    devices: Mapping[str, str] = field(default_factory=dict)
    messages: dict[tuple[str, int], str] = field(default_factory=dict)
    readiness: ReadinessProber = field(default_factory=lambda: ReadinessProber(lambda: None))

    @property
    def folder(self) -> Path:
        """The pod's own folder, deleted with the pod."""
        return self.home.state / "pods" / self.uid

    @property
    def temporary(self) -> Path:
        """Temporary files, with a folder for each container, which is empty at its start and deleted with the pod."""
        return self.home.state / "pods" / f"t-{self.uid[:8]}"

    def log(self, container: str, attempt: int) -> Path:
        """The log of one instance of a container."""
        keep = self.home.settings.keep_logs_dir
        root = self.home.state / keep / self.namespace / self.name / self.uid if keep else self.folder / "logs"
        return root / container / f"{attempt}.log"

    # Facts

    def facts(self, pod: Object, record: Mapping[str, Any] | None) -> RuntimePodStatus:
        """The runtime status for ``pod_lifecycle``."""
        runs = [run_from_record(item) for item in record["containers"]] if record else []
        return RuntimePodStatus(
            uid=self.uid,
            sandbox=record["state"] if record else "",
            message=record["message"] if record else "",
            ip=self.ip,
            host_ip=self.home.host_ip,
            runs={run.name: self._explained(run) for run in runs},
            problem=self.problem,
            stopping=self.stopping,
            ready=self.readiness.verdicts(pod),
        )

    def _explained(self, run: ContainerRun) -> ContainerRun:
        """A failed run with the end of its log."""
        last = self._explained(run.last) if run.last else None
        if not run.failed or run.message:
            return replace(run, last=last)
        key = (run.name, run.attempt)
        if key not in self.messages:
            self.messages[key] = log_tail(self.log(*key))
        return replace(run, message=self.messages[key], last=last)

    # Preparing

    def prepare(self, cluster: Cluster, pod: Object, now: float) -> None:
        """Compute the plan once. A missing object becomes ``problem``, and is retried later."""
        if now < self.retry_at or (self.problem and self.problem.permanent):
            return
        if self.plans is not None:
            self.problem = None  # a failed action is repeated
            return
        try:
            self._plan(cluster, pod)
            self.problem = None
        except PodStartError as problem:
            self.problem = problem
        except (ClusterError, OSError) as error:
            self.problem = config_error(str(error), permanent=False)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            # The embedded API server has no schema of pods, so a malformed pod is its author's error.
            self.problem = config_error(f"the pod cannot be understood: {type(error).__name__}: {error}")
        self.retry_at = now + _RETRY

    def _plan(self, cluster: Cluster, pod: Object) -> None:
        spec = pod["spec"]
        containers = [*(spec.get("initContainers") or []), *spec["containers"]]
        around = self._surroundings(cluster)
        plans = [plan_container(pod, item, self._of_one(around, number)) for number, item in enumerate(containers)]
        used = {mount.volume for plan in plans for mount in plan.mounts}
        volumes = {
            item["name"]: plan_volume(pod, item, around) for item in spec.get("volumes") or [] if item["name"] in used
        }
        self.warnings = [PodStartError(NOT_HONOURED, text) for text in security_warnings(plans)]
        self.warnings += [
            PodStartError("TokenLeftOut", f"volume {item['name']} has no service account token on this node")
            for item in spec.get("volumes") or []
            if item["name"] in used and is_token_volume(item)
        ]
        if self.home.mode == NetworkMode.SHARED:
            for plan in plans:
                refuse_mounts(plan, volumes, self.home.why_shared)
        self.folder.mkdir(parents=True, exist_ok=True)
        group = fs_group(pod, self.home.node_features)
        self.paths = VolumeManager(self.folder, self.home.claims / self.namespace, group).make(volumes)
        self.volumes = volumes
        self.plans = {plan.name: plan for plan in plans}
        self.peers = frozenset(name for plan in plans for text in plan.env.values() for name in peer_names(text))

    def _surroundings(self, cluster: Cluster) -> PlanContext:
        def find(kind: str, name: str) -> Object | None:
            resource = _KINDS[kind]
            try:
                return cluster.get(resource, self.namespace if resource.namespaced else None, name)
            except NotFound:
                return None

        settings = self.home.settings
        return PlanContext(
            find=find,
            exists=os.path.isdir,
            node=settings.name,
            pod_ip=self.ip,
            host_ip=self.home.host_ip,
            workdir=str(settings.workdir or Path.cwd()),
            base_env=self.home.base_env,
            entrypoints=settings.entrypoints,
            allocatable=self.home.allocatable,
            node_features=self.home.node_features,
            find_user=machine.find_user,
        )

    def _of_one(self, around: PlanContext, number: int) -> PlanContext:
        """The context of one container, with its own TMPDIR."""
        return replace(around, base_env={**self.home.base_env, **pod_volumes.tmpdir_env(self.temporary / str(number))})

    # Actions

    def order(self, action: Any, supervisor: RuntimeClient, pod: Object, now: float) -> None:
        """Carry out one action that concerns processes; PodStartError and OSError become the pod's problem."""
        try:
            self._order(action, supervisor, pod)
        except PodStartError as problem:
            self.problem = problem
        except OSError as error:  # perhaps the disk is full: the action is retried
            self.problem = PodStartError("CreateContainerError", str(error))
            self.retry_at = now + _RETRY

    def _order(self, action: Any, supervisor: RuntimeClient, pod: Object) -> None:
        match action:
            case CreateSandbox():
                self._create(supervisor, pod)
            case StartContainer():
                self._start(supervisor, action)
            case StopContainers(grace):
                self.stopping = True
                supervisor.send("stop", uid=self.uid, grace=grace, hooks=pre_stop_hooks(pod))
            case RemoveSandbox():
                supervisor.remove(self.uid)

    def _create(self, supervisor: RuntimeClient, pod: Object) -> None:
        spec: dict[str, Any] = {"ip": self.ip, "hostname": pod_hostname(pod), "devices": dict(self.devices)}
        spec["staging"] = str(self.folder / "staging")
        if self.home.mode == NetworkMode.ISOLATED:
            self.folder.mkdir(parents=True, exist_ok=True)
            hosts = self.folder / "hosts"
            hosts.write_text(self.hosts)
            spec["hosts"] = str(hosts)
            spec["mounts"] = [{"source": str(hosts), "target": "/etc/hosts"}]
            spec["tmpfs"] = [
                {"path": str(self.paths[name]), "options": volume.options + self._group_option(pod)}
                for name, volume in self.volumes.items()
                if isinstance(volume, EmptyDirVolume) and volume.options
            ]
        supervisor.create(self.uid, **spec)

    def _group_option(self, pod: Object) -> str:
        group = fs_group(pod, self.home.node_features)
        return "" if group is None else f",mode=3777,gid={group}"

    def _start(self, supervisor: RuntimeClient, start: StartContainer) -> None:
        assert self.plans is not None
        plan = self.plans[start.name]
        folder, security = Path(plan.env.get("TMPDIR", "")), plan.security
        if folder.parent == self.temporary:
            pod_volumes.recreate_tmpdir(folder)
        self._prune(start)
        mounts = [] if self.home.mode == NetworkMode.SHARED else resolve_mounts(plan, self.volumes, self.paths)
        supervisor.run(
            self.uid,
            start.name,
            start.attempt,
            start.streak,
            argv=list(plan.argv),
            env=dict(plan.env) | gpu_env(plan, self.devices),
            cwd=plan.cwd,
            mounts=[asdict(mount) for mount in mounts],
            log=str(self.log(start.name, start.attempt)),
            limits=dict(security.limits),
            security={
                "uid": security.uid,
                "gid": security.gid,
                "groups": security.groups,
                "capabilities": security.capabilities,
                "read_only_root": security.read_only_root,
            },
        )

    def _prune(self, start: StartContainer) -> None:
        """Remove the logs of earlier attempts, except the latest of them."""
        for path in self.log(start.name, start.attempt).parent.glob("*.log*"):
            number = path.name.partition(".")[0]
            if number.isdigit() and int(number) < start.attempt - _KEPT_ATTEMPTS:
                path.unlink(missing_ok=True)

    def probe(self, supervisor: RuntimeClient, pod: Object, facts: RuntimePodStatus, now: float) -> float | None:
        """Run the readiness probes that are due. Returns when the next probe is due."""

        def ask(name: str, question: Mapping[str, Any], done: Callable[[int], None]) -> None:
            supervisor.exec(self.uid, name, done, **question)

        return self.readiness.look(pod, facts.runs, self.ip, now, ask)

    def update_hosts(self, text: str, supervisor: RuntimeClient) -> None:
        """Write ``text`` to the pod's /etc/hosts."""
        if text == self.hosts:
            return
        self.hosts = text
        if supervisor.record(self.uid) is not None:
            supervisor.send("hosts", uid=self.uid, text=text)

    def purge(self) -> None:
        """Remove the pod's folders: volumes, logs and temporary files. In ``keep_logs_dir``, remove the logs of its
        oldest predecessors.
        """
        for folder in (self.folder, self.temporary):
            remove_tree(str(folder))
        if self.home.settings.keep_logs_dir:
            for folder in _oldest(self.log("", 0).parents[1], _KEPT_PODS):
                remove_tree(str(folder))


def _oldest(parent: Path, kept: int) -> list[Path]:
    """All folders except the newest ``kept`` folders."""
    found: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):
        found = [(entry.stat().st_mtime, Path(entry.path)) for entry in os.scandir(parent) if entry.is_dir()]
    return [path for _, path in sorted(found)[:-kept]]


def security_warnings(plans: Iterable[ContainerPlan]) -> list[str]:
    """The fields of the containers that are not supported here, each once."""
    found: dict[str, list[str]] = {}
    for plan in plans:
        for text in plan.security.warnings:
            found.setdefault(text, []).append(plan.name)
    return [f"container {', '.join(names)}: {text}" for text, names in found.items()]


def pre_stop_hooks(pod: Object) -> dict[str, list[str]]:
    """The commands that containers run before SIGTERM."""
    hooks = {
        item["name"]: ((item.get("lifecycle") or {}).get("preStop") or {}).get("exec", {}).get("command")
        for item in pod["spec"]["containers"]
    }
    return {name: command for name, command in hooks.items() if command}


def gpu_env(plan: ContainerPlan, devices: Mapping[str, str]) -> dict[str, str]:
    """The GPUs that a container sees: the assigned GPUs; none if it requests none and the machine has GPUs."""
    if plan.name in devices:
        return {"CUDA_VISIBLE_DEVICES": devices[plan.name]}
    return {"CUDA_VISIBLE_DEVICES": ""} if machine.gpu_indices() and "CUDA_VISIBLE_DEVICES" not in plan.env else {}
