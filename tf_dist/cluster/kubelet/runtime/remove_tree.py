"""Removal of folders that users' programs have filled."""

from __future__ import annotations

import contextlib
import os
import secrets


def remove_tree(path: str) -> None:
    """Remove a folder of any depth, including folders without access rights, or the file or link at ``path``.

    Links are not followed. What cannot be removed stays. ``shutil.rmtree`` fails in deep folders with RecursionError.
    """
    try:
        top = _open_folder(path)
    except OSError:
        _unlink(path)
        return
    stuck: set[str] = set()
    try:
        while names := set(os.listdir(top)) - stuck:
            stuck |= {name for name in names if not _unlink(name, top) and not _flatten(name, top)}
    finally:
        os.close(top)
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _flatten(name: str, top: int) -> bool:
    """Remove a folder in ``top`` after moving its subfolders to ``top``. Otherwise, deep folders need a deep stack, or
    many descriptors. False if it cannot be removed.
    """
    try:
        folder = _open_folder(name, top)
        try:
            for entry in os.listdir(folder):
                with contextlib.suppress(OSError):
                    if not _unlink(entry, folder):
                        os.close(_open_folder(entry, folder))  # a folder can be moved only by who may write to it
                        os.rename(entry, secrets.token_hex(8), src_dir_fd=folder, dst_dir_fd=top)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)
    except OSError:
        return False
    return True


def _unlink(name: str, folder: int | None = None) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True


def _open_folder(name: str, at: int | None = None) -> int:
    """A descriptor of a folder, which its owner may now read and write. OSError: it is not a folder, or not ours."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        folder = os.open(name, flags, dir_fd=at)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=at)
        folder = os.open(name, flags, dir_fd=at)
    with contextlib.suppress(OSError):
        os.fchmod(folder, 0o700)
    return folder
