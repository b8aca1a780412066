"""The cases of all interfaces in a complete Airflow: each job ends with the same outcome as in other interfaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.airflow.stack import OVER, Stack, Task, eventually
from tests.faces.cases import CASES, STACK
from tf_dist.cluster.api import TFJOBS, Object

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

pytestmark = [pytest.mark.airflow_stack, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def tasks(stack: Stack) -> Iterator[dict[str, Task]]:
    """The tasks of a run with all cases."""
    stack.run("cases", "all")
    yield {name: Task(stack, "cases", "all", name) for name in STACK}
    eventually(stack.site.is_empty)


def running(stack: Stack, name: str) -> Object | None:
    """The job of a case, once it runs."""
    for one in stack.site.cluster.list(TFJOBS, "default", labels=f"task_id={name}").items:
        if ((one.get("status") or {}).get("tfDist") or {}).get("phase") == "Running":
            return one
    return None


@pytest.mark.parametrize("name", STACK)
def test_job_outcome_matches_other_interfaces(stack: Stack, tasks: dict[str, Task], name: str) -> None:
    case, task = CASES[name], tasks[name]
    if case.meanwhile is not None:
        eventually(lambda: running(stack, name) is not None)
        job = running(stack, name)
        assert job is not None
        case.meanwhile(stack.site.cluster, job)
    eventually(lambda: task.state in OVER)
    outcome = task.xcom("outcome")
    assert (task.state == "success") is (outcome["kind"] == "succeeded"), task.log()
    if case.refused:
        assert outcome["kind"] == "invalid"
        assert [part for part in case.refused if part not in outcome["message"]] == []
        return
    assert {field: outcome[field] for field in case.ends} == case.ends, task.log()
