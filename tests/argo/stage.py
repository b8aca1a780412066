"""An embedded cluster with Argo's workflows, and launchers as real processes."""

from __future__ import annotations

import json
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.argo.launcher.launching import definition
from tests.cli.conftest import PROGRAM, surroundings
from tests.cli.ready import Started
from tests.leaderless import LeaderlessCluster
from tests.waiting import until
from tf_dist.argo.launcher.contract import WORKFLOWS
from tf_dist.cluster.api import LEASES, PODS, TFJOBS, Cluster, Object
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.core.model import names
from tf_dist.errors import NotFound
from tf_dist.local.embedded import EmbeddedSettings

PATIENCE = 60.0
FOREVER = "trap 'exit 143' TERM; echo up; while :; do sleep 0.05; done"


def job(script: str, *, workers: int = 1, name: str = "tiny", limits: Object | None = None) -> Object:
    """A TFJob whose workers run a shell script. The job succeeds when all workers have succeeded."""
    container: Object = {"name": "tensorflow", "image": "none", "command": ["sh", "-c", script]}
    if limits:
        container["resources"] = {"limits": limits}
    template = {"spec": {"terminationGracePeriodSeconds": 5, "containers": [container]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name},
        "spec": {
            "successPolicy": "AllWorkers",
            "tfReplicaSpecs": {"Worker": {"replicas": workers, "restartPolicy": "Never", "template": template}},
        },
    }


class Launcher:
    """A launcher process. A thread reads its output, except with ``mute``."""

    def __init__(self, process: Started | subprocess.Popen[bytes], *, mute: bool = False) -> None:
        self.process = process
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        if not mute:
            self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.decode().rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self.lines.append("")
            self._news.notify_all()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def said(self, text: str) -> None:
        """Wait until the output contains the text."""
        with self._news:
            found = self._news.wait_for(lambda: any(text in line for line in self.lines) or self._over(), PATIENCE)
        assert found, f"never said {text!r}:\n{self.text}"
        assert any(text in line for line in self.lines), f"ended without saying {text!r}:\n{self.text}"

    def spoken(self, count: int) -> None:
        """Wait until the output has ``count`` lines or ends."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.lines) >= count or self._over(), PATIENCE), self.text

    def _over(self) -> bool:
        return bool(self.lines) and self.lines[-1] == ""

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def code(self) -> int:
        """Wait for the end of the process, and return its exit code like a shell."""
        code = self.process.wait(PATIENCE)
        if self._reader.ident is not None:
            self._reader.join(PATIENCE)
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._reader.ident is not None:
            self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


@dataclass
class Stage:
    """``cluster`` with its kubeconfig, and a folder for the files of launchers."""

    cluster: Cluster
    url: str
    token: str
    folder: Path
    scratch: str
    namespace: str = "default"
    launchers: list[Launcher] = field(default_factory=list)

    def kubeconfig(self, url: str = "") -> str:
        """A kubeconfig for this server or a proxy of it."""
        path = self.folder / f"kubeconfig-{uuid.uuid4().hex[:6]}"
        context = {"cluster": "c", "user": "u", "namespace": self.namespace}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url or self.url}}],
            "users": [{"name": "u", "user": {"token": self.token}}],
            "contexts": [{"name": "x", "context": context}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(document))
        return str(path)

    def step(self, document: Object, **spec: Any) -> Step:
        """A step of a new workflow."""
        return Step(self, document, self.workflow(**spec))

    def workflow(self, **spec: Any) -> Object:
        """A running workflow."""
        body: Object = {
            "metadata": {"name": f"wf-{uuid.uuid4().hex[:6]}"},
            "spec": spec,
            "status": {"phase": "Running"},
        }
        return self.cluster.create(WORKFLOWS, self.namespace, body)

    def leases(self) -> list[str]:
        """The names of the Leases with which launchers lead the namespace."""
        found = self.cluster.list(LEASES, self.namespace, labels=names.LEADER).items
        return [lease["metadata"]["name"] for lease in found]


def _anew(arguments: list[str], folder: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=env,
    )


class Step:
    """A step of a workflow that can have several tries."""

    def __init__(self, stage: Stage, document: Object, workflow: Object) -> None:
        self.stage = stage
        self.workflow = workflow
        self.document = document
        self.out = stage.folder / f"out-{workflow['metadata']['name']}"
        self.progress = stage.folder / f"progress-{workflow['metadata']['name']}"

    def launch(
        self, *options: str, kubeconfig: str = "", mute: bool = False, anew: bool = False, **env: str
    ) -> Launcher:
        """Start a try in a process with all imports done, or with ``anew`` in a new interpreter, like a container."""
        metadata = self.workflow["metadata"]
        command = ["argo-launch", json.dumps({"job": self.document}), f"out={self.out}"]
        command += [f"workflow={metadata['name']}", f"workflow_uid={metadata['uid']}"]
        command += [
            f"node={metadata['name']}.train",
            f"kubeconfig={kubeconfig or self.stage.kubeconfig()}",
            *options,
        ]
        folder = self.stage.folder
        surrounding = surroundings(folder, self.stage.scratch)
        surrounding = {key: value for key, value in surrounding.items() if not key.startswith("ARGO_")}
        surrounding |= {"PYTHONUNBUFFERED": "1", "ARGO_PROGRESS_FILE": str(self.progress)} | env
        launcher = Launcher((_anew if anew else Started)(command, folder, surrounding), mute=mute)
        self.stage.launchers.append(launcher)
        return launcher

    def shut_down(self, how: str = "Stop") -> None:
        """Shut down the workflow like ``argo stop`` and ``argo terminate``."""
        name = self.workflow["metadata"]["name"]
        self.stage.cluster.patch(WORKFLOWS, self.stage.namespace, name, {"spec": {"shutdown": how}})

    def outputs(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.out.iterdir() if not path.name.startswith(".")}

    def jobs(self) -> list[Object]:
        """All jobs of the workflow."""
        found = self.stage.cluster.list(TFJOBS, self.stage.namespace).items
        uid = self.workflow["metadata"]["uid"]
        return [one for one in found if uid in (one["metadata"].get("labels") or {}).values()]

    def pods(self) -> list[Object]:
        name = self.workflow["metadata"]["name"]
        return self.stage.cluster.list(
            PODS, self.stage.namespace, labels=f"workflows.argoproj.io/workflow={name}"
        ).items

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, PATIENCE)

    def delete(self) -> None:
        """Delete the workflow, and wait until its jobs and pods are deleted."""
        with suppress(NotFound):
            self.stage.cluster.delete(WORKFLOWS, self.stage.namespace, self.workflow["metadata"]["name"])
        self.until(lambda: not self.jobs() and not self.pods())


@contextmanager
def stage(folder: Path, scratch: str, **settings: Any) -> Iterator[Stage]:
    """Start the cluster without a controller, so that only launchers lead."""
    with LeaderlessCluster(EmbeddedSettings(state_dir=Path(scratch) / "node", **settings)) as embedded:
        embedded.cluster.create(CRDS, None, definition("Workflow", "workflows"))
        yield Stage(embedded.cluster, embedded.url, embedded.token, folder, scratch)
