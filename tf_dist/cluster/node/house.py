"""Where a node lives: its state folder, its supervisor, and the network mode they agreed on."""

from __future__ import annotations

import os
import time

from tf_dist.cluster.node import folders, machine
from tf_dist.cluster.node.client import Supervisor
from tf_dist.cluster.node.settings import NetworkDescription, NetworkMode, NodeSettings
from tf_dist.cluster.node.workload import Home
from tf_dist.errors import Unavailable

_ADOPT = 10.0  # seconds to wait for a predecessor's end


class House:
    """Builds, rebuilds and leaves what a node needs on this machine. ``home`` and ``network`` are there once built."""

    home: Home
    network: NetworkDescription

    def __init__(self, settings: NodeSettings, supervisor: Supervisor, host_ip: str) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._host_ip = host_ip
        self._path = settings.state_dir.absolute()
        self._folder: folders.Folder | None = None

    def build(self) -> None:
        """Take a folder and start a supervisor, or find the one that a lasting node already has."""
        if self._settings.ephemeral:
            self._folder = folders.temporary(self._settings.state_dir.absolute())
            self._path = self._folder.path
            self._launch(self._folder)
        else:
            self._take_over_or_launch()
        self._describe_home()

    def rebuild(self) -> bool:
        """After the supervisor's end: another one. True when the folder with all volumes and logs is gone, too."""
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
        """End the supervisor with all pods, or (lasting nodes only) leave both to the next agent."""
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
        deadline = time.monotonic() + _ADOPT
        while time.monotonic() < deadline:
            if found := self._supervisor.connect(self._path):
                self.network = found
                return
            self._folder = folders.take(self._path)
            if self._folder is not None:
                self._launch(self._folder)
                return
            time.sleep(0.05)
        raise Unavailable(f"{self._path} is in use and its owner does not answer", hint="see supervisor.log in it")

    def _launch(self, folder: folders.Folder) -> None:
        settings = self._settings
        self.network = self._supervisor.launch(
            folder,
            ephemeral=settings.ephemeral,
            network=settings.network,
            log_limit=settings.log_limit,
            orphan_limit=settings.orphan_limit,
        )

    def _describe_home(self) -> None:
        shared = self.network.mode == NetworkMode.SHARED
        mark = (self._path / "mark").read_text()
        self.home = Home(
            settings=self._settings,
            state=self._path,
            mode=self.network.mode,
            why_shared=self.network.reason,
            host_ip=self._host_ip,
            base_env=machine.base_env(os.environ, {folders.MARK: mark} if shared else {}),
            allocatable=machine.capacity(self._settings.capacity),
            powers=machine.powers(isolated=not shared, enforced=self._supervisor.enforced),
        )
