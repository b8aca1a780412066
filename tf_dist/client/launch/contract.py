"""What workflows rely on: the names and defaults of outputs, the labels, the exit codes. Added to, never renamed.

Exit codes: 0 the job succeeded; 1 it failed by itself, or was deleted; 2 the step is set up wrongly; 75 worth another
try (evicted, preempted, no place in time, the cluster could not be reached); 143 (130) the launcher was stopped by
SIGTERM (SIGINT). 64 and 65 are the words of Argo's own executor and are never used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tf_dist.cluster.api import Resource
from tf_dist.core.api import names

WORKFLOWS: Final = Resource("argoproj.io", "v1alpha1", "Workflow", "workflows")

OUT: Final = "/tf-dist/out"
"""Where outputs are written: a volume of the pod, so that Argo finds them whenever it looks."""

OUTPUTS: Final[Mapping[str, str]] = {
    "job": "",
    "outcome": "unknown",
    "status": "Unknown",
    "reason": "",
    "message": "the launcher did not report",
    "replica": "",
    "exit-code": "",
    "restarts": "0",
    "disruptions": "0",
    "preemptions": "0",
    "fallback": "0",
    "checkpoint": "",
    "metrics": "{}",
    "gpu-seconds": "0",
    "duration": "0",
}
"""The files in the folder, one value each, and what a step says that has none of them."""

METRIC: Final = "metric-"
"""Before the name of a metric, the name of a file with its last value."""

MODEL_DIR: Final = "TF_DIST_MODEL_DIR"
"""The variable in which replicas find the folder for their model."""

WORKFLOW_LABEL: Final = "workflows.argoproj.io/workflow"
"""``argo logs`` selects pods by it (Argo Workflows 4.1)."""

WORKFLOW_UID: Final = f"{names.ANNOTATION_PREFIX}workflow-uid"  # label: the jobs of a workflow
NODE: Final = f"{names.ANNOTATION_PREFIX}workflow-node"  # annotation: whose job it is within the workflow
REPORTED: Final = f"{names.ANNOTATION_PREFIX}reported"  # annotation: its end was reported to the workflow
STOPPED_BY: Final = f"{names.ANNOTATION_PREFIX}suspended-by"  # annotation: a launcher suspended it, and will resume it
LAUNCHER: Final = "argo-launch"

STARTUP_TIMEOUT: Final = "10m"
"""How long an admitted job may take to run, unless a step says otherwise; Airflow's operator has the same."""
