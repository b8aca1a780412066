from __future__ import annotations

import json
from dataclasses import astuple
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import START, v1_job
from tf_dist.core.model.job import ReplicaId
from tf_dist.core.model.status import (
    ALLOWED_TRANSITIONS,
    LIVE,
    NO_PODS,
    STOPPED,
    SUCCESSFUL,
    TERMINAL,
    AcceptedSpec,
    Admission,
    Attempts,
    Counts,
    Failure,
    Phase,
    RefusedSpec,
    RestartBackoff,
    Status,
)
from tf_dist.core.model.status_codec import dump_status, format_ranges, load_status, parse_ranges
from tf_dist.core.model.timestamps import round_time
from tf_dist.core.reconciler.status_writer import ready_text

# Row: from; column: to, in the order of the enum: P R X=Restarting A a=Aborted C c=Completed T t=Terminated F.
TABLE = """
    Pending     . y y y n y n y n y
    Running     y . y y n y n y n y
    Restarting  y y . y n y n y n y
    Aborting    y n n . y n n n n n
    Aborted     y n n n . n n n n n
    Completing  n n n n n . y n n n
    Completed   n n n n n n . n n n
    Terminating n n n n n n n . y n
    Terminated  n n n n n n n n . n
    Failed      n n n n n n n n n .
"""
ROWS = {row.split()[0]: row.split()[1:] for row in TABLE.strip().splitlines()}


@pytest.mark.parametrize(("before", "after"), list(product(Phase, Phase)))
def test_table_of_transitions(before: Phase, after: Phase) -> None:
    cell = ROWS[before][list(Phase).index(after)]
    if cell == "n":
        with pytest.raises(ValueError, match=f"never goes from {before} to {after}"):
            Status(phase=before).with_phase(after, START, "why", "because")
    else:
        moved = Status(phase=before, since=START - 1).with_phase(after, START, "why", "because")
        assert (moved.phase, moved.reason, moved.message) == (after, "why", "because")
        assert moved.since == (START - 1 if cell == "." else START)


def test_transitions_and_groups_cover_every_phase() -> None:
    assert set(ALLOWED_TRANSITIONS) == set(Phase)
    stopping = {Phase.COMPLETING, Phase.TERMINATING}
    assert set(Phase) == LIVE | STOPPED | stopping | TERMINAL
    assert {Phase.COMPLETED, Phase.TERMINATED, Phase.FAILED} == TERMINAL
    assert {Phase.COMPLETING, Phase.COMPLETED} == SUCCESSFUL
    assert not LIVE & TERMINAL
    assert not LIVE & STOPPED


@pytest.mark.parametrize("phase", sorted(TERMINAL | {Phase.COMPLETING, Phase.TERMINATING}))
def test_ending_phase_has_completion_time(phase: Phase) -> None:
    before = {Phase.COMPLETED: Phase.COMPLETING, Phase.TERMINATED: Phase.TERMINATING}.get(phase, Phase.RUNNING)
    status = Status(phase=Phase.RUNNING).with_phase(before, START, "", "") if before is not Phase.RUNNING else Status()
    assert status.with_phase(phase, START + 5, "", "").completion_time in (START, START + 5)


def test_completion_time_is_when_job_began_to_complete() -> None:
    ended = Status().with_phase(Phase.COMPLETING, START, "", "").with_phase(Phase.COMPLETED, START + 60, "", "")
    assert (ended.completion_time, ended.since) == (START, START + 60)


def test_suspended_job_is_not_finished() -> None:
    aborted = Status().with_phase(Phase.ABORTING, START, "", "").with_phase(Phase.ABORTED, START, "", "")
    assert aborted.completion_time is None
    assert not aborted.finished


def test_admission_is_kept_until_pods_are_stopped() -> None:
    running = Status(phase=Phase.RUNNING, admission=Admission(START))
    aborting = running.with_phase(Phase.ABORTING, START, "", "")
    assert aborting.admission is not None
    assert aborting.with_phase(Phase.ABORTED, START, "", "").admission is None
    assert running.with_phase(Phase.FAILED, START, "", "").admission is None


def test_released_admission_keeps_its_sizes() -> None:
    running = Status(phase=Phase.RUNNING, admission=Admission(START, sizes={"worker": 3}))
    assert running.with_phase(Phase.FAILED, START, "", "").last_sizes == {"worker": 3}
    aborting = running.with_phase(Phase.ABORTING, START, "", "")
    assert (aborting.last_sizes, aborting.with_phase(Phase.ABORTED, START, "", "").last_sizes) == ({}, {"worker": 3})


def test_restarts_caused_by_admission_are_not_charged() -> None:
    status = Status(restarts={"PodFailed": 2, "Preempted": 3, "Resized": 4}, container_restarts=1)
    assert (status.charged_restarts, status.total_restarts) == (2, 10)


def test_attempts_are_counted_by_job_task_and_pod() -> None:
    worker, ps = ReplicaId("worker", 0), ReplicaId("ps", 0)
    first = Attempts()
    pod = first.next_pod(worker).next_pod(worker)
    task = pod.next_task("worker")
    job = task.next_pod(ps).next_job()
    assert [a.label(worker) for a in (first, pod, task, job)] == ["1.0.0", "1.0.2", "1.1.0", "2.0.0"]
    assert [a.label(ps) for a in (first, pod, task, job)] == ["1.0.0", "1.0.0", "1.0.0", "2.0.0"]


@pytest.mark.parametrize("admission", [None, Admission(START + 9, sizes={"worker": 2})])
def test_next_attempt_replaces_pods_and_keeps_succeeded_replicas(admission: Admission | None) -> None:
    done, lost = ReplicaId("worker", 0), ReplicaId("worker", 1)
    before = Status(
        phase=Phase.RUNNING,
        attempts=Attempts(2, {"worker": 1}, {lost: 3}),
        observed_replicas=frozenset({done, lost}),
        succeeded=frozenset({done}),
        restarts={"PodFailed": 1},
        backoffs={"": RestartBackoff(1, START + 60)},
        admission=Admission(START),
        start_time=START,
    )
    after = before.next_attempt(admission)
    assert (after.attempts, after.observed_replicas, after.backoffs) == (Attempts(3), frozenset(), {})
    assert (after.admission, after.start_time) == (admission, START if admission else None)
    assert (after.phase, after.succeeded, after.restarts) == (before.phase, before.succeeded, before.restarts)


def test_restarts_are_counted_by_cause() -> None:
    status = Status().with_restart("Preempted").with_restart("Resized").with_restart("Preempted")
    assert status.restarts == {"Preempted": 2, "Resized": 1}


TEXT = st.text(max_size=20)
TIME = st.one_of(st.none(), st.floats(0, 4e9, allow_nan=False).map(round_time))
MOMENT = st.floats(1, 4e9, allow_nan=False).map(round_time)
TYPE = st.sampled_from(("worker", "ps", "my-task", "default0", "worker-0"))
REPLICA = st.builds(ReplicaId, TYPE, st.integers(0, 2000))
NUMBER = st.integers(1, 99)
STATUSES = st.builds(
    Status,
    phase=st.sampled_from(Phase),
    reason=TEXT,
    message=TEXT,
    since=TIME,
    created=TIME,
    start_time=TIME,
    completion_time=TIME,
    attempts=st.builds(
        Attempts, NUMBER, st.dictionaries(TYPE, NUMBER, max_size=2), st.dictionaries(REPLICA, NUMBER, max_size=3)
    ),
    observed_replicas=st.frozensets(REPLICA, max_size=8),
    succeeded=st.frozensets(REPLICA, max_size=8),
    restarts=st.dictionaries(TEXT, NUMBER, max_size=3),
    container_restarts=st.integers(0, 9),
    backoffs=st.dictionaries(TEXT, st.builds(RestartBackoff, NUMBER, MOMENT), max_size=3),
    admission=st.one_of(
        st.none(),
        st.builds(
            Admission,
            MOMENT,
            st.dictionaries(TYPE, st.dictionaries(TEXT, NUMBER, min_size=1, max_size=2), max_size=2),
            st.dictionaries(TYPE, st.integers(0, 99), max_size=3),
            TIME,
            TIME,
        ),
    ),
    last_sizes=st.dictionaries(TYPE, st.integers(0, 99), max_size=3),
    requeues=st.integers(0, 9),
    not_before=st.one_of(st.just(0.0), MOMENT),
    counts=st.dictionaries(TYPE, st.builds(Counts, **dict.fromkeys(Counts.__slots__, st.integers(0, 9))), max_size=3),
    failure=st.one_of(
        st.none(),
        st.builds(
            Failure,
            event=TYPE,
            replica=TEXT,
            code=st.one_of(st.none(), st.integers(-255, 255)),
            reason=TEXT,
            message=TEXT,
            at=TIME,
        ),
    ),
    accepted_spec=st.one_of(st.none(), st.builds(AcceptedSpec, generation=NUMBER, digest=TEXT, runtime_id=TEXT)),
    refused_spec=st.one_of(st.none(), st.builds(RefusedSpec, generation=NUMBER, digest=TEXT, message=TEXT)),
)


@given(STATUSES)
def test_status_survives_writing_and_reading(status: Status) -> None:
    stored = json.loads(json.dumps({"tfDist": dump_status(status)}))
    assert load_status(stored) == status
    assert dump_status(load_status(stored)) == stored["tfDist"]


@given(st.sets(st.integers(0, 3000), min_size=1))
def test_ranges_survive_writing_and_reading(numbers: set[int]) -> None:
    assert list(parse_ranges(format_ranges(sorted(numbers)))) == sorted(numbers)


def test_large_gang_is_stored_as_one_range() -> None:
    seen = frozenset(ReplicaId("worker", index) for index in range(5000))
    assert dump_status(Status(observed_replicas=seen))["observedReplicas"] == {"worker": "0-4999"}


def test_empty_stored_status_is_default_status() -> None:
    assert load_status({}) == Status()


@pytest.mark.parametrize(
    ("stored", "phase"),
    [
        ({"conditions": [{"type": "Succeeded", "status": "True"}]}, Phase.COMPLETED),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, Phase.FAILED),
        ({"conditions": [{"type": "Running", "status": "False"}, {"type": "Failed", "status": "True"}]}, Phase.FAILED),
        ({"conditions": [{"type": "Running", "status": "True"}]}, Phase.PENDING),
        ({"conditions": [{"type": "Failed", "status": "False"}, "odd"]}, Phase.PENDING),
        ({"conditions": None}, Phase.PENDING),
        ({"phase": "Done", "state": "Succeeded"}, Phase.COMPLETED),
        ({"phase": "Done", "state": "Failed"}, Phase.FAILED),
        ({"phase": "Running", "state": "Running"}, Phase.PENDING),
        ({"state": {"phase": "Completed"}}, Phase.COMPLETED),
        ({"state": {"phase": "Failed"}}, Phase.FAILED),
        ({"state": {"phase": "Terminated"}}, Phase.TERMINATED),
        ({"state": {"phase": "Aborted"}}, Phase.ABORTED),
        ({"state": {"phase": "Running"}}, Phase.PENDING),
    ],
)
def test_reads_end_of_job_from_status_of_other_operator(stored: Any, phase: Phase) -> None:
    assert load_status(stored).phase is phase


def test_stored_phase_names_are_stable() -> None:
    words = "Pending Running Restarting Aborting Aborted Completing Completed Terminating Terminated Failed"
    assert [phase.value for phase in Phase] == words.split()


def test_counts_of_type_without_pods_are_zero() -> None:
    assert not any(astuple(NO_PODS))
    assert ready_text(v1_job(), Status()) == "0/3"


@pytest.mark.parametrize(
    ("status", "follows"),
    [
        ({}, "; the job starts when this is corrected"),
        ({"created": 1.0}, "; its pods are not changed, and nothing is restarted until this is corrected"),
        (
            {"accepted_spec": AcceptedSpec(generation=3, digest="d")},
            "; its pods are not changed, and nothing is restarted until this is corrected",
        ),
        (
            {"accepted_spec": AcceptedSpec(generation=3, digest="d", document={"spec": {}})},
            "; generation 3 stays in force",
        ),
    ],
)
def test_refusal_names_consequence(status: dict[str, Any], follows: str) -> None:
    refused = RefusedSpec(generation=4, digest="e", message="no chief")
    assert Status(refused_spec=refused, **status).refusal == f"the spec is not accepted: no chief{follows}"
    assert Status(refused_spec=refused, phase=Phase.FAILED, **status).refusal == ""
