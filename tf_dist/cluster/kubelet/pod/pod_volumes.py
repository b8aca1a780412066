"""Volumes: their content from the pod spec (pure), the folders that hold it, and a container's temporary folder."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tf_dist.cluster.api import Object
from tf_dist.cluster.kubelet.pod.pod_status import PodStartError, config_error
from tf_dist.cluster.kubelet.pod.podspec import (
    ContainerPlan,
    PlanContext,
    VolumeMount,
    object_data,
    pod_field,
    resource_field,
)
from tf_dist.cluster.kubelet.pod.security_context import check_relative_path
from tf_dist.cluster.kubelet.runtime.remove_tree import remove_tree
from tf_dist.core.model.quantity import parse_quantity


@dataclass(frozen=True, slots=True)
class FilesVolume:
    """A volume with a given content: path to bytes and mode."""

    content: Mapping[str, tuple[bytes, int]]


@dataclass(frozen=True, slots=True)
class EmptyDirVolume:
    """An emptyDir; in memory when ``options`` (of a tmpfs) are given."""

    options: str = ""


@dataclass(frozen=True, slots=True)
class HostPathVolume:
    """A path of this machine and its required type ("" for any)."""

    path: str
    kind: str = ""
    readonly: bool = False


@dataclass(frozen=True, slots=True)
class ClaimVolume:
    """A persistent volume claim: a folder that is kept."""

    name: str
    readonly: bool = False


Volume = FilesVolume | EmptyDirVolume | HostPathVolume | ClaimVolume


def plan_volume(pod: Object, volume: Object, around: PlanContext) -> Volume:
    """A volume of the pod as a typed value; PodStartError if it is incomplete or of an unknown kind."""
    if "hostPath" in volume:
        _check_host_path(volume["hostPath"]["path"])
        return HostPathVolume(volume["hostPath"]["path"], volume["hostPath"].get("type") or "")
    if "persistentVolumeClaim" in volume:
        return _claim(volume["name"], volume["persistentVolumeClaim"], around)
    if "emptyDir" in volume:
        return EmptyDirVolume(_memory_options(volume["emptyDir"] or {}))
    if "projected" in volume:
        projected = volume["projected"]
        mode = projected.get("defaultMode", 0o644)
        parts = [_files(pod, source, mode, around) for source in projected.get("sources") or []]
        return FilesVolume({path: entry for part in parts for path, entry in part.items()})
    if not {"configMap", "secret", "downwardAPI"} & set(volume):
        kind = next((key for key in volume if key != "name"), "of no kind")
        raise config_error(
            f"volume {volume['name']}: {kind} is not possible on a local node",
            "use hostPath, emptyDir, configMap, secret, downwardAPI, projected or persistentVolumeClaim",
        )
    return FilesVolume(_files(pod, volume, 0o644, around))


def _check_host_path(path: str) -> None:
    if ".." in path.split("/"):
        raise config_error(f"hostPath {path!r} must not contain '..'", "write the path that it leads to")


def is_token_volume(volume: Object) -> bool:
    """Whether a volume should contain a service account's token, which is left out here."""
    return any("serviceAccountToken" in source for source in (volume.get("projected") or {}).get("sources") or [])


def _claim(name: str, source: Object, around: PlanContext) -> Volume:
    """A claim is a folder of the node, unless a real cluster has bound it to a volume, which is then used."""
    readonly = bool(source.get("readOnly"))
    claim = around.find("PersistentVolumeClaim", source["claimName"])
    bound = ((claim or {}).get("spec") or {}).get("volumeName")
    if not bound:
        return ClaimVolume(source["claimName"], readonly)
    spec = (around.find("PersistentVolume", bound) or {}).get("spec") or {}
    if "hostPath" in spec:
        return HostPathVolume(spec["hostPath"]["path"], spec["hostPath"].get("type") or "", readonly)
    if "local" in spec:
        return HostPathVolume(spec["local"]["path"], "", readonly)
    raise config_error(
        f"volume {name}: claim {source['claimName']} is bound to {bound}, which cannot be mounted on a local node",
        "use a claim that is bound to a hostPath or local volume of this machine",
    )


def _memory_options(empty: Object) -> str:
    if empty.get("medium") != "Memory":
        return ""
    size = f",size={int(parse_quantity(empty['sizeLimit']))}" if empty.get("sizeLimit") else ""
    return f"mode=1777{size}"


def _files(pod: Object, source: Object, mode: int, around: PlanContext) -> dict[str, tuple[bytes, int]]:
    if "downwardAPI" in source:
        return _downward(pod, source["downwardAPI"], mode, around)
    if "configMap" in source:
        return _from_object("ConfigMap", source["configMap"], source["configMap"].get("name", ""), mode, around)
    if "secret" in source:
        secret = source["secret"]
        return _from_object("Secret", secret, secret.get("secretName") or secret.get("name", ""), mode, around)
    return {}  # a service account token


def _from_object(kind: str, source: Object, name: str, mode: int, around: PlanContext) -> dict[str, tuple[bytes, int]]:
    optional, mode = bool(source.get("optional")), source.get("defaultMode", mode)
    found = around.find(kind, name)
    if found is None and not optional:
        raise PodStartError("ContainerCreating", f'MountVolume.SetUp failed: {kind.lower()} "{name}" not found')
    data = object_data(kind, found)
    if not source.get("items"):
        return {_key(kind, name, key): (value, mode) for key, value in data.items()}
    missing = [item["key"] for item in source["items"] if item["key"] not in data]
    if missing and not optional:
        raise PodStartError("ContainerCreating", f"MountVolume.SetUp failed: {kind} {name} has no key {missing[0]}")
    return {
        check_relative_path(item["path"], "items[].path"): (data[item["key"]], item.get("mode", mode))
        for item in source["items"]
        if item["key"] in data
    }


def _key(kind: str, name: str, key: str) -> str:
    """A key as a file's name."""
    if "/" in key:
        raise config_error(f"key {key!r} of {kind} {name} is not the name of a file", "name a path for it under items")
    return check_relative_path(key, f"key of {kind} {name}:")


def _downward(pod: Object, source: Object, mode: int, around: PlanContext) -> dict[str, tuple[bytes, int]]:
    mode = source.get("defaultMode", mode)
    return {
        check_relative_path(item["path"], "items[].path"): (
            _downward_value(pod, item, around).encode(),
            item.get("mode", mode),
        )
        for item in source.get("items") or []
    }


def _downward_value(pod: Object, item: Object, around: PlanContext) -> str:
    if "fieldRef" in item:
        return pod_field(pod, item["fieldRef"]["fieldPath"], around)
    reference = item["resourceFieldRef"]
    containers = {container["name"]: container for container in pod["spec"]["containers"]}
    return resource_field(containers.get(reference.get("containerName"), {}), reference, around)


@dataclass(frozen=True, slots=True)
class VolumeManager:
    """The volumes of one pod as folders. ``folder``: of the pod. ``claims``: of the namespace's claims.

    ``group``: the group that owns them (hostPaths are not changed); None: the node's group.
    """

    folder: Path
    claims: Path
    group: int | None = None

    def make(self, volumes: Mapping[str, Volume]) -> dict[str, Path]:
        """Create missing folders. Returns the path of each volume. Idempotent: emptyDirs keep their content."""
        paths = {name: self._make(name, volume) for name, volume in volumes.items()}
        for name, volume in volumes.items():
            if self.group is not None and not isinstance(volume, HostPathVolume):
                set_volume_group(paths[name], self.group, readonly=isinstance(volume, FilesVolume))
        return paths

    def _make(self, name: str, volume: Volume) -> Path:
        if isinstance(volume, HostPathVolume):
            return _host_path(name, volume)
        if isinstance(volume, ClaimVolume):
            path = self.claims / volume.name
            path.mkdir(parents=True, exist_ok=True)
            return path
        path = self.folder / "volumes" / name
        path.mkdir(parents=True, exist_ok=True)
        if isinstance(volume, FilesVolume):
            write_files(path, volume.content)
        else:
            path.chmod(0o1777)
        return path


def set_volume_group(folder: Path, group: int, *, readonly: bool) -> None:
    """Give a volume to a group, as a kubelet does for fsGroup: new files in it belong to the group, too."""
    wanted = 0o440 if readonly else 0o660
    for _, _, files, inside in os.fwalk(folder):
        os.fchown(inside, -1, group)
        os.fchmod(inside, stat.S_IMODE(os.fstat(inside).st_mode) | wanted | 0o2110)
        for name in files:
            # By descriptor, because other pods may use the volume and replace the file with a link.
            with contextlib.suppress(OSError):
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
                try:
                    info = os.fstat(file)
                    if stat.S_ISREG(info.st_mode):
                        os.fchown(file, -1, group)
                        os.fchmod(file, stat.S_IMODE(info.st_mode) | wanted)
                finally:
                    os.close(file)


def write_files(folder: Path, content: Mapping[str, tuple[bytes, int]]) -> None:
    """Make ``folder`` contain exactly these files. The folder itself is kept, because running pods may have
    it mounted.
    """
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            with contextlib.suppress(OSError):
                path.rmdir()
        elif str(path.relative_to(folder)) not in content:
            path.unlink()
    for name, (data, mode) in content.items():
        _write_file(folder / name, data, mode)


def _write_file(path: Path, data: bytes, mode: int) -> None:
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"..{path.name}.new")
    new.write_bytes(data)
    new.chmod(mode & 0o777)
    new.replace(path)


_HOST_KINDS = {
    "Directory": stat.S_ISDIR,
    "File": stat.S_ISREG,
    "Socket": stat.S_ISSOCK,
    "CharDevice": stat.S_ISCHR,
    "BlockDevice": stat.S_ISBLK,
}


def _host_path(name: str, volume: HostPathVolume) -> Path:
    path = Path(volume.path)
    if volume.kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif volume.kind == "FileOrCreate":
        path.touch(exist_ok=True)
    wanted = _HOST_KINDS.get(volume.kind.removesuffix("OrCreate"))
    if not path.exists() or (wanted and not wanted(path.stat().st_mode)):
        what = volume.kind or "path"
        raise PodStartError(
            "ContainerCreating",
            f"MountVolume.SetUp failed for volume {name}: hostPath {path} is not a {what} on this machine",
        )
    return path


@dataclass(frozen=True, slots=True)
class ResolvedMount:
    """A mount for the supervisor; ``ours``: further mount points may be created inside."""

    source: str
    sub_path: str
    target: str
    readonly: bool
    ours: bool


def resolve_mounts(
    plan: ContainerPlan, volumes: Mapping[str, Volume], paths: Mapping[str, Path]
) -> list[ResolvedMount]:
    """The mounts of a container with their sources; PodStartError for a volume that the pod does not have."""
    return [_resolve_mount(mount, volumes, paths) for mount in plan.mounts]


def _resolve_mount(mount: VolumeMount, volumes: Mapping[str, Volume], paths: Mapping[str, Path]) -> ResolvedMount:
    volume = volumes.get(mount.volume)
    if volume is None:
        raise config_error(f"volumeMounts: no volume {mount.volume}")
    source = paths[mount.volume]
    _check_inside(source, mount.sub_path)
    readonly = (
        mount.readonly
        or isinstance(volume, FilesVolume)
        or (isinstance(volume, ClaimVolume | HostPathVolume) and volume.readonly)
    )
    return ResolvedMount(str(source), mount.sub_path, mount.target, readonly, not isinstance(volume, HostPathVolume))


def _check_inside(volume: Path, sub_path: str) -> None:
    """PodStartError when a link leads out of the volume. The mount checks again, because the link may change."""
    # Path.resolve fails in a loop of links, with a RuntimeError in some versions of Python.
    if sub_path and not Path(os.path.realpath(volume / sub_path)).is_relative_to(os.path.realpath(volume)):
        raise config_error(
            f"subPath {sub_path} leaves its volume by a symbolic link",
            "mount what the link leads to as a volume of its own",
        )


def refuse_mounts(plan: ContainerPlan, volumes: Mapping[str, Volume], why: str) -> None:
    """In shared mode, nothing can be mounted: PodStartError unless every volume is already at its mount path."""
    for mount in plan.mounts:
        volume = volumes.get(mount.volume)
        here = isinstance(volume, HostPathVolume) and os.path.normpath(volume.path) == os.path.normpath(mount.target)
        if not here or mount.sub_path:
            problem = config_error(
                f"volume {mount.volume} cannot be mounted at {mount.target}: pods here share the machine's file system",
                f"isolated mode can ({why}); in shared mode only a hostPath whose path is its mountPath works",
            )
            problem.container = plan.name
            raise problem


# Bytes. Programs create sockets below it, whose paths may have at most 103 bytes.
_MAX_TMPDIR: Final = 70


def tmpdir_env(folder: Path) -> dict[str, str]:
    """The variables that name the folder; none if its path is too long for sockets."""
    return {"TMPDIR": str(folder)} if len(os.fsencode(folder)) <= _MAX_TMPDIR else {}


def recreate_tmpdir(folder: Path) -> None:
    """Create the folder, without the files of an earlier run. Files that cannot be removed do not prevent the start."""
    remove_tree(str(folder))
    folder.mkdir(parents=True, exist_ok=True)
