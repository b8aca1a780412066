"""``tf-dist delete``: jobs and everything they made."""

from __future__ import annotations

from typing import Annotated

import typer

from tf_dist.cli import options, output


def delete(
    jobs: options.Names,
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until their last pod is gone.")] = False,
    timeout: options.Timeout = "",
    ignore_missing: Annotated[bool, typer.Option("--ignore-not-found", help="No error if there is none.")] = False,
) -> None:
    """Delete jobs with their pods and services. Pods get their grace period to end in."""
    from tf_dist.cli.arguments import seconds
    from tf_dist.client.connect import connect
    from tf_dist.client.jobs import find
    from tf_dist.client.waiting import wait_for
    from tf_dist.errors import NotFound

    limit = seconds(timeout)
    connection = connect(kubeconfig, context, local=local)
    cluster, namespace = connection.cluster, namespace or connection.namespace
    found = []
    for name in jobs:
        try:
            found.append(find(cluster, name, namespace))
        except NotFound:
            if not ignore_missing:
                raise
    output.announce(connection, namespace)
    for job in found:
        # In the foreground the job itself goes last, so that its end is the end of everything.
        propagation = "Foreground" if wait else "Background"
        cluster.delete(job.resource, job.namespace, job.name, uid=job.uid, propagation=propagation)
        if not wait:
            output.line(f"{job.shown} deleted")
    if wait:
        wait_for(cluster, found, "deleted", limit, output.line)
