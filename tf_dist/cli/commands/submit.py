"""``tf-dist submit``: jobs into a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from tf_dist.cli import options, output


def submit(
    files: options.Files,
    namespace: options.Target = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    changes: options.Set = None,
    set_json: options.SetJson = None,
    set_string: options.SetString = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every job has finished.")] = False,
    timeout: options.Timeout = "",
) -> None:
    """Submit jobs, and what stands beside them in their files, to the cluster.

    On the local cluster relative commands run in the folder of the file (annotation tf-dist.dev/workdir).
    """
    from tf_dist.cli.arguments import seconds
    from tf_dist.cli.findings import accepted
    from tf_dist.client.bundle import load
    from tf_dist.client.companions import create_companion, owner_of
    from tf_dist.client.connect import connect
    from tf_dist.client.submitting import Spaces, create_job
    from tf_dist.client.waiting import wait_for
    from tf_dist.core.overrides import parse_overrides

    overrides = parse_overrides(changes or (), json=set_json or (), strings=set_string or ())
    bundle, limit = accepted(load(files, overrides)), seconds(timeout)
    connection = connect(kubeconfig, context, local=local)
    cluster, spaces = connection.cluster, Spaces(namespace, connection.namespace)
    jobs = [(entry, spaces.of(entry.written)) for entry in bundle.jobs]
    companions = [(written, spaces.of(written)) for written in bundle.companions]
    output.announce(connection, ", ".join(sorted({where for _, where in (*jobs, *companions)})))
    for written, where in companions:
        done = create_companion(cluster, written, where, owner=owner_of(written, bundle.jobs))
        output.line(f"{written.content['kind'].lower()}/{written.content['metadata']['name']} {done}")
    # Of which folder a file is tells a node on this machine something, and nobody else.
    created = [create_job(cluster, entry, where, workdir=None if connection.here else "") for entry, where in jobs]
    for job in created:
        output.line(f"{job.shown} submitted")
    output.flush()
    if wait:
        wait_for(cluster, created, "finished", limit, output.line)
