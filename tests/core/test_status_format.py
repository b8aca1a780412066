"""The stored form of a job's memory: a driver reads what it writes itself and what the release before it wrote.

Who changes the form (adds a field, renames one, gives one another meaning) raises ``VERSION`` in ``core.status_codec``,
keeps reading the version before, and adds the golden file of the new one: ``TF_DIST_REGENERATE=1 pytest`` this file.
Golden files of older versions are never written again.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tf_dist.core.model import ReplicaId
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
from tf_dist.core.status_codec import VERSION, NewerFormat, check_version, dump_status, glimpse, is_newer, load_status

GOLDEN: Final = Path(__file__).parent / "golden" / "status"
# What columns and autoscalers read; it is made from the rest.
SHOWN: Final = {"state", "ready", "why", "selector"}
WORKER: Final = ReplicaId("worker", 1)
# Every field has a value that is not its default: a field that is not here is a field that no golden file knows.
FULL: Final = Status(
    phase=Phase.RUNNING,
    reason="JobRunning",
    message="2 of 3 replicas are running",
    since=1_800_000_001.5,
    created=1_800_000_000.0,
    start_time=1_800_000_002.0,
    completion_time=1_800_000_003.0,
    attempts=Attempts(job=2, tasks={"worker": 3}, pods={WORKER: 4}),
    seen=frozenset({WORKER, ReplicaId("ps", 0)}),
    succeeded=frozenset({ReplicaId("worker", 0)}),
    restarts={"PodFailed": 5},
    disruptions={"EvictionByEvictionAPI": 11},
    container_restarts=6,
    pauses={"worker-1": Pause(7, 1_800_000_004.0)},
    admission=Admission(
        at=1_800_000_005.0,
        placement={"worker": {"n1": 2}},
        sizes={"worker": 2, "ps": 0},
        resized=1_800_000_006.0,
        complete=1_800_000_007.0,
        incomplete=1_800_000_011.0,
        by="kueue",
    ),
    last_sizes={"worker": 3},
    requeues=8,
    not_before=1_800_000_008.0,
    refused_nodes={"n4": 1_800_000_011.0},
    counts={"worker": Counts(pending=1, running=2, ready=3, succeeded=4, failed=5, terminating=6)},
    failure=Failure(
        event="PodFailed",
        replica="worker-1",
        code=137,
        reason="OOMKilled",
        message="why",
        at=1_800_000_009.0,
        node="n3",
    ),
    gang="volcano",
    driver="default/driver",
    obstacle="quota",
    accepted=AcceptedSpec(generation=9, digest="abc", data="data"),
    refused=RefusedSpec(generation=10, digest="def", message="spec.x: unknown key"),
    unconfirmed="mnist-worker-1 on n3",
    reported=1_800_000_010.0,
)


def left_out(value: Any, place: str = "status") -> list[str]:
    """The fields of dataclasses in ``value`` that have their defaults, or nothing."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = []
        for field in dataclasses.fields(value):
            inner, default = getattr(value, field.name), field.default
            if inner == default or inner in (None, "", 0, {}, frozenset()):
                found.append(f"{place}.{field.name}")
            found += left_out(inner, f"{place}.{field.name}")
        return found
    if isinstance(value, Mapping):
        return [one for key, inner in value.items() for one in left_out(inner, f"{place}[{key}]")]
    return []


def test_the_example_has_every_field() -> None:
    assert left_out(FULL) == []


def test_the_form_has_not_changed_without_a_new_version() -> None:
    file = GOLDEN / f"v{VERSION}" / "full.json"
    written = json.loads(json.dumps({"tfDist": dump_status(FULL)}))
    if os.environ.get("TF_DIST_REGENERATE"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    assert written == json.loads(file.read_text())
    assert load_status(written) == FULL


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*/*.json")), ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_nothing_is_lost_of_what_older_releases_wrote(file: Path) -> None:
    stored = json.loads(file.read_text())
    check_version(stored)
    memory = {key: value for key, value in stored["tfDist"].items() if key not in SHOWN}
    assert dump_status(load_status(stored)) == {**memory, "version": VERSION}


def test_there_are_examples_of_every_version() -> None:
    assert {folder.name for folder in GOLDEN.iterdir()} == {f"v{number}" for number in range(VERSION + 1)}


@pytest.mark.parametrize("version", [VERSION + 1, 10**30, "2", 1.5, None, [], True])
def test_a_newer_form_is_not_taken_for_a_known_one(version: object) -> None:
    stored = {"tfDist": {**dump_status(FULL), "version": version, "phase": "Dreaming", "message": {"new": 1}}}
    with pytest.raises(NewerFormat, match="newer tf-dist"):
        check_version(stored)
    assert is_newer({"metadata": {}, "status": stored})
    assert glimpse(stored) == Status(reason="JobRunning", driver="default/driver")


@pytest.mark.parametrize("stored", [{}, {"tfDist": {}}, {"tfDist": None}, {"tfDist": {"version": 0}}])
def test_what_has_no_version_is_of_before_there_were_any(stored: Any) -> None:
    check_version(stored)
    assert not is_newer({"status": stored})
