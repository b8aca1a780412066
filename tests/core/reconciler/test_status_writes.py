"""Which changes of a job's memory are written immediately, and which are batched."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.core.builders import replicas, v1_job
from tests.core.dialects.documents import volcano
from tests.core.world import WAIT, World
from tf_dist.core.dialects.parsing import read
from tf_dist.core.model.assignment import Admit
from tf_dist.core.model.context import Create, EmitEvent, Observed, WriteStatus
from tf_dist.core.model.job import ReplicaId, SuccessRule
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import Phase
from tf_dist.core.model.status_codec import (
    FIELD,
    MEMORY_CONDITION,
    MEMORY_RESOURCE,
    has_embedded_memory,
    load_status,
    stored_status,
    with_embedded_memory,
)
from tf_dist.core.reconciler.reconcile import CREATED_WITHIN, SHOWN_WITHIN, WAITING_WITHIN_PER_RANK, reconcile


def gathering(workers: int = 8) -> World:
    """A job with many workers whose pods are all created."""
    world = World(v1_job(replicas("Worker", workers), success=(SuccessRule(type="worker"),)), gathers=True)
    world.settle()
    assert world.writes == 1
    return world


def test_status_only_reconcile_writes_only_status() -> None:
    job = v1_job(replicas("Worker", 2), success=(SuccessRule(type="worker"),))
    verdict = Admit(placement={"worker": {"a": 2}}, sizes={"worker": 2})
    first = reconcile(job, Observed(now=100.0, verdict=verdict, status_only=True))
    assert {type(action) for action in first.actions} == {WriteStatus}
    after = reconcile(job, Observed(now=100.0), first.status)
    assert sum(isinstance(action, Create) and action.body["kind"] == "Pod" for action in after.actions) == 2


def test_status_only_reconcile_emits_same_events_about_document() -> None:
    document = volcano()
    document["spec"]["schedulerName"] = "volcano"
    job = read(document)
    quiet, full = (reconcile(job, Observed(now=100.0, status_only=only)) for only in (True, False))
    assert quiet.status.created is not None
    notes = [[one.reason for one in plan.actions if isinstance(one, EmitEvent)] for plan in (quiet, full)]
    assert notes[0] == notes[1]
    assert "SchedulerNameNotUsed" in notes[0]


def test_pods_that_start_one_by_one_cause_two_writes() -> None:
    world = gathering()
    for pod in list(world.pods.values()):
        world.now += 0.1
        world.run(pod)
        world.settle()
    assert world.memory.phase is Phase.RUNNING
    assert world.writes == 3  # for the admission, the first running pod, and the last running pod
    assert world.look().wake_at is None
    assert world.memory.counts["worker"].ready == 8
    assert world.memory.message == "8 of 8 replicas are running"
    assert len(world.memory.observed_replicas) == 8


def test_pods_that_end_one_by_one_cause_one_write_at_end_of_job() -> None:
    world = gathering()
    for pod in list(world.pods.values()):
        world.run(pod)
    world.settle()
    before = world.writes
    for pod in list(world.pods.values()):
        world.now += 1.0
        world.end(pod, 0)
        world.settle()
    assert (world.memory.phase, len(world.memory.succeeded)) == (Phase.COMPLETED, 8)
    assert world.writes == before + 1


def test_created_pods_are_written_after_one_minute() -> None:
    world = World(v1_job(replicas("Worker", 8), success=(SuccessRule(type="worker"),)), gathers=True)
    world.schedules = False
    world.settle()
    created = world.last_written
    assert created is not None
    assert world.look().wake_at == pytest.approx(created + CREATED_WITHIN, rel=0, abs=1e-3)
    world.now = created + SHOWN_WITHIN + 1
    world.settle()
    assert world.writes == 1
    world.now = created + CREATED_WITHIN
    world.settle()
    assert world.writes == 2
    assert world.memory.counts["worker"].pending == len(world.memory.observed_replicas) == 8


def test_displayed_fields_are_written_within_ten_seconds() -> None:
    world = gathering()
    first, second, *_ = world.pods.values()
    world.run(first)
    world.settle()
    running = world.last_written
    assert running is not None
    for change in (lambda: world.run(second), lambda: world.end(second, 0)):
        change()
        assert world.look().wake_at == pytest.approx(running + SHOWN_WITHIN, rel=0, abs=1e-3)
    assert (world.writes, world.memory.succeeded) == (2, frozenset())
    world.now = running + SHOWN_WITHIN
    world.settle()
    assert (world.writes, len(world.memory.succeeded)) == (3, 1)


def test_last_ready_replica_is_written_immediately() -> None:
    world = gathering()
    for pod in world.pods.values():
        world.run(pod)
        world.settle()
    assert world.memory.counts["worker"].ready == 8


def test_change_after_quiet_time_is_written_immediately() -> None:
    world = gathering()
    first, second, *_ = world.pods.values()
    world.run(first)
    world.settle()
    world.now += SHOWN_WITHIN
    world.settle()
    before = world.writes
    world.now += 3600
    world.run(second)
    world.settle()
    assert world.writes == before + 1


def waiting(rank: int) -> World:
    """A waiting job with this rank in the queue."""
    world = World(v1_job(), gathers=True)
    world.verdict = replace(WAIT, message="2 free", rank=rank)
    world.settle()
    assert (world.writes, world.memory.message) == (1, "2 free")
    return world


def test_delay_of_wait_message_grows_with_rank() -> None:
    world = waiting(10_000)
    first, world.verdict = world.last_written, replace(WAIT, message="1 free", rank=10_000)
    assert first is not None
    world.now += 10_000 * WAITING_WITHIN_PER_RANK - 1
    plan = world.settle()
    assert (world.writes, plan.wake_at) == (
        1,
        pytest.approx(first + 10_000 * WAITING_WITHIN_PER_RANK, rel=0, abs=1e-3),
    )
    world.now += 1
    world.settle()
    assert (world.writes, world.memory.message) == (2, "1 free")


@pytest.mark.parametrize("rank", [0, 2], ids=["another gang scheduler decides", "it has come to the front"])
def test_wait_message_at_front_is_updated_within_ten_seconds(rank: int) -> None:
    world = waiting(10_000)
    world.verdict = replace(WAIT, message="position 2", rank=rank)
    plan = world.settle()
    assert world.memory.message == "2 free"
    assert plan.wake_at is not None
    assert plan.wake_at <= world.now + SHOWN_WITHIN
    world.now += SHOWN_WITHIN
    world.settle()
    assert world.memory.message == "position 2"


def test_new_wait_reason_is_written_immediately() -> None:
    world = waiting(10_000)
    world.verdict = replace(WAIT, reason=Reason.NEVER_FITS, message="2 free", rank=10_000)
    world.settle()
    assert (world.writes, world.memory.reason) == (2, "NeverFits")


def test_admission_is_written_after_batched_message() -> None:
    world = waiting(10_000)
    world.verdict = replace(WAIT, message="1 free", rank=10_000)
    world.settle()
    assert world.writes == 1
    world.verdict = Admit()
    world.settle()
    assert world.memory.reason == "Admitted"


def test_unwritten_status_is_used_while_controller_runs() -> None:
    """A pod that was created and removed between two writes counts as evicted, not as never created."""
    world = gathering()
    assert world.memory.observed_replicas == frozenset()
    pod = world.pod("worker-1")
    world.remove(pod)
    world.settle()
    assert world.memory.attempts.label(ReplicaId("worker", 1)) == "1.0.1"


@pytest.mark.parametrize("kind", ["TFJob", "Job"])
def test_embedded_memory_is_read_from_pruned_status(kind: str) -> None:
    written = reconcile(v1_job(), Observed(now=10.0)).actions[0]
    assert isinstance(written, WriteStatus)
    both = with_embedded_memory(written.status, kind)
    pruned = {"status": {key: value for key, value in both.items() if key != FIELD}}
    assert has_embedded_memory(pruned["status"])
    assert load_status(stored_status(pruned)) == load_status(written.status)
    kept = {"status": {**both, FIELD: {"phase": "Running"}}}
    assert load_status(stored_status(kept)).phase is Phase.RUNNING
    assert {MEMORY_CONDITION, MEMORY_RESOURCE}.isdisjoint(json.dumps(stored_status(kept)).split('"'))


@pytest.mark.parametrize("text", ["", "{", "null", "3", '"x"', "[" * 100_000, "9" * 1_000_000])
def test_invalid_embedded_memory_is_ignored(text: str) -> None:
    broken = {"status": {"conditions": [{"type": MEMORY_CONDITION, "status": "Unknown", "message": text}]}}
    assert load_status(stored_status(broken)).phase is Phase.PENDING


def told(world: World) -> list[str]:
    """The reasons of the next Events."""
    found = []
    while True:
        plan = world.look()
        found += [action.reason for action in plan.actions if isinstance(action, EmitEvent)]
        if not world.step():
            return found


def test_emits_events_only_for_unexpected_changes() -> None:
    world = World(v1_job(success=(SuccessRule(type="worker"),)))
    assert told(world) == []
    for pod in list(world.pods.values()):
        world.run(pod)
    assert told(world) == []
    pod = world.pod("worker-1")
    world.end(pod, 137)
    assert told(world) == ["PodFailed", "ExitedWithCode", "TFJobFailed"]


def test_emits_events_when_gang_waits_and_when_it_is_admitted() -> None:
    world = World(v1_job())
    world.verdict = WAIT
    assert told(world) == [WAIT.reason]
    world.verdict = Admit()
    assert told(world) == ["Admitted"]
