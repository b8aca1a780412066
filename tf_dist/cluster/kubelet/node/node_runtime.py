"""The runtime of a node: its state folder, its supervisor, and the network mode."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tf_dist.cluster.kubelet.node import machine, state_dir
from tf_dist.cluster.kubelet.node.machine import NodeFeatures
from tf_dist.cluster.kubelet.node.node_settings import NetworkDescription, NetworkMode, NodeSettings
from tf_dist.cluster.kubelet.node.runtime_client import RuntimeClient
from tf_dist.errors import Unavailable

_TAKEOVER_TIMEOUT = 10.0  # seconds to wait for a predecessor's end


class NodeRuntime:
    """Builds, rebuilds and releases the runtime of a node; ``home`` and ``network`` exist after ``build``."""

    home: NodeEnvironment
    network: NetworkDescription

    def __init__(self, settings: NodeSettings, supervisor: RuntimeClient, host_ip: str) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._host_ip = host_ip
        self._path = settings.state_dir.absolute()
        self._folder: state_dir.StateDir | None = None

    def build(self) -> None:
        """Take a folder and start a supervisor, or find the running supervisor of a persistent node."""
        if self._settings.ephemeral:
            self._folder = state_dir.temporary_state_dir(self._settings.state_dir.absolute())
            self._path = self._folder.path
            self._launch(self._folder)
        else:
            self._take_over_or_launch()
        self._describe_home()

    def rebuild(self) -> bool:
        """Start another supervisor after the end of the previous one. Returns whether the folder with all volumes and
        logs is lost, too.
        """
        self._supervisor.disconnect()
        if self._folder is not None and self._path.exists():
            self._launch(self._folder)
            self._describe_home()
            return False
        self._release()
        kept = self._path.exists()
        self.build()
        return not kept

    def leave(self, *, kill: bool) -> None:
        """End the supervisor with all pods, or (persistent nodes only) leave both to the next kubelet."""
        if kill or self._settings.ephemeral:
            self._supervisor.shutdown()
        else:
            self._supervisor.disconnect()
        self._release()

    def _release(self) -> None:
        if self._folder is not None:
            self._folder.release()
            self._folder = None

    def _take_over_or_launch(self) -> None:
        deadline = time.monotonic() + _TAKEOVER_TIMEOUT
        while time.monotonic() < deadline:
            if found := self._supervisor.connect(self._path):
                self.network = found
                return
            self._folder = state_dir.acquire_state_dir(self._path)
            if self._folder is not None:
                self._launch(self._folder)
                return
            time.sleep(0.05)
        raise Unavailable(f"{self._path} is in use and its owner does not answer", hint="see supervisor.log in it")

    def _launch(self, folder: state_dir.StateDir) -> None:
        self.network = self._supervisor.launch(folder, self._settings)

    def _describe_home(self) -> None:
        shared = self.network.mode == NetworkMode.SHARED
        mark = (self._path / "mark").read_text()
        self.home = NodeEnvironment(
            settings=self._settings,
            state=self._path,
            mode=self.network.mode,
            why_shared=self.network.reason,
            host_ip=self._host_ip,
            base_env=machine.base_env(os.environ, {state_dir.PROCESS_MARK: mark} if shared else {}),
            allocatable=machine.node_capacity(self._settings.capacity),
            node_features=machine.node_features(isolated=not shared, enforced=self._supervisor.enforced),
        )


@dataclass(frozen=True, slots=True)
class NodeEnvironment:
    """The folders of a node, and the environment and entrypoints of its containers."""

    settings: NodeSettings
    state: Path
    mode: NetworkMode
    why_shared: str
    host_ip: str
    base_env: Mapping[str, str]
    allocatable: Mapping[str, str]
    node_features: NodeFeatures

    @property
    def claims(self) -> Path:
        """The folder of persistent volume claims."""
        return (self.settings.data_dir or self.state) / "volumes"
