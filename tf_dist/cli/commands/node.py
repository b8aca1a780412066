"""``tf-dist node``: this machine as a node of a cluster, its pods as processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tf_dist.cli import options, output
from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from tf_dist.cluster.api import Cluster
    from tf_dist.cluster.client.rest import RestCluster
    from tf_dist.cluster.kubelet.kubelet import Kubelet
    from tf_dist.cluster.kubelet.node.node_settings import NetworkMode, NodeSettings
    from tf_dist.cluster.kubelet.node_service import LogServerSettings

_ORPHANS = 300.0  # seconds; about when a cluster gives up a node that is silent, and replaces its pods
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The node's name (default: this machine's).")]
_Workdir = Annotated[str, typer.Option("--workdir", metavar="DIR", help="Where containers run that name no folder.")]
_Labels = Annotated[list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label of the node.")]
_Taints = Annotated[
    list[str] | None,
    typer.Option(
        "--taint",
        metavar="KEY=VALUE:EFFECT",
        help="A taint of the node, or none (default: tf-dist.dev/processes:NoSchedule where there are other nodes).",
    ),
]
_Address = Annotated[str, typer.Option("--address", metavar="IP", help="Where the API server reaches this machine.")]
_LogPort = Annotated[int, typer.Option("--log-port", help="Where logs are served (default: a free port).")]
_LogCert = Annotated[str, typer.Option("--log-cert", metavar="FILE", help="The certificate for that (default: made).")]
_LogKey = Annotated[str, typer.Option("--log-key", metavar="FILE", help="The key of --log-cert.")]
_NoLogs = Annotated[bool, typer.Option("--no-logs", help="No kubectl logs.")]
_InsecureLogs = Annotated[
    bool, typer.Option("--insecure-logs", help="Serve logs without authentication, to every client that can connect.")
]
_StateDir = Annotated[str, typer.Option("--state-dir", metavar="DIR", help="Where sockets, logs and volumes live.")]
_KeepNode = Annotated[bool, typer.Option("--keep-node", help="At the end leave the Node behind, closed to pods.")]


def node(
    name: _Name = "",
    kubeconfig: Annotated[str, typer.Option("--kubeconfig", metavar="FILE", help="How to reach the cluster.")] = "",
    context: Annotated[str, typer.Option("--context", metavar="NAME", help="Which context of it.")] = "",
    resources: options.Node = "",
    network: options.Network = "auto",
    entrypoint: options.Entrypoint = None,
    workdir: _Workdir = "",
    label: _Labels = None,
    taint: _Taints = None,
    address: _Address = "",
    log_port: _LogPort = 0,
    log_cert: _LogCert = "",
    log_key: _LogKey = "",
    no_logs: _NoLogs = False,
    insecure_logs: _InsecureLogs = False,
    state_dir: _StateDir = "",
    keep_node: _KeepNode = False,
    log_level: options.LogLevel = options.Level.WARNING,
) -> None:
    """Make this machine a node of a cluster: pods run here as processes, without images.

    Ctrl-C or SIGTERM ends its pods in the time they give themselves and takes the node away; a second one ends all at
    once. Killed in any other way, it leaves its pods running for 5 minutes: started again, it takes them over.
    """
    from tf_dist.cli import options
    from tf_dist.cluster.kubelet.node.node_settings import NodeSettings

    settings = NodeSettings(
        name=name or _machine_name(),
        workdir=Path(workdir or ".").absolute(),
        network=_isolated_unless_asked(network),
        capacity=options.parse_resources(resources),
        entrypoints=options.parse_entrypoints(entrypoint or ()),
        labels=_labels(label or []),
        taints=_taints(taint or []),
        address=_ip(address),
        ephemeral=False,
        orphan_limit=_ORPHANS,
    )
    logs = None if no_logs else _logs(log_port, log_cert, log_key, insecure=insecure_logs)
    _run(settings, logs, kubeconfig, context, state_dir, keep_node=keep_node, log_level=log_level)


def _run(
    settings: NodeSettings,
    logs: LogServerSettings | None,
    kubeconfig: str,
    context: str,
    state_dir: str,
    *,
    keep_node: bool,
    log_level: options.Level,
) -> None:
    from tf_dist.cluster.kubelet.node_service import NodeService
    from tf_dist.controller.observability import json_logging
    from tf_dist.controller.observability.signals import Signals

    with _connect(kubeconfig, context) as cluster:
        folder = Path(state_dir).absolute() if state_dir else _default_state_dir(cluster, settings.name)
        settings = replace(settings, state_dir=folder)
        service = NodeService(cluster, settings, logs=logs, keep_node=keep_node)
        json_logging.configure_logging(json_logging.LogFormat.TEXT, level=log_level.number)
        with Signals() as signals:
            signals.listen(lambda number: service.ask())
            signals.listen(lambda number: cluster.hurry())  # what ends must not wait for a cluster that is away
            service.run(lambda agent: _show(agent, settings, logs))
    output.note(f"node {settings.name} has ended")


def _connect(kubeconfig: str, context: str) -> RestCluster:
    from tf_dist.cluster.client.client_config import load_config

    return load_config(kubeconfig or None, context or None).cluster()


def _machine_name() -> str:
    import socket

    return re.sub(r"[^a-z0-9.-]+", "-", socket.gethostname().lower()).strip("-.") or "local"


def _default_state_dir(cluster: Cluster, name: str) -> Path:
    """One folder for each node of each cluster of this user: found again by the next agent, used by no other."""
    from tf_dist.cluster.api import NAMESPACES
    from tf_dist.errors import Forbidden, NotFound
    from tf_dist.local.daemon_control import state_home

    try:
        uid = cluster.get(NAMESPACES, None, "kube-system")["metadata"]["uid"]
    except (Forbidden, NotFound):
        uid = "unknown"
    return state_home() / "nodes" / f"{name}-{uid[:13]}"


def _ip(text: str) -> str:
    from ipaddress import ip_address

    try:
        return str(ip_address(text)) if text else ""
    except ValueError:
        raise InvalidJob([Problem("--address", f"{text!r} is not an IP address", "write 192.0.2.7")]) from None


def _isolated_unless_asked(network: str) -> NetworkMode:
    """What ``auto`` means on a real cluster: there, nothing leads pods to one another in shared mode."""
    from tf_dist.cli import options
    from tf_dist.cluster.kubelet.node.node_settings import NetworkMode

    mode = options.parse_network_mode(network)
    return NetworkMode.ISOLATED if mode is NetworkMode.AUTO else mode


def _logs(port: int, certificate: str, key: str, *, insecure: bool) -> LogServerSettings:
    from tf_dist.cluster.kubelet.node_service import LogServerSettings

    if bool(certificate) != bool(key):
        raise InvalidJob([Problem("--log-cert", "a certificate and its key go together", "give --log-key, too")])
    files = (Path(certificate), Path(key)) if certificate else None
    return LogServerSettings(port=port, open_to_all=insecure, files=files)


def _labels(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidJob([Problem("--label", f"{text!r} is not KEY=VALUE", "write zone=left")])
        found[key] = value
    return found


def _taints(texts: list[str]) -> tuple[Mapping[str, str], ...] | None:
    if not texts:
        return None
    return () if texts == ["none"] else tuple(map(_taint, texts))


def _taint(text: str) -> Mapping[str, str]:
    head, _, effect = text.rpartition(":")
    key, _, value = head.partition("=")
    if not key or effect not in _EFFECTS:
        hint = f"write dedicated=training:NoSchedule; effects are {', '.join(_EFFECTS)}; none alone means no taint"
        raise InvalidJob([Problem("--taint", f"{text!r} is not KEY=VALUE:EFFECT", hint)])
    return {"key": key, "effect": effect} | ({"value": value} if value else {})


def _show(agent: Kubelet, settings: NodeSettings, logs: LogServerSettings | None) -> None:
    from tf_dist.cluster.kubelet.node.node_settings import NetworkMode

    output.line(f"node {settings.name} is ready; Ctrl-C ends it")
    output.line(f"  network: {agent.network.mode}: {agent.network.reason}")
    for limit in agent.network.limits:
        output.line(f"           {limit}")
    output.line(f"  state:   {agent.state_dir}")
    if agent.network.mode is NetworkMode.SHARED:
        output.warning("pods of one job cannot find each other here: run single pods only", "--network isolated")
    if logs is not None and logs.open_to_all:
        output.warning("every client that can connect to this machine can read the logs of its pods")
    output.flush()
