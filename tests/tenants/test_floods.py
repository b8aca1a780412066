"""Floods of writes of a tenant: jobs of other teams start as before, and the controller stays alive."""

from __future__ import annotations

import copy
import itertools
import statistics
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from tests.controller.harness import container
from tests.tenants.teams import Controller, Team
from tests.waiting import until
from tf_dist.cluster.api import CONFIG_MAPS, PODS, TFJOBS
from tf_dist.core.model import names
from tf_dist.errors import ClusterError, NotFound

pytestmark = pytest.mark.cluster


@contextmanager
def flood(write: Callable[[int], object], *, every: float = 0.02, threads: int = 1) -> Iterator[Callable[[], int]]:
    """Call ``write`` with 0, 1, 2, … in threads. Yields a function that returns the number of writes."""
    stopped, numbers = threading.Event(), itertools.count()

    def run() -> None:
        while not stopped.wait(every):
            with suppress(ClusterError):
                write(next(numbers))

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield lambda: next(copy.copy(numbers))
    finally:
        stopped.set()
        for thread in running:
            thread.join()


def slowdown(team: Team, other: Team, write: Callable[[int], object]) -> float:
    """The factor by which jobs of a team take longer to start while another team writes.

    The baseline is as many writes of objects that tf-dist does not read, before and after. Returns the first of three
    measurements that is below 2, or the last: other programs may disturb one measurement, but tf-dist affects all.
    """

    def unread(n: int) -> None:
        body = {"metadata": {"generateName": "unread-"}, "data": {"spec": "x" * 1000}}
        team.tenant.create(CONFIG_MAPS, team.namespace, body)

    def write_more(n: int) -> object:
        return write(1_000_000 * turn + n)  # names that are new in each turn

    for turn in range(3):
        with flood(unread):
            before = typical(other, f"before-{turn}")
        with flood(write_more) as written:
            during = typical(other, f"during-{turn}")
            assert written() > 1
        with flood(unread):
            after = typical(other, f"after-{turn}")
        found = during / max(before, after)
        if found < 2:
            break
    return found


def typical(team: Team, name: str, tries: int = 7) -> float:
    """The median of the seconds until a small job of a team has its pod."""
    return statistics.median(team.seconds_to_run(f"{name}-{n}") for n in range(tries))


def test_thousand_invalid_jobs_do_not_slow_other_teams(team: Team, other: Team) -> None:
    def submit_invalid(name: str) -> None:
        """Submit a job that the API server accepts, but tf-dist does not."""
        job = team.job(name)
        job["metadata"]["annotations"] = {names.FALLBACK: "[{"}
        team.submit(job)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: submit_invalid(f"earlier-{n}"), range(1000)))
    team.until(lambda: not any("status" not in job for job in team.admin.list(TFJOBS, team.namespace).items))
    assert slowdown(team, other, lambda n: submit_invalid(f"invalid-{n}")) < 2


def test_fifty_edits_a_second_do_not_slow_other_teams(team: Team, other: Team) -> None:
    team.submit("edited", cpu="500m")
    assert slowdown(team, other, lambda n: team.patch("edited", {"metadata": {"labels": {"edit": str(n)}}})) < 2
    team.until_running("edited")


def test_continuously_edited_job_is_admitted(team: Team) -> None:
    """Writes of its status meet conflicts with the edits."""
    with flood(lambda n: team.patch("edited", {"metadata": {"labels": {"edit": str(n)}}}), every=0.0):
        team.submit("edited")
        team.until_running("edited")


def test_continuous_scaling_does_not_slow_other_teams(team: Team, other: Team) -> None:
    team.submit("scaled", workers=3)
    team.until_reason("NeverFits", "scaled")

    def scale(n: int) -> None:
        team.patch("scaled", {"spec": {"replicas": n % 90 + 3}}, subresource="scale")

    assert slowdown(team, other, scale) < 2


def test_edits_of_job_with_10000_replicas_do_not_slow_other_teams(team: Team, other: Team) -> None:
    """The job never fits, and is edited continuously."""
    team.set_queue("1000000")
    job = team.job("large", workers=10_000)
    job["spec"]["enableDynamicWorker"] = True  # else its TF_CONFIG would be too long
    team.submit(job)
    team.until_reason("NeverFits", "large")
    assert slowdown(team, other, lambda n: team.patch("large", {"metadata": {"labels": {"edit": str(n)}}})) < 2
    assert not team.pods()


def test_many_deletions_leave_no_objects_and_do_not_affect_other_teams(team: Team, other: Team) -> None:
    """Running jobs and their pods are deleted while new jobs of the same names are submitted."""
    team.set_queue("1000")
    other.submit("stays", workers=1, cpu="1m")
    other.until_running("stays")
    uid = other.pods()["stays-worker-0"]["metadata"]["uid"]

    def write(n: int) -> None:
        name = f"storm-{n // 3 % 10}"
        match n % 3:
            case 0:
                team.submit(name, cpu="1m", workers=3)
            case 1:
                team.tenant.delete(PODS, team.namespace, f"{name}-worker-0", grace_period=0)
            case 2:
                team.delete(name, propagation=("Background", "Foreground")[n // 3 % 2])

    with flood(write) as written:
        until(lambda: written() > 90, 120)
        other.seconds_to_run("probe")
    for job in team.admin.list(TFJOBS, team.namespace).items:
        with suppress(NotFound):  # it was already being deleted
            team.delete(job["metadata"]["name"])
    team.until(lambda: not (team.pods() or team.services() or team.admin.list(TFJOBS, team.namespace).items))
    assert other.pods()["stays-worker-0"]["metadata"]["uid"] == uid


def test_job_of_maximum_size_holds_no_quota(team: Team) -> None:
    """The document leaves no space for a status. The limit of etcd is 1.5 MiB, and of annotations 256 KiB."""
    team.submit("annotated", workers=1)
    team.patch("annotated", {"metadata": {"annotations": {"a": "x" * 250_000}}})
    job = team.job("large")
    spec = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["containers"][0]["args"] = ["x" * 1000] * 1000
    for _ in range(1000):
        try:
            team.submit(job)
            break
        except ClusterError:
            spec["containers"][0]["args"] = spec["containers"][0]["args"][:-50]
    team.until_running("annotated")
    team.delete("annotated")
    team.submit("next")
    team.until(lambda: "Running" in (team.memory("next").get("phase"), team.memory("large").get("phase")), "next")
    team.delete("large")
    team.until_running("next")


def test_names_invented_by_tenant_add_no_metric_series(team: Team, controller: Controller) -> None:
    """Metrics do not contain names, labels, queues and priority classes that a tenant invents."""
    team.submit("first", workers=1, cpu="1m")
    team.until_running("first")
    before = controller.metrics().keys()
    for n in range(60):
        job = team.job(f"made-up-{n}", schedulingPolicy={"queue": f"made-up-{n}", "priorityClass": f"made-up-{n}"})
        job["metadata"]["labels"] = {f"made-up-{n}": f"made-up-{n}", names.QUEUE: f"made-up-{n}"}
        team.submit(job)
        pod = {"name": f"made-up-{n}", "labels": {names.JOB_UID: f"made-up-{n}", names.QUEUE: f"made-up-{n}"}}
        body = {"containers": [container(cpu="1m")], "terminationGracePeriodSeconds": 0}
        team.tenant.create(PODS, team.namespace, {"metadata": pod, "spec": body})
    team.until(lambda: bool(team.reason("made-up-59")), "made-up-59")
    new = controller.metrics().keys() - before
    assert not [series for series in new if "made-up" in series]
    assert len(new) < 60, sorted(new)
