"""Refuses documents of related kinds, and says what they are and what to do."""

from __future__ import annotations

import pytest

from tests.core.dialects.documents import only_error


@pytest.mark.parametrize(
    ("version", "kind", "message", "hint"),
    [
        ("batch.volcano.sh/v1alpha1", "CronJob", "creates Jobs on a schedule", "Argo CronWorkflow, an Airflow DAG"),
        ("batch/v1", "CronJob", "creates Jobs on a schedule", "Argo CronWorkflow or an Airflow DAG"),
        ("flow.volcano.sh/v1alpha1", "JobFlow", "a workflow of JobTemplates", "steps of a pipeline"),
        ("flow.volcano.sh/v1alpha1", "JobTemplate", "starts nothing by itself", "kind: Job"),
        ("training.volcano.sh/v1alpha1", "HyperJob", "several clusters", "--context"),
        ("bus.volcano.sh/v1alpha1", "Command", "acts on an existing job", "tf-dist suspend JOB"),
        ("scheduling.volcano.sh/v1beta1", "PodGroup", "creates its PodGroup", "minAvailable"),
        (
            "scheduling.volcano.sh/v1beta1",
            "Queue",
            "a Queue of Volcano's",
            "tf-dist convert FILE --to tf-dist.dev/v1alpha1",
        ),
        ("topology.volcano.sh/v1alpha1", "HyperNode", "network topology", "kubectl apply"),
        ("kueue.x-k8s.io/v1beta1", "ClusterQueue", "is Kueue's", "tf-dist.dev/gang-scheduler: kueue"),
        ("argoproj.io/v1alpha1", "Workflow", "is Argo's", "tf_dist.argo"),
        ("sparkoperator.k8s.io/v1beta2", "SparkApplication", "is Spark's", ""),
        ("scheduling.x-k8s.io/v1alpha1", "PodGroup", "creates its PodGroup", "minAvailable"),
        ("kueue.x-k8s.io/v1beta1", "LocalQueue", "is Kueue's", "tf-dist.dev/gang-scheduler: kueue"),
        ("argoproj.io/v1alpha1", "CronWorkflow", "a CronWorkflow is Argo's", "tf_dist.argo"),
        ("apps/v1", "StatefulSet", "never ends", "a TFJob or a Volcano Job"),
        ("v1", "Pod", "for each replica", "with one Worker"),
        ("batch/v1", "Job", "no tasks", "a task of a Job of batch.volcano.sh/v1alpha1"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", "its own controller", "replicatedJobs"),
        ("ray.io/v1", "RayJob", "is KubeRay's", "leave it to KubeRay"),
        ("trainer.kubeflow.org/v1alpha1", "TrainJob", "Kubeflow's Trainer", "tfReplicaSpecs"),
        ("kubeflow.org/v1", "PyTorchJob", "another framework's", "training operator"),
        ("kubeflow.org/v2beta1", "MPIJob", "another framework's", "training operator"),
        ("apps/v1", "Deployment", "never ends", "a TFJob or a Volcano Job"),
    ],
)
def test_refuses_related_kind_with_hint(version: str, kind: str, message: str, hint: str):
    found = only_error({"apiVersion": version, "kind": kind, "metadata": {"name": "one"}, "spec": {}})
    assert (found.path, message in found.message, hint in found.hint) == ("kind", True, True)


def test_volcano_job_with_api_version_of_kubernetes_job_has_hint():
    found = only_error({"apiVersion": "batch/v1", "kind": "Job", "spec": {"tasks": [{"name": "worker"}]}})
    assert (found.path, found.hint) == ("apiVersion", "write apiVersion: batch.volcano.sh/v1alpha1")
