"""The manifests of volcano-sh/volcano (examples and docs), each as a minimal equivalent document.

The names are paths in that repository. The documents are our own and contain the parts of the originals that matter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.core.dialects.documents import Doc
from tf_dist.core.dialects import parse
from tf_dist.core.dialects.volcano_queue import convert_queues
from tf_dist.core.model.job import Role, TFConfigStyle
from tf_dist.core.podbuilder import replica_pod, services
from tf_dist.errors import InvalidJob

PAGE = Path(__file__).parents[2] / "docs" / "volcano-jobs.md"


def task(name: str, replicas: int = 1, **more: Any) -> Doc:
    container = {"name": name or "main", "image": "x", "command": ["sh", "-c", more.pop("command", "true")]}
    pod = {"restartPolicy": more.pop("restart", "OnFailure"), "containers": [container], **more.pop("pod", {})}
    return {"name": name, "replicas": replicas, "template": {"spec": pod}, **more}


def job(*tasks: Doc, plugins: Any = None, annotations: Any = None, **spec: Any) -> Doc:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "one", "annotations": annotations or {}},
        "spec": {"tasks": list(tasks), "plugins": plugins or {}, "schedulerName": "volcano", **spec},
    }


COMPLETE = [{"event": "TaskCompleted", "action": "CompleteJob"}]
RESTART = [{"event": "PodEvicted", "action": "RestartJob"}]
MPI = "mpirun --host $VC_MPIWORKER_HOSTS hello; cat /etc/volcano/mpiworker.host"
TF = "python train.py --ps=$(cat /etc/volcano/ps.host) --index=$VK_TASK_INDEX"

VALID = {
    "example/job.yaml": job(
        task("default-nginx", 6, restart="OnFailure"), plugins={"ssh": [], "env": [], "svc": []}, minAvailable=3
    ),
    "example/job-plugin.yaml": job(
        task("default-nginx", 3), plugins={"ssh": [], "env": [], "svc": []}, minAvailable=1, policies=RESTART
    ),
    "example/integrations/mpi/mpi-example.yaml": job(
        task("mpimaster", policies=COMPLETE, command=MPI), task("mpiworker", 2), plugins={"ssh": [], "svc": []}
    ),
    "example/kubecon-2019-china/horovod-sample/lm-horovod-tf-mnist-v0.5.yaml": job(
        task("master", policies=COMPLETE, command="mpiexec --host $(cat /etc/volcano/worker.host) train"),
        task("worker", 3),
        plugins={"ssh": [], "svc": []},
        minAvailable=4,
    ),
    "example/integrations/tensorflow/dist-mnist/tf-dist-mnist-example.yaml": job(
        task("ps", command=TF, restart="Never"),
        task("worker", 2, policies=COMPLETE, command=TF, restart="Never"),
        plugins={"env": [], "svc": []},
        policies=RESTART,
        minAvailable=3,
    ),
    "example/integrations/paddlepaddle/ctr-paddlepaddle-on-volcano.yaml": job(
        task("pserver", 2), task("trainer", 2, policies=COMPLETE), policies=RESTART
    ),
    "example/task-start-dependency/mpi.yaml": job(
        task("mpiworker", 2),
        task("mpimaster", policies=COMPLETE, command=MPI, dependsOn={"name": ["mpiworker"]}),
        plugins={"ssh": [], "svc": []},
    ),
    "docs/user-guide/how_to_use_svc_plugin.md": job(
        task("worker", 2), plugins={"svc": ["--publish-not-ready-addresses=false", "--disable-network-policy=false"]}
    ),
    "docs/user-guide/how_to_use_task_topology_plugin.md": job(
        task("ps"), task("worker", 2), annotations={"volcano.sh/task-topology-affinity": "ps,worker"}
    ),
    "docs/design/distributed-framework-plugins.md (tensorflow)": job(
        task("ps"), task("worker", 2), plugins={"tensorflow": ["--ps=ps", "--worker=worker", "--port=5000"]}
    ),
}

REFUSED = {
    "docs/user-guide/how_to_use_mpi_plugin.md": (job(task("master"), plugins={"mpi": []}), "spec.plugins.mpi"),
    "docs/user-guide/how_to_use_pytorch_plugin.md": (
        job(task("master"), plugins={"pytorch": []}),
        "spec.plugins.pytorch",
    ),
    "example/integrations/ray/ray-example.yaml": (job(task("head"), plugins={"ray": []}), "spec.plugins.ray"),
    "example/invalid_jobs/minAvailable-webhook-deny.yaml": (job(task("one", 4), minAvailable=5), "spec.minAvailable"),
    "example/invalid_jobs/duplicatedTaskName-webhook-deny.yaml": (job(task("one"), task("one")), "spec.tasks[1].name"),
    "example/invalid_jobs/duplicatedPolicyEvent-webhook-deny.yaml": (
        job(task("one"), policies=[{"event": "PodFailed", "action": one} for one in ("AbortJob", "RestartJob")]),
        "spec.policies[1]",
    ),
    "example/kubecon-2019-china/task-priority/elastic-job.yaml": (
        job(task("one", pod={"priorityClass": "high"})),
        "spec.tasks[0].template.spec.priorityClass",
    ),
    "docs/user-guide/how_to_use_network_topology_aware_scheduling.md": (
        job(task("one", 4, partitionPolicy={"totalPartitions": 2, "partitionSize": 2})),
        "spec.tasks[0].partitionPolicy",
    ),
    "docs/user-guide/how_to_use_cdp_plugin.md": (
        job(task("one"), volumes=[{"mountPath": "/in", "volumeClaimName": "a", "volumeClaim": {}}]),
        "spec.volumes[0]",
    ),
}


@pytest.mark.parametrize("name", VALID)
def test_manifest_runs_unchanged(name: str):
    found = parse(VALID[name])
    assert found.warnings == ()
    bodies = [replica_pod.build_pod(found.job, replica, "1.0.0") for replica in found.job.replicas]
    assert len(bodies) == sum(task["replicas"] for task in VALID[name]["spec"]["tasks"])
    kinds = {body["kind"] for body in services.build_objects(found.job)}
    assert ("ConfigMap" in kinds) is bool(VALID[name]["spec"]["plugins"].keys() & {"svc", "tensorflow"})


@pytest.mark.parametrize("name", REFUSED)
def test_manifest_is_refused_with_documented_reason(name: str):
    document, path = REFUSED[name]
    with pytest.raises(InvalidJob) as caught:
        parse(document)
    assert [problem.path for problem in caught.value.problems] == [path]
    assert f"`{path.rpartition('.')[2].partition('[')[0]}`" in PAGE.read_text()


def test_tensorflow_plugin_of_design_document():
    found = parse(VALID["docs/design/distributed-framework-plugins.md (tensorflow)"]).job
    assert [(spec.role, spec.port) for spec in found.replica_specs] == [(Role.PS, 5000), (Role.WORKER, 5000)]
    assert found.tf_config is TFConfigStyle.VOLCANO


@pytest.mark.parametrize(
    ("name", "spec", "expected"),
    [
        ("example/deployment/queue.yaml", {"weight": 1}, {"weight": 1}),
        ("staging/src/volcano.sh/apis/artifacts/queue.yaml", {"weight": 1}, {"weight": 1}),
        (
            "docs/user-guide/how_to_use_capacity_plugin.md",
            {"reclaimable": True, "deserved": {"cpu": 2, "memory": "8Gi"}},
            {"parent": "root", "quotas": {"cpu": {"nominal": "2"}, "memory": {"nominal": str(8 * 2**30)}}},
        ),
        (
            "example/hierarchical-jobs/queues.yaml",
            {"parent": "root", "weight": 1, "reclaimable": True},
            {"weight": 1},
        ),
    ],
)
def test_queue_manifest_is_converted(name: str, spec: Doc, expected: Doc):
    document = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "q"}}
    (found,) = convert_queues([{**document, "spec": spec}])
    assert found.document["spec"] == expected, name
