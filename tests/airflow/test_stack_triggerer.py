"""A deferred task and its job continue when the triggerer is killed, terminated or stopped."""

from __future__ import annotations

import signal

import pytest

from tests.airflow.site import Site
from tests.airflow.stack import Stack, eventually
from tf_dist.cluster.api import LEASES, TFJOBS
from tf_dist.cluster.lease import leader_lease
from tf_dist.errors import NotFound

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

pytestmark = [pytest.mark.airflow_stack, pytest.mark.timeout(1200)]


def test_deferred_task_survives_loss_of_triggerer(stack: Stack) -> None:
    site, task = stack.site, stack.run("deferred", "survivor")
    task.until("deferred")
    uid = task.until_running()

    killed = leader(site)
    stack.end("triggerer", signal.SIGKILL)
    stack.launch("triggerer")
    eventually(lambda: leader(site) not in ("", killed))
    assert task.until_running() == uid

    stack.end("triggerer", signal.SIGTERM)
    assert leader(site) == ""
    assert task.until_running() == uid
    stack.launch("triggerer")
    eventually(lambda: leader(site) != "")

    first = leader(site)
    stack.signal("triggerer", signal.SIGSTOP)
    stack.second_triggerer()
    eventually(lambda: leader(site) not in ("", first))
    stack.signal("triggerer", signal.SIGCONT)

    stack.let_end(task.run_id)
    task.until("success")
    assert (task.xcom()["uid"], task.try_number) == (uid, 1)
    eventually(site.is_empty)
    stack.end("second", signal.SIGTERM)


def leader(site: Site) -> str:
    """The process that leads the namespace, or "" if it has no leader."""
    try:
        lease = site.cluster.get(LEASES, *leader_lease(TFJOBS, "default"))
    except NotFound:
        return ""
    return str(lease["spec"]["holderIdentity"])
