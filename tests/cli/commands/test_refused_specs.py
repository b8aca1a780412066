"""The commands for jobs with an invalid spec, both for running jobs and for jobs that never started."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Program
from tests.controller.harness import World, tfjob
from tests.leaderless import held_lease
from tf_dist.cluster.api import TFJOBS
from tf_dist.cluster.apiserver.server import ApiServer, make_kubeconfig
from tf_dist.core.model.status_codec import VERSION

PROBLEM = "spec.tfReplicaSpecs.Worker.replicas: must be a whole number, not the text 'three'"


@pytest.fixture
def world() -> World:
    """A cluster with a leader. The test runs the leader's passes."""
    world = World()
    held_lease(world.memory, time.time())
    return world


@pytest.fixture
def config(world: World, tmp_path: Path) -> Iterator[str]:
    with ApiServer(world.memory) as server:
        file = tmp_path / "kubeconfig"
        file.write_text(yaml.safe_dump(make_kubeconfig(server.app.url, server.token)))
        yield str(file)


@pytest.fixture(params=[True, False], ids=["runs", "never began"])
def runs(request: pytest.FixtureRequest, world: World) -> bool:
    document = tfjob()
    if request.param:
        world.submit(document)
        world.settle()
        world.run_pods()
        world.settle()
        patch = {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": "three"}}}}
        world.memory.patch(TFJOBS, "default", "mnist", patch)
    else:
        document["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = "three"
        world.submit(document)
    return bool(request.param)


def test_get_shows_invalid_spec_reason(tf_dist: Program, config: str, world: World, runs: bool) -> None:
    world.settle()
    _, row = tf_dist("get", "mnist", "--kubeconfig", config).stdout.splitlines()
    state, ready = ("Running", "3/3") if runs else ("Pending", "-")
    assert row.split()[:3] == ["tfjob/mnist", state, ready]
    assert row.split()[-1] == "InvalidSpec"


@pytest.mark.parametrize("seen", [True, False], ids=["", "no controller has seen it"])
def test_explain_shows_problem(tf_dist: Program, config: str, world: World, runs: bool, seen: bool) -> None:
    if seen:
        world.settle()
    told = tf_dist("explain", "mnist", "--kubeconfig", config).stdout
    assert PROBLEM in told
    assert "correct it" in told
    assert ("generation 1 stays in force" in told) == (runs and seen)
    found = json.loads(tf_dist("explain", "mnist", "-o", "json", "--kubeconfig", config).stdout)
    assert found["findings"][0]["category"] == "invalid-spec"


def test_describe_shows_problem(tf_dist: Program, config: str, world: World, runs: bool) -> None:
    world.settle()
    told = tf_dist("describe", "mnist", "--kubeconfig", config)
    assert told.returncode == 0, told.stderr
    assert PROBLEM in told.stdout
    assert "SpecAccepted" in told.stdout
    assert ("worker-1" in told.stdout) == runs
    data = json.loads(tf_dist("describe", "mnist", "-o", "json", "--kubeconfig", config).stdout)
    assert data["job"]["metadata"]["name"] == "mnist"
    assert PROBLEM in str(data["diagnosis"][0])
    assert len(data["pods"]) == (3 if runs else 0)


def test_wait_shows_problem_once_and_continues(tf_dist: Program, config: str, world: World, runs: bool) -> None:
    world.settle()
    found = tf_dist("wait", "mnist", "--for", "succeeded", "--timeout", "1s", "--kubeconfig", config)
    assert PROBLEM in found.stdout
    assert found.stdout.count(PROBLEM) == 1
    assert "is not succeeded yet" in found.stderr
    assert found.returncode == 75


def test_job_of_newer_release_is_shown(tf_dist: Program, config: str, world: World) -> None:
    world.submit(tfjob())
    world.settle()
    stored = world.job()
    memory = {**stored["status"]["tfDist"], "version": VERSION + 1, "phase": "Dreaming", "admission": ["new"]}
    body = {**stored, "status": {**stored["status"], "tfDist": memory}}
    world.memory.replace(TFJOBS, "default", "mnist", body, subresource="status")
    for command in ("get", "describe", "explain"):
        found = tf_dist(command, "mnist", "--kubeconfig", config)
        assert found.returncode == 0, found.stderr
        assert "tfjob/mnist" in found.stdout or "TFJob default/mnist" in found.stdout
        assert ("upgrade this tf-dist" in found.stdout) == (command != "get")
