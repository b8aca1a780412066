"""Waiting for jobs in a thread and on an event loop: progress, results and errors."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from typing import Any

import pytest

from tests.controller.harness import disturbed, tfjob
from tf_dist.client.monitor import JobEvent, JobInformer, ObjectChanged, ObjectsListed, WaitSteps
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.client.wait import GoalNotReached, goal_steps, outcome_now, run_on_loop, wait_for, wait_goal, wait_on_loop
from tf_dist.cluster.api import TFJOBS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.core.diagnostics.outcome import OutcomeKind
from tf_dist.errors import InvalidJob, JobFailed, NotFound, Unavailable

METADATA = {"name": "a", "namespace": "default", "uid": "u", "resourceVersion": "1"}


def stored(memory: MemoryCluster, phase: str) -> StoredJob:
    """A job in the phase, or a deleted job for ""."""
    job = memory.create(TFJOBS, "default", tfjob("a"))
    if phase:
        status = {"tfDist": {"phase": phase, "message": "exit code 3"}}
        memory.patch(TFJOBS, "default", "a", {"status": status}, subresource="status")
    else:
        memory.delete(TFJOBS, "default", "a")
    return StoredJob(TFJOBS, job)


@pytest.mark.parametrize(
    ("phase", "goal", "told", "error"),
    [
        ("Completed", "finished", "tfjob/a Succeeded", None),
        ("Failed", "finished", "tfjob/a Failed", JobFailed("tfjob/a failed: exit code 3")),
        ("Failed", "failed", "tfjob/a Failed", None),
        ("Failed", "succeeded", "", JobFailed("tfjob/a failed: exit code 3")),
        ("Completed", "admitted", "tfjob/a Succeeded", None),
        ("Completed", "scheduled", "tfjob/a Succeeded", None),
        ("Completed", "running", "", JobFailed("tfjob/a is Succeeded and will never be running")),
        ("Running", "finished", "", GoalNotReached("tfjob/a is not finished yet, it is Running")),
        (
            "Aborted",
            "finished",
            "tfjob/a is Aborted (exit code 3): it continues when it is resumed",
            GoalNotReached("tfjob/a is not finished yet, it is Aborted"),
        ),
        ("Aborted", "suspended", "tfjob/a Aborted", None),
        ("", "deleted", "tfjob/a deleted", None),
        ("", "running", "", NotFound("tfjob/a has been deleted, so it will never be running")),
    ],
)
def test_wait_ends_with_state_or_error(phase: str, goal: str, told: str, error: Exception | None) -> None:
    lines: list[str] = []
    with MemoryCluster() as memory:
        job = stored(memory, phase)
        if error is None:
            wait_for(memory, [job], goal, 0.0, lines.append)
        else:
            with pytest.raises(type(error)) as caught:
                wait_for(memory, [job], goal, 0.0, lines.append, check=goal == "finished")
            assert str(caught.value) == str(error)
            if isinstance(caught.value, JobFailed):
                ended = OutcomeKind.SUCCEEDED if phase == "Completed" else OutcomeKind.FAILED
                assert caught.value.outcome.kind is ended
                assert caught.value.hint == "tf-dist explain tfjob/a explains it" * (phase == "Failed")
    assert lines == [told] * bool(told)


def changed(job: StoredJob, phase: str) -> ObjectChanged:
    return ObjectChanged(TFJOBS, "MODIFIED", {**job.stored, "status": {"tfDist": {"phase": phase}}})


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("succeeded", "succeeded"),
        ("Running", "running"),
        ("delete", "deleted"),
        ("created", "admitted"),
        ("condition=complete", "succeeded"),
        ("condition=Completed=True", "succeeded"),
        ("condition=Running=true", "running"),
    ],
)
def test_wait_goal_accepts_words_of_kubectl(text: str, goal: str) -> None:
    assert wait_goal(text) == goal


def test_wait_goal_rejects_unknown_word() -> None:
    with pytest.raises(InvalidJob, match="there is no state 'runing' to wait for"):
        wait_goal("runing")


def test_goal_steps_need_no_thread_or_cluster() -> None:
    job, lines = StoredJob(TFJOBS, {**tfjob("a"), "metadata": METADATA}), list[str]()
    watch = JobInformer(job)

    def come(item: JobEvent) -> list[JobEvent]:
        watch.put(item)
        return watch.take(0)

    steps = goal_steps(watch, job, "succeeded", None, lines.append)
    assert next(steps) is None
    assert steps.send(come(changed(job, "Aborted"))) is None  # a change before the first list
    assert lines == []
    assert steps.send(come(ObjectsListed(TFJOBS, [changed(job, "Aborted").object]))) is None
    assert steps.send(come(changed(job, "Running"))) is None
    with pytest.raises(StopIteration) as done:
        steps.send(come(changed(job, "Completed")))
    assert done.value.value.state == "Succeeded"
    assert len(lines) == 1
    assert "continues when it is resumed" in lines[0]


@pytest.mark.parametrize("on_loop", [False, True], ids=["thread", "event loop"])
def test_wait_does_not_trust_old_handle(on_loop: bool) -> None:
    with MemoryCluster() as memory:
        job = stored(memory, "Running")
        memory.patch(TFJOBS, "default", "a", {"status": {"tfDist": {"phase": "Completed"}}}, subresource="status")
        old = StoredJob(TFJOBS, {**job.stored, "status": {"tfDist": {"phase": "Running"}}})

        def wait() -> None:
            if on_loop:
                asyncio.run(wait_on_loop(memory, old, "running", None))
            else:
                wait_for(memory, [old], "running", None, print)

        with pytest.raises(JobFailed, match="Succeeded and will never be running"):
            wait()


def test_unavailable_cluster_does_not_extend_timeout() -> None:
    def before(verb: str, *_: Any, **__: Any) -> None:
        raise Unavailable("away")

    with MemoryCluster() as memory:
        job = stored(memory, "Running")
        begun = time.monotonic()
        with pytest.raises(GoalNotReached, match="the cluster has not answered"):
            wait_for(disturbed(memory, before), [job], "succeeded", 0.0, print)
        assert time.monotonic() - begun < 60


def nothing(_: float | None) -> list[JobEvent]:
    return []


async def rounds(count: int) -> None:
    """Run ``count`` iterations of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("step", [600.0, None], ids=["with an end", "without"])
@pytest.mark.parametrize("later", [0, 1, 2])
def test_cancelled_wait_ends_despite_new_event(later: int, step: float | None) -> None:
    def twice() -> WaitSteps[None]:
        yield step
        yield step

    async def cancelled() -> bool:
        changed = asyncio.Event()
        task = asyncio.ensure_future(run_on_loop(twice(), changed, nothing))
        await rounds(9)
        changed.set()
        await rounds(later)
        task.cancel()
        await rounds(9)
        changed.set()  # a wait that continues would end after this
        await asyncio.wait({task})
        return task.cancelled()

    assert asyncio.run(cancelled())


def test_event_loop_is_not_kept_alive() -> None:
    def once() -> WaitSteps[None]:
        yield 0.0

    async def crowd() -> weakref.ref[asyncio.AbstractEventLoop]:
        await asyncio.gather(*(run_on_loop(once(), asyncio.Event(), nothing) for _ in range(20)))
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(crowd())
    gc.collect()
    assert loop() is None


def test_outcome_of_job_that_was_replaced_is_that_it_was_deleted() -> None:
    memory = MemoryCluster()
    job = stored(memory, "Succeeded")
    memory.delete(TFJOBS, job.namespace, job.name)
    found = outcome_now(memory, job)
    assert found is not None
    assert (found.kind, found.reason) == (OutcomeKind.DELETED, "Deleted")
    stored(memory, "Running")
    assert outcome_now(memory, job) == found
