"""Preflight check of a job: whether this machine can provide its containers and volumes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from tf_dist.cluster.api import Object
from tf_dist.cluster.kubelet.node.machine import base_env, find_user, node_features
from tf_dist.cluster.kubelet.node.node_settings import NetworkDescription, NetworkMode
from tf_dist.cluster.kubelet.pod.pod_status import PodStartError
from tf_dist.cluster.kubelet.pod.pod_volumes import HostPathVolume, Volume, plan_volume, refuse_mounts
from tf_dist.cluster.kubelet.pod.podspec import ContainerPlan, PlanContext, plan_container
from tf_dist.core.dialects.common_schema import replica_path
from tf_dist.core.model.fieldpath import format_field_path, suggestion
from tf_dist.core.model.job import Job, ReplicaId
from tf_dist.core.model.status import Attempts
from tf_dist.core.podbuilder import replica_pod, services, volcano_plugins
from tf_dist.errors import Problem
from tf_dist.local.embedded import EmbeddedSettings


def machine_problems(
    job: Job, companions: Iterable[Object], settings: EmbeddedSettings, network: NetworkDescription
) -> Iterator[Problem]:
    """Problems of all containers and volumes that this machine cannot provide, by path in the document."""
    around = _surroundings(job, companions, settings, network)
    for position, spec in enumerate(job.replica_specs):
        if not spec.replicas:
            continue
        replica = ReplicaId(spec.type, 0)
        pod = replica_pod.build_pod(job, replica, Attempts().label(replica))
        for problem in _of_pod(pod, around, network):
            template = format_field_path((*replica_path(job, position), "template"))
            yield Problem(f"{template}.spec{_place(pod, problem)}", str(problem), problem.hint)


def _surroundings(
    job: Job, companions: Iterable[Object], settings: EmbeddedSettings, network: NetworkDescription
) -> PlanContext:
    objects = [*companions, *services.build_objects(job)]
    if job.plugins.ssh is not None:
        secret = volcano_plugins.key_secret(job)
        objects.append(volcano_plugins.with_key_pair(secret, volcano_plugins.KeyPair("", "")))
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
    """The plan, if its program exists at its path, in a mount, or on the PATH of the container."""
    program = plan.argv[0]
    if "/" not in program:
        found = shutil.which(program, path=plan.env.get("PATH", os.defpath)) is not None
        where = "is not on the PATH of the container"
    else:
        path = os.path.join(plan.cwd, program)
        mounted = any(path.startswith(f"{mount.target.rstrip('/')}/") for mount in plan.mounts)
        found = mounted or os.access(path, os.X_OK)
        where = "is not an executable file on this machine"
    if found:
        return plan
    there = () if "/" in program else _programs(plan.env.get("PATH", os.defpath))
    hint = suggestion(program, there, "check its spelling, or install it here")
    problem = PodStartError("StartError", f"command {program!r} {where}", hint=hint)
    problem.container = plan.name
    raise problem


def _programs(path: str) -> Iterator[str]:
    for folder in path.split(os.pathsep):
        with suppress(OSError):
            yield from os.listdir(folder)


def _there(volume: Volume) -> Volume:
    if isinstance(volume, HostPathVolume) and not volume.kind.endswith("OrCreate") and not os.path.exists(volume.path):
        raise PodStartError(
            "ContainerCreating",
            f"the volume's hostPath {volume.path} does not exist on this machine",
            hint="create it, or give the volume type: DirectoryOrCreate",
        )
    return volume


def _place(pod: dict[str, Any], problem: PodStartError) -> str:
    for group in ("initContainers", "containers"):
        for index, container in enumerate(pod["spec"].get(group) or []):
            if container["name"] == problem.container:
                return f".{group}[{index}]"
    return ".volumes" if "volume" in str(problem).lower() else ""
