"""Opens paths that never leave a folder, also while other processes create links and rename folders in it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from tf_dist.cluster.node.runtime import linux


def open_inside(folder: str, path: str, *, beneath: Callable[[int, str], int] = linux.open_beneath) -> int:
    """A descriptor (O_PATH) of ``path`` below ``folder``; what is missing is made, as folders. OSError.

    Symbolic links count if they lead to somewhere below, too (where the system cannot tell, none does). ``beneath``:
    how the system is asked, see ``linux.open_beneath``.
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
