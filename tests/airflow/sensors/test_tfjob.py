"""Sensors wait for jobs of others, and never change them."""

from __future__ import annotations

import asyncio
import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest

from tests.airflow.instance import Instance
from tests.airflow.light import LightSite
from tests.airflow.site import FOREVER, SECONDS, Site, document
from tests.waiting import until

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from tests.client.test_tfjob import VOLCANO as VOLCANO_IN_ML
from tf_dist.airflow import GangAdmittedSensor, JobFailed, TFJobSensor
from tf_dist.airflow.version_compat import AirflowException, AirflowSkipException, TaskDeferred
from tf_dist.cluster.api import VOLCANO_JOBS
from tf_dist.errors import InvalidJob

VOLCANO = {**VOLCANO_IN_ML, "metadata": {"name": "v"}}
BOTH = pytest.mark.parametrize("sensor", [TFJobSensor, GangAdmittedSensor])


pytestmark = pytest.mark.usefixtures("controller_leads", "nothing_is_left")


def make(sensor: Any, site: Site, **arguments: Any) -> Any:
    given = {"job_name": "a", "poke_interval": 0.1, "timeout": SECONDS, **arguments}
    return sensor(task_id="wait", config_file=site.kubeconfig, **given)


def waited(sensor: Any) -> Any:
    """The sensor's result, in the worker or through the triggerer."""
    context = Instance(uuid.uuid4().hex).context()
    try:
        return sensor.execute(context)
    except TaskDeferred as deferred:
        trigger, timeout, goes_on = deferred.trigger, deferred.timeout, getattr(sensor, deferred.method_name)
    assert timeout == timedelta(seconds=sensor.timeout)

    async def events() -> list[Any]:
        return [event async for event in trigger.run()]

    (event,) = asyncio.run(events())
    return goes_on(context, event.payload)


@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
@BOTH
def test_waits_for_job_created_later(cluster_site: Site, sensor: Any, deferrable: bool) -> None:
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(waited(make(sensor, cluster_site, deferrable=deferrable))))
    waiting.start()
    uid = cluster_site.submit(document("sleep 0.5", name="a"))["metadata"]["uid"]
    waiting.join(SECONDS)
    assert found[0]["uid"] == uid


@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
@pytest.mark.parametrize("name", ["v", "vcjob/v"])
def test_finds_volcano_job_by_name(cluster_site: Site, name: str, deferrable: bool) -> None:
    found: list[Any] = []
    sensor = make(TFJobSensor, cluster_site, job_name=name, until="suspended", deferrable=deferrable)
    waiting = threading.Thread(target=lambda: found.append(waited(sensor)))
    waiting.start()
    status = {"state": {"phase": "Aborted", "lastTransitionTime": "2026-01-01T00:00:00Z"}}
    made = cluster_site.cluster.create(VOLCANO_JOBS, "default", VOLCANO)
    cluster_site.cluster.replace(VOLCANO_JOBS, "default", "v", {**made, "status": status}, subresource="status")
    waiting.join(SECONDS)
    try:
        assert found[0]["uid"] == made["metadata"]["uid"]
    finally:
        cluster_site.cluster.delete(VOLCANO_JOBS, "default", "v")


@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
def test_rejects_ambiguous_job_name(cluster_site: Site, deferrable: bool) -> None:
    cluster_site.submit(document(FOREVER, name="v"))
    cluster_site.cluster.create(VOLCANO_JOBS, "default", VOLCANO)
    try:
        with pytest.raises(InvalidJob, match=r"two jobs named v .*write tfjob/v or vcjob/v"):
            waited(make(TFJobSensor, cluster_site, job_name="v", deferrable=deferrable))
    finally:
        cluster_site.cluster.delete(VOLCANO_JOBS, "default", "v")


@pytest.mark.parametrize("require", ["admitted", "scheduled"])
def test_gang_sensor_ends_while_job_runs(cluster_site: Site, require: str) -> None:
    cluster_site.submit(document(FOREVER, name="a"))
    assert waited(make(GangAdmittedSensor, cluster_site, deferrable=True, require=require))["name"] == "a"
    assert cluster_site.jobs()


@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
def test_failed_job_fails_or_skips_sensor(cluster_site: Site, deferrable: bool) -> None:
    cluster_site.submit(document("exit 3", name="a"))
    with pytest.raises(JobFailed, match="tfjob/a"):
        waited(make(TFJobSensor, cluster_site, deferrable=deferrable))
    with pytest.raises(AirflowSkipException):
        waited(make(TFJobSensor, cluster_site, deferrable=deferrable, soft_fail=True))


def test_finished_job_does_not_defer(cluster_site: Site) -> None:
    cluster_site.submit(document("true", name="a"))
    until(lambda: not cluster_site.pods() and "completionTime" in str(cluster_site.jobs()), SECONDS)
    instance = Instance("r")
    found = make(TFJobSensor, cluster_site, deferrable=True).execute(instance.context())
    assert (found["status"], instance.xcoms["outcome"]["kind"]) == ("Succeeded", "succeeded")


def test_wait_reason_is_logged_once(light: LightSite, capsys: pytest.CaptureFixture[str]) -> None:
    sensor = TFJobSensor(task_id="wait", job_name="a", config_file=light.kubeconfig)
    for _ in range(2):
        assert not sensor.poke(Instance("r").context())
    assert capsys.readouterr().out.count("there is no job a in namespace default") == 1


def test_require_is_validated_when_dag_is_parsed(cluster_site: Site) -> None:
    with pytest.raises(InvalidJob, match="require: 'bound' is not one of admitted, scheduled"):
        make(GangAdmittedSensor, cluster_site, require="bound")


def test_rejects_rendered_job_name_that_is_invalid(cluster_site: Site) -> None:
    task = make(TFJobSensor, cluster_site, job_name="{{ params.job }}")
    task.job_name = "pod/a"  # the rendered value
    with pytest.raises(AirflowException, match="is not a job"):
        waited(task)


@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
def test_waits_for_any_state(cluster_site: Site, deferrable: bool) -> None:
    cluster_site.submit(document("exit 3", name="a"))
    for goal in ("finished", "failed", "admitted"):
        found = waited(make(TFJobSensor, cluster_site, until=goal, deferrable=deferrable))
        assert found["name"] == "a"
    cluster_site.submit(document(FOREVER, name="b", suspend=True))
    assert waited(make(TFJobSensor, cluster_site, job_name="b", until="suspended", deferrable=deferrable))


def test_accepts_poke_interval_of_zero() -> None:
    """Airflow accepts 0, and tests of DAGs often use it."""
    assert TFJobSensor(task_id="wait", job_name="a", poke_interval=0, deferrable=True).poke_interval == 0
