"""What is said of a failure: once, with what was raised in front."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.airflow.instance import Instance, MakeOperator, deferred
from tests.airflow.site import document
from tf_dist.errors import JobFailed

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from tf_dist.airflow.jobs.event_payload import exception_first

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
def test_puts_the_exception_first(message: str, expected: str) -> None:
    assert exception_first(message) == expected


@pytest.mark.usefixtures("nothing_is_left")
def test_logs_a_traceback_once_and_failures_as_errors(
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
