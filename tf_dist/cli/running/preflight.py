"""What a machine without images and schedulers cannot do for a job, found before anything is started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

from tf_dist.client.bundle import Entry, InvalidFiles
from tf_dist.client.yaml_files import FileProblem, Written
from tf_dist.cluster.node.machine import base_env, find_user, powers
from tf_dist.cluster.node.podspec import ContainerPlan, Surroundings, plan_container
from tf_dist.cluster.node.problems import PodProblem
from tf_dist.cluster.node.settings import NetworkDescription, NetworkMode
from tf_dist.cluster.node.volumes import HostPath, Volume, plan_volume, refuse_mounts
from tf_dist.core import render
from tf_dist.core.dialects.formats import template_path
from tf_dist.core.model import Job, ReplicaId
from tf_dist.core.status import Attempts
from tf_dist.driver.embedded import EmbeddedSettings
from tf_dist.errors import Problem


def check(
    entry: Entry, companions: tuple[Written, ...], settings: EmbeddedSettings, network: NetworkDescription
) -> None:
    """InvalidFiles when a container or volume of the job cannot be had here."""
    written = entry.written
    found = [
        FileProblem(written.file, written.number, written.line(problem.path), problem)
        for problem in _problems(entry.job, _surroundings(entry.job, companions, settings, network), network)
    ]
    if found:
        raise InvalidFiles(found)


def _surroundings(
    job: Job, companions: tuple[Written, ...], settings: EmbeddedSettings, network: NetworkDescription
) -> Surroundings:
    objects = [*(written.content for written in companions), *render.objects(job)]
    known = {(body["kind"], body["metadata"]["name"]): body for body in objects}
    return Surroundings(
        find=lambda kind, name: known.get((kind, name)),
        exists=os.path.isdir,
        workdir=str(settings.workdir),
        entrypoints=settings.entrypoints,
        base_env=base_env(os.environ, {}),
        powers=powers(isolated=network.mode is NetworkMode.ISOLATED),
        find_user=find_user,
    )


def _problems(job: Job, around: Surroundings, network: NetworkDescription) -> Iterator[Problem]:
    for position, spec in enumerate(job.replica_specs):
        if not spec.replicas:
            continue
        replica = ReplicaId(spec.type, 0)
        pod = render.pod(job, replica, Attempts().label(replica))
        for problem in _of_pod(pod, around, network):
            yield Problem(f"{template_path(job, position)}.spec{_place(pod, problem)}", str(problem), problem.hint)


def _of_pod(pod: dict[str, Any], around: Surroundings, network: NetworkDescription) -> Iterator[PodProblem]:
    spec = pod["spec"]
    plans = []
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        try:
            plans.append(_runnable(plan_container(pod, container, around)))
        except PodProblem as problem:
            yield problem
    used = {mount.volume for plan in plans for mount in plan.mounts}
    volumes = {}
    for item in spec.get("volumes") or []:
        try:
            if item["name"] in used:
                volumes[item["name"]] = _there(plan_volume(pod, item, around))
        except PodProblem as problem:
            yield problem
    if network.mode is NetworkMode.SHARED:
        for plan in plans:
            try:
                refuse_mounts(plan, volumes, network.reason)
            except PodProblem as problem:
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
    problem = PodProblem("StartError", f"command {program!r} {where}", hint="check its spelling, or install it here")
    problem.container = plan.name
    raise problem


def _there(volume: Volume) -> Volume:
    if isinstance(volume, HostPath) and not volume.kind.endswith("OrCreate") and not os.path.exists(volume.path):
        raise PodProblem(
            "ContainerCreating",
            f"the volume's hostPath {volume.path} is not there on this machine",
            hint="make it, or give the volume type: DirectoryOrCreate",
        )
    return volume


def _place(pod: dict[str, Any], problem: PodProblem) -> str:
    for group in ("initContainers", "containers"):
        for index, container in enumerate(pod["spec"].get(group) or []):
            if container["name"] == problem.container:
                return f".{group}[{index}]"
    return ".volumes" if "volume" in str(problem).lower() else ""
