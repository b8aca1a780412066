"""The kubelet's state folder: created, locked, and removed after its owner has died.

A folder is in use while a process holds the lock on its ``lock`` file (the kubelet and the supervisor share it). The
system releases the lock however they end, so a free lock means that no process uses the folder. Names and ages prove
nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tf_dist.cluster.kubelet.runtime import linux
from tf_dist.cluster.kubelet.runtime.remove_tree import remove_tree
from tf_dist.errors import ClusterError, Unavailable

PROCESS_MARK = "TF_DIST_NODE"
_PREFIX = "run-"
_ATTEMPTS = 100
_ANOTHER = "name another state folder: TF_DIST_HOME for tf-dist local, TMPDIR for tf-dist run"


@dataclass(frozen=True, slots=True)
class StateDir:
    """A state folder that this process holds; ``lock_fd`` is shared with the supervisor."""

    path: Path
    lock_fd: int

    @property
    def marks(self) -> dict[str, str]:
        """The variable that marks processes of this node: containers in shared mode, other processes in
        isolated mode.
        """
        return {PROCESS_MARK: (self.path / "mark").read_text()}

    def release(self) -> None:
        """Release the lock; the supervisor may still hold it."""
        os.close(self.lock_fd)


def private_dir(path: Path) -> Path:
    """A folder that only this user can enter, created if missing; ClusterError when it cannot be used."""
    try:
        problem = ownership_problem(path)
        if not problem:
            with contextlib.suppress(FileExistsError):
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
            problem = ownership_problem(path)  # another process may have created it meanwhile
    except OSError as error:
        problem = f"cannot be made: {error.strerror}"
    if problem:
        raise ClusterError(f"{path} {problem}", hint=_ANOTHER)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


def ownership_problem(path: Path) -> str:
    """Why the path cannot be a private folder of this user; "" if it can, or does not exist.

    A symbolic link is refused, because its owner may change its target at any time.
    """
    try:
        if path.lstat().st_uid not in (os.geteuid(), 0):
            return f"{'is a symbolic link of' if path.is_symlink() else 'belongs to'} another user"
        info = path.stat()
    except FileNotFoundError:
        return "is a symbolic link to nothing" if path.is_symlink() else ""
    if not stat.S_ISDIR(info.st_mode):
        return "is not a folder"
    return "" if info.st_uid == os.geteuid() else "belongs to another user"


def temporary_state_dir(parent: Path) -> StateDir:
    """A new folder in ``parent``, after removing folders whose owners are dead."""
    for _ in range(_ATTEMPTS):
        path = parent / f"{_PREFIX}{secrets.token_hex(4)}"
        # A supervisor that ends also removes an empty parent, which may happen at any time.
        with contextlib.suppress(FileNotFoundError), _exclusive(parent):
            sweep_abandoned(parent)
            path.mkdir(mode=0o700)
            if (folder := acquire_state_dir(path)) is not None:
                return folder
    raise Unavailable(f"cannot make and lock a folder in {parent}", hint="name another state_dir")


def acquire_state_dir(path: Path) -> StateDir | None:
    """Take an existing or new folder; None when a process holds it."""
    fd = os.open(private_dir(path) / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    _kill_leftovers(path)
    (path / "mark").write_text(secrets.token_hex(8))
    return StateDir(path, fd)


def sweep_abandoned(parent: Path) -> list[Path]:
    """Remove every abandoned folder of ``temporary_state_dir``, and kill its remaining processes. Returns the
    folders.
    """
    return [path for path in parent.glob(f"{_PREFIX}*") if _remove_if_abandoned(path)]


def _remove_if_abandoned(path: Path) -> bool:
    try:
        fd = os.open(path / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError:
        return False  # its supervisor is removing it, or it is damaged. Other folders are swept all the same.
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        _kill_leftovers(path)
        remove_tree(str(path))
        return True
    finally:
        os.close(fd)


def _kill_leftovers(path: Path) -> None:
    """Kill the processes that a dead owner left behind: detached processes in shared mode."""
    with contextlib.suppress(OSError):
        mark = f"{PROCESS_MARK}=".encode() + (path / "mark").read_bytes()
        linux.signal_pids(linux.pids_with_variable(mark), signal.SIGKILL)


@contextlib.contextmanager
def _exclusive(parent: Path) -> Iterator[None]:
    """Only one process at a time creates or removes folders. The lock is on the folder itself."""
    while True:
        fd = os.open(private_dir(parent), os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(parent).st_ino == os.fstat(fd).st_ino:
                break
        os.close(fd)
    try:
        yield
    finally:
        os.close(fd)
