"""``tf-dist local``: a persistent cluster on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tf_dist.cli import options, output
from tf_dist.client import exit_codes

if TYPE_CHECKING:
    from tf_dist.local.daemon_control import DaemonEndpoint

app = typer.Typer(no_args_is_help=True, help="A persistent cluster on this machine, for submit, kubectl and pipelines.")


@app.command()
def up(
    network: options.Network = "auto",
    node: options.Node = "",
    entrypoint: options.Entrypoint = None,
    workdir: Annotated[
        str, typer.Option("--workdir", metavar="DIR", help="The working directory of containers without one.")
    ] = "",
) -> None:
    """Start the local cluster, unless it runs. Its jobs survive every kind of stop."""
    from tf_dist.cli import options
    from tf_dist.local import daemon_control

    settings = daemon_control.DaemonSettings(
        state_dir=str(daemon_control.state_home()),
        workdir=str(Path(workdir or ".").absolute()),
        network=options.parse_network_mode(network).value,
        capacity=options.parse_resources(node),
        entrypoints=options.parse_entrypoints(entrypoint or ()),
    )
    running = daemon_control.daemon_status() is not None
    endpoint = daemon_control.up(settings)
    output.line("the local cluster is running already" if running else "the local cluster is running")
    if running and (node or entrypoint or workdir or network != "auto"):
        output.warning(
            "it keeps the settings with which it was started; to change them, run tf-dist local down, then up"
        )
    _show(endpoint)


@app.command()
def down() -> None:
    """Stop the local cluster and all its pods. The next up continues its jobs."""
    from tf_dist.local import daemon_control

    stopped = daemon_control.down()
    output.line("the local cluster has stopped" if stopped else "no local cluster is running")


@app.command()
def status(
    form: options.TextOutput = options.TextFormat.TEXT,
    plain: options.Plain = False,
) -> None:
    """Show where the local cluster is and how it separates pods. Exits with 75 if no local cluster is running."""
    from tf_dist.local import daemon_control

    endpoint = daemon_control.daemon_status()
    if form is not options.TextFormat.TEXT:
        output.data(form.value, {"running": endpoint is not None, **(_report(endpoint) if endpoint else {})})
    elif endpoint is None:
        output.line("no local cluster is running (tf-dist local up starts one)")
    else:
        output.line(f"the local cluster is running (process {endpoint.pid})")
        _show(endpoint)
    if endpoint is None:
        raise typer.Exit(exit_codes.RETRYABLE)


def _show(endpoint: DaemonEndpoint) -> None:
    network = endpoint.network
    output.line(f"  network:     {network['mode']}: {network['reason']}")
    for limit in network.get("limits") or ():
        output.line(f"               {limit}")
    output.line(f"  API server:  {endpoint.url}")
    output.line(f"  kubeconfig:  {endpoint.kubeconfig}")
    output.line(f"  for kubectl: export KUBECONFIG={_quoted(str(endpoint.kubeconfig))}")


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)


def _report(endpoint: DaemonEndpoint) -> dict[str, Any]:
    found = {**asdict(endpoint), "state_dir": str(endpoint.state_dir), "kubeconfig": str(endpoint.kubeconfig)}
    return {key: value for key, value in found.items() if key != "token"}
