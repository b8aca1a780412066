"""Volcano's job plugins: the objects they add to a job, and the fields they set in pods."""

from __future__ import annotations

from typing import Any

from tests.core.builders import replicas, template, volcano_job
from tf_dist.core.model.job import Job, Plugins, ReplicaId, ServiceStyle
from tf_dist.core.podbuilder import replica_pod, services

WORKER_1 = ReplicaId("worker", 1)


def pod_spec(job: Job) -> dict[str, Any]:
    return replica_pod.build_pod(job, WORKER_1, "1.0.0")["spec"]  # type: ignore[no-any-return]


def test_config_map_of_svc_plugin() -> None:
    job = volcano_job(replicas("ps", 1), replicas("my-task", 2))
    config_map = next(body for body in services.build_objects(job) if body["kind"] == "ConfigMap")
    assert config_map["metadata"]["name"] == "tf-dist-mnist-svc"
    assert config_map["data"] == {
        "ps.host": "tf-dist-mnist-ps-0.tf-dist-mnist",
        "VC_PS_HOSTS": "tf-dist-mnist-ps-0.tf-dist-mnist",
        "VC_PS_NUM": "1",
        "my_task.host": "tf-dist-mnist-my-task-0.tf-dist-mnist\ntf-dist-mnist-my-task-1.tf-dist-mnist",
        "VC_MY_TASK_HOSTS": "tf-dist-mnist-my-task-0.tf-dist-mnist,tf-dist-mnist-my-task-1.tf-dist-mnist",
        "VC_MY_TASK_NUM": "2",
    }


def test_network_policy_allows_only_pods_of_job() -> None:
    policy = next(body for body in services.build_objects(volcano_job()) if body["kind"] == "NetworkPolicy")
    own = {"matchLabels": {"tf-dist.dev/job-uid": "uid-volcano"}}
    assert policy["metadata"]["name"] == "tf-dist-mnist"
    assert policy["spec"] == {
        "podSelector": own,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": own}]}],
    }


def test_network_policy_can_be_disabled() -> None:
    kinds = [
        body["kind"] for body in services.build_objects(volcano_job(plugins=Plugins(svc=True, network_policy=False)))
    ]
    assert kinds == ["ConfigMap", "Service"]


def test_volcano_pod_has_index_and_host_variables() -> None:
    def source(key: str) -> dict[str, Any]:
        return {"configMapKeyRef": {"name": "tf-dist-mnist-svc", "key": key}}

    (container,) = pod_spec(volcano_job())["containers"]
    assert {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]} == {
        "VK_TASK_INDEX": "1",
        "VC_TASK_INDEX": "1",
        **{key: source(key) for key in ("VC_PS_HOSTS", "VC_PS_NUM", "VC_WORKER_HOSTS", "VC_WORKER_NUM")},
    }
    spec = pod_spec(volcano_job())
    assert (spec["hostname"], spec["subdomain"]) == ("tf-dist-mnist-worker-1", "tf-dist-mnist")
    assert spec["schedulerName"] == "volcano"
    assert spec["containers"][0]["volumeMounts"] == [{"name": "tf-dist-mnist-svc", "mountPath": "/etc/volcano"}]
    assert spec["volumes"] == [{"name": "tf-dist-mnist-svc", "configMap": {"name": "tf-dist-mnist-svc"}}]


def test_volcano_pod_has_volcano_annotations() -> None:
    job = volcano_job()
    body = replica_pod.build_pod(job, WORKER_1, "3.0.0", retries=2)
    found = {k.removeprefix("volcano.sh/"): v for k, v in body["metadata"]["annotations"].items() if "volcano" in k}
    assert found == {
        "task-index": "1",
        "task-spec": "worker",
        "job-name": job.key.name,
        "queue-name": job.scheduling.queue,
        "job-version": "2",
        "job-retry-count": "2",
        "template-uid": f"{job.key.name}-worker",
    }


def test_volcano_pod_without_plugins_is_unchanged() -> None:
    job = volcano_job(plugins=Plugins(), services=ServiceStyle.NONE)
    assert services.build_objects(job) == []
    (container,) = template()["spec"]["containers"]
    assert pod_spec(job)["containers"] == [{**container, "terminationMessagePolicy": "FallbackToLogsOnError"}]


def test_volumes_of_job_are_mounted_in_every_pod() -> None:
    volumes = ({"mountPath": "/data", "volumeClaimName": "digits"},)
    spec = pod_spec(volcano_job(plugins=Plugins(), volumes=volumes))
    assert spec["volumes"] == [{"name": "tf-dist-mnist-volume-0", "persistentVolumeClaim": {"claimName": "digits"}}]
    assert spec["containers"][0]["volumeMounts"] == [{"name": "tf-dist-mnist-volume-0", "mountPath": "/data"}]
