"""End-to-end flows of the originals, with real processes on the embedded cluster.

Sources: kubeflow/tf-operator v1.3.0, ``py/kubeflow/tf_operator/{simple_tfjob,estimator_runconfig,cleanpod_policy,
shutdown_policy,replica_restart_policy}_tests.py``; volcano-sh/volcano, ``test/e2e/jobseq/job_error_handling.go``.
Each replica is a small server, which returns its TF_CONFIG and exits on request.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.stand_in import replica
from tests.waiting import until
from tf_dist.cluster.api import PODS, SERVICES, TFJOBS, VOLCANO_JOBS, Cluster, Object, Resource
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
from tf_dist.core.model import names
from tf_dist.errors import NotFound
from tf_dist.local.embedded import EmbeddedCluster, EmbeddedSettings

# The other modules of this folder test the core. This module shows that the embedded cluster behaves the same.
pytestmark = pytest.mark.slow

PATIENCE = 60.0
SERVER = [sys.executable, "-S", replica.__file__]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory() as scratch:  # socket paths must be short
        settings = EmbeddedSettings(
            state_dir=Path(scratch), network=NetworkMode.SHARED, capacity={"cpu": "64"}, serve=False
        )
        with EmbeddedCluster(settings) as embedded:
            yield embedded.cluster


_NUMBERS = itertools.count(1)


class Flow:
    """One job, from its creation to its deletion."""

    def __init__(
        self, cluster: Cluster, resource: Resource, spec: Object, annotations: dict[str, str] | None = None
    ) -> None:
        self.cluster, self.resource = cluster, resource
        self.name = f"flow-{next(_NUMBERS)}"
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        metadata = {"name": self.name, "annotations": annotations or {}}
        cluster.create(resource, "default", {**body, "metadata": metadata})

    def status(self) -> Object:
        return self.cluster.get(self.resource, "default", self.name).get("status") or {}

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds."""
        try:
            until(condition, PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.phases()}, {self.status()}") from None

    def has(self, condition: str) -> bool:
        listed = self.status().get("conditions") or ()
        return any(one.get("type") == condition and one["status"] == "True" for one in listed)

    def await_condition(self, condition: str) -> None:
        self.until(lambda: self.has(condition))

    def pods(self) -> dict[str, Object]:
        """The pods by replica."""
        return {
            f"{pod['metadata']['labels'][names.REPLICA_TYPE]}-{pod['metadata']['labels'][names.REPLICA_INDEX]}": pod
            for pod in self.cluster.list(PODS, "default", labels=names.JOB_UID).items
            if pod["metadata"]["ownerReferences"][0]["name"] == self.name
        }

    def phases(self) -> dict[str, str]:
        return {name: pod.get("status", {}).get("phase", "") for name, pod in self.pods().items()}

    def addresses(self) -> dict[str, list[str]]:
        """The cluster of TF_CONFIG in the first pod."""
        pod = next(iter(self.pods().values()))
        found = next(one["value"] for one in pod["spec"]["containers"][0]["env"] if one["name"] == "TF_CONFIG")
        return dict(json.loads(found)["cluster"])

    def request(self, who: str, path: str) -> Any:
        """The response of a replica, once it listens."""
        type_, _, index = who.rpartition("-")
        url = f"http://{self.addresses()[type_][int(index)]}{path}"
        answers: list[bytes] = []

        def answered() -> bool:
            try:
                with urlopen(url, timeout=PATIENCE) as response:
                    answers.append(response.read())
            except (URLError, ConnectionError):
                return False
            return True

        self.until(answered)
        return json.loads(answers[0])

    def exit(self, who: str, code: int = 0) -> None:
        self.request(who, f"/exit?exitCode={code}")

    def container(self, who: str) -> tuple[str, int, bool]:
        """The uid of a replica's pod, the restarts of its container, and whether the container runs."""
        pod = self.pods().get(who)
        if pod is None:
            return "", 0, False
        one = next(iter(pod.get("status", {}).get("containerStatuses") or ()), {})
        return pod["metadata"]["uid"], one.get("restartCount", 0), "running" in (one.get("state") or {})

    def delete(self) -> None:
        """Deletes the job, and waits until none of its objects is left."""
        self.cluster.delete(self.resource, "default", self.name)
        self.until(lambda: not (self.is_there() or self.pods() or self.services()))

    def services(self) -> list[str]:
        listed = self.cluster.list(SERVICES, "default").items
        return [one["metadata"]["name"] for one in listed if one["metadata"]["name"].startswith(self.name)]

    def is_there(self) -> bool:
        try:
            self.cluster.get(self.resource, "default", self.name)
        except NotFound:
            return False
        return True


def tfjob(
    cluster: Cluster,
    ps_policy: str = "Never",
    *,
    run_policy: Object | None = None,
    annotations: dict[str, str] | None = None,
    **counts: int,
) -> Flow:
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "any", "command": SERVER}]}}
    specs = {key.capitalize(): {"replicas": count, "template": template} for key, count in counts.items()}
    if "Ps" in specs:
        specs["PS"] = {**specs.pop("Ps"), "restartPolicy": ps_policy}
    return Flow(cluster, TFJOBS, {"tfReplicaSpecs": specs, "runPolicy": run_policy or {}}, annotations)


def test_all_replicas_agree_on_cluster(cluster: Cluster) -> None:
    """estimator_runconfig_tests: all replicas have the same cluster, and each listens at its address."""
    original = {names.EVALUATOR_IN_CLUSTER: "true"}
    flow = tfjob(cluster, annotations=original, chief=1, ps=2, worker=2, evaluator=1)
    flow.await_condition("Running")
    shared = flow.addresses()
    assert {key: len(value) for key, value in shared.items()} == {"chief": 1, "ps": 2, "worker": 2, "evaluator": 1}
    assert len({address for listed in shared.values() for address in listed}) == 6
    for type_, listed in shared.items():
        for index in range(len(listed)):
            config = flow.request(f"{type_}-{index}", "/tfconfig")
            assert config == {"cluster": shared, "task": {"type": type_, "index": index}, "environment": "cloud"}
    flow.exit("chief-0")
    flow.await_condition("Succeeded")
    flow.delete()


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("All", {}),
        ("Running", {"chief-0": "Succeeded", "worker-0": "Succeeded"}),
        ("None", {"chief-0": "Succeeded", "worker-0": "Succeeded", "worker-1": "Running", "ps-0": "Running"}),
    ],
)
def test_job_succeeds_with_chief_and_clean_pod_policy_applies(
    cluster: Cluster, policy: str, left: dict[str, str]
) -> None:
    """shutdown_policy_tests, cleanpod_policy_tests: another worker and the parameter server keep running."""
    flow = tfjob(cluster, run_policy={"cleanPodPolicy": policy}, chief=1, ps=1, worker=2)
    flow.await_condition("Running")
    flow.exit("worker-0")
    flow.until(lambda: flow.phases()["worker-0"] == "Succeeded")
    flow.exit("chief-0")
    flow.await_condition("Succeeded")
    flow.until(lambda: flow.phases() == left)
    flow.delete()


# Restart policy, exit code of ps-0, and the effect: a new container, a new pod, or the end of the pod or the job.
RESTARTS = [
    ("Always", 1, "container"),
    ("OnFailure", 0, "ended"),
    ("Never", 1, "failed"),
    ("ExitCode", 1, "failed"),
    ("ExitCode", 128, "pod"),
]


@pytest.mark.parametrize(("policy", "code", "follows"), RESTARTS, ids=[f"{row[0]}-{row[1]}" for row in RESTARTS])
def test_restart_policy_handles_exit_codes(cluster: Cluster, policy: str, code: int, follows: str) -> None:
    """replica_restart_policy_tests: a parameter server is terminated."""
    flow = tfjob(cluster, policy, ps=1, worker=1)
    flow.await_condition("Running")
    before, _, _ = flow.container("ps-0")
    flow.exit("ps-0", code=code)
    match follows:
        case "container":
            flow.until(lambda: flow.container("ps-0") == (before, 1, True))
        case "pod":
            flow.until(lambda: flow.container("ps-0")[0] not in ("", before) and flow.container("ps-0")[2])
            assert flow.container("ps-0")[1] == 0
        case "ended":
            flow.until(lambda: flow.phases()["ps-0"] == "Succeeded")
        case "failed":
            flow.await_condition("Failed")
    if follows != "failed":
        flow.exit("worker-0")
        flow.await_condition("Succeeded")
    flow.delete()


# Volcano


def vcjob(cluster: Cluster, tasks: dict[str, str], *policies: tuple[str, str], **spec: Any) -> Flow:
    """A job with a shell script for each task, and policies of the whole job: an event and its action."""
    listed = [
        {
            "name": name,
            "replicas": 1,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": name, "image": "any", "command": ["sh", "-c", script]}],
                }
            },
        }
        for name, script in tasks.items()
    ]
    rules = [{"event": event, "action": action} for event, action in policies]
    return Flow(cluster, VOLCANO_JOBS, {"minAvailable": len(tasks), "tasks": listed, "policies": rules, **spec})


def phase(flow: Flow) -> str:
    return str((flow.status().get("state") or {}).get("phase"))


STAYS = "exec sleep 3600"


def test_failed_pod_restarts_whole_volcano_job(cluster: Cluster, tmp_path: Path) -> None:
    """job_error_handling: Pending, Running, Restarting, Running. Every pod is a new one."""
    again = tmp_path / "again"
    fails_once = f"test -e {again} && {STAYS}; touch {again}; exit 3"
    flow = vcjob(cluster, {"success": STAYS, "fail": fails_once}, ("PodFailed", "RestartJob"))
    flow.until(lambda: flow.status().get("version") == 1 and phase(flow) == "Running")
    assert flow.status()["retryCount"] == 1
    flow.until(lambda: flow.phases() == {"success-0": "Running", "fail-0": "Running"})
    assert {pod["metadata"]["labels"][names.ATTEMPT] for pod in flow.pods().values()} == {"2.0.0"}
    flow.delete()


def test_evicted_pod_terminates_volcano_job(cluster: Cluster) -> None:
    flow = vcjob(cluster, {"success": STAYS, "delete": STAYS}, ("PodEvicted", "TerminateJob"))
    flow.until(lambda: phase(flow) == "Running")
    flow.cluster.delete(PODS, "default", f"{flow.name}-delete-0", grace_period=0)
    flow.until(lambda: phase(flow) == "Terminated")
    flow.until(lambda: not flow.phases())
    flow.delete()
