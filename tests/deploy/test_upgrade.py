"""Upgrade from version N-1 and rollback with running jobs, on a real API server (docs/upgrade.md)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.child_processes import signals_heard
from tests.controller.harness import container, tfjob
from tests.deploy.conftest import SYSTEM
from tests.deploy.kubelet import Kubelet
from tests.deploy.manifests import documents
from tests.waiting import until
from tf_dist.cluster.api import PODS, TFJOBS, TFJOBS_V1ALPHA1, Resource
from tf_dist.cluster.client.rest import RestCluster

pytestmark = pytest.mark.cluster

ROOT: Final = Path(__file__).parents[2]
# The commit of the previous release. Before the first release, it is the last commit of an earlier day.
OLDER: Final = os.environ.get("TF_DIST_TEST_OLDER", "cb45d95350fc352ed518f54bb3562c3a25ea8b94")


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of version N-1."""
    archive = subprocess.run(["git", "archive", OLDER, "tf_dist", "deploy"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode != 0:
        pytest.skip(f"no older version: this clone has no commit {OLDER} (TF_DIST_TEST_OLDER)")
    folder = tmp_path_factory.mktemp("older")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


class Version:
    """A version of tf-dist, on the cluster of ``kubeconfig``."""

    def __init__(self, code: Path, kubeconfig: str, logs: Path) -> None:
        # Python imports from its current folder first.
        self._code = code
        self._environment = {**os.environ, "PYTHONPATH": str(code)}
        self._kubeconfig = kubeconfig
        self._logs = logs
        found = subprocess.run(
            [sys.executable, "-c", "import tf_dist; print(tf_dist.__file__)"],
            env=self._environment,
            cwd=code,
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.startswith(str(code)), "another version's code would be tried"

    def manifests(self) -> str:
        """The manifests that it prints, without the Deployment. Its selector changed, and the test runs its pods."""
        command = [sys.executable, "-m", "tf_dist", "install", f"--kubeconfig={self._kubeconfig}", "--image=mine:1"]
        done = subprocess.run(
            command, env=self._environment, cwd=self._code, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return yaml.safe_dump_all(one for one in documents(done.stdout) if one["kind"] != "Deployment")

    @contextmanager
    def controller(self, kubeconfig: str, name: str) -> Iterator[Controller]:
        """Run its controller with a kubeconfig, and end it by SIGTERM, as a rollout does."""
        log = self._logs / name
        command = [sys.executable, "-m", "tf_dist", "controller", "--metrics-port=0", "--log-format=json"]
        with log.open("w") as output, signals_heard():
            process = subprocess.Popen(
                [*command, f"--kubeconfig={kubeconfig}"],
                env=self._environment,
                cwd=self._code,
                stdout=output,
                stderr=output,
            )
        try:
            yield Controller(log)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=60)
        assert code == 0, log.read_text()


class Controller:
    """A controller, observed by its log."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def runs(self) -> bool:
        return "started manager" in self._log.read_text()

    def leads(self) -> bool:
        return "won leader election lease=tf-dist-system/tf-dist-controller " in self._log.read_text()

    def defects(self) -> list[str]:
        return [line for line in self._log.read_text().splitlines() if "Traceback" in line]


def gang(name: str, cpu: str, namespace: str) -> dict[str, Any]:
    """A gang for the node of this test. It must not use nodes that other tests have left."""
    job = tfjob(name)
    for replica in job["spec"]["tfReplicaSpecs"].values():
        replica["template"]["spec"] |= {"containers": [container(cpu=cpu)], "nodeSelector": {"test": namespace}}
    return {**job, "metadata": {"name": name}}


def v1alpha1(name: str) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": "OnFailure", "containers": [container()]}}
    replicas = [{"replicas": 1, "tfReplicaType": kind, "template": template} for kind in ("MASTER", "WORKER")]
    return {"apiVersion": "kubeflow.org/v1alpha1", "kind": "TFJob", "metadata": {"name": name}} | {
        "spec": {"replicaSpecs": replicas}
    }


class Jobs:
    """The jobs of a namespace, and its kubelet."""

    def __init__(self, admin: RestCluster, room: Kubelet, namespace: str) -> None:
        self._admin, self._room, self._namespace = admin, room, namespace

    def create(self, resource: Resource, job: dict[str, Any]) -> None:
        self._admin.create(resource, self._namespace, job)

    def phase(self, name: str, resource: Resource = TFJOBS) -> str:
        return str(self.memory(name, resource).get("phase", ""))

    def memory(self, name: str, resource: Resource = TFJOBS) -> dict[str, Any]:
        return dict((self._admin.get(resource, self._namespace, name).get("status") or {}).get("tfDist") or {})

    def pods(self, of: str) -> dict[str, str]:
        """The uids of a job's pods, by name."""
        found = (one["metadata"] for one in self._admin.list(PODS, self._namespace).items)
        return {one["name"]: one["uid"] for one in found if one["name"].startswith(of)}

    def until(self, holds: Callable[[], bool], **ends: int) -> None:
        """Step the kubelet until the condition holds. Pods end with these exit codes, by part of their names."""
        left = {name.replace("_", "-"): code for name, code in ends.items()}

        def stepped() -> bool:
            self._room.step(left)
            return not left and holds()

        try:
            until(stepped, 90)
        except AssertionError as error:
            pods = {
                one["metadata"]["name"]: (one.get("status") or {}).get("phase")
                for one in self._admin.list(PODS, self._namespace).items
            }
            jobs = [*self._admin.list(TFJOBS, self._namespace).items]
            memories = {one["metadata"]["name"]: (one.get("status") or {}).get("tfDist") for one in jobs}
            raise AssertionError(f"{error}; still to end: {left}; pods: {pods}; jobs: {memories}") from None


def test_jobs_keep_running_during_upgrade_and_rollback(
    admin: RestCluster,
    kubectl: Callable[..., str],
    kubeconfig: str,
    config_of: Callable[[str, str], str],
    older: Path,
    room: Kubelet,
    namespace: str,
    tmp_path: Path,
) -> None:
    before, now = Version(older, kubeconfig, tmp_path), Version(ROOT, kubeconfig, tmp_path)
    account = config_of("tf-dist-controller", SYSTEM)
    jobs = Jobs(admin, room, namespace)
    with ExitStack() as first, ExitStack() as second, ExitStack() as third:
        kubectl("apply", "-f", "-", stdin=before.manifests())
        old = first.enter_context(before.controller(account, "old"))
        until(old.leads, 90)
        jobs.create(TFJOBS, gang("runs", "15", namespace))
        jobs.create(TFJOBS_V1ALPHA1, v1alpha1("early"))
        jobs.until(lambda: jobs.phase("runs") == "Running" and jobs.phase("early", TFJOBS_V1ALPHA1) == "Running")
        jobs.create(TFJOBS, gang("waits", "15", namespace))  # 45 of 64 CPUs are taken
        jobs.until(lambda: jobs.memory("waits") != {})
        running, early = jobs.pods("runs"), jobs.pods("early")
        assert (len(running), len(early)) == (3, 2)

        # The upgrade: apply definitions and roles, start the new controller, and stop the old controller.
        kubectl("apply", "-f", "-", stdin=now.manifests())
        new = second.enter_context(now.controller(account, "new"))
        until(new.runs, 90)
        first.close()
        until(new.leads, 90)
        jobs.until(lambda: True, ps_0=1)
        jobs.until(lambda: jobs.pods("runs").keys() == running.keys() and jobs.pods("runs") != running)
        jobs.until(lambda: jobs.phase("runs") == "Running")
        restarted = jobs.pods("runs")
        assert [name for name in running if restarted[name] != running[name]] == ["runs-ps-0"], (
            "only the one that failed"
        )
        assert jobs.pods("early") == early
        assert jobs.pods("waits") == {}

        # The rollback.
        kubectl("apply", "-f", "-", stdin=before.manifests())
        again = third.enter_context(before.controller(account, "again"))
        until(again.runs, 90)
        second.close()
        until(again.leads, 90)
        assert (jobs.pods("runs"), jobs.pods("early")) == (restarted, early)
        jobs.until(lambda: jobs.phase("runs") == "Completed", worker_0=0, worker_1=0)
        jobs.until(lambda: jobs.phase("waits") == "Running")
        assert jobs.pods("early") == early
        assert [one.defects() for one in (old, new, again)] == [[], [], []]
    kubectl("apply", "-f", "-", stdin=now.manifests())
