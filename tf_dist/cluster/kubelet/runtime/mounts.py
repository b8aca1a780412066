"""Mounts of volumes in a container's own mount namespace, by paths that cannot leave their folder.

To create a missing mount point, its nearest existing parent is covered with a tmpfs, into which the parent's content is
bind-mounted. For ``/``, the tmpfs becomes the new root. *New* files of the container directly in a covered parent (not
in its subfolders) are in the tmpfs, and are lost with the container.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterable
from typing import Any

from tf_dist.cluster.kubelet.runtime import linux


def open_inside(folder: str, path: str, *, beneath: Callable[[int, str], int] = linux.open_beneath) -> int:
    """A descriptor (O_PATH) of ``path`` below ``folder``. Missing folders are created. OSError.

    Symbolic links are followed only if they stay below ``folder``; before Linux 5.6, no link is followed. ``beneath``:
    the system call, see ``linux.open_beneath``.
    """
    base = at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    try:
        for number, part in enumerate(parts, 1):
            step = _enter(lambda one: beneath(base, one), at, "/".join(parts[:number]), part)
            if at != base:
                os.close(at)
            at = step
    except OSError as error:
        if at != base:
            os.close(at)
        os.close(base)
        if error.errno in (errno.EXDEV, errno.ELOOP):
            raise OSError(error.errno, f"{path} leaves its volume by a symbolic link") from error
        raise
    if at != base:
        os.close(base)
    return at


def _enter(beneath: Callable[[str], int], at: int, path: str, part: str) -> int:
    try:
        return _open(beneath, at, path, part)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=at)
        return _open(beneath, at, path, part)


def _open(beneath: Callable[[str], int], at: int, path: str, part: str) -> int:
    if part == "..":
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    try:
        return beneath(path)
    except OSError as error:
        if error.errno != errno.ENOSYS:  # before Linux 5.6
            raise
    found = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    if stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return found


# statvfs flag -> the mount flag that a remount must keep
_KEPT_FLAGS = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}


class Mounter:
    """Mounts volumes; ``staging`` is an empty folder that only this process uses."""

    def __init__(self, staging: str) -> None:
        self._staging = staging
        self._covers: set[int] = set()  # device numbers of our tmpfs, in which mount points may be created
        self._targets: dict[str, bool] = {}  # the paths of volumes, and whether mount points may be created in them

    def volumes(self, mounts: Iterable[dict[str, Any]]) -> list[str]:
        """Mount ``{source, sub_path, target, readonly, ours}``, parents first.

        ``ours``: mount points may be created inside. ``sub_path`` never leads out of the source.

        Returns the real target paths.
        """
        ordered = sorted(mounts, key=lambda item: os.path.normpath(item["target"]).count("/"))
        # Opened in advance, because a volume on /tmp would hide the sources of other volumes, and the staging folder.
        trees = [_tree(item) for item in ordered]
        kinds = [os.path.isdir(f"/proc/self/fd/{tree}") for tree in trees]
        targets = [os.path.normpath(item["target"]) for item in ordered]
        for target, folder in zip(targets, kinds, strict=True):
            if not any(target.startswith(other + "/") for other in targets):
                self.place(target, folder=folder)
        for item, tree, target, folder in zip(ordered, trees, targets, kinds, strict=True):
            self._attach(tree, self.place(target, folder=folder), item)
        return list(self._targets)

    def _attach(self, tree: int, target: str, item: dict[str, Any]) -> None:
        linux.move_mount(tree, target)
        os.close(tree)
        self._targets[target] = bool(item.get("ours"))
        if item.get("readonly"):
            read_only(target)

    def place(self, target: str, *, folder: bool) -> str:
        """Make sure that ``target`` exists as a mount point. Returns its real path (symbolic links resolved)."""
        if os.path.exists(target):
            return os.path.realpath(target)
        parent = os.path.dirname(target)
        while not os.path.isdir(parent):
            parent = os.path.dirname(parent)
        rest = os.path.relpath(target, parent)
        parent = os.path.realpath(parent)
        if not self._may_create(parent):
            self._cover(parent)
        return _create(os.path.join(parent, rest), folder)

    def _may_create(self, folder: str) -> bool:
        if os.stat(folder).st_dev in self._covers:
            return True
        while folder != "/" and folder not in self._targets:
            folder = os.path.dirname(folder)
        return self._targets.get(folder, False)

    def _cover(self, folder: str) -> None:
        staging = self._staging
        linux.mount("tf-dist", staging, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=64m,mode=755")
        linux.mount("", staging, flags=linux.MS_UNBINDABLE)  # else it would be bound into itself
        _mirror(folder, staging)
        linux.mount("", staging, flags=linux.MS_PRIVATE)
        self._covers.add(os.stat(staging).st_dev)
        if folder == "/":
            _switch_root(staging)
        else:
            linux.mount(staging, folder, flags=linux.MS_MOVE)


def _tree(item: dict[str, Any]) -> int:
    if not item.get("sub_path"):
        return linux.open_tree(item["source"])
    inside = open_inside(item["source"], item["sub_path"])
    try:
        return linux.open_tree("", inside)
    finally:
        os.close(inside)


def _create(path: str, folder: bool) -> str:
    """Create a mount point below an existing folder, without following links."""
    above, missing = path, []
    while not os.path.isdir(above):
        above, name = os.path.split(above)
        missing.append(name)
    if not missing:
        return path
    at = open_inside(above, "/".join(reversed(missing if folder else missing[1:])))
    try:
        if not folder:
            os.close(os.open(missing[0], os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o644, dir_fd=at))
    finally:
        os.close(at)
    return path


def _mirror(source: str, target: str) -> None:
    for entry in os.scandir(source):
        with contextlib.suppress(OSError):  # deleted meanwhile, or not accessible: the entry is left out
            _mirror_entry(entry, os.path.join(target, entry.name))
    info = os.stat(source)
    os.chmod(target, stat.S_IMODE(info.st_mode))


def _mirror_entry(entry: os.DirEntry[str], target: str) -> None:
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), target)
        return
    _create(target, entry.is_dir())
    linux.mount(entry.path, target, flags=linux.MS_BIND | linux.MS_REC)


def _switch_root(new: str) -> None:
    here = os.getcwd()
    os.chdir(new)
    linux.pivot_root(".", ".")  # the old root now lies on top of the new one
    linux.umount(".", linux.MNT_DETACH)
    os.chdir("/")
    with contextlib.suppress(OSError):
        os.chdir(here)


def read_only(target: str) -> None:
    """Make a bind mount read-only, keeping the flags that a user namespace may not drop."""
    now = os.statvfs(target).f_flag
    kept = sum(flag for bit, flag in _KEPT_FLAGS.items() if now & bit)
    linux.mount("", target, flags=linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | kept)


def read_only_root(volumes: Iterable[str]) -> None:
    """Make the container's file system read-only, except volumes, devices and kernel file systems."""
    kept = (*volumes, "/dev", "/proc", "/sys")
    for point in _mount_points():
        if not any(point == one or point.startswith(one.rstrip("/") + "/") for one in kept):
            try:
                read_only(point)
            except OSError:
                if os.path.ismount(point):  # else another mount hides it
                    raise


def _mount_points() -> list[str]:
    with open("/proc/self/mountinfo", "rb") as file:
        found = [line.split()[4] for line in file]
    return [os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), path)) for path in found]
