"""The next task deletes jobs of tasks that a user ended while no process worked for them, and no other jobs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.airflow.instance import Instance, MakeOperator, deferred
from tests.airflow.site import FOREVER, SECONDS, Site, document
from tests.waiting import until

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def left(operator: MakeOperator, state: str | None, **arguments: Any) -> Instance:
    """A deferred task that is in this state now, without its trigger having been notified."""
    instance = Instance("left")
    deferred(operator(document(FOREVER, name="left"), **arguments), instance)
    instance.state = state
    return instance


def goes_on_after_the_next_task(site: Site, operator: MakeOperator, instance: Instance) -> bool:
    operator(document(name="next")).execute(Instance("next", others=[instance]).context())
    until(lambda: not any(name.startswith("next") for name in site.names()), SECONDS)
    return bool(site.names())


@pytest.mark.parametrize("state", ["failed", "success", "running", "deferred", "queued", "up_for_retry", None])
def test_job_is_deleted_if_task_is_over(cluster_site: Site, operator: MakeOperator, state: str | None) -> None:
    gone = state in ("failed", "success")
    assert goes_on_after_the_next_task(cluster_site, operator, left(operator, state)) is not gone


def test_job_with_keep_job_is_not_deleted(cluster_site: Site, operator: MakeOperator) -> None:
    instance = left(operator, "failed", on_kill_action="keep_job")
    assert goes_on_after_the_next_task(cluster_site, operator, instance)


def test_submitted_job_survives_end_of_task(cluster_site: Site, operator: MakeOperator) -> None:
    instance = Instance("left")
    operator(document(FOREVER, name="left"), wait_for_completion=False, driver="controller").execute(instance.context())
    instance.state = "success"
    assert goes_on_after_the_next_task(cluster_site, operator, instance)


def test_jobs_of_other_airflow_are_not_deleted(
    cluster_site: Site, operator: MakeOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = left(operator, "failed")
    monkeypatch.setenv("AIRFLOW__TF_DIST__DEPLOYMENT", "another")
    assert goes_on_after_the_next_task(cluster_site, operator, instance)


class Broken(Instance):
    """A task instance that cannot reach the database."""

    def get_task_states(self, **_: Any) -> dict[str, Any]:
        raise RuntimeError("no answer")


def test_unavailable_database_does_not_fail_task(cluster_site: Site, operator: MakeOperator) -> None:
    left(operator, "failed")
    result = operator(document("echo accuracy=0.5", name="next")).execute(Broken("next").context())
    assert result["metrics"] == {"accuracy": 0.5}
    assert len(cluster_site.names()) == 1
