"""Much of what a tenant may write, at once: other teams' jobs start as before, and the controller lives."""

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
    """Calls ``write`` with 0, 1, 2, … in threads; gives a function that tells how many were written."""
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
    """How much longer jobs of a team take to start while another team writes.

    Compared with as many writes of objects that tf-dist does not read, before and after: the rest is tf-dist's own. Of
    three measurements, the first below 2 or the last: other programs of the machine disturb one, tf-dist all.
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
    """Seconds until a small job of a team has its pod."""
    return statistics.median(team.seconds_to_run(f"{name}-{n}") for n in range(tries))


def test_invalid_jobs_by_the_thousand_beside_probe(team: Team, other: Team) -> None:
    def submit_invalid(name: str) -> None:
        """The API server takes it, and tf-dist does not."""
        job = team.job(name)
        job["metadata"]["annotations"] = {names.FALLBACK: "[{"}
        team.submit(job)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: submit_invalid(f"earlier-{n}"), range(1000)))
    team.until(lambda: not any("status" not in job for job in team.admin.list(TFJOBS, team.namespace).items))
    assert slowdown(team, other, lambda n: submit_invalid(f"invalid-{n}")) < 2


def test_edits_at_fifty_a_second_beside_probe(team: Team, other: Team) -> None:
    team.submit("edited", cpu="500m")
    assert slowdown(team, other, lambda n: team.patch("edited", {"metadata": {"labels": {"edit": str(n)}}})) < 2
    team.until_running("edited")


def test_job_that_is_edited_all_the_time_is_admitted(team: Team) -> None:
    """And does not keep quota from others while its status cannot be written."""
    with flood(lambda n: team.patch("edited", {"metadata": {"labels": {"edit": str(n)}}}), every=0.0):
        team.submit("edited")
        team.until_running("edited")


def test_scales_by_hand_beside_probe(team: Team, other: Team) -> None:
    team.submit("scaled", workers=3)
    team.until_reason("NeverFits", "scaled")

    def scale(n: int) -> None:
        team.patch("scaled", {"spec": {"replicas": n % 90 + 3}}, subresource="scale")

    assert slowdown(team, other, scale) < 2


def test_job_of_ten_thousand_replicas_beside_probe(team: Team, other: Team) -> None:
    """It can never fit, and is edited all the time."""
    team.set_queue("1000000")
    job = team.job("large", workers=10_000)
    job["spec"]["enableDynamicWorker"] = True  # else its TF_CONFIG would be too long
    team.submit(job)
    team.until_reason("NeverFits", "large")
    assert slowdown(team, other, lambda n: team.patch("large", {"metadata": {"labels": {"edit": str(n)}}})) < 2
    assert not team.pods()


def test_storm_of_deletions_leaves_nothing_behind(team: Team, other: Team) -> None:
    """Of jobs that run and of their pods, while others of the same names come; another team's jobs start and stay."""
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
        with suppress(NotFound):  # it was going already
            team.delete(job["metadata"]["name"])
    team.until(lambda: not (team.pods() or team.services() or team.admin.list(TFJOBS, team.namespace).items))
    assert other.pods()["stays-worker-0"]["metadata"]["uid"] == uid


def test_job_as_large_as_the_server_takes_holds_no_quota(team: Team) -> None:
    """A status has no room beside it. etcd takes 1.5 MiB, and annotations may have 256 KiB."""
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


def test_labels_make_no_series(team: Team, controller: Controller) -> None:
    """Names, labels, queues and classes that a tenant makes up are in no metric."""
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
