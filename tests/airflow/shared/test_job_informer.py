"""The hub: one watch a kind and one driver, however many wait; nothing of it is left when the last has gone."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.light import LightSite
from tests.airflow.site import FOREVER, SECONDS, Site, document
from tests.waiting import until
from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments, open_connection
from tf_dist.airflow.jobs.task_identity import AIRFLOW_DRIVER
from tf_dist.airflow.shared.informer_registry import SharedInformerRegistry
from tf_dist.airflow.shared.job_informer import SharedJobInformer
from tf_dist.airflow.shared.job_waiter import JobWaiter, WaitOptions, take_in_thread
from tf_dist.client.inline_driver import leased_driver
from tf_dist.client.monitor import JobEvent
from tf_dist.client.wait import run_in_thread
from tf_dist.cluster.api import LEASES, TFJOBS
from tf_dist.controller.settings import JobRef
from tf_dist.controller.leases.lease import CONTROLLER_NAME, DRIVER_CONTROLLER, LeaseRef, new_lease
from tf_dist.core.api import names
from tf_dist.core.reconciler.ownership import driver_of
from tf_dist.core.steps.wait_result import WaitLimits
from tf_dist.errors import NotFound


def reserved(script: str, name: str, **policy: Any) -> dict[str, Any]:
    body = document(script, name=name, **policy)
    body["metadata"]["annotations"] = {names.DRIVER: AIRFLOW_DRIVER}
    return body


def ref(name: str) -> JobRef:
    return JobRef(TFJOBS, "default", name)


@pytest.fixture
def informer(cluster_site: Site) -> Iterator[SharedJobInformer]:
    found = SharedJobInformer(
        open_connection(ClusterArguments(config_file=cluster_site.kubeconfig), {}), "default", streams=4
    )
    threads = {thread.name for thread in threading.enumerate()}
    try:
        yield found
    finally:
        found.close()
    left = [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(("informer", "shared-informer", "log"))
    ]
    assert [name for name in left if name not in threads] == []
    for job in cluster_site.jobs():
        cluster_site.delete(job["metadata"]["name"])
    cluster_site.until_empty()


def wait(
    informer: SharedJobInformer, name: str, *, drive: bool = True, **options: Any
) -> tuple[dict[str, Any], list[str]]:
    """What comes of a job, and what was logged."""
    changed, lines = threading.Event(), list[str]()
    subscription = informer.join(ref(name), changed.set, drive=drive)
    try:
        waiter = JobWaiter(informer, subscription, WaitOptions(**options), lambda line, _="": lines.append(line))
        return run_in_thread(waiter.steps(), take_in_thread(subscription, changed, lambda: None)), lines
    finally:
        informer.leave(subscription)


def test_it_drives_what_is_reserved_and_brings_every_line(cluster_site: Site, informer: SharedJobInformer) -> None:
    cluster_site.submit(reserved("for i in 1 2 3; do echo step=$i; done", "a"))
    found, lines = wait(informer, "a")
    assert found["reached"]
    assert found["result"]["metrics"] == {"step": 3.0}
    assert [line.partition("| ")[2] for line in lines if line.startswith("worker-0")] == ["step=1", "step=2", "step=3"]


def test_a_failure_says_which_replica_and_why(cluster_site: Site, informer: SharedJobInformer) -> None:
    cluster_site.submit(reserved("echo out of luck >&2; exit 3", "a"))
    found, lines = wait(informer, "a")
    assert (found["reached"], found["exit_code"], found["replica"]) == (False, 3, "worker-0")
    assert any("out of luck" in line for line in lines)


def test_who_does_not_want_logs_gets_the_result_all_the_same(cluster_site: Site, informer: SharedJobInformer) -> None:
    cluster_site.submit(reserved("echo accuracy=0.5", "a"))
    found, lines = wait(informer, "a", get_logs=False)
    assert found["result"]["metrics"] == {"accuracy": 0.5}
    assert not any("accuracy" in line for line in lines)


def test_logs_that_are_followed_for_hours_hold_up_no_result_of_a_job_that_has_ended(cluster_site: Site) -> None:
    found = SharedJobInformer(
        open_connection(ClusterArguments(config_file=cluster_site.kubeconfig), {}), "default", streams=1
    )
    cluster_site.submit(reserved(f"echo here; {FOREVER}", "long"))
    changed, lines = threading.Event(), list[str]()
    long = found.join(ref("long"), changed.set, drive=True)
    steps = JobWaiter(found, long, WaitOptions(), lambda line, _="": lines.append(line)).steps()
    next(steps)
    try:

        def followed() -> bool:
            if changed.wait(1):
                changed.clear()
                steps.send(long.take(0))
            return any("here" in line for line in lines)

        until(followed, SECONDS)
        cluster_site.submit(reserved("echo accuracy=0.5", "short"))
        event, _ = wait(found, "short")
        assert event["result"]["metrics"] == {"accuracy": 0.5}
    finally:
        found.leave(long)
        found.close()
        for name in ("long", "short"):
            cluster_site.delete(name)
        cluster_site.until_empty()


def test_a_limit_ends_the_wait_and_not_the_job(cluster_site: Site, informer: SharedJobInformer) -> None:
    cluster_site.submit(reserved(FOREVER, "a"))
    found, _ = wait(informer, "a", limits=WaitLimits(deadline=0.0))
    assert found["outcome"]["kind"] == "deadline_exceeded"
    assert cluster_site.jobs()


def test_a_job_that_is_taken_away(cluster_site: Site, informer: SharedJobInformer) -> None:
    cluster_site.submit(reserved(FOREVER, "a"))
    changed = threading.Event()
    subscription = informer.join(ref("a"), changed.set, drive=True)
    steps = JobWaiter(informer, subscription, WaitOptions(), lambda *_: None).steps()
    until(lambda: bool(cluster_site.pods()), SECONDS)
    cluster_site.delete("a")
    found = run_in_thread(steps, take_in_thread(subscription, changed, lambda: None))
    assert (found["outcome"]["kind"], found["outcome"]["reason"]) == ("deleted", "Deleted")
    assert found["hint"].startswith("see who deletes jobs")
    informer.leave(subscription)
    with pytest.raises(NotFound):
        informer.join(ref("a"), changed.set)


def test_another_job_of_the_name_is_not_the_one(cluster_site: Site, informer: SharedJobInformer) -> None:
    cluster_site.submit(reserved(FOREVER, "a"))
    with pytest.raises(NotFound, match="another one"):
        informer.join(ref("a"), lambda: None, uid="other")


def followed() -> Counter[str]:
    """How often each kind is followed in this process."""
    return Counter(thread.name for thread in threading.enumerate() if thread.name.startswith("informer-"))


def test_many_jobs_are_one_watch_a_kind_and_one_lease(cluster_site: Site, informer: SharedJobInformer) -> None:
    subscriptions, before = [], followed()
    for name in ("a", "b", "c"):
        cluster_site.submit(reserved(FOREVER, name))
        subscriptions.append(informer.join(ref(name), lambda: None, drive=True))
    until(lambda: len(cluster_site.pods()) == 3, SECONDS)
    assert set((followed() - before).values()) == {1}
    assert len(cluster_site.leases()) == 1
    for subscription in subscriptions:
        informer.leave(subscription)


def test_who_looked_on_before_sees_with_the_driver_once_there_is_one(
    cluster_site: Site, informer: SharedJobInformer
) -> None:
    before, changed, flag = followed(), threading.Event(), cluster_site.flag("end")
    cluster_site.submit(document(f"while [ ! -e '{flag}' ]; do sleep 0.05; done", name="theirs"))
    cluster_site.submit(reserved(FOREVER, "ours"))
    looker = informer.join(ref("theirs"), changed.set)
    assert (followed() - before) == {"informer-tfjobs": 1, "informer-pods": 1}
    driven = informer.join(ref("ours"), lambda: None, drive=True)
    until(lambda: "ours-worker-0" in cluster_site.pods(), SECONDS)
    until(lambda: set((followed() - before).values()) == {1}, SECONDS)
    flag.touch()
    steps = JobWaiter(informer, looker, WaitOptions(), lambda *_: None).steps()
    assert run_in_thread(steps, take_in_thread(looker, changed, lambda: None))["reached"]
    informer.leave(looker)
    informer.leave(driven)


def test_what_others_drive_is_only_watched(cluster_site: Site, informer: SharedJobInformer) -> None:
    cluster_site.submit(document("echo accuracy=0.5", name="a"))  # the cluster's own driver takes it
    found, _ = wait(informer, "a", drive=False)
    assert found["reached"]
    assert cluster_site.leases() == []


def test_a_job_whose_driver_has_died_is_taken(cluster_site: Site, informer: SharedJobInformer) -> None:
    connection = open_connection(ClusterArguments(config_file=cluster_site.kubeconfig), {})
    assert connection.place is not None
    body = document(FOREVER, name="a")
    with leased_driver(connection.place, connection.cluster, "default") as (_, leadership):
        body["metadata"]["annotations"] = {names.DRIVER: leadership.ref}
        uid = cluster_site.submit(body)["metadata"]["uid"]
        until(lambda: bool(cluster_site.pods()), SECONDS)
        dead = leadership.ref
    connection.close()
    pods = cluster_site.pods()
    subscription = informer.join(ref("a"), lambda: None, drive=True)
    until(lambda: driver_of(cluster_site.cluster.get(TFJOBS, "default", "a")) not in ("", dead), SECONDS)
    informer.leave(subscription)
    assert [job["metadata"]["uid"] for job in cluster_site.jobs()] == [uid]
    assert cluster_site.pods() == pods  # the same ones: nothing was started again


def test_the_first_makes_a_hub_the_last_closes_it(cluster_site: Site) -> None:
    informers, made = SharedInformerRegistry(), list[SharedJobInformer]()

    def make() -> SharedJobInformer:
        made.append(
            SharedJobInformer(open_connection(ClusterArguments(config_file=cluster_site.kubeconfig), {}), "default")
        )
        return made[-1]

    first, second = informers.enter("k", make), informers.enter("k", make)
    assert first is second
    informers.leave("k")
    assert len(informers) == 1
    informers.leave("k")
    assert (len(informers), len(made)) == (0, 1)


def test_a_hub_that_cannot_be_made_is_tried_again_by_the_next(cluster_site: Site, tmp_path: Path) -> None:
    informers, good = SharedInformerRegistry(), ClusterArguments(config_file=cluster_site.kubeconfig)
    bad = replace(good, config_file=str(tmp_path / "missing"))
    with pytest.raises(Exception, match="there is no kubeconfig"):
        informers.enter("k", lambda: SharedJobInformer(open_connection(bad, {}), "default"))
    assert len(informers) == 0
    informers.enter("k", lambda: SharedJobInformer(open_connection(good, {}), "default"))
    informers.leave("k")


def test_the_clean_up_after_a_job_that_others_drive_is_not_waited_for(light: LightSite) -> None:
    light.submit("a")
    light.status("a", phase="Completed")
    found = SharedJobInformer(open_connection(ClusterArguments(config_file=light.kubeconfig), {}), "default")
    subscription, asked = found.join(ref("a"), lambda: None, drive=False), list[float | None]()

    def take(seconds: float | None) -> list[JobEvent]:
        asked.append(seconds)
        assert seconds == 0, "the job is over, and nothing more is to come"
        return subscription.take(0)

    try:
        event = run_in_thread(JobWaiter(found, subscription, WaitOptions(), lambda *_: None).steps(), take)
    finally:
        found.leave(subscription)
        found.close()
    assert event["reached"]
    assert asked


def test_a_job_that_nothing_drives_says_so_once(light: LightSite) -> None:
    controller = LeaseRef(names.SYSTEM_NAMESPACE, CONTROLLER_NAME)
    lease = new_lease(controller, "", 15.0, 0.0, {names.DRIVER: DRIVER_CONTROLLER})
    light.cluster.create(LEASES, controller.namespace, lease)
    light.submit("a")
    found = SharedJobInformer(open_connection(ClusterArguments(config_file=light.kubeconfig), {}), "default")
    try:
        limits = WaitLimits(deadline=time.time() + 1.0)
        _, lines = wait(found, "a", drive=False, driver_check=0.0, limits=limits)
    finally:
        found.close()
    said = [line for line in lines if "nothing drives this job" in line]
    assert len(said) == 1
    assert "no controller is alive in tf-dist-system" in said[0]
    assert "tf-dist install" in said[0]
