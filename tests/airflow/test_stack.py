"""A whole Airflow, and what goes wrong in one. After each fault exactly the pods live that should."""

from __future__ import annotations

import os
import signal

import pytest

from tests.airflow.stack import Stack, Task, eventually

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

pytestmark = [pytest.mark.airflow_stack, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def tasks(stack: Stack) -> dict[str, Task]:
    """The tasks of all tests, begun together: most of their time they wait for each other's processes."""
    begun = {name: stack.run("deferred", name) for name in ("whole", "marked", "cleared")}
    begun |= {name: stack.run("here", name) for name in ("killed", "asked", "lost", "begun-again")}
    begun |= {"late": stack.run("late", "late"), "faulty": stack.run("faulty", "faulty")}
    (asset,) = stack.get("/assets?name_pattern=data")["assets"]
    stack.post("/assets/events", {"asset_id": asset["id"], "extra": {}})
    return begun


def gone(task: Task) -> bool:
    return not task.job() and not task.pods()


def test_a_deferred_task_shows_its_log_and_its_result(stack: Stack, tasks: dict[str, Task]) -> None:
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
    """Wait until its trigger shows the log of its pod; the job's uid.

    That the pod runs does not say that: the trigger of another task may lead the namespace.
    """
    uid = task.until_running()
    eventually(lambda: "worker-0 | up" in task.log())
    return uid


def test_a_deferred_task_that_is_marked_failed(tasks: dict[str, Task]) -> None:
    task = tasks["marked"]
    task.until("deferred")
    until_followed(task)
    task.set_state("failed")
    eventually(lambda: gone(task))


def test_a_deferred_task_that_is_cleared(stack: Stack, tasks: dict[str, Task]) -> None:
    task = tasks["cleared"]
    task.until("deferred")
    uid, number = until_followed(task), task.try_number
    task.clear()
    eventually(lambda: task.try_number == number + 1 and task.state == "deferred")
    eventually(lambda: "its job" in task.log(number))  # the first try's trigger was told, and has kept its hands off
    assert task.until_running() == uid
    stack.let_end(task.run_id)
    task.until("success")
    assert task.xcom()["uid"] == uid, task.logs()
    eventually(lambda: gone(task))


def test_a_trigger_that_raises(stack: Stack, tasks: dict[str, Task]) -> None:
    task = tasks["faulty"]
    uid = task.until_running()
    # Above 2 on a busy machine: Airflow may lose a try of its own accord between two waits, and makes the next one.
    eventually(lambda: task.try_number >= 2 and task.state == "deferred")
    stack.let_end(task.run_id)
    task.until("success")
    assert task.xcom()["uid"] == uid, task.logs()
    eventually(lambda: gone(task))


def test_the_time_of_a_deferred_task_runs_out(tasks: dict[str, Task]) -> None:
    task = tasks["late"]
    task.until("failed")
    assert "it took too long" in task.log()
    eventually(lambda: gone(task))


def test_a_task_in_the_worker_that_is_marked_failed(tasks: dict[str, Task]) -> None:
    task = tasks["killed"]
    task.until_running()
    eventually(lambda: "worker-0 | up" in task.log())  # it waits: Airflow gives it five seconds from its end on
    task.set_state("failed")
    eventually(lambda: gone(task))


def test_a_worker_that_is_asked_to_go_goes_on(stack: Stack, tasks: dict[str, Task]) -> None:
    task = tasks["asked"]
    uid = task.until_running()
    eventually(lambda: "worker-0 | up" in task.log())
    os.kill(task.process(), signal.SIGTERM)
    eventually(lambda: "asked to stop" in task.log())
    stack.let_end("asked")
    task.until("success")
    assert task.xcom()["uid"] == uid, task.logs()
    eventually(lambda: gone(task))


def test_a_worker_that_is_killed(stack: Stack, tasks: dict[str, Task]) -> None:
    task = tasks["lost"]
    uid = task.until_running()
    os.kill(task.process(), signal.SIGKILL)
    eventually(lambda: task.try_number == 2 and "adopted" in task.log(2))
    stack.let_end("lost")
    task.until("success")
    assert task.xcom()["uid"] == uid, task.logs()
    eventually(lambda: gone(task))


def test_a_task_in_the_worker_that_is_cleared(stack: Stack, tasks: dict[str, Task]) -> None:
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


def test_a_task_that_is_marked_failed_after_it_was_cleared(stack: Stack) -> None:
    """No process works for it then: what was its trigger is still there to take notice."""
    task = stack.run("deferred", "cleared-and-marked")
    task.until("deferred")
    until_followed(task)
    with stack.scheduler_away():
        task.clear()
        task.set_state("failed")
        eventually(lambda: gone(task))


def test_a_run_that_an_asset_began_has_no_date(stack: Stack, tasks: dict[str, Task]) -> None:
    eventually(lambda: bool(stack.get("/dags/on_data/dagRuns")["dag_runs"]))
    task = Task(stack, "on_data", stack.get("/dags/on_data/dagRuns")["dag_runs"][0]["dag_run_id"])
    stack.let_end(task.run_id)
    task.until("success")
    eventually(lambda: gone(task))


def test_nothing_is_left(stack: Stack) -> None:
    eventually(stack.site.is_empty)
