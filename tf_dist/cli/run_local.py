"""``tf-dist run`` on this machine: preflight checks, and an embedded cluster for one job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tf_dist.cli.run_output import view_of
from tf_dist.client.job_files import InvalidFiles, LoadedJob
from tf_dist.client.log_follower import ContainerInstance, LogOpener
from tf_dist.client.monitor import WatchingJobInformer
from tf_dist.client.progress_lines import show_warnings
from tf_dist.client.run_session import RunOptions, RunRequest, RunResult, RunSession
from tf_dist.client.submission import create_job
from tf_dist.client.yaml_files import FileProblem, YamlDocument
from tf_dist.cluster.api import NAMESPACES, Cluster, LogOptions, Object, Stream
from tf_dist.cluster.kubelet.node.machine import base_env, find_user, node_features
from tf_dist.cluster.kubelet.node.node_settings import NetworkDescription, NetworkMode
from tf_dist.cluster.kubelet.pod.container_logs import ContainerLogStream
from tf_dist.cluster.kubelet.pod.pod_status import PodStartError
from tf_dist.cluster.kubelet.pod.pod_volumes import HostPathVolume, Volume, plan_volume, refuse_mounts
from tf_dist.cluster.kubelet.pod.podspec import ContainerPlan, PlanContext, plan_container
from tf_dist.controller.observability.signals import Signals
from tf_dist.core.api.job import Job, ReplicaId
from tf_dist.core.api.status import Attempts
from tf_dist.core.dialects.kubeflow_extensions.accelerators import with_accelerators
from tf_dist.core.dialects.registry import template_path
from tf_dist.core.podbuilder import replica_pod, services, ssh_plugin
from tf_dist.errors import AlreadyExists, Problem
from tf_dist.local.embedded import EmbeddedCluster, EmbeddedSettings


def check_machine(
    entry: LoadedJob, companions: tuple[YamlDocument, ...], settings: EmbeddedSettings, network: NetworkDescription
) -> None:
    """InvalidFiles when a container or volume of the job cannot be had here."""
    written, job = entry.written, with_accelerators(entry.job, settings.accelerators)
    found = [
        FileProblem(written.file, written.number, written.line(problem.path), problem)
        for problem in _problems(job, _surroundings(job, companions, settings, network), network)
    ]
    if found:
        raise InvalidFiles(found)


def _surroundings(
    job: Job, companions: tuple[YamlDocument, ...], settings: EmbeddedSettings, network: NetworkDescription
) -> PlanContext:
    objects = [*(written.content for written in companions), *services.build_objects(job)]
    if job.plugins.ssh is not None:
        secret = ssh_plugin.key_secret(job, replica_pod.object_metadata)
        objects.append(ssh_plugin.with_key_pair(secret, ssh_plugin.KeyPair("", "")))
    known = {(body["kind"], body["metadata"]["name"]): body for body in objects}
    return PlanContext(
        find=lambda kind, name: known.get((kind, name)),
        exists=os.path.isdir,
        workdir=str(settings.workdir),
        entrypoints=settings.entrypoints,
        base_env=base_env(os.environ, {}),
        node_features=node_features(isolated=network.mode is NetworkMode.ISOLATED),
        find_user=find_user,
    )


def _problems(job: Job, around: PlanContext, network: NetworkDescription) -> Iterator[Problem]:
    for position, spec in enumerate(job.replica_specs):
        if not spec.replicas:
            continue
        replica = ReplicaId(spec.type, 0)
        pod = replica_pod.build_pod(job, replica, Attempts().label(replica))
        for problem in _of_pod(pod, around, network):
            yield Problem(f"{template_path(job, position)}.spec{_place(pod, problem)}", str(problem), problem.hint)


def _of_pod(pod: dict[str, Any], around: PlanContext, network: NetworkDescription) -> Iterator[PodStartError]:
    spec = pod["spec"]
    plans = []
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        try:
            plans.append(_runnable(plan_container(pod, container, around)))
        except PodStartError as problem:
            yield problem
    used = {mount.volume for plan in plans for mount in plan.mounts}
    volumes = {}
    for item in spec.get("volumes") or []:
        try:
            if item["name"] in used:
                volumes[item["name"]] = _there(plan_volume(pod, item, around))
        except PodStartError as problem:
            yield problem
    if network.mode is NetworkMode.SHARED:
        for plan in plans:
            try:
                refuse_mounts(plan, volumes, network.reason)
            except PodStartError as problem:
                yield problem


def _runnable(plan: ContainerPlan) -> ContainerPlan:
    """The plan, if its program is there: on the PATH that the container gets, or at its path (a mount may bring it)."""
    program = plan.argv[0]
    if "/" not in program:
        found = shutil.which(program, path=plan.env.get("PATH", os.defpath)) is not None
        where = "is on no folder of the PATH that the container gets"
    else:
        path = os.path.join(plan.cwd, program)
        mounted = any(path.startswith(f"{mount.target.rstrip('/')}/") for mount in plan.mounts)
        found = mounted or os.access(path, os.X_OK)
        where = "is not an executable file on this machine"
    if found:
        return plan
    problem = PodStartError("StartError", f"command {program!r} {where}", hint="check its spelling, or install it here")
    problem.container = plan.name
    raise problem


def _there(volume: Volume) -> Volume:
    if isinstance(volume, HostPathVolume) and not volume.kind.endswith("OrCreate") and not os.path.exists(volume.path):
        raise PodStartError(
            "ContainerCreating",
            f"the volume's hostPath {volume.path} is not there on this machine",
            hint="make it, or give the volume type: DirectoryOrCreate",
        )
    return volume


def _place(pod: dict[str, Any], problem: PodStartError) -> str:
    for group in ("initContainers", "containers"):
        for index, container in enumerate(pod["spec"].get(group) or []):
            if container["name"] == problem.container:
                return f".{group}[{index}]"
    return ".volumes" if "volume" in str(problem).lower() else ""


def run_locally(request: RunRequest, settings: EmbeddedSettings) -> RunResult:
    """Run it to its end; InvalidFiles when this machine cannot."""
    with Signals() as signals, EmbeddedCluster(settings) as embedded:
        check_machine(request.entry, request.companions, settings, embedded.network)
        cluster = embedded.cluster
        for written in (request.entry.written, *request.companions):
            _make_namespace(cluster, request.spaces.of(written))
        request.create_companions(cluster)
        logs = embedded.node.state_dir / (settings.keep_logs_dir or "")
        run_options = RunOptions(open_log=lambda watch: _from_files(logs, watch))
        with closing(view_of(request.entry.job, data_wanted=request.data_wanted)) as view, show_warnings(view):
            job = create_job(cluster, request.entry, request.namespace, workdir="")
            return RunSession(cluster, job, view, signals, run_options, timeout=request.timeout).run()


def _make_namespace(cluster: Cluster, name: str) -> None:
    try:
        cluster.create(NAMESPACES, None, {"metadata": {"name": name}})
    except AlreadyExists:
        return


def _from_files(logs: Path, watch: WatchingJobInformer) -> LogOpener:
    """Logs from their files: a pod may be gone before one has asked for its log, the file stays."""

    def open_log(pod: Object, instance: ContainerInstance) -> Stream[bytes]:
        metadata = pod["metadata"]
        folder = logs / metadata["namespace"] / metadata["name"] / instance.pod_uid / instance.container
        file = folder / f"{instance.number}.log"
        return ContainerLogStream(file, LogOptions(follow=True), lambda: not watch.ended(instance))

    return open_log
