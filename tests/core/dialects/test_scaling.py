"""Another number of workers, as a patch of the document."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.dialects.documents import changed, v1, v1alpha1, volcano
from tf_dist.core.dialects import read, scale_patch
from tf_dist.core.model import Job, Role
from tf_dist.errors import InvalidJob

AT_ONCE = "spec.runPolicy.schedulingPolicy.minAvailable"


def merged(document: Any, patch: Any) -> Any:
    """A JSON merge patch applied (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def workers(job: Job) -> int:
    return next(spec.replicas for spec in job.replica_specs if spec.role is Role.WORKER)


def told(document: Any, count: int) -> str:
    with pytest.raises(InvalidJob) as caught:
        scale_patch(document, count)
    return "\n".join(f"{one.path}: {one.message} ({one.hint})" for one in caught.value.problems)


@pytest.mark.parametrize("make", [v1, v1alpha1, volcano], ids=lambda make: make.__name__)
@pytest.mark.parametrize("count", [2, 3, 7])
def test_a_patch_changes_the_workers_and_nothing_else(make: Any, count: int):
    document = make()
    patch = scale_patch(document, count)
    assert document == make()
    after = merged(document, patch)
    assert workers(read(after)) == count
    assert merged(after, scale_patch(after, workers(read(document)))) == document


def test_only_a_list_needs_the_version_that_was_seen():
    for make, fenced in ((v1, False), (v1alpha1, True), (volcano, True)):
        patch = scale_patch(changed(make(), "metadata.resourceVersion", "17"), 3)
        assert (patch.get("metadata") == {"resourceVersion": "17"}) is fenced


def test_in_v1_the_key_may_be_written_in_any_case():
    document = v1()
    specs = document["spec"]["tfReplicaSpecs"]
    specs["WORKER"] = specs.pop("Worker")
    assert scale_patch(document, 5)["spec"] == {"tfReplicaSpecs": {"WORKER": {"replicas": 5}}}


def test_the_task_of_the_workers_may_have_another_name():
    document = changed(volcano(), "spec.tasks.1.name", "trainer")
    document["spec"]["plugins"] = {"tensorflow": ["--worker=trainer", "--ps=ps"], "svc": []}
    assert [task["replicas"] for task in scale_patch(document, 6)["spec"]["tasks"]] == [1, 6]


def test_what_the_job_does_not_allow():
    document = v1alpha1()
    document["spec"] |= {"min-instance": 2, "max-instance": 4}
    assert "with 5 workers: 5 workers are more than max-instance 4 (write 4 or fewer)" in told(document, 5)
    assert "with 1 worker: 1 workers are fewer than min-instance 2" in told(document, 1)
    assert "with 2 workers: 6 replicas must be there at once" in told(changed(v1(), AT_ONCE, 6), 2)
    assert "minAvailable" in told(volcano(), 1)


def test_a_job_without_workers():
    document = v1()
    del document["spec"]["tfReplicaSpecs"]["Worker"]
    assert told(document, 2).startswith("spec.tfReplicaSpecs: the job has no workers to scale: Chief, PS")
