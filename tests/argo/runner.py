"""A double of Argo for the examples: it runs a workflow's templates, with containers as processes of this machine.

It implements what these documents use of Argo: order, parameters, outputs, loops, retries, exit handlers and stopping.
Claims and mounts are folders, so it rewrites the paths in commands.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.argo.expressions import depends, depends_on, retried, substituted, when
from tests.argo.folders import placed, with_folders
from tests.child_processes import environment_without
from tf_dist.argo.launcher.contract import WORKFLOWS
from tf_dist.cluster.api import Cluster, Object

BIN: Final = str(Path(sys.executable).parent)
_GOOD: Final = ("Succeeded", "Skipped")
_ON_EXIT: Final = ".onExit"


@dataclass
class Node:
    """The state of a step. For a loop, ``outputs`` is a list with the outputs of each item."""

    name: str
    phase: str = "Pending"
    exit_code: int | None = None
    tries: int = 0
    outputs: Any = field(default_factory=dict)
    seconds: float = 0.0


def dag_phase(before: Mapping[str, set[str]], phases: Mapping[str, str]) -> str:
    """The phase of a DAG: that of its last tasks. A task that did not run fails if one of its predecessors failed."""

    def counted(name: str) -> bool:
        if phases[name] in ("Skipped", "Omitted"):
            return all(counted(one) for one in before[name])
        return phases[name] == "Succeeded"

    last = set(before) - {one for them in before.values() for one in them}
    return "Succeeded" if all(counted(name) for name in last) else "Failed"


@dataclass
class Place:
    """Where workflows run. ``folder`` is for temporary files, ``mounts`` maps the mount path of each claim to a folder,
    and containers start in ``workdir``.
    """

    cluster: Cluster
    kubeconfig: str
    folder: Path
    mounts: Mapping[str, Path]
    workdir: Path
    say: Callable[[str], object] = lambda _: None
    remembered: dict[str, Any] = field(default_factory=dict)  # outputs of memoized steps


def spec_of(document: Mapping[str, Any], library: Mapping[str, Any], payload: Any = None) -> Object:
    """The workflow that a document starts: the document itself, its template, its schedule, or an event."""
    spec = document["spec"]
    if document["kind"] == "WorkflowEventBinding":
        spec = spec["submit"]
    spec = spec.get("workflowSpec", spec)
    given = {one["name"]: _event_value(one, payload) for one in (spec.get("arguments") or {}).get("parameters", [])}
    if "workflowTemplateRef" in spec:
        spec = library[spec["workflowTemplateRef"]["name"]]["spec"]
    known = {one["name"]: one.get("value") for one in (spec.get("arguments") or {}).get("parameters", [])}
    merged = [{"name": name, "value": str(value)} for name, value in {**known, **given}.items()]
    return {**spec, "arguments": {"parameters": merged}}


def _event_value(parameter: Mapping[str, Any], payload: Any) -> Any:
    event = (parameter.get("valueFrom") or {}).get("event")
    return parameter["value"] if event is None else payload[event.removeprefix("payload.")]


class Runner:
    """One workflow."""

    def __init__(self, place: Place, spec: Object, parameters: Mapping[str, str] | None = None) -> None:
        self.place = place
        self.spec = spec
        self.nodes: dict[str, Node] = {}
        self.phase = "Running"
        self._templates = {template["name"]: template for template in spec["templates"]}
        own = {one["name"]: one["value"] for one in spec["arguments"]["parameters"]}
        self._parameters = {**own, **(parameters or {})}
        body: Object = {"metadata": {"generateName": "wf-"}, "spec": {}, "status": {"phase": "Running"}}
        self.stored = place.cluster.create(WORKFLOWS, "default", body)
        self._processes: dict[subprocess.Popen[bytes], str] = {}
        self._pool = ThreadPoolExecutor(32)
        self._pods: list[Future[str]] = []
        self._news = threading.Condition()
        self._shutdown = ""

    @property
    def name(self) -> str:
        return str(self.stored["metadata"]["name"])

    def run(self) -> str:
        """Run the entrypoint and the exit handler, wait for all containers, and return the workflow's phase."""
        with self._pool:
            node = self._run(self.spec["entrypoint"], self._parameters, self.name)
            self.phase = node.phase
            if "onExit" in self.spec and self._shutdown != "Terminate":
                self._run(self.spec["onExit"], self._parameters, f"{self.name}{_ON_EXIT}")
        for pod in self._pods:
            pod.result()
        patch = {"status": {"phase": self.phase}}
        self.place.cluster.patch(WORKFLOWS, "default", self.name, patch)
        return self.phase

    def stop(self, how: str = "Stop") -> None:
        """``argo stop`` and ``argo terminate``: running steps get a signal, and no further step starts.

        Like in Argo 4.1, the steps fail immediately. The controller does not wait for their containers or read their
        outputs, and the exit handler runs at the same time.
        """
        self.place.cluster.patch(WORKFLOWS, "default", self.name, {"spec": {"shutdown": how}})
        with self._news:
            self._shutdown = how
            for process, name in self._processes.items():
                if self._stopped(name):
                    process.send_signal(signal.SIGTERM)
            self._news.notify_all()

    def _stopped(self, name: str) -> bool:
        return self._shutdown == "Terminate" or (bool(self._shutdown) and _ON_EXIT not in name)

    def node(self, task: str) -> Node:
        """The node of a task of the entrypoint."""
        return self.nodes[f"{self.name}.{task}"]

    # Templates

    def _run(self, template_name: str, given: Mapping[str, str], name: str) -> Node:
        template = self._templates[template_name]
        inputs: dict[str, str] = {}
        for one in (template.get("inputs") or {}).get("parameters", []):
            value = given.get(one["name"], one.get("value", one.get("default")))
            assert value is not None, f"{name}: template {template_name} was given no {one['name']}"
            inputs[one["name"]] = str(value)
        node = self.nodes[name] = Node(name)
        scope = self._scope(name) | {f"inputs.parameters.{key}": value for key, value in inputs.items()}
        key = _memo_key(template, scope)
        if key in self.place.remembered:
            node.phase, node.outputs = "Succeeded", self.place.remembered[key]
        elif "dag" in template:
            self._dag(template["dag"]["tasks"], scope, node)
        elif "steps" in template:
            self._steps([step for group in template["steps"] for step in group], scope, node)
        else:
            self._pod(template, scope, node)
            if key and node.phase == "Succeeded":
                self.place.remembered[key] = node.outputs
        self.place.say(f"{name}: {node.phase}")
        return node

    def _scope(self, name: str) -> dict[str, str]:
        found = {"workflow.name": self.name, "workflow.uid": str(self.stored["metadata"]["uid"]), "node.name": name}
        found |= {"workflow.namespace": "default", "workflow.status": self.phase}
        return found | {f"workflow.parameters.{key}": value for key, value in self._parameters.items()}

    # A DAG

    def _dag(self, tasks: list[Object], scope: Mapping[str, str], node: Node) -> None:
        """Start each task when its dependencies have ended, in parallel. ``depends`` decides whether it then runs."""
        done: dict[str, Node] = {}
        with ThreadPoolExecutor(8) as pool:
            running: dict[str, Any] = {}
            while len(done) < len(tasks):
                for task in tasks:
                    name = task["name"]
                    waits = depends_on(task.get("depends", "")) - set(done)
                    if name not in done and name not in running and not waits:
                        running[name] = pool.submit(self._task, task, dict(scope), dict(done), node.name)
                name, future = next(iter(running.items()))
                done[name] = future.result()
                del running[name]
        before = {task["name"]: depends_on(task.get("depends", "")) for task in tasks}
        node.phase = dag_phase(before, {name: one.phase for name, one in done.items()})

    def _steps(self, steps: list[Object], scope: dict[str, str], node: Node) -> None:
        """Run the steps one after another until one does not succeed."""
        for step in steps:
            done = self._run(step["template"], _arguments(step, scope), f"{node.name}.{step['name']}")
            node.phase = done.phase
            if done.phase != "Succeeded":
                return
            scope |= _outputs_in_scope(f"steps.{step['name']}", done)

    def _task(self, task: Object, scope: dict[str, str], done: Mapping[str, Node], above: str) -> Node:
        name = f"{above}.{task['name']}"

        def holds(other: str, state: str) -> bool:
            return done[other].phase == state if state else done[other].phase in _GOOD

        if self._stopped(name) or ("depends" in task and not depends(task["depends"], holds)):
            return Node(name, "Omitted")
        for other, node in done.items():
            scope |= _outputs_in_scope(f"tasks.{other}", node)
        if "when" in task and not when(substituted(task["when"], scope)):
            self.place.say(f"{name}: Skipped")
            skipped = self.nodes[name] = Node(name, "Skipped")
            return skipped
        items = self._items(task, scope)
        if items is None:
            return self._run(task["template"], _arguments(task, scope), name)
        return self._loop(task, scope, items, name)

    def _items(self, task: Object, scope: Mapping[str, str]) -> list[Any] | None:
        if "withParam" in task:
            return list(json.loads(substituted(task["withParam"], scope)))
        return list(task["withItems"]) if "withItems" in task else None

    def _loop(self, task: Object, scope: dict[str, str], items: list[Any], name: str) -> Node:
        most = int(self.spec.get("parallelism", 8))
        with ThreadPoolExecutor(most) as pool:
            nodes = list(
                pool.map(
                    lambda one: self._run(
                        task["template"],
                        _arguments(task, scope | {"item": str(one[1])}),
                        f"{name}({one[0]}:{one[1]})",
                    ),
                    enumerate(items),
                )
            )
        bad = any(one.phase not in _GOOD for one in nodes)
        loop = self.nodes[name] = Node(name, "Failed" if bad else "Succeeded", outputs=[one.outputs for one in nodes])
        return loop

    # A pod

    def _pod(self, template: Object, scope: dict[str, str], node: Node) -> None:
        """Run the tries of the pod until they end or the workflow is stopped."""
        tried = Node(node.name)
        pod = self._pool.submit(self._tried, template, scope, tried)
        self._pods.append(pod)
        pod.add_done_callback(lambda _: self._tell())
        with self._news:
            self._news.wait_for(lambda: pod.done() or self._stopped(node.name))
        over = pod.done()
        node.phase = pod.result() if over else "Failed"
        if over:
            node.outputs, node.exit_code, node.tries = tried.outputs, tried.exit_code, tried.tries

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()

    def _tried(self, template: Object, scope: dict[str, str], node: Node) -> str:
        strategy = template.get("retryStrategy") or {}
        limit = int(strategy.get("limit", 0)) if strategy else 0
        while True:
            code = self._process(template, scope | {"retries": str(node.tries)}, node)
            node.tries += 1
            node.exit_code = code
            expression = strategy.get("expression", "lastRetry.status == 'Failed'")
            again = node.tries <= limit and not self._stopped(node.name)
            if code == 0 or not again or not retried(expression, status="Failed", exit_code=code):
                return "Succeeded" if code == 0 else "Failed"

    def _process(self, template: Object, scope: Mapping[str, str], node: Node) -> int:
        scratch = self.place.folder / re.sub(r"[^\w.-]+", "_", f"{node.name}-{node.tries}")
        scratch.mkdir(parents=True)
        paths = self._paths(template, scratch)
        container = template.get("container") or template["script"]
        words = [*container["command"], *container.get("args", [])]
        command = [with_folders(self._placed(substituted(word, scope), paths), self.place.mounts) for word in words]
        if "script" in template:
            source = scratch / "source.py"
            source.write_text(self._placed(substituted(container["source"], scope), paths))
            command.append(str(source))
        variables = {one["name"]: self._placed(substituted(one["value"], scope), paths) for one in _env(container)}
        code = node.exit_code = self._execute(command, variables, scratch, node)
        for one in (template.get("outputs") or {}).get("parameters", []):
            node.outputs[one["name"]] = _output(one, paths, self.place.folder.parent, node)
        return code

    def _placed(self, text: str, paths: Mapping[str, Path]) -> str:
        return placed(text, paths, self.place.folder.parent)

    def _paths(self, template: Object, scratch: Path) -> dict[str, Path]:
        """The local folders of the container's mounts. Each container has its own /tmp."""
        container = template.get("container") or template["script"]
        claims = {one["name"] for one in template.get("volumes", []) if "persistentVolumeClaim" in one}
        found = {"/tmp": scratch / "tmp", **self.place.mounts}
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in claims:
                found[mount["mountPath"]] = scratch / mount["name"]
        for path in found.values():
            path.mkdir(parents=True, exist_ok=True)
        return found

    def _execute(self, command: list[str], variables: Mapping[str, str], scratch: Path, node: Node) -> int:
        environment = {
            **environment_without("TF_DIST", "KUBE", "ARGO_"),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "KUBECONFIG": self.place.kubeconfig,
            "TF_DIST_HOME": str(scratch / "home"),
            "PYTHONUNBUFFERED": "1",
            "ARGO_PROGRESS_FILE": str(scratch / "progress"),
            **variables,
        }
        process = subprocess.Popen(
            command,
            cwd=self.place.workdir,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with self._news:
            self._processes[process] = node.name
            if self._stopped(node.name):
                process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self.place.say(f"{node.name}: {line.decode(errors='replace').rstrip()}")
        code = process.wait()
        with self._news:
            del self._processes[process]
        return code if code >= 0 else 128 - code


def _memo_key(template: Object, scope: Mapping[str, str]) -> str:
    """The key of the step's memoized outputs, or "" without memoization. Argo 4.1 rejects other characters."""
    if "memoize" not in template:
        return ""
    key = substituted(template["memoize"]["key"], scope)
    assert re.fullmatch(r"[a-zA-Z0-9][-a-zA-Z0-9]*", key), f"invalid cache key: {key}"
    return f"{template['memoize']['cache']['configMap']['name']}/{key}"


def _arguments(task: Object, scope: Mapping[str, str]) -> dict[str, str]:
    given = (task.get("arguments") or {}).get("parameters", [])
    return {one["name"]: substituted(str(one["value"]), scope) for one in given}


def _env(container: Object) -> list[Object]:
    return list(container.get("env", []))


def _outputs_in_scope(prefix: str, node: Node) -> dict[str, str]:
    if isinstance(node.outputs, list):
        return {f"{prefix}.outputs.parameters": json.dumps(node.outputs), f"{prefix}.status": node.phase}
    found = {f"{prefix}.outputs.parameters.{name}": value for name, value in node.outputs.items()}
    return found | {f"{prefix}.status": node.phase}


def _output(parameter: Object, paths: Mapping[str, Path], home: Path, node: Node) -> str:
    source = parameter["valueFrom"]
    path = Path(placed(source["path"], paths, home))
    if path.exists():
        return path.read_text().strip()
    if node.exit_code and "default" not in source:
        return ""
    assert "default" in source, f"{node.name}: there is no {source['path']}, and no default for {parameter['name']}"
    return str(source["default"])
