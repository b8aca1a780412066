"""The check of a cluster before an installation: its definitions, its queues, and the needs of its jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.cli.install.manifests import Manifest, definition
from tf_dist.client import stored_jobs
from tf_dist.client.connection import PART_OF, TF_DIST, VOLCANO_JOBS_DEFINITION, get_definition, is_tf_dist_definition
from tf_dist.cluster.api import QUEUES, VOLCANO_JOBS, Cluster, Object
from tf_dist.core.gang.resources.admission_config import admission_config
from tf_dist.core.integrations.dispatch import integration_of
from tf_dist.core.model.gang_queue import DEFAULT_QUEUE, Queue
from tf_dist.core.model.status_codec import MEMORY_CONDITION
from tf_dist.core.model.wording import join_names
from tf_dist.errors import Forbidden, InvalidJob, NotFound

_PRESERVED: Final = "x-kubernetes-preserve-unknown-fields"


@dataclass(frozen=True, slots=True)
class DefinitionDifference:
    """A difference from tf-dist's definition, and its consequence."""

    what: str
    so: str


def differences(found: Manifest, ours: Manifest) -> list[DefinitionDifference]:
    """Differences that matter between the definition in the cluster and ours."""
    return [*_of_versions(found, ours), *_of_status(found), *_of_spec(found), *_of_faces(found, ours)]


def _served(definition: Manifest) -> dict[str, Mapping[str, Any]]:
    return {one["name"]: one for one in definition["spec"]["versions"] if one.get("served")}


def _of_versions(found: Manifest, ours: Manifest) -> Iterator[DefinitionDifference]:
    there, wanted = _served(found), _served(ours)
    missing = [name for name in wanted if name not in there]
    if not missing:
        return
    served = ", ".join(there) or "no version"
    if "v1" in missing:
        yield DefinitionDifference(f"it serves {served}, not v1", "tf-dist finds no jobs there: it needs v1")
    if "v1alpha1" in missing:
        carried = "write them as v1: tf-dist convert FILE --to kubeflow.org/v1"
        yield DefinitionDifference(f"it serves {served}, not v1alpha1", f"jobs in that format are refused; {carried}")


def _of_status(found: Manifest) -> Iterator[DefinitionDifference]:
    v1 = _served(found).get("v1")
    if v1 is None:
        return
    if "status" not in (v1.get("subresources") or {}):
        yield DefinitionDifference(
            "it has no status subresource", "tf-dist cannot write the status of jobs, and will not run them"
        )
    elif not keeps(v1, "status.tfDist.phase"):
        if keeps(v1, "status.conditions"):
            follows = f"tf-dist stores its memory of a job in the condition {MEMORY_CONDITION} instead"
        else:
            follows = "tf-dist cannot store its memory of jobs, and will not run them"
        yield DefinitionDifference("it drops status.tfDist from a job's status", follows)


def _of_spec(found: Manifest) -> Iterator[DefinitionDifference]:
    v1 = _served(found).get("v1")
    if v1 is None:
        return
    lost = [key for key in ("suspend", "schedulingPolicy.queue") if not keeps(v1, f"spec.runPolicy.{key}")]
    if lost:
        yield DefinitionDifference(
            f"it drops {' and '.join(f'spec.runPolicy.{key}' for key in lost)}", "jobs cannot have these settings"
        )


def _of_faces(found: Manifest, ours: Manifest) -> Iterator[DefinitionDifference]:
    v1, own = _served(found).get("v1"), _served(ours)["v1"]
    if v1 is None:
        return
    there = {column["name"] for column in v1.get("additionalPrinterColumns") or ()}
    missing = [column["name"] for column in own["additionalPrinterColumns"] if column["name"] not in there]
    if missing:
        yield DefinitionDifference(f"kubectl get shows no {', '.join(missing)}", "tf-dist get shows them")
    if "scale" not in (v1.get("subresources") or {}):
        yield DefinitionDifference("it has no scale subresource", "kubectl scale and autoscalers do not work on jobs")


def keeps(version: Mapping[str, Any], path: str) -> bool:
    """Whether the API server stores the field at a dotted path in objects of this version."""
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    for key in path.split("."):
        known = (schema.get("properties") or {}).get(key, schema.get("additionalProperties"))
        if isinstance(known, Mapping):
            schema = known
        else:
            return bool(schema.get(_PRESERVED) or known is True)
    return True


_TFJOBS: Final = "tfjobs.kubeflow.org"
OLDEST_KUBERNETES: Final = (1, 29)
"""The oldest supported release. From this release on, validation rules (CEL) are stable, and kubelets report that a pod
waits for an image."""


def check_cluster(cluster: Cluster, release: tuple[int, int]) -> tuple[frozenset[str], list[DefinitionDifference]]:
    """The definitions that another installation owns, and the differences to report. Changes nothing.

    ``release``: the release of the API server, such as (1, 29), or (0, 0) if unknown.
    """
    there = get_definition(cluster, _TFJOBS)
    foreign = there is not None and not is_tf_dist_definition(there)
    found = list(_differences_of(there)) if there is not None and foreign else []
    found += _unlimited_default(cluster)
    if (0, 0) < release < OLDEST_KUBERNETES:
        found.insert(0, DefinitionDifference(f"the cluster runs Kubernetes {_dotted(release)}", _TOO_OLD))
    return frozenset({_TFJOBS} if foreign else ()), found


def _dotted(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))


_TOO_OLD: Final = f"tf-dist supports {_dotted(OLDEST_KUBERNETES)} and later: upgrade the cluster first"


def needed_values(cluster: Cluster) -> list[DefinitionDifference]:
    """Values of the chart that jobs in the cluster need. The printed manifests do not set them."""
    try:
        going = [job for job in stored_jobs.list_jobs(cluster, None) if not job.status.finished]
    except (Forbidden, NotFound):
        return []
    needs: dict[str, list[stored_jobs.StoredJob]] = {}
    if is_tf_dist_definition(get_definition(cluster, VOLCANO_JOBS_DEFINITION) or {"metadata": {}}):
        needs["volcanoJobs=true"] = [job for job in going if job.resource is VOLCANO_JOBS]
    for job in going:
        if name := _gang_scheduler(job):
            needs.setdefault(f"gangSchedulers={{{name}}}", []).append(job)
    return [
        DefinitionDifference(
            f"{_named(jobs)} needs rights that these manifests do not have",
            f"if you apply them, the job gets stuck; install with Helm: --set '{value}'",
        )
        for value, jobs in sorted(needs.items())
        if jobs
    ]


def _gang_scheduler(job: stored_jobs.StoredJob) -> str:
    """The gang scheduler that a job uses or requests. Empty for tf-dist itself, and for invalid jobs."""
    try:
        found = integration_of(job.job, job.status)
    except InvalidJob:
        return ""
    return found.name.value if found is not None else ""


def _named(jobs: list[stored_jobs.StoredJob]) -> str:
    more = f" (and {len(jobs) - 1} more)" if len(jobs) > 1 else ""
    return f"{jobs[0].shown} in {jobs[0].namespace}{more}"


def _unlimited_default(cluster: Cluster) -> Iterator[DefinitionDifference]:
    """Report that jobs without a queue have no quota, although other queues have quotas."""
    try:
        queues = admission_config(cluster.list(QUEUES, None).items, ()).queues or ()
    except (Forbidden, NotFound):
        return
    named = {one.name: one for one in queues}
    limited = sorted(name for name in named if any(named[one].quotas for one in _line(named, name)))
    if limited and DEFAULT_QUEUE not in limited and not any(one.default for one in queues):
        default = named.get(DEFAULT_QUEUE)
        if default is not None and default.namespace_selector:
            return  # the queue is closed or restricted
        yield DefinitionDifference(
            f"the queue {DEFAULT_QUEUE} has no quotas, although other queues have some ({join_names(limited)})",
            f"a job that names no queue, or {DEFAULT_QUEUE}, bypasses all quotas; mark a queue with "
            f"spec.default: true, or define the queue {DEFAULT_QUEUE} with quotas, or closed (docs/queue-recipes.md)",
        )


def _line(queues: Mapping[str, Queue], name: str) -> list[str]:
    """A queue and its defined ancestors."""
    line = [name]
    while (above := queues[line[-1]].parent) in queues and above not in line:
        line.append(above)
    return line


def _differences_of(there: Object) -> Iterator[DefinitionDifference]:
    yield DefinitionDifference(
        f"the cluster has a definition {_TFJOBS} that is not tf-dist's; it is not changed",
        "tf-dist works with it. To have tf-dist's instead, once nothing else needs it: "
        f"kubectl label crd {_TFJOBS} {PART_OF}={TF_DIST} --overwrite",
    )
    yield from differences(there, definition(_TFJOBS))
    yield DefinitionDifference(
        "another operator may be running, and two operators must not run the same job",
        "look for it: kubectl get deployments -A | grep -E 'training-operator|tf-job-operator'; "
        "scale it to 0, or let the two have different namespaces (docs/other-operators.md)",
    )
