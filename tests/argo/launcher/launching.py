"""Launchers in this process with an embedded cluster, a controller and a workflow. The test acts as the kubelet."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.support import FixedLogs
from tests.controller.harness import World, tfjob
from tests.waiting import until
from tf_dist.argo.launcher.contract import WORKFLOWS
from tf_dist.argo.launcher.launcher import run_step
from tf_dist.argo.launcher.launcher_arguments import LauncherOptions
from tf_dist.argo.launcher.log_writer import LogWriter
from tf_dist.argo.launcher.step_job import step_document
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.client.submission import create_job
from tf_dist.cluster.api import PODS, TFJOBS, Object
from tf_dist.cluster.apiserver.server import ApiServer, make_kubeconfig
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.signals import Signals
from tf_dist.controller.controller import Controller
from tf_dist.core.pipeline.adoption import DriverChoice

SECONDS = 60.0
_NEVER = 0


def definition(kind: str, plural: str) -> Object:
    """The CustomResourceDefinition of one of Argo's kinds, without its schema."""
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    return {
        "metadata": {"name": f"{plural}.argoproj.io"},
        "spec": {
            "group": "argoproj.io",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


class Site(World):
    """A cluster over HTTP with a workflow of one step. A controller in this process reconciles its jobs.

    No containers run: the test writes what a kubelet would write.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__()
        self.clock.now = time.time()
        self.folder = folder
        self.memory.create(CRDS, None, definition("Workflow", "workflows"))
        self.memory.log_source = FixedLogs([b"step=1 loss=0.5\n", b"checkpoint=/models/ckpt-1\n"]).logs
        self.server = stack.enter_context(ApiServer(self.memory))
        self.kubeconfig = self.config(self.server.app.url)
        self.workflow = self.memory.create(WORKFLOWS, "default", {"metadata": {"name": "wf"}, "spec": {}, "status": {}})
        self.stack = stack

    def lead(self) -> None:
        """Start a controller in threads as the leader."""
        controller = Controller(self.memory)
        self.stack.callback(controller.stop)
        controller.start()

    def config(self, url: str) -> str:
        """A kubeconfig that reaches this cluster at ``url``."""
        path = self.folder / f"kubeconfig-{url.rpartition(':')[2]}"
        path.write_text(json.dumps(make_kubeconfig(url, self.server.token)))
        return str(path)

    def options(self, document: Object | None = None, **more: Any) -> LauncherOptions:
        """The launcher's options for a try of the step."""
        metadata = self.workflow["metadata"]
        given = {
            "job": json.dumps(document or tfjob()),
            "workflow": metadata["name"],
            "workflow_uid": metadata["uid"],
            "node": "wf.train",
            "driver": DriverChoice.CONTROLLER,
            "out": self.folder / "out",
            "kubeconfig": self.kubeconfig,
        }
        return LauncherOptions(**{**given, **more})

    @property
    def name(self) -> str:
        """The name of the step's job."""
        return step_document(self.options(), "default")[0].job.key.name

    def made(self, **annotations: str) -> StoredJob:
        """Create the job like an earlier try of the step."""
        made = create_job(self.memory, step_document(self.options(), "default")[0], "default")
        patch = {"metadata": {"annotations": annotations}}
        return StoredJob(TFJOBS, self.memory.patch(TFJOBS, "default", made.name, patch)) if annotations else made

    def outputs(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.options().out.iterdir() if path.name[0] != "."}

    def shows(self, status: str) -> None:
        """Wait until the launcher's outputs show the job's status."""
        until(lambda: self.outputs().get("status") == status, SECONDS)

    def stored(self) -> Object | None:
        """The step's job, if it exists."""
        return next((one for one in self.memory.list(TFJOBS).items if one["metadata"]["name"] == self.name), None)

    def uid(self) -> str:
        stored = self.stored()
        return stored["metadata"]["uid"] if stored else ""

    def phase(self) -> str:
        stored = self.stored() or {}
        return str(((stored.get("status") or {}).get("tfDist") or {}).get("phase", ""))

    def goes(self, phase: str) -> None:
        """Wait until the job has the phase."""
        until(lambda: self.phase() == phase, SECONDS)

    def runs(self) -> None:
        """Wait for the job's pods, and run them."""
        until(lambda: len(self.pods()) == 3, SECONDS)
        self.run_pods()
        self.goes("Running")

    def ends(self, code: int = 0) -> None:
        """End the first worker with the exit code, and remove pods that are being deleted."""
        self.end_pod(f"{self.name}-worker-0", code)
        until(lambda: self.buried() and self.phase() in ("Completed", "Failed"), SECONDS)

    def buried(self) -> bool:
        """Remove pods that are being deleted."""
        self.bury()
        return True

    def gone(self) -> bool:
        """Remove pods that are being deleted, and return whether the job and all pods are gone."""
        self.bury()
        return self.stored() is None and not self.memory.list(PODS).items


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Start such a cluster."""
    with ExitStack() as stack:
        yield Site(folder, stack)


class Launcher:
    """A try of the step in a thread. Only the main thread may enter it, because signals arrive there."""

    def __init__(self, options: LauncherOptions) -> None:
        self.options = options
        self._path = options.out.with_name(f"{options.out.name}-said-{time.monotonic_ns()}")
        self._result: list[int | BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stack = ExitStack()

    def __enter__(self) -> Launcher:
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT)
        self._stack.callback(os.close, self._descriptor)
        self._log_writer = LogWriter(self._descriptor)
        self._stack.callback(self._log_writer.close)
        self._signals = self._stack.enter_context(Signals(exit_after=_NEVER))
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.join(SECONDS)
        self._stack.close()
        assert not self._thread.is_alive(), self.text

    def _run(self) -> None:
        try:
            self._result.append(run_step(self.options, self._signals, self._log_writer))
        except BaseException as error:
            self._result.append(error)

    @property
    def text(self) -> str:
        return self._path.read_text()

    def said(self, text: str) -> None:
        """Wait until the output contains the text."""
        until(lambda: text in self.text or bool(self._result), SECONDS)
        assert text in self.text, (self.text, self._result)

    def signal(self, number: int = signal.SIGTERM) -> None:
        signal.raise_signal(number)

    def end(self, meanwhile: Callable[[], object] = lambda: None) -> int:
        """Wait for the end, call ``meanwhile`` repeatedly until then, and return the exit code or raise the error."""

        def over() -> bool:
            meanwhile()
            return bool(self._result)

        until(over, SECONDS)
        self._log_writer.finish(SECONDS)
        (result,) = self._result
        if isinstance(result, BaseException):
            raise result
        return result
