"""The latest deleted pods are kept until a pass has processed them."""

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


def test_pod_still_in_cache_is_left_for_next_pass() -> None:
    """The pod was deleted after the cache was read, so only the next pass processes it."""
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


def test_only_latest_deleted_pods_are_kept() -> None:
    departed = DeletedPods(most=3)
    for job, name in (("a", "1"), ("b", "3"), ("b", "2"), ("b", "2")):
        departed.add(gone(job, name))
    departed.add(pod("4"))
    assert kept(departed) == {"a": ["1"], "b": ["2", "3"]}
    departed.add(gone("b", "4"))
    assert kept(departed) == {"a": [], "b": ["2", "3", "4"]}


def test_job_with_latest_deleted_pod_keeps_all_its_pods() -> None:
    departed = DeletedPods(most=3)
    for job, name in (("a", "1"), ("b", "1"), ("a", "2"), ("a", "3")):
        departed.add(gone(job, name))
    assert kept(departed) == {"a": ["1", "2", "3"], "b": []}


def test_forget_removes_processed_pods_and_keeps_newer_pods() -> None:
    departed, job = DeletedPods(), names.owned_by_key("default", "a")
    for name in "12":
        departed.add(gone("a", name))
    read = departed.of(job, ())
    departed.add(gone("a", "2", "newer"))
    departed.forget(job, read)
    assert [(view.name, view.uid) for view in departed.of(job, ())] == [("2", "newer")]
