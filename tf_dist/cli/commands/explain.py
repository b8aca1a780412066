"""``tf-dist explain``: why a job waits, or failed, and what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tf_dist.cli import options, output


def explain(
    name: options.Name,
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    form: Annotated[options.TextFormat, typer.Option("--output", "-o", help="text or json.")] = options.TextFormat.TEXT,
    plain: options.Plain = False,
) -> None:
    """Say in sentences why a job waits, or why it failed, and what to do about it."""
    from tf_dist.cli.findings import show
    from tf_dist.client.connect import connect
    from tf_dist.client.jobs import find, findings, pods_of
    from tf_dist.core.status import state_word

    connection = connect(kubeconfig, context, local=local)
    cluster, namespace = connection.cluster, namespace or connection.namespace
    job = find(cluster, name, namespace)
    found = findings(job, pods_of(cluster, job))
    if form is options.TextFormat.JSON:
        output.data("json", {"name": job.name, "state": state_word(job.status), "findings": [asdict(x) for x in found]})
        return
    output.line(f"{output.painted(job.shown, 'bold')} is {state_word(job.status)}.")
    show(found)
