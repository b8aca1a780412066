"""Reduced objects in the informers: decisions are the same as with whole objects, and memory use is low."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.core import builders
from tf_dist.controller.informers import transforms
from tf_dist.core.gang.resources.pod_index import node_of_pod
from tf_dist.core.model import names
from tf_dist.core.model.pods import pod_view
from tf_dist.core.podbuilder.replica_pod import require_node

TEXTS = st.sampled_from(["", "Evicted", "OOMKilled", "NodeLost", "no room"])
TIMES = st.sampled_from(["2027-01-15T08:00:00Z", "2027-01-15T09:00:00Z"])
CONDITIONS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                [
                    "Ready",
                    "PodScheduled",
                    "DisruptionTarget",
                    "Initialized",
                    "ContainersReady",
                    "PodReadyToStartContainers",
                ]
            ),
            "status": st.sampled_from(["True", "False", "Unknown"]),
            "lastProbeTime": st.none(),
            "lastTransitionTime": TIMES,
        },
        optional={"reason": TEXTS, "message": TEXTS},
    ),
    unique_by=lambda condition: condition["type"],
    max_size=5,
)
TERMINATED = st.fixed_dictionaries({"exitCode": st.integers(0, 255), "reason": TEXTS, "finishedAt": TIMES})
STATE = st.one_of(
    st.just({}),
    TERMINATED.map(lambda end: {"terminated": end}),
    st.just({"running": {"startedAt": "2027-01-15T08:00:00Z"}}),
    st.just({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
)
STATUSES = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["tensorflow", "sidecar"]),
            "state": STATE,
            "lastState": STATE,
            "restartCount": st.integers(0, 3),
            "image": st.just("tf"),
            "containerID": st.just("containerd://0123"),
        }
    ),
    max_size=2,
)
PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "name": st.just("mnist-worker-0"),
                "namespace": st.just("default"),
                "uid": st.just("u-1"),
                "resourceVersion": st.just("7"),
                "labels": st.just(
                    {
                        names.JOB_UID: "job",
                        names.REPLICA_TYPE: "worker",
                        names.REPLICA_INDEX: "0",
                        names.ATTEMPT: "1.0.0",
                    }
                ),
                "ownerReferences": st.just([{"kind": "TFJob", "name": "mnist", "uid": "job", "controller": True}]),
                "managedFields": st.just([{"manager": "kubelet", "fieldsV1": {"f:spec": {}}}]),
            },
            optional={"deletionTimestamp": TIMES, "creationTimestamp": TIMES},
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.just([{"name": "tensorflow", "image": "tf", "env": [{"name": "A", "value": "b"}]}])},
            optional={
                "nodeName": st.sampled_from(["n1", "n2"]),
                "schedulerName": st.sampled_from(["default-scheduler", "volcano"]),
            },
        ),
        "status": st.fixed_dictionaries(
            {},
            optional={
                "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
                "reason": TEXTS,
                "message": TEXTS,
                "startTime": TIMES,
                "conditions": CONDITIONS,
                "containerStatuses": STATUSES,
                "initContainerStatuses": STATUSES,
            },
        ),
    }
)


# This pod ended by itself, long before the disruption.
DISRUPTED_LATE = {
    "metadata": {
        "name": "mnist-worker-0",
        "labels": {names.JOB_UID: "job", names.REPLICA_TYPE: "worker", names.REPLICA_INDEX: "0"},
        "ownerReferences": [{"kind": "TFJob", "name": "mnist", "uid": "job", "controller": True}],
    },
    "spec": {"containers": [{"name": "tensorflow"}]},
    "status": {
        "phase": "Failed",
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2027-01-15T09:00:00Z", "reason": "X"}
        ],
        "containerStatuses": [
            {
                "name": "tensorflow",
                "state": {"terminated": {"exitCode": 3, "finishedAt": "2027-01-15T08:00:00Z"}},
                "lastState": {"terminated": {"exitCode": 4}},
            }
        ],
    },
}


# The node of this pod has stopped reporting, unless a readiness gate keeps the pod from being ready.
SILENT = {
    **DISRUPTED_LATE,
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}],
    },
}
GATED = {**SILENT, "spec": {**DISRUPTED_LATE["spec"], "readinessGates": [{"conditionType": "example.com/ready"}]}}


# This pod waits only for its image.
PULLING = {
    **DISRUPTED_LATE,
    "status": {
        "phase": "Pending",
        "conditions": [{"type": "PodReadyToStartContainers", "status": "True"}],
        "containerStatuses": [{"name": "tensorflow", "state": {"waiting": {"reason": "ContainerCreating"}}}],
    },
}
# No scheduler of this name runs.
UNSEEN = {
    **DISRUPTED_LATE,
    "spec": {**DISRUPTED_LATE["spec"], "schedulerName": "volcano"},
    "status": {"phase": "Pending"},
}


@given(PODS)
@example(UNSEEN)
@example(PULLING)
@example(DISRUPTED_LATE)
@example(SILENT)
@example(GATED)
def test_reduced_pod_has_same_view_as_whole_pod(pod: dict[str, Any]) -> None:
    kept = transforms.pod(pod)
    assert pod_view(kept, "tensorflow") == pod_view(pod, "tensorflow")
    assert names.owner_key(kept) == names.owner_key(pod) != ""
    assert transforms.pod(kept) == kept
    assert "managedFields" not in json.dumps(kept)


def test_unschedulable_condition_is_kept() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available",
        "lastTransitionTime": "2027-01-15T09:00:00Z",
    }
    pod = {**DISRUPTED_LATE, "status": {"phase": "Pending", "conditions": [{**condition, "lastProbeTime": None}]}}
    kept = transforms.pod(pod)["status"]["conditions"]
    assert kept == [{key: value for key, value in condition.items() if key != "lastTransitionTime"}]


def test_running_pods_with_different_start_times_share_status_in_memory() -> None:
    def status(moment: str, **more: Any) -> dict[str, Any]:
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": moment}
        runs = {"name": "tensorflow", "restartCount": 0, "state": {"running": {"startedAt": moment}}, **more}
        return transforms.pod(
            {**DISRUPTED_LATE, "status": {"phase": "Running", "conditions": [ready], "containerStatuses": [runs]}}
        )["status"]

    first, second = status("2027-01-15T08:00:00Z"), status("2027-01-15T09:00:00Z")
    assert first["conditions"] is second["conditions"]
    assert first["containerStatuses"] is second["containerStatuses"]
    # The end of an earlier run is kept, and is not shared between pods.
    ended = {"terminated": {"exitCode": 1, "finishedAt": "2027-01-15T08:30:00Z"}}
    again = status("2027-01-15T09:00:00Z", lastState=ended, restartCount=1)["containerStatuses"]
    runs = {"running": {"startedAt": "2027-01-15T09:00:00Z"}}
    assert again == [{"name": "tensorflow", "restartCount": 1, "state": runs, "lastState": ended}]
    assert again is not status("2027-01-15T09:00:00Z", lastState=ended, restartCount=1)["containerStatuses"]


@pytest.mark.parametrize("bound", ["", "n2"])
@pytest.mark.parametrize("terms", [None, [], [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, {}]])
def test_pod_counts_on_required_node_until_bound(terms: Any, bound: str) -> None:
    pod = builders.pod(builders.v1_job(), "worker-0")
    free = copy.deepcopy(pod)
    if terms is not None:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        pod["spec"]["affinity"] = {"nodeAffinity": required}
    require_node(pod["spec"], "n1")
    if bound:
        pod["spec"]["nodeName"] = free["spec"]["nodeName"] = bound
    # A term without rules or an empty list of terms matches no node, so the node of such a pod is unknown.
    pinned = "n1" if terms is None else ""
    for stored, node in ((pod, bound or pinned), (free, bound)):
        assert node_of_pod(stored) == node_of_pod(transforms.pod(stored)) == node


def test_existence_transform_keeps_owner() -> None:
    metadata = {
        "name": "mnist-worker-0",
        "namespace": "default",
        "uid": "u",
        "resourceVersion": "3",
        "labels": {names.JOB_UID: "job", "app": "mnist"},
        "ownerReferences": [{"kind": "TFJob", "name": "mnist", "uid": "job", "controller": True}],
        "managedFields": [{}],
    }
    whole = {"metadata": metadata, "spec": {"ports": [{"port": 2222}]}, "status": {"loadBalancer": {}}}
    kept = transforms.existing(whole)
    assert names.owner_key(kept) == names.owner_key(whole)
    assert kept["metadata"]["resourceVersion"] == "3"
    assert set(kept) == {"metadata"}


@pytest.mark.parametrize(
    ("name", "owner", "kept"),
    [("mnist-svc", "job", True), ("code", "job", False), ("mnist-svc", "other", False), ("mnist-svc", "", False)],
)
def test_only_host_files_of_job_keep_data(name: str, owner: str, kept: bool) -> None:
    """Users can put the labels of a job on large ConfigMaps."""
    owners = [{"kind": "Job", "name": "mnist", "uid": owner, "controller": True}] if owner else []
    labels = {names.JOB_UID: "job", "other": "x" * 63}
    annotations = {"example.com/large": "y" * 10_000}
    metadata = {"name": name, "uid": "u", "labels": labels, "ownerReferences": owners, "annotations": annotations}
    whole = {"metadata": metadata, "data": {"worker.host": "z" * 10_000}, "binaryData": {"b": "eA=="}}
    found = transforms.config_map(whole)
    assert found.get("data") == (whole["data"] if kept else None)
    assert names.owner_key(found) == names.owner_key(whole)
    assert len(json.dumps({**found, "data": {}})) < 500


def test_equal_parts_of_objects_are_shared_in_memory() -> None:
    def made(number: int) -> dict[str, Any]:
        owner = {"kind": "TFJob", "name": "mnist", "uid": "job", "controller": True}
        metadata = {
            "name": f"p-{number}",
            "namespace": "default",
            "labels": {"app": "mnist"},
            "ownerReferences": [owner],
        }
        text = json.dumps({"metadata": metadata, "spec": {"nodeName": "n1", "containers": [{"name": "a"}]}})
        return transforms.pod(json.loads(text))

    one, other = made(1), made(2)
    assert one["metadata"]["ownerReferences"] is other["metadata"]["ownerReferences"]
    assert one["metadata"]["labels"]["app"] is other["metadata"]["labels"]["app"]
    assert one["spec"]["nodeName"] is other["spec"]["nodeName"]
    assert one["spec"]["containers"] is other["spec"]["containers"]
