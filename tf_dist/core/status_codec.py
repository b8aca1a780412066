"""The memory of a job in its stored form: ``status.tfDist``, beside what the job's dialect shows.

Reading back what was written gives the same status, so that "nothing changed" can be seen and nothing is written then.
The form has a version. A driver reads its own and the one before; what a newer one wrote it leaves alone.
Replica sets are stored as ranges (``worker: "0-2,5"``), which keeps the status of a gang of thousands small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final, TypeVar

from tf_dist.core.model import Document, ReplicaId
from tf_dist.core.pruned_status import FIELD as FIELD
from tf_dist.core.pruned_status import restored
from tf_dist.core.status import (
    AcceptedSpec,
    Admission,
    Attempts,
    Counts,
    Failure,
    Pause,
    Phase,
    RefusedSpec,
    Status,
)
from tf_dist.core.times import format_micro_time, parse_time
from tf_dist.errors import TFDistError

_Part = TypeVar("_Part", AcceptedSpec, RefusedSpec)

VERSION: Final = 1
"""The version of the form that is written; 0 had none."""

NEWER_FORMAT: Final = "NewerStatusFormat"

# The reason of a job that another operator had ended (or stopped) before tf-dist came: its words are left alone.
ADOPTED: Final = "Adopted"
_FOREIGN: Final = (
    ("Succeeded", Phase.COMPLETED),
    ("Completed", Phase.COMPLETED),
    ("Failed", Phase.FAILED),
    ("Terminated", Phase.TERMINATED),
    ("Aborted", Phase.ABORTED),
)


def stored_status(job: Document) -> Document:
    """A job's raw status with its memory, wherever its definition keeps that."""
    return restored(job.get("status"))


class NewerFormat(TFDistError):
    """A newer release of tf-dist wrote this status, in a form that may mean things that this one does not know."""


def check_version(stored: Document) -> None:
    """NewerFormat if a raw status is of a later form than this release knows."""
    raw = stored.get(FIELD)
    version = raw.get("version", 0) if isinstance(raw, Mapping) else 0
    if type(version) is not int or version > VERSION:
        raise NewerFormat(
            f"its status has format {version!r} of a newer tf-dist, and this one knows formats up to {VERSION}",
            hint="upgrade this tf-dist; it leaves the job alone until then",
        )


def is_newer(job: Document) -> bool:
    """Whether a job's status is of a later form than this release knows."""
    try:
        check_version(stored_status(job))
    except NewerFormat:
        return True
    return False


def glimpse(stored: Document) -> Status:
    """As much of a raw status of a newer form as people are shown."""
    raw = stored.get(FIELD)
    known: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    texts = {key: known[key] for key in ("reason", "message", "driver") if isinstance(known.get(key), str)}
    phase = known.get("phase")
    return Status(phase=Phase(phase) if phase in set(Phase) else Phase.PENDING, **texts)


def load_status(stored: Document) -> Status:
    """The memory in a job's raw status, of a form that is known (see ``check_version``).

    A job that another operator finished before tf-dist came has no memory, but is finished all the same.
    """
    raw = stored.get(FIELD)
    if not isinstance(raw, Mapping):
        return _foreign(stored)
    return Status(
        phase=Phase(raw.get("phase", Phase.PENDING)),
        reason=raw.get("reason", ""),
        message=raw.get("message", ""),
        since=parse_time(raw.get("since")),
        created=parse_time(raw.get("created")),
        start_time=parse_time(raw.get("startTime")),
        completion_time=parse_time(raw.get("completionTime")),
        attempts=_load_attempts(raw.get("attempts") or {}),
        seen=_load_replicas(raw.get("seen") or {}),
        succeeded=_load_replicas(raw.get("succeeded") or {}),
        restarts=dict(raw.get("restarts") or {}),
        disruptions=dict(raw.get("disruptions") or {}),
        container_restarts=raw.get("containerRestarts", 0),
        pauses={k: Pause(v["count"], parse_time(v["until"]) or 0.0) for k, v in (raw.get("pauses") or {}).items()},
        admission=_load_admission(raw.get("admission")),
        last_sizes=dict(raw.get("lastSizes") or {}),
        requeues=raw.get("requeues", 0),
        not_before=parse_time(raw.get("notBefore")) or 0.0,
        refused_nodes={node: parse_time(until) or 0.0 for node, until in (raw.get("refusedNodes") or {}).items()},
        counts={type_: Counts(**counts) for type_, counts in (raw.get("replicas") or {}).items()},
        failure=_load_failure(raw.get("failure")),
        gang=raw.get("gang", ""),
        driver=raw.get("driver", ""),
        obstacle=raw.get("obstacle", ""),
        accepted=_load_part(AcceptedSpec, raw.get("acceptedSpec")),
        refused=_load_part(RefusedSpec, raw.get("refusedSpec")),
        reported=parse_time(raw.get("reported")),
    )


def dump_status(status: Status) -> dict[str, Any]:
    """The stored form; empty parts are left out."""
    full = {
        "version": VERSION,
        "phase": status.phase.value,
        "reason": status.reason,
        "message": status.message,
        "since": _time(status.since),
        "created": _time(status.created),
        "startTime": _time(status.start_time),
        "completionTime": _time(status.completion_time),
        "attempts": _dump_attempts(status.attempts),
        "seen": _dump_replicas(status.seen),
        "succeeded": _dump_replicas(status.succeeded),
        "restarts": dict(status.restarts),
        "disruptions": dict(status.disruptions),
        "containerRestarts": status.container_restarts,
        "pauses": {k: {"count": p.count, "until": format_micro_time(p.until)} for k, p in status.pauses.items()},
        "admission": _dump_admission(status.admission),
        "lastSizes": dict(status.last_sizes),
        "requeues": status.requeues,
        "notBefore": _time(status.not_before or None),
        "refusedNodes": {node: _time(until) for node, until in status.refused_nodes.items()},
        "replicas": {type_: _nonzero(asdict(counts)) for type_, counts in status.counts.items()},
        "failure": _dump_failure(status.failure),
        "gang": status.gang,
        "driver": status.driver,
        "obstacle": status.obstacle,
        "acceptedSpec": _dump_part(status.accepted),
        "refusedSpec": _dump_part(status.refused),
        "reported": _time(status.reported),
    }
    return _nonzero(full)


def _nonzero(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value not in (None, "", 0, {})}


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else format_micro_time(seconds)


def _foreign(stored: Document) -> Status:
    conditions = stored.get("conditions") or ()
    true = {c.get("type") for c in conditions if isinstance(c, Mapping) and c.get("status") == "True"}
    state = stored.get("state")
    if isinstance(state, Mapping):
        true.add(state.get("phase"))
    for name, phase in _FOREIGN:
        if name in true or state == name:
            ended = parse_time(stored.get("completionTime"))
            return Status(phase=phase, reason=ADOPTED, created=ended, completion_time=ended)
    return Status()


def _dump_attempts(attempts: Attempts) -> dict[str, Any]:
    pods = {str(replica): count for replica, count in attempts.pods.items()}
    return _nonzero({"job": attempts.job, "tasks": dict(attempts.tasks), "pods": pods})


def _load_attempts(raw: Mapping[str, Any]) -> Attempts:
    pods = {_replica(name): count for name, count in (raw.get("pods") or {}).items()}
    return Attempts(raw.get("job", 1), dict(raw.get("tasks") or {}), pods)


def _replica(name: str) -> ReplicaId:
    type_, _, index = name.rpartition("-")
    return ReplicaId(type_, int(index))


def _dump_replicas(replicas: Iterable[ReplicaId]) -> dict[str, str]:
    by_type: dict[str, list[int]] = {}
    for replica in sorted(replicas):
        by_type.setdefault(replica.type, []).append(replica.index)
    return {type_: format_ranges(indexes) for type_, indexes in by_type.items()}


def _load_replicas(raw: Mapping[str, str]) -> frozenset[ReplicaId]:
    return frozenset(ReplicaId(type_, index) for type_, text in raw.items() for index in parse_ranges(text))


def format_ranges(indexes: Iterable[int]) -> str:
    """Sorted numbers as ``0-2,5``."""
    runs: list[list[int]] = []
    for index in indexes:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in runs)


def parse_ranges(text: str) -> Iterable[int]:
    """The numbers of ``0-2,5``."""
    for part in text.split(","):
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


def _dump_admission(admission: Admission | None) -> dict[str, Any] | None:
    if admission is None:
        return None
    placement = {type_: dict(nodes) for type_, nodes in admission.placement.items()}
    fields = {
        "at": format_micro_time(admission.at),
        "placement": placement,
        # Zero is an answer here: a type of which there are no pods.
        "sizes": dict(admission.sizes),
        "resized": _time(admission.resized),
        "complete": _time(admission.complete),
        "by": admission.by,
    }
    return _nonzero(fields)


def _load_admission(raw: Mapping[str, Any] | None) -> Admission | None:
    if raw is None:
        return None
    return Admission(
        at=parse_time(raw.get("at")) or 0.0,
        placement=raw.get("placement") or {},
        sizes=dict(raw.get("sizes") or {}),
        resized=parse_time(raw.get("resized")),
        complete=parse_time(raw.get("complete")),
        by=raw.get("by", ""),
    )


def _dump_failure(failure: Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    fields = {**asdict(failure), "at": _time(failure.at)}
    return {key: value for key, value in fields.items() if value not in (None, "")}


def _load_failure(raw: Mapping[str, Any] | None) -> Failure | None:
    return None if raw is None else Failure(**{**raw, "at": parse_time(raw.get("at"))})


def _dump_part(part: AcceptedSpec | RefusedSpec | None) -> dict[str, Any] | None:
    return None if part is None else _nonzero(asdict(part))


def _load_part(kind: type[_Part], raw: object) -> _Part | None:
    if not isinstance(raw, Mapping):
        return None
    generation = raw.get("generation")
    fields: dict[str, Any] = {key: value for key, value in raw.items() if isinstance(value, str)}
    known = {key: value for key, value in fields.items() if key in kind.__slots__}
    return kind(**{"digest": "", **known, "generation": generation if type(generation) is int else 0})
