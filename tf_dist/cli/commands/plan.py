"""``tf-dist plan``: what a job would create."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tf_dist.cli import options, output

if TYPE_CHECKING:
    from tf_dist.core.model import Job


def plan(
    file: options.File,
    form: Annotated[options.DataFormat, typer.Option("--output", "-o", help="table, yaml or json.")] = (
        options.DataFormat.TABLE
    ),
    changes: options.Set = None,
    set_json: options.SetJson = None,
    set_string: options.SetString = None,
    plain: options.Plain = False,
) -> None:
    """Show what a job would create: pods, services, config maps, and the TF_CONFIG of every replica. Starts nothing.

    With -o yaml, a stream of objects that kubectl can apply. They have no owner: only a submitted job can be one.
    """
    from tf_dist.cli.findings import accepted
    from tf_dist.client.bundle import load, one_job
    from tf_dist.core.overrides import parse_overrides

    overrides = parse_overrides(changes or (), json=set_json or (), strings=set_string or ())
    bundle = accepted(load([file], overrides))
    job = _placeholder(one_job(bundle).job)
    companions = [written.content for written in bundle.companions]
    for text in not_honoured(job):
        output.warning(text)
    if form is options.DataFormat.TABLE:
        _show(job, companions)
    else:
        objects = [*companions, *planned(job)]
        output.data(form.value, objects if form is options.DataFormat.YAML else _report(job, objects))


def _placeholder(job: Job) -> Job:
    """The cluster gives a job its uid when it is created; until then one of our own tells its objects from others."""
    return replace(job, uid=f"planned-{job.key.name}"[:63].rstrip("-."))


def planned(job: Job) -> list[dict[str, Any]]:
    """Every object of the first attempt, without the owner that is not there yet."""
    from tf_dist.core import render
    from tf_dist.core.schedulers import consult
    from tf_dist.core.status import Attempts

    attempt, consultation = Attempts(), consult.planned(job)
    pods = {replica: render.pod(job, replica, attempt.label(replica)) for replica in job.replicas}
    for replica, body in pods.items():
        consultation.decorate(replica, body)
    return [_ownerless(body) for body in (*consultation.wanted(), *render.objects(job), *pods.values())]


def not_honoured(job: Job) -> list[str]:
    """What a run on this machine leaves out or refuses of the pods' security, as far as it is known before."""
    import sys

    from tf_dist.cluster.node.machine import find_user, powers
    from tf_dist.cluster.node.problems import PodProblem
    from tf_dist.cluster.node.security import plan_security
    from tf_dist.core import render
    from tf_dist.core.status import Attempts

    here = powers(isolated=sys.platform == "linux", enforced=("memory", "cpu"))  # the best that may be
    found: dict[str, None] = {}
    for replica in job.replicas:
        pod = render.pod(job, replica, Attempts().label(replica))
        for container in [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]:
            where = f"on this machine, container {container['name']}"
            try:
                planned = plan_security(pod, container, here, find_user)
            except PodProblem as problem:
                found[f"{where} is refused: {problem.text}"] = None
                continue
            found |= dict.fromkeys(f"{where}: {text}" for text in planned.warnings)
    return list(found)


def _ownerless(body: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in body["metadata"].items() if key != "ownerReferences"}
    return {**body, "metadata": metadata}


def _configs(job: Job) -> dict[str, str]:
    from tf_dist.core.tf_config import tf_config

    found = {str(replica): tf_config(job, replica) for replica in job.replicas}
    return {replica: text for replica, text in found.items() if text is not None}


def _report(job: Job, objects: list[dict[str, Any]]) -> dict[str, Any]:
    configs = {replica: json.loads(text) for replica, text in _configs(job).items()}
    return {
        "job": {"apiVersion": job.dialect.value, "kind": job.dialect.kind, "name": job.key.name}
        | {"namespace": job.key.namespace},
        "minAvailable": job.scheduling.min_available,
        "requests": requests_text(job),
        "objects": objects,
        "tfConfig": configs,
    }


def requests_text(job: Job) -> dict[str, str]:
    """What the whole gang asks of the cluster."""
    from tf_dist.core.gang.demand import added, members
    from tf_dist.core.quantity import format_quantity

    total = added({r: v * one.count for r, v in one.requests.items()} for one in members(job))
    return {resource: format_quantity(value, resource) for resource, value in sorted(total.items())}


def _show(job: Job, companions: list[dict[str, Any]]) -> None:
    needs = ", ".join(f"{resource} {value}" for resource, value in requests_text(job).items())
    output.line(f"{output.painted(f'{job.dialect.kind} {job.key}', 'bold')} ({job.dialect.value})")
    gang = f"at least {job.scheduling.min_available} of {len(job.replicas)} pods start together"
    output.line(f"gang: {gang}; it needs {needs}")
    output.line()
    rows = [(body["kind"], body["metadata"]["name"], _detail(body)) for body in (*companions, *planned(job))]
    output.table(("KIND", "NAME", "DETAIL"), rows)
    for replica, text in _configs(job).items():
        output.line()
        output.line(f"{output.painted(replica, 'bold')} TF_CONFIG")
        output.line(f"  {text}")


def _detail(body: dict[str, Any]) -> str:
    spec = body.get("spec") or {}
    match body["kind"]:
        case "Pod":
            containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
            return ", ".join(f"{container['name']}: {container.get('image', '')}" for container in containers)
        case "Service":
            ports = ", ".join(str(port["port"]) for port in spec.get("ports") or ())
            return f"headless, port {ports}" if ports else "headless"
        case "PodGroup" | "Workload":
            return str(body["apiVersion"])
        case "ConfigMap" | "Secret":
            return ", ".join((body.get("data") or {}) | (body.get("stringData") or {}))
    return ""
