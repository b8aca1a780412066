"""Patches that change the number of workers.

Overrides of a pipeline's step for a job that another user wrote.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.core.dialects.documents import changed, merged, v1, v1alpha1, volcano
from tf_dist.core.dialects import StepOverrides, apply_step_overrides, parse, read, scale_patch
from tf_dist.core.model import names
from tf_dist.core.model.job import Job, Role
from tf_dist.errors import InvalidJob

AT_ONCE = "spec.runPolicy.schedulingPolicy.minAvailable"


def workers(job: Job) -> int:
    return next(spec.replicas for spec in job.replica_specs if spec.role is Role.WORKER)


def told(document: Any, count: int) -> str:
    with pytest.raises(InvalidJob) as caught:
        scale_patch(document, count)
    return "\n".join(f"{one.path}: {one.message} ({one.hint})" for one in caught.value.problems)


@pytest.mark.parametrize("make", [v1, v1alpha1, volcano], ids=lambda make: make.__name__)
@pytest.mark.parametrize("count", [2, 3, 7])
def test_scale_patch_changes_only_workers(make: Any, count: int):
    document = make()
    patch = scale_patch(document, count)
    assert document == make()
    after = merged(document, patch)
    assert workers(read(after)) == count
    assert merged(after, scale_patch(after, workers(read(document)))) == document


def test_patch_of_list_requires_resource_version():
    for make, fenced in ((v1, False), (v1alpha1, True), (volcano, True)):
        patch = scale_patch(changed(make(), "metadata.resourceVersion", "17"), 3)
        assert (patch.get("metadata") == {"resourceVersion": "17"}) is fenced


def test_v1_replica_type_may_have_any_case():
    document = v1()
    specs = document["spec"]["tfReplicaSpecs"]
    specs["WORKER"] = specs.pop("Worker")
    assert scale_patch(document, 5)["spec"] == {"tfReplicaSpecs": {"WORKER": {"replicas": 5}}}


def test_worker_task_may_have_another_name():
    document = changed(volcano(), "spec.tasks.1.name", "trainer")
    document["spec"]["plugins"] = {"tensorflow": ["--worker=trainer", "--ps=ps"], "svc": []}
    assert [task["replicas"] for task in scale_patch(document, 6)["spec"]["tasks"]] == [1, 6]


def test_refuses_worker_counts_outside_bounds():
    document = v1alpha1()
    document["spec"] |= {"min-instance": 2, "max-instance": 4}
    assert "with 5 workers: 5 workers are more than max-instance 4 (write 4 or fewer)" in told(document, 5)
    assert "with 1 worker: 1 worker is fewer than min-instance 2" in told(document, 1)
    assert "with 2 workers: 6 replicas must start together" in told(changed(v1(), AT_ONCE, 6), 2)
    assert "minAvailable" in told(volcano(), 1)


def test_refuses_to_scale_job_without_workers():
    document = v1()
    del document["spec"]["tfReplicaSpecs"]["Worker"]
    assert told(document, 2).startswith("spec.tfReplicaSpecs: the job has no workers to scale: Chief, PS")


FORMS = pytest.mark.parametrize("make", [v1, v1alpha1, volcano], ids=lambda make: make.__name__)
ALL = StepOverrides(
    workers=5,
    ps=2,
    image="mine:2",
    command=("python", "other.py"),
    args=("--steps=5",),
    env={"A": "1", "B": "2"},
    labels={"team": "vision"},
    tidy=True,
)


@FORMS
def test_empty_overrides_change_nothing(make: Any) -> None:
    assert apply_step_overrides(make(), StepOverrides()) == make()


@FORMS
def test_overrides_are_applied_to_job(make: Any) -> None:
    document = make()
    before = copy.deepcopy(document)
    after = apply_step_overrides(document, ALL)
    assert document == before
    job = parse(after).job
    assert {spec.role: spec.replicas for spec in job.replica_specs if spec.role in (Role.WORKER, Role.PS)} == {
        Role.WORKER: 5,
        Role.PS: 2,
    }
    for spec in job.replica_specs:
        if not spec.template:
            continue
        assert spec.template["metadata"]["labels"]["team"] == "vision"
        for container in spec.template["spec"]["containers"]:
            assert [one["name"] for one in container["env"]][:2] == ["A", "B"]
            if container["name"] == spec.container:
                assert container["image"] == "mine:2"
                assert (container["command"], container["args"]) == (["python", "other.py"], ["--steps=5"])


@pytest.mark.parametrize(("left_out", "given"), [("PS", {"worker"}), ("Worker", {"chief", "ps"})])
def test_resources_apply_to_workers_or_to_all_replicas_without_workers(left_out: str, given: set[str]) -> None:
    document = v1()
    del document["spec"]["tfReplicaSpecs"][left_out]
    job = parse(apply_step_overrides(document, StepOverrides(resources={"example.com/tpu": 2}))).job
    found = {spec.type: spec.template["spec"]["containers"][0].get("resources", {}) for spec in job.replica_specs}
    assert {type_ for type_, resources in found.items() if "example.com/tpu" in resources.get("limits", {})} == given


@pytest.mark.parametrize("make", [v1, volcano], ids=lambda make: make.__name__)
def test_sets_queue_and_priority(make: Any) -> None:
    job = read(apply_step_overrides(make(), StepOverrides(queue="vision", priority_class="high")))
    assert (job.scheduling.queue, job.scheduling.priority_class) == ("vision", "high")


def test_refuses_override_that_dialect_cannot_express() -> None:
    with pytest.raises(InvalidJob) as caught:
        apply_step_overrides(v1alpha1(), StepOverrides(priority_class="high"))
    assert len(caught.value.problems) == 1
    assert "tf-dist convert" in caught.value.problems[0].hint


@pytest.mark.parametrize("make", [v1, v1alpha1, volcano], ids=lambda make: make.__name__)
def test_queue_override_wins_over_queue_of_document(make: Any) -> None:
    assert read(apply_step_overrides(make(), StepOverrides(queue="vision"))).scheduling.queue == "vision"
    labelled = make()
    labelled["metadata"]["labels"] = {names.QUEUE: read(labelled).scheduling.queue or "speech"}
    assert read(apply_step_overrides(labelled, StepOverrides(queue="vision"))).scheduling.queue == "vision"


def test_refuses_replicas_of_missing_type() -> None:
    document = v1()
    del document["spec"]["tfReplicaSpecs"]["PS"]
    with pytest.raises(InvalidJob, match="2 ps replicas are asked for, and the job has none"):
        apply_step_overrides(document, StepOverrides(ps=2))


def test_variable_of_container_wins_over_override() -> None:
    document = v1()
    container = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "A", "value": "own"}]
    after = apply_step_overrides(document, StepOverrides(env={"A": "ours", "B": "2"}))
    found = after["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["env"]
    assert found == [{"name": "B", "value": "2"}, {"name": "A", "value": "own"}]


@pytest.mark.parametrize(("said", "expected"), [(None, "Running"), ("None", "None"), ("All", "All")])
def test_sets_clean_pod_policy_if_job_has_none(said: str | None, expected: str) -> None:
    document = v1()
    document["spec"]["runPolicy"] = {} if said is None else {"cleanPodPolicy": said}
    assert apply_step_overrides(document, StepOverrides(tidy=True))["spec"]["runPolicy"]["cleanPodPolicy"] == expected


@pytest.mark.parametrize(("count", "bound"), [(1, "1"), (2, "2"), (4, "4")])
def test_scaling_elastic_job_sets_its_maximum(count: int, bound: str) -> None:
    """Otherwise, admission would resize the job to its former maximum."""
    document = changed(
        changed(v1(), AT_ONCE, ...), "metadata.annotations", {names.MIN_WORKERS: "1", names.MAX_WORKERS: "4"}
    )
    after = merged(document, scale_patch(document, count))
    assert workers(read(after)) == count
    assert after["metadata"]["annotations"] == {names.MIN_WORKERS: "1", names.MAX_WORKERS: bound}


def test_stored_variable_with_invalid_name_is_kept() -> None:
    document = changed(v1(), "spec.tfReplicaSpecs.Worker.template.spec.containers.0.env", [{"name": ["a"]}])
    made = apply_step_overrides(document, StepOverrides(env={"A": "b"}))
    container = made["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert container["env"] == [{"name": "A", "value": "b"}, {"name": ["a"]}]
