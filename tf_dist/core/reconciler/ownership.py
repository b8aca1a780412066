"""Ownership of jobs: whether another controller manages a job, and the pods of an earlier operator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import mapping, mappings, text, texts
from tf_dist.core.model.job import Dialect, Document
from tf_dist.core.model.names import TRAINING_OPERATOR
from tf_dist.core.model.status import StoredDocument


def managed_elsewhere(stored: Document) -> bool:
    """Whether a job names another controller in ``spec.runPolicy.managedBy``: any value except the training operator.

    Never raises, because it is called before the document is validated.
    """
    known: bool | None = getattr(stored, "managed_elsewhere", None)
    if known is not None:
        return known
    manager = mapping(mapping(stored.get("spec")).get("runPolicy")).get("managedBy")
    found = manager is not None and manager != TRAINING_OPERATOR
    if isinstance(stored, StoredDocument):
        stored.managed_elsewhere = found
    return found


def external_manager(stored: Document) -> str:
    """The other controller that a job names in ``spec.runPolicy.managedBy``; "" if tf-dist runs the job."""
    if not managed_elsewhere(stored):
        return ""
    return str(mapping(mapping(stored.get("spec")).get("runPolicy")).get("managedBy"))


# The labels by which an operator of v1alpha1 finds the pods of a replica (``pkg/trainer/replicas.go``,
# ``LabelsByIndex``).
_V1ALPHA1_LABELS: Final = ("kubeflow.org", "job_type", "runtime_id", "tf_job_name", "task_index")
_FIRST_ATTEMPT: Final = "1.0.0"


def selector_of_former_pods(job: Document, body: Document) -> str:
    """A selector of existing pods that may replace the new pod ``body``, with random names of an earlier operator.

    "" if such pods cannot exist: pod names of other formats are derived, tf-dist created later attempts, and no
    operator has set up a job without a RuntimeId.
    """
    labels, (owner,) = body["metadata"]["labels"], body["metadata"]["ownerReferences"]
    first = owner["apiVersion"] == Dialect.TFJOB_V1ALPHA1 and labels[names.ATTEMPT] == _FIRST_ATTEMPT
    if not first or not mapping(job.get("spec")).get("RuntimeId"):
        return ""
    return ",".join(f"{key}={labels[key]}" for key in ("tf_job_name", "runtime_id"))


def former_pod(body: Document, pods: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The newest of these pods that an operator of v1alpha1 created for the replica of ``body``.

    Failed pods are skipped, because the operator would have replaced them (``SyncPods``).
    """
    wanted = mapping(body["metadata"])
    (owner,) = wanted["ownerReferences"]
    found = []
    for pod in pods:
        labels, owners = texts(pod["metadata"].get("labels")), mappings(pod["metadata"].get("ownerReferences"))
        controlled = any(one.get("controller") and one.get("uid") == owner["uid"] for one in owners)
        same = all(labels.get(key) == wanted["labels"][key] for key in _V1ALPHA1_LABELS)
        failed = mapping(pod.get("status")).get("phase") == "Failed"
        if controlled and same and not failed and names.JOB_UID not in labels:
            found.append(pod)
    return max(found, key=lambda pod: text(pod["metadata"].get("creationTimestamp")), default=None)
