"""Serialization of a job's status: ``status.tfDist``, its versions, and where it is kept if a definition prunes
it.

Every client with that right may write a status, as large as an object can be: nothing here raises anything else, and
no value costs more time than its length.

Definitions that others installed keep only the fields of their own operators. There the memory goes, as JSON text, into
one of those: a condition of a TFJob, an entry of ``controlledResources`` of a Volcano Job. It never goes into metadata:
it says what a job was admitted to, and the right to write a job does not include its status subresource.

Reading back what was written gives the same status, so that "nothing changed" can be seen and nothing is written then.
The form has a version. A controller reads its own and the one before; what a newer one wrote it leaves alone.
Replica sets are stored as ranges (``worker: "0-2,5"``), which keeps the status of a gang of thousands small.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any, Final

from tf_dist.core.model.fieldpath import list_items, mapping, mappings
from tf_dist.core.model.job import (
    MAX_REPLICAS,
    Document,
    ReplicaId,
    format_ranges,
    parse_ranges,
    replica_id,
    stored_index,
)
from tf_dist.core.model.status import (
    AcceptedSpec,
    Admission,
    Attempts,
    Counts,
    Failure,
    Phase,
    RefusedSpec,
    RestartBackoff,
    Status,
    StoredDocument,
)
from tf_dist.core.model.timestamps import format_micro_time, parse_time
from tf_dist.errors import TFDistError

_MOST: Final = 2**31 - 1
_MOST_GENERATION: Final = 2**63 - 1


class InvalidStatus(TFDistError):
    """A stored status holds something that no release of tf-dist wrote."""

    def __init__(self, path: str, wanted: str) -> None:
        hint = "unless it was written by hand, this is a defect; the job is left as it is until its status is mended"
        super().__init__(f"status.tfDist.{path} is no {wanted}", hint=hint)


def stored_mapping(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping under a key, an empty one if there is none; its keys are texts."""
    found = raw.get(key)
    if found is None:
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise InvalidStatus(key, "mapping of texts")
    return found


def stored_text(raw: Mapping[str, Any], key: str) -> str:
    """The text under a key, "" if there is none."""
    found = raw.get(key)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise InvalidStatus(key, "text")
    return found


def stored_number(raw: Mapping[str, Any], key: str, default: int = 0, most: int = _MOST) -> int:
    """The whole number under a key, ``default`` if there is none; never negative."""
    found = raw.get(key)
    if found is None:
        return default
    if type(found) is not int or not 0 <= found <= most:
        raise InvalidStatus(key, f"number from 0 to {most}")
    return found


def stored_numbers(raw: Mapping[str, Any], key: str, most: int = _MOST) -> dict[str, int]:
    """The numbers under a key, by name."""
    found = stored_mapping(raw, key)
    return {name: stored_number(found, name, most=most) for name in found}


FIELD: Final = "tfDist"
MEMORY_CONDITION: Final = "tf-dist.dev/Memory"
"""Field of a status: what tf-dist remembers, as a condition of a TFJob, where another definition prunes ``tfDist``."""
MEMORY_RESOURCE: Final = "tf-dist.dev/memory"
"""Field of a status: the same, among a Volcano Job's ``controlledResources``."""


def with_embedded_memory(status: Document, kind: str) -> Document:
    """The status with ``tfDist`` also in a field that another definition of ``kind`` keeps.

    A condition comes first, so that no printer column takes it for the state of the job.
    """
    text = json.dumps(status[FIELD], separators=(",", ":"))
    if kind == "Job":
        return {**status, "controlledResources": {**mapping(status.get("controlledResources")), MEMORY_RESOURCE: text}}
    condition = {"type": MEMORY_CONDITION, "status": "Unknown", "reason": "Stored", "message": text}
    return {**status, "conditions": [condition, *list_items(status.get("conditions"))]}


def has_embedded_memory(status: object) -> bool:
    """Whether a stored status has ``tfDist`` in such a field only."""
    raw = mapping(status)
    return FIELD not in raw and _text(raw) is not None


def with_restored_memory(status: object) -> Document:
    """A stored status with ``tfDist`` under its own key, wherever it was; without if there is none. Never raises."""
    raw = mapping(status)
    text = _text(raw)
    if text is None:
        return raw
    shown = _displayed(raw)
    if FIELD in raw:
        return shown
    try:
        return {**shown, FIELD: json.loads(text)}
    except (ValueError, RecursionError):
        return shown


def _text(status: Mapping[str, Any]) -> str | None:
    found = mapping(status.get("controlledResources")).get(MEMORY_RESOURCE)
    for condition in list_items(status.get("conditions")):
        if mapping(condition).get("type") == MEMORY_CONDITION:
            found = condition.get("message")
    return found if isinstance(found, str) else None


def _displayed(status: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the status that is displayed."""
    shown = dict(status)
    if "conditions" in status:
        shown["conditions"] = [
            c for c in list_items(status["conditions"]) if mapping(c).get("type") != MEMORY_CONDITION
        ]
    resources = mapping(status.get("controlledResources"))
    if MEMORY_RESOURCE in resources:
        shown["controlledResources"] = {key: value for key, value in resources.items() if key != MEMORY_RESOURCE}
    return shown


_FAILURE: Final = tuple(part.name for part in fields(Failure) if part.name not in ("code", "at"))
_COUNTS: Final = tuple(part.name for part in fields(Counts))

VERSION: Final = 1
"""The version of the form that is written; 0 had none."""

_SHOWN: Final = 40
_MAX_SHARED: Final = 1_000  # parts of a kind that many jobs have in common, and that are in memory once
_FEW: Final = 100  # replicas in a set that is such a part

NEWER_FORMAT: Final = "NewerStatusFormat"

# The reason of a job that another operator had ended (or stopped) before tf-dist came: its words are left alone.
ADOPTED: Final = "Adopted"
_PHASES_OF_OTHER_CONTROLLERS: Final = (
    ("Succeeded", Phase.COMPLETED),
    ("Completed", Phase.COMPLETED),
    ("Failed", Phase.FAILED),
    ("Terminated", Phase.TERMINATED),
    ("Aborted", Phase.ABORTED),
)
_RUNNING_ELSEWHERE: Final = frozenset({"Running", "Restarting"})


def stored_status(job: Document) -> Document:
    """A job's raw status with ``tfDist``, wherever its definition keeps that."""
    return with_restored_memory(job.get("status"))


class NewerStatusFormat(TFDistError):
    """A newer release of tf-dist wrote this status, in a form that may mean things that this one does not know."""


def check_version(stored: Document) -> None:
    """NewerFormat if a raw status is of a later form than this release knows."""
    raw = stored.get(FIELD)
    version = raw.get("version", 0) if isinstance(raw, Mapping) else 0
    if type(version) is not int or version > VERSION:
        raise NewerStatusFormat(
            f"its status has format {version!r} of a newer tf-dist, and this one knows formats up to {VERSION}",
            hint="upgrade this tf-dist; it leaves the job alone until then",
        )


def is_newer(job: Document) -> bool:
    """Whether a job's status is of a later form than this release knows."""
    try:
        check_version(stored_status(job))
    except NewerStatusFormat:
        return True
    return False


def partial_status(stored: Document) -> Status:
    """As much of a raw status of a newer form as is displayed."""
    raw = stored.get(FIELD)
    known: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    texts = {key: known[key] for key in ("reason", "message") if isinstance(known.get(key), str)}
    phase = next((one for one in Phase if one == known.get("phase")), Phase.PENDING)
    return Status(phase=phase, **texts)


def load_status(stored: Document) -> Status:
    """The memory in a job's raw status, of a form that is known (see ``check_version``); InvalidStatus if it is none.

    A job that another operator finished before tf-dist came has no memory, but is finished all the same.
    """
    raw = stored.get(FIELD)
    if not isinstance(raw, Mapping):
        return _status_of_other_controller(stored)
    return Status(
        phase=_load_phase(raw),
        reason=stored_text(raw, "reason"),
        message=stored_text(raw, "message"),
        since=parse_time(raw.get("since")),
        created=parse_time(raw.get("created")),
        start_time=parse_time(raw.get("startTime")),
        completion_time=parse_time(raw.get("completionTime")),
        attempts=_load_attempts(stored_mapping(raw, "attempts")),
        observed_replicas=_load_replicas(raw, "seen"),
        succeeded=_load_replicas(raw, "succeeded"),
        survivors=_load_replicas(raw, "survivors"),
        restarts=stored_numbers(raw, "restarts"),
        disruptions=stored_numbers(raw, "disruptions"),
        container_restarts=stored_number(raw, "containerRestarts"),
        retries=stored_number(raw, "retries"),
        commands=tuple(stored_text(raw, "commands").split()),
        policy_timeouts={key: parse_time(at) or 0.0 for key, at in stored_mapping(raw, "policyTimeouts").items()},
        backoffs=_load_pauses(stored_mapping(raw, "pauses")),
        admission=_load_admission(raw),
        last_sizes=stored_numbers(raw, "lastSizes", MAX_REPLICAS),
        fallback=stored_number(raw, "fallback"),
        fallback_from=stored_number(raw, "fallbackFrom"),
        requeues=stored_number(raw, "requeues"),
        not_before=parse_time(raw.get("notBefore")) or 0.0,
        refused_nodes={node: parse_time(at) or 0.0 for node, at in stored_mapping(raw, "refusedNodes").items()},
        counts=_load_counts(stored_mapping(raw, "replicas")),
        failure=_load_failure(raw),
        gang=stored_text(raw, "gang"),
        last_error=stored_text(raw, "obstacle"),
        accepted=_load_accepted(stored_mapping(raw, "acceptedSpec")),
        refused=_load_refused(stored_mapping(raw, "refusedSpec")),
        unconfirmed=stored_text(raw, "unconfirmed"),
        reported=parse_time(raw.get("reported")),
    )


def read_status(job: Document) -> Status:
    """The status of a stored job; NewerStatusFormat, InvalidStatus."""
    known: Status | None = getattr(job, "read_as", None)
    if known is not None:
        return known
    raw = stored_status(job)
    check_version(raw)
    found = load_status(raw)
    if isinstance(job, StoredDocument):
        job.read_as = found
    return found


def displayed_status(job: Document) -> Status:
    """The status of a stored job, or, where this release cannot load it, as much of it as is displayed."""
    try:
        return read_status(job)
    except (NewerStatusFormat, InvalidStatus):
        return partial_status(stored_status(job))


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
        "seen": _dump_replicas(status.observed_replicas),
        "succeeded": _dump_replicas(status.succeeded),
        "survivors": _dump_replicas(status.survivors),
        "restarts": dict(status.restarts),
        "disruptions": dict(status.disruptions),
        "containerRestarts": status.container_restarts,
        "retries": status.retries,
        "commands": " ".join(status.commands),
        "policyTimeouts": {key: _time(at) for key, at in status.policy_timeouts.items()},
        "pauses": {k: {"count": p.count, "until": format_micro_time(p.until)} for k, p in status.backoffs.items()},
        "admission": _dump_admission(status.admission),
        "lastSizes": dict(status.last_sizes),
        "fallback": status.fallback,
        "fallbackFrom": status.fallback_from,
        "requeues": status.requeues,
        "notBefore": _time(status.not_before or None),
        "refusedNodes": {node: _time(until) for node, until in status.refused_nodes.items()},
        "replicas": {type_: _nonzero(asdict(counts)) for type_, counts in status.counts.items()},
        "failure": _dump_failure(status.failure),
        "gang": status.gang,
        "obstacle": status.last_error,
        "acceptedSpec": _dump_accepted(status.accepted),
        "refusedSpec": None if status.refused is None else _nonzero(asdict(status.refused)),
        "unconfirmed": status.unconfirmed,
        "reported": _time(status.reported),
    }
    return _nonzero(full)


def _nonzero(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in shown.items() if value not in (None, "", 0, {})}


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else format_micro_time(seconds)


def _status_of_other_controller(stored: Document) -> Status:
    said = _words_of_other_controller(stored)
    for name, phase in _PHASES_OF_OTHER_CONTROLLERS:
        if name in said:
            ended = parse_time(stored.get("completionTime"))
            return Status(phase=phase, reason=ADOPTED, created=ended, completion_time=ended)
    return Status()


def runs_under_other_controller(stored: Document) -> bool:
    """Whether another operator ran the job (or restarted pods of it) when tf-dist came: its pods have their room.

    It says so in the status, which users of a job may not write.
    """
    return FIELD not in stored and not _RUNNING_ELSEWHERE.isdisjoint(_words_of_other_controller(stored))


def _words_of_other_controller(stored: Document) -> list[str]:
    """The state, the phase and the conditions that are true."""
    state = stored.get("state")
    true = [c.get("type") for c in mappings(stored.get("conditions")) if c.get("status") == "True"]
    # A v1alpha1 job is in the state Running from the moment it is set up.
    begins = state == "Running" and stored.get("phase") != "Running"
    true.append(state.get("phase") if isinstance(state, Mapping) else None if begins else state)
    return [word for word in true if isinstance(word, str)]


def _dump_attempts(attempts: Attempts) -> dict[str, Any]:
    pods = {str(replica): count for replica, count in attempts.pods.items()}
    return _nonzero({"job": attempts.job, "tasks": dict(attempts.tasks), "pods": pods})


_attempts_of_job: Final = lru_cache(maxsize=_MAX_SHARED)(Attempts)


def _load_attempts(raw: Mapping[str, Any]) -> Attempts:
    tasks, pods = stored_numbers(raw, "tasks"), {_replica(name): n for name, n in stored_numbers(raw, "pods").items()}
    job = stored_number(raw, "job", 1)
    return Attempts(job, tasks, pods) if tasks or pods else _attempts_of_job(job)


def _replica(name: str) -> ReplicaId:
    type_, _, written = name.rpartition("-")
    try:
        return replica_id(type_, stored_index(written))
    except ValueError as error:
        raise InvalidStatus("attempts.pods", "mapping of replicas") from error


def _load_phase(raw: Mapping[str, Any]) -> Phase:
    written = stored_text(raw, "phase") or Phase.PENDING.value
    try:
        return Phase(written)
    except ValueError as error:
        raise InvalidStatus("phase", f"phase of a job: {written[:_SHOWN]!r}") from error


def _load_pauses(raw: Mapping[str, Any]) -> dict[str, RestartBackoff]:
    backoffs = {key: stored_mapping(raw, key) for key in raw}
    return {
        key: RestartBackoff(stored_number(p, "count"), parse_time(p.get("until")) or 0.0) for key, p in backoffs.items()
    }


def _load_counts(raw: Mapping[str, Any]) -> Mapping[str, Counts]:
    return _counts(tuple((type_, *(stored_number(one, key) for key in _COUNTS)) for type_, one in _parts(raw)))


@lru_cache(maxsize=_MAX_SHARED)
def _counts(parts: tuple[tuple[Any, ...], ...]) -> Mapping[str, Counts]:
    return {type_: Counts(**dict(zip(_COUNTS, numbers, strict=True))) for type_, *numbers in parts}


def _parts(raw: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((key, stored_mapping(raw, key)) for key in raw)


def _dump_replicas(replicas: Iterable[ReplicaId]) -> dict[str, str]:
    by_type: dict[str, list[int]] = {}
    for replica in sorted(replicas):
        by_type.setdefault(replica.type, []).append(replica.index)
    return {type_: format_ranges(indexes) for type_, indexes in by_type.items()}


_shared_replicas: Final = lru_cache(maxsize=_MAX_SHARED)(frozenset[ReplicaId])


def _load_replicas(raw: Mapping[str, Any], key: str) -> frozenset[ReplicaId]:
    found: set[ReplicaId] = set()
    listed = stored_mapping(raw, key)
    try:
        for type_ in listed:
            found.update(replica_id(type_, index) for index in parse_ranges(stored_text(listed, type_)))
            if len(found) > MAX_REPLICAS:
                raise InvalidStatus(key, f"list of at most {MAX_REPLICAS} replicas")
    except ValueError as error:
        raise InvalidStatus(key, "mapping of ranges of replicas") from error
    return _shared_replicas(frozenset(found)) if len(found) <= _FEW else frozenset(found)


def _dump_admission(admission: Admission | None) -> dict[str, Any] | None:
    if admission is None:
        return None
    placement = {type_: dict(nodes) for type_, nodes in admission.placement.items()}
    shown = {
        "at": format_micro_time(admission.at),
        "placement": placement,
        # Zero is an answer here: a type of which there are no pods.
        "sizes": dict(admission.sizes),
        "started": dict(admission.started),
        "resized": _time(admission.resized),
        "complete": _time(admission.complete),
        "incomplete": _time(admission.incomplete),
        "by": admission.by,
    }
    return _nonzero(shown)


def _load_admission(memory: Mapping[str, Any]) -> Admission | None:
    if memory.get("admission") is None:
        return None
    raw = stored_mapping(memory, "admission")
    placed = stored_mapping(raw, "placement")
    placement = {type_: stored_numbers(placed, type_, MAX_REPLICAS) for type_ in placed}
    if sum(sum(nodes.values()) for nodes in placement.values()) > MAX_REPLICAS:
        raise InvalidStatus("admission.placement", f"place of at most {MAX_REPLICAS} pods")
    return Admission(
        at=parse_time(raw.get("at")) or 0.0,
        placement=placement,
        sizes=stored_numbers(raw, "sizes", MAX_REPLICAS),
        started=stored_numbers(raw, "started", MAX_REPLICAS),
        resized=parse_time(raw.get("resized")),
        complete=parse_time(raw.get("complete")),
        incomplete=parse_time(raw.get("incomplete")),
        by=stored_text(raw, "by"),
    )


def _dump_failure(failure: Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    shown = {**asdict(failure), "at": _time(failure.at)}
    return {key: value for key, value in shown.items() if value not in (None, "")}


def _load_failure(memory: Mapping[str, Any]) -> Failure | None:
    if memory.get("failure") is None:
        return None
    raw = stored_mapping(memory, "failure")
    code = raw.get("code")
    texts = {key: stored_text(raw, key) for key in _FAILURE}
    return Failure(**texts, code=code if type(code) is int else None, at=parse_time(raw.get("at")))


def _dump_accepted(spec: AcceptedSpec | None) -> dict[str, Any] | None:
    if spec is None:
        return None
    shown = {key: getattr(spec, key) for key in ("generation", "digest", "unknown", "document")}
    return _nonzero({**shown, "runtimeId": spec.runtime_id})


def _load_accepted(raw: Mapping[str, Any]) -> AcceptedSpec | None:
    if not raw:
        return None
    return AcceptedSpec(
        generation=stored_number(raw, "generation", most=_MOST_GENERATION),
        digest=stored_text(raw, "digest"),
        runtime_id=stored_text(raw, "runtimeId"),
        document=stored_mapping(raw, "document"),
        unknown=stored_text(raw, "unknown"),
    )


def _load_refused(raw: Mapping[str, Any]) -> RefusedSpec | None:
    if not raw:
        return None
    texts = {key: stored_text(raw, key) for key in ("digest", "message")}
    return RefusedSpec(generation=stored_number(raw, "generation", most=_MOST_GENERATION), **texts)
