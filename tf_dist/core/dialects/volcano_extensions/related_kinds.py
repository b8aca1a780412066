"""Documents of neighbouring kinds that are not jobs of ours: what each is, and what to do with it."""

from __future__ import annotations

from typing import Final

from tf_dist.core.api.fieldpath import mapping
from tf_dist.core.api.job import Document

_TEMPLATE: Final = "make its jobTemplate.spec the spec of a Job of batch.volcano.sh/v1alpha1, and schedule it by an "
_PIPELINE: Final = (
    "run its jobs as steps of a pipeline: tf_dist.argo for Argo Workflows, TFJobOperator for Airflow; a JobTemplate is "
    "a Volcano Job but for its kind"
)
_TRAINING: Final = "tf-dist runs TensorFlow jobs"
_VOLCANO: Final = "submit it with kubectl apply; Volcano reads it"

# By group of the API ("" for the core) and kind: what is said of it, and the hint.
_KINDS: Final[dict[tuple[str, str], tuple[str, str]]] = {
    ("batch.volcano.sh", "CronJob"): (
        "a CronJob makes Jobs at times, and tf-dist has no clock of that kind",
        f"{_TEMPLATE}Argo CronWorkflow, an Airflow DAG, or a CronJob of Kubernetes that runs tf-dist submit",
    ),
    ("batch", "CronJob"): (
        "a CronJob makes Jobs at times, and tf-dist has no clock of that kind",
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
        "a Command is an order to a job that is there",
        "tf-dist suspend JOB, tf-dist resume JOB, or kubectl create -f with it where the controller runs",
    ),
    ("scheduling.volcano.sh", "PodGroup"): (
        "a PodGroup is made for each job by what drives it",
        "write its minMember as minAvailable of the job, and its queue as spec.queue",
    ),
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
    ("argoproj.io", "Workflow"): (
        "a Workflow is Argo's",
        "submit it with argo or kubectl; a step of it runs a job with tf_dist.argo",
    ),
    ("sparkoperator.k8s.io", "SparkApplication"): (f"a SparkApplication is Spark's; {_TRAINING}", ""),
    ("apps", "Deployment"): ("a Deployment never ends, and a job does", f"{_TRAINING}: write a TFJob or a Volcano Job"),
}


def related_kind(document: Document) -> tuple[str, str] | None:
    """What to say of a document of a neighbouring kind, and the hint; None: its kind says nothing."""
    version, kind = mapping(document).get("apiVersion"), mapping(document).get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return None
    group = version.rpartition("/")[0]
    return _KINDS.get((group, kind))
