"""The limits of the role ``edit``. Its Leases and Events cannot affect others."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.deploy.manifests import SYSTEM
from tests.tenants.teams import Controller, Team
from tf_dist.cluster.api import EVENTS, LEASES, NODES, PODS, PRIORITY_CLASSES, QUEUES, TFJOBS, Object
from tf_dist.cluster.lease import LEASE_LABELS, leader_lease, new_lease
from tf_dist.errors import ClusterError, Forbidden, NotFound

pytestmark = pytest.mark.cluster
Attempt = Callable[[Team, Team, Object], object]
FORGED: Object = {
    "tfDist": {
        "phase": "Running",
        "reason": "JobRunning",
        "admission": {"at": "2027-01-15T08:00:00.000000Z", "placement": {"worker": {"n1": 8}}},
    },
    "conditions": [{"type": "Succeeded", "status": "True"}],
}

ATTEMPTS: dict[str, Attempt] = {
    "status by patch": lambda team, other, job: team.patch("mnist", {"status": FORGED}, subresource="status"),
    "status by update": lambda team, other, job: team.tenant.replace(
        TFJOBS, team.namespace, "mnist", {**job, "status": FORGED}, subresource="status"
    ),
    "status of a pod": lambda team, other, job: team.tenant.patch(
        PODS, team.namespace, "mnist-worker-0", {"status": {"phase": "Failed"}}, subresource="status"
    ),
    "jobs of another team": lambda team, other, job: team.tenant.list(TFJOBS, other.namespace),
    "a job in another namespace": lambda team, other, job: team.tenant.create(TFJOBS, other.namespace, team.job("a")),
    "deletion in another namespace": lambda team, other, job: team.tenant.delete(TFJOBS, other.namespace, "mnist"),
    "its own queue": lambda team, other, job: team.tenant.patch(QUEUES, None, team.queue, {"spec": {"quotas": {}}}),
    "a new queue": lambda team, other, job: team.tenant.create(
        QUEUES, None, {"metadata": {"name": "mine"}, "spec": {}}
    ),
    "a priority class": lambda team, other, job: team.tenant.create(
        PRIORITY_CLASSES, None, {"metadata": {"name": "mine"}, "value": 1}
    ),
    "labels of a node": lambda team, other, job: team.tenant.patch(
        NODES, None, team.nodes.name, {"metadata": {"labels": {"a": "b"}}}
    ),
    "the Lease of the cluster": lambda team, other, job: team.tenant.patch(
        LEASES, *leader_lease(TFJOBS, None), {"spec": {"holderIdentity": "tenant"}}
    ),
    "deletion of the Lease of the cluster": lambda team, other, job: team.tenant.delete(
        LEASES, *leader_lease(TFJOBS, None)
    ),
    "a Lease of another name there": lambda team, other, job: team.tenant.create(
        LEASES, SYSTEM, {"metadata": {"name": "mine"}}
    ),
}


@pytest.fixture
def running(team: Team) -> Object:
    team.submit()
    team.until_running()
    return team.stored()


def test_role_of_team_forbids_statuses_and_objects_of_others(team: Team, other: Team, running: Object) -> None:
    allowed = []
    for what, attempt in ATTEMPTS.items():
        try:
            attempt(team, other, running)
        except Forbidden:
            continue
        except ClusterError as error:
            what = f"{what}: {error}"
        allowed.append(what)
    assert not allowed


def test_status_in_document_is_dropped(team: Team) -> None:
    job = {**team.job("mnist", workers=8), "status": FORGED}
    team.submit(job)
    team.until_reason("NeverFits")
    team.tenant.replace(TFJOBS, team.namespace, "mnist", {**team.stored(), "status": FORGED})
    team.patch("mnist", {"status": FORGED})
    team.submit("probe")
    team.until_running("probe")
    assert team.reason() == "NeverFits"
    assert not team.pods("mnist")


def test_forged_leases_do_not_stop_controller(team: Team, other: Team, controller: Controller) -> None:
    """The Leases name a leader and are renewed. A new leader of the cluster waits for them only once."""
    ref = leader_lease(TFJOBS, team.namespace)
    held = new_lease(ref, "a-tenant", 86_400, time.time())
    team.tenant.create(LEASES, team.namespace, held)
    large = {"metadata": {"labels": dict(LEASE_LABELS), "annotations": {"a": "x" * 200_000}}}
    for n in range(20):
        body = {"metadata": {**large["metadata"], "name": f"forged-{n}"}, "spec": held["spec"]}
        team.tenant.create(LEASES, team.namespace, body)
    for _ in range(3):
        team.tenant.patch(LEASES, team.namespace, ref.name, {"spec": {"leaseTransitions": 7}})
    other.submit("before", cpu="500m")
    other.until_running("before")
    controller.restart()
    for one in (team, other):
        one.submit("after", workers=1, cpu="1m")
        one.until_running("after")


def test_forged_and_deleted_events_do_not_affect_job(team: Team, running: Object) -> None:
    """The role ``edit`` may write Events, including the Events of the controller."""
    team.until(lambda: bool(team.events()))
    for event in team.events():
        name = event["metadata"]["name"]
        team.tenant.patch(EVENTS, team.namespace, name, {"count": 2**31 - 1, "message": "forged", "reason": "Forged"})
    team.patch("mnist", {"spec": {"runPolicy": {"suspend": True}}})
    team.until(lambda: not team.pods())
    for event in team.events():
        try:
            team.tenant.delete(EVENTS, team.namespace, event["metadata"]["name"])
        except NotFound:
            continue
    team.patch("mnist", {"spec": {"runPolicy": {"suspend": False}}})
    team.until_running()
    for pod in team.pods().values():
        team.nodes.end(pod, 0)
    team.until(lambda: any(event["reason"] == "TFJobSucceeded" for event in team.events()))
    team.until(lambda: team.memory()["phase"] == "Completed")
