"""Documents of related kinds that are not jobs of tf-dist: what each kind is, and what to do with it."""

from __future__ import annotations

from typing import Final

from tf_dist.core.model.fieldpath import mapping
from tf_dist.core.model.job import Document

_TEMPLATE: Final = "make its jobTemplate.spec the spec of a Job of batch.volcano.sh/v1alpha1, and schedule it by an "
_PIPELINE: Final = (
    "run its jobs as steps of a pipeline: tf_dist.argo for Argo Workflows, TFJobOperator for Airflow; a JobTemplate "
    "is a Volcano Job except for its kind"
)
_TRAINING: Final = "tf-dist runs TensorFlow jobs"
_SERVING: Final = f"{_TRAINING}: write a TFJob or a Volcano Job"
_POD_GROUP: Final = (
    "the controller of a job creates its PodGroup",
    "write its minMember as minAvailable of the job, and its queue as spec.queue",
)
_OPERATOR: Final = "leave it to Kubeflow's training operator"
# Kinds of Kubeflow's operators for other frameworks, at any version.
_FRAMEWORKS: Final = ("JAXJob", "MPIJob", "MXJob", "PaddleJob", "PyTorchJob", "XGBoostJob")
_VOLCANO: Final = "submit it with kubectl apply; Volcano reads it"

# By group of the API ("" for the core) and kind: the message and the hint.
_KINDS: Final[dict[tuple[str, str], tuple[str, str]]] = {
    ("batch.volcano.sh", "CronJob"): (
        "a CronJob creates Jobs on a schedule, and tf-dist does not start jobs by time",
        f"{_TEMPLATE}Argo CronWorkflow, an Airflow DAG, or a CronJob of Kubernetes that runs tf-dist submit",
    ),
    ("batch", "CronJob"): (
        "a CronJob creates Jobs on a schedule, and tf-dist does not start jobs by time",
        "schedule the job by an Argo CronWorkflow or an Airflow DAG, or have the CronJob run tf-dist submit",
    ),
    ("flow.volcano.sh", "JobFlow"): ("a JobFlow is a workflow of JobTemplates", _PIPELINE),
    ("flow.volcano.sh", "JobTemplate"): (
        "a JobTemplate starts nothing by itself",
        "write apiVersion: batch.volcano.sh/v1alpha1 and kind: Job, and its spec is a job",
    ),
    ("training.volcano.sh", "HyperJob"): (
        "a HyperJob splits a job over several clusters",
        "write each of its Jobs as a file of its own, one per cluster (--context)",
    ),
    ("bus.volcano.sh", "Command"): (
        "a Command acts on an existing job",
        "tf-dist suspend JOB, tf-dist resume JOB, or kubectl create -f with it where the controller runs",
    ),
    ("scheduling.volcano.sh", "PodGroup"): _POD_GROUP,
    ("scheduling.x-k8s.io", "PodGroup"): _POD_GROUP,
    ("scheduling.volcano.sh", "Queue"): (
        "a Queue of Volcano's is not read here",
        "tf-dist convert FILE --to tf-dist.dev/v1alpha1 makes it a Queue that is",
    ),
    ("topology.volcano.sh", "HyperNode"): ("HyperNodes are tiers of Volcano's network topology", _VOLCANO),
    ("kueue.x-k8s.io", "ClusterQueue"): (
        "a ClusterQueue is Kueue's",
        "leave it to Kueue and annotate jobs with tf-dist.dev/gang-scheduler: kueue, or write a Queue of "
        "tf-dist.dev/v1alpha1",
    ),
    ("kueue.x-k8s.io", "LocalQueue"): (
        "a LocalQueue is Kueue's",
        "leave it to Kueue; a job names it as its queue, with the annotation tf-dist.dev/gang-scheduler: kueue",
    ),
    **{
        ("argoproj.io", kind): (
            f"a {kind} is Argo's",
            "submit it with argo or kubectl; a step of it runs a job with tf_dist.argo",
        )
        for kind in ("Workflow", "WorkflowTemplate", "CronWorkflow")
    },
    ("sparkoperator.k8s.io", "SparkApplication"): (f"a SparkApplication is Spark's; {_TRAINING}", ""),
    ("apps", "Deployment"): ("a Deployment never ends, and a job does", _SERVING),
    ("apps", "StatefulSet"): ("a StatefulSet never ends, and a job does", _SERVING),
    ("", "List"): ("a List holds several objects", "write its items as documents, separated by ---"),
    ("", "Pod"): ("a Pod is made for each replica of a job", "make its spec the template of a TFJob with one Worker"),
    ("batch", "Job"): (
        "a Job of Kubernetes has no tasks, and its pods are not a gang",
        "leave it to Kubernetes; or make its template a task of a Job of batch.volcano.sh/v1alpha1",
    ),
    ("jobset.x-k8s.io", "JobSet"): (
        "a JobSet is run by its own controller",
        "make its replicatedJobs tasks of a Job of batch.volcano.sh/v1alpha1",
    ),
    ("ray.io", "RayJob"): (f"a RayJob is KubeRay's; {_TRAINING}", "leave it to KubeRay"),
    ("ray.io", "RayCluster"): (f"a RayCluster is KubeRay's; {_TRAINING}", "leave it to KubeRay"),
    ("trainer.kubeflow.org", "TrainJob"): (
        "a TrainJob takes its pods from a runtime of Kubeflow's Trainer",
        "leave it to the Trainer, or write the pods as tfReplicaSpecs of a TFJob of kubeflow.org/v1",
    ),
    **{("kubeflow.org", kind): (f"{kind} is another framework's; {_TRAINING}", _OPERATOR) for kind in _FRAMEWORKS},
}


def related_kind(document: Document) -> tuple[str, str] | None:
    """The message and the hint about a document of a related kind; None for other kinds."""
    version, kind = mapping(document).get("apiVersion"), mapping(document).get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return None
    group = version.rpartition("/")[0]
    if (group, kind) == ("batch", "Job") and mapping(mapping(document).get("spec")).get("tasks"):
        return None  # only its apiVersion is wrong
    return _KINDS.get((group, kind))
