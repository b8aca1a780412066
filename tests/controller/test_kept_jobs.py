"""Memory use of a controller with thousands of jobs: equal parts are shared, and documents are packed."""

from __future__ import annotations

import copy
import gc
from typing import Any

from tests.controller.harness import World, tfjob
from tf_dist.cluster.api import TFJOBS, Object
from tf_dist.cluster.client.indexer import Indexer, object_key
from tf_dist.controller.informers import transforms
from tf_dist.controller.job_index import JobEntry, JobIndex
from tf_dist.controller.settings import JobRef
from tf_dist.core.model.fieldpath import PackedJson
from tf_dist.core.model.status import StoredDocument

SEEN: dict[str, Any] = {"observedReplicas": {"worker": "0-1"}, "counts": {"worker": {"ready": 2}}}


def known(name: str, index: JobIndex | None = None) -> JobEntry:
    stored = tfjob()
    stored["metadata"] |= {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"}
    stored["status"] = {"tfDist": {"version": 1, "phase": "Running", **copy.deepcopy(SEEN)}}
    return (index or JobIndex()).read(JobRef(TFJOBS, "default", name), transforms.job(stored))


def test_jobs_share_equal_policies_and_statuses() -> None:
    one, two = known("one"), known("two")
    assert one.job is not None
    assert two.job is not None
    assert one.job.run_policy is two.job.run_policy
    assert one.job.scheduling is two.job.scheduling
    assert one.job.success is two.job.success
    assert one.status.counts is two.status.counts
    assert one.status.attempts is two.status.attempts
    assert one.status.observed_replicas is two.status.observed_replicas
    templates = [spec.template for job in (one.job, two.job) for spec in job.replica_specs]
    assert all(isinstance(template, PackedJson) for template in templates)
    assert templates[0] == templates[len(templates) // 2]


def test_object_marked_as_deleting_stays_stored_document() -> None:
    cache, stored = Indexer(), known("one").stored
    cache.put(stored)
    cache.mark_deleting(object_key(stored), "one", "2026-01-01T00:00:00Z")
    marked: Object | None = cache.get(object_key(stored))
    assert isinstance(marked, StoredDocument)
    assert marked["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
    assert marked["spec"] == stored["spec"]


def test_pass_without_writes_decodes_no_document() -> None:
    world = World()
    world.submit(tfjob())
    world.settle()
    world.controller.informers.start()
    try:
        assert world.controller.informers.wait_synced(30)
        world.settle()
        [stored] = [stored for _, stored in world.controller.informers.jobs()]
        assert isinstance(stored, StoredDocument)
        stored.pack()
        world.controller.step()
        assert not any(isinstance(part, dict) and "spec" in part for part in gc.get_referents(stored))
    finally:
        world.controller.informers.stop()
