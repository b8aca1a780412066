"""Outputs and progress of a step. Outputs are files that Argo may read at any time, so each is written atomically."""

from __future__ import annotations

import fcntl
import glob
import json
import math
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tf_dist.argo.launcher import contract
from tf_dist.core.diagnostics.metrics_parser import Progress
from tf_dist.errors import InvalidJob, Problem

_NAME_LIMIT: Final = 100
_TEXT_LIMIT: Final = 4096  # all outputs of a workflow share one object of 1 MiB


class StepOutputs:
    """A folder of files. A file is written only if its value changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, str] = {}
        self.problem = ""

    def start(self, job: str) -> None:
        """Write all files with their first values. Raises InvalidJob if that fails."""
        first = {**contract.OUTPUTS, "job": job, "status": "Starting", "message": "the launcher has just started"}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for name, value in first.items():
                self._write(name, value)
        except OSError as error:
            hint = f"mount a volume there (emptyDir) that user {os.getuid()} may write to, or name another: out=DIR"
            raise InvalidJob([Problem("out", f"cannot write outputs to {self._folder}: {error}", hint)]) from error

    def put(self, values: Mapping[str, str]) -> None:
        """Update values. A full or missing volume does not end the training, but is reported in ``problem``."""
        for name, value in values.items():
            try:
                self._write(name, value)
            except OSError as error:
                self.problem = f"cannot write the output {name} to {self._folder}: {error}"

    def _write(self, name: str, value: str) -> None:
        value = value[:_TEXT_LIMIT]
        if self._written.get(name) == value:
            return
        scratch = self._folder / f".{name}.new"
        try:
            scratch.write_text(value, encoding="utf-8")
            scratch.replace(self._folder / name)
        except OSError:
            with suppress(OSError):
                scratch.unlink()
            raise
        self._written[name] = value


def progress_outputs(progress: Progress) -> dict[str, str]:
    """The reports of the training as outputs: a JSON object of all metrics, a file for each, and the checkpoint.

    The JSON object has as many metrics as fit into an output.
    """
    metrics = {name: value for name, value in progress.metrics.items() if len(name) <= _NAME_LIMIT}
    document: dict[str, float | str] = {}
    size = len("{}")
    for name, value in metrics.items():
        shown = value if math.isfinite(value) else str(value)
        size += len(json.dumps({name: shown}))  # the two braces count for the comma and the space
        if size > _TEXT_LIMIT:
            break
        document[name] = shown
    single = {contract.metric_file(name): _number(value) for name, value in metrics.items() if "|" not in name}
    return {"metrics": json.dumps(document, sort_keys=True), "checkpoint": progress.checkpoint, **single}


class _RefusedFile(Exception):
    """A file that does not belong to a checkpoint."""


def copy_checkpoint(checkpoint: str, folder: Path, mounts: Sequence[str]) -> str:
    """Copy the files of a checkpoint to a folder, all or none. Returns the problem, or "".

    ``checkpoint``: a folder, a file, or a prefix of files, as TensorFlow names it. The training printed this text, so
    only files below ``mounts`` are copied, after links are followed. Other files could be secrets of the launcher's
    pod.
    """
    if "://" in checkpoint:
        return f"{checkpoint} is not on a volume of the launcher: the output checkpoint has its location"
    scratch = folder.with_name(f".{folder.name}.new")
    try:
        inside = [Path(mount).resolve() for mount in mounts if mount]
        source = Path(checkpoint)
        # Path.resolve would fail in a loop of links, with a RuntimeError in some versions of Python.
        if not _is_below(Path(os.path.realpath(source)), inside):
            known = ", ".join(map(str, inside)) or "none"
            return f"{checkpoint} is outside the volumes that the step mounts ({known}): {_MOUNT_IT}"
        if not (found := _files_of(source)):
            return f"the launcher does not see {checkpoint}: {_MOUNT_IT}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        for one in found:
            _copy(str(one), scratch if one.is_dir() else scratch / one.name, inside)
        scratch.replace(folder)
    except (OSError, ValueError, _RefusedFile) as error:
        shutil.rmtree(scratch, ignore_errors=True)
        return f"cannot copy {checkpoint} to {folder}: {error}"
    return ""


def _files_of(source: Path) -> list[Path]:
    try:
        source.stat()
    except (FileNotFoundError, NotADirectoryError):
        return sorted(source.parent.glob(f"{glob.escape(source.name)}.*"))
    return [source]


_MOUNT_IT: Final = "give the step the volume that the replicas write to (volumes)"
_DEPTH_LIMIT: Final = 64


def _copy(name: str, target: Path, mounts: Sequence[Path], at: int | None = None, above: tuple[Path, ...] = ()) -> None:
    """Copy a file, or a folder with all its content. Raises OSError and _RefusedFile.

    The path of the opened file is checked, because the training may replace a link at any time. ``at``: a descriptor of
    the folder that contains ``name``. ``above``: the parent folders.
    """
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=at)  # a pipe would wait for a writer
    try:
        place = _place_of(descriptor)
        mode = os.fstat(descriptor).st_mode
        if not _is_below(place, mounts):
            raise _RefusedFile(f"{name} leads to {place}, outside the volumes that the step mounts: remove the link")
        if stat.S_ISDIR(mode):
            if place in above or len(above) >= _DEPTH_LIMIT:
                raise _RefusedFile(
                    f"{place} contains itself through a link, or has more than {_DEPTH_LIMIT} folders around it"
                )
            target.mkdir(exist_ok=True)
            for one in os.listdir(descriptor):
                _copy(one, target / one, mounts, descriptor, (*above, place))
        elif stat.S_ISREG(mode):
            with open(descriptor, "rb", closefd=False) as data, target.open("wb") as copied:
                shutil.copyfileobj(data, copied)
        else:
            raise _RefusedFile(f"{place} is neither a file nor a folder")
    finally:
        os.close(descriptor)


def _place_of(descriptor: int) -> Path:
    """The path of an opened file."""
    if sys.platform == "darwin":
        found: bytes = fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024))
        return Path(os.fsdecode(found.rstrip(b"\0")))
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))


def _is_below(place: Path, mounts: Iterable[Path]) -> bool:
    return any(place.is_relative_to(mount) for mount in mounts)


def _number(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) < 1e15 else repr(value)


class ProgressFile:
    """The progress as ``N/M`` in a file that Argo reads every few seconds (docs/progress.md of Argo)."""

    def __init__(self, path: Path | None, total: int | None) -> None:
        self._path = path
        self._total = total
        self._shown = ""

    def show(self, progress: Progress, *, done: bool = False) -> None:
        """Write the progress, if the step and the number of steps are known. ``done``: all steps are complete."""
        step, total = progress.metrics.get("step"), self._total or _whole(progress.metrics.get("total_steps"))
        if done:
            whole = total or 100
            self._write(f"{whole}/{whole}")
        elif step is not None and total and math.isfinite(step):
            self._write(f"{max(0, min(int(step), total))}/{total}")

    def _write(self, text: str) -> None:
        if self._path is None or text == self._shown:
            return
        # Write in place with a single call, padded with empty lines. The folder may belong to another user, and a
        # reader could find an empty file after a truncation.
        line = f"{text}\n".ljust(len(self._shown) + 1, "\n").encode()
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
        except OSError:
            self._path = None  # not in a pod of Argo
            return
        try:
            os.pwrite(descriptor, line, 0)
        except OSError:
            return
        finally:
            os.close(descriptor)
        self._shown = text


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and math.isfinite(value) and value >= 1 else None
