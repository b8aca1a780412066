"""Outcomes of jobs, and the errors and texts derived from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import (
    EVICTED,
    FAILED,
    ON_FAILURE,
    START,
    pod,
    replicas,
    v1_job,
    v1alpha1_job,
    views,
    volcano_job,
)
from tests.core.world import World
from tf_dist.core.diagnostics.display_text import usage_text
from tf_dist.core.diagnostics.metrics_parser import Progress
from tf_dist.core.diagnostics.outcome import (
    Outcome,
    job_outcome,
    outcome_error,
    outcome_word,
    read_outcome,
    with_observations,
)
from tf_dist.core.model.assignment import Admit, Preempt
from tf_dist.core.model.job import Action, Event, Job, JobKey, Rule, RunPolicy
from tf_dist.core.model.reasons import Category, OutcomeKind, Reason
from tf_dist.core.model.status import Admission, Failure, Phase, Status, display_phase, outcome_kind
from tf_dist.core.model.status_codec import FIELD
from tf_dist.core.model.usage import Spent, Usage
from tf_dist.core.pipeline.wait_result import NO_LIMITS, evaluate_wait, wait_outcome
from tf_dist.errors import AdmissionTimeout, ImagePullFailed, JobEvicted, JobFailed, JobTimeout

KIND = OutcomeKind


def test_outcome_counts_waiting_and_lost_time() -> None:
    status = Status(
        phase=Phase.COMPLETED,
        created=START,
        start_time=START + 500,
        completion_time=START + 600,
        usage=Usage(waited=300, gpus=Spent(held=1600, trained=1500, lost=700), replicas=Spent(held=200, lost=90)),
    )
    found = job_outcome(status)
    assert found is not None
    assert (found.waited_seconds, found.ran_seconds) == (300, 100)
    assert (found.gpu_seconds, found.lost_gpu_seconds, found.goodput) == (1600, 700, 0.5)
    assert (found.replica_seconds, found.lost_replica_seconds) == (200, 90)
    assert read_outcome(json.loads(json.dumps(found.document()))) == found


def ended(reason: str, phase: Phase = Phase.FAILED, /, **failure: Any) -> Status:
    return Status(phase=phase, reason=reason, failure=Failure(event="PodFailed", **failure) if failure else None)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (Status(), None),
        (Status(phase=Phase.RESTARTING, reason="PodEvicted"), None),
        (Status(phase=Phase.COMPLETING), KIND.SUCCEEDED),
        (Status(phase=Phase.COMPLETED, reason="PodEvicted"), KIND.SUCCEEDED),
        (ended("Suspended", Phase.ABORTING), KIND.SUSPENDED),
        (ended("Suspended", Phase.ABORTED, replica="worker-0", code=1), KIND.SUSPENDED),
        (ended("PodFailed", replica="worker-0", code=1), KIND.FAILED),
        (ended("PodFailed", replica="worker-0", code=137), KIND.FAILED),
        (ended("PodFailed", replica="worker-0", code=143), KIND.EVICTED),
        (ended("PodFailed", Phase.ABORTED, replica="worker-0", code=1), KIND.FAILED),
        (ended("PodFailed", reason="ErrImageNeverPull"), KIND.IMAGE_PULL_FAILED),
        (ended("PodEvicted", replica="worker-0"), KIND.EVICTED),
        (ended("PodEvicted", Phase.ABORTED), KIND.EVICTED),
        (ended("PodEvicted", Phase.ABORTING), KIND.EVICTED),
        (ended("PodEvicted", Phase.TERMINATED), KIND.EVICTED),
        (ended("PodEvicted", reason="PreemptionByScheduler"), KIND.PREEMPTED),
        (ended("NodeLost", replica="worker-0"), KIND.EVICTED),
        (ended("MaxDisruptionsExceeded", replica="worker-0", reason="EvictionByEvictionAPI"), KIND.EVICTED),
        (ended("Preempted", Phase.ABORTED), KIND.PREEMPTED),
        (ended("DeadlineExceeded", replica="worker-0", code=143), KIND.DEADLINE_EXCEEDED),
        (ended("BackoffLimitExceeded", replica="worker-0", code=143), KIND.BACKOFF_LIMIT_EXCEEDED),
        (ended("TaskFailed", Phase.TERMINATED), KIND.BACKOFF_LIMIT_EXCEEDED),
        (ended("PodPending", Phase.ABORTED), KIND.START_TIMEOUT),
        (ended("Adopted"), KIND.FAILED),
        (ended("AReasonOfALaterRelease"), KIND.FAILED),
    ],
)
def test_outcome_kind_of_status(status: Status, expected: OutcomeKind | None) -> None:
    assert outcome_kind(status) is expected
    outcome = job_outcome(status)
    assert (outcome and outcome.kind) is expected


PERMANENT = [one for one in Reason if one.row.category is Category.IMAGE and one.row.permanent]


@pytest.mark.parametrize("reason", PERMANENT)
def test_unusable_image_has_same_outcome_for_client_and_job(reason: str) -> None:
    job = v1_job(replicas("Worker", 1))
    waiting = {"name": "tensorflow", "restartCount": 0, "state": {"waiting": {"reason": reason, "message": "why"}}}
    pods = views(pod(job, "worker-0", {"phase": "Pending", "containerStatuses": [waiting]}))
    admitted = Status(created=START, start_time=START, admission=Admission(START))
    seen = evaluate_wait(job, admitted, pods, NO_LIMITS, START + 1)
    assert seen is not None
    first = wait_outcome(admitted, seen, START + 1)
    later = job_outcome(ended("PodFailed", replica="worker-0", reason=reason))
    assert first is not None
    assert later is not None
    assert (first.kind, first.reason, first.replica) == (later.kind, later.reason, later.replica)
    assert (later.kind, later.reason) == (KIND.IMAGE_PULL_FAILED, reason)


@pytest.mark.parametrize(
    ("begun", "now", "waited", "ran"),
    [(None, None, 60.0, None), (START + 20.0, None, 20.0, 40.0), (None, START + 90.0, 90.0, None)],
)
def test_job_waited_until_start_or_end(
    begun: float | None, now: float | None, waited: float, ran: float | None
) -> None:
    ended = None if now else START + 60.0
    status = Status(created=START, start_time=begun, completion_time=ended)
    outcome = Outcome.of(status, KIND.FAILED, now=now)
    assert (outcome.waited_seconds, outcome.ran_seconds) == (waited, ran)


def started(job: Job) -> World:
    world = World(job)
    world.settle()
    return run_all(world)


def run_all(world: World) -> World:
    for one in world.pods.values():
        world.run(one)
    world.settle()
    return world


def worker(world: World) -> dict[str, Any]:
    return world.pod("worker-0")


JOBS: dict[str, Callable[..., Job]] = {"v1": v1_job, "v1alpha1": v1alpha1_job, "volcano": volcano_job}
EVICTIONS: dict[str, Callable[[World], None]] = {
    "failed by the kubelet": lambda world: world.evict(worker(world)),
    "deleted": lambda world: world.delete(worker(world)),
    "gone": lambda world: world.vanish(worker(world)),
}


def with_policy(job: Job, events: frozenset[Event], action: Action) -> Job:
    """The job with one policy for all its tasks, in any dialect."""
    specs = tuple(replace(spec, rules=()) for spec in job.replica_specs)
    return replace(job, replica_specs=specs, rules=(Rule(events=events, action=action),))


@pytest.mark.parametrize("how", EVICTIONS)
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(
    ("action", "phase"),
    [
        (Action.ABORT_JOB, Phase.ABORTED),
        (Action.TERMINATE_JOB, Phase.TERMINATED),
        (Action.FAIL_JOB, Phase.FAILED),
    ],
)
def test_job_ended_by_policy_after_eviction_is_evicted(name: str, action: Action, phase: Phase, how: str) -> None:
    world = started(with_policy(JOBS[name](), EVICTED, action))
    EVICTIONS[how](world)
    world.settle()
    for one in list(world.pods.values()):
        world.remove(one)
    world.settle()
    outcome = job_outcome(world.memory)
    assert world.memory.phase is phase
    assert outcome is not None
    assert (outcome.kind, outcome.replica, outcome.disruptions) == (KIND.EVICTED, "worker-0", 1)
    assert world.status[FIELD]["outcome"]["kind"] == "evicted"
    assert outcome_word(world.memory) == "Evicted"


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("action", [Action.RESTART_POD, Action.RESTART_TASK, Action.RESTART_JOB])
def test_restarted_job_counts_disruptions(name: str, action: Action) -> None:
    world = started(with_policy(JOBS[name](), EVICTED, action))
    for _ in range(2):
        world.evict(worker(world))
        world.settle()
        world.now += 1000
        world.settle()
        for one in list(world.pods.values()):
            if "deletionTimestamp" in one["metadata"]:
                world.remove(one)
        world.settle()
        run_all(world)
    leader = "master-0" if name == "v1alpha1" else "worker-0"
    for replica in [leader, "worker-1"] if name == "volcano" else [leader]:
        found = world.pod(replica)
        world.end(found, 0)
    world.settle()
    for one in list(world.pods.values()):
        if "deletionTimestamp" in one["metadata"]:
            world.remove(one)
    world.settle()
    if name == "volcano":  # for Volcano, only the count is checked
        assert world.memory.total_disruptions == 2
        return
    outcome = job_outcome(world.memory)
    assert outcome is not None
    assert (outcome.kind, outcome.disruptions, outcome.restarts) == (KIND.SUCCEEDED, 2, 0)
    counts = {"restarts": 0, "disruptions": 2, "preemptions": 0, "fallback": 0}
    shown = world.status[FIELD]["outcome"]
    assert shown == shown | {"kind": "succeeded", **counts, "gpuSeconds": 0.0, "lostGpuSeconds": 0.0}


@pytest.mark.parametrize("name", JOBS)
def test_failed_pod_gives_failed_outcome(name: str) -> None:
    world = started(with_policy(JOBS[name](), FAILED, Action.FAIL_JOB))
    world.end(worker(world), 7)
    world.settle()
    outcome = job_outcome(world.memory)
    assert outcome is not None
    assert (outcome.kind, outcome.replica, outcome.exit_code) == (KIND.FAILED, "worker-0", 7)


def test_unhandled_failure_has_replica_and_exit_code() -> None:
    world = started(with_policy(v1_job(), EVICTED, Action.RESTART_POD))
    world.end(worker(world), 7)
    world.settle()
    outcome = job_outcome(world.memory)
    assert outcome is not None
    assert (outcome.kind, outcome.reason, outcome.replica, outcome.exit_code) == (
        KIND.FAILED,
        "PodFailed",
        "worker-0",
        7,
    )


def test_backoff_limit_outcome_names_replica() -> None:
    job = replace(v1_job(replicas("Worker", 1, rules=ON_FAILURE)), run_policy=RunPolicy(max_restarts=0))
    world = started(job)
    world.end(worker(world), 7)
    world.settle()
    outcome = job_outcome(world.memory)
    assert outcome is not None
    assert (outcome.kind, outcome.replica, outcome.exit_code) == (KIND.BACKOFF_LIMIT_EXCEEDED, "worker-0", 7)


def test_preemptions_include_the_last() -> None:
    world = started(v1_job())
    world.verdict = Preempt(by=JobKey("team", "urgent"), message="")
    world.settle()
    world.verdict = Admit()
    world.settle()
    run_all(world)
    world.job = with_policy(world.job, EVICTED, Action.FAIL_JOB)
    world.verdict = Preempt(by=JobKey("team", "urgent"), message="")
    world.settle()
    outcome = job_outcome(world.memory)
    assert outcome is not None
    assert (outcome.kind, outcome.preemptions) == (KIND.PREEMPTED, 2)


def test_deadline_outcome_ignores_older_failure() -> None:
    status = Status(
        phase=Phase.FAILED,
        reason="DeadlineExceeded",
        message="too long",
        created=START,
        start_time=START + 10,
        completion_time=START + 70,
        restarts={"PodFailed": 1},
        failure=Failure(event="PodFailed", replica="worker-0", code=1),
    )
    assert job_outcome(status) == Outcome(
        kind=KIND.DEADLINE_EXCEEDED,
        reason="DeadlineExceeded",
        message="too long",
        restarts=1,
        waited_seconds=10.0,
        ran_seconds=60.0,
    )


def test_observations_of_client_survive_writing_and_reading() -> None:
    found = job_outcome(ended("PodFailed", replica="worker-0", code=1, message="Traceback"))
    assert found is not None
    assert found.log == "Traceback"
    seen = with_observations(found, Progress({"loss": 0.5, "accuracy": float("inf")}, "gs://m/7"), "line 1\nline 2")
    document = json.loads(json.dumps(seen.document(), allow_nan=False))
    assert (document["kind"], document["metrics"]["accuracy"], document["log"]) == ("failed", "inf", "line 1\nline 2")
    assert read_outcome(document) == seen
    assert len(with_observations(found, Progress(), "x" * 100_000).log) < 5000


@pytest.mark.parametrize("document", [None, "evicted", 7, []])
def test_reads_no_outcome_from_other_values(document: object) -> None:
    assert read_outcome(document) is None


def test_kind_of_later_release_is_unknown() -> None:
    assert read_outcome({"kind": "vaporised", "colour": "blue"}) == Outcome(kind=KIND.UNKNOWN)


@pytest.mark.parametrize(
    ("kind", "decided", "expected"),
    [
        (KIND.FAILED, True, JobFailed),
        (KIND.EVICTED, True, JobEvicted),
        (KIND.PREEMPTED, True, JobEvicted),
        (KIND.DEADLINE_EXCEEDED, True, JobFailed),
        (KIND.DEADLINE_EXCEEDED, False, JobTimeout),
        (KIND.ADMISSION_TIMEOUT, False, AdmissionTimeout),
        (KIND.START_TIMEOUT, False, JobTimeout),
        (KIND.START_TIMEOUT, True, JobFailed),
        (KIND.IMAGE_PULL_FAILED, False, ImagePullFailed),
        (KIND.INVALID, False, JobFailed),
        (KIND.DELETED, True, JobFailed),
    ],
)
def test_error_has_outcome_and_type(kind: OutcomeKind, decided: bool, expected: type[Exception]) -> None:
    outcome = Outcome(kind=kind)
    error = outcome_error(outcome, "why", hint="what to do", decided=decided)
    assert type(error) is expected
    assert (error.outcome, error.hint) == (outcome, "what to do")


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (Status(phase=Phase.ABORTED, reason="Suspended"), "Suspended"),
        (Status(phase=Phase.ABORTING, reason="Suspended"), "Suspending"),
        (Status(phase=Phase.ABORTED, reason="PodFailed"), "Aborted"),
        (Status(phase=Phase.COMPLETED), "Succeeded"),
        (Status(reason="NeverFits"), "Waiting"),
        (Status(), "Pending"),
        (Status(reason="Admitted", admission=Admission(START)), "Pending"),
    ],
)
def test_display_phase(status: Status, word: str) -> None:
    assert display_phase(status) == word


@pytest.mark.parametrize(
    ("usage", "text"),
    [
        (Usage(), ""),
        (Usage(gpus=Spent(held=30), replicas=Spent(held=15)), ""),
        (Usage(gpus=Spent(held=45_000, lost=7_560), replicas=Spent(held=9_000)), "12.5 GPU hours, 2.10 lost"),
        (Usage(replicas=Spent(held=900, lost=90)), "0.25 replica hours, 0.03 lost"),
    ],
)
def test_usage_text_in_hours(usage: Usage, text: str) -> None:
    assert usage_text(usage) == text
