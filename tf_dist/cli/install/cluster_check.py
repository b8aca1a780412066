"""Check of a cluster before an installation: existing definitions, whose they are, and what they lack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tf_dist.cli.install.crds import TFJOBS, VOLCANO_COMMANDS, tfjobs
from tf_dist.cli.install.install_options import DisruptionBudgetVersion, InstallOptions, Manifest
from tf_dist.client import stored_jobs
from tf_dist.client.connection import PART_OF, TF_DIST, VOLCANO_JOBS_DEFINITION, get_definition, is_tf_dist_definition
from tf_dist.cluster.api import POD_DISRUPTION_BUDGETS, QUEUES, VOLCANO_JOBS, Cluster, Object
from tf_dist.core.api.pod_events import join_names
from tf_dist.core.api.status_codec import MEMORY_CONDITION
from tf_dist.core.gang.resources.admission_config import admission_config
from tf_dist.core.gang.types import DEFAULT_QUEUE, Queue
from tf_dist.core.integrations.dispatch import integration_of
from tf_dist.errors import Forbidden, InvalidJob, NotFound, Rejected

_PRESERVED: Final = "x-kubernetes-preserve-unknown-fields"


@dataclass(frozen=True, slots=True)
class DefinitionDifference:
    """What is otherwise than in tf-dist's definition, and what follows from it."""

    what: str
    so: str


def differences(found: Manifest, ours: Manifest) -> list[DefinitionDifference]:
    """What the definition in the cluster lacks of ours; nothing if it serves as well."""
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
            "it has no status subresource", "tf-dist cannot write how a job stands, and will not drive it"
        )
    elif not keeps(v1, "status.tfDist.phase"):
        if keeps(v1, "status.conditions"):
            follows = f"tf-dist keeps what it remembers of a job in the condition {MEMORY_CONDITION} instead"
        else:
            follows = "tf-dist cannot remember anything of a job, and will not drive it"
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
    """Whether an object of this version may have something at a dotted path, so that the API server stores it."""
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    for key in path.split("."):
        known = (schema.get("properties") or {}).get(key, schema.get("additionalProperties"))
        if isinstance(known, Mapping):
            schema = known
        else:
            return bool(schema.get(_PRESERVED) or known is True)
    return True


_OLD: Final = "leave the option out; Kubernetes serves it from 1.21 on"
_TAKE_OVER: Final = "kubectl label crd {} {}={} --overwrite"


def check_cluster(cluster: Cluster, settings: InstallOptions) -> tuple[InstallOptions, list[DefinitionDifference]]:
    """The settings that fit the cluster, and what to report about it. Nothing in the cluster is changed.

    Rejected when what is asked for would do harm: Volcano's jobs under two controllers.
    """
    if settings.volcano_jobs:
        _refuse_volcano(cluster)
        commands = get_definition(cluster, VOLCANO_COMMANDS)
        if commands is not None and not is_tf_dist_definition(commands):
            # Volcano's own serves as well, and may be all that is left of it.
            settings = replace(settings, left_out=settings.left_out | {VOLCANO_COMMANDS})
    there = get_definition(cluster, TFJOBS)
    found: list[DefinitionDifference] = []
    if there is not None and not is_tf_dist_definition(there):
        found = list(_differences_of(there))
        settings = replace(settings, left_out=settings.left_out | {TFJOBS})
    found += _unlimited_default(cluster)
    budgets = _budgets(cluster, settings.into)
    if settings.disruption_budgets and budgets is not DisruptionBudgetVersion.V1:
        raise Rejected("the cluster does not serve policy/v1, of which --disruption-budgets makes objects", hint=_OLD)
    return replace(settings, budgets=budgets), found


def with_needed_rights(cluster: Cluster, settings: InstallOptions) -> tuple[InstallOptions, list[str]]:
    """The settings with the options that jobs in the cluster need, and those that were added, in words.

    Installing anew with fewer options would take rights from drivers in the midst of these jobs.
    """
    try:
        going = [job for job in stored_jobs.list_jobs(cluster, None) if not job.status.finished]
    except (Forbidden, NotFound):
        return settings, []
    words: list[str] = []
    volcano = [job for job in going if job.resource is VOLCANO_JOBS]
    ours = is_tf_dist_definition(get_definition(cluster, VOLCANO_JOBS_DEFINITION) or {"metadata": {}})
    if volcano and ours and not settings.volcano_jobs:
        settings = replace(settings, volcano_jobs=True)
        words.append(f"--volcano-jobs ({_named(volcano)})")
    for name in sorted({name for job in going if (name := _gang_scheduler(job))} - {*settings.others}):
        settings = replace(settings, gang_schedulers=(*settings.gang_schedulers, name))
        words.append(f"--gang-scheduler {name} ({_named([job for job in going if _gang_scheduler(job) == name])})")
    return settings, words


def _gang_scheduler(job: stored_jobs.StoredJob) -> str:
    """The gang scheduler that a job has or asks for, "" for tf-dist itself; a job that cannot be read has none."""
    try:
        found = integration_of(job.job, job.status)
    except InvalidJob:
        return ""
    return found.name.value if found is not None else ""


def _named(jobs: list[stored_jobs.StoredJob]) -> str:
    more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return f"{jobs[0].shown} in {jobs[0].namespace}{more}"


def _unlimited_default(cluster: Cluster) -> Iterator[DefinitionDifference]:
    """That jobs without a queue have no quota beside queues that have some."""
    try:
        queues = admission_config(cluster.list(QUEUES, None).items, ()).queues or ()
    except (Forbidden, NotFound):
        return
    named = {one.name: one for one in queues}
    limited = sorted(name for name in named if any(named[one].quotas for one in _line(named, name)))
    if limited and DEFAULT_QUEUE not in limited and not any(one.default for one in queues):
        default = named.get(DEFAULT_QUEUE)
        if default is not None and default.namespace_selector:
            return  # it is closed, or kept for some
        yield DefinitionDifference(
            f"the queue {DEFAULT_QUEUE} has no quotas, beside queues that have some ({join_names(limited)})",
            f"a job that names no queue, or {DEFAULT_QUEUE}, goes past all quotas; mark a queue with "
            f"spec.default: true, or define the queue {DEFAULT_QUEUE} with quotas, or closed (docs/queues.md)",
        )


def _line(queues: Mapping[str, Queue], name: str) -> list[str]:
    """A queue and those above it that are defined."""
    line = [name]
    while (above := queues[line[-1]].parent) in queues and above not in line:
        line.append(above)
    return line


def _budgets(cluster: Cluster, namespace: str) -> DisruptionBudgetVersion:
    try:
        cluster.list(POD_DISRUPTION_BUDGETS, namespace, limit=1)
    except NotFound:
        return DisruptionBudgetVersion.V1BETA1
    except Forbidden:
        return DisruptionBudgetVersion.V1
    return DisruptionBudgetVersion.V1


def _differences_of(there: Object) -> Iterator[DefinitionDifference]:
    yield DefinitionDifference(
        f"the cluster has a definition {TFJOBS} that is not tf-dist's; it is left as it is",
        "tf-dist works with it. To have tf-dist's instead, once nothing else needs it: "
        + _TAKE_OVER.format(TFJOBS, PART_OF, TF_DIST),
    )
    yield from differences(there, tfjobs())
    yield DefinitionDifference(
        "another operator may be running, and two operators on one job harm it",
        "look for it: kubectl get deployments -A | grep -E 'training-operator|tf-job-operator'; "
        "scale it to 0, or let it drive other namespaces than tf-dist (--namespace)",
    )


def _refuse_volcano(cluster: Cluster) -> None:
    there = get_definition(cluster, VOLCANO_JOBS_DEFINITION)
    if there is None or is_tf_dist_definition(there):
        return
    raise Rejected(
        f"the cluster has Volcano's definition {VOLCANO_JOBS_DEFINITION}: its controller and tf-dist's would drive the "
        "same jobs",
        hint="leave out --volcano-jobs; or, if Volcano is gone for good: "
        + _TAKE_OVER.format(VOLCANO_JOBS_DEFINITION, PART_OF, TF_DIST),
    )
