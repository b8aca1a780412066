"""The folder of code that is sent with a job: an archive whose bytes depend only on its files."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tf_dist.core.dialects.code_folder import LARGEST_CODE
from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILES: Final = (".gitignore", ".tfdistignore")
"""Files with patterns of files to leave out. Patterns of the later file override (``!data/small.csv``)."""
_NEVER: Final = frozenset({
    ".git", ".hg", ".svn", "__pycache__", "node_modules", ".ipynb_checkpoints", ".DS_Store",
    ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox", ".eggs",
})  # fmt: skip
_SECRETS: Final = ("*.env", ".env.*", ".netrc", ".pypirc", ".ssh/", ".aws/", ".azure/", ".kube/", ".kaggle/")
"""Patterns of files that usually hold secrets. They do not belong in a ConfigMap, which more people may read."""
_MARKS: Final = ("pyvenv.cfg", "conda-meta/history", "CACHEDIR.TAG")
"""Files that mark an environment or a cache."""
_LARGEST_UNPACKED: Final = 64 << 20
_MOST_FILES: Final = 10_000
_LISTED: Final = 10
_READS: Final = 3
_MTIME: Final = 946_684_800  # the year 2000: zip files cannot store times before 1980
CODE_WAYS: Final = (
    "leave files out with .tfdistignore, put the code into the image, or the data on a volume or into a bucket; a job "
    "can also clone a git repository in an init container"
)


@dataclass(frozen=True, slots=True)
class _File:
    """A file or link of the folder."""

    name: str
    """Its path in the folder, with ``/``."""
    path: Path
    """The path from which it is read."""
    size: int
    """The size in bytes when it was listed."""
    link: str = ""
    """The target of a symbolic link, relative to its own folder."""


def existing_folder(folder: str | os.PathLike[str]) -> str:
    """The absolute path of a folder; InvalidJob if it does not exist."""
    if not os.path.isdir(folder):
        raise _refused(f"{folder} is not a folder", "name the folder that has the program")
    return os.path.abspath(folder)


def pack_code(folder: str | os.PathLike[str], needed: Iterable[str] = ()) -> bytes:
    """The folder as a compressed archive; InvalidJob, with hints, for what cannot be sent.

    ``needed``: files of the folder that must be in the archive. Files that ``.gitignore`` and ``.tfdistignore`` name
    are left out, and so are repositories, virtual environments, caches, sockets, pipes and devices. Files with secrets
    are left out unless a pattern includes them.
    """
    root = Path(existing_folder(folder))
    files = sorted(_files(root), key=lambda one: os.fsencode(one.name))
    if not files:
        raise _refused(f"{folder} has no files to send", "check what its .gitignore and .tfdistignore exclude")
    packed_names = {one.name for one in files}
    for name in map(os.path.normpath, needed):
        if not os.path.isabs(name) and name not in packed_names and os.path.isfile(root / name):
            what = f"{folder} is sent without {name}, which the job runs: an ignore file names it"
            folders = [f"{one}/" for one in reversed(Path(name).parents) if _is_left_out(root, one)]
            raise _refused(what, f"write !/{(folders or [name])[0]} into {root / IGNORE_FILES[-1]}")
    _check_size(folder, files, sum(one.size for one in files), _LARGEST_UNPACKED, "")
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for one in files:
            _add(archive, one)
    packed = gzip.compress(written.getvalue(), 9, mtime=0)
    _check_size(folder, files, len(packed), LARGEST_CODE, " compressed")
    return packed


def _refused(message: str, hint: str) -> InvalidJob:
    return InvalidJob([Problem("code", message, hint)])


def _check_size(folder: object, files: Sequence[_File], size: int, most: int, how: str) -> None:
    if size <= most and len(files) <= _MOST_FILES:
        return
    if size > most:
        what = f"{folder} has {_shown(size)}{how}, and {most >> 20} MiB can be sent with a job"
    else:
        what = f"{folder} has more than {_MOST_FILES} files, which is more than can be sent with a job"
    largest = sorted(files, key=lambda one: -one.size)[:_LISTED]
    listed = ", ".join(f"{one.name} ({_shown(one.size)})" for one in largest)
    raise _refused(f"{what}; its largest files: {listed}", CODE_WAYS)


def _shown(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB" if size >= 1 << 20 else f"{-(-size >> 10)} KiB"


def _files(root: Path) -> Iterator[_File]:
    """The files to send, up to one more than allowed."""
    count = 0
    pending: list[tuple[Path, str, tuple[_Ignored, ...]]] = [(root, "", tuple(_around(root)))]
    while pending:
        folder, prefix, above = pending.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda one: one.name)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and prefix:
                continue  # the folder was deleted after the folder above it was listed
            raise _refused(f"{folder} cannot be read: {error.strerror}", _unreadable(folder)) from None
        ignored = (*above, *_patterns(folder))
        for entry in entries:
            path, name = folder / entry.name, f"{prefix}{entry.name}"
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name in _NEVER or entry.name.endswith((".pyc", ".pyo")) or _leaves_out(ignored, path, is_folder):
                continue
            if is_folder:
                if not any(os.path.isfile(path / mark) for mark in _MARKS):
                    pending.append((path, f"{name}/", ignored))
                continue
            try:
                found = _file(entry, name, path, root)
            except FileNotFoundError:
                continue  # the file was deleted after the folder was listed
            except OSError as error:
                raise _refused(f"{path} cannot be read: {error.strerror}", _unreadable(path)) from None
            if found is not None:
                yield found
                count += 1
            if count > _MOST_FILES:
                return


def _file(entry: os.DirEntry[str], name: str, path: Path, root: Path) -> _File | None:
    """A file or link to send; None for sockets, pipes and devices. OSError if it cannot be read."""
    if entry.is_symlink():
        # The target of a link, relative to its folder; InvalidJob if it leaves the folder to send.
        target = Path(os.path.normpath(path.parent.resolve() / os.readlink(path)))
        inside = root.resolve()
        if target != inside and not target.is_relative_to(inside):
            hint = "copy the file into the folder, or leave the link out: write its name into .tfdistignore"
            raise _refused(f"{path} is a link to {target}, which is not in the folder", hint)
        return _File(name, path, 0, os.path.relpath(target, path.parent.resolve()))
    return _File(name, path, entry.stat().st_size) if entry.is_file() else None


@dataclass(frozen=True, slots=True)
class _Ignored:
    """The patterns of one file, which apply to its folder."""

    folder: Path
    patterns: GitIgnoreSpec


def _around(root: Path) -> Iterator[_Ignored]:
    """The patterns for every folder, and those of folders above in the same repository.

    The latter are ignored if they leave out the folder itself.
    """
    yield _ignored(root, _SECRETS)
    above = [*root.absolute().parents]
    inside = next((number for number, one in enumerate(above) if (one / ".git").exists()), -1)
    if not (root / ".git").exists():
        found = [one for folder in reversed(above[: inside + 1]) for one in _patterns(folder)]
        if not _leaves_out(found, root, True):
            yield from found


def _is_left_out(root: Path, folder: Path) -> bool:
    """Whether the patterns of the root leave out a folder."""
    return folder.name != "" and _leaves_out([*_around(root), *_patterns(root)], root / folder, True)


def _patterns(folder: Path) -> Iterator[_Ignored]:
    for name in IGNORE_FILES:
        if stat.S_ISFIFO(_mode(folder / name)):
            continue  # reading it would wait for a writer
        try:
            lines = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
        except OSError as error:
            raise _refused(f"{folder / name} cannot be read: {error.strerror}", _unreadable(folder / name)) from None
        try:
            yield _ignored(folder, lines)
        except ValueError:
            hint = "correct it, or delete the line; the patterns are those of .gitignore"
            wrong = [number for number, line in enumerate(lines, 1) if not _is_pattern(line)]
            problems = [
                Problem("code", f"{folder / name}, line {number}, is not a pattern: {lines[number - 1]!r}", hint)
                for number in wrong
            ]
            raise InvalidJob(problems) from None


def _is_pattern(line: str) -> bool:
    try:
        _ignored(Path(), [line])
    except ValueError:
        return False
    return True


def _ignored(folder: Path, lines: Iterable[str]) -> _Ignored:
    from pathspec import GitIgnoreSpec  # slow to import

    return _Ignored(folder.absolute(), GitIgnoreSpec.from_lines(lines))


def _leaves_out(ignored: Iterable[_Ignored], path: Path, is_folder: bool) -> bool:
    """Decide as git does: the last matching pattern counts, and those of nearer folders come later."""
    found: bool | None = None
    for one in ignored:
        name = path.absolute().relative_to(one.folder).as_posix() + ("/" if is_folder else "")
        matched = one.patterns.check_file(name).include
        found = found if matched is None else matched
    return bool(found)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def _unreadable(path: Path) -> str:
    path = path if os.access(path.parent, os.X_OK) else path.parent
    mode = "u+rx" if os.path.isdir(path) else "u+r"
    return f"allow it (chmod {mode} {path}), or leave it out: write its name into .tfdistignore"


def _add(archive: tarfile.TarFile, one: _File) -> None:
    header = tarfile.TarInfo(one.name)
    header.mtime = _MTIME
    if one.link:
        header.type, header.linkname, header.mode = tarfile.SYMTYPE, one.link, 0o777
        archive.addfile(header)
        return
    try:
        data, executable = _read(one.path)
    except FileNotFoundError:
        return  # the file was deleted after the folder was listed
    header.size, header.mode = len(data), 0o755 if executable else 0o644
    archive.addfile(header, io.BytesIO(data))


def _read(path: Path) -> tuple[bytes, bool]:
    """The content of a file that did not change while it was read, and whether its owner may execute it."""
    for _ in range(_READS):
        try:
            # A pipe that took the file's place must not be waited for.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
                before = os.fstat(file.fileno())
                data = file.read(before.st_size + 1)
                after = os.fstat(file.fileno())
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _refused(f"{path} cannot be read: {error.strerror}", _unreadable(path)) from None
        if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size) and len(data) == after.st_size:
            return data, bool(after.st_mode & stat.S_IXUSR)
    hint = "leave it out: write its name into .tfdistignore; or wait until it is written"
    raise _refused(f"{path} changed while it was packed", hint)
