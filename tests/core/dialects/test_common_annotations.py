"""The bounds of a job's workers, in every dialect.

The annotation that chooses the gang scheduler, in every dialect.

The label that chooses the queue, in every dialect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.core.dialects.documents import ALL, Doc, changed, errors, only_error, paths, v1, v1alpha1, volcano, warnings
from tf_dist.core.dialects import convert, parse, read
from tf_dist.core.model.assignment import replica_bounds, start_counts
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import ReplicaId, TFConfigStyle
from tf_dist.core.model.names import GANG_SCHEDULER
from tf_dist.core.podbuilder import replica_pod
from tf_dist.errors import InvalidJob

MIN, MAX = "tf-dist.dev/min-workers", "tf-dist.dev/max-workers"
AT = 'metadata.annotations["{}"]'


def dynamic(document: dict[str, Any], **said: str) -> dict[str, Any]:
    """The document with these bounds, and without fields that contradict them."""
    annotations = {f"tf-dist.dev/{key}-workers": value for key, value in said.items()}
    document = changed(document, "metadata.annotations", annotations)
    if document["apiVersion"] == "kubeflow.org/v1":
        document = changed(document, "spec.runPolicy.schedulingPolicy", {})
        document["spec"]["enableDynamicWorker"] = True
    return document


def test_v1_worker_bounds_are_annotations():
    job = parse(dynamic(v1(), min="2", max="8")).job
    assert replica_bounds(job) == {"chief": (1, 1), "ps": (2, 2), "worker": (2, 8)}
    assert job.scheduling.min_available == 5
    assert warnings(dynamic(v1(), min="2", max="8")) == []
    assert parse(dynamic(v1())).job.replica_specs[2].most == 3


def test_v1_min_available_does_not_change_size():
    assert replica_bounds(parse(v1()).job)["worker"] == (3, 3)
    five = changed(v1(), "spec.runPolicy.schedulingPolicy.minAvailable", 5)
    assert replica_bounds(parse(five).job)["worker"] == (3, 3)
    assert start_counts(parse(five).job) == {"chief": 1, "ps": 2, "worker": 2}


def test_v1alpha1_worker_bounds_are_instance_fields():
    document = v1alpha1()
    document["spec"] |= {"min-instance": 1, "max-instance": 4}
    assert replica_bounds(parse(document).job)["worker"] == (1, 4)
    document["spec"] |= {"min-instance": 0, "max-instance": 0}
    assert replica_bounds(parse(document).job)["worker"] == (2, 2)


def test_minimum_includes_chief_among_workers():
    document = v1alpha1()
    document["spec"] |= {"min-instance": 1}
    document["spec"]["replicaSpecs"][1]["replicas"] = 4
    document["spec"]["terminationPolicy"] = {"chief": {"replicaName": "WORKER", "replicaIndex": 2}}
    assert replica_bounds(parse(document).job)["worker"] == (3, 4)


def test_volcano_task_is_elastic_only_with_annotation():
    document = changed(dynamic(volcano(), max="5"), "spec.tasks.1.minAvailable", 1)
    document = changed(document, "spec.minAvailable", 2)
    job = parse(document).job
    assert replica_bounds(job) == {"ps": (1, 1), "worker": (2, 5)}
    assert start_counts(job) == {"ps": 1, "worker": 1}
    smaller = parse(dynamic(volcano(), min="1")).job
    assert replica_bounds(smaller) == {"ps": (1, 1), "worker": (1, 2)}
    assert smaller.scheduling.min_available == 2


@pytest.mark.parametrize(
    ("said", "key", "message", "hint"),
    [
        ({"min": "two"}, MIN, "'two' is not a number of workers", "from 1 up"),
        ({"max": "0"}, MAX, "'0' is not a number of workers", "from 1 up"),
        ({"max": "99999999999"}, MAX, "is not a number of workers", "from 1 up"),
        ({"min": "4"}, MIN, "is 4, but spec.tfReplicaSpecs.Worker.replicas is 3", "3 or less"),
        ({"max": "2"}, MAX, "is 2, but spec.tfReplicaSpecs.Worker.replicas is 3", "3 or more"),
        ({"min": "3", "max": "2"}, MIN, "is 3, more than", "swap the two values"),
    ],
)
def test_refuses_wrong_bounds_of_workers(said: dict[str, str], key: str, message: str, hint: str):
    (found,) = errors(dynamic(v1(), **said))
    assert found.path == AT.format(key)
    assert message in found.message
    assert hint in (found.hint or "")


@pytest.mark.parametrize(
    ("key", "message", "hint"),
    [
        ("max-disruptions", "the text 'soon' is not a number of disruptions", 'write one from 0 up: "20"'),
        ("recovery-timeout", "the text 'soon' is not a duration", "such as 90s, 10m or 1h30m"),
        ("admission-timeout", "the text 'soon' is not a duration", "such as 90s, 10m or 1h30m"),
        ("startup-timeout", "the text 'soon' is not a duration", "such as 90s, 10m or 1h30m"),
        ("evaluator-in-cluster", "must be true or false, not the text 'soon'", 'write "true", or leave it out'),
    ],
)
def test_refuses_invalid_limits(key: str, message: str, hint: str):
    (found,) = errors(changed(v1(), "metadata.annotations", {f"tf-dist.dev/{key}": "soon"}))
    assert (found.path, found.message, found.hint) == (AT.format(f"tf-dist.dev/{key}"), message, hint)


def test_refuses_contradicting_minimums():
    document = changed(dynamic(v1(), min="2"), "spec.runPolicy.schedulingPolicy", {"minAvailable": 6})
    (found,) = errors(document)
    assert "makes a gang of 5 with the other replicas, but minAvailable is 6" in found.message
    agreed = changed(document, "spec.runPolicy.schedulingPolicy", {"minAvailable": 5})
    assert replica_bounds(parse(agreed).job)["worker"] == (2, 3)


def test_warns_if_growing_restarts_job():
    document = dynamic(v1(), max="5")
    del document["spec"]["enableDynamicWorker"]
    (found,) = warnings(document)
    assert (found.path, "all its replicas start again" in found.message) == ("spec.enableDynamicWorker", True)
    document = changed(document, "metadata.annotations", {MAX: "3", MIN: "3"})
    assert warnings(document) == []


def test_warns_of_bounds_without_workers():
    document = dynamic(v1(), max="5")
    del document["spec"]["tfReplicaSpecs"]["Worker"]
    assert AT.format(MAX) in paths(warnings(document))


def test_v1alpha1_ignores_annotations_of_worker_bounds():
    assert paths(warnings(dynamic(v1alpha1(), min="1", max="4"))) == [AT.format(MIN), AT.format(MAX)]
    assert replica_bounds(parse(dynamic(v1alpha1(), min="1", max="4")).job)["worker"] == (2, 2)


def test_name_must_be_short_enough_for_highest_worker():
    document = changed(dynamic(v1(), max="1000"), "metadata.name", "a" * 53)
    (found,) = errors(document)
    assert "-worker-999" in found.message


def test_single_worker_that_may_grow_has_tf_config():
    alone = v1()
    del alone["spec"]["tfReplicaSpecs"]["Chief"], alone["spec"]["tfReplicaSpecs"]["PS"]
    alone["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = 1
    alone = changed(alone, "spec.runPolicy.schedulingPolicy", {})
    assert parse(alone).job.tf_config is TFConfigStyle.NONE
    assert parse(changed(alone, "metadata.annotations", {MAX: "2"})).job.tf_config is TFConfigStyle.V1


def test_conversion_keeps_the_bounds_of_workers():
    document = v1alpha1()
    document["spec"]["replicaSpecs"][2] = {**document["spec"]["replicaSpecs"][1], "tfReplicaType": "PS"}
    document["spec"] |= {"min-instance": 1, "max-instance": 4}
    result = convert(document)
    assert replica_bounds(parse(result.document).job)["worker"] == (1, 4)
    assert "the job would grow to another number of these replicas" not in [p.message for p in result.lost]


EVERY = pytest.mark.parametrize("document", ALL)


def asking(document: Callable[[], Doc], gang: str) -> Doc:
    job = document()
    return {**job, "metadata": {**job["metadata"], "annotations": {GANG_SCHEDULER: gang}}}


@EVERY
@pytest.mark.parametrize("gang", GangScheduler)
def test_job_may_name_any_gang_scheduler(document: Callable[[], Doc], gang: GangScheduler) -> None:
    assert parse(asking(document, gang.value)).job.scheduling.gang is gang
    assert read(asking(document, gang.value)).scheduling.gang is gang


@EVERY
def test_unknown_gang_scheduler_is_refused_with_suggestion(document: Callable[[], Doc]) -> None:
    problem = only_error(asking(document, "Volcan0"))
    assert problem.path == f'metadata.annotations["{GANG_SCHEDULER}"]'
    assert problem.hint == "did you mean volcano?"
    with pytest.raises(InvalidJob):
        read(asking(document, "Volcan0"))


@EVERY
def test_job_without_annotation_has_no_gang_scheduler(document: Callable[[], Doc]) -> None:
    """A Volcano Job does not ask for Volcano either: its schedulerName only chooses the scheduler that binds pods."""
    job = document()
    job["spec"] |= {"schedulerName": "volcano"} if job["kind"] == "Job" else {}
    assert parse(job).job.scheduling.gang is None


@EVERY
def test_gang_scheduler_annotation_does_not_reach_pods(document: Callable[[], Doc]) -> None:
    job = parse(asking(document, "kueue")).job
    pod = replica_pod.build_pod(job, ReplicaId(job.replica_specs[0].type, 0), "1.0.0")
    assert GANG_SCHEDULER not in (pod["metadata"].get("annotations") or {})


def test_conversion_keeps_the_gang_scheduler() -> None:
    assert convert(asking(volcano, "kueue")).document["metadata"]["annotations"] == {GANG_SCHEDULER: "kueue"}


LABEL = {"tf-dist.dev/queue": "vision"}


def unqueued(document: Any = None) -> Any:
    found = document or v1()
    for place in (found["spec"], found["spec"].get("runPolicy", {}).get("schedulingPolicy", {})):
        place.pop("queue", None)
    return found


def labelled(document: Any) -> Any:
    return {**document, "metadata": {**document["metadata"], "labels": LABEL}}


@pytest.mark.parametrize("make", [unqueued, v1alpha1, lambda: unqueued(volcano())])
def test_label_sets_queue(make: Any) -> None:
    document = labelled(make())
    assert parse(document).job.scheduling.queue == "vision"
    assert read(document).scheduling.queue == "vision"


def test_label_and_field_must_agree() -> None:
    document = labelled(v1())
    policy = document["spec"]["runPolicy"]["schedulingPolicy"]
    policy["queue"] = "vision"
    assert parse(document).job.scheduling.queue == "vision"
    policy["queue"] = "speech"
    with pytest.raises(InvalidJob) as refused:
        parse(document)
    [problem] = refused.value.problems
    assert problem.path == 'metadata.labels["tf-dist.dev/queue"]'
    assert "spec.runPolicy.schedulingPolicy.queue names speech" in problem.message


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (v1(), "spec.runPolicy.schedulingPolicy"),
        (v1(), "spec.tfReplicaSpecs.Worker.template.spec.priorityClassName"),
        (v1alpha1(), "spec.replicaSpecs.0.template.spec.priorityClassName"),
        (volcano(), "spec.priorityClassName"),
    ],
)
def test_warns_of_priority_classes_that_admission_never_accepts(document: Doc, path: str) -> None:
    name: Any = "system-node-critical"
    value = {"priorityClass": name} if path.endswith("schedulingPolicy") else name
    (found,) = [one for one in warnings(changed(document, path, value)) if "priority class" in one.message]
    assert found.message == f'priority class "{name}" is for components of the cluster: the job waits forever'
    assert path.replace(".0.", "[0].") in found.path
    assert found.hint == "name another priority class, or none"
