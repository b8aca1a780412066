"""What is kept of pods that are gone: the latest, until a pass has taken them into account."""

from __future__ import annotations

from tests.cluster.support import pod
from tf_dist.cluster.api import Object
from tf_dist.controller.informers.informer_set import DeletedPods
from tf_dist.core.model import names


def gone(job: str, name: str, uid: str = "") -> Object:
    labels = {names.JOB_UID: job, names.REPLICA_TYPE: "worker", names.REPLICA_INDEX: "0"}
    owners = [{"kind": "TFJob", "name": job, "uid": job, "controller": True}]
    metadata = {"namespace": "default", "uid": uid, "labels": labels, "ownerReferences": owners}
    stored = pod(name)
    return {**stored, "metadata": {**stored["metadata"], **metadata}, "status": {"phase": "Failed"}}


def test_a_pod_that_was_still_seen_is_neither_gone_nor_forgotten_by_that_pass() -> None:
    """It left after the cache was read, so that only the next pass takes it into account."""
    departed, job = DeletedPods(), names.owned_by_key("default", "a")
    seen, missed = gone("a", "1", "one"), gone("a", "2", "two")
    for pod_ in (seen, missed):
        departed.add(pod_)
    read = departed.of(job, [seen])
    assert [view.name for view in read] == ["2"]
    departed.forget(job, read)
    assert [view.name for view in departed.of(job, [])] == ["1"]


def kept(departed: DeletedPods) -> dict[str, list[str]]:
    return {job: [view.name for view in departed.of(names.owned_by_key("default", job), ())] for job in "ab"}


def test_the_latest_are_kept() -> None:
    departed = DeletedPods(most=3)
    for job, name in (("a", "1"), ("b", "3"), ("b", "2"), ("b", "2")):
        departed.add(gone(job, name))
    departed.add(pod("4"))
    assert kept(departed) == {"a": ["1"], "b": ["2", "3"]}
    departed.add(gone("b", "4"))
    assert kept(departed) == {"a": [], "b": ["2", "3", "4"]}


def test_the_latest_pods_of_a_job_outlive_those_of_jobs_that_came_after_its_first() -> None:
    departed = DeletedPods(most=3)
    for job, name in (("a", "1"), ("b", "1"), ("a", "2"), ("a", "3")):
        departed.add(gone(job, name))
    assert kept(departed) == {"a": ["1", "2", "3"], "b": []}


def test_what_a_pass_has_taken_into_account_is_forgotten_and_nothing_newer() -> None:
    departed, job = DeletedPods(), names.owned_by_key("default", "a")
    for name in "12":
        departed.add(gone("a", name))
    read = departed.of(job, ())
    departed.add(gone("a", "2", "newer"))
    departed.forget(job, read)
    assert [(view.name, view.uid) for view in departed.of(job, ())] == [("2", "newer")]
