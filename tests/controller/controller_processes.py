"""Controllers for tests, in this process or in a process of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.child_processes import signals_heard
from tests.waiting import until
from tf_dist.controller.manager import Manager, ManagerSettings
from tf_dist.controller.settings import ControllerSettings


def settings(*, volcano_jobs: bool = False, **more: Any) -> ManagerSettings:
    controller = ControllerSettings(workers=2, volcano_jobs=volcano_jobs)
    return ManagerSettings(**{"metrics_port": 0, "controller": controller, "renew_every": 0.4, **more})


def ask(controller: Manager | int, path: str) -> tuple[int, str]:
    port = controller if isinstance(controller, int) else controller.port
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:  # the request timed out, which can happen on a busy machine
        return 0, str(error)


class Process:
    """A process of ``tf-dist controller`` and its log."""

    def __init__(self, kubeconfig: Path, log: Path, *arguments: str) -> None:
        self.log = log
        argv = [sys.executable, "-m", "tf_dist", "controller", "--metrics-port", "0", "--log-format", "json"]
        with log.open("wb") as output, signals_heard():
            self.child = subprocess.Popen(
                [*argv, "--kubeconfig", str(kubeconfig), *arguments],
                stdout=subprocess.DEVNULL,
                stderr=output,
                env={key: value for key, value in os.environ.items() if key != "KUBECONFIG"},
            )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc: object) -> None:
        self.child.kill()
        self.child.wait()

    def port(self) -> int:
        until(lambda: self._port() is not None, 60)
        return self._port() or 0

    def _port(self) -> int | None:
        assert self.child.poll() is None, self.log.read_text()
        found = re.search(r"started manager .*port=(\d+)", self.log.read_text())
        return int(found[1]) if found else None

    def leads(self) -> bool:
        return "tf_dist_leading 1.0" in ask(self.port(), "/metrics")[1]

    def ready(self) -> bool:
        return ask(self.port(), "/readyz")[0] == 200

    def created(self) -> int:
        """The number of pods that this controller has created."""
        text = ask(self.port(), "/metrics")[1]
        return sum(
            int(float(n)) for n in re.findall(r'calls_total{code="201",resource="pods",verb="create"} (\S+)', text)
        )

    def end(self, number: int = signal.SIGTERM) -> int:
        self.child.send_signal(number)
        return self.child.wait(60)
