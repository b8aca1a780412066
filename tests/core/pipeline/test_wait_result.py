"""When a client stops waiting for a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.controller.harness import tfjob
from tf_dist.core.dialects import parse
from tf_dist.core.model.job import ReplicaId
from tf_dist.core.model.pods import PodPhase, PodView
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.core.model.status import AcceptedSpec, Admission, Failure, Phase, RefusedSpec, Status
from tf_dist.core.pipeline.wait_result import (
    DELETED,
    NO_LIMITS,
    WaitLimits,
    WaitResult,
    evaluate_wait,
    next_wait_limit,
    running_pods,
)

REACHED = "reached"
NOW = 1_800_000_000.0
JOB = parse(tfjob(workers=2, ps=0)).job
WAITS = Status(phase=Phase.PENDING, reason="Queued", message="waits in line", since=NOW, created=NOW)
PLACED = replace(WAITS, reason="Admitted", admission=Admission(NOW), start_time=NOW)
RUNS = replace(PLACED, phase=Phase.RUNNING)
SUSPENDED = replace(WAITS, phase=Phase.ABORTED, reason="Suspended")
FAILURE = Failure(event="PodFailed", replica="worker-1", code=3)


def ended(phase: Phase, reason: str = "", message: str = "it said so") -> Status:
    return replace(RUNS, phase=phase, reason=reason, message=message, admission=None, failure=FAILURE)


def pod(reason: str) -> PodView:
    return PodView(
        name="p",
        uid="u",
        replica=ReplicaId("worker", 0),
        attempt="1.0.0",
        phase=PodPhase.PENDING,
        waiting=(reason, "no"),
    )


def end(
    status: Status, limits: WaitLimits = NO_LIMITS, *pods: PodView, now: float = NOW, goal: str = "succeeded"
) -> object:
    found = evaluate_wait(JOB, status, pods, limits, now, goal=goal)
    return found and (REACHED if found.reached else found.kind)


@pytest.mark.parametrize("status", [WAITS, PLACED, RUNS, SUSPENDED])
def test_waits_while_goal_is_possible(status: Status) -> None:
    assert end(status) is None


def test_every_end_has_its_outcome() -> None:
    assert end(ended(Phase.COMPLETED)) is REACHED
    assert end(ended(Phase.FAILED)) is OutcomeKind.FAILED
    assert end(ended(Phase.FAILED, "PodEvicted")) is OutcomeKind.EVICTED
    assert end(ended(Phase.TERMINATED)) is OutcomeKind.FAILED
    assert end(ended(Phase.ABORTED, "PodFailed")) is OutcomeKind.FAILED


def test_does_not_wait_for_spec_that_was_never_accepted() -> None:
    refused = RefusedSpec(generation=1, digest="x", message="spec.x: unknown key")
    found = evaluate_wait(JOB, Status(refused_spec=refused), (), NO_LIMITS, NOW)
    assert found is not None
    assert (found.kind, "spec.x: unknown key" in found.message) == (OutcomeKind.INVALID, True)
    accepted = AcceptedSpec(generation=1, digest="y")
    assert end(Status(refused_spec=refused, accepted_spec=accepted, created=NOW)) is None


@pytest.mark.parametrize(("message", "said"), [("", "the job is Succeeded"), ("all is done", "all is done")])
def test_result_has_message_of_job(message: str, said: str) -> None:
    found = evaluate_wait(JOB, ended(Phase.COMPLETED, message=message), (), NO_LIMITS, NOW)
    assert found is not None
    assert (found.message, found.reached) == (said, True)


def test_deleted_job_has_reason_and_hint() -> None:
    assert (DELETED.reason, DELETED.message, bool(DELETED.hint)) == ("Deleted", "the job was deleted", True)


def test_result_has_message_and_hint() -> None:
    found = evaluate_wait(JOB, ended(Phase.FAILED, "DeadlineExceeded"), (), NO_LIMITS, NOW)
    assert found == WaitResult(
        kind=OutcomeKind.DEADLINE_EXCEEDED,
        message="it said so",
        hint="raise activeDeadlineSeconds, or find out what takes this long",
    )


def test_completing_job_has_not_yet_succeeded() -> None:
    assert end(replace(RUNS, phase=Phase.COMPLETING)) is None


def test_admitted_goal_is_reached_once_gang_was_admitted() -> None:
    assert end(WAITS, goal="admitted") is None
    assert end(PLACED, goal="admitted") is REACHED
    assert end(ended(Phase.COMPLETED), goal="admitted") is REACHED
    never_had_one = replace(ended(Phase.FAILED), start_time=None)
    assert end(never_had_one, goal="admitted") is OutcomeKind.FAILED


def test_deadline_applies_in_every_phase() -> None:
    limits = WaitLimits(deadline=NOW + 10)
    for status in (WAITS, PLACED, RUNS, SUSPENDED):
        assert end(status, limits, now=NOW + 9.9) is None
        assert end(status, limits, now=NOW + 10) is OutcomeKind.DEADLINE_EXCEEDED
    assert end(ended(Phase.COMPLETED), limits, now=NOW + 99) is REACHED


def test_admission_and_startup_have_separate_limits() -> None:
    limits = WaitLimits(admission=10, startup=5)
    assert end(WAITS, limits, now=NOW + 9) is None
    assert end(WAITS, limits, now=NOW + 10) is OutcomeKind.ADMISSION_TIMEOUT
    assert end(PLACED, limits, now=NOW + 4) is None
    assert end(PLACED, limits, now=NOW + 5) is OutcomeKind.START_TIMEOUT
    assert end(RUNS, limits, now=NOW + 99) is None
    assert end(SUSPENDED, limits, now=NOW + 99) is None


def test_startup_limit_starts_again_with_new_pods() -> None:
    again = replace(PLACED, reason="PodsPending", since=NOW + 3600)
    limits = WaitLimits(startup=5)
    assert end(again, limits, now=NOW + 3604) is None
    assert end(again, limits, now=NOW + 3605) is OutcomeKind.START_TIMEOUT


REFUSED = replace(PLACED, reason="Unschedulable", message="the gang waits for its nodes")
COMPLETE = replace(PLACED, admission=Admission(NOW, complete=NOW + 20))


def test_gang_without_nodes_does_not_count_as_admitted() -> None:
    limits = WaitLimits(admission=10, startup=5)
    assert end(REFUSED, goal="admitted") is None
    assert end(REFUSED, limits, now=NOW + 9) is None
    assert end(REFUSED, limits, now=NOW + 10) is OutcomeKind.ADMISSION_TIMEOUT
    assert end(COMPLETE, limits, now=NOW + 24) is None
    assert end(COMPLETE, limits, now=NOW + 25) is OutcomeKind.START_TIMEOUT


def test_gang_is_scheduled_once_all_pods_had_nodes() -> None:
    assert [end(status, goal="scheduled") for status in (WAITS, PLACED, REFUSED)] == [None, None, None]
    assert end(COMPLETE, goal="scheduled") is REACHED
    assert end(ended(Phase.COMPLETED), goal="scheduled") is REACHED
    never_had_one = replace(ended(Phase.FAILED), start_time=None)
    assert end(never_had_one, goal="scheduled") is OutcomeKind.FAILED


def test_startup_timeout_reports_failed_image_pull() -> None:
    limits = WaitLimits(startup=5)
    assert end(PLACED, limits, pod("ImagePullBackOff"), now=NOW + 4) is None
    assert end(PLACED, limits, pod("ImagePullBackOff"), now=NOW + 5) is OutcomeKind.IMAGE_PULL_FAILED


def test_startup_timeout_does_not_apply_while_image_is_pulled() -> None:
    pulling = replace(pod("ContainerCreating"), pulling=True)
    limits = WaitLimits(startup=5, deadline=NOW + 100)
    assert end(PLACED, limits, pulling, pod("ContainerCreating"), now=NOW + 99) is None
    assert end(PLACED, limits, pod("ContainerCreating"), now=NOW + 5) is OutcomeKind.START_TIMEOUT
    assert end(PLACED, limits, pulling, now=NOW + 100) is OutcomeKind.DEADLINE_EXCEEDED


@pytest.mark.parametrize("reason", ["InvalidImageName", "ErrImageNeverPull", "ErrImageEntrypoint"])
def test_stops_waiting_for_image_that_cannot_be_pulled(reason: str) -> None:
    assert end(PLACED, NO_LIMITS, pod(reason)) is OutcomeKind.IMAGE_PULL_FAILED


def test_next_wait_limit() -> None:
    limits = WaitLimits(deadline=NOW + 100, admission=10, startup=5)
    assert next_wait_limit(WAITS, limits, NOW) == NOW + 10
    assert next_wait_limit(PLACED, limits, NOW) == NOW + 5
    assert next_wait_limit(RUNS, limits, NOW) == NOW + 100
    assert next_wait_limit(RUNS, limits, NOW + 100) is None
    assert next_wait_limit(WAITS, NO_LIMITS, NOW) is None


def test_counts_running_pods() -> None:
    waiting = pod("ContainerCreating")
    over = replace(waiting, phase=PodPhase.SUCCEEDED)
    assert running_pods((waiting, over, replace(waiting, deleting=True))) == 1
