"""Failure messages are reported once, and start with the exception."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

import pytest

from tests.airflow.instance import Instance, MakeOperator, deferred, event_of
from tests.airflow.site import SECONDS, Site, document
from tf_dist.errors import ImagePullFailed, JobFailed, TFDistError

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from tf_dist.airflow import TFJobSensor
from tf_dist.airflow.jobs.event_payload import exception_first
from tf_dist.airflow.version_compat import TaskDeferred

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nValueError: odd\nshape'
SCRIPT = "printf '%s\\n' '" + TRACEBACK + "'; exit 1"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (f"worker-0 exited with code 1: {TRACEBACK}", "worker-0 exited with code 1: ValueError: odd\nshape"),
        (f"a: {TRACEBACK}\n\nDuring handling:\n\n{TRACEBACK}", "a: ValueError: odd\nshape"),
        ("a: Traceback (most recent call last):\n  File", "a: Traceback (most recent call last):\n  File"),
        ("worker-0 exited with code 1: two\nlines", "worker-0 exited with code 1: two\nlines"),
    ],
)
def test_message_starts_with_exception(message: str, expected: str) -> None:
    assert exception_first(message) == expected


PATHS = ("operator", "deferred operator", "sensor", "deferred sensor")


def run(task: Any, instance: Instance) -> None:
    """Run the task in the worker, or resume it after its trigger."""
    try:
        task.execute(instance.context())
    except TaskDeferred as request:
        task.execute_complete(instance.context(), event_of(request.trigger))  # type: ignore[arg-type]


def ended(path: str, body: dict[str, Any], operator: MakeOperator, site: Site) -> tuple[type[Exception], str, str]:
    """The error of a task with a failing job, its text without the job's name, and the message in the XCom."""
    instance = Instance(uuid.uuid4().hex)
    task: Any = operator(body)
    if path.endswith("sensor"):
        site.submit(body)
        task = TFJobSensor(
            task_id="wait", job_name="job", config_file=site.kubeconfig, poke_interval=0.1, timeout=SECONDS
        )
    task.deferrable = path.startswith("deferred")
    with pytest.raises(TFDistError) as caught:
        run(task, instance)
    site.delete("job")
    site.until_empty()
    return type(caught.value), str(caught.value).partition(": ")[2], str(instance.xcoms["outcome"]["message"])


@pytest.mark.usefixtures("controller_leads")
@pytest.mark.parametrize("case", ["traceback", "image"])
def test_failure_is_same_for_operator_sensor_and_deferred(
    operator: MakeOperator, cluster_site: Site, case: str
) -> None:
    body = document(SCRIPT)
    if case == "image":
        body["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailure"
        del body["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"]
    found = {path: ended(path, body, operator, cluster_site) for path in PATHS}
    assert found == dict.fromkeys(PATHS, found["operator"])
    kind, text, _ = found["operator"]
    assert kind is (JobFailed if case == "traceback" else ImagePullFailed)
    assert "Traceback" not in text


@pytest.mark.usefixtures("nothing_is_left")
def test_logs_traceback_once_and_failures_as_errors(
    operator: MakeOperator, instance: Instance, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    task = operator(document(SCRIPT))
    trigger = deferred(task, instance)

    async def events() -> list[object]:
        return [event.payload async for event in trigger.run()]

    with caplog.at_level(logging.INFO):
        (event,) = asyncio.run(events())
    log = caplog.text + "".join(capfd.readouterr())
    assert log.count("Traceback (most recent") == 1
    errors = [line for line in log.splitlines() if "error" in line.lower() and "tf-dist " in line]
    assert any("worker-0 is Failed" in line for line in errors)
    assert any("exited with code 1: ValueError: odd" in line for line in errors)
    with pytest.raises(JobFailed, match=r"^tfjob/\S+: worker-0 exited with code 1: ValueError: odd") as caught:
        task.execute_complete(instance.context(), event)  # type: ignore[arg-type]
    assert "Traceback" not in str(caught.value)
