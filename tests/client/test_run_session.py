"""A run misses nothing if its watch of pods is slower than its watch of the job."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.cluster.support import FixedLogs, FixedStream, owned_by, pod
from tests.controller.harness import tfjob
from tests.waiting import until
from tf_dist.client.log_follower import LogLines, log_opener
from tf_dist.client.monitor import JobSnapshot
from tf_dist.client.run_session import Result, run_session
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import ALL_LINES, PODS, TFJOBS, Cluster, LogOptions, Resource
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.signals import Signals
from tf_dist.core.model import names
from tf_dist.core.pipeline.session import EndCause
from tf_dist.errors import Forbidden

SECONDS = 60


class Behind:
    """A cluster whose watch of pods starts only after a deletion."""

    def __init__(self, inner: MemoryCluster) -> None:
        self._inner = inner
        self.listed = threading.Event()
        self._late = threading.Event()

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._inner, verb)

    def list(self, resource: Resource, *args: Any, **kwargs: Any) -> Any:
        found = self._inner.list(resource, *args, **kwargs)
        if resource is PODS:
            self.listed.set()
        return found

    def watch(self, resource: Resource, *args: Any, **kwargs: Any) -> Any:
        if resource is PODS:
            self._late.wait(SECONDS)
        return self._inner.watch(resource, *args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> None:
        self._inner.delete(*args, **kwargs)
        self._late.set()


class Notes:
    """A view that records lines."""

    tick: float | None = None

    def __init__(self) -> None:
        self.lines: list[str] = []

    def show(self, scene: JobSnapshot, lines: list[LogLines]) -> None:
        self.lines += [text for some in lines for text in some.texts]

    def say(self, text: str, style: str = "") -> None:
        self.lines.append(text)

    def close(self) -> None:
        pass


def running_session(
    cluster: Cluster, job: StoredJob, view: Notes, results: list[Result], timeout: float | None
) -> threading.Thread:
    """A session that runs in a separate thread."""
    logs = log_opener(cluster, LogOptions(follow=True))

    def run() -> None:
        results.append(run_session(cluster, job, view, Signals(), lambda _: logs, timeout=timeout, here=True))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("timeout", [SECONDS, None])
def test_reads_log_of_pod_observed_only_after_end_of_job(timeout: float | None) -> None:
    with MemoryCluster() as memory:
        memory.log_source = FixedLogs([b"here\n"]).logs
        stored = memory.create(TFJOBS, "default", tfjob("a", workers=1, ps=0))
        behind, view, results = Behind(memory), Notes(), list[Result]()
        job = StoredJob(TFJOBS, stored)
        running = running_session(behind, job, view, results, timeout)  # type: ignore[arg-type]
        try:
            until(behind.listed.is_set, SECONDS)
            memory.create(PODS, "default", owned_by(stored, worker(job)))
            ended = {"name": "tensorflow", "restartCount": 0, "state": {"terminated": {"exitCode": 0}}}
            status = {"phase": "Succeeded", "containerStatuses": [ended]}
            memory.patch(PODS, "default", "a-worker-0", {"status": status}, subresource="status")
        finally:
            memory.patch(TFJOBS, "default", "a", {"status": {"tfDist": {"phase": "Completed"}}}, subresource="status")
            running.join(SECONDS)
    assert [result.end.cause for result in results] == [EndCause.SUCCEEDED]
    assert view.lines == ["here"]


@pytest.mark.parametrize("allowed", [True, False])
def test_annotates_job_with_time_of_last_checkpoint(allowed: bool) -> None:
    lines = [f"2026-11-21T10:00:0{n}.5Z {text}\n".encode() for n, text in enumerate(("checkpoint=/m/1", "loss=0.5"))]

    class ReadOnly:
        """A cluster in which the client cannot change jobs."""

        refused = threading.Event()

        def __getattr__(self, verb: str) -> Any:
            return getattr(memory, verb)

        def patch(self, *_: Any, **__: Any) -> Any:
            self.refused.set()
            raise Forbidden("tfjobs.kubeflow.org is forbidden")

    with MemoryCluster() as memory:
        memory.log_source = FixedLogs(lines).logs
        stored = memory.create(TFJOBS, "default", tfjob("a", workers=1, ps=0))
        view, results, cluster = Notes(), list[Result](), memory if allowed else ReadOnly()
        running = running_session(cluster, StoredJob(TFJOBS, stored), view, results, SECONDS)  # type: ignore[arg-type]
        try:
            ran = {"name": "tensorflow", "restartCount": 0, "state": {"running": {}}}
            memory.create(PODS, "default", owned_by(stored, worker(StoredJob(TFJOBS, stored))))
            status = {"phase": "Running", "containerStatuses": [ran]}
            memory.patch(PODS, "default", "a-worker-0", {"status": status}, subresource="status")

            def annotations() -> Any:
                return memory.get(TFJOBS, "default", "a")["metadata"].get("annotations") or {}

            until(lambda: names.CHECKPOINT_AT in annotations() if allowed else ReadOnly.refused.is_set(), SECONDS)
            said = annotations().get(names.CHECKPOINT_AT)
        finally:
            memory.patch(TFJOBS, "default", "a", {"status": {"tfDist": {"phase": "Completed"}}}, subresource="status")
            running.join(SECONDS)
    assert [result.end.cause for result in results] == [EndCause.SUCCEEDED]
    assert said == ("2026-11-21T10:00:01.000000Z" if allowed else None)


class RestartedKubelet:
    """A log source that ends the first followed log, like an API server when a kubelet restarts."""

    def __init__(self) -> None:
        self.followed = 0
        self._done = threading.Event()

    def end(self) -> None:
        """Let the container write its last lines and end."""
        self._done.set()

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> FixedStream:
        lines = [f"2026-11-21T10:00:0{n}.5Z step={n}\n".encode() for n in range(1, 5)]
        if not options.follow:
            return FixedStream(lines)
        self.followed += 1
        if self.followed > 1:
            assert self._done.wait(SECONDS)
        return FixedStream(lines[: 1 if self.followed == 1 else 3])


def test_kubelet_restart_loses_no_lines_or_results() -> None:
    """The first stream ends while the container runs. The second ends with the container, one line too early."""
    source = RestartedKubelet()
    with MemoryCluster() as memory:
        memory.log_source = source.logs
        stored = memory.create(TFJOBS, "default", tfjob("a", workers=1, ps=0))
        job, view, results = StoredJob(TFJOBS, stored), Notes(), list[Result]()
        memory.create(PODS, "default", owned_by(stored, worker(job)))
        set_state(memory, "Running", {"running": {}})
        running = running_session(memory, job, view, results, SECONDS)
        try:
            until(lambda: source.followed == 2, SECONDS)
            set_state(memory, "Succeeded", {"terminated": {"exitCode": 0}})
            source.end()
        finally:
            memory.patch(TFJOBS, "default", "a", {"status": {"tfDist": {"phase": "Completed"}}}, subresource="status")
            running.join(SECONDS)
    assert view.lines == ["step=1", "step=2", "step=3", "step=4"]
    assert results[0].snapshot.result.metrics == {"step": 4.0}


def test_successful_run_waits_for_end_of_pods() -> None:
    with MemoryCluster() as memory:
        stored = memory.create(TFJOBS, "default", tfjob("a", workers=1, ps=0))
        job, results = StoredJob(TFJOBS, stored), list[Result]()
        memory.create(PODS, "default", owned_by(stored, worker(job)))
        memory.bind("default", "a-worker-0", "n1")
        memory.patch(TFJOBS, "default", "a", {"status": {"tfDist": {"phase": "Completed"}}}, subresource="status")
        running = running_session(memory, job, Notes(), results, None)
        until(lambda: "deletionTimestamp" in memory.get(PODS, "default", "a-worker-0")["metadata"], SECONDS)
        assert results == []
        memory.delete(PODS, "default", "a-worker-0", grace_period=0)
        running.join(SECONDS)
        assert (len(results), memory.list(PODS).items) == (1, [])


def set_state(memory: MemoryCluster, phase: str, state: dict[str, Any]) -> None:
    """Set the state of the only pod."""
    container = {"name": "tensorflow", "restartCount": 0, "state": state}
    status = {"phase": phase, "containerStatuses": [container]}
    memory.patch(PODS, "default", "a-worker-0", {"status": status}, subresource="status")


def worker(job: StoredJob) -> dict[str, Any]:
    """The only pod of the job."""
    body = pod("a-worker-0", containers=[{"name": "tensorflow", "image": "example.com/main:1"}])
    selected = dict(one.split("=") for one in job.selector.split(","))
    body["metadata"]["labels"] = {**selected, names.REPLICA_TYPE: "worker", names.REPLICA_INDEX: "0"}
    return body
