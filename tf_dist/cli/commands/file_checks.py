"""``tf-dist validate``, ``plan``, ``convert``: check, show and convert job files. Nothing is started."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tf_dist.cli import options, output
from tf_dist.client import exit_codes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tf_dist.client.job_files import JobFiles, LoadedJob
    from tf_dist.client.yaml_files import FileProblem, YamlDocument
    from tf_dist.core.model.job import Job, ReplicaId
    from tf_dist.errors import Problem

_TFJOB: Final = "kubeflow.org/v1"
_MOST_SHOWN: Final = 20  # maximum replicas of a type that a table and JSON show completely
_EXAMPLES: Final = 3  # replicas that they show of a type with more replicas


def validate(
    files: options.Files,
    form: options.TextOutput = options.TextFormat.TEXT,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    plain: options.Plain = False,
) -> None:
    """Check job files and report every problem with its line and a hint. Nothing is started.

    Unknown keys are errors. Other commands only warn about them, as a cluster does, unless --strict is given.

    A file may have several documents: TFJobs, Volcano Jobs, queues, ConfigMaps, Secrets, PersistentVolumeClaims and
    Services.
    """
    from tf_dist.client.job_files import load_job_files

    bundle = load_job_files(files, strict=True)
    valid = not (bundle.problems if strict else bundle.errors)
    if form is not options.TextFormat.TEXT:
        output.data(form.value, _validation_report(bundle, valid))
    else:
        _show_valid(bundle)
    if not valid:
        raise typer.Exit(exit_codes.USAGE)


def _show_valid(bundle: JobFiles) -> None:
    from tf_dist.client.job_files import problem_text

    for found in bundle.problems:
        level = output.styled("warning", "yellow bold") if found.warning else output.styled("error", "red bold")
        output.line(f"{level}: {problem_text(found)}")
        if found.problem.hint:
            output.line(f"  {output.styled('hint:', 'cyan')} {found.problem.hint}")
    broken = {(found.file, found.number) for found in bundle.errors}
    for entry in bundle.jobs:
        if (entry.written.file, entry.written.number) not in broken:
            output.line(f"{entry.written.file}: {output.styled('valid', 'green')}: {_summary(entry)}")
    for written in bundle.companions:
        if (written.file, written.number) not in broken:
            name = written.content["metadata"]["name"]
            output.line(f"{written.file}: {output.styled('valid', 'green')}: {written.content['kind']} {name}")


def _summary(entry: LoadedJob) -> str:
    job = entry.job
    replicas = ", ".join(f"{spec.replicas} × {spec.name}" for spec in job.replica_specs)
    return f"{job.dialect.kind} {job.key} ({job.dialect.value}): {replicas}"


def _validation_report(bundle: JobFiles, valid: bool) -> dict[str, Any]:
    jobs = [
        {"file": entry.written.file, "document": entry.written.number, "name": entry.job.key.name}
        | {"namespace": entry.job.key.namespace, "apiVersion": entry.job.dialect.value, "kind": entry.job.dialect.kind}
        for entry in bundle.jobs
    ]
    return {"valid": valid, "jobs": jobs, "problems": [_entry(found) for found in bundle.problems]}


def _entry(found: FileProblem) -> dict[str, Any]:
    return {
        "file": found.file,
        "document": found.number,
        "line": found.line or None,
        "severity": "warning" if found.warning else "error",
        "path": found.problem.path,
        "message": found.problem.message,
        "hint": found.problem.hint,
    }


def plan(
    file: options.File,
    form: Annotated[options.DataFormat, typer.Option("--output", "-o", help="table, yaml or json.")] = (
        options.DataFormat.TABLE
    ),
    changes: options.Set = None,
    set_json: options.SetJson = None,
    set_string: options.SetString = None,
    strict: options.Strict = False,
    cluster_domain: options.ClusterDomain = "",
    plain: options.Plain = False,
) -> None:
    """Show what a job would create: pods, Services, ConfigMaps, and the TF_CONFIG of every replica. Starts nothing.

    -o yaml prints objects that kubectl can apply. They have no owner, because the job does not exist. The table and
    JSON show 3 replicas of a type with more than 20.
    """
    from tf_dist.cli.findings import require_valid_files
    from tf_dist.client.job_files import load_job_files, one_job
    from tf_dist.core.model.overrides import parse_overrides

    overrides = parse_overrides(changes or (), json=set_json or (), strings=set_string or ())
    bundle = require_valid_files(load_job_files([file], overrides, strict=strict))
    job = replace(_placeholder(one_job(bundle).job), cluster_domain=cluster_domain.strip("."))
    companions = [written.content for written in bundle.companions]
    for text in (*unsupported_security(job), *_left_out(job)):
        output.warning(text)
    if form is options.DataFormat.TABLE:
        _show_plan(job, companions)
    else:
        every = form is options.DataFormat.YAML
        objects = [*companions, *planned(job, job.replicas if every else _shown_replicas(job))]
        output.data(form.value, objects if every else _plan_report(job, objects))


def _left_out(job: Job) -> Iterator[str]:
    """Objects that a plan does not show, because they contain private keys."""
    from tf_dist.core.podbuilder.volcano_plugins import secret_name

    if job.plugins.ssh is not None:
        yield f"the Secret {secret_name(job)}, with the keys of the ssh plugin, is made when the job starts"


def _placeholder(job: Job) -> Job:
    """The job with a placeholder uid. The cluster assigns the real uid when the job is created."""
    return replace(job, uid=f"planned-{job.key.name}"[:63].rstrip("-."))


def planned(job: Job, replicas: Sequence[ReplicaId]) -> list[dict[str, Any]]:
    """The objects of the first attempt for these ``replicas``, without their owner, which does not exist yet."""
    from tf_dist.client.stored_jobs import replica_of
    from tf_dist.core.integrations import dispatch
    from tf_dist.core.model.status import Attempts
    from tf_dist.core.podbuilder import replica_pod, services
    from tf_dist.core.podbuilder.tf_config import cluster_hosts

    attempt, s, hosts = Attempts(), dispatch.planned_context(job), cluster_hosts(job)
    pods = {replica: replica_pod.build_pod(job, replica, attempt.label(replica), hosts) for replica in replicas}
    for replica, body in pods.items():
        dispatch.decorate_pod(s, replica, body)
    chosen = {None, *replicas}
    own = [body for body in services.build_objects(job) if replica_of(body) in chosen]
    return [_ownerless(body) for body in (*dispatch.wanted_objects(s), *own, *pods.values())]


def unsupported_security(job: Job) -> list[str]:
    """The security settings of pods that a run on this machine would ignore or refuse, as far as known in advance."""
    import sys

    from tf_dist.cluster.kubelet.node.machine import find_user, node_features
    from tf_dist.cluster.kubelet.pod.pod_status import PodStartError
    from tf_dist.cluster.kubelet.pod.security_context import plan_security
    from tf_dist.core.model.status import Attempts
    from tf_dist.core.podbuilder import replica_pod

    here = node_features(isolated=sys.platform == "linux", enforced=("memory", "cpu"))  # the best case
    found: dict[str, None] = {}
    for replica in (spec.ids[0] for spec in job.replica_specs if spec.replicas):  # the others are identical
        pod = replica_pod.build_pod(job, replica, Attempts().label(replica))
        for container in [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]:
            where = f"on this machine, container {container['name']}"
            try:
                planned = plan_security(pod, container, here, find_user)
            except PodStartError as problem:
                found[f"{where} is refused: {problem.text}"] = None
                continue
            found |= dict.fromkeys(f"{where}: {text}" for text in planned.warnings)
    return list(found)


def _ownerless(body: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in body["metadata"].items() if key != "ownerReferences"}
    return {**body, "metadata": metadata}


def _configs(job: Job, replicas: Sequence[ReplicaId]) -> dict[str, str]:
    from tf_dist.core.podbuilder.tf_config import build_tf_config, cluster_hosts

    hosts = cluster_hosts(job)
    found = {str(replica): build_tf_config(job, replica, hosts) for replica in replicas}
    return {replica: text for replica, text in found.items() if text is not None}


def _plan_report(job: Job, objects: list[dict[str, Any]]) -> dict[str, Any]:
    shown = _shown_replicas(job)
    configs = {replica: json.loads(text) for replica, text in _configs(job, shown).items()}
    counts = Counter(replica.type for replica in shown)
    return {
        "job": {"apiVersion": job.dialect.value, "kind": job.dialect.kind, "name": job.key.name}
        | {"namespace": job.key.namespace},
        "minAvailable": job.scheduling.min_available,
        "requests": requests_text(job),
        "replicas": {spec.type: {"count": spec.replicas, "shown": counts[spec.type]} for spec in job.replica_specs},
        "objects": objects,
        "tfConfig": configs,
    }


def gang_text(job: Job) -> str:
    """The number of pods that must start together, in words."""
    from tf_dist.core.model.wording import are

    least, total = job.scheduling.min_available, len(job.replicas)
    return "1 pod" if total == 1 else f"at least {least} of {total} pods {are(least, 'starts', 'start together')}"


def requests_text(job: Job) -> dict[str, str]:
    """The resource requests of the whole gang."""
    from tf_dist.core.gang.resources.pod_requests import add_resources, pod_sets
    from tf_dist.core.model.quantity import format_quantity

    total = add_resources({r: v * one.count for r, v in one.requests.items()} for one in pod_sets(job))
    return {resource: format_quantity(value, resource) for resource, value in sorted(total.items())}


def _shown_replicas(job: Job) -> list[ReplicaId]:
    """The replicas that a table and JSON show. They are few, because each TF_CONFIG has the addresses of all."""
    return [
        replica
        for spec in job.replica_specs
        for replica in spec.ids[: spec.replicas if spec.replicas <= _MOST_SHOWN else _EXAMPLES]
    ]


def _show_plan(job: Job, companions: list[dict[str, Any]]) -> None:
    needs = ", ".join(f"{resource} {value}" for resource, value in requests_text(job).items())
    output.line(f"{output.styled(f'{job.dialect.kind} {job.key}', 'bold')} ({job.dialect.value})")
    output.line(f"gang: {gang_text(job)}; it needs {needs}")
    output.line()
    shown = _shown_replicas(job)
    rows = [(body["kind"], body["metadata"]["name"], _detail(body)) for body in (*companions, *planned(job, shown))]
    output.table(("KIND", "NAME", "DETAIL"), rows)
    for spec in job.replica_specs:
        if left := spec.replicas - sum(replica.type == spec.type for replica in shown):
            output.line(f"and {left} more of {spec.name} like these: -o yaml has them all")
    for replica, text in _configs(job, shown).items():
        output.line()
        output.line(f"{output.styled(replica, 'bold')} TF_CONFIG")
        output.line(f"  {text}")


def _detail(body: dict[str, Any]) -> str:
    spec = body.get("spec") or {}
    match body["kind"]:
        case "Pod":
            containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
            return ", ".join(f"{container['name']}: {container.get('image', '')}" for container in containers)
        case "Service":
            ports = ", ".join(str(port["port"]) for port in spec.get("ports") or ())
            parts = ["headless"] if spec.get("clusterIP") == "None" else []
            return ", ".join([*parts, f"port {ports}"] if ports else parts)
        case "PodGroup" | "Workload":
            return str(body["apiVersion"])
        case "ConfigMap" | "Secret":
            return ", ".join((body.get("data") or {}) | (body.get("stringData") or {}))
    return ""


def convert(
    file: options.File,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="VERSION",
            help="kubeflow.org/v1: jobs, and queues; tf-dist.dev/v1alpha1: only queues.",
        ),
    ] = _TFJOB,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with 2 for unknown keys, and for what the other format cannot express."),
    ] = False,
) -> None:
    """Write Volcano Jobs and older TFJobs as TFJobs kubeflow.org/v1, and queues of Volcano as queues of tf-dist.

    Fields that the other format cannot express are reported on standard error.
    """
    from tf_dist.cli.findings import require_valid_files
    from tf_dist.client.job_files import load_job_files
    from tf_dist.client.yaml_files import FileProblem
    from tf_dist.core.dialects import convert as converted

    jobs = _converts_jobs(to)
    bundle = require_valid_files(load_job_files([file], strict=strict, volcano_queues=True))
    queues, lost = _converted_queues(bundle)
    documents = [*(written.content for written in bundle.companions), *queues]
    for entry in bundle.jobs:
        if not jobs:
            documents.append(entry.document)
            continue
        result = converted(entry.document, strict=strict)
        documents.append(result.document)
        written = entry.written
        lost += [FileProblem(written.file, written.number, written.line(p.path), p, True) for p in result.lost]
    _show_losses(lost)
    output.data("yaml", documents if len(documents) > 1 else documents[0])
    if strict and lost:
        raise typer.Exit(exit_codes.USAGE)


def _converted_queues(bundle: JobFiles) -> tuple[list[dict[str, Any]], list[FileProblem]]:
    """The converted queues, and warnings about lost fields. Raises InvalidFiles for invalid queues."""
    from tf_dist.client.job_files import InvalidFiles
    from tf_dist.client.yaml_files import FileProblem
    from tf_dist.core.dialects.volcano_queue import convert_queues
    from tf_dist.errors import InvalidQueue

    def placed(written: YamlDocument, problem: Problem, *, warning: bool) -> FileProblem:
        return FileProblem(written.file, written.number, written.line(problem.path), problem, warning)

    wrong: list[FileProblem] = []
    for written in bundle.volcano_queues:
        try:
            convert_queues([written.content])
        except InvalidQueue as error:
            wrong += [placed(written, problem, warning=False) for problem in error.problems]
    if wrong:
        raise InvalidFiles(wrong)
    found = convert_queues([written.content for written in bundle.volcano_queues])
    pairs = list(zip(bundle.volcano_queues, found, strict=True))
    lost = [placed(written, problem, warning=True) for written, one in pairs for problem in one.lost]
    return [one.document for _, one in pairs], lost


def _show_losses(lost: list[FileProblem]) -> None:
    from tf_dist.client.job_files import problem_text

    for found in lost:
        output.warning(problem_text(found), found.problem.hint)


def _converts_jobs(to: str) -> bool:
    """Whether to convert jobs as well as queues. Raises InvalidJob for an unknown format."""
    from tf_dist.core.dialects.queue_resource import API_VERSION
    from tf_dist.core.model.fieldpath import suggestion
    from tf_dist.errors import InvalidJob, Problem

    known = [_TFJOB, API_VERSION]
    if to not in known:
        raise InvalidJob([Problem("--to", f"there is no conversion to {to!r}", suggestion(to, known))])
    return to == _TFJOB
