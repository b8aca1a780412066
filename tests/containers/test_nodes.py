"""Gangs on several nodes, and nodes that are drained, lost, disconnected or different.

The tests need a cluster that they may disturb.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.containers.conftest import (
    FORMATS,
    LONG,
    SYSTEM,
    TRAINER,
    Namespace,
    Nodes,
    shipped,
    small_gang,
)
from tests.waiting import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]
# Runs until finish() ends it.
RUNS = "echo up; while [ ! -e /tmp/end ]; do sleep 0.2; done"
# More than half of the CPUs of a node.
LARGE = "1100m"
every_format = pytest.mark.parametrize("format_", FORMATS)


def pods_of(space: Namespace, job: str) -> dict[str, dict[str, Any]]:
    """The running pods of a job, without those that are being deleted."""
    found = space.objects("pods", "-l", f"tf-dist.dev/job-name={job}")
    return {
        pod["metadata"]["name"]: pod
        for pod in found
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def uids_of(space: Namespace, job: str) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in pods_of(space, job).items()}


def nodes_of(space: Namespace, job: str) -> list[str]:
    return sorted(pod["spec"]["nodeName"] for pod in pods_of(space, job).values())


def start(space: Namespace, document: str, replicas: int = 1) -> str:
    """Apply a job, wait until all its pods run, and return its name."""
    name = space.apply(document)
    until_running(space, name, replicas)
    return name


def until_running(space: Namespace, job: str, replicas: int, on: Callable[[str], bool] = lambda _: True) -> None:
    """Wait until this number of pods of the job run, all on nodes that ``on`` accepts."""

    def running() -> bool:
        nodes = nodes_of(space, job)
        return len(nodes) == replicas and all(map(on, nodes))

    try:
        until(running, 180, every=1)
    except AssertionError as error:
        raise AssertionError(space.tf_dist("describe", job, check=False)) from error


def finish(space: Namespace, job: str, format_: str = "v1") -> None:
    """Let the programs of a job end, wait until the job succeeds, and delete it."""
    for pod in pods_of(space, job):
        space.kubectl("exec", pod, "--", "touch", "/tmp/end", check=False)  # the end of a pod may end the others
    space.tf_dist("wait", job, "--timeout", "180")
    space.delete(job, FORMATS[format_])


# Gangs over nodes


@every_format
def test_gang_uses_as_many_nodes_as_needed(namespace: Namespace, nodes: Nodes, format_: str) -> None:
    name = start(namespace, small_gang(format_, f"wide-{format_}", RUNS, replicas=3, cpu=LARGE), 3)
    assert nodes_of(namespace, name) == nodes.names
    finish(namespace, name, format_)


def test_replicas_reach_each_other_across_nodes(namespace: Namespace, nodes: Nodes) -> None:
    """Replicas use the names in TF_CONFIG. The addresses of pods are in different networks on each node."""
    talk = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
hosts, mine = config["cluster"]["worker"], config["task"]["index"]
server = socket.create_server(("", 2222))
for address in hosts:
    host, _, port = address.rpartition(":")
    for _ in range(240):
        try:
            socket.create_connection((host, int(port)), 5).close()
            break
        except OSError:
            time.sleep(0.5)
    else:
        raise SystemExit(f"worker {mine} cannot reach {address}")
for _ in hosts:
    server.accept()
"""
    name = namespace.apply(small_gang("v1", "talk", f"python3 - <<'END'{talk}END", replicas=3, cpu=LARGE))
    assert namespace.until_ended(name) == "Succeeded"
    namespace.delete(name)


SELECTOR = {"matchLabels": {"spread": "yes"}}
APART = {
    "anti-affinity": {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": SELECTOR}
                ]
            }
        }
    },
    "spread": {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": SELECTOR,
            }
        ]
    },
}


@pytest.mark.parametrize("constraint", APART)
def test_replicas_with_anti_affinity_or_spread_get_different_nodes(
    namespace: Namespace, nodes: Nodes, constraint: str
) -> None:
    document = yaml.safe_load(small_gang("v1", f"apart-{constraint}", RUNS, replicas=3, **APART[constraint]))
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["metadata"] = {"labels": SELECTOR["matchLabels"]}
    name = start(namespace, yaml.safe_dump(document), 3)
    assert nodes_of(namespace, name) == nodes.names
    finish(namespace, name)


def test_gang_runs_on_node_of_its_volume(namespace: Namespace, nodes: Nodes) -> None:
    """The first pod binds the claim to a volume of its node. Later pods must run on this node."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "model"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    namespace.kubectl("apply", "-f", "-", given=json.dumps(claim))
    mounts = {"containers": [{"volumeMounts": [{"name": "model", "mountPath": "/model"}]}]}
    volumes = {"volumes": [{"name": "model", "persistentVolumeClaim": {"claimName": "model"}}]}
    where = nodes.names[-1]
    here = {"kubernetes.io/hostname": where}
    name = namespace.apply(small_gang("v1", "first", "touch /model/made", nodeSelector=here, **mounts, **volumes))
    assert namespace.until_ended(name) == "Succeeded"
    namespace.delete(name)
    script = f"ls /model/made && {RUNS}"
    name = start(namespace, small_gang("v1", "second", script, replicas=2, **mounts, **volumes), 2)
    assert nodes_of(namespace, name) == [where, where]
    finish(namespace, name)


def test_missing_image_is_reported_with_nodes_that_lack_it(namespace: Namespace, nodes: Nodes) -> None:
    image, where = "tf-dist/only-here:1", nodes.names[1]
    nodes.tag_image(where, TRAINER, image)
    spread = {**APART["spread"], "containers": [{"image": image}]}
    document = yaml.safe_load(small_gang("v1", "rare", RUNS, replicas=3, **spread))
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["metadata"] = {"labels": SELECTOR["matchLabels"]}
    name = namespace.apply(yaml.safe_dump(document))
    said = namespace.until_shown(["explain", name], "ImagePullBackOff", image, seconds=180)
    assert any(node in said for node in nodes.others(where))
    for node in nodes.others(where):
        nodes.tag_image(node, TRAINER, image)
    until_running(namespace, name, 3)
    finish(namespace, name)


# Cordon and drain


def test_gang_avoids_cordoned_nodes_or_waits_for_them(namespace: Namespace, nodes: Nodes) -> None:
    where, *closed = nodes.names
    with nodes.cordoned(*closed):
        name = start(namespace, small_gang("v1", "fits", RUNS, replicas=2), 2)
        assert nodes_of(namespace, name) == [where, where]
        finish(namespace, name)
        large = namespace.apply(small_gang("v1", "large", RUNS, replicas=2, cpu=LARGE))
        namespace.until_shown(["explain", large], closed[0], "cordoned")
        assert not pods_of(namespace, large)
    until_running(namespace, large, 2)
    finish(namespace, large)


@every_format
def test_pods_of_drained_node_start_on_another_node(namespace: Namespace, nodes: Nodes, format_: str) -> None:
    name = start(namespace, small_gang(format_, f"drained-{format_}", RUNS, replicas=2), 2)
    (where, *_), selector = nodes_of(namespace, name), f"--pod-selector=tf-dist.dev/job-name={name}"
    try:
        namespace.kubectl("drain", where, selector, "--force", "--delete-emptydir-data", "--timeout=120s")
        until_running(namespace, name, 2, on=lambda node: node != where)
    finally:
        namespace.kubectl("uncordon", where)
    finish(namespace, name, format_)


def test_gang_without_another_node_waits_with_reason(namespace: Namespace, nodes: Nodes) -> None:
    where = nodes.names[0]
    only = {"nodeSelector": {"kubernetes.io/hostname": where}}
    name = start(namespace, small_gang("v1", "nowhere", RUNS, **only))
    selector = f"--pod-selector=tf-dist.dev/job-name={name}"
    try:
        namespace.kubectl("drain", where, selector, "--force", "--delete-emptydir-data", "--timeout=120s")
        namespace.until_shown(["explain", name], "were unschedulable")
    finally:
        namespace.kubectl("uncordon", where)
    until_running(namespace, name, 1)
    finish(namespace, name)


# Kubelets and networks that fail


def test_restarted_kubelets_do_not_end_logs_or_lose_metrics(namespace: Namespace, nodes: Nodes, tmp_path: Path) -> None:
    """When a kubelet restarts, the API server ends followed logs as if the container had ended."""
    file = tmp_path / "job.yaml"
    file.write_text(shipped("tfjob.yaml", steps=LONG, name="restarted"))
    with namespace.start_tf_dist("run", str(file), "-o", "json", "--kubeconfig", namespace.kubeconfig) as run:
        namespace.until_said("restarted-worker-0", "step=", seconds=180)
        for node in nodes.names:
            nodes.stop(node, "kubelet", "KILL")
            nodes.start(node, "kubelet")
        said, _ = run.communicate(timeout=240)
    report = json.loads(said[said.index("\n{") :])
    assert report["state"] == "Succeeded"
    assert report["metrics"]["step"] == LONG
    assert all(row["restarts"] == 0 for row in report["replicas"])


def test_partition_never_duplicates_replica_and_spares_tolerating_job(namespace: Namespace, nodes: Nodes) -> None:
    """The pods keep running on the disconnected node. Replacements start after the node is back and has ended them."""
    name = start(namespace, small_gang("v1", "parted", RUNS, replicas=2, cpu=LARGE), 2)
    before = pods_of(namespace, name)
    where = next(pod["spec"]["nodeName"] for pod in before.values())
    (lost,) = [pod for pod, one in before.items() if one["spec"]["nodeName"] == where]
    # The default of Kubernetes, which the cluster of the tests shortens.
    tolerated = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    taints = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    patient = {
        "nodeSelector": {"kubernetes.io/hostname": where},
        "tolerations": [{"key": key, **tolerated} for key in taints],
    }
    silent = start(namespace, small_gang("v1", "silent", RUNS, **patient))
    untouched = uids_of(namespace, silent)
    with nodes.cut_off(where):
        until(lambda: lost not in pods_of(namespace, name), 180, every=1)
        namespace.until_shown(["explain", name], where)
        namespace.until_shown(["explain", silent], "is not ready: it may still run")
        assert namespace.pods()[lost]["metadata"]["uid"] == before[lost]["metadata"]["uid"]
    until_running(namespace, name, 2)
    assert uids_of(namespace, name)[lost] != before[lost]["metadata"]["uid"]
    assert uids_of(namespace, silent) == untouched
    for job in (name, silent):
        finish(namespace, job)


# Power


def leader(space: Namespace) -> tuple[str, str]:
    """The pod that leads the TFJobs of the cluster, and its node."""
    system = space.sibling(SYSTEM)
    holder = system.job("tf-dist-controller", "lease")["spec"].get("holderIdentity") or ""
    pods = {name: pod for name, pod in system.pods().items() if name in holder}
    return next(((name, pod["spec"]["nodeName"]) for name, pod in pods.items()), ("", ""))


def test_power_loss_of_leaders_node_does_not_affect_jobs_of_other_nodes(namespace: Namespace, nodes: Nodes) -> None:
    until(lambda: bool(leader(namespace)[0]), 60, every=0.5)
    led, where = leader(namespace)
    elsewhere = {"nodeSelector": {"kubernetes.io/hostname": nodes.others(where)[0]}}
    name = start(namespace, small_gang("v1", "bystander", RUNS, **elsewhere))
    before = uids_of(namespace, name)
    with nodes.without_power(where):
        until(lambda: leader(namespace)[0] not in ("", led), 180, every=1)
        for format_ in FORMATS:
            new = start(namespace, small_gang(format_, f"after-{format_}", RUNS, **elsewhere))
            finish(namespace, new, format_)
        assert uids_of(namespace, name) == before
        finish(namespace, name)


def apart(job: str) -> dict[str, Any]:
    """The fields of a pod spec that require different nodes for the pods of a job."""
    selector = {"matchLabels": {"tf-dist.dev/job-name": job}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def test_gangs_of_dead_node_restart_elsewhere_when_node_is_out_of_service(namespace: Namespace, nodes: Nodes) -> None:
    """Each of two gangs uses two of three nodes, so at least one node has pods of both."""
    names = {format_: f"dead-{format_}" for format_ in ("v1", "volcano")}
    for format_, name in names.items():
        start(namespace, small_gang(format_, name, RUNS, replicas=2, **apart(name)), 2)
    where, *_ = set.intersection(*(set(nodes_of(namespace, name)) for name in names.values()))
    taint = ("taint", "nodes", where, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
    with nodes.without_power(where):
        nodes.until_ready(where, False)
        namespace.kubectl(*taint)
        for format_, name in names.items():
            until_running(namespace, name, 2, on=lambda node: node != where)
            finish(namespace, name, format_)
    namespace.kubectl(*taint[:3], "node.kubernetes.io/out-of-service-")


def test_pod_starts_again_when_its_node_boots_after_power_loss(namespace: Namespace, nodes: Nodes) -> None:
    """The containers are gone, but their pods remain until the cluster declares the node lost."""
    name = start(namespace, small_gang("v1alpha1", "booted", RUNS))
    (where,) = nodes_of(namespace, name)

    def containers() -> set[str]:
        statuses = [pod["status"].get("containerStatuses") or [{}] for pod in pods_of(namespace, name).values()]
        return {one[0]["containerID"] for one in statuses if "running" in one[0].get("state", {})}

    before = containers()
    with nodes.without_power(where):
        nodes.until_ready(where, False)
    until(lambda: bool(containers() - before), 180, every=1)
    until_running(namespace, name, 1)
    finish(namespace, name, "v1alpha1")
