"""A try creates, adopts or replaces its step's job, but never uses jobs of others or jobs that are being deleted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.argo.launcher.launching import SECONDS, Site, site
from tests.controller.harness import disturbed, tfjob
from tests.waiting import until
from tf_dist.argo.launcher import contract
from tf_dist.argo.launcher.step_job import Interrupted, StepJobs, step_document
from tf_dist.client.job_files import LoadedJob
from tf_dist.client.session_host import start_job
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import PODS, TFJOBS, Cluster, Object, Resource
from tf_dist.cluster.signals import Signals
from tf_dist.core.pipeline.workflow_stop import LAUNCHER
from tf_dist.errors import AlreadyExists, Conflict, Unavailable

PENDING = {"phase": "Pending", "message": "waits"}
FAILED = {"phase": "Failed", "reason": "JobFailed", "message": "worker-0 exited with code 1", "completionTime": "x"}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as found:
        yield found


class Place:
    """Starts the step's job like a try. ``said`` contains the messages."""

    def __init__(self, scene: Site, cluster: Cluster | None = None) -> None:
        self.said: list[str] = []
        self.signals = Signals(exit_after=0)
        entry, _ = step_document(scene.options(), "default")
        self._jobs = StepJobs(cluster or scene.memory, entry, "default", self.signals, self.said.append)

    def __call__(self) -> StoredJob:
        return start_job(self._jobs).job


def placed(scene: Site, entry: LoadedJob, say: Any = print) -> StoredJob:
    return start_job(StepJobs(scene.memory, entry, "default", Signals(), say)).job


def status(scene: Site, memory: Object) -> None:
    """Write the job's memory like a controller."""
    scene.memory.patch(TFJOBS, "default", scene.name, {"status": {"tfDist": memory}}, subresource="status")


def test_first_try_creates_job(scene: Site) -> None:
    job = Place(scene)()
    assert job.uid == scene.uid()
    assert job.stored["metadata"]["labels"][contract.WORKFLOW_UID] == scene.workflow["metadata"]["uid"]


@pytest.mark.parametrize("memory", [None, PENDING, {"phase": "Completed"}, FAILED], ids=["new", "pending", "done", "x"])
def test_next_try_adopts_job(scene: Site, memory: Object | None) -> None:
    """The next try also adopts a failed job, if no try has reported its failure."""
    before = scene.made()
    if memory:
        status(scene, memory)
    place = Place(scene)
    assert place().uid == before.uid
    assert place.said == [f"continues with tfjob/{scene.name}, which an earlier try of this step created"]
    assert scene.uid() == before.uid


@pytest.mark.parametrize("others", [{}, {contract.WORKFLOW_UID: "another"}, {contract.WORKFLOW_UID: ""}])
@pytest.mark.parametrize("memory", [PENDING, FAILED], ids=["open", "over"])
def test_job_of_other_owner_is_not_touched(scene: Site, others: dict[str, str], memory: Object) -> None:
    document = tfjob(scene.name)
    document["metadata"]["labels"] = others
    document["metadata"]["annotations"] = {contract.REPORTED: "true", contract.STOPPED_BY: LAUNCHER}
    scene.memory.create(TFJOBS, "default", document)
    status(scene, memory)
    before = scene.stored()
    with pytest.raises(AlreadyExists, match="does not belong to this step"):
        Place(scene)()
    assert scene.stored() == before


def test_job_without_workflow_is_not_adopted(scene: Site) -> None:
    """A launcher without a workflow adopts no existing job."""
    entry, _ = step_document(scene.options(workflow="", workflow_uid="", node=""), "default")
    scene.memory.create(TFJOBS, "default", tfjob())
    with pytest.raises(AlreadyExists):
        placed(scene, entry)


@pytest.mark.parametrize("node", ["", "wf.train"])
def test_try_without_workflow_uid_adopts_own_job(scene: Site, node: str) -> None:
    entry, _ = step_document(scene.options(workflow_uid="", node=node), "default")
    first = placed(scene, entry)
    said: list[str] = []
    again = placed(scene, entry, said.append)
    assert again.uid == first.uid
    assert said == [f"continues with tfjob/{first.name}, which an earlier try of this step created"]
    for other in ({"node": "wf.other"}, {"workflow": "wf2"}):
        options = scene.options(**{"workflow_uid": "", "node": node, **other})
        with pytest.raises(AlreadyExists, match="does not belong to this step"):
            placed(scene, step_document(options, "default")[0])


def test_generated_name_without_workflow_uid_is_stable(scene: Site) -> None:
    document = tfjob()
    document["metadata"] = {"generateName": "digits-"}
    options = [scene.options(document, workflow_uid="", node=node) for node in ("wf.a", "wf.a", "wf.b")]
    first, again, other = (step_document(one, "default")[0].document["metadata"]["name"] for one in options)
    assert first == again != other


class Trying:
    """A try in a thread."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.result: list[Any] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result.append(self.place())
        except BaseException as error:
            self.result.append(error)

    def end(self) -> Any:
        self._thread.join(SECONDS)
        (found,) = self.result
        return found


@pytest.mark.parametrize("length", [10, 54])
def test_pod_names_are_truncated_to_63_characters(scene: Site, length: int) -> None:
    """The step's suffix makes the name too long, so the name loses its end but not more than necessary."""
    name = step_document(scene.options(tfjob("a" * length)), "default")[0].job.key.name
    assert len(f"{name}-worker-0") == min(63, length + len("-01234567-worker-0"))


def watching(scene: Site) -> tuple[Cluster, list[Resource]]:
    """The cluster, and the list of kinds that were watched."""
    watched: list[Resource] = []

    def note(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if verb == "watch":
            watched.append(resource)

    return disturbed(scene.memory, note), watched


def kept(scene: Site) -> str:
    """Create the step's job of an earlier try, start its deletion, and return its uid."""
    document = step_document(scene.options(), "default")[0].document
    document["metadata"]["finalizers"] = ["example.com/keep"]
    uid = str(scene.memory.create(TFJOBS, "default", document)["metadata"]["uid"])
    scene.memory.delete(TFJOBS, "default", scene.name)
    return uid


def release(scene: Site) -> None:
    scene.memory.patch(TFJOBS, "default", scene.name, {"metadata": {"finalizers": None}})


def test_job_being_deleted_is_replaced_after_deletion(scene: Site) -> None:
    """If the try adopted the job, the job would disappear during the try."""
    before = kept(scene)
    cluster, watched = watching(scene)
    trying = Trying(Place(scene, cluster))
    until(lambda: set(watched) == {TFJOBS, PODS}, SECONDS)
    assert (scene.uid(), trying.result) == (before, [])
    release(scene)
    assert trying.end().uid == scene.uid() != before


@pytest.mark.parametrize("memory", [FAILED, {**FAILED, "reason": "Evicted"}], ids=["failed", "evicted"])
def test_job_with_reported_failure_is_replaced_after_its_pods_end(scene: Site, memory: Object) -> None:
    before = scene.made(**{contract.REPORTED: "true"})
    status(scene, memory)
    whose = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": before.name, "uid": before.uid}
    labels = {"tf-dist.dev/job-uid": before.uid}
    metadata = {"name": "left", "labels": labels, "ownerReferences": [whose], "finalizers": ["example.com/keep"]}
    scene.memory.create(PODS, "default", {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    cluster, watched = watching(scene)
    trying = Trying(Place(scene, cluster))
    until(lambda: set(watched) == {TFJOBS, PODS}, SECONDS)
    until(lambda: scene.uid() == "", SECONDS)
    assert trying.result == [], "a new one has pods of the same names"
    scene.memory.patch(PODS, "default", "left", {"metadata": {"finalizers": None}})
    assert trying.end().uid == scene.uid() != before.uid
    assert "deletes it, and creates another" in trying.place.said[0]


def test_waits_for_pod_list_before_creation(scene: Site) -> None:
    scene.made(**{contract.REPORTED: "true"})
    status(scene, FAILED)
    done: list[str] = []
    created = threading.Event()

    def slow(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("create", TFJOBS):
            done.append("created")
            created.set()
        if (verb, resource) == ("list", PODS):
            until(lambda: scene.stored() is None, SECONDS)
            created.wait(0.3)  # times out, because the job is not created yet
            done.append("listed")

    Place(scene, disturbed(scene.memory, slow))()
    assert done == ["listed", "created"]


def test_new_job_of_same_step_is_adopted_instead_of_deleted(scene: Site) -> None:
    """Another client replaced the job first. The new job belongs to this step, so the try adopts it."""
    scene.made(**{contract.REPORTED: "true"})
    status(scene, FAILED)
    new: list[str] = []

    def before(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("delete", TFJOBS) and not new:
            scene.memory.delete(TFJOBS, "default", scene.name)
            new.append(scene.made().uid)

    assert Place(scene, disturbed(scene.memory, before))().uid == new[0] == scene.uid()


def test_signal_ends_wait_for_deletion(scene: Site) -> None:
    kept(scene)
    cluster, watched = watching(scene)
    place = Place(scene, cluster)
    with place.signals:
        trying = Trying(place)
        until(lambda: set(watched) == {TFJOBS, PODS}, SECONDS)
        signal.raise_signal(signal.SIGTERM)
        found = trying.end()
    assert isinstance(found, Interrupted)
    assert found.number == signal.SIGTERM


def test_deletion_is_retried_after_unavailable_cluster(scene: Site) -> None:
    before = scene.made(**{contract.REPORTED: "true"})
    status(scene, FAILED)
    failures = [1]

    def away(verb: str, *_: Any, **__: Any) -> None:
        if verb == "delete" and failures[0]:
            failures[0] -= 1
            raise Unavailable("no answer")

    assert Place(scene, disturbed(scene.memory, away))().uid != before.uid
    assert failures == [0]


def test_gives_up_if_job_is_recreated_repeatedly(scene: Site) -> None:
    scene.made(**{contract.REPORTED: "true"})
    status(scene, FAILED)

    def again(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("get", TFJOBS) and scene.stored() is None:
            scene.made(**{contract.REPORTED: "true"})
            status(scene, FAILED)

    with pytest.raises(Conflict, match="is created again each time"):
        Place(scene, disturbed(scene.memory, again))()


@pytest.mark.parametrize("by", [LAUNCHER, None], ids=["by a launcher", "by a user"])
def test_only_job_suspended_by_launcher_is_resumed(scene: Site, by: str | None) -> None:
    before = scene.made(**({contract.STOPPED_BY: by} if by else {}))
    scene.memory.patch(TFJOBS, "default", scene.name, {"spec": {"runPolicy": {"suspend": True}}})
    status(scene, {"phase": "Aborted", "reason": "JobSuspended"})
    job = Place(scene)()
    assert job.uid == before.uid
    assert job.stored["spec"]["runPolicy"]["suspend"] is (by is None)
    assert contract.STOPPED_BY not in (job.stored["metadata"].get("annotations") or {})
    assert job.stored == scene.stored()
