"""Faults in a complete Airflow deployment. After each fault, exactly the expected pods run."""

from __future__ import annotations

import os
import signal

import pytest

from tests.airflow.stack import Stack, Task, eventually

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

pytestmark = [pytest.mark.airflow_stack, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def tasks(stack: Stack) -> dict[str, Task]:
    """The tasks of all tests, started together, because each task mostly waits for processes."""
    begun = {name: stack.run("deferred", name) for name in ("whole", "marked", "cleared")}
    begun |= {name: stack.run("here", name) for name in ("killed", "asked", "lost", "begun-again")}
    begun |= {"late": stack.run("late", "late"), "faulty": stack.run("faulty", "faulty")}
    (asset,) = stack.get("/assets?name_pattern=data")["assets"]
    stack.post("/assets/events", {"asset_id": asset["id"], "extra": {}})
    return begun


def gone(task: Task) -> bool:
    return not task.job() and not task.pods()


def test_deferred_task_shows_log_links_and_result(stack: Stack, tasks: dict[str, Task]) -> None:
    task = tasks["whole"]
    task.until("deferred")
    eventually(lambda: "worker-0 | up" in task.log())
    name = task.xcom("job_name")
    assert task.links() == {"Job": f"http://jobs/default/{name}", "TensorBoard": f"http://boards/{name}"}
    assert f"/{task.run_id}'" in str(task.instance()["rendered_fields"]["job"])
    stack.let_end(task.run_id)
    task.until("success")
    assert task.xcom()["metrics"] == {"accuracy": 0.5}
    assert task.links()["Checkpoint"] == "https://console.cloud.google.com/storage/browser/models/7"
    log = task.log()
    assert "worker-0 | accuracy=0.5" in log
    assert "is Succeeded" in log
    eventually(lambda: gone(task))


def until_followed(task: Task) -> str:
    """Wait until the task's trigger shows the log of its pod, and return the job's uid.

    A running pod is not enough: the trigger of another task may lead the namespace.
    """
    uid = task.until_running()
    eventually(lambda: "worker-0 | up" in task.log())
    return uid


def test_deferred_task_marked_failed_deletes_job(tasks: dict[str, Task]) -> None:
    task = tasks["marked"]
    task.until("deferred")
    until_followed(task)
    task.set_state("failed")
    eventually(lambda: gone(task))


def test_cleared_deferred_task_adopts_job(stack: Stack, tasks: dict[str, Task]) -> None:
    task = tasks["cleared"]
    task.until("deferred")
    uid, number = until_followed(task), task.try_number
    task.clear()
    eventually(lambda: task.try_number == number + 1 and task.state == "deferred")
    eventually(lambda: "its job" in task.log(number))  # the first trigger noticed and kept the job
    assert task.until_running() == uid
    stack.let_end(task.run_id)
    task.until("success")
    assert task.xcom()["uid"] == uid, task.logs()
    eventually(lambda: gone(task))


def test_retry_after_trigger_error_adopts_job(stack: Stack, tasks: dict[str, Task]) -> None:
    task = tasks["faulty"]
    uid = task.until_running()
    # On a busy machine, Airflow may lose a try between two waits and start the next, so the number may exceed 2.
    eventually(lambda: task.try_number >= 2 and task.state == "deferred")
    stack.let_end(task.run_id)
    task.until("success")
    assert task.xcom()["uid"] == uid, task.logs()
    eventually(lambda: gone(task))


def test_deferred_task_fails_after_execution_timeout(tasks: dict[str, Task]) -> None:
    task = tasks["late"]
    task.until("failed")
    assert "it took too long" in task.log()
    eventually(lambda: gone(task))


def test_task_in_worker_marked_failed_deletes_job(tasks: dict[str, Task]) -> None:
    task = tasks["killed"]
    task.until_running()
    eventually(lambda: "worker-0 | up" in task.log())  # the task waits; Airflow leaves it five seconds to stop
    task.set_state("failed")
    eventually(lambda: gone(task))


def test_task_in_worker_continues_after_sigterm(stack: Stack, tasks: dict[str, Task]) -> None:
    task = tasks["asked"]
    uid = task.until_running()
    eventually(lambda: "worker-0 | up" in task.log())
    os.kill(task.process(), signal.SIGTERM)
    eventually(lambda: "asked to stop" in task.log())
    stack.let_end("asked")
    task.until("success")
    assert task.xcom()["uid"] == uid, task.logs()
    eventually(lambda: gone(task))


def test_retry_after_killed_worker_adopts_job(stack: Stack, tasks: dict[str, Task]) -> None:
    task = tasks["lost"]
    uid = task.until_running()
    os.kill(task.process(), signal.SIGKILL)
    eventually(lambda: task.try_number == 2 and "adopted" in task.log(2))
    stack.let_end("lost")
    task.until("success")
    assert task.xcom()["uid"] == uid, task.logs()
    eventually(lambda: gone(task))


def test_cleared_task_in_worker_adopts_job(stack: Stack, tasks: dict[str, Task]) -> None:
    task = tasks["begun-again"]
    task.until("running")
    uid = task.until_running()
    task.clear()
    eventually(lambda: task.try_number == 2 and task.state == "running")
    assert task.until_running() == uid
    stack.let_end(task.run_id)
    task.until("success")
    assert task.xcom()["uid"] == uid, task.logs()
    eventually(lambda: gone(task))


def test_task_marked_failed_after_clear_deletes_job(stack: Stack) -> None:
    """No process works for the task then, but its former trigger still runs and notices the state."""
    task = stack.run("deferred", "cleared-and-marked")
    task.until("deferred")
    until_followed(task)
    with stack.scheduler_away():
        task.clear()
        task.set_state("failed")
        eventually(lambda: gone(task))


def test_run_started_by_asset_succeeds(stack: Stack, tasks: dict[str, Task]) -> None:
    eventually(lambda: bool(stack.get("/dags/on_data/dagRuns")["dag_runs"]))
    task = Task(stack, "on_data", stack.get("/dags/on_data/dagRuns")["dag_runs"][0]["dag_run_id"])
    stack.let_end(task.run_id)
    task.until("success")
    eventually(lambda: gone(task))


def test_no_objects_remain(stack: Stack) -> None:
    eventually(stack.site.is_empty)
