"""The driver of a hub takes the jobs that a task waits for and that are free, and no others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.airflow.light import LightSite
from tests.waiting import until
from tf_dist.airflow.jobs.task_identity import AIRFLOW_DRIVER
from tf_dist.airflow.shared.job_store import LeasedController
from tf_dist.airflow.shared.subscription import Subscription
from tf_dist.cluster.api import LEASES, TFJOBS
from tf_dist.cluster.client import client_config
from tf_dist.controller.settings import JobRef
from tf_dist.controller.leases import lease
from tf_dist.core.api import names
from tf_dist.core.reconciler.ownership import driver_of

SECONDS = 60.0


class Bench:
    """A seat, and the tickets of those who wait."""

    def __init__(self, light: LightSite) -> None:
        self.light = light
        self.subscriptions: dict[JobRef, tuple[Subscription, ...]] = {}
        self.on_synced = threading.Event()
        place = client_config.load_config(light.kubeconfig, None)
        self.client = place.cluster()
        self.controller = LeasedController(
            place,
            self.client,
            "default",
            on_change=lambda _: None,
            subscriptions=lambda ref: self.subscriptions.get(ref, ()),
            on_synced=self.on_synced.set,
            on_error=lambda: None,
        )

    def wait_for(self, name: str, *, driven: bool = True, uid: str = "") -> None:
        """A task begins to wait for a job."""
        ref = JobRef(TFJOBS, "default", name)
        stored = self.light.job(name)
        if uid:
            stored = {**stored, "metadata": {**stored["metadata"], "uid": uid}}
        self.subscriptions[ref] = (Subscription(ref, stored, lambda: None, lambda: None, driven=driven),)
        self.controller.enqueue(ref)

    def takes(self, name: str) -> bool:
        return self.controller.drives(self.light.job(name))

    def close(self) -> None:
        self.controller.close()
        self.client.close()


@pytest.fixture
def bench(light: LightSite) -> Iterator[Bench]:
    found = Bench(light)
    try:
        yield found
    finally:
        found.close()


def considered(bench: Bench) -> None:
    """What was to be considered before this has been: jobs are considered in their order."""
    bench.light.submit("last", **{names.DRIVER: AIRFLOW_DRIVER})
    bench.wait_for("last")
    until(lambda: bench.takes("last"), SECONDS)


@pytest.mark.parametrize("driver", [AIRFLOW_DRIVER, ""])
def test_a_job_that_is_free_is_taken(bench: Bench, driver: str) -> None:
    bench.light.submit("a", **({names.DRIVER: driver} if driver else {}))
    bench.wait_for("a")
    until(lambda: bench.takes("a"), SECONDS)
    assert driver_of(bench.light.job("a")).startswith("default/tf-dist-")


def test_one_that_has_a_memory_is_taken_there(bench: Bench) -> None:
    bench.light.submit("a")
    bench.light.status("a", phase="Pending", driver=AIRFLOW_DRIVER)
    bench.wait_for("a")
    until(lambda: bench.takes("a"), SECONDS)
    assert bench.light.job("a")["status"]["tfDist"]["phase"] == "Pending"


@pytest.mark.parametrize("driver", ["embedded", "another"])
def test_one_of_a_driver_that_cannot_die_is_not(bench: Bench, driver: str) -> None:
    bench.light.submit("a", **{names.DRIVER: driver})
    bench.wait_for("a")
    considered(bench)
    assert driver_of(bench.light.job("a")) == driver


def test_one_of_a_driver_that_lives_is_not(bench: Bench) -> None:
    body = lease.new_lease(lease.LeaseRef("default", "alive"), "another", 600, 0, {names.DRIVER: lease.DRIVER_INLINE})
    bench.light.cluster.create(LEASES, "default", body)
    bench.light.submit("a", **{names.DRIVER: "default/alive"})
    bench.wait_for("a")
    considered(bench)
    assert driver_of(bench.light.job("a")) == "default/alive"


def test_one_whose_driver_is_dead_by_then_is_looked_at_again_and_taken(bench: Bench) -> None:
    dead = lease.broken_lease(
        {"metadata": {"name": "dead", "labels": {names.DRIVER: lease.DRIVER_CONTROLLER}}}, "another"
    )
    bench.light.submit("a", **{names.DRIVER: "default/dead"})
    bench.wait_for("a")
    considered(bench)
    bench.light.cluster.create(LEASES, "default", dead)
    until(lambda: bench.takes("a"), SECONDS)


def no_longer(bench: Bench, what: str) -> dict[str, Any]:
    """A job that is not to be taken, and how it is waited for."""
    if what == "managed elsewhere":
        patch = {"spec": {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}}
        bench.light.cluster.patch(TFJOBS, "default", "a", patch)
    if what == "over":
        bench.light.status("a", phase="Completed")
    if what == "of a newer release":
        bench.light.status("a", phase="Pending", version=99)
    return {"another by now": {"uid": "other"}, "only looked at": {"driven": False}}.get(what, {})


@pytest.mark.parametrize(
    "what", ["another by now", "only looked at", "managed elsewhere", "over", "of a newer release"]
)
def test_what_is_not_ours_to_drive_is_left_as_it_is(bench: Bench, what: str) -> None:
    bench.light.submit("a", **{names.DRIVER: AIRFLOW_DRIVER})
    how = no_longer(bench, what)
    bench.wait_for("a", **how)
    considered(bench)
    assert driver_of(bench.light.job("a")) == AIRFLOW_DRIVER


def test_it_goes_with_its_lease(light: LightSite) -> None:
    bench = Bench(light)
    light.submit("a", **{names.DRIVER: AIRFLOW_DRIVER})
    bench.wait_for("a")
    until(lambda: bench.takes("a"), SECONDS)
    assert len(light.leases()) == 1
    bench.close()
    assert light.leases() == []
    assert "shared-informer-claims" not in {thread.name for thread in threading.enumerate()}
