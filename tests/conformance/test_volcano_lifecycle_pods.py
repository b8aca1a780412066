"""Metadata and TF_CONFIG of the pods of a Volcano Job, as ``createJobPod`` and the tensorflow plugin make them.

Source: ``pkg/controllers/job/job_controller_util.go`` and its tests ``TestCreateJobPod_*``;
``plugins/distributed-framework/tensorflow`` (volcano-sh/volcano at ed72c7c8).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.test_volcano_lifecycle import end, job, later, run, started, task

OURS = "tf-dist.dev/"


def volcano_keys(found: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in found.items() if not key.startswith(OURS)}


def test_annotations_and_labels_of_pod() -> None:
    world = started(job(task("worker", 2), queue="research"))
    metadata = world.pods["job1-worker-1"]["metadata"]
    assert volcano_keys(metadata["annotations"]) == {
        "volcano.sh/task-index": "1",
        "volcano.sh/task-spec": "worker",
        "volcano.sh/job-name": "job1",
        "volcano.sh/queue-name": "research",
        "volcano.sh/job-version": "0",
        "volcano.sh/job-retry-count": "0",
        "volcano.sh/template-uid": "job1-worker",
    }
    assert volcano_keys(metadata["labels"]) == {
        "volcano.sh/task-index": "1",
        "volcano.sh/task-spec": "worker",
        "volcano.sh/job-name": "job1",
        "volcano.sh/job-namespace": "default",
        "volcano.sh/queue-name": "research",
    }


@pytest.mark.parametrize(("action", "version"), [("RestartJob", "1"), ("RestartTask", "0"), ("RestartPod", "0")])
def test_pod_has_annotations_of_its_retry(action: str, version: str) -> None:
    world = started(job(task("worker", 2), policies=({"event": "PodFailed", "action": action},)))
    end(world, "worker-0")
    later(world, 1000)
    run(world)
    annotations = world.pods["job1-worker-0"]["metadata"]["annotations"]
    told = annotations["volcano.sh/job-version"], annotations["volcano.sh/job-retry-count"]
    assert told == (version, "1")


COPIED = [
    ({"volcano.sh/preemptable": "true"}, {"volcano.sh/preemptable": "true"}),
    ({"volcano.sh/cooldown-time": "600s"}, {"volcano.sh/cooldown-time": "600s"}),
    ({"volcano.sh/revocable-zone": "rz1"}, {"volcano.sh/revocable-zone": "rz1"}),
    ({"volcano.sh/jdb-min-available": "2"}, {"volcano.sh/jdb-min-available": "2"}),
    ({"volcano.sh/jdb-max-unavailable": "30%"}, {"volcano.sh/jdb-max-unavailable": "30%"}),
    (
        {"volcano.sh/jdb-min-available": "2", "volcano.sh/jdb-max-unavailable": "1"},
        {"volcano.sh/jdb-min-available": "2"},
    ),
    ({"volcano.sh/sla-waiting-time": "1h", "team": "x"}, {}),
]


@pytest.mark.parametrize(("given", "copied"), COPIED)
def test_annotations_of_job_are_copied_to_pods(given: dict[str, str], copied: dict[str, str]) -> None:
    document = job(task("worker", 1))
    plain = started(document).pods["job1-worker-0"]["metadata"]["annotations"]
    document["metadata"]["annotations"] = given
    found = started(document).pods["job1-worker-0"]["metadata"]["annotations"]
    assert {key: value for key, value in found.items() if key not in plain} == copied


@pytest.mark.parametrize("key", ["volcano.sh/preemptable", "volcano.sh/cooldown-time"])
def test_labels_of_job_are_copied_to_pods(key: str) -> None:
    document = job(task("worker", 1))
    document["metadata"]["labels"] = {key: "10m", "volcano.sh/revocable-zone": "rz1", "team": "x"}
    found = started(document).pods["job1-worker-0"]["metadata"]["labels"]
    assert found[key] == "10m"
    assert "volcano.sh/revocable-zone" not in found
    assert "team" not in found


def tf_config(world: Any, pod: str) -> Any:
    container = world.pods[pod]["spec"]["containers"][0]
    return next((json.loads(one["value"]) for one in container.get("env", ()) if one["name"] == "TF_CONFIG"), None)


def test_task_without_tensorflow_role_has_its_own_type() -> None:
    """getTaskType: a task that has none of the four roles is its own type."""
    world = started(job(task("ps", 1), task("worker", 2), task("tensorboard", 1), plugins={"tensorflow": []}))
    cluster = {
        "ps": ["job1-ps-0.job1:2222"],
        "worker": ["job1-worker-0.job1:2222", "job1-worker-1.job1:2222"],
    }
    assert tf_config(world, "job1-tensorboard-0") == {"cluster": cluster, "task": {"type": "tensorboard", "index": 0}}
    assert tf_config(world, "job1-worker-1") == {"cluster": cluster, "task": {"type": "worker", "index": 1}}
