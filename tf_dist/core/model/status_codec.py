"""Serialization of a job's status: ``status.tfDist``, its version, and where it is stored if a definition prunes it.

The type of a field decides how the field is stored (``_BY_TYPE``), under its name in camelCase. Reading a written
status returns an equal status, so an unchanged status is recognized and not written. Sets of replicas are stored as
ranges (``worker: "0-2,5"``), which keeps the status of a gang of thousands small. A controller does not touch jobs
whose status has a newer format.

Every client that may write a status can store anything in it, up to the maximum size of an object. Readers raise only
``InvalidStatus`` and ``NewerStatusFormat``, and reading is linear in the size of the input.

Definitions of other operators keep only the fields of these operators. With such a definition, the memory is stored as
JSON text in one of the fields: a condition of a TFJob, or an entry of ``controlledResources`` of a Volcano Job. The
memory is never stored in metadata, because it contains the admission, and users who may write a job may not write its
status.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, Final, get_args, get_type_hints

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
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import (
    FIRST_ATTEMPTS,
    MAX_COUNT,
    AcceptedSpec,
    Admission,
    Attempts,
    Counts,
    Failure,
    Phase,
    RefusedSpec,
    Status,
    StoredDocument,
)
from tf_dist.core.model.timestamps import format_micro_time, parse_time
from tf_dist.core.model.usage import Spent, Usage
from tf_dist.errors import TFDistError

FIELD: Final = "tfDist"
VERSION: Final = 1
"""The version of the format that is written. A status without a version has this one."""

_MAX_AMOUNT: Final = 1e15
_MAX_GENERATION: Final = 2**63 - 1
_MAX_SHOWN: Final = 120  # characters of a path or a value in a message
_MAX_SHARED: Final = 1_000  # cached values that many jobs share
_FEW: Final = 100  # maximum number of replicas in a shared set


class InvalidStatus(TFDistError):
    """A stored status contains a value that no release of tf-dist wrote."""

    def __init__(self, path: str, wanted: str) -> None:
        hint = "unless it was written by hand, this is a defect; the job is not changed until its status is corrected"
        super().__init__(f"status.tfDist{path[:_MAX_SHOWN]} must be {wanted}", hint=hint)


# -- codecs of values --


@dataclass(frozen=True, slots=True)
class Codec:
    """How a value is stored."""

    load: Callable[[Any, str], Any]
    """Decode a stored value, which is not null, at a path, or raise InvalidStatus. None: as if nothing was stored."""
    dump: Callable[[Any], Any]
    """Encode a value, which is not None."""
    absent: Any = None
    """The stored form that is omitted, and the value of a field without a default if nothing is stored."""


def _load_mapping(raw: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping) or not all(isinstance(key, str) for key in raw):
        raise InvalidStatus(path, "a mapping of texts")
    return raw


def _load_text(raw: Any, path: str) -> str:
    if not isinstance(raw, str):
        raise InvalidStatus(path, "text")
    return raw


def _number(most: int = MAX_COUNT) -> Codec:
    def load(raw: Any, path: str) -> int:
        if type(raw) is not int or not 0 <= raw <= most:
            raise InvalidStatus(path, f"a number from 0 to {most}")
        return raw

    return Codec(load, int, absent=0)


def _load_amount(raw: Any, path: str) -> float:
    if type(raw) not in (int, float) or not 0 <= raw <= _MAX_AMOUNT:
        raise InvalidStatus(path, f"a number from 0 to {_MAX_AMOUNT:g}")
    return float(raw)


def _load_phase(raw: Any, path: str) -> Phase:
    try:
        return Phase(_load_text(raw, path))
    except ValueError as error:
        raise InvalidStatus(path, f"a phase of a job, not {raw[:_MAX_SHOWN]!r}") from error


_MAPPING: Final = Codec(_load_mapping, dict, absent={})
_TEXT: Final = Codec(_load_text, str, absent="")
_WORDS: Final = Codec(lambda raw, path: tuple(_load_text(raw, path).split()), " ".join, absent="")
_NUMBER: Final = _number()
_GENERATION: Final = _number(_MAX_GENERATION)
_AMOUNT: Final = Codec(_load_amount, float, absent=0.0)
_EXIT_CODE: Final = Codec(lambda raw, _: raw if type(raw) is int else None, int)
_TIME: Final = Codec(lambda raw, _: parse_time(raw), format_micro_time)
# A time in a field that is never None: 0.0 means no time.
_MOMENT: Final = Codec(_TIME.load, lambda at: format_micro_time(at) if at else 0.0, absent=0.0)
_PHASE: Final = Codec(_load_phase, str)


def _mapping_of(codec: Codec) -> Codec:
    """Values by name; null values are omitted."""

    def load(raw: Any, path: str) -> dict[str, Any]:
        found = ((key, value) for key, value in _load_mapping(raw, path).items() if value is not None)
        loaded = {key: codec.load(value, f"{path}.{key}") for key, value in found}
        return {key: value for key, value in loaded.items() if value is not None}

    return Codec(load, lambda values: {key: codec.dump(value) for key, value in values.items()}, absent={})


def _record(make: type[Any], **codecs: Codec) -> Codec:
    """A dataclass: each of its fields under its name in camelCase. ``codecs``: fields that are not stored by type."""
    hints = get_type_hints(make)
    rows = [
        (one.name, _camel_case(one.name), codecs.get(one.name) or _by_type(hints[one.name])) for one in fields(make)
    ]
    required = [f.name for f in fields(make) if f.default is MISSING and f.default_factory is MISSING]
    absent = {name: codec.absent for name, _, codec in rows if name in required}

    def load(raw: Any, path: str) -> Any:
        stored, found = _load_mapping(raw, path), dict(absent)
        for name, key, codec in rows:
            value = stored.get(key)
            if value is not None and (loaded := codec.load(value, f"{path}.{key}")) is not None:
                found[name] = loaded
        return make(**found)

    def dump(value: Any) -> dict[str, Any]:
        values = ((key, codec, getattr(value, name)) for name, key, codec in rows)
        dumped = ((key, codec, codec.dump(one)) for key, codec, one in values if one is not None)
        return {key: one for key, codec, one in dumped if one != codec.absent}

    return Codec(load, dump)


def _by_type(hint: Any) -> Codec:
    """How a value of a type is stored. A record that is never None is omitted if it is empty."""
    if hint in _BY_TYPE:
        return _BY_TYPE[hint]
    inner = get_args(hint)
    if is_dataclass(hint):
        return replace(_record(hint), absent={})  # type: ignore[arg-type]
    return _record(inner[0]) if type(None) in inner else _mapping_of(_record(inner[1]))


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _load_replicas(raw: Any, path: str) -> frozenset[ReplicaId]:
    found: set[ReplicaId] = set()
    try:
        for type_, ranges in _load_mapping(raw, path).items():
            found.update(replica_id(type_, index) for index in parse_ranges(_load_text(ranges, f"{path}.{type_}")))
            if len(found) > MAX_REPLICAS:
                raise InvalidStatus(path, f"a list of at most {MAX_REPLICAS} replicas")
    except ValueError as error:
        raise InvalidStatus(path, "a mapping of ranges of replicas") from error
    return _shared_replicas(frozenset(found)) if len(found) <= _FEW else frozenset(found)


def _dump_replicas(replicas: frozenset[ReplicaId]) -> dict[str, str]:
    by_type: dict[str, list[int]] = {}
    for replica in sorted(replicas):
        by_type.setdefault(replica.type, []).append(replica.index)
    return {type_: format_ranges(indexes) for type_, indexes in by_type.items()}


def _load_attempts_of_pods(raw: Any, path: str) -> dict[ReplicaId, int]:
    found = {}
    for name, number in _NUMBERS.load(raw, path).items():
        type_, _, index = name.rpartition("-")
        try:
            found[replica_id(type_, stored_index(index))] = number
        except ValueError as error:
            raise InvalidStatus(path, "a mapping of replicas") from error
    return found


def _load_placement(raw: Any, path: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = _mapping_of(_SIZES).load(raw, path)
    if sum(sum(nodes.values()) for nodes in found.values()) > MAX_REPLICAS:
        raise InvalidStatus(path, f"assigned nodes of at most {MAX_REPLICAS} pods")
    return found


_NUMBERS: Final = _mapping_of(_NUMBER)
_SIZES: Final = _mapping_of(_number(MAX_REPLICAS))
_TIMES: Final = _mapping_of(_TIME)
_REPLICAS: Final = Codec(_load_replicas, _dump_replicas, absent={})
_BY_TYPE: Final[Mapping[Any, Codec]] = {
    str: _TEXT,
    int: _NUMBER,
    float: _MOMENT,
    float | None: _TIME,
    Phase: _PHASE,
    tuple[str, ...]: _WORDS,
    frozenset[ReplicaId]: _REPLICAS,
    Mapping[str, int]: _NUMBERS,
    Mapping[str, float]: _TIMES,
    Document: _MAPPING,
}
"""How the types of fields are stored. Numbers with a fraction are times, unless ``_record`` gets another codec."""

_PODS: Final = Codec(
    _load_attempts_of_pods, lambda pods: {str(replica): count for replica, count in pods.items()}, absent={}
)
_ATTEMPTS: Final = _record(Attempts, pods=_PODS)
_COUNTS: Final = _mapping_of(_record(Counts))
_ADMISSION: Final = _record(
    Admission, placement=replace(_mapping_of(_SIZES), load=_load_placement), sizes=_SIZES, started=_SIZES
)
_SPENT: Final = replace(_record(Spent, held=_AMOUNT, trained=_AMOUNT, lost=_AMOUNT), absent={})
_USAGE: Final = replace(_record(Usage, gpus_held=_AMOUNT, waited=_AMOUNT, replicas=_SPENT, gpus=_SPENT), absent={})

# Values that many jobs share are kept in memory once.
_shared_replicas: Final = lru_cache(maxsize=_MAX_SHARED)(frozenset[ReplicaId])
_shared_counts: Final = lru_cache(maxsize=_MAX_SHARED)(dict[str, Counts])


def _load_shared_attempts(raw: Any, path: str) -> Attempts:
    found: Attempts = _ATTEMPTS.load(raw, path)
    return FIRST_ATTEMPTS if found == FIRST_ATTEMPTS else found


def _load_shared_counts(raw: Any, path: str) -> Mapping[str, Counts]:
    return _shared_counts(tuple(_COUNTS.load(raw, path).items()))


_STATUS: Final = _record(
    Status,
    attempts=replace(_ATTEMPTS, load=_load_shared_attempts),
    admission=_ADMISSION,
    last_sizes=_SIZES,
    failure=_record(Failure, code=_EXIT_CODE),
    accepted_spec=_record(AcceptedSpec, generation=_GENERATION),
    refused_spec=_record(RefusedSpec, generation=_GENERATION),
    counts=replace(_COUNTS, load=_load_shared_counts),
    usage=_USAGE,
)

SHOWN: Final = ("message", "counts", "observed_replicas", "succeeded", "container_restarts", "usage")
"""The fields on which no decision depends: a difference in them is written within seconds.

If ``succeeded`` were written at once, a gang of 8 replicas that end together would cost 11 status writes instead of 5.
"""
_BLANK: Final[Mapping[str, Any]] = dict.fromkeys(SHOWN)


def memory(status: Status) -> Status:
    """The part of a status on which decisions depend, for comparison: a difference is written at once."""
    admission = status.admission
    if admission is not None:  # whether all pods have their nodes is observed again in the pods
        admission = replace(admission, complete=None, incomplete=None)
    # The text of an error may differ after each try.
    return replace(status, admission=admission, last_error=str(bool(status.last_error)), **_BLANK)


def dump_status(status: Status) -> dict[str, Any]:
    """The stored form; empty fields are omitted."""
    return {"version": VERSION, **_STATUS.dump(status)}


def load_status(stored: Document) -> Status:
    """The memory in a job's raw status, whose version is known (see ``check_version``). Raises InvalidStatus.

    A job that ended under another operator has no memory, but is read as finished.
    """
    raw = stored.get(FIELD)
    if not isinstance(raw, Mapping):
        said = _words_of_other_controller(stored)
        for name, phase in _PHASES_OF_OTHER_CONTROLLERS:
            if name in said:
                ended = parse_time(stored.get("completionTime"))
                return Status(phase=phase, reason=Reason.ADOPTED, created=ended, completion_time=ended)
        return Status()
    status: Status = _STATUS.load(raw, "")
    return status


# -- versions --


class NewerStatusFormat(TFDistError):
    """A newer release of tf-dist wrote this status, in a format that this release does not know."""


def check_version(stored: Document) -> None:
    """NewerStatusFormat if a raw status has a newer format than this release knows."""
    raw = stored.get(FIELD)
    version = raw.get("version", VERSION) if isinstance(raw, Mapping) else VERSION
    if type(version) is not int or version > VERSION:
        raise NewerStatusFormat(
            f"its status has format {version!r} of a newer tf-dist, and this one knows formats up to {VERSION}",
            hint="upgrade this tf-dist; it leaves the job alone until then",
        )


def read_status(job: Document) -> Status:
    """The status of a stored job. Raises NewerStatusFormat and InvalidStatus."""
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
    """The status of a stored job; if this release cannot load it, only its displayed part."""
    try:
        return read_status(job)
    except (NewerStatusFormat, InvalidStatus):
        return partial_status(stored_status(job))


def partial_status(stored: Document) -> Status:
    """The displayed part of a raw status of a newer format."""
    known = mapping(stored.get(FIELD))
    texts = {key: known[key] for key in ("reason", "message") if isinstance(known.get(key), str)}
    phase = next((one for one in Phase if one == known.get("phase")), Phase.PENDING)
    return Status(phase=phase, **texts)


# -- the memory in a field of another definition --

MEMORY_CONDITION: Final = "tf-dist.dev/Memory"
"""Condition of a TFJob: the memory of the controller, where the installed definition prunes ``status.tfDist``."""
MEMORY_RESOURCE: Final = "tf-dist.dev/memory"
"""Entry of ``controlledResources`` of a Volcano Job: the memory of the controller, where the definition prunes it."""


def stored_status(job: Document) -> Document:
    """A job's raw status with ``tfDist``, from whichever field its definition keeps."""
    return with_restored_memory(job.get("status"))


def with_embedded_memory(status: Document, kind: str) -> Document:
    """The status with ``tfDist`` also in a field that another definition of ``kind`` keeps.

    The condition comes first, because a printer column may show the last condition as the state of the job.
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
    """A stored status with ``tfDist``, if any field contains it, under its own key. Never raises."""
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


# -- jobs of other controllers --

_PHASES_OF_OTHER_CONTROLLERS: Final = (
    ("Succeeded", Phase.COMPLETED),
    ("Completed", Phase.COMPLETED),
    ("Failed", Phase.FAILED),
    ("Terminated", Phase.TERMINATED),
    ("Aborted", Phase.ABORTED),
)
_RUNNING_ELSEWHERE: Final = frozenset({"Running", "Restarting"})


def runs_under_other_controller(stored: Document) -> bool:
    """Whether another operator ran the job (or restarted its pods) before tf-dist, so that its pods count as admitted.

    This is read from the status, which users of a job may not write.
    """
    return FIELD not in stored and not _RUNNING_ELSEWHERE.isdisjoint(_words_of_other_controller(stored))


def _words_of_other_controller(stored: Document) -> list[str]:
    """The state or phase of a raw status, and its true conditions."""
    state = stored.get("state")
    true = [c.get("type") for c in mappings(stored.get("conditions")) if c.get("status") == "True"]
    # A v1alpha1 job has the state Running as soon as it is set up.
    begins = state == "Running" and stored.get("phase") != "Running"
    true.append(state.get("phase") if isinstance(state, Mapping) else None if begins else state)
    return [word for word in true if isinstance(word, str)]
