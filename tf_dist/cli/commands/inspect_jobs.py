"""``tf-dist get``, ``describe``, ``explain``: show submitted jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from tf_dist.cli import options, output
from tf_dist.cli.output import STATE_STYLES

if TYPE_CHECKING:
    from tf_dist.client.client import Client
    from tf_dist.client.stored_jobs import ClusterEvent, StoredJob
    from tf_dist.core.diagnostics.metrics_parser import Progress
    from tf_dist.core.model.pods import PodView


def get(
    name: Annotated[
        str | None, typer.Argument(help="One job: NAME, tfjob/NAME or vcjob/NAME.", metavar="[NAME]")
    ] = None,
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of every namespace.")] = False,
    form: options.ListOutput = options.ListFormat.TABLE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Also print every change.")] = False,
    plain: options.Plain = False,
) -> None:
    """List submitted jobs, or show one."""
    from tf_dist.cli.findings import show_leaders
    from tf_dist.client.client import Client

    client = Client(kubeconfig, context, local=local, namespace=namespace)
    one = name is not None  # "", from an unset variable, does not mean all jobs
    jobs = client.list(all_namespaces=everywhere) if name is None else [client.get(name)]
    _show_list(jobs, form, everywhere=everywhere, one=one)
    if not jobs and form is options.ListFormat.TABLE and not watch:
        output.note("no jobs here" if everywhere else f"no jobs in namespace {client.namespace}")
    if form in (options.ListFormat.TABLE, options.ListFormat.WIDE):
        output.flush()
        show_leaders(client, jobs, wanted=form is options.ListFormat.WIDE)
    if watch:
        output.flush()
        _watch(client, jobs[0] if one else None, form, everywhere=everywhere)


def _show_list(jobs: list[StoredJob], form: options.ListFormat, *, everywhere: bool, one: bool) -> None:
    from tf_dist.client.stored_jobs import summary

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
                output.table(_titles(wide=wide, everywhere=everywhere), _rows(jobs, wide, everywhere), STATE_STYLES)


def _titles(*, wide: bool, everywhere: bool) -> list[str]:
    from tf_dist.client.stored_jobs import JOB_TITLES

    titles = (
        [*JOB_TITLES[:-1], "DISRUPTIONS", "WAITED", "GPU-HOURS", "LOST", "FORMAT", "MESSAGE"] if wide else [*JOB_TITLES]
    )
    return ["NAMESPACE", *titles] if everywhere else titles


def _rows(jobs: list[StoredJob], wide: bool, everywhere: bool) -> list[list[str]]:
    from tf_dist.client.stored_jobs import job_cells

    return [[*([job.namespace] if everywhere else []), *job_cells(job, wide=wide)] for job in jobs]


def _watch(client: Client, only: StoredJob | None, form: options.ListFormat, *, everywhere: bool) -> None:
    """Print one line for each change, until the user interrupts."""
    from tf_dist.client.stored_jobs import job_cells, summary

    shown: dict[str, list[str]] = {}
    for change, job in client.watch(only or "", all_namespaces=everywhere):
        cells = job_cells(job, wide=form is options.ListFormat.WIDE)
        unchanged = [*cells[:4], *cells[5:]]
        if change == "DELETED":
            output.line(f"{job.shown} deleted")
        elif form in (options.ListFormat.JSON, options.ListFormat.YAML):
            output.data(form.value, summary(job))
        elif shown.get(job.uid) != unchanged:
            shown[job.uid] = unchanged
            output.line("  ".join(cells).rstrip())
        output.flush()


_MOST_EVENTS = 20


def describe(
    name: options.Name,
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    form: options.TextOutput = options.TextFormat.TEXT,
    plain: options.Plain = False,
) -> None:
    """Show a job with its state, replicas, events and findings."""
    from dataclasses import asdict

    from tf_dist.cli.findings import show_findings
    from tf_dist.client.client import Client
    from tf_dist.client.monitor import read_log_ends
    from tf_dist.client.stored_jobs import ClusterEvent, events_of, find_problems, leader_problems, summary
    from tf_dist.core.model.pods import pod_views
    from tf_dist.errors import InvalidJob

    client = Client(kubeconfig, context, local=local, namespace=namespace)
    job = client.get(name)
    raw = client.pods(job)
    events = events_of(client.cluster, job, raw)
    try:
        seen = read_log_ends(client.cluster, job, raw)
    except InvalidJob:
        seen = None
    problems = find_problems(job, raw, seen.logs if seen else {}, events)
    found = (*leader_problems(client.cluster, [job]), *problems)
    if form is not options.TextFormat.TEXT:
        findings = [asdict(one) for one in found]
        output.data(form.value, {"job": summary(job), "pods": raw, "events": events, "diagnosis": findings})
        return
    try:
        pods: tuple[PodView, ...] | None = pod_views(job.job, raw)
        _spec(job)
    except InvalidJob:  # the job has no valid spec
        pods = None
        output.line(output.styled(job.shown, "bold"))
    _status(job, "; ".join(str(one) for one in client.leaders([job]) if one.holder), seen.result if seen else None)
    _conditions(job)
    if pods is not None:
        _replicas(job, pods)
    _events([ClusterEvent.of(event) for event in events[-_MOST_EVENTS:]])
    _title("Diagnosis")
    show_findings(found)


def _title(text: str) -> None:
    output.line()
    output.line(output.styled(text, "bold"))


def _facts(pairs: Iterable[tuple[str, str]]) -> None:
    for key, value in pairs:
        if value:
            output.line(f"  {key + ':':<14}{value}")


def _spec(job: StoredJob) -> None:
    from tf_dist.cli.commands.file_checks import gang_text, requests_text
    from tf_dist.core.model.assignment import current_job, replica_difference_text
    from tf_dist.core.model.pods import disruption_limit

    spec, policy = job.job, job.job.run_policy
    output.line(output.styled(f"{spec.dialect.kind} {spec.key}", "bold") + f" ({job.stored['apiVersion']})")
    needs = ", ".join(f"{resource} {value}" for resource, value in requests_text(spec).items())
    _facts(
        [
            ("Replicas", ", ".join(f"{one.replicas} × {one.name}" for one in spec.replica_specs)),
            ("Size", replica_difference_text(spec, current_job(spec, job.status))),
            ("Gang", f"{gang_text(spec)}; needs {needs}"),
            ("Queue", spec.scheduling.queue),
            ("Priority", spec.scheduling.priority_class),
            ("Restarts", "no limit" if policy.max_restarts is None else f"at most {policy.max_restarts}"),
            ("Disruptions", f"at most {disruption_limit(spec)}"),
            ("Deadline", "" if policy.active_deadline is None else f"{policy.active_deadline:g}s"),
            ("Clean-up", policy.clean_pods.value),
        ]
    )


def _status(job: StoredJob, leader: str, progress: Progress | None) -> None:
    from tf_dist.client.stored_jobs import now
    from tf_dist.core.diagnostics.display_text import format_duration, format_number, usage_text
    from tf_dist.core.model.pods import disruption_counts
    from tf_dist.core.model.status import display_phase
    from tf_dist.core.model.timestamps import format_time

    status = job.status
    _title("Status")
    ended = status.completion_time
    started = status.start_time
    took = format_duration(ended - started) if ended is not None and started is not None else ""
    usage = status.usage.until(now())
    spent = ", ".join(f"{count} × {cause}" for cause, count in status.restarts.items())
    _facts(
        [
            ("State", display_phase(status)),
            ("Reason", status.display_reason),
            ("Message", status.display_message),
            ("Created", str(job.stored["metadata"].get("creationTimestamp", ""))),
            ("Started", format_time(started) if started is not None else ""),
            ("Ended", format_time(ended) if ended is not None else ""),
            ("Duration", took),
            ("Restarted", spent),
            ("Disrupted", disruption_counts(status.disruptions)),
            ("Waited", format_duration(usage.waited) if usage.waited >= 1 else ""),
            ("Usage", usage_text(usage)),
            ("Goodput", f"{usage.goodput:.0%}" if status.finished and usage.goodput is not None else ""),
            ("Controller", leader),
            *((name, format_number(value)) for name, value in sorted(progress.metrics.items() if progress else ())),
            ("checkpoint", progress.checkpoint if progress else ""),
        ]
    )


def _conditions(job: StoredJob) -> None:
    from tf_dist.core.model.fieldpath import mappings
    from tf_dist.core.model.status_codec import stored_status

    conditions = mappings(stored_status(job.stored).get("conditions"))
    rows = [
        (
            str(item.get("type") or item.get("status")),
            str(item.get("status") if "type" in item else ""),
            str(item.get("lastTransitionTime", "")),
            str(item.get("message") or ""),
        )
        for item in conditions
    ]
    if rows:
        _title("Conditions")
        output.table(("TYPE", "STATUS", "SINCE", "MESSAGE"), rows)


def _replicas(job: StoredJob, pods: tuple[PodView, ...]) -> None:
    from tf_dist.core.diagnostics.replicas import replica_states

    _title("Replicas")
    rows = [
        (str(one.replica), one.state, one.node or "-", str(one.restarts), one.pod or "-", one.detail)
        for one in replica_states(job.job, job.status, pods)
    ]
    output.table(("REPLICA", "STATE", "NODE", "RESTARTS", "POD", "DETAIL"), rows, STATE_STYLES)


def _events(events: list[ClusterEvent]) -> None:
    if not events:
        return
    _title("Events")
    rows = [
        (
            (event.last_seen or "-").partition(".")[0].rstrip("Z") + "Z",
            event.type,
            event.reason,
            event.about,
            event.message,
        )
        for event in events
    ]
    output.table(("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"), rows, {"Warning": "yellow"})


def explain(
    name: options.Name,
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    form: options.TextOutput = options.TextFormat.TEXT,
    plain: options.Plain = False,
) -> None:
    """Explain why a job waits or failed, and what to do."""
    from dataclasses import asdict

    from tf_dist.cli.findings import show_findings
    from tf_dist.client.client import Client

    client = Client(kubeconfig, context, local=local, namespace=namespace)
    job = client.get(name)
    found = client.explain(job)
    leader = next((one for one in client.leaders([job]) if one.holder), None)
    if form is not options.TextFormat.TEXT:
        led = {"holder": leader.holder, "lease": str(leader.lease)} if leader else None
        findings = [asdict(one) for one in found]
        output.data(form.value, {"name": job.name, "state": job.state, "leader": led, "findings": findings})
        return
    output.line(f"{output.styled(job.shown, 'bold')} is {job.state}.")
    show_findings(found)
    if leader:
        output.line(f"Its controller: {leader}")
