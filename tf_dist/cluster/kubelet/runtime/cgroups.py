"""Limits of containers by control groups, if this user may create them.

Version 1 has a tree for each controller, and version 2 has one tree for all of them; a machine may have both. Each
container gets its own group, which is created before the container starts, and removed after its last process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

_CONTROLLERS = ("memory", "cpu", "pids")
_PREFIX = "tf-dist-"
_PERIOD = 100_000  # microseconds


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A container's groups: a folder for each controller (version 2: the same folder)."""

    folders: Mapping[str, str]

    @property
    def paths(self) -> list[str]:
        """The files to which a process id is written to join all groups."""
        return sorted({os.path.join(folder, "cgroup.procs") for folder in self.folders.values()})

    def killed_for_memory(self) -> bool:
        """Whether the system has killed a process of the container because it ran out of memory."""
        folder = self.folders.get("memory")
        if folder is None:
            return False
        for name in ("memory.events", "memory.oom_control"):
            text = _read(os.path.join(folder, name))
            for line in text.splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill" and value.strip() != "0":
                    return True
        return False

    def remove(self) -> bool:
        """Remove the groups; False while one still has a process."""
        for folder in set(self.folders.values()):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


class CgroupManager:
    """Creates groups. ``controllers``: the available controllers, possibly none."""

    def __init__(self) -> None:
        self._roots: dict[str, str] = {}

    @property
    def controllers(self) -> frozenset[str]:
        """The resources whose limits are enforced."""
        return frozenset(self._roots)

    def start(self) -> None:
        """Detect the controllers, and create a folder for this supervisor's groups in each tree. Never fails."""
        mounts, own = _read("/proc/self/mountinfo"), _read("/proc/self/cgroup")
        for controller, place in cgroup_paths(mounts, own).items():
            if (root := self._root(controller, place)) is not None:
                self._roots[controller] = root

    def _root(self, controller: str, place: CgroupPath) -> str | None:
        for base in place.bases:
            root = os.path.join(base, f"{_PREFIX}{os.getpid()}")
            with contextlib.suppress(OSError):
                if place.unified:
                    _enable(base, controller)
                _sweep(base)
                os.makedirs(root, exist_ok=True)
                if place.unified:
                    _enable(root, controller)
                if _works(root, controller):
                    return root
        return None

    def make(self, name: str, limits: Mapping[str, int], pids: int) -> Cgroup | None:
        """Create a container's groups with its limits; None when it needs none. OSError when that is not possible."""
        wanted = {**limits, **({"pids": pids} if pids else {})}
        folders = {key: os.path.join(self._roots[key], name) for key in wanted if key in self._roots}
        for controller, folder in folders.items():
            os.makedirs(folder, exist_ok=True)
            for file, value in limit_files(controller, wanted[controller]):
                path = os.path.join(folder, file)
                if os.path.exists(path):
                    _write(path, value)
        return Cgroup(folders) if folders else None

    def close(self) -> None:
        """Remove empty groups."""
        for root in set(self._roots.values()):
            _remove_empty(root)


@dataclass(frozen=True, slots=True)
class CgroupPath:
    """The folders in which groups of a controller may be created; the first usable folder is used."""

    bases: tuple[str, ...]
    unified: bool


def cgroup_paths(mountinfo: str, own: str) -> dict[str, CgroupPath]:
    """The folders for groups by controller, from /proc/self/mountinfo and /proc/self/cgroup. Pure."""
    mounted = _mounted(mountinfo)
    found: dict[str, CgroupPath] = {}
    for line in own.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and "" in mounted:
            base = _inside(*mounted[""], path)
            # In version 2, a group with processes cannot have limited subgroups, unless it is the root. Siblings of our
            # group can.
            bases = tuple(dict.fromkeys((base, os.path.dirname(base) if path != "/" else base)))
            found |= {name: CgroupPath(bases, True) for name in _CONTROLLERS if name not in found}
        for name in set(names.split(",")) & set(_CONTROLLERS) & set(mounted):
            found[name] = CgroupPath((_inside(*mounted[name], path),), False)
    return found


def _mounted(mountinfo: str) -> dict[str, tuple[str, str]]:
    """Mount point and mounted root by controller ("" for version 2)."""
    found: dict[str, tuple[str, str]] = {}
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        fields, kinds = head.split(), tail.split()
        if len(fields) < 5 or len(kinds) < 3:
            continue
        if kinds[0] == "cgroup2":
            found.setdefault("", (fields[4], fields[3]))
        elif kinds[0] == "cgroup":
            found |= {name: (fields[4], fields[3]) for name in kinds[2].split(",") if name in _CONTROLLERS}
    return found


def _inside(point: str, root: str, path: str) -> str:
    """The path of a group below a mount point, which may show only a part of the tree."""
    if root != "/" and (path == root or path.startswith(root.rstrip("/") + "/")):
        path = path[len(root.rstrip("/")) :]
    return os.path.normpath(f"{point}/{path.lstrip('/')}")


def limit_files(controller: str, value: int) -> list[tuple[str, str]]:
    """The files of both versions that set a limit, in order; callers skip files that do not exist. Pure."""
    match controller:
        case "memory":
            rounded = max(value, 4096)
            return [
                ("memory.limit_in_bytes", str(rounded)),
                ("memory.memsw.limit_in_bytes", str(rounded)),
                ("memory.max", str(rounded)),
                ("memory.swap.max", "0"),
            ]
        case "cpu":
            quota = max(value * _PERIOD // 1000, 1000)
            return [
                ("cpu.cfs_period_us", str(_PERIOD)),
                ("cpu.cfs_quota_us", str(quota)),
                ("cpu.max", f"{quota} {_PERIOD}"),
            ]
    return [("pids.max", str(value))]


def _enable(folder: str, controller: str) -> None:
    """Enable a controller for the children of a folder (version 2); OSError."""
    control = os.path.join(folder, "cgroup.subtree_control")
    if controller not in _read(control).split():
        _write(control, f"+{controller}")


def _works(root: str, controller: str) -> bool:
    """Whether a group in ``root`` has the controller's files, tested with a temporary group."""
    trial = os.path.join(root, "trial")
    os.makedirs(trial, exist_ok=True)
    try:
        names = [file for file, _ in limit_files(controller, 1)]
        return any(os.access(os.path.join(trial, name), os.W_OK) for name in names)
    finally:
        os.rmdir(trial)


def _sweep(base: str) -> None:
    """Remove the groups of dead supervisors."""
    for name in _folders(base):
        pid = name.removeprefix(_PREFIX)
        if name.startswith(_PREFIX) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            _remove_empty(os.path.join(base, name))


def _remove_empty(root: str) -> None:
    """Remove a supervisor's folder and those of its groups that have no process."""
    for folder in (*(os.path.join(root, name) for name in _folders(root)), root):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _folders(path: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def join_cgroups(paths: list[str]) -> None:
    """Put this process into groups; OSError."""
    for path in paths:
        _write(path, "0")
