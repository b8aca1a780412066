"""Pods and Services of replicas. A pod requires its assigned node without lifting its user's constraints."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import replicas, services_by_name, template, v1_job, v1alpha1_job, volcano_job
from tf_dist.core.gang.placement.predicates import matches_node_affinity
from tf_dist.core.model.job import Job, Plugins, ReplicaId, TFConfigStyle
from tf_dist.core.podbuilder import replica_pod, services
from tf_dist.core.podbuilder.replica_pod import require_node

WORKER_1 = ReplicaId("worker", 1)
LAST_WORDS = "FallbackToLogsOnError"


def pod_spec(job: Job, replica: ReplicaId = WORKER_1) -> dict[str, Any]:
    return replica_pod.build_pod(job, replica, "1.0.0")["spec"]  # type: ignore[no-any-return]


def env(job: Job, replica: ReplicaId = WORKER_1, container: int = 0) -> dict[str, Any]:
    listed = pod_spec(job, replica)["containers"][container].get("env", [])
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in listed}


@pytest.mark.parametrize("job", [v1_job(), v1alpha1_job(), volcano_job()])
def test_objects_are_owned_by_job(job: Job) -> None:
    owner = {
        "apiVersion": job.dialect.value,
        "kind": job.dialect.kind,
        "name": job.key.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    bodies = [*services.build_objects(job), *(replica_pod.build_pod(job, replica, "1.0.0") for replica in job.replicas)]
    assert len(bodies) > 3
    for body in bodies:
        assert body["metadata"]["ownerReferences"] == [owner]
        assert body["metadata"]["namespace"] == "default"
        assert body["metadata"]["labels"]["tf-dist.dev/job-uid"] == job.uid


@pytest.mark.parametrize("job", [v1_job(), v1alpha1_job(), volcano_job(), volcano_job(plugins=Plugins())])
def test_listed_names_match_built_objects(job: Job) -> None:
    made = tuple((body["kind"], body["metadata"]["name"]) for body in services.build_objects(job))
    assert tuple(services.job_objects(job)) == made


def test_template_is_never_changed() -> None:
    for make in (v1_job, volcano_job):
        job = make()
        before = copy.deepcopy([dict(spec.template) for spec in job.replica_specs])
        body = pod_spec(job)
        body["containers"][0]["env"].append("spoiled")
        body["containers"].append("spoiled")
        assert [dict(spec.template) for spec in job.replica_specs] == before


def test_template_metadata_does_not_override_own_labels() -> None:
    metadata = {"labels": {"team": "ml", "job-name": "mine"}, "annotations": {"note": "x"}}
    job = v1_job(replicas("Worker", 2, template={**template(), "metadata": metadata}))
    made = replica_pod.build_pod(job, WORKER_1, "1.2.3")["metadata"]
    assert made["labels"]["team"] == "ml"
    assert made["labels"]["job-name"] == "mnist"
    assert made["labels"]["tf-dist.dev/attempt"] == "1.2.3"
    assert made["annotations"] == {"note": "x"}


def test_job_control_annotations_do_not_reach_pods() -> None:
    annotations = {"tf-dist.dev/suspend": "true", "tf-dist.dev/workdir": "/w", "other": "x"}
    assert replica_pod.build_pod(v1_job(annotations=annotations), WORKER_1, "1.0.0")["metadata"]["annotations"] == {
        "tf-dist.dev/workdir": "/w"
    }


def test_services_of_replicas_are_not_headless() -> None:
    assert "clusterIP" not in services_by_name(v1_job())["mnist-worker-1"]["spec"]
    assert "clusterIP" not in services_by_name(v1alpha1_job())["example-ps-76no-1"]["spec"]


def test_services_are_headless_on_request_or_in_large_jobs() -> None:
    asked = v1_job(annotations={"tf-dist.dev/services": "headless"})
    large = v1_job(replicas("Worker", services.MOST_ADDRESSES + 1))
    for job in (asked, large):
        assert {body["spec"].get("clusterIP") for body in services.build_objects(job)} == {"None"}
    most = v1_job(replicas("Worker", services.MOST_ADDRESSES))
    assert not any("clusterIP" in body["spec"] for body in services.build_objects(most))


def test_service_has_ports_of_all_containers() -> None:
    own = {"name": "tensorflow", "image": "tf", "ports": [{"containerPort": 53, "protocol": "UDP"}]}
    side = {"name": "board", "image": "x", "ports": [{"containerPort": 6006}, {"containerPort": 2222}]}
    ports = services_by_name(v1_job(replicas("Worker", 2, template=template(containers=[own, side]))))[
        "mnist-worker-0"
    ]["spec"]["ports"]
    assert [(port["port"], port.get("protocol", "TCP")) for port in ports] == [
        (2222, "TCP"),
        (53, "UDP"),
        (6006, "TCP"),
    ]


def test_v1_service_has_all_ports_of_training_container() -> None:
    ports = [
        {"name": "tfjob-port", "containerPort": 2223},
        {"name": "tb", "containerPort": 6006},
        {"containerPort": 80},
    ]
    container = {"name": "tensorflow", "image": "tf", "ports": ports}
    job = v1_job(replicas("Worker", 2, template=template(containers=[container]), port=2223))
    service = services_by_name(job)["mnist-worker-1"]
    assert service["spec"] == {
        "selector": {
            "tf-dist.dev/job-uid": "uid-mnist",
            "tf-dist.dev/replica-type": "worker",
            "tf-dist.dev/replica-index": "1",
        },
        "publishNotReadyAddresses": True,
        "ports": [
            {"name": "tfjob-port", "port": 2223, "targetPort": 2223},
            {"name": "tb", "port": 6006},
            {"name": "port-80", "port": 80},
        ],
    }
    assert pod_spec(job)["containers"][0]["ports"] == ports


def test_v1_training_container_gets_default_port() -> None:
    assert pod_spec(v1_job())["containers"][0]["ports"] == [{"name": "tfjob-port", "containerPort": 2222}]


def test_v1alpha1_service_has_one_port() -> None:
    service = services_by_name(v1alpha1_job())["example-ps-76no-1"]
    assert service["spec"]["ports"] == [{"name": "tf-port", "port": 2222, "targetPort": 2222}]


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always"])
def test_pod_restart_policy_overrides_template(policy: str) -> None:
    spec = replicas("Worker", 2, pod_restart_policy=policy, template=template(restartPolicy="Never"))
    assert pod_spec(v1_job(spec))["restartPolicy"] == policy


def test_tf_config_is_set_only_in_training_container() -> None:
    containers = [
        {"name": "side", "image": "x"},
        {"name": "tensorflow", "image": "tf", "env": [{"name": "A", "value": "b"}]},
    ]
    job = v1_job(replicas("Worker", 2, template=template(containers=containers)))
    assert env(job, container=0) == {}
    assert list(env(job, container=1)) == ["A", "TF_CONFIG"]


def test_volcano_tf_config_is_set_in_all_but_init_containers() -> None:
    containers = [{"name": "side", "image": "x"}, {"name": "tensorflow", "image": "tf"}]
    spec = replicas("worker", 2, template=template(containers=containers, initContainers=[{"name": "i", "image": "x"}]))
    job = volcano_job(spec, tf_config=TFConfigStyle.VOLCANO)
    assert "TF_CONFIG" in env(job, container=0)
    assert "TF_CONFIG" in env(job, container=1)
    names = [entry["name"] for entry in pod_spec(job)["initContainers"][0]["env"]]
    assert names == ["VK_TASK_INDEX", "VC_TASK_INDEX", "VC_WORKER_HOSTS", "VC_WORKER_NUM"]


def test_unknown_replica_type_raises_key_error() -> None:
    with pytest.raises(KeyError, match="missing"):
        replica_pod.build_pod(v1_job(), ReplicaId("missing", 0), "1.0.0")


def test_default_parameter_server_needs_no_template() -> None:
    server = replicas("PS", 1, template={}, server_image="tensorflow/tensorflow:1.3.0")
    spec = pod_spec(v1alpha1_job(replicas("MASTER", 1), server), ReplicaId("ps", 0))
    assert [container["image"] for container in spec["containers"]] == ["tensorflow/tensorflow:1.3.0"]


# -- Volcano's plugins --------------------------------------------------------------------------------------------


def test_fixed_hostname_of_template_gives_one_host() -> None:
    job = volcano_job(replicas("worker", 2, template=template(hostname="one", subdomain="sub")))
    data = next(body for body in services.build_objects(job) if body["kind"] == "ConfigMap")["data"]
    assert data["worker.host"] == "one.sub"
    assert (pod_spec(job)["hostname"], pod_spec(job)["subdomain"]) == ("one", "sub")


@pytest.mark.parametrize("publish", [True, False])
def test_service_of_volcano_job_selects_pods_without_ports(publish: bool) -> None:
    service = services_by_name(volcano_job(plugins=Plugins(svc=True, publish_not_ready=publish)))["tf-dist-mnist"]
    assert service["spec"] == {
        "clusterIP": "None",
        "selector": {"tf-dist.dev/job-uid": "uid-volcano"},
        "publishNotReadyAddresses": publish,
    }


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE_A = {"key": "zone", "operator": "In", "values": ["a"]}
GPU = {"key": "gpu", "operator": "Exists"}
NOT_N2 = {"key": "metadata.name", "operator": "NotIn", "values": ["n2"]}
TERMS = (
    {"matchExpressions": [ZONE_A]},
    {"matchExpressions": [GPU]},
    {"matchExpressions": [ZONE_A, GPU]},
    {"matchFields": [NOT_N2]},
    {"matchFields": [NOT_N2], "matchExpressions": [GPU]},
    {"matchExpressions": []},
    {},
)
LABELS = ({}, {"zone": "a"}, {"gpu": "1"}, {"zone": "a", "gpu": "1"}, {"zone": "b"})


def pinned(spec: dict[str, Any], node: str = "n1") -> dict[str, Any]:
    changed = copy.deepcopy(spec)
    require_node(changed, node)
    return changed


@given(st.lists(st.sampled_from(TERMS), max_size=3), st.sampled_from(LABELS), st.sampled_from(("n1", "n2", "n3")))
def test_pinned_pod_matches_its_node_only_if_its_template_did(terms: Any, labels: Any, node: str) -> None:
    spec: dict[str, Any] = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}
    assert matches_node_affinity(pinned(spec), node, labels) == (
        node == "n1" and matches_node_affinity(spec, node, labels)
    )


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"affinity": None},
        {"affinity": {}},
        {"affinity": {"nodeAffinity": None}},
        {"affinity": {"nodeAffinity": {REQUIRED: None}}},
        {"nodeSelector": {"zone": "a"}},
    ],
)
def test_assigned_node_is_required_without_other_affinity(spec: dict[str, Any]) -> None:
    result = pinned(spec)
    assert result["affinity"]["nodeAffinity"][REQUIRED] == {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    }
    assert result.get("nodeSelector") == spec.get("nodeSelector")


def test_other_affinities_are_kept() -> None:
    wish = [{"weight": 1, "preference": {"matchExpressions": [GPU]}}]
    apart = {"preferredDuringSchedulingIgnoredDuringExecution": []}
    spec = {
        "affinity": {
            "podAntiAffinity": apart,
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wish},
        }
    }
    result = pinned(spec)["affinity"]
    assert result["podAntiAffinity"] == apart
    assert result["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == wish


def test_pod_with_node_name_is_not_changed() -> None:
    assert pinned({"nodeName": "n7"}) == {"nodeName": "n7"}


def test_pod_requires_assigned_node_and_template_is_unchanged() -> None:
    job = v1_job()
    before = copy.deepcopy(job.replica_specs[1].template)
    body = replica_pod.build_pod(job, ReplicaId("worker", 0), "1.0.0", None, "n1")
    assert matches_node_affinity(body["spec"], "n1", {})
    assert not matches_node_affinity(body["spec"], "n2", {})
    assert job.replica_specs[1].template == before
    assert "affinity" not in replica_pod.build_pod(job, ReplicaId("worker", 0), "1.0.0")["spec"]


@pytest.mark.parametrize(("asked", "expected"), [(None, LAST_WORDS), ("File", "File")])
@pytest.mark.parametrize("make", [v1_job, v1alpha1_job, volcano_job])
def test_termination_message_falls_back_to_logs_by_default(make: Any, asked: str | None, expected: str) -> None:
    containers = [{"name": name, "image": "tf", "terminationMessagePolicy": asked} for name in ("tensorflow", "side")]
    both = template(containers=containers, initContainers=[{"name": "init", "image": "tf"}])
    spec = pod_spec(make(replicas("Worker", 2, template=both)), ReplicaId("worker", 1))
    assert [one["terminationMessagePolicy"] for one in spec["containers"]] == [expected] * 2
    assert [one["terminationMessagePolicy"] for one in spec["initContainers"]] == [LAST_WORDS]
