"""The job of a step: made, joined, or made anew; never a stranger's, and never one that is on its way out."""

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
    """What a try does to have its job; ``said``: what it told."""

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
    """The job is as a controller has written it."""
    scene.memory.patch(TFJOBS, "default", scene.name, {"status": {"tfDist": memory}}, subresource="status")


def test_the_first_try_makes_it(scene: Site) -> None:
    job = Place(scene)()
    assert job.uid == scene.uid()
    assert job.stored["metadata"]["labels"][contract.WORKFLOW_UID] == scene.workflow["metadata"]["uid"]


@pytest.mark.parametrize("memory", [None, PENDING, {"phase": "Completed"}, FAILED], ids=["new", "pending", "done", "x"])
def test_the_next_try_goes_on_with_it(scene: Site, memory: Object | None) -> None:
    """Also with what has failed, as long as no step has reported it."""
    before = scene.made()
    if memory:
        status(scene, memory)
    place = Place(scene)
    assert place().uid == before.uid
    assert place.said == [f"continues with tfjob/{scene.name}, which an earlier try of this step created"]
    assert scene.uid() == before.uid


@pytest.mark.parametrize("others", [{}, {contract.WORKFLOW_UID: "another"}, {contract.WORKFLOW_UID: ""}])
@pytest.mark.parametrize("memory", [PENDING, FAILED], ids=["open", "over"])
def test_a_strangers_job_of_the_same_name_is_left_alone(scene: Site, others: dict[str, str], memory: Object) -> None:
    document = tfjob(scene.name)
    document["metadata"]["labels"] = others
    document["metadata"]["annotations"] = {contract.REPORTED: "true", contract.STOPPED_BY: LAUNCHER}
    scene.memory.create(TFJOBS, "default", document)
    status(scene, memory)
    before = scene.stored()
    with pytest.raises(AlreadyExists, match="does not belong to this step"):
        Place(scene)()
    assert scene.stored() == before


def test_a_job_without_a_workflow_is_nobodys_step(scene: Site) -> None:
    """A launcher outside of any workflow takes over nothing that it did not make."""
    entry, _ = step_document(scene.options(workflow="", workflow_uid="", node=""), "default")
    scene.memory.create(TFJOBS, "default", tfjob())
    with pytest.raises(AlreadyExists):
        placed(scene, entry)


@pytest.mark.parametrize("node", ["", "wf.train"])
def test_without_the_uid_of_the_workflow_a_try_goes_on_with_its_job(scene: Site, node: str) -> None:
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


def test_without_the_uid_a_generated_name_is_the_same_for_each_try(scene: Site) -> None:
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
def test_the_names_of_its_pods_are_as_long_as_kubernetes_takes(scene: Site, length: int) -> None:
    """A name that the step makes too long loses its end, and no more of it than that."""
    name = step_document(scene.options(tfjob("a" * length)), "default")[0].job.key.name
    assert len(f"{name}-worker-0") == min(63, length + len("-01234567-worker-0"))


def watching(scene: Site) -> tuple[Cluster, list[Resource]]:
    """The cluster, and which kinds have been watched there."""
    watched: list[Resource] = []

    def note(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if verb == "watch":
            watched.append(resource)

    return disturbed(scene.memory, note), watched


def kept(scene: Site) -> str:
    """The step's job, of an earlier try, being deleted; its uid."""
    document = step_document(scene.options(), "default")[0].document
    document["metadata"]["finalizers"] = ["example.com/keep"]
    uid = str(scene.memory.create(TFJOBS, "default", document)["metadata"]["uid"])
    scene.memory.delete(TFJOBS, "default", scene.name)
    return uid


def release(scene: Site) -> None:
    scene.memory.patch(TFJOBS, "default", scene.name, {"metadata": {"finalizers": None}})


def test_one_that_is_being_deleted_is_waited_for_and_made_anew(scene: Site) -> None:
    """Joined, it would go under the hands of this try."""
    before = kept(scene)
    cluster, watched = watching(scene)
    trying = Trying(Place(scene, cluster))
    until(lambda: set(watched) == {TFJOBS, PODS}, SECONDS)
    assert (scene.uid(), trying.result) == (before, [])
    release(scene)
    assert trying.end().uid == scene.uid() != before


@pytest.mark.parametrize("memory", [FAILED, {**FAILED, "reason": "Evicted"}], ids=["failed", "evicted"])
def test_one_whose_failure_was_told_is_made_anew_once_its_pods_are_gone(scene: Site, memory: Object) -> None:
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


def test_pods_that_are_not_listed_yet_may_be_there(scene: Site) -> None:
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
            created.wait(0.3)  # that does not happen
            done.append("listed")

    Place(scene, disturbed(scene.memory, slow))()
    assert done == ["listed", "created"]


def test_another_that_came_in_the_place_of_the_one_to_be_cleared_away_is_not_deleted(scene: Site) -> None:
    """Another client was faster: what is there now is joined, as it is this step's."""
    scene.made(**{contract.REPORTED: "true"})
    status(scene, FAILED)
    new: list[str] = []

    def before(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("delete", TFJOBS) and not new:
            scene.memory.delete(TFJOBS, "default", scene.name)
            new.append(scene.made().uid)

    assert Place(scene, disturbed(scene.memory, before))().uid == new[0] == scene.uid()


def test_a_signal_ends_the_wait_for_what_is_to_go(scene: Site) -> None:
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


def test_a_cluster_that_is_away_for_a_moment_is_asked_again_to_delete(scene: Site) -> None:
    before = scene.made(**{contract.REPORTED: "true"})
    status(scene, FAILED)
    failures = [1]

    def away(verb: str, *_: Any, **__: Any) -> None:
        if verb == "delete" and failures[0]:
            failures[0] -= 1
            raise Unavailable("no answer")

    assert Place(scene, disturbed(scene.memory, away))().uid != before.uid
    assert failures == [0]


def test_one_that_comes_again_and_again_is_given_up(scene: Site) -> None:
    scene.made(**{contract.REPORTED: "true"})
    status(scene, FAILED)

    def again(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("get", TFJOBS) and scene.stored() is None:
            scene.made(**{contract.REPORTED: "true"})
            status(scene, FAILED)

    with pytest.raises(Conflict, match="is created again each time"):
        Place(scene, disturbed(scene.memory, again))()


@pytest.mark.parametrize("by", [LAUNCHER, None], ids=["by a launcher", "by a user"])
def test_one_that_a_launcher_suspended_is_resumed_and_no_other(scene: Site, by: str | None) -> None:
    before = scene.made(**({contract.STOPPED_BY: by} if by else {}))
    scene.memory.patch(TFJOBS, "default", scene.name, {"spec": {"runPolicy": {"suspend": True}}})
    status(scene, {"phase": "Aborted", "reason": "JobSuspended"})
    job = Place(scene)()
    assert job.uid == before.uid
    assert job.stored["spec"]["runPolicy"]["suspend"] is (by is None)
    assert contract.STOPPED_BY not in (job.stored["metadata"].get("annotations") or {})
    assert job.stored == scene.stored()
