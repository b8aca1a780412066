"""``tf-dist describe``: everything there is to say about a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tf_dist.cli import options, output

if TYPE_CHECKING:
    from tf_dist.client.jobs import StoredJob
    from tf_dist.cluster.api import Object
    from tf_dist.core.observed import PodView

_MOST_EVENTS = 20


def describe(
    name: options.Name,
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    form: Annotated[options.TextFormat, typer.Option("--output", "-o", help="text or json.")] = options.TextFormat.TEXT,
    plain: options.Plain = False,
) -> None:
    """Show a job: what it asks for, how it stands, its replicas, its events, and what is to be said about them."""
    from tf_dist.client.connect import connect
    from tf_dist.client.jobs import events_of, find, pods_of, views
    from tf_dist.errors import InvalidJob

    connection = connect(kubeconfig, context, local=local)
    cluster, namespace = connection.cluster, namespace or connection.namespace
    job = find(cluster, name, namespace)
    raw = pods_of(cluster, job)
    events = events_of(cluster, job, raw)
    if form is options.TextFormat.JSON:
        output.data("json", _report(job, raw, events))
        return
    try:
        pods: tuple[PodView, ...] | None = views(job.job, raw)
        _spec(job)
    except InvalidJob:  # there is no spec to go by
        pods = None
        output.line(output.painted(job.shown, "bold"))
    _status(job)
    _conditions(job)
    if pods is not None:
        _replicas(job, pods)
    _events(events)
    _diagnosis(job, raw)


def _title(text: str) -> None:
    output.line()
    output.line(output.painted(text, "bold"))


def _facts(pairs: Iterable[tuple[str, str]]) -> None:
    for key, value in pairs:
        if value:
            output.line(f"  {key + ':':<14}{value}")


def _spec(job: StoredJob) -> None:
    from tf_dist.cli.commands.plan import requests_text
    from tf_dist.core.disruptions import limit
    from tf_dist.core.resizing import size_text
    from tf_dist.core.sizes import granted

    spec, policy = job.job, job.job.run_policy
    output.line(output.painted(f"{spec.dialect.kind} {spec.key}", "bold") + f" ({job.stored['apiVersion']})")
    needs = ", ".join(f"{resource} {value}" for resource, value in requests_text(spec).items())
    gang = f"{spec.scheduling.min_available} of {len(spec.replicas)} pods start together"
    _facts(
        [
            ("Replicas", ", ".join(f"{one.replicas} × {one.name}" for one in spec.replica_specs)),
            ("Size", size_text(spec, granted(spec, job.status))),
            ("Gang", f"{gang}; needs {needs}"),
            ("Queue", spec.scheduling.queue),
            ("Priority", spec.scheduling.priority_class),
            ("Restarts", "no limit" if policy.max_restarts is None else f"at most {policy.max_restarts}"),
            ("Disruptions", f"at most {limit(spec)}"),
            ("Deadline", "" if policy.active_deadline is None else f"{policy.active_deadline:g}s"),
            ("Clean-up", policy.clean_pods.value),
        ]
    )


def _status(job: StoredJob) -> None:
    from tf_dist.cli.texts import duration
    from tf_dist.core.disruptions import counted
    from tf_dist.core.status import state_word
    from tf_dist.core.times import format_time

    status = job.status
    _title("Status")
    ended = status.completion_time
    started = status.start_time
    took = duration(ended - started) if ended is not None and started is not None else ""
    spent = ", ".join(f"{count} × {cause}" for cause, count in status.restarts.items())
    _facts(
        [
            ("State", state_word(status)),
            ("Reason", status.why),
            ("Message", status.told),
            ("Created", str(job.stored["metadata"].get("creationTimestamp", ""))),
            ("Started", format_time(started) if started is not None else ""),
            ("Ended", format_time(ended) if ended is not None else ""),
            ("Duration", took),
            ("Restarted", spent),
            ("Disrupted", counted(status.disruptions)),
        ]
    )


def _conditions(job: StoredJob) -> None:
    from tf_dist.core.status_codec import stored_status

    conditions = stored_status(job.stored).get("conditions") or []
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
    from tf_dist.cli.commands.get import STYLES
    from tf_dist.core.replica_view import replica_states

    _title("Replicas")
    rows = [
        (str(one.replica), one.state, one.node or "-", str(one.restarts), one.pod or "-", one.detail)
        for one in replica_states(job.job, job.status, pods)
    ]
    output.table(("REPLICA", "STATE", "NODE", "RESTARTS", "POD", "DETAIL"), rows, STYLES)


def _events(events: list[Object]) -> None:
    from tf_dist.client.jobs import event_time

    if not events:
        return
    _title("Events")
    rows = [
        (
            (event_time(event) or "-").partition(".")[0].rstrip("Z") + "Z",
            str(event.get("type", "")),
            str(event.get("reason", "")),
            f"{str(event['involvedObject'].get('kind', '')).lower()}/{event['involvedObject'].get('name', '')}",
            " ".join(str(event.get("message", "")).split()),
        )
        for event in events[-_MOST_EVENTS:]
    ]
    output.table(("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"), rows, {"Warning": "yellow"})


def _diagnosis(job: StoredJob, raw: list[Object]) -> None:
    from tf_dist.cli.findings import show
    from tf_dist.client.jobs import findings

    _title("Diagnosis")
    show(findings(job, raw))


def _report(job: StoredJob, raw: list[Object], events: list[Object]) -> dict[str, Any]:
    from dataclasses import asdict

    from tf_dist.client.jobs import findings, summary

    found = [asdict(one) for one in findings(job, raw)]
    return {"job": summary(job), "pods": raw, "events": events, "diagnosis": found}
