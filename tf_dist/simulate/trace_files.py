"""Trace files: CSV with a line for each job, or YAML with a list of jobs."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sized
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import Any, Final

from tf_dist.core.model.fieldpath import suggestion
from tf_dist.core.model.gang_queue import Queue
from tf_dist.errors import InvalidJob, Problem
from tf_dist.simulate.placement import FreeCapacity, packed
from tf_dist.simulate.scenario import Cluster, Scenario, SimJob
from tf_dist.simulate.traces import TraceOptions, requested_unit_seconds

KINDS: Final = (".csv", ".yaml", ".yml")
_NUMBERS: Final = {"submit", "duration", "estimate", "checkpoint"}
_TEXTS: Final = {"name", "queue", "kind"}
_FIELDS: Final = tuple(field.name for field in fields(SimJob) if field.name != "annotations")
_POSITIVE: Final = {"duration", "estimate", "checkpoint", "workers", "least", "most"}
_MOST_SHOWN: Final = 20
_LARGEST: Final = 1e10
"""The largest number. As seconds, it is three centuries, and the dates of a simulation end with the year 9999."""
_MORE: Final = "(more)"


def load(path: Path, wish: TraceOptions) -> Scenario:
    """The trace of a file on a cluster of 8 nodes with 8 GPUs each, by default.

    Times are stretched to a requested load. Raises ``InvalidJob`` with all errors.
    """
    rows = _rows(path)
    per_node = 8 if wish.gpus is None else wish.gpus
    cluster = Cluster(nodes=wish.nodes or 8, gpus=per_node, cpu=wish.cpu or 16 * max(per_node, 1))
    problems: list[Problem] = []
    jobs = [_job(where, row, number, problems) for number, (where, row) in enumerate(rows)]
    if not problems:
        problems += _too_large((where for where, _ in rows), jobs, cluster)
    if not rows:
        problems.append(Problem(path.name, "holds no job", "give each job at least submit and duration, in seconds"))
    if problems:
        rest = problems[_MOST_SHOWN:]
        raise InvalidJob(problems[:_MOST_SHOWN] + [Problem(path.name, f"has {len(rest)} more problems")][: len(rest)])
    jobs = sorted(jobs, key=lambda job: job.submit)[: wish.jobs]
    # A file says nothing about quotas, so its queues have none, and share the cluster fairly.
    queues = tuple(Queue(name=name) for name in sorted({job.queue for job in jobs} - {""}))
    stretched = _stretched(jobs, cluster, wish)
    return Scenario(name=path.stem, cluster=cluster, jobs=stretched, queues=queues, seed=wish.seed)


def _rows(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """The entries of the file, each with its location."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidJob([Problem(str(path), f"cannot be read: {reason}")]) from error
    if path.suffix == ".csv":
        return _lines(path, text)
    import yaml

    try:
        content = yaml.load(text, Loader=_strict_loader())
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidJob([Problem(path.name, f"is not YAML: {error}")]) from error
    listed = content.get("jobs") if isinstance(content, dict) else content
    if not isinstance(listed, list) or not all(isinstance(row, dict) for row in listed):
        raise InvalidJob(
            [Problem(path.name, "is not a list of jobs", "write - {submit: 0, duration: 600, workers: 4}")]
        )
    return [(f"{path.name} jobs[{number}]", row) for number, row in enumerate(listed)]


def _strict_loader() -> type[Any]:
    """PyYAML's safe loader, which refuses keys that appear twice instead of keeping the last one."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(problem=f"{key.value} twice", problem_mark=key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader


def _lines(path: Path, text: str) -> list[tuple[str, Mapping[str, Any]]]:
    reader = csv.DictReader(StringIO(text, newline=""), restkey=_MORE, skipinitialspace=True)
    try:
        titles = list(reader.fieldnames or ())
        if twice := [title for title in dict.fromkeys(titles) if titles.count(title) > 1]:
            raise InvalidJob([Problem(f"{path.name} line 1", f"names {shown} twice", "keep one") for shown in twice])
        return [(f"{path.name} line {reader.line_num}", _written(row)) for row in reader]
    except csv.Error as error:
        raise InvalidJob([Problem(f"{path.name} line {reader.line_num}", f"is not CSV: {error}")]) from error


def _written(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a line, without empty fields."""
    return {key: value for key, value in row.items() if value not in (None, "")}


def _job(where: str, row: Mapping[str, Any], number: int, problems: list[Problem]) -> SimJob:
    before = len(problems)
    values: dict[str, Any] = {}
    for key, value in row.items():
        if key == _MORE:
            problems.append(Problem(where, "has more fields than the first line names"))
        elif key not in _FIELDS:
            unknown = key[:60] if isinstance(key, str) else _shown(key)
            hint = suggestion(unknown, _FIELDS, f"there are: {', '.join(_FIELDS)}")
            problems.append(Problem(where, f"has an unknown field {unknown}", hint))
        else:
            values[key] = _value(where, key, value, problems)
    problems += (Problem(where, f"has no {key}", "in seconds") for key in ("submit", "duration") if key not in row)
    if len(problems) > before:
        return SimJob(name="", submit=0.0, duration=1.0)
    size = values.get("workers", 1)
    job = SimJob(**{"name": f"job-{number}", "least": size, "most": size, **values})
    if not job.least <= job.workers <= job.most:
        problems.append(Problem(where, f"least {job.least} ≤ workers {job.workers} ≤ most {job.most} does not hold"))
    return job


def _value(where: str, key: str, value: Any, problems: list[Problem]) -> Any:
    if key in _TEXTS:
        # str() of a list or mapping could be very long: YAML aliases may repeat it.
        if value is None or _is_container(value) or _is_huge(value) or not str(value).isprintable():
            problems.append(Problem(where, f"{key} is {_shown(value)}, which is not a line of text"))
            return ""
        return str(value)
    try:
        found = float(value) if key in _NUMBERS else int(value)
        if isinstance(value, bool) or (isinstance(value, float) and found != value):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        problems.append(
            Problem(where, f"{key} is {_shown(value)}, which is not {'a number' if key in _NUMBERS else 'an integer'}")
        )
        return 1
    least = 0 if key not in _POSITIVE else 1e-9
    if not (-_LARGEST if key == "priority" else least) <= found < _LARGEST:
        problems.append(
            Problem(where, f"{key} is {_shown(found)}, which is {'too large' if found > 0 else 'too small'}")
        )
    return found


def _is_container(value: Any) -> bool:
    return isinstance(value, Sized) and not isinstance(value, str)


def _is_huge(value: Any) -> bool:
    """Whether Python may refuse to print an int, because of its number of digits."""
    return isinstance(value, int) and value.bit_length() > 256


def _shown(value: Any) -> str:
    """A value in a message. Values of a file may have any length."""
    if _is_huge(value):
        return "an integer of more than 256 bits"
    if _is_container(value):
        return f"a {type(value).__name__}"
    return repr(value if not isinstance(value, str) or len(value) <= 60 else f"{value[:57]}...")


def _too_large(places: Iterable[str], jobs: list[SimJob], cluster: Cluster) -> Iterable[Problem]:
    floor = FreeCapacity(cluster)
    for where, job in zip(places, jobs, strict=True):
        if packed(floor, job, job.workers) is None:
            room = f"{cluster.nodes} nodes with {cluster.gpus} GPUs and {cluster.cpu} cpu"
            need = f"{job.workers} × ({job.gpus} GPU, {job.cpu} cpu) and {job.ps} × ({job.ps_cpu} cpu)"
            yield Problem(where, f"does not fit: it needs {need}, the cluster has {room}", "--nodes, --gpus, --cpu")


def _stretched(jobs: list[SimJob], cluster: Cluster, wish: TraceOptions) -> tuple[SimJob, ...]:
    span = max(job.submit for job in jobs)
    if wish.load is None or not span:
        return tuple(jobs)
    factor = requested_unit_seconds(jobs, cluster) / (cluster.units * wish.load) / span
    return tuple(replace(job, submit=job.submit * factor) for job in jobs)
