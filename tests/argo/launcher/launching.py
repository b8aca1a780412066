"""Launchers in this process: an embedded cluster, a controller, a workflow, and a kubelet that a test plays by hand."""

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
    """The definition of one of Argo's kinds, without its schema."""
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
    """A cluster over HTTP whose jobs a controller in this process reconciles, and one workflow with one step.

    Nothing runs: what a kubelet would write, a test does.
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
        """Have a controller lead, in threads."""
        controller = Controller(self.memory)
        self.stack.callback(controller.stop)
        controller.start()

    def config(self, url: str) -> str:
        """A kubeconfig for this cluster as it is reached at ``url``."""
        path = self.folder / f"kubeconfig-{url.rpartition(':')[2]}"
        path.write_text(json.dumps(make_kubeconfig(url, self.server.token)))
        return str(path)

    def options(self, document: Object | None = None, **more: Any) -> LauncherOptions:
        """Those of a try of the step."""
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
        """The job as an earlier try of the step has made it."""
        made = create_job(self.memory, step_document(self.options(), "default")[0], "default")
        patch = {"metadata": {"annotations": annotations}}
        return StoredJob(TFJOBS, self.memory.patch(TFJOBS, "default", made.name, patch)) if annotations else made

    def outputs(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.options().out.iterdir() if path.name[0] != "."}

    def shows(self, status: str) -> None:
        """Wait until the launcher has seen the job in that state."""
        until(lambda: self.outputs().get("status") == status, SECONDS)

    def stored(self) -> Object | None:
        """The step's job, if there is one."""
        return next((one for one in self.memory.list(TFJOBS).items if one["metadata"]["name"] == self.name), None)

    def uid(self) -> str:
        stored = self.stored()
        return stored["metadata"]["uid"] if stored else ""

    def phase(self) -> str:
        stored = self.stored() or {}
        return str(((stored.get("status") or {}).get("tfDist") or {}).get("phase", ""))

    def goes(self, phase: str) -> None:
        """Wait until the job is in that phase."""
        until(lambda: self.phase() == phase, SECONDS)

    def runs(self) -> None:
        """Its pods come, and run."""
        until(lambda: len(self.pods()) == 3, SECONDS)
        self.run_pods()
        self.goes("Running")

    def ends(self, code: int = 0) -> None:
        """Its first worker ends so, and everything that is asked to go goes."""
        self.end_pod(f"{self.name}-worker-0", code)
        until(lambda: self.buried() and self.phase() in ("Completed", "Failed"), SECONDS)

    def buried(self) -> bool:
        """What has been asked to go is gone."""
        self.bury()
        return True

    def gone(self) -> bool:
        """Whether nothing is left of the job, once its kubelet has done its part."""
        self.bury()
        return self.stored() is None and not self.memory.list(PODS).items


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """One of them."""
    with ExitStack() as stack:
        yield Site(folder, stack)


class Launcher:
    """One try of the step, in a thread. To be entered by the main thread, which signals are for."""

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
        """Wait until it has said that."""
        until(lambda: text in self.text or bool(self._result), SECONDS)
        assert text in self.text, (self.text, self._result)

    def signal(self, number: int = signal.SIGTERM) -> None:
        signal.raise_signal(number)

    def end(self, meanwhile: Callable[[], object] = lambda: None) -> int:
        """Its exit code, or the error that it ends with; ``meanwhile`` is done again and again until then."""

        def over() -> bool:
            meanwhile()
            return bool(self._result)

        until(over, SECONDS)
        self._log_writer.finish(SECONDS)
        (result,) = self._result
        if isinstance(result, BaseException):
            raise result
        return result
