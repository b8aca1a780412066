"""Statuses, Events, and the log of the controller do not contain credentials of a tenant."""

from __future__ import annotations

import json

import pytest

from tests.tenants.teams import Controller, Team
from tf_dist.core.model import names
from tf_dist.errors import Rejected

pytestmark = pytest.mark.cluster
SECRET = "hunter2-is-no-password"


def told(team: Team, controller: Controller, name: str) -> str:
    """All texts of tf-dist about a job."""
    of_job = [one for one in team.events() if one["involvedObject"]["name"].startswith(name)]
    return json.dumps([team.stored(name).get("status"), of_job]) + controller.log()


@pytest.mark.parametrize(
    "text",
    [
        f"password={SECRET}",
        f"https://user:{SECRET}@example.com/ refused",
        f"Authorization: Bearer {SECRET}",
        f'{{"api_key": "{SECRET}"}}',
        f"AWS_SECRET_ACCESS_KEY: '{SECRET}'",
    ],
)
def test_credentials_in_output_of_failed_container_are_hidden(team: Team, controller: Controller, text: str) -> None:
    team.submit("mnist", workers=1, backoffLimit=0)
    team.until_running()
    team.nodes.end(team.pods()["mnist-worker-0"], 1, f"ValueError: bad\n{text}\n")
    team.until(lambda: team.memory().get("phase") == "Failed")
    team.until(lambda: any(event["reason"] == "TFJobFailed" for event in team.events()))
    assert "ValueError: bad" in told(team, controller, "mnist")
    assert SECRET not in told(team, controller, "mnist")


def test_credentials_in_command_of_container_that_cannot_start_are_hidden(team: Team, controller: Controller) -> None:
    """The message of the runtime contains the command, which is a single word here."""
    team.submit("mnist", workers=1, backoffLimit=0)
    team.until_running()
    said = f'exec: "python train.py --password={SECRET}": executable file not found in $PATH'
    team.nodes.end(team.pods()["mnist-worker-0"], 128, said, reason="StartError")
    team.until(lambda: team.memory().get("phase") == "Failed")
    team.until(lambda: any(event["reason"] == "TFJobFailed" for event in team.events()))
    assert "StartError" in told(team, controller, "mnist")
    assert SECRET not in told(team, controller, "mnist")


def test_values_of_invalid_job_are_hidden(team: Team, controller: Controller) -> None:
    """Messages about invalid environment variables do not contain their values."""
    environments = [
        [{"name": "PASSWORD", "value": [SECRET]}],
        [{"name": "PASSWORD", "value": {"a": SECRET}}],
        [{"name": "PASSWORD", "value": SECRET, "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}],
        [{"name": f"PASSWORD={SECRET}", "value": "a"}],
        {"PASSWORD": SECRET},
        SECRET,
        [f"PASSWORD={SECRET}"],
    ]
    for n, environment in enumerate(environments):
        job = team.job(f"env-{n}", workers=1, cpu="1m")
        job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["env"] = environment
        try:
            team.submit(job)
        except Rejected:
            continue  # only the tenant sees the error
        name = job["metadata"]["name"]
        team.until(lambda name=name: bool(team.memory(name)), name)
        assert SECRET not in json.dumps(team.stored(name)["status"])
    for n, fallback in enumerate([f'[{{"env": "{SECRET}"}}]', f'[{{"image": ["{SECRET}"]}}]', f"[{SECRET}"]):
        job = team.job(f"fallback-{n}", workers=1)
        job["metadata"]["annotations"] = {names.FALLBACK: fallback}
        team.submit(job)
        team.until(lambda n=n: bool(team.memory(f"fallback-{n}")), f"fallback-{n}")
    team.submit("probe", cpu="1m")
    team.until_running("probe")
    assert SECRET not in controller.log()


def test_size_of_messages_is_limited(team: Team, controller: Controller) -> None:
    job = team.job("mnist", workers=1, backoffLimit=0)
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["image"] = "i" * 200_000
    job["metadata"]["annotations"] = {names.FALLBACK: "[" * 100_000}
    team.submit(job)
    team.until(lambda: bool(team.memory()))
    assert len(json.dumps(team.stored()["status"])) < 20_000
    assert all(len(json.dumps(event)) < 10_000 for event in team.events())
    assert "iiiiiiiiiiiiiiiiiiii" * 100 not in controller.log()
