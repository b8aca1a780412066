"""A cluster with real containers, on which the commands of docs/install.md install tf-dist, and namespaces."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.airflow.conftest import airflow_db  # also sets the home of Airflow before Airflow is imported
from tests.deploy.manifests import template
from tests.waiting import until

__all__ = ["airflow_db"]

ROOT = Path(__file__).parents[2]
VARIABLE = "TF_DIST_TEST_CONTAINERS"
IMAGE = os.environ.get("TF_DIST_TEST_IMAGE", "tf-dist:test")
TRAINER = os.environ.get("TF_DIST_TEST_TRAINER", "tf-dist/digits:latest")
NODES_TOOL = "TF_DIST_TEST_NODES"
SYSTEM = "tf-dist-system"
TFJOBS = "tfjobs.kubeflow.org"
FORMATS = {"v1": TFJOBS, "v1alpha1": "tfjobs.v1alpha1.kubeflow.org", "volcano": "jobs.batch.volcano.sh"}
"""The formats of jobs, and the names of their kinds in kubectl."""
# Steps of the example that take at least ten seconds, with TensorFlow or with tests/stand_in.
LONG = 60_000 if "stand-in" in TRAINER else 6_000
_DIGITS = ROOT / "examples" / "digits"
_OURS = "crd,clusterrole,clusterrolebinding,namespace"


class Namespace:
    """A namespace of a real cluster, used with kubectl and tf-dist."""

    def __init__(self, kubeconfig: str, name: str, programs: Path) -> None:
        self.kubeconfig, self.name, self._programs = kubeconfig, name, programs
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.environment = {
            **os.environ, "KUBECONFIG": kubeconfig, "PYTHONPATH": str(ROOT), "COLUMNS": "400", "PATH": path,
        }  # fmt: skip

    def sibling(self, name: str) -> Namespace:
        """Another namespace of the same cluster."""
        return Namespace(self.kubeconfig, name, self._programs)

    def kubectl(self, *arguments: str, given: str | None = None, check: bool = True) -> str:
        return self.run("kubectl", "-n", self.name, *arguments, given=given, check=check)

    def tf_dist(self, *arguments: str, check: bool = True) -> str:
        return self.run("tf-dist", *arguments, "-n", self.name, check=check)

    def start_tf_dist(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command as a process, with stdout and stderr as one stream."""
        command = ["tf-dist", *arguments, "-n", self.name]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(command, env=self.environment, text=True, cwd=ROOT, **output)  # type: ignore[call-overload,no-any-return]

    def run(self, *command: str, given: str | None = None, check: bool = True) -> str:
        """The output of a command. With ``check``, the command must succeed."""
        done = subprocess.run(
            command, input=given, env=self.environment, capture_output=True, text=True, timeout=280, cwd=ROOT
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def apply(self, document: str) -> str:
        """Apply a job, and return its name."""
        self.kubectl("apply", "-f", "-", given=document)
        return str(yaml.safe_load(document)["metadata"]["name"])

    def objects(self, kind: str, *options: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-o", "json", *options))["items"]
        return found

    def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["metadata"]["name"]: pod for pod in self.objects("pods")}

    def jobs(self) -> list[str]:
        """The names of the TFJobs."""
        return [one["metadata"]["name"] for one in self.objects(TFJOBS)]

    def job(self, name: str, kind: str = TFJOBS) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found

    def condition(self, name: str) -> dict[str, Any]:
        """The latest true condition of a TFJob v1, or {}."""
        conditions = self.job(name).get("status", {}).get("conditions") or []
        true = [one for one in conditions if one["status"] == "True" and "/" not in one["type"]]
        return true[-1] if true else {}

    def until_ended(self, name: str, seconds: float = 240) -> str:
        """Wait until a TFJob v1 has ended, and return its final condition."""
        until(lambda: self.condition(name).get("type") in ("Succeeded", "Failed"), seconds, every=1)
        return str(self.condition(name)["type"])

    def until_said(self, pod: str, *words: str, seconds: float = 60) -> None:
        """Wait until the log of a pod contains all of these words."""

        def said() -> bool:
            log = self.kubectl("logs", pod, check=False)
            return all(word in log for word in words)

        until(said, seconds, every=0.5)

    def until_shown(self, command: Sequence[str], *words: str, seconds: float = 60) -> str:
        """Wait until a command of tf-dist shows all of these words, and return its output."""
        shown = ""

        def all_there() -> bool:
            nonlocal shown
            shown = self.tf_dist(*command, check=False)
            return all(word in shown for word in words)

        try:
            until(all_there, seconds, every=0.5)
        except AssertionError as error:
            raise AssertionError(f"{' '.join(command)} never said {words}, but:\n{shown}") from error
        return shown

    def events(self, name: str) -> list[str]:
        """The reasons of a job's events."""
        found = self.objects("events", "--field-selector", f"involvedObject.name={name}")
        return [one["reason"] for one in found]

    def delete(self, name: str, kind: str = TFJOBS) -> None:
        """Delete a job, and wait until its objects are gone."""
        of_job = f"tf-dist.dev/job-uid={self.job(name, kind)['metadata']['uid']}"
        self.kubectl("delete", kind, name, "--wait=false")

        def left() -> list[str]:
            found = self.objects("pods,services,configmaps,secrets", "-l", of_job)
            return [f"{one['kind']} {one['metadata']['name']}" for one in found]

        until(lambda: not left(), 60, every=0.5)


def written(*beginning: str, pages: Sequence[str] = ("install.md", "remove.md")) -> list[str]:
    """The commands with these beginnings from pages of docs/."""
    text = "".join((ROOT / "docs" / page).read_text() for page in pages)
    lines = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    found = [next((line for line in lines if line.startswith(begin)), "") for begin in beginning]
    assert all(found), f"{pages} have no longer {beginning}"
    return [re.sub(r"my-registry/tf-dist:\S+", IMAGE, line) for line in found]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """The default namespace of the cluster. ``tf-dist`` is the command of this checkout."""
    kubeconfig = os.environ.get(VARIABLE)
    if not kubeconfig:
        pytest.skip(f"no cluster with real containers: {VARIABLE} names its kubeconfig (docs/testing.md)")
    programs = tmp_path_factory.mktemp("bin")
    program = programs / "tf-dist"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tf_dist "$@"\n')
    program.chmod(0o755)
    return Namespace(kubeconfig, "default", programs)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that install tf-dist themselves first. The others share an installation until the end."""
    items.sort(key=lambda item: "administrator" not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def installed(cluster: Namespace) -> Iterator[Namespace]:
    """The cluster with tf-dist. The fixture installs and removes tf-dist, unless it is already installed."""
    if cluster.kubectl("get", "namespace", SYSTEM, "--ignore-not-found"):
        yield cluster
        return
    install, remove, undo, forget = written(
        "tf-dist install --image", "kubectl delete namespace", "kubectl delete clusterrole,", "kubectl delete crd"
    )
    try:
        cluster.run("sh", "-ec", install)
        # Volcano Jobs are a value of the chart, as in docs/install.md.
        repository, _, tag = IMAGE.rpartition(":")
        chart = template("volcanoJobs=true", f"image.repository={repository}", f"image.tag={tag}")
        cluster.run("kubectl", "apply", "-f", "-", given=chart)
        cluster.run(
            "kubectl", "rollout", "status", "deployment", "tf-dist-controller", "-n", SYSTEM, "--timeout", "120s"
        )
        yield cluster
    finally:
        for command in (remove, undo, forget):
            cluster.run("sh", "-ec", command)
    assert cluster.kubectl("get", _OURS, "-l", "app.kubernetes.io/part-of=tf-dist", "-o", "name") == ""


@pytest.fixture(scope="session")
def namespace(installed: Namespace) -> Iterator[Namespace]:
    """An empty namespace."""
    yield from new_namespace(installed)


@pytest.fixture(scope="session")
def leaving(installed: Namespace) -> Iterator[list[str]]:
    """Namespaces that tests delete without waiting. The fixture waits for all of them at the end."""
    names: list[str] = []
    yield names
    if names:
        installed.kubectl("delete", "namespace", *names, "--ignore-not-found", "--timeout", "120s")


@pytest.fixture
def other(installed: Namespace, leaving: list[str]) -> Iterator[Namespace]:
    """A namespace for one test."""
    space = created_namespace(installed)
    leaving.append(space.name)
    try:
        yield space
    finally:
        space.kubectl("delete", "namespace", space.name, "--wait=false")


def created_namespace(cluster: Namespace) -> Namespace:
    space = cluster.sibling(f"tf-dist-{secrets.token_hex(4)}")
    space.kubectl("create", "namespace", space.name)
    return space


def new_namespace(cluster: Namespace) -> Iterator[Namespace]:
    """A namespace that is deleted afterwards."""
    space = created_namespace(cluster)
    try:
        yield space
    finally:
        space.kubectl("delete", "namespace", space.name, "--timeout", "120s")


class Nodes:
    """The nodes of a cluster that the tests may disturb. The nodes can stop, lose power, and be disconnected.

    ``tool`` is the program in ``TF_DIST_TEST_NODES``. DIR is the folder of the kubeconfig, PART a process such as
    ``kubelet``. The program exits with 0 on success:

    - ``stop DIR NODE/PART``: sends the signal of the variable ``SIG`` to the process. ``start`` runs it again.
    - ``node-kill DIR NODE``: kills all processes of the node. ``node-up`` boots the node with the same disk.
    - ``cut DIR NODE``: disconnects the node from the network. ``heal`` connects it again.
    - ``exec DIR NODE COMMAND…``: runs a command on the node.
    """

    def __init__(self, tool: str, cluster: Namespace) -> None:
        self._tool, self._folder, self._cluster = tool, str(Path(cluster.kubeconfig).parent), cluster
        self.names = sorted(one["metadata"]["name"] for one in cluster.objects("nodes"))

    def others(self, *names: str) -> list[str]:
        """All nodes except these."""
        return [one for one in self.names if one not in names]

    def stop(self, node: str, part: str, signal: str = "TERM") -> None:
        self._call("stop", f"{node}/{part}", SIG=signal)

    def start(self, node: str, part: str) -> None:
        self._call("start", f"{node}/{part}")

    @contextmanager
    def without_power(self, node: str) -> Iterator[None]:
        """The node loses power. Afterwards, it boots with the same disk."""
        self._call("node-kill", node)
        try:
            yield
        finally:
            self._call("node-up", node)
            self._cluster.kubectl("wait", f"node/{node}", "--for=condition=Ready", "--timeout=120s")

    @contextmanager
    def cut_off(self, node: str) -> Iterator[None]:
        """The node runs without a network."""
        self._call("cut", node)
        try:
            yield
        finally:
            self._call("heal", node)
            self._cluster.kubectl("wait", f"node/{node}", "--for=condition=Ready", "--timeout=120s")

    @contextmanager
    def cordoned(self, *nodes: str) -> Iterator[None]:
        self._cluster.kubectl("cordon", *nodes)
        try:
            yield
        finally:
            self._cluster.kubectl("uncordon", *nodes)

    def until_ready(self, node: str, ready: bool) -> None:
        """Wait until the condition Ready of the node is true, or not true."""

        def is_ready() -> bool:
            conditions = self._cluster.job(node, "node")["status"]["conditions"]
            return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

        until(lambda: is_ready() is ready, 120, every=1)

    def tag_image(self, node: str, image: str, tag: str) -> None:
        """Give an image of the node another name."""
        names = [f"docker.io/{name if '/' in name else f'library/{name}'}" for name in (image, tag)]
        self._call("exec", node, "ctr", "-n", "k8s.io", "images", "tag", "--force", *names)

    def _call(self, verb: str, *words: str, **environment: str) -> None:
        command = [self._tool, verb, self._folder, *words]
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"


@pytest.fixture
def nodes(cluster: Namespace) -> Nodes:
    """The nodes of a cluster that the tests may disturb."""
    tool = os.environ.get(NODES_TOOL)
    if not tool:
        pytest.skip(f"no nodes of the tests' own: {NODES_TOOL} names the program that stops them (docs/testing.md)")
    return Nodes(tool, cluster)


def shipped(file: str, *, steps: int | None = None, name: str = "") -> str:
    """A job of examples/digits with the image of ``TF_DIST_TEST_TRAINER``, and optionally other steps and name."""
    text = (_DIGITS / file).read_text().replace("tf-dist/digits:latest", TRAINER)
    text = text if steps is None else text.replace("--steps=4000", f"--steps={steps}")
    document = yaml.safe_load(text)
    document["metadata"]["name"] = name or document["metadata"]["name"]
    return yaml.safe_dump(document)


def small_job(name: str, script: str, *, type_: str = "Worker", **replica: Any) -> str:
    """A TFJob v1 whose replicas run a shell script.

    ``replica``: other fields of the replica spec, ``policy`` (fields of the run policy), and ``resources`` and
    ``image`` of the container. A job with parameter servers also has a worker that runs ``other``.
    """
    policy, other = replica.pop("policy", {}), replica.pop("other", "sleep 600")
    resources = {"requests": {"cpu": "10m", "memory": "16Mi"}, **replica.pop("resources", {})}
    container = {
        "name": "tensorflow",
        "image": replica.pop("image", TRAINER),
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "resources": resources,
    }
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    document: dict[str, Any] = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None", **policy},
            "tfReplicaSpecs": {type_: {"replicas": 1, "template": template, **replica}},
        },
    }
    if type_ == "PS":
        beside = {**template["spec"], "containers": [{**container, "command": ["sh", "-c", other]}]}
        worker = {"replicas": 1, "restartPolicy": "ExitCode", "template": {"spec": beside}}
        document["spec"]["tfReplicaSpecs"]["Worker"] = worker
    return yaml.safe_dump(document)


def small_gang(format_: str, name: str, script: str, *, replicas: int = 1, cpu: str = "10m", **pod: Any) -> str:
    """A job in one of ``FORMATS`` whose pods run a shell script and end together. ``pod``: fields of their spec."""
    container = {
        "name": "tensorflow",
        "image": TRAINER,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "resources": {"requests": {"cpu": cpu, "memory": "16Mi"}},
    }
    containers = [{**container, **extra} for extra in pod.pop("containers", [{}])]
    template = {"spec": {"containers": containers, "terminationGracePeriodSeconds": 1, **pod}}
    metadata = {"name": name}
    if format_ == "v1":
        return small_job(name, script, replicas=replicas, restartPolicy="OnFailure", template=template)
    template["spec"]["restartPolicy"] = "OnFailure"
    if format_ == "v1alpha1":
        counts = {"MASTER": 1, "WORKER": replicas - 1}
        specs = [{"tfReplicaType": one, "replicas": n, "template": template} for one, n in counts.items() if n]
        return yaml.safe_dump(
            {
                "apiVersion": "kubeflow.org/v1alpha1",
                "kind": "TFJob",
                "metadata": metadata,
                "spec": {"replicaSpecs": specs},
            }
        )
    policies = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    task = {"name": "worker", "replicas": replicas, "template": template, "policies": policies}
    restart = [{"event": "PodEvicted", "action": "RestartJob"}]
    spec = {"minAvailable": replicas, "plugins": {"svc": []}, "policies": restart, "tasks": [task]}
    return yaml.safe_dump(
        {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": metadata, "spec": spec}
    )
