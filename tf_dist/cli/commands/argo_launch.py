"""``tf-dist argo-launch`` and ``argo-clean``: what steps of an Argo workflow run."""

from __future__ import annotations

from typing import Annotated

import typer

from tf_dist.cli import options, output

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Typer's settings of ``argo-launch``, which reads its command line itself, ``--help`` too."""


def argo_launch(context: typer.Context) -> None:
    """Run a job as a step of an Argo workflow; TFJobStep and the exported templates call it."""
    from tf_dist.client.launch.main import main

    raise typer.Exit(main(context.args))


def argo_clean(
    workflow_uid: Annotated[str, typer.Option("--workflow-uid", metavar="UID", help="The workflow: {{workflow.uid}}.")],
    all_jobs: Annotated[bool, typer.Option("--all", help="Also jobs that have ended.")] = False,
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    timeout: options.Timeout = "2m",
) -> None:
    """Delete the jobs of an Argo workflow that still run, and wait until they are gone: for an exit handler."""
    from tf_dist.cli.arguments import seconds
    from tf_dist.client.connect import connect
    from tf_dist.client.launch.cleaning import clean

    limit = seconds(timeout)
    connection = connect(kubeconfig, context)
    space = namespace or connection.namespace
    count = clean(connection.cluster, space, workflow_uid, output.line, all_jobs=all_jobs, timeout=limit or 0.0)
    output.line(f"{count} jobs deleted" if count != 1 else "1 job deleted")
