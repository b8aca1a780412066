"""Annotations that Volcano's scheduler reads from jobs and pods, both those that tf-dist uses and all others.

Volcano reads them in ``pkg/scheduler/api/job_info.go`` and ``pod_info.go`` (volcano-sh/volcano), and uses them in
``pkg/scheduler/plugins`` (sla, tdm, cdp, task-topology, …).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tf_dist.core.dialects.field_errors import FieldErrors
from tf_dist.core.dialects.volcano_plugins import parse_go_bool
from tf_dist.core.model.fieldpath import FieldPath, suggestion, texts, value_at
from tf_dist.core.model.job import Document
from tf_dist.core.model.timestamps import parse_go_duration

SLA: Final = ("volcano.sh/sla-waiting-time", "sla-waiting-time")  # the first valid annotation counts
PREEMPTABLE: Final = "volcano.sh/preemptable"
AFFINITY: Final = "volcano.sh/task-topology-affinity"
TASK_PRIORITY: Final = "volcano.sh/task-priority"  # only of pods, see core/gang/resources/pod_requests
_HOST: Final = "kubernetes.io/hostname"

# The purpose of annotations in Volcano that have no effect in tf-dist.
_NOT_USED: Final[Mapping[str, str]] = {
    "volcano.sh/task-topology-anti-affinity": "keeps tasks on different nodes: write podAntiAffinity into the template",
    "volcano.sh/task-topology-task-order": "orders the pods of a gang, which here get their nodes at once",
    "volcano.sh/task-topology": "is Volcano's old form of task-topology-affinity",
    "volcano.sh/cooldown-time": "protects new pods from preemption: volcano.sh/preemptable protects them permanently",
    "volcano.sh/revocable-zone": "lets pods use nodes that are lent for a time of the day",
    "volcano.sh/jdb-min-available": "limits the pods that are evicted at a time: tf-dist preempts a gang as a whole",
    "volcano.sh/jdb-max-unavailable": "limits the pods that are evicted at a time: tf-dist preempts a gang as a whole",
    "volcano.sh/numa-topology-policy": "places by NUMA node",
    "volcano.sh/resource-strategy-scoring-type": "scores nodes",
    "volcano.sh/resource-strategy-weight": "scores nodes",
    "volcano.sh/qos-level": "is read by Volcano's node agent",
    "volcano.sh/hierarchy": "belongs to a queue: write parent into the Queue",
    "volcano.sh/hierarchy-weights": "belongs to a queue: write weight into the Queue",
    "volcano.sh/job-forwarding": "hands the job to another cluster",
    "volcano.sh/forward-cluster": "hands the job to another cluster",
    "volcano.sh/vgpu-mode": "shares GPUs",
    "volcano.sh/vgpu-podgroup-policy": "shares GPUs",
    "volcano.sh/vgpu-use-gpuuuid": "chooses GPUs",
    "volcano.sh/vgpu-nouse-gpuuuid": "chooses GPUs",
    "scheduling.volcano.sh/queue-name": "names the queue of a lone pod: write spec.queue",
    "scheduling.volcano.sh/queue-allocation-gate": "gates pods until their queue has capacity: tf-dist creates them "
    "only then",
    "scheduling.volcano.sh/group-min-member": "is for Deployments and the like: write minAvailable",
    "scheduling.volcano.sh/group-min-resources": "is for Deployments and the like: here requests are added up",
    "scheduling.volcano.sh/group-name": "is made for each job",
    "scheduling.k8s.io/group-name": "is made for each job",
}
# Annotations that Volcano's own controllers write. Documents from a cluster contain them, and they request nothing.
_NOTES: Final = frozenset(
    {
        *("volcano.sh/task-spec", "volcano.sh/task-index", "volcano.sh/job-name", "volcano.sh/job-namespace"),
        *("volcano.sh/job-version", "volcano.sh/job-type", "volcano.sh/job-retry-count", "volcano.sh/queue-name"),
        *("volcano.sh/template-uid", "volcano.sh/partition-id", "volcano.sh/cronjob-scheduled-timestamp"),
        *("volcano.sh/topology-decision", "volcano.sh/burst-name", "volcano.sh/silo-resource"),
    }
)
_PREFIXES: Final = ("volcano.sh/", "scheduling.volcano.sh/")


def sla_waiting_time(annotations: Mapping[str, str]) -> float | None:
    """The maximum wait of the job in seconds, or None."""
    found = (parse_go_duration(annotations.get(key, "")) for key in SLA)
    return next((seconds for seconds in found if seconds is not None and seconds > 0), None)


def is_preemptable(
    annotations: Mapping[str, str], labels: Mapping[str, str], templates: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether all pods of a job may be preempted. ``annotations``, ``labels``: those of the job, which its pods get.

    As in ``GetPodPreemptable``, an annotation has precedence over a label, and a value that is not a boolean protects
    the pod. A gang is preempted as a whole, so a protected pod protects all pods.
    """
    return all(
        _preemptable(
            {**texts(value_at(one, "metadata", "annotations")), **annotations}.get(PREEMPTABLE),
            {**texts(value_at(one, "metadata", "labels")), **labels}.get(PREEMPTABLE),
        )
        for one in templates
    )


def _preemptable(annotation: str | None, label: str | None) -> bool:
    said = label if annotation is None else annotation
    return True if said is None else parse_go_bool(said) or False


def preferred_topology(annotations: Mapping[str, str], tasks: Sequence[str]) -> str:
    """The topology label of the job: the node's hostname label if all tasks should be on one node, otherwise ""."""
    groups = _groups(annotations.get(AFFINITY, ""))
    known = all(name in tasks and len(set(group)) == len(group) for group in groups for name in group)
    return _HOST if known and any(set(group) == set(tasks) for group in groups) else ""


def _groups(said: str) -> list[list[str]]:
    return [[name for name in group.split(",") if name] for group in said.split(";")]


def check_annotations(
    annotations: Mapping[str, str], templates: Sequence[Document], tasks: Sequence[str], out: FieldErrors
) -> None:
    """Warn about invalid annotations, and once about each unused annotation, at its first path."""
    loc: FieldPath = ("metadata", "annotations")
    for key in SLA:
        seconds = parse_go_duration(annotations.get(key, "1s"))
        if seconds is None or seconds <= 0:
            message = f"{annotations[key][:40]!r} is not a waiting time, and is not used"
            out.warn((*loc, key), message, "such as 90s, 10m or 1h30m")
    if AFFINITY in annotations and not preferred_topology(annotations, tasks):
        groups = _groups(annotations[AFFINITY])
        unknown = next((name for group in groups for name in group if name not in tasks), "")
        if unknown:
            message = f"names the task {unknown!r}, which the job does not have; it is not used"
            out.warn((*loc, AFFINITY), message, suggestion(unknown, tasks))
        else:
            message = f"brings some tasks together; tf-dist only all of them ({','.join(tasks)}), and does not use it"
            out.warn((*loc, AFFINITY), message, "write podAffinity into the templates")
    for place, key in unused_annotations(annotations, templates):
        out.warn((*place, key), *_what_of(key))


def unused_annotations(
    annotations: Mapping[str, str], templates: Sequence[Document]
) -> Iterator[tuple[FieldPath, str]]:
    """The distinct unused annotations for Volcano's scheduler, each with its path and key."""
    places: list[tuple[FieldPath, Mapping[str, str]]] = [(("metadata", "annotations"), annotations)]
    for index, one in enumerate(templates):
        place: FieldPath = ("spec", "tasks", index, "template", "metadata", "annotations")
        places.append((place, texts(value_at(one, "metadata", "annotations"))))
    seen: set[str] = set()
    for place, found in places:
        for key in found:
            if (key in _NOT_USED or key.startswith(_PREFIXES)) and key not in (*seen, *_NOTES, *_used(place)):
                seen.add(key)
                yield place, key


def _used(place: FieldPath) -> tuple[str, ...]:
    """The keys that tf-dist uses at this path, of a job or of a pod template."""
    return (PREEMPTABLE, TASK_PRIORITY) if len(place) > 2 else (*SLA, PREEMPTABLE, AFFINITY)


def _what_of(key: str) -> tuple[str, str]:
    if purpose := _NOT_USED.get(key):
        what, _, hint = purpose.partition(": ")
        return f"{what} in Volcano; tf-dist does not use it", hint
    if key in (*SLA, AFFINITY):
        return "is read from the job, not from its pods; it is not used", "write it under metadata of the job"
    if key == TASK_PRIORITY:
        return "is read from pods, not from the job; it is not used", "write it under metadata of a task's template"
    known = (*SLA, PREEMPTABLE, TASK_PRIORITY, *_NOT_USED)
    return "neither Volcano nor tf-dist reads this annotation", suggestion(key, known, "")
