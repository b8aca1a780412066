"""Faults of containers: the job continues if it can, and messages state the cause."""

from __future__ import annotations

import json
import re

import pytest

from tests.containers.conftest import LONG, SYSTEM, Namespace, shipped, small_job
from tests.waiting import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]
# A shell that ends with its process, which a test can kill.
KILLABLE = "sleep 600 & echo $! >/tmp/pid; wait $!"


@pytest.fixture(scope="module", autouse=True)
def crashing(namespace: Namespace) -> str:
    """A job whose parameter server crashes repeatedly. Its back-off elapses during the other tests."""
    script = "echo no model here; exit 3"
    document = small_job("crashing", script, type_="PS", restartPolicy="OnFailure", policy={"backoffLimit": 2})
    return namespace.apply(document)


def explained(namespace: Namespace, document: str) -> str:
    """The output of ``tf-dist explain`` for a failed job."""
    name = namespace.apply(document)
    assert namespace.until_ended(name, 120) == "Failed"
    said = namespace.tf_dist("explain", name, check=False)
    namespace.delete(name)
    return said


def test_container_killed_for_memory_is_explained_with_its_limit(namespace: Namespace) -> None:
    greedy = "exec python -c 'x = bytearray(10**9)'"
    document = small_job("greedy", greedy, resources={"limits": {"memory": "64Mi"}}, restartPolicy="Never")
    assert "resources.limits.memory" in explained(namespace, document)


def test_image_pull_back_off_is_shown_everywhere(namespace: Namespace) -> None:
    name = namespace.apply(small_job("imageless", "true", image="tf-dist/absent:none"))
    namespace.until_shown(["get", name], "ImagePullBackOff")
    assert "tf-dist/absent:none" in namespace.until_shown(["explain", name], "ImagePullBackOff")
    assert "ImagePullBackOff" in namespace.kubectl("get", "tfjobs", name)
    namespace.delete(name)


def uid(namespace: Namespace, pod: str) -> str:
    return str(namespace.pods().get(pod, {"metadata": {"uid": ""}})["metadata"]["uid"])


def kill(namespace: Namespace, pod: str) -> None:
    namespace.until_said(pod, "up")
    namespace.kubectl("exec", pod, "--", "sh", "-c", "kill -KILL $(cat /tmp/pid)")


def test_killed_processes_are_restarted(namespace: Namespace) -> None:
    """A parameter server restarts in its pod, a worker in a new pod."""
    script = f"echo up; {KILLABLE}"
    document = small_job("killed", script, type_="PS", restartPolicy="OnFailure", other=script)
    name, server, worker = namespace.apply(document), "killed-ps-0", "killed-worker-0"
    namespace.until_said(server, "up")
    before = {pod: uid(namespace, pod) for pod in (server, worker)}
    kill(namespace, worker)
    until(lambda: uid(namespace, worker) not in ("", before[worker]), 60, every=0.5)
    kill(namespace, server)
    until(lambda: "ContainerRestarted" in namespace.events(name), 60, every=0.5)
    assert uid(namespace, server) == before[server]
    shown = namespace.until_shown(["describe", name], "ps-0 exited with code 137")
    assert "worker-0 exited with code 137" in shown
    namespace.delete(name)


def test_evicted_worker_is_replaced_and_training_continues(namespace: Namespace) -> None:
    name, worker = namespace.apply(shipped("tfjob.yaml", steps=LONG, name="evicted")), "evicted-worker-1"
    namespace.until_said(worker, "step=")
    before = uid(namespace, worker)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": worker}}
    path = f"/api/v1/namespaces/{namespace.name}/pods/{worker}/eviction"
    namespace.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(eviction))
    until(lambda: uid(namespace, worker) not in ("", before), 60, every=0.5)
    assert namespace.until_ended(name) == "Succeeded"
    namespace.delete(name)


def test_killed_controllers_do_not_restart_pods(namespace: Namespace) -> None:
    name, worker = namespace.apply(small_job("orphan", "echo up; sleep 12")), "orphan-worker-0"
    namespace.until_said(worker, "up")
    before = uid(namespace, worker)
    namespace.run("kubectl", "delete", "pods", "-n", SYSTEM, "--all", "--grace-period=0", "--force")
    assert namespace.until_ended(name) == "Succeeded"
    assert uid(namespace, worker) == before
    namespace.delete(name)


def test_gang_waits_as_a_whole_for_resource_quota(other: Namespace) -> None:
    other.kubectl("create", "quota", "few", "--hard=pods=1")
    name = other.apply(small_job("gang", "true", replicas=2))
    other.until_shown(["explain", name], "ResourceQuota")
    assert not other.pods()
    other.kubectl("patch", "quota", "few", "-p", '{"spec": {"hard": {"pods": "2"}}}')
    assert other.until_ended(name) == "Succeeded"
    other.delete(name)


def test_crash_looping_container_is_explained_and_keeps_its_log(namespace: Namespace, crashing: str) -> None:
    if namespace.condition(crashing).get("type") != "Failed":
        namespace.until_shown(["get", crashing], "CrashLoopBackOff")
    assert namespace.until_ended(crashing, 120) == "Failed"
    said = namespace.tf_dist("explain", crashing, check=False)
    assert re.search(r"ps-0 exited with code 3, [34] times; no restart is left", said), said
    assert "no model here" in said
    assert "no model here" in namespace.tf_dist("logs", crashing, "--replica", "ps-0")
    assert set(namespace.pods()) >= {"crashing-ps-0"}
    namespace.delete(crashing)
