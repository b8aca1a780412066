"""The Client with an embedded cluster and real processes."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controller.harness import disturbed
from tests.waiting import until
from tf_dist import Client, InvalidJob, TFJob
from tf_dist.client.connection import Connection
from tf_dist.client.job_files import InvalidFiles, load_job_files
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.client.submission import WORKDIR
from tf_dist.client.wait import GoalNotReached
from tf_dist.cluster.api import Resource
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.auth import Credential
from tf_dist.cluster.client.client_config import KubeContext
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.errors import AlreadyExists, Forbidden, JobFailed, NotFound, Unavailable
from tf_dist.local.embedded import EmbeddedCluster, EmbeddedSettings

SECONDS = 120
FOREVER = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with EmbeddedCluster(EmbeddedSettings(serve=False)) as embedded:
        yield Client(connection=Connection(embedded.cluster, "default", "the test's cluster"))


def job(script: str, **fields: Any) -> TFJob:
    usual: dict[str, Any] = {
        "run_policy": {"cleanPodPolicy": "None"},
        "restart_policy": "Never",
        "success_policy": "AllWorkers",
    }
    return TFJob(f"job-{next(_numbers)}", image="none", command=["sh", "-c", script], **(usual | fields))


def test_job_from_submit_to_delete(client: Client) -> None:
    stored = client.submit(job("echo hello; echo accuracy=0.5", workers=2))
    done = client.wait(stored, timeout=SECONDS)
    assert done.outcome is not None
    assert (done.outcome.kind, done.state, done.outcome.metrics) == (
        OutcomeKind.SUCCEEDED,
        "Succeeded",
        {"accuracy": 0.5},
    )
    found = client.get(stored.name)
    assert found.outcome == done.outcome
    assert client.snapshot(found).result.metrics == {"accuracy": 0.5}
    assert [one.uid for one in client.list() if one.name == stored.name] == [found.uid] == [stored.uid]
    assert [finding.category for finding in client.explain(found)] == ["succeeded"]
    assert ("Normal", f"tfjob/{stored.name}") in {(event.type, event.about) for event in client.events(found)}
    assert [one["metadata"]["name"] for one in client.pods(found)]
    client.delete(found, wait=True, timeout=SECONDS)
    with pytest.raises(NotFound, match="there is no job"):
        client.get(stored.name)
    client.delete(stored.name, missing_ok=True)
    with pytest.raises(NotFound):
        client.delete(stored.name)


def test_failed_job_is_outcome_or_error_depending_on_goal(client: Client) -> None:
    stored = client.submit(job("echo why; exit 3"))
    outcome = client.wait(stored, timeout=SECONDS).outcome
    assert outcome is not None
    assert (outcome.kind, outcome.exit_code, outcome.replica) == (OutcomeKind.FAILED, 3, "worker-0")
    with pytest.raises(JobFailed) as caught:
        client.wait(stored.shown, until="succeeded", timeout=SECONDS)
    assert caught.value.outcome.exit_code == 3
    failed = client.get(stored).outcome
    assert failed is not None
    assert failed.log == "why"
    (finding,) = client.explain(stored)
    assert "worker-0" in f"{finding.summary} {finding.detail}"


def test_log_lines_have_replica(client: Client) -> None:
    stored = client.submit(job("for i in 1 2 3; do echo $i; done", workers=2))
    followed = [(str(line.replica), line.text) for line in client.logs(stored, follow=True)]
    assert sorted(followed) == [(f"worker-{index}", str(i)) for index in (0, 1) for i in (1, 2, 3)]
    client.wait(stored, timeout=SECONDS)
    assert [line.text for line in client.logs(stored, replicas=["worker-1"], tail=2)] == ["2", "3"]
    assert len(list(client.logs(stored, replicas=["worker"], tail=1))) == 2
    (stamped,) = client.logs(stored, replicas=["worker-0"], tail=1, timestamps=True)
    assert stamped.text.startswith("20")
    with pytest.raises(InvalidJob, match="did you mean worker-1"):
        list(client.logs(stored, replicas=["wroker-1"]))


@pytest.mark.parametrize(("server", "here"), [("", True), ("http://localhost:1", True), ("https://10.0.0.1", False)])
def test_folder_of_file_is_stored_only_for_local_cluster(tmp_path: Path, server: str, here: bool) -> None:
    (tmp_path / "job.yaml").write_text(TFJob("job", image="none", command=["pwd"]).to_yaml())
    place = KubeContext("there", server, "default", {}, lambda: Credential({})) if server else None
    client = Client(connection=Connection(MemoryCluster(), "default", "the test's cluster", place))
    (job,) = client.submit_files(load_job_files([str(tmp_path / "job.yaml")]))
    assert job.stored["metadata"].get("annotations", {}).get(WORKDIR) == (str(tmp_path) if here else None)


def test_suspends_resumes_and_scales_job(client: Client) -> None:
    stored = client.submit(job(FOREVER))
    client.wait(stored, until="running", timeout=SECONDS)
    assert client.scale(stored, 1) is stored
    with pytest.raises(GoalNotReached) as caught:
        client.wait(stored, timeout=0.01)
    assert f"tf-dist explain {stored.shown}" in caught.value.hint
    client.suspend(stored)
    assert client.wait(stored, until="suspended", timeout=SECONDS).state == "Suspended"
    client.resume(stored)
    client.wait(stored, until="running", timeout=SECONDS)
    client.scale(stored.name, 2)
    until(lambda: [row.state for row in client.snapshot(stored).replicas] == ["Running"] * 2, SECONDS)
    changes = client.watch(stored)
    assert next(changes)[0] == "ADDED"
    client.delete(stored)
    assert [change for change, _ in changes][-1] == "DELETED"
    with pytest.raises(NotFound, match="deleted"):
        client.wait(stored, timeout=SECONDS)


def test_logs_of_unstarted_job_suggest_explain(client: Client) -> None:
    stored = client.submit(job("true", run_policy={"suspend": True}))
    client.wait(stored, until="suspended", timeout=SECONDS)
    with pytest.raises(Unavailable) as caught:
        list(client.logs(stored))
    assert "explain" in caught.value.hint
    client.delete(stored)


def test_logs_of_deleted_pods_suggest_clean_pod_policy(client: Client) -> None:
    stored = client.submit(job("echo trained", run_policy={"cleanPodPolicy": "All"}))
    client.wait(stored, timeout=SECONDS)
    until(lambda: not client.pods(stored), SECONDS)
    with pytest.raises(Unavailable, match="its pods were deleted with their logs") as caught:
        list(client.logs(stored.name))
    assert "cleanPodPolicy: None" in caught.value.hint
    client.delete(stored)


def test_errors_name_problem_and_hint(client: Client) -> None:
    stored = client.submit(job("true", namespace="default"))
    with pytest.raises(InvalidJob) as caught:
        client.wait(stored, until="succeded")
    (problem,) = caught.value.problems
    assert (problem.path, problem.hint) == ("until", "did you mean succeeded?")
    with pytest.raises(InvalidFiles, match=r"metadata\.name"):
        client.submit(TFJob("9", image="x"))
    with pytest.raises(InvalidFiles, match="the file says default"):
        client.submit(job("true", namespace="default"), namespace="other")
    with pytest.raises(AlreadyExists, match=stored.name):
        client.submit(TFJob(stored.name, image="none", command=["true"]))
    client.wait(stored, timeout=SECONDS)
    for change in (client.suspend, lambda name: client.scale(name, 1), lambda name: client.scale(name, 2)):
        with pytest.raises(InvalidJob, match="it has ended"):
            change(stored.name)
    client.delete(stored, wait=True, timeout=SECONDS)
    client.submit(TFJob(stored.name, image="none", command=["true"]))
    with pytest.raises(NotFound, match="created anew"):
        client.get(stored)


def test_notebook_tables_escape_html(client: Client) -> None:
    evil = {"note": "<script>"}
    stored = client.submit(job("true", labels={"team": "html"}, annotations=evil))
    client.wait(stored, timeout=SECONDS)
    listed = client.list(labels="team=html")
    assert f"<td>{stored.shown}</td>" in listed._repr_html_()
    assert listed._repr_html_().count("<td>") == listed._repr_html_().count("<th>") == 6
    assert f"<td>{stored.shown}</td>" in client.get(stored)._repr_html_()
    assert "<td>worker-0</td>" in client.snapshot(stored)._repr_html_()
    named = StoredJob(stored.resource, {**stored.stored, "apiVersion": "<script>", "status": {"tfDist": {"x": 1}}})
    assert "<script>" not in named._repr_html_()


def _watchers(kind: str = "tfjobs") -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == f"informer-{kind}"]


def test_concurrent_coroutines_wait_and_leave_no_threads(client: Client) -> None:
    good, bad = client.submit(job("sleep 0.1")), client.submit(job("exit 1"))
    before = len(_watchers())

    async def wait() -> list[Any]:
        waits = [client.wait_async(one, "succeeded", timeout=SECONDS) for one in (good, bad.shown)]
        return await asyncio.gather(*waits, return_exceptions=True)

    done, failed = asyncio.run(wait())
    assert done.outcome.kind is OutcomeKind.SUCCEEDED
    assert isinstance(failed, JobFailed)
    until(lambda: len(_watchers()) == before, SECONDS)


def test_wait_async_can_be_cancelled_and_times_out(client: Client) -> None:
    stored = client.submit(job(FOREVER))

    async def cancelled() -> None:
        waiting = asyncio.create_task(client.wait_async(stored))
        await client.wait_async(stored, "running", timeout=SECONDS)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancelled())
    with pytest.raises(GoalNotReached, match="is not finished yet"):
        asyncio.run(client.wait_async(stored, timeout=0.05))
    gone = client.wait_async(stored, "deleted", timeout=SECONDS)

    async def deleted() -> StoredJob:
        waiting = asyncio.create_task(gone)
        await asyncio.to_thread(client.delete, stored)
        return await waiting

    assert asyncio.run(deleted()).uid == stored.uid


def test_watch_skips_forbidden_kind_unless_all_are_forbidden(client: Client) -> None:
    hidden: set[str] = set()

    def before(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if verb == "list" and resource.plural in hidden:
            raise Forbidden(f"{resource.plural} is forbidden")

    cluster = disturbed(client.cluster, before)
    watching = Client(connection=Connection(cluster, "default", "the test's cluster"))
    stored = client.submit(job("true"))
    before_it, others_before = len(_watchers()), len(_watchers("jobs"))
    hidden.add("jobs")
    changes = watching.watch()
    assert stored.uid in {one.uid for _, one in itertools.islice(changes, len(client.list()))}
    until(lambda: len(_watchers("jobs")) == others_before, SECONDS)  # the new informer has reported Forbidden
    client.cluster.patch(stored.resource, "default", stored.name, {"metadata": {"labels": {"seen": "once-more"}}})
    assert any(one.stored["metadata"].get("labels") == {"seen": "once-more"} for _, one in changes)
    changes.close()  # type: ignore[attr-defined]
    until(lambda: len(_watchers()) == before_it, SECONDS)
    hidden.add("tfjobs")
    with pytest.raises(Forbidden):
        next(watching.watch())
