"""A whole Airflow whose triggerer is killed, asked to go, or sleeps: a deferred task's job and its wait go on."""

from __future__ import annotations

import signal

import pytest

from tests.airflow.site import Site
from tests.airflow.stack import Stack, eventually
from tf_dist.cluster.api import LEASES
from tf_dist.core.reconciler.ownership import driver_of

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

pytestmark = [pytest.mark.airflow_stack, pytest.mark.timeout(1200)]


def test_a_triggerer_that_is_killed_or_asked_to_go_or_sleeps(stack: Stack) -> None:
    site, task = stack.site, stack.run("deferred", "survivor")
    task.until("deferred")
    uid = task.until_running()

    stack.end("triggerer", signal.SIGKILL)
    stack.launch("triggerer")
    _until_driven(site, uid)
    assert task.until_running() == uid

    stack.end("triggerer", signal.SIGTERM)
    assert task.until_running() == uid
    stack.launch("triggerer")
    _until_driven(site, uid)

    first = driver(site, uid)
    stack.signal("triggerer", signal.SIGSTOP)
    stack.second_triggerer()
    eventually(lambda: driver(site, uid) != first)
    stack.signal("triggerer", signal.SIGCONT)

    stack.let_end(task.run_id)
    task.until("success")
    assert (task.xcom()["uid"], task.try_number) == (uid, 1)
    eventually(site.is_empty)
    stack.end("second", signal.SIGTERM)


def driver(site: Site, uid: str) -> str:
    """Who drives a job; "" if it is gone."""
    return next((driver_of(job) for job in site.jobs() if job["metadata"]["uid"] == uid), "")


def _until_driven(site: Site, uid: str) -> None:
    """Its driver is one that lives: the Lease is there, and was not taken away from a dead one."""

    def driven() -> bool:
        leases = {f"default/{one['metadata']['name']}": one for one in site.cluster.list(LEASES, "default").items}
        return bool((leases.get(driver(site, uid)) or {}).get("spec", {}).get("holderIdentity"))

    before = driver(site, uid)
    eventually(lambda: driver(site, uid) != before and driven())
