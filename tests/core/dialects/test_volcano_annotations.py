"""Annotations of Volcano's scheduler, as ``pkg/scheduler/api`` reads them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.dialects.documents import Doc, changed, volcano, warnings
from tests.core.gang.gangs import gangs_of
from tests.core.gang.stored import admitter_of
from tests.core.world import World
from tf_dist.core.dialects import parse, read
from tf_dist.core.gang.types import AdmissionRequest, Gang, TopologyRequest
from tf_dist.core.model.context import EmitEvent
from tf_dist.core.model.job import Job
from tf_dist.core.reconciler.reconcile import load_status

SLA = "volcano.sh/sla-waiting-time"
PREEMPTABLE = "volcano.sh/preemptable"
AFFINITY = "volcano.sh/task-topology-affinity"
TASK_PRIORITY = "volcano.sh/task-priority"


def annotated(**annotations: str) -> Doc:
    return changed(volcano(), "metadata.annotations", annotations)


def job_of(document: Doc) -> Job:
    job = parse(document).job
    assert read(document).scheduling == job.scheduling
    return job


@pytest.mark.parametrize(
    ("annotations", "seconds"),
    [
        ({}, None),
        ({SLA: "1h2m3s"}, 3723),
        ({"sla-waiting-time": "90s"}, 90),
        ({SLA: "10m", "sla-waiting-time": "90s"}, 600),
        ({SLA: "soon", "sla-waiting-time": "90s"}, 90),
        ({SLA: "0s"}, None),
        ({SLA: "-5m"}, None),
        ({SLA: "90"}, None),
    ],
)
def test_sla_waiting_time_is_patience(annotations: dict[str, str], seconds: float | None):
    assert job_of(annotated(**annotations)).scheduling.patience == seconds


@pytest.mark.parametrize("said", ["soon", "0s", "90", "-5m"])
def test_warns_of_invalid_waiting_time(said: str):
    (found,) = warnings(annotated(**{SLA: said}))
    assert (found.path, "is not a waiting time" in found.message) == (f'metadata.annotations["{SLA}"]', True)


@pytest.mark.parametrize(
    ("job", "template", "expected"),
    [
        ({}, {}, True),
        ({"annotations": "true"}, {}, True),
        ({"annotations": "false"}, {}, False),
        ({"annotations": "F"}, {}, False),
        ({"annotations": "no"}, {}, False),
        ({"annotations": ""}, {}, False),
        ({"labels": "false"}, {}, False),
        ({"labels": "false", "annotations": "true"}, {}, True),
        ({"labels": "true", "annotations": "false"}, {}, False),
        ({}, {"annotations": "false"}, False),
        ({}, {"labels": "0"}, False),
        ({"annotations": "true"}, {"annotations": "false"}, True),
        ({"labels": "true"}, {"labels": "false"}, True),
        ({"labels": "true"}, {"annotations": "false"}, False),
        ({"annotations": "false"}, {"annotations": "true"}, False),
    ],
)
def test_preemptable_comes_from_annotations_and_labels(job: dict[str, str], template: dict[str, str], expected: bool):
    """A job's annotations and labels are copied onto its pods. The annotation of a pod overrides its label."""
    document = volcano()
    for field, value in job.items():
        document["metadata"][field] = {PREEMPTABLE: value}
    for field, value in template.items():
        document["spec"]["tasks"][1]["template"].setdefault("metadata", {})[field] = {PREEMPTABLE: value}
    assert job_of(document).scheduling.preemptable is expected


@pytest.mark.parametrize(
    ("said", "topology", "told"),
    [
        ("ps,worker", "kubernetes.io/hostname", ""),
        ("worker,ps", "kubernetes.io/hostname", ""),
        ("ps;ps,worker", "kubernetes.io/hostname", ""),
        ("ps,worker;", "kubernetes.io/hostname", ""),
        ("ps", "", "only all of them (ps,worker)"),
        ("ps;worker", "", "only all of them"),
        ("ps,wroker", "", "names the task 'wroker'"),
        ("ps,worker;chief", "", "names the task 'chief'"),
        ("ps,worker,ps", "", "only all of them"),
        ("", "", "only all of them"),
    ],
)
def test_affinity_of_all_tasks_is_preferred_topology(said: str, topology: str, told: str):
    document = annotated(**{AFFINITY: said})
    assert job_of(document).scheduling.topology == topology
    assert [told in found.message for found in warnings(document)] == ([True] if told else [])


def gang_of(document: Doc) -> Gang:
    (gang,) = gangs_of(admitter_of([AdmissionRequest(read(document), load_status({}), 0.0)]).scheduler)
    return gang


def test_admission_uses_patience_preemptable_and_topology():
    gang = gang_of(annotated(**{SLA: "10m", PREEMPTABLE: "false", AFFINITY: "ps,worker"}))
    assert (gang.patience, gang.preemptable) == (600, False)
    assert gang.locality == TopologyRequest(label="kubernetes.io/hostname")
    zone = "topology.kubernetes.io/zone"
    ours = gang_of(annotated(**{AFFINITY: "ps,worker", "tf-dist.dev/topology": zone}))
    assert ours.locality == TopologyRequest(label=zone)


UNUSED = (
    ("volcano.sh/task-topology-anti-affinity", "keeps tasks on different nodes", "podAntiAffinity"),
    ("volcano.sh/task-topology-task-order", "orders the pods of a gang", ""),
    ("volcano.sh/cooldown-time", "protects new pods", "volcano.sh/preemptable"),
    ("volcano.sh/revocable-zone", "nodes that are lent", ""),
    ("volcano.sh/jdb-min-available", "limits the pods that are evicted", ""),
    ("volcano.sh/jdb-max-unavailable", "limits the pods that are evicted", ""),
    ("volcano.sh/numa-topology-policy", "NUMA", ""),
    ("volcano.sh/hierarchy", "belongs to a queue", "parent"),
    ("volcano.sh/vgpu-mode", "shares GPUs", ""),
    ("volcano.sh/resource-strategy-scoring-type", "scores nodes", ""),
    ("scheduling.volcano.sh/queue-name", "the queue of a lone pod", "spec.queue"),
    (
        "volcano.sh/preemptible",
        "neither Volcano nor tf-dist reads this annotation",
        "did you mean volcano.sh/preemptable?",
    ),
)


@pytest.mark.parametrize(("key", "message", "hint"), UNUSED)
def test_warns_once_of_each_unused_annotation(key: str, message: str, hint: str):
    document = annotated(**{key: "x"})
    document["spec"]["tasks"][0]["template"].setdefault("metadata", {})["annotations"] = {key: "x"}
    (found,) = warnings(document)
    assert (found.path, message in found.message, hint in found.hint) == (f'metadata.annotations["{key}"]', True, True)
    del document["metadata"]["annotations"]
    (found,) = warnings(document)
    assert found.path == f'spec.tasks[0].template.metadata.annotations["{key}"]'


@pytest.mark.parametrize(
    "key",
    [
        *(
            "task-topology",
            "vgpu-podgroup-policy",
            "vgpu-use-gpuuuid",
            "vgpu-nouse-gpuuuid",
            "resource-strategy-weight",
        ),
        *("qos-level", "hierarchy-weights", "job-forwarding", "forward-cluster"),
        *("scheduling.volcano.sh/queue-allocation-gate", "scheduling.volcano.sh/group-min-member"),
        *("scheduling.volcano.sh/group-min-resources", "scheduling.volcano.sh/group-name"),
        "scheduling.k8s.io/group-name",
    ],
)
def test_known_volcano_annotations_are_not_typos(key: str):
    (found,) = warnings(annotated(**{key if "/" in key else f"volcano.sh/{key}": "x"}))
    assert "tf-dist does not use it" in found.message


def test_job_annotations_are_not_read_from_pods():
    document = volcano()
    document["spec"]["tasks"][0]["template"].setdefault("metadata", {})["annotations"] = {SLA: "1m"}
    (found,) = warnings(document)
    assert "is read from the job, not from its pods" in found.message


def test_task_priority_is_read_only_from_pods():
    document = volcano()
    document["spec"]["tasks"][0]["template"].setdefault("metadata", {})["annotations"] = {TASK_PRIORITY: "5"}
    assert warnings(document) == []
    (found,) = warnings(annotated(**{TASK_PRIORITY: "5"}))
    assert "is read from pods, not from the job" in found.message


@pytest.mark.parametrize("key", ["volcano.sh/task-spec", "volcano.sh/job-version", "example.com/owner", PREEMPTABLE])
def test_annotations_of_controllers_and_others_are_ignored(key: str):
    assert warnings(annotated(**{key: "true"})) == []


def test_no_warnings_if_volcano_schedules_gang():
    told = {key: "x" for key, *_ in UNUSED}
    assert warnings(annotated(**told, **{"tf-dist.dev/gang-scheduler": "volcano"})) == []


def events(document: Doc) -> list[Any]:
    world = World(read(document))
    found = [action for action in world.look().actions if isinstance(action, EmitEvent)]
    return [event.message for event in (*found, *_later(world)) if event.reason == "AnnotationsNotUsed"]


def _later(world: World) -> list[EmitEvent]:
    world.settle()
    return [action for action in world.look().actions if isinstance(action, EmitEvent)]


def test_event_message_is_at_most_1000_characters():
    many = {key: "1" for key, *_ in UNUSED}
    (said,) = events(annotated(**many, **{f"volcano.sh/{'x' * 50}{number}": "1" for number in range(40)}))
    assert len(said) == 1000


def test_event_names_unused_annotations_once():
    (said,) = events(annotated(**{"volcano.sh/cooldown-time": "1m", "volcano.sh/revocable-zone": "*", SLA: "1m"}))
    assert said.startswith("tf-dist does not use volcano.sh/cooldown-time, volcano.sh/revocable-zone:")
    assert events(annotated(**{SLA: "1m"})) == []
