"""Volcano Jobs with the value volcanoJobs: a second controller leads them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.controller.harness import container
from tests.deploy.conftest import SYSTEM, is_served
from tests.deploy.manifests import by_place, rendered, shipped
from tests.deploy.manifests import container as container_of
from tests.tenants.conftest import Token
from tests.tenants.teams import Controller, Team
from tests.waiting import until
from tf_dist.cluster.api import SECRETS, VOLCANO_COMMANDS, VOLCANO_JOBS, Object
from tf_dist.cluster.client.rest import RestCluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", autouse=True)
def volcano(
    admin: RestCluster,
    kubectl: Callable[..., str],
    controller: Controller,
    config_of: Token,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Controller]:
    """The release with the value, and its controller."""
    with_value = rendered("volcanoJobs=true")
    objects = [one for place, one in by_place(with_value).items() if place[0] != "Deployment"]
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    until(lambda: is_served(admin, VOLCANO_JOBS), 60)
    given = [
        "--metrics-port=0" if one.startswith("--metrics-port") else one for one in container_of(with_value)["args"]
    ]
    log = tmp_path_factory.mktemp("volcano") / "log"
    command = [sys.executable, "-m", "tf_dist.cli.main", *given]
    with Controller(command, config_of("tf-dist-controller", SYSTEM), log) as running:
        yield running
        assert running.alive()
    more = by_place(objects).keys() - by_place(shipped()).keys()
    kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(by_place(objects)[place] for place in more))
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(one for one in shipped() if one["kind"] == "ClusterRole"))


def job(queue: str, name: str = "mnist", **spec: object) -> Object:
    template = {"spec": {"containers": [container()], "terminationGracePeriodSeconds": 0}}
    tasks = [{"name": "worker", "replicas": 2, "template": template}]
    return {"metadata": {"name": name}, "spec": {"queue": queue, "minAvailable": 2, "tasks": tasks, **spec}}


def memory(team: Team, name: str = "mnist") -> Object:
    status = team.admin.get(VOLCANO_JOBS, team.namespace, name).get("status") or {}
    return dict(status.get("tfDist") or {})


def test_job_in_closed_queue_of_another_team_waits(team: Team, other: Team) -> None:
    team.tenant.create(VOLCANO_JOBS, team.namespace, job(other.queue))
    until(lambda: memory(team).get("reason") == "NamespaceMismatch", 60)
    assert not team.pods()


def test_existing_secret_of_tenant_is_not_used_as_key(team: Team) -> None:
    """The controller may read Secrets, but does not change or mount a Secret that the job does not own."""
    data = {"id_rsa": base64.b64encode(b"mine").decode()}
    mine = team.tenant.create(SECRETS, team.namespace, {"metadata": {"name": "mnist-ssh"}, "data": data})
    team.tenant.create(VOLCANO_JOBS, team.namespace, job(team.queue, plugins={"ssh": []}))
    until(lambda: memory(team).get("reason") == "NameConflict", 60)
    there = team.admin.get(SECRETS, team.namespace, "mnist-ssh")
    assert (there["metadata"]["resourceVersion"], there["data"]) == (mine["metadata"]["resourceVersion"], data)
    assert not team.pods()


def test_command_does_not_affect_job_of_another_namespace(team: Team, other: Team) -> None:
    theirs = other.tenant.create(VOLCANO_JOBS, other.namespace, job(other.queue))
    until(lambda: memory(other).get("phase") == "Running", 60)
    before = {name: pod["metadata"]["uid"] for name, pod in other.pods().items()}
    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "mnist", "controller": True}
    for action in ("AbortJob", "TerminateJob", "RestartJob"):
        body = {"metadata": {"name": action.lower()}, "action": action}
        whose = {**target, "uid": theirs["metadata"]["uid"]}
        team.tenant.create(VOLCANO_COMMANDS, team.namespace, {**body, "target": whose})
    team.tenant.create(VOLCANO_JOBS, team.namespace, job(team.queue, "probe"))
    until(lambda: memory(team, "probe").get("phase") == "Running", 60)
    assert memory(other)["phase"] == "Running"
    assert {name: pod["metadata"]["uid"] for name, pod in other.pods().items()} == before
