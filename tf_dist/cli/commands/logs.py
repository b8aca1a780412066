"""``tf-dist logs``: prints the logs of all replicas of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from tf_dist.cli import options, output


def logs(
    name: options.Name,
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the logs until the job has finished.")] = False,
    replica: Annotated[
        list[str] | None,
        typer.Option("--replica", "-r", metavar="REPLICA", help="Only this replica or type: worker-1, or ps."),
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, help="Only this number of lines from the end of each replica's log.")
    ] = None,
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="Only lines of the last 5m, 1h.")] = "",
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Print the time of each line.")] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="The logs of the containers before their last restart.")
    ] = False,
    plain: options.Plain = False,
) -> None:
    """Print the logs of all replicas, each line with the name of its replica."""
    from tf_dist.cli.findings import LinePrefixes
    from tf_dist.client.client import Client

    since_seconds = options.parse_seconds(since, "--since")
    client = Client(kubeconfig, context, local=local, namespace=namespace)
    job = client.get(name)
    prefixes = LinePrefixes(job.job)
    for line in client.logs(
        job,
        replicas=replica or (),
        follow=follow,
        tail=tail,
        since=since_seconds,
        timestamps=timestamps,
        previous=previous,
        note=output.note,
    ):
        output.line(prefixes.line(line.source, line.text))
        if follow:
            output.flush()
