"""Shared informers use one watch for each kind and one controller, and leave nothing when the last task leaves."""

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
from tests.leaderless import controller, held_lease
from tests.waiting import until
from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments, open_connection
from tf_dist.airflow.informers.informer_registry import SharedInformerRegistry
from tf_dist.airflow.informers.job_informer import SharedJobInformer
from tf_dist.airflow.jobs.job_waiter import JobWaiter, WaitOptions, take_in_thread
from tf_dist.client.monitor import JobEvent
from tf_dist.client.wait import run_in_thread
from tf_dist.cluster.api import PODS, TFJOBS
from tf_dist.controller.settings import JobRef
from tf_dist.core.pipeline.session import task_policy
from tf_dist.core.pipeline.wait_result import WaitLimits
from tf_dist.errors import NotFound


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
    """Wait for a job, and return its event and the log lines."""
    changed, lines = threading.Event(), list[str]()
    subscription = informer.join(ref(name), changed.set, drive=drive)
    try:
        waiter = JobWaiter(informer, subscription, WaitOptions(**options), lambda line, _="": lines.append(line))
        return run_in_thread(waiter.steps(), take_in_thread(subscription, changed, lambda: None)), lines
    finally:
        informer.leave(subscription)


def test_leads_namespace_and_logs_every_line(cluster_site: Site, informer: SharedJobInformer) -> None:
    cluster_site.submit(document("for i in 1 2 3; do echo step=$i; done", name="a"))
    found, lines = wait(informer, "a")
    assert found["reached"]
    assert found["result"]["metrics"] == {"step": 3.0}
    assert [line.partition("| ")[2] for line in lines if line.startswith("worker-0")] == ["step=1", "step=2", "step=3"]


def test_result_is_available_without_logs(cluster_site: Site, informer: SharedJobInformer) -> None:
    cluster_site.submit(document("echo accuracy=0.5", name="a"))
    found, lines = wait(informer, "a", get_logs=False)
    assert found["result"]["metrics"] == {"accuracy": 0.5}
    assert not any("accuracy" in line for line in lines)


def test_result_does_not_wait_for_followed_logs_of_other_jobs(cluster_site: Site) -> None:
    found = SharedJobInformer(
        open_connection(ClusterArguments(config_file=cluster_site.kubeconfig), {}), "default", streams=1
    )
    cluster_site.submit(document(f"echo here; {FOREVER}", name="long"))
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
        cluster_site.submit(document("echo accuracy=0.5", name="short"))
        event, _ = wait(found, "short")
        assert event["result"]["metrics"] == {"accuracy": 0.5}
    finally:
        found.leave(long)
        found.close()
        for name in ("long", "short"):
            cluster_site.delete(name)
        cluster_site.until_empty()


def test_deadline_ends_wait_but_not_job(cluster_site: Site, informer: SharedJobInformer) -> None:
    cluster_site.submit(document(FOREVER, name="a"))
    found, _ = wait(informer, "a", policy=task_policy(limits=WaitLimits(deadline=0.0)))
    assert found["outcome"]["kind"] == "deadline_exceeded"
    assert cluster_site.jobs()


def test_reports_deleted_job(cluster_site: Site, informer: SharedJobInformer) -> None:
    cluster_site.submit(document(FOREVER, name="a"))
    changed = threading.Event()
    subscription = informer.join(ref("a"), changed.set, drive=True)
    steps = JobWaiter(informer, subscription, WaitOptions(), lambda *_: None).steps()
    until(lambda: bool(cluster_site.pods()), SECONDS)
    cluster_site.delete("a")
    found = run_in_thread(steps, take_in_thread(subscription, changed, lambda: None))
    assert (found["outcome"]["kind"], found["outcome"]["reason"]) == ("deleted", "Deleted")
    assert found["hint"].startswith("find out who deletes jobs")
    informer.leave(subscription)
    with pytest.raises(NotFound):
        informer.join(ref("a"), changed.set)


def followed() -> Counter[str]:
    """The number of informers of each kind in this process."""
    return Counter(thread.name for thread in threading.enumerate() if thread.name.startswith("informer-"))


def test_many_jobs_share_one_watch_per_kind_and_leases(cluster_site: Site, informer: SharedJobInformer) -> None:
    subscriptions, before = [], followed()
    for name in ("a", "b", "c"):
        cluster_site.submit(document(FOREVER, name=name))
        subscriptions.append(informer.join(ref(name), lambda: None, drive=True))
    until(lambda: len(cluster_site.pods()) == 3, SECONDS)
    assert set((followed() - before).values()) == {1}
    until(lambda: cluster_site.leases() == ["tf-dist-controller", "tf-dist-controller-volcano"], SECONDS)
    for subscription in subscriptions:
        informer.leave(subscription)


def test_existing_subscription_switches_to_informers_of_new_controller(
    cluster_site: Site, informer: SharedJobInformer
) -> None:
    before, changed, flag = followed(), threading.Event(), cluster_site.flag("end")
    cluster_site.submit(document(f"while [ ! -e '{flag}' ]; do sleep 0.05; done", name="theirs"))
    cluster_site.submit(document(FOREVER, name="ours"))
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


def test_does_not_lead_when_cluster_has_leader(cluster_site: Site, informer: SharedJobInformer) -> None:
    with controller(cluster_site.cluster) as leadership:
        until(lambda: bool(leadership.kinds()), SECONDS)
        cluster_site.submit(document("echo accuracy=0.5", name="a"))
        found, _ = wait(informer, "a")
        assert found["reached"]
        assert not informer.leads(TFJOBS)
        assert cluster_site.leases() == []


def test_leader_runs_all_jobs_of_namespace(cluster_site: Site, informer: SharedJobInformer) -> None:
    cluster_site.submit(document(FOREVER, name="theirs"))
    cluster_site.submit(document(FOREVER, name="ours"))
    subscription = informer.join(ref("ours"), lambda: None, drive=True)
    until(lambda: {"theirs-worker-0", "ours-worker-0"} <= {*cluster_site.pods()}, SECONDS)
    informer.leave(subscription)


class Looker:
    """Polls a job, and records if it disappears or becomes older."""

    def __init__(self, informer: SharedJobInformer, name: str, *, drive: bool) -> None:
        self.lines, self.gone, self.older = list[str](), False, False
        self._informer, self._changed, self._end = informer, threading.Event(), threading.Event()
        self._subscription = informer.join(ref(name), self._changed.set, drive=drive)
        waiter = JobWaiter(informer, self._subscription, WaitOptions(), lambda line, _="": self.lines.append(line))
        self._steps, self._result = waiter.steps(), list[dict[str, Any]]()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        take, version = take_in_thread(self._subscription, self._changed, lambda: None), 0

        def seen(seconds: float | None) -> list[JobEvent]:
            nonlocal version
            if (found := self._informer._lookup(self._subscription)) is not None:
                job = found[0]
                self.gone |= job is None
                now = 0 if job is None else int(job.stored["metadata"]["resourceVersion"])
                self.older, version = self.older or now < version, now
            return take(0.01 if seconds is None else min(seconds, 0.01))

        self._result.append(run_in_thread(self._steps, seen))

    def result(self) -> dict[str, Any]:
        self._thread.join(SECONDS)
        self._informer.leave(self._subscription)
        return self._result[0]


def test_changes_of_leader_lose_nothing(cluster_site: Site, informer: SharedJobInformer) -> None:
    """The job, its pod and every log line remain visible. No line is repeated and no older version appears."""
    flag = cluster_site.flag("switched")
    script = f"n=0; while [ ! -e '{flag}' ]; do n=$((n+1)); echo line=$n; sleep 0.02; done; echo lines=$n"
    cluster_site.submit(document(script, name="a"))
    looker = Looker(informer, "a", drive=True)
    until(lambda: informer.leads(TFJOBS) and informer._seen_through is not None, SECONDS)
    until(lambda: bool(cluster_site.cluster.list(PODS, "default").items), SECONDS)
    pods = [pod["metadata"]["uid"] for pod in cluster_site.cluster.list(PODS, "default").items]
    for _ in range(2):
        with controller(cluster_site.cluster):
            until(lambda: informer._seen_through is None, SECONDS)
            until(lambda: cluster_site.leases() == [], SECONDS)  # given back after the loss of leadership
        until(lambda: informer._seen_through is not None, SECONDS)
    flag.touch()
    found = looker.result()
    assert found["reached"]
    assert (looker.gone, looker.older) == (False, False)
    said = [line.partition("| ")[2] for line in looker.lines if line.startswith("worker-0")]
    assert said == [*(f"line={n + 1}" for n in range(len(said) - 1)), f"lines={len(said) - 1}"]
    assert pods == [pod["metadata"]["uid"] for pod in cluster_site.cluster.list(PODS, "default").items]


def test_closing_during_change_of_leader_leaves_no_thread(cluster_site: Site) -> None:
    before = {*threading.enumerate()}
    cluster_site.submit(document(FOREVER, name="a"))
    for _ in range(5):
        found = SharedJobInformer(open_connection(ClusterArguments(config_file=cluster_site.kubeconfig), {}), "default")
        subscription = found.join(ref("a"), lambda: None, drive=True)
        found.leave(subscription)
        begun = time.monotonic()
        found.close()
        assert time.monotonic() - begun < 20, "an event was missed, and a pause waited for"
    ours = ("informer", "shared-informer", "controller-host", "lease", "leader")
    left = [one.name for one in threading.enumerate() if one not in before and one.name.startswith(ours)]
    assert left == []
    cluster_site.delete("a")
    cluster_site.until_empty()


def test_registry_creates_informer_for_first_user_and_removes_with_last(cluster_site: Site) -> None:
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


def test_registry_retries_after_failed_creation(cluster_site: Site, tmp_path: Path) -> None:
    informers, good = SharedInformerRegistry(), ClusterArguments(config_file=cluster_site.kubeconfig)
    bad = replace(good, config_file=str(tmp_path / "missing"))
    with pytest.raises(Exception, match="there is no kubeconfig"):
        informers.enter("k", lambda: SharedJobInformer(open_connection(bad, {}), "default"))
    assert len(informers) == 0
    informers.enter("k", lambda: SharedJobInformer(open_connection(good, {}), "default"))
    informers.leave("k")


def test_does_not_wait_for_clean_up_by_other_leader(light: LightSite) -> None:
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


def test_reports_missing_leader_once(light: LightSite) -> None:
    held_lease(light.cluster, time.time() - 3600)
    light.submit("a")
    found = SharedJobInformer(open_connection(ClusterArguments(config_file=light.kubeconfig), {}), "default")
    try:
        limits = WaitLimits(deadline=time.time() + 1.0)
        _, lines = wait(found, "a", drive=False, leader_check=0.0, policy=task_policy(limits=limits))
    finally:
        found.close()
    said = [line for line in lines if "no controller leads the cluster" in line]
    assert len(said) == 1
    assert "tf-dist-system/tf-dist-controller" in said[0]
    assert "tf-dist install" in said[0]
