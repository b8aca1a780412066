"""The contract with workflows: names and defaults of outputs, labels, exit codes. Names are added, never changed.

Exit codes: 0: the job succeeded. 1: the job failed, or was deleted. 2: the step is invalid. 75: a retry may succeed
(evicted, preempted, admission timeout, cluster unavailable). 143 or 130: SIGTERM or SIGINT stopped the launcher. Argo's
executor uses 64 and 65.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tf_dist.cluster.api import Resource
from tf_dist.core.model import names

WORKFLOWS: Final = Resource("argoproj.io", "v1alpha1", "Workflow", "workflows")

OUT: Final = "/tf-dist/out"
"""The folder of the outputs: a volume of the pod, so that Argo can read it at any time."""

OUTPUTS: Final[Mapping[str, str]] = {
    "job": "",  # the job's name
    "outcome": "unknown",  # how it ended: an outcome
    "status": "Unknown",  # its last state in one word
    "reason": "",  # the reason of the state
    "message": "the launcher did not report",  # a sentence about the state
    "replica": "",  # the replica that failed
    "exit-code": "",  # the exit code of that replica
    "restarts": "0",  # restarts after failures
    "disruptions": "0",  # disruptions, such as evictions of pods
    "preemptions": "0",  # preemptions of the job
    "fallback": "0",  # the number of the fallback that ran, from 1 (0: the document itself)
    "checkpoint": "",  # the last checkpoint that a replica printed
    "metrics": "{}",  # the last value of each metric, as a JSON object
    "gpu-seconds": "0",  # seconds for which the job held GPUs, times the number of GPUs
    "lost-gpu-seconds": "0",  # GPU seconds whose training was lost: at each restart, those since the last checkpoint
    "goodput": "0",  # the share of the held time in which the job trained and kept the result, from 0 to 1
    "duration": "0",  # seconds since the launcher started to follow the job
}
"""The files in the folder, one value each, and their defaults."""

CHECKPOINT: Final = "checkpoint-files"
"""The folder with the files of the last checkpoint, for the artifact."""

GRACE: Final = "terminationGracePeriodSeconds"
"""The field of a pod with the time between SIGTERM and SIGKILL."""

METRIC: Final = "metric-"
"""The prefix of files with the last value of a metric."""


def metric_file(metric: str) -> str:
    """The file of a metric: ``metric-val.loss`` for ``val/loss``. Names of metrics have no dots."""
    return METRIC + metric.replace("/", ".")


MODEL_DIR: Final = "TF_DIST_MODEL_DIR"
"""The environment variable of the replicas with the folder for their model."""

WORKFLOW_LABEL: Final = "workflows.argoproj.io/workflow"
"""The label by which ``argo logs`` selects pods (Argo Workflows 4.1)."""

WORKFLOW_UID: Final = f"{names.ANNOTATION_PREFIX}workflow-uid"  # Label of a step's job: the uid of the workflow
NODE: Final = f"{names.ANNOTATION_PREFIX}workflow-node"  # Annotation of a step's job: the node of the workflow
REPORTED: Final = f"{names.ANNOTATION_PREFIX}reported"  # Annotation of a step's job: its end was reported
STOPPED_BY: Final = f"{names.ANNOTATION_PREFIX}suspended-by"
"""Annotation of a step's job: what suspended the job, ``argo-launch`` (a launcher that was stopped) or ``workflow``."""

STARTUP_TIMEOUT: Final = "10m"
"""The default of ``startup_timeout``, as in Airflow's operator."""
