"""``tf-dist validate``: everything that is wrong with some files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tf_dist.cli import options, output
from tf_dist.client import exits

if TYPE_CHECKING:
    from tf_dist.client.bundle import Bundle, Entry
    from tf_dist.client.yaml_files import FileProblem


def validate(
    files: options.Files,
    form: Annotated[options.TextFormat, typer.Option("--output", "-o", help="text or json.")] = options.TextFormat.TEXT,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    plain: options.Plain = False,
) -> None:
    """Check job files: every problem at once, each with its place and a way out. Nothing is started.

    Understands kubeflow.org/v1 and v1alpha1 TFJobs and Volcano Jobs, several documents in a file, and ConfigMaps,
    Secrets, PersistentVolumeClaims and Services beside a job.
    """
    from tf_dist.client.bundle import load

    bundle = load(files)
    valid = not (bundle.problems if strict else bundle.errors)
    if form is options.TextFormat.JSON:
        output.data("json", _report(bundle, valid))
    else:
        _show(bundle)
    if not valid:
        raise typer.Exit(exits.USAGE)


def _show(bundle: Bundle) -> None:
    from tf_dist.client.bundle import text_of

    for found in bundle.problems:
        level = output.painted("warning", "yellow bold") if found.warning else output.painted("error", "red bold")
        output.line(f"{level}: {text_of(found)}")
        if found.problem.hint:
            output.line(f"  {output.painted('hint:', 'cyan')} {found.problem.hint}")
    broken = {(found.file, found.number) for found in bundle.errors}
    for entry in bundle.jobs:
        if (entry.written.file, entry.written.number) not in broken:
            output.line(f"{entry.written.file}: {output.painted('valid', 'green')}: {_summary(entry)}")
    for written in bundle.companions:
        if (written.file, written.number) not in broken:
            name = written.content["metadata"]["name"]
            output.line(f"{written.file}: {output.painted('valid', 'green')}: {written.content['kind']} {name}")


def _summary(entry: Entry) -> str:
    job = entry.job
    replicas = ", ".join(f"{spec.replicas} × {spec.name}" for spec in job.replica_specs)
    return f"{job.dialect.kind} {job.key} ({job.dialect.value}): {replicas}"


def _report(bundle: Bundle, valid: bool) -> dict[str, Any]:
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
