"""Unusual objects of other owners that an API server accepts: jobs run, and commands show all jobs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controller.harness import World, container, tfjob
from tests.leaderless import held_lease
from tf_dist.cli.main import run
from tf_dist.cluster.api import (
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    LIMIT_RANGES,
    NETWORK_POLICIES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    RESOURCE_QUOTAS,
    RUNTIME_CLASSES,
    SERVICES,
    TFJOBS,
    VOLCANO_JOBS,
    Object,
    Resource,
)
from tf_dist.cluster.apiserver.server import ApiServer, make_kubeconfig
from tf_dist.core.model import names

ROOMY = {"cpu": "64", "memory": "64Gi", "pods": "110"}
CONTROL = "\x1b[31mred\x1b]0;title\x07\u202e"
"""Text that changes a terminal."""
ABOUT_JOB = {"kind": "TFJob", "name": "mnist", "namespace": "default"}
IN_LOOP = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "odd", "uid": "u", "controller": True}
POD = {"containers": [container(cpu="1m")]}

# The name, the kind, the object without its name, and its status.
CASES: list[tuple[str, Resource, Object, Object]] = [
    ("amounts", NODES, {}, {"capacity": {"cpu": "9E", "memory": "-5", "pods": "1m", "x.y/z": "0"}}),
    ("effect", NODES, {"spec": {"taints": [{"key": "k", "effect": "New", "timeAdded": None}]}}, {"allocatable": ROOMY}),
    (
        "conditions",
        NODES,
        {},
        {
            "allocatable": ROOMY,
            "conditions": [
                {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-11-28T16:00:00.1234567+05:30"},
                {"type": "Ready", "status": "True", "lastTransitionTime": None},
            ],
        },
    ),
    ("deleted", NODES, {"metadata": {"finalizers": ["example.com/a"]}}, {"allocatable": ROOMY}),
    ("lost", PODS, {"spec": {**POD, "nodeName": "nowhere", "overhead": {"cpu": "1"}}}, {"phase": "Unknown"}),
    ("labels", PODS, {"metadata": {"labels": {names.JOB_UID: "u", names.REPLICA_INDEX: "x"}}, "spec": POD}, {}),
    ("owner", PODS, {"metadata": {"labels": {names.JOB_UID: "u"}, "ownerReferences": [IN_LOOP]}, "spec": POD}, {}),
    ("external", SERVICES, {"spec": {"type": "ExternalName", "externalName": "example.com"}}, {}),
    ("budget", POD_DISRUPTION_BUDGETS, {"spec": {"maxUnavailable": "0%", "selector": None}}, {}),
    ("ages", LEASES, {"spec": {"holderIdentity": "x", "leaseDurationSeconds": 2**31 - 1}}, {}),
    ("empty", LEASES, {"spec": {"holderIdentity": None, "renewTime": None}}, {}),
    ("scopes", RESOURCE_QUOTAS, {"spec": {"hard": {"pods": "0"}, "scopes": ["Terminating", "BestEffort"]}}, {}),
    ("counts", RESOURCE_QUOTAS, {"spec": {"hard": {"count/x.y": "0"}}}, {"used": {"cpu": "-5"}}),
    ("ranges", LIMIT_RANGES, {"spec": {"limits": [{"type": "Pod", "max": {"cpu": "9"}}, {"type": "New"}]}}, {}),
    ("lowest", PRIORITY_CLASSES, {"value": -(2**31), "globalDefault": True, "description": CONTROL}, {}),
    ("runtime", RUNTIME_CLASSES, {"handler": "x", "scheduling": {"nodeSelector": {"a": "b"}}}, {}),
    ("event", EVENTS, {"involvedObject": {}, "message": CONTROL}, {}),
    ("said", EVENTS, {"involvedObject": ABOUT_JOB, "message": CONTROL, "count": -1, "lastTimestamp": None}, {}),
    ("policy", NETWORK_POLICIES, {"spec": {"podSelector": {}, "ingress": [{"ports": [{"port": "a"}]}]}}, {}),
    ("coredns", CONFIG_MAPS, {"data": {"Corefile": ".:53 {\n" * 9_000 + "cache x\n ttl -5"}}, {}),
    ("cohort", QUEUES, {"spec": {"quotas": {"cpu": {"nominal": "1e300"}}, "cohort": "cohort"}}, {"used": 5}),
    ("nothing", QUEUES, {"spec": None}, {}),
    ("odd", TFJOBS, {"spec": None}, {"observedGeneration": 2**40}),
    ("status", TFJOBS, {"spec": tfjob()["spec"]}, {"conditions": "x", "replicaStatuses": [5], "startTime": 5}),
    ("tasks", VOLCANO_JOBS, {"spec": {"minAvailable": 99, "tasks": [{"replicas": 0}]}}, {"state": 5}),
]


@pytest.mark.parametrize(("name", "resource", "body", "status"), CASES, ids=[case[0] for case in CASES])
def test_job_runs_and_commands_work_with_unusual_foreign_objects(
    name: str, resource: Resource, body: Object, status: Object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world, namespace = World(cpu="12"), "default" if resource.namespaced else None
    held_lease(world.memory, time.time())
    metadata: dict[str, Any] = {**body.get("metadata", {}), "name": name}
    stored = world.memory.create(resource, namespace, {**body, "metadata": metadata})
    if status:
        world.memory.replace(resource, namespace, name, {**stored, "status": status}, subresource="status")
    if "finalizers" in metadata:
        world.memory.delete(resource, namespace, name)
    world.submit(tfjob("mnist"))
    world.settle()
    world.run_pods(*(pod for pod in world.pods() if pod.startswith("mnist-")))
    world.settle()
    assert world.status()["phase"] == "Running", world.describe()
    config = tmp_path / "kubeconfig"
    with ApiServer(world.memory) as server:
        config.write_text(yaml.safe_dump(make_kubeconfig(server.app.url, server.token)))
        jobs = [f"tfjob/{one['metadata']['name']}" for one in world.memory.list(TFJOBS).items]
        jobs += [f"vcjob/{one['metadata']['name']}" for one in world.memory.list(VOLCANO_JOBS).items]
        for command in (["get", "-o", "wide"], *([verb, job] for verb in ("describe", "explain") for job in jobs)):
            run([*command, "--kubeconfig", str(config)])
            shown = "".join(capsys.readouterr())
            assert "defect of tf-dist" not in shown, command
            assert not set(CONTROL[:1] + CONTROL[-2:]).intersection(shown), command


def test_texts_of_other_components_do_not_change_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = f"{CONTROL}\x9b2J\x1b[2J\nnext"
    world = World()
    held_lease(world.memory, time.time())
    world.run_job(tfjob("mnist"))
    state = {"terminated": {"exitCode": 1, "reason": odd, "message": odd}}
    world.set_status(
        "mnist-worker-0", {"phase": "Failed", "containerStatuses": [{"name": "tensorflow", "state": state}]}
    )
    world.settle()
    about = {**ABOUT_JOB, "uid": world.job()["metadata"]["uid"]}
    world.memory.create(EVENTS, "default", {"metadata": {"name": "e"}, "involvedObject": about, "message": odd})
    config = tmp_path / "kubeconfig"
    with ApiServer(world.memory) as server:
        config.write_text(yaml.safe_dump(make_kubeconfig(server.app.url, server.token)))
        for command in (["get", "-o", "wide"], ["describe", "mnist"], ["explain", "mnist"]):
            run([*command, "--kubeconfig", str(config)])
            shown = "".join(capsys.readouterr())
            assert "next" in shown, command
            assert not set("\x07\u202e\x9b").intersection(shown), command
            assert "\x1b]" not in shown, command
            assert "\x1b[2J" not in shown, command
            if command[0] == "get":
                assert len(shown.splitlines()) == 2
