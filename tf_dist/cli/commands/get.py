"""``tf-dist get``: jobs in a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tf_dist.cli import options, output

if TYPE_CHECKING:
    from tf_dist.client.jobs import StoredJob
    from tf_dist.cluster.api import Cluster


def get(
    name: Annotated[str, typer.Argument(help="One job: NAME, tfjob/NAME or vcjob/NAME.", metavar="[NAME]")] = "",
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of every namespace.")] = False,
    form: Annotated[options.ListFormat, typer.Option("--output", "-o", help="table, wide, name, yaml or json.")] = (
        options.ListFormat.TABLE
    ),
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on with every change.")] = False,
    plain: options.Plain = False,
) -> None:
    """List submitted jobs, or show one."""
    from tf_dist.client.connect import connect
    from tf_dist.client.jobs import find, list_jobs

    connection = connect(kubeconfig, context, local=local)
    cluster, namespace = connection.cluster, namespace or connection.namespace
    where = None if everywhere else namespace
    jobs = [find(cluster, name, namespace)] if name else list_jobs(cluster, where)
    _show(jobs, form, everywhere=everywhere, one=bool(name))
    if not jobs and form is options.ListFormat.TABLE and not watch:
        output.note("no jobs here" if everywhere else f"no jobs in namespace {namespace}")
    if watch:
        output.flush()
        _watch(cluster, where, jobs if name else None, form)


def _show(jobs: list[StoredJob], form: options.ListFormat, *, everywhere: bool, one: bool) -> None:
    from tf_dist.client.jobs import summary

    match form:
        case options.ListFormat.NAME:
            for job in jobs:
                output.line(job.shown)
        case options.ListFormat.JSON | options.ListFormat.YAML:
            objects = [summary(job) for job in jobs]
            listed = {"apiVersion": "v1", "kind": "List", "items": objects}
            output.data(form.value, objects[0] if one else listed)
        case _:
            if jobs:
                wide = form is options.ListFormat.WIDE
                output.table(_titles(wide=wide, everywhere=everywhere), _rows(jobs, wide, everywhere), STYLES)


STYLES = {
    "Running": "cyan",
    "Succeeded": "green",
    "Failed": "red",
    "Terminated": "red",
    "Aborted": "red",
    "Restarting": "yellow",
    "Waiting": "yellow",
    "Pending": "yellow",
    "Suspended": "dim",
    "Gone": "dim",
    "Stopped": "dim",
}
"""The colour of each state."""


def _titles(*, wide: bool, everywhere: bool) -> list[str]:
    space = ["NAMESPACE"] if everywhere else []
    return [
        *space,
        "NAME",
        "STATE",
        "READY",
        "RESTARTS",
        "AGE",
        *(["DISRUPTIONS", "FORMAT", "MESSAGE"] if wide else ["REASON"]),
    ]


def _rows(jobs: list[StoredJob], wide: bool, everywhere: bool) -> list[list[str]]:
    return [[*([job.namespace] if everywhere else []), *row(job, wide)] for job in jobs]


def row(job: StoredJob, wide: bool) -> list[str]:
    """The cells of a job in a list."""
    from tf_dist.cli.texts import age
    from tf_dist.client.jobs import now
    from tf_dist.core.status import state_word
    from tf_dist.core.status_codec import FIELD, stored_status
    from tf_dist.core.times import parse_time

    status = job.status
    ready = (stored_status(job.stored).get(FIELD) or {}).get("ready") or "-"
    since = parse_time(job.stored["metadata"].get("creationTimestamp"))
    cells = [job.shown, state_word(status), ready, str(status.total_restarts), age(since, now())]
    disruptions = str(status.total_disruptions)
    return [*cells, disruptions, job.stored["apiVersion"], status.told] if wide else [*cells, status.why]


def _watch(cluster: Cluster, namespace: str | None, only: list[StoredJob] | None, form: options.ListFormat) -> None:
    """One line for each change, for as long as one looks."""
    from tf_dist.client.jobs import JOB_KINDS, StoredJob, summary
    from tf_dist.client.merging import merged_watch

    kinds = tuple({job.resource for job in only}) if only else JOB_KINDS
    uids = {job.uid for job in only} if only else None
    shown: dict[str, list[str]] = {}
    for resource, event in merged_watch(cluster, kinds, namespace):
        job = StoredJob(resource, event.object)
        if uids is not None and job.uid not in uids:
            continue
        cells = row(job, form is options.ListFormat.WIDE)
        unchanged = [*cells[:4], *cells[5:]]
        if event.type == "DELETED":
            output.line(f"{job.shown} deleted")
        elif form in (options.ListFormat.JSON, options.ListFormat.YAML):
            output.data(form.value, summary(job))
        elif shown.get(job.uid) != unchanged:
            shown[job.uid] = unchanged
            output.line("  ".join(cells).rstrip())
        output.flush()
        if event.type == "DELETED" and only:
            return
