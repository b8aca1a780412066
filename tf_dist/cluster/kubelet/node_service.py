"""A kubelet of a cluster that is not ours (tf-dist node): kubelet and log server, from registration to drain."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tf_dist.cluster.api import Cluster
from tf_dist.cluster.kubelet.delegated_auth import DelegatedAuth, client_ca, server_tls_context
from tf_dist.cluster.kubelet.kubelet import Kubelet
from tf_dist.cluster.kubelet.log_server import LogServer
from tf_dist.cluster.kubelet.node import machine, state_dir
from tf_dist.cluster.kubelet.node.node_settings import NodeSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogServerSettings:
    """How logs are served to the API server.

    ``port`` 0 takes a free one; ``open_to_all``: clients need no credentials; ``files``: a certificate and its
    key (None: one is made).
    """

    port: int = 0
    open_to_all: bool = False
    files: tuple[Path, Path] | None = None


class NodeService:
    """Runs a lasting node until it is asked to end. ``logs`` None: no logs by way of the API server.

    ``ask`` may be called from any thread: once to drain and end, twice to end at once. ``keep_node``: the Node stays
    behind, closed to pods, until an agent of this name comes back.
    """

    def __init__(
        self, cluster: Cluster, settings: NodeSettings, *, logs: LogServerSettings | None, keep_node: bool = False
    ) -> None:
        self._cluster = cluster
        self._settings = replace(settings, address=settings.address or machine.host_ip())
        self._logs = logs
        self._keep_node = keep_node
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._wake = threading.Event()

    def ask(self) -> None:
        """Ask the service to end; the second call ends it at once."""
        (self._hurry if self._stopping.is_set() else self._stopping).set()
        self._wake.set()

    def run(self, started: Callable[[Kubelet], None]) -> None:
        """Register, tell ``started``, and work until asked to end.

        ClusterError says why it cannot start; NodeNameTaken ends it when another agent took its name over.
        """
        with ExitStack() as stack:
            server = self._serve_logs(stack)
            port = server.port if server is not None else 0
            agent = Kubelet(self._cluster, settings=replace(self._settings, log_port=port))
            if not self._started(agent):
                return
            stack.callback(self._end, agent)
            if server is not None:
                server.source = agent
            agent.on_end = self._wake.set
            started(agent)
            if agent.failure is None:
                self._wake.wait()
            if agent.failure is not None:
                raise agent.failure
            if not agent.drain(self._hurry):
                _log.warning("stopping before the cluster has recorded the end of all pods")

    def _started(self, agent: Kubelet) -> bool:
        """Start it; False when it was asked to end before it had begun."""
        try:
            agent.start(self._stopping)
        except BaseException:
            if agent.settled:  # else its log in the folder may say why
                state_dir.remove_state_dir(self._settings.state_dir.absolute())
            if self._stopping.is_set():
                return False
            raise
        return True

    def _serve_logs(self, stack: ExitStack) -> LogServer | None:
        if self._logs is None:
            return None
        settings, gate, authority = self._settings, None, ""
        if not self._logs.open_to_all:
            gate, authority = DelegatedAuth(self._cluster, settings.name), client_ca(self._cluster)
        context = server_tls_context(settings.name, settings.address, authority, self._logs.files)
        server = LogServer(settings.address, self._logs.port, context, gate)
        stack.callback(server.stop)
        return server

    def _end(self, agent: Kubelet) -> None:
        folder = agent.state_dir
        agent.stop()
        agent.retire(keep_node=self._keep_node)
        state_dir.remove_state_dir(folder)
