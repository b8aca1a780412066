"""Which processes belong to a container, however they detached themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator


def in_mount_namespace(fd: int) -> set[int]:
    """Processes that see the mounts of the namespace ``fd`` (isolated mode: /proc shows this pod only)."""
    wanted = os.fstat(fd).st_ino
    return {pid for pid in _pids() if pid != 1 and _namespace(pid) == wanted}


def below(root: int) -> set[int]:
    """Every descendant of ``root`` (which adopts orphans): children, their children, and so on."""
    parents = {pid: _parent(pid) for pid in _pids()}
    found = {root}
    size = 0
    while size != len(found):
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {root}


def children(root: int) -> set[int]:
    """The direct children of ``root``, dead ones not yet waited for included."""
    return {pid for pid in _pids() if _parent(pid) == root}


def marked(token: bytes) -> set[int]:
    """Processes of this user whose environment holds ``token`` (an exact ``NAME=value``)."""
    return {pid for pid in _pids() if token in _environ(pid)}


def signal_all(pids: set[int], number: int) -> None:
    """Signal each one that is still there and ours."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_group(leader: int, number: int = signal.SIGKILL) -> None:
    """Signal a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _pids() -> Iterator[int]:
    if sys.platform == "linux":
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def _namespace(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except OSError:
        return 0


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return -1


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
