"""Names, labels and annotations of jobs, pods and services, and label selectors.

Every object has tf-dist's own labels, and the label sets of its dialect (those of the systems it replaces, old and
new), so that users' selectors continue to work.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tf_dist.core.model.fieldpath import list_items, mapping, mappings
from tf_dist.core.model.job import Dialect, Document, Job, ReplicaId, ReplicaSpec, Role, ServiceStyle

OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")

LABEL_NAME: Final = "([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]"
_PREFIX: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
LABEL_KEY: Final = f"({_PREFIX}/)?{LABEL_NAME}"
LONGEST_VALUE: Final = 63
LONGEST_PREFIX: Final = 253
LONGEST_KEY: Final = LONGEST_PREFIX + 1 + LONGEST_VALUE

DNS_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")  # DNS-1123: of namespaces, containers, volumes
_SUBDOMAIN: Final = re.compile(_PREFIX)
_KEY: Final = re.compile(LABEL_KEY)
_VALUE: Final = re.compile(LABEL_NAME)
_SHOWN: Final = 3


def is_dns_label(text: str) -> bool:
    """Whether a text is a DNS-1123 label, as names of jobs, pods and namespaces must be."""
    return len(text) <= LONGEST_VALUE and DNS_LABEL.fullmatch(text) is not None


def is_dns_subdomain(text: str) -> bool:
    """Whether a text is a DNS-1123 subdomain, such as cluster.local."""
    return len(text) <= LONGEST_PREFIX and _SUBDOMAIN.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Whether a text is a qualified name of a label or annotation, with or without a DNS subdomain as its prefix."""
    return len(text) <= LONGEST_KEY and text.find("/") <= LONGEST_PREFIX and _is_key(text)


@lru_cache(4096)  # pods have the same keys; callers limit the length, so the cache stays small
def _is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None


def is_label_value(text: str) -> bool:
    """Whether a text is a valid value of a label."""
    return not text or _VALUE.fullmatch(text) is not None


def hosts_prefix(task: str) -> str:
    """The prefix of the variables for the hosts of a task and their number, as in Volcano's svc plugin."""
    return f"VC_{task.upper().replace('-', '_')}"


_PACKAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,-]+\])?([<>=!~]=?=?[A-Za-z0-9.*+!_-]+(,|$))*")
PACKAGE_HINT: Final = 'write a name with its versions, without spaces: "tensorflow-datasets==4.9.7"'


def is_package(text: str) -> bool:
    """Whether a text is the name of a Python package, with or without extras and versions."""
    return _PACKAGE.fullmatch(text) is not None


class Requirement(NamedTuple):
    """One rule of a label selector."""

    key: str
    operator: str
    values: frozenset[str]

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether labels satisfy the rule; a missing label satisfies NotIn."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
        return self.key not in labels

    def __str__(self) -> str:
        """The rule as kubectl writes it."""
        match self.operator:
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
            case "In" if len(self.values) == 1:
                return f"{self.key}={next(iter(self.values))}"
        return f"{self.key} {self.operator.lower()} ({_first(sorted(self.values), ', ')})"


Requirements = tuple[Requirement, ...]
"""All rules of a selector; labels match if they satisfy every rule."""


def requirements(selector: object) -> Requirements:
    """The rules of a stored selector. A selector without rules matches everything."""
    stated = mapping(selector)
    equal = (Requirement(str(key), "In", frozenset({str(v)})) for key, v in mapping(stated.get("matchLabels")).items())
    others = (
        Requirement(
            str(rule.get("key")), str(rule.get("operator")), frozenset(map(str, list_items(rule.get("values"))))
        )
        for rule in mappings(stated.get("matchExpressions"))
    )
    return (*equal, *others)


def selector_text(rules: Requirements) -> str:
    """A selector as kubectl writes it, shortened to one line."""
    return _first(list(map(str, rules)), ",")


def _first(parts: list[str], between: str) -> str:
    more = [f"and {len(parts) - _SHOWN} more"] if len(parts) > _SHOWN else []
    return between.join([*parts[:_SHOWN], *more])


JOB_UID: Final = "tf-dist.dev/job-uid"
"""Label of every pod and service of a job: the uid of the job."""
JOB_NAME: Final = "tf-dist.dev/job-name"
"""Label of every pod and service of a job: the name of the job."""
REPLICA_TYPE: Final = "tf-dist.dev/replica-type"
"""Label of every pod and service of a job: ``chief``, ``ps``, ``worker``, … or the name of a Volcano task."""
REPLICA_INDEX: Final = "tf-dist.dev/replica-index"
"""Label of every pod and service of a job: the index of the replica among those of its type, from 0."""
ATTEMPT: Final = "tf-dist.dev/attempt"
"""Label of every pod and service of a job: on pods, the attempt of the job, the task and the replica (``2.0.1``)."""
EMULATED: Final = "tf-dist.dev/emulated"
"""Label of a node: the node is the machine of an embedded cluster. Each of its pods counts as a host of its own."""

SYSTEM_NAMESPACE: Final = "tf-dist-system"  # the namespace of the Lease of the cluster's controller

ANNOTATION_PREFIX: Final = "tf-dist.dev/"
SUSPEND: Final = "tf-dist.dev/suspend"
"""Annotation you may set on a job: ``"true"`` suspends the job, in formats that have no field for that."""
RESUME_ATTEMPT: Final = "tf-dist.dev/resume-attempt"
"""Annotation that tf-dist writes: on a job, the attempt that ``tf-dist resume`` has resumed."""
LEADER: Final = "tf-dist.dev/leader"
"""Label of a Lease: the holder of the Lease is the leader of the cluster, or of the Lease's namespace."""
MIN_WORKERS: Final = "tf-dist.dev/min-workers"
"""Annotation you may set on a job: the minimum number of workers, in formats that have no field for it."""
MAX_WORKERS: Final = "tf-dist.dev/max-workers"
"""Annotation you may set on a job: the maximum number of workers, in formats that have no field for it."""
WORKDIR: Final = "tf-dist.dev/workdir"
"""Annotation you may set on a job: the working directory of containers without ``workingDir``, on a local node."""
CODE: Final = "tf-dist.dev/code"
"""Annotation you may set on a job: a folder that is sent with the job, as a path relative to the job's file.
``tf-dist``, Airflow and Argo read the annotation when they submit the job; the controller does not."""
PACKAGES: Final = "tf-dist.dev/packages"
"""Annotation you may set on a job: Python packages that the replicas need, in pip's syntax, separated by spaces.
``tf-dist``, Airflow and Argo read the annotation when they submit the job; the controller does not."""
TOPOLOGY: Final = "tf-dist.dev/topology"
"""Annotation you may set on a job: a node label, such as that of a rack or a zone. All pods go to nodes with the
same value of this label, if capacity is free there."""
TOPOLOGY_REQUIRED: Final = "tf-dist.dev/topology-required"
"""Annotation you may set on a job: ``"true"``: the job waits until all pods fit on nodes with the same value
of ``tf-dist.dev/topology``."""
QUEUE: Final = "tf-dist.dev/queue"
"""Label you may set on a job: the queue of the job. tf-dist also sets this label on pods, so that a pod that
outlives its job counts in the queue."""
GANG_SCHEDULER: Final = "tf-dist.dev/gang-scheduler"
"""Annotation you may set on a job: the gang scheduler that decides when the job starts, ``volcano``, ``coscheduling``,
``kueue`` or ``workload``."""
EXPECTED_DURATION: Final = "tf-dist.dev/expected-duration"
"""Annotation you may set on a job: the expected run time of the job (seconds, or ``1h30m``). A short job may
start before a gang that has a reservation."""
RECOVERY_TIMEOUT: Final = "tf-dist.dev/recovery-timeout"
"""Annotation you may set on a job: how long the job waits for a node after it lost one (seconds, or ``5m``), before it
continues with fewer workers or waits for another admission."""
FALLBACK: Final = "tf-dist.dev/fallback"
"""Annotation you may set on a job: alternatives, as a JSON list of changes to the job."""
ADMISSION_TIMEOUT: Final = "tf-dist.dev/admission-timeout"
"""Annotation you may set on a job: the time after which the job's fallbacks are tried (seconds, or ``10m``)."""
ON_EVICTION: Final = "tf-dist.dev/on-eviction"
"""Annotation you may set on a job: what happens after an eviction: ``restart``, ``requeue``, ``fail`` or
``fallback``."""
ON_PREEMPTION: Final = "tf-dist.dev/on-preemption"
"""Annotation you may set on a job: what happens after a preemption: ``restart``, ``requeue``, ``fail`` or
``fallback``."""
STARTUP_TIMEOUT: Final = "tf-dist.dev/startup-timeout"
"""Annotation you may set on a job: the time after admission (seconds, or ``10m``) after which a job that does not run
fails."""
MAX_DISRUPTIONS: Final = "tf-dist.dev/max-disruptions"
"""Annotation you may set on a job: the maximum number of disruptions. The next disruption fails the job."""
CHECKPOINT_AT: Final = "tf-dist.dev/checkpoint-at"
"""Annotation that tf-dist writes: on a job, the time of the last checkpoint in its logs (RFC 3339). A program may also
set this annotation. When the job restarts, the work since this time counts as lost."""
EVALUATOR_IN_CLUSTER: Final = "tf-dist.dev/evaluator-in-cluster"
"""Annotation you may set on a job: ``"true"`` names evaluators in the TF_CONFIG of every replica, as the original
operators do."""

SERVICES: Final = "tf-dist.dev/services"
"""Annotation you may set on a job: ``per-job``: a TFJob ``v1`` has one headless Service instead of a Service for each
replica. ``headless``: the Services of the replicas of a TFJob are headless, so that undeclared ports are reachable."""

KEPT_NAME: Final = 40
"""The number of characters of a v1alpha1 job's name in the names of its pods and services."""

_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def short_hash(*parts: object, length: int = 5) -> str:
    """A few characters [0-9a-z] that depend on every part. The original operators use random characters instead."""
    number = int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:16])
    characters = []
    for _ in range(length):
        number, digit = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[digit])
    return "".join(characters)


def replica_name(job: Job, replica: ReplicaId) -> str:
    """The name of a replica without the attempt: the name of its Service and, except in v1alpha1, of its pod."""
    if job.dialect is Dialect.TFJOB_V1ALPHA1:
        return f"{job.key.name[:KEPT_NAME]}-{replica.type}-{job.runtime_id}-{replica.index}"
    return f"{job.key.name}-{replica.type}-{replica.index}"


def pod_name(job: Job, replica: ReplicaId, attempt: str) -> str:
    """The name of a replica's pod. Names of v1alpha1 pods end in five characters that depend on the attempt."""
    name = replica_name(job, replica)
    if job.dialect is Dialect.TFJOB_V1ALPHA1:
        return f"{name}-{short_hash(job.uid, replica, attempt)}"
    return name


def replica_host(job: Job, replica: ReplicaId) -> str:
    """The DNS name under which the replica's peers reach it, in the form of its dialect's TF_CONFIG."""
    if job.services is ServiceStyle.PER_JOB:
        short = ".".join(pod_host(job, replica))
        return short if job.dialect is Dialect.VOLCANO else f"{short}.{_service_domain(job)}"
    name = replica_name(job, replica)
    return name if job.dialect is Dialect.TFJOB_V1ALPHA1 else f"{name}.{_service_domain(job)}"


def pod_host(job: Job, replica: ReplicaId) -> tuple[str, str]:
    """Host name and subdomain of a pod behind the job's single Service.

    The pod template's values have precedence over the names of the replica and the job. This is the rule of Volcano's
    svc plugin; Volcano's tensorflow plugin writes the same names into TF_CONFIG (``MakeDomainName``). If each replica
    has its own Service, as with the Kubeflow operators, the Service is its address, for any template.
    """
    spec = job.spec(replica.type)
    template = spec.pod_spec if spec else {}
    host, subdomain = template.get("hostname"), template.get("subdomain")
    return str(host or replica_name(job, replica)), str(subdomain or job.key.name)


def _service_domain(job: Job) -> str:
    return ".".join(filter(None, (job.key.namespace, "svc", job.cluster_domain)))


def endpoint(job: Job, spec: ReplicaSpec, index: int) -> str:
    """``host:port`` of a replica's TensorFlow server."""
    return f"{replica_host(job, ReplicaId(spec.type, index))}:{spec.port}"


def job_labels(job: Job) -> dict[str, str]:
    """The labels that all objects of the job share; a selector of its pods."""
    return {JOB_UID: job.uid, JOB_NAME: job.key.name}


def owner_reference(job: Job) -> dict[str, Any]:
    """The owner reference of a job's objects, with which they are deleted together with the job."""
    return {
        "apiVersion": job.dialect.value,
        "kind": job.dialect.kind,
        "name": job.key.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def object_metadata(job: Job, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Metadata of an object that belongs to the job."""
    return {
        "name": name,
        "namespace": job.key.namespace,
        "labels": dict(labels),
        "ownerReferences": [owner_reference(job)],
    }


def owned_by_key(namespace: str, uid: str) -> str:
    """The index key of a job's objects."""
    return f"{namespace}/{uid}"


def owner_key(stored: Document) -> str:
    """The ``owned_by_key`` of the job that owns this object, "" for none.

    The label alone does not prove ownership, because any user may write it in any namespace. The job must also be the
    object's controller. Then the object is in the job's namespace, or the garbage collector removes it.
    """
    metadata = stored["metadata"]
    uid = (metadata.get("labels") or {}).get(JOB_UID)
    owners = metadata.get("ownerReferences") or () if uid else ()
    controlled = any(owner.get("controller") and owner.get("uid") == uid for owner in owners)
    return owned_by_key(metadata.get("namespace") or "", str(uid)) if controlled else ""


def owner_name(stored: Document) -> str:
    """The name of the object's controller, "" for none."""
    owners = stored["metadata"].get("ownerReferences") or ()
    return next((str(owner.get("name") or "") for owner in owners if owner.get("controller")), "")


def orphan_key(stored: Document) -> str:
    """A key for remaining objects of a job without a controller, as ``--cascade=orphan`` leaves them; "" for others.

    The key differs from ``owned_by_key``, because the label may name an existing job.
    """
    metadata = stored["metadata"]
    uid = (metadata.get("labels") or {}).get(JOB_UID)
    controlled = any(owner.get("controller") for owner in metadata.get("ownerReferences") or ())
    return f"{metadata.get('namespace') or ''}//{uid}" if uid and not controlled else ""


def replica_labels(job: Job, spec: ReplicaSpec, index: int) -> dict[str, str]:
    """All labels of a replica except the attempt: tf-dist's labels and its dialect's labels."""
    own = {**job_labels(job), REPLICA_TYPE: spec.type, REPLICA_INDEX: str(index)}
    match job.dialect:
        case Dialect.TFJOB_V1:
            common = {"job-name": job.key.name, "replica-type": spec.type, "replica-index": str(index)}
            leads = any(other.role.leads for other in job.replica_specs)
            if spec.role.leads or (not leads and spec.role is Role.WORKER and index == 0):
                common["job-role"] = "master"
            current = {f"training.kubeflow.org/{key}": value for key, value in common.items()}
            current["training.kubeflow.org/operator-name"] = "tfjob-controller"
            legacy = {"group-name": "kubeflow.org", "tf-job-name": job.key.name, "controller-name": "tf-operator"}
            return own | (current | common | legacy)
        case Dialect.TFJOB_V1ALPHA1:
            return own | {
                "kubeflow.org": "",
                "job_type": spec.name,
                "runtime_id": job.runtime_id,
                "tf_job_name": job.key.name,
                "task_index": str(index),
            }
        case Dialect.VOLCANO:
            return own | {
                "volcano.sh/job-name": job.key.name,
                "volcano.sh/job-namespace": job.key.namespace,
                "volcano.sh/task-spec": spec.name,
                "volcano.sh/task-index": str(index),
                "volcano.sh/queue-name": job.scheduling.queue,
            }


TRAINING_OPERATOR: Final = "kubeflow.org/training-operator"
"""The value of ``managedBy`` in the jobs that tf-dist runs."""
SYSTEM_CLASSES: Final = "system-"
"""The prefix of priority classes that Kubernetes reserves for components of the cluster."""


BATCHES_FLAG: Final = re.compile(r"(--?num[_-]batches)(?:=.*)?", re.DOTALL)
"""The argument of tf_cnn_benchmarks and similar programs for the number of batches of a worker."""
