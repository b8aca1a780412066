"""Linux system calls that Python 3.11 does not offer, and the processes of a container in /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection, Iterator
from functools import cache

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_UNBINDABLE = 1 << 17
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION = 0x20080522
_CAP_SETGID, _CAP_SETUID, _CAP_SETPCAP, _CAP_SYS_ADMIN = 6, 7, 8, 21
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_OPENAT2 = 428, 429, 437  # the same on every architecture
_RESOLVE_NO_MAGICLINKS, _RESOLVE_BENEATH = 0x02, 0x08
_AT_EMPTY_PATH = 0x1000
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces; OSError says which call the system refused."""
    _check(_libc().unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace that ``fd`` refers to."""
    _check(_libc().setns(fd, kind), f"setns({kind:#x})")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2); OSError names source and target."""
    args = (os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(_libc().mount(*args), f"mount {source} on {target}")


def umount(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    _check(_libc().umount2(os.fsencode(target), flags), f"umount {target}")


def open_tree(path: str, at: int = _AT_FDCWD) -> int:
    """A detached copy of the mounts at ``path`` ("": at descriptor ``at``), for ``move_mount``; needs Linux 5.2."""
    flags = 1 | os.O_CLOEXEC | _AT_RECURSIVE | (0 if path else _AT_EMPTY_PATH)
    fd: int = _libc().syscall(_SYS_OPEN_TREE, at, os.fsencode(path), flags)
    _check(min(fd, 0), f"open_tree {path}")
    return fd


def open_beneath(folder: int, path: str) -> int:
    """A descriptor (O_PATH) of ``path``, which must not leave ``folder``; OSError: EXDEV if it does, ENOSYS."""
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    fd: int = _libc().syscall(_SYS_OPENAT2, folder, os.fsencode(path), how, ctypes.c_size_t(ctypes.sizeof(how)))
    _check(min(fd, 0), f"open {path}")
    return fd


def move_mount(tree: int, target: str) -> None:
    """Attach the result of ``open_tree`` at ``target``."""
    result = _libc().syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), 4)  # 4: tree is a bare fd
    _check(result, f"move_mount to {target}")


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2)."""
    _check(_libc().pivot_root(os.fsencode(new), os.fsencode(old)), f"pivot_root {new}")


def die_with_parent(number: int) -> None:
    """Receive signal ``number`` when the parent dies; no effect where the system has no such call."""
    if sys.platform == "linux":
        _check(_libc().prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def become_subreaper() -> None:
    """Become the parent of orphans below this process; no effect where the system has no such call."""
    if sys.platform == "linux":
        _check(_libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def no_new_privs() -> None:
    """Prevent programs of this process from gaining rights; no effect where the system has no such call."""
    if sys.platform == "linux":
        _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "prctl(PR_SET_NO_NEW_PRIVS)")


def bound_capabilities(kept: Collection[int]) -> None:
    """Permanently drop every other capability of this process's programs; OSError when one cannot be dropped."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    for number in range(64):
        if number not in kept and _prctl(_PR_CAPBSET_READ, number) == 1:
            _check(_prctl(_PR_CAPBSET_DROP, number), f"drop capability {number}")


def set_capabilities(kept: Collection[int]) -> None:
    """Keep only these of this process's own capabilities; none of them is inherited."""
    wanted = _effective() & sum(1 << number for number in kept)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    low, high = wanted & 0xFFFFFFFF, wanted >> 32
    _check(_libc().capset(header, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)), "capset")


def _prctl(what: int, value: int) -> int:
    zero = ctypes.c_ulong(0)
    return int(_libc().prctl(what, ctypes.c_ulong(value), zero, zero, zero))


def _effective() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("CapEff:"))
    return int(line.split()[1], 16)


def has_sys_admin() -> bool:
    """Whether this process may create namespaces without a user namespace."""
    return _has(_CAP_SYS_ADMIN)


def may_switch_users() -> bool:
    """Whether this process may become any user and group."""
    return sys.platform == "linux" and _has(_CAP_SETUID, _CAP_SETGID)


def may_drop_capabilities() -> bool:
    """Whether this process may permanently drop capabilities of its programs."""
    return sys.platform == "linux" and _has(_CAP_SETPCAP)


def _has(*capabilities: int) -> bool:
    return all(_effective() >> number & 1 for number in capabilities)


def pids_in_mount_namespace(fd: int) -> set[int]:
    """Processes that see the mounts of the namespace ``fd`` (isolated mode: /proc shows this pod only)."""
    wanted = os.fstat(fd).st_ino
    return {pid for pid in _pids() if pid != 1 and _namespace(pid) == wanted}


def descendants(root: int) -> set[int]:
    """Every descendant of ``root`` (which adopts orphans): children, their children, and so on."""
    parents = {pid: _parent(pid) for pid in _pids()}
    found = {root}
    size = 0
    while size != len(found):
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {root}


def child_pids(root: int) -> set[int]:
    """The direct children of ``root``, including dead ones that are not yet reaped."""
    return {pid for pid in _pids() if _parent(pid) == root}


def pids_with_variable(token: bytes) -> set[int]:
    """Processes of this user whose environment contains ``token`` (an exact ``NAME=value``)."""
    return {pid for pid in _pids() if token in _environ(pid)}


def sigchld_pipe() -> int:
    """A descriptor that becomes readable when a child of this process has ended."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def signal_pids(pids: set[int], number: int) -> None:
    """Signal each process that still exists and belongs to this user."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def signal_group(leader: int, number: int = signal.SIGKILL) -> None:
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
