"""The command line as a whole: the commands, in the order in which they are shown, and what holds for all of them."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tf_dist import __version__
from tf_dist.cli import output
from tf_dist.cli.commands import (
    argo_workflows,
    controller,
    file_checks,
    inspect_jobs,
    install,
    local,
    logs,
    manage_jobs,
    queues,
    run,
    simulate,
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Distributed TensorFlow jobs, on this machine and on clusters.",
    epilog="Exit codes: 0 done, 1 the job failed, 2 bad usage or an invalid job, 75 try again, 130/143 interrupted.",
)

_ON_FILES = "With a file"
_ON_JOBS = "With submitted jobs"
_CLUSTERS = "Clusters"
_PIPELINES = "Pipelines"

for _name, _command, _panel in (
    ("validate", file_checks.validate, _ON_FILES),
    ("plan", file_checks.plan, _ON_FILES),
    ("run", run.run, _ON_FILES),
    ("convert", file_checks.convert, _ON_FILES),
    ("submit", manage_jobs.submit, _ON_JOBS),
    ("get", inspect_jobs.get, _ON_JOBS),
    ("describe", inspect_jobs.describe, _ON_JOBS),
    ("logs", logs.logs, _ON_JOBS),
    ("wait", manage_jobs.wait, _ON_JOBS),
    ("explain", inspect_jobs.explain, _ON_JOBS),
    ("suspend", manage_jobs.suspend, _ON_JOBS),
    ("resume", manage_jobs.resume, _ON_JOBS),
    ("scale", manage_jobs.scale, _ON_JOBS),
    ("delete", manage_jobs.delete, _ON_JOBS),
):
    app.command(_name, rich_help_panel=_panel)(_command)
app.command("queues", rich_help_panel=_CLUSTERS)(queues.queues)
app.command("controller", rich_help_panel=_CLUSTERS)(controller.controller)
app.command("install", rich_help_panel=_CLUSTERS)(install.install)
app.command("simulate", rich_help_panel=_CLUSTERS)(simulate.simulate)
app.command("argo-launch", rich_help_panel=_PIPELINES, context_settings=argo_workflows.PASS_THROUGH)(
    argo_workflows.argo_launch
)
app.command("argo-clean", rich_help_panel=_PIPELINES)(argo_workflows.argo_clean)
app.add_typer(argo_workflows.app, name="workflows", rich_help_panel=_PIPELINES)
app.add_typer(local.app, name="local", rich_help_panel=_CLUSTERS)


def _version(asked: bool) -> None:
    if asked:
        output.line(f"tf-dist {__version__}")
        raise typer.Exit


@app.callback()
def _settings(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Plain text even on a terminal (also: NO_COLOR).")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Tracebacks with errors (also: TF_DIST_DEBUG=1).")] = False,
) -> None:
    output.configure(plain=plain)
    if debug:
        os.environ["TF_DIST_DEBUG"] = "1"
