"""A try of a step in this process, from its options to its exit code, for all outcomes and signals."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.argo.launcher.launching import SECONDS, Launcher, Site, site
from tests.cluster.support import FixedStream
from tests.controller.harness import tfjob
from tests.faults.proxy import Fault, Kind, Passed, Proxy
from tests.waiting import until
from tf_dist.argo.launcher import contract
from tf_dist.argo.launcher.contract import WORKFLOWS
from tf_dist.argo.launcher.step_job import step_document
from tf_dist.client import exit_codes
from tf_dist.cluster.api import ALL_LINES, LEASES, PODS, TFJOBS, LogOptions, Object
from tf_dist.core.pipeline.adoption import DriverChoice
from tf_dist.core.pipeline.workflow_stop import LAUNCHER, JobFate
from tf_dist.errors import AlreadyExists, Forbidden, Unavailable


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as found:
        yield found


@pytest.fixture
def led(scene: Site) -> Site:
    """A cluster with a controller."""
    scene.lead()
    return scene


def reported(scene: Site) -> bool:
    stored = scene.stored() or {"metadata": {}}
    return contract.REPORTED in (stored["metadata"].get("annotations") or {})


# Outcomes


def test_successful_job_exits_with_0(led: Site) -> None:
    progress = led.folder / "progress"
    with Launcher(led.options(total_steps=2, progress_file=progress)) as launcher:
        led.runs()
        launcher.said("worker-0 | checkpoint=/models/ckpt-1")
        led.ends()
        assert launcher.end() == exit_codes.SUCCEEDED
    found = led.outputs()
    assert (found["status"], found["checkpoint"], found["metric-loss"]) == ("Succeeded", "/models/ckpt-1", "0.5")
    assert (found["job"], found["replica"], found["exit-code"]) == (led.name, "", "")
    assert progress.read_text().strip() == "2/2"
    assert reported(led)


def test_failed_job_reports_replica_and_exit_code(led: Site) -> None:
    progress = led.folder / "progress"
    with Launcher(led.options(total_steps=2, progress_file=progress)) as launcher:
        led.runs()
        launcher.said("worker-0 | checkpoint=/models/ckpt-1")
        led.ends(3)
        assert launcher.end() == exit_codes.FAILED
    assert progress.read_text().strip() == "1/2"
    found = led.outputs()
    assert (found["status"], found["replica"], found["exit-code"]) == ("Failed", "worker-0", "3")
    assert (found["outcome"], found["restarts"], found["preemptions"]) == ("failed", "0", "0")
    assert "worker-0 exited with code 3" in found["message"]
    assert "error: worker-0 exited with code 3" in launcher.text
    assert reported(led)


def test_deleted_job_fails_step(led: Site) -> None:
    with Launcher(led.options()) as launcher:
        led.runs()
        led.memory.delete(TFJOBS, "default", led.name)
        assert launcher.end(led.bury) == exit_codes.FAILED
    assert (led.outputs()["status"], led.outputs()["message"]) == ("Deleted", "the job was deleted")
    assert led.outputs()["outcome"] == "deleted"


def test_new_job_with_same_name_is_not_adopted(led: Site) -> None:
    with Launcher(led.options()) as launcher:
        led.runs()
        led.memory.delete(TFJOBS, "default", led.name)
        led.memory.create(TFJOBS, "default", tfjob(led.name, workers=50))
        other = led.uid()
        assert launcher.end(led.bury) == exit_codes.FAILED
    assert led.outputs()["status"] == "Deleted"
    assert led.uid() == other
    assert not reported(led)


def test_rejects_existing_job_of_other_owner(scene: Site) -> None:
    scene.memory.create(TFJOBS, "default", tfjob(scene.name))
    before = scene.stored()
    with Launcher(scene.options()) as launcher, pytest.raises(AlreadyExists, match="does not belong to this step"):
        launcher.end()
    assert (scene.outputs()["status"], scene.outputs()["reason"]) == ("Error", "AlreadyExists")
    assert scene.stored() == before


@pytest.mark.parametrize("seconds", [0.0, 0.5])
@pytest.mark.parametrize(
    ("limit", "code", "status", "reason"),
    [
        ("admission_timeout", exit_codes.RETRYABLE, "PendingTimeout", "AdmissionTimeout"),
        ("run_timeout", exit_codes.FAILED, "Timeout", "Timeout"),
    ],
)
def test_job_is_deleted_after_timeout(
    led: Site, limit: str, code: int, status: str, reason: str, seconds: float
) -> None:
    """No event wakes the launcher before the timeout."""
    with Launcher(led.options(tfjob(workers=50), **{limit: seconds})) as launcher:
        assert launcher.end(led.bury) == code
    assert (led.outputs()["status"], led.outputs()["reason"]) == (status, reason)
    assert led.stored() is None


def test_reason_is_written_before_deletion(led: Site) -> None:
    """The launcher may be killed while it waits for the deletion of the job."""
    told: list[str] = []

    def passed(one: Passed) -> None:
        if one.call.verb == "delete":
            told.append(led.outputs()["status"])

    proxy = proxied(led, passed)
    with Launcher(led.options(run_timeout=0.0, kubeconfig=led.config(proxy.url))) as launcher:
        assert launcher.end(led.bury) == exit_codes.FAILED
    assert told[:1] == ["Timeout"]


def test_waiting_job_is_kept_for_next_try(led: Site) -> None:
    with Launcher(led.options(tfjob(workers=50), admission_timeout=0.2, retry=0, retries=1)) as launcher:
        assert launcher.end(led.bury) == exit_codes.RETRYABLE
    before = led.uid()
    assert before
    with Launcher(led.options(tfjob(workers=50), admission_timeout=0.5, retry=1, retries=1)) as launcher:
        launcher.said("continues with tfjob/")
        assert led.uid() == before
        assert launcher.end(led.bury) == exit_codes.RETRYABLE
    assert led.stored() is None


@pytest.mark.parametrize(
    ("waiting", "outcome"), [("ImagePullBackOff", "image_pull_failed"), ("ContainerCreating", "start_timeout")]
)
def test_job_that_does_not_start_is_deleted(led: Site, waiting: str, outcome: str) -> None:
    with Launcher(led.options(startup_timeout=2.0)) as launcher:
        until(lambda: len(led.pods()) == 3, SECONDS)
        for name, pod in led.pods().items():
            state = {"state": {"waiting": {"reason": waiting, "message": "no such image"}}}
            led.set_status(
                name,
                {
                    **pod["status"],
                    "phase": "Pending",
                    "containerStatuses": [{"name": "tensorflow", "restartCount": 0, **state}],
                },
            )
        assert launcher.end(led.bury) == exit_codes.FAILED
    assert led.outputs()["outcome"] == outcome
    assert led.stored() is None


def test_reports_outcome_when_timeout_has_also_passed(led: Site) -> None:
    led.made()
    led.runs()
    led.ends()
    with Launcher(led.options(retry=1, run_timeout=0.0)) as launcher:
        assert launcher.end() == exit_codes.SUCCEEDED
    assert (led.outputs()["status"], led.outputs()["checkpoint"]) == ("Succeeded", "/models/ckpt-1")
    assert led.stored() is not None


def test_reports_outcome_when_job_ends_before_signal(led: Site) -> None:
    """The signal arrives while the launcher reads the job."""
    led.made()
    led.runs()
    led.ends()
    looked_for: list[Passed] = []

    def passed(one: Passed) -> None:
        if (one.call.verb, one.call.resource) == ("get", "tfjobs") and not looked_for:
            looked_for.append(one)
            launcher.signal()

    proxy = proxied(led, passed)
    with Launcher(led.options(retry=1, kubeconfig=led.config(proxy.url), on_term=JobFate.DELETE)) as launcher:
        assert launcher.end() == exit_codes.SUCCEEDED
    assert len(looked_for) == 1
    assert led.stored() is not None


def test_leader_waits_until_pods_are_being_deleted(scene: Site) -> None:
    """After the launcher ends, the namespace may have no leader. Then, a signal ends the wait for the pods' end."""
    with Launcher(scene.options(driver=DriverChoice.AUTO)) as launcher:
        scene.runs()
        scene.end_pod(f"{scene.name}-worker-0", 0)
        until(lambda: scene.outputs().get("outcome") == "succeeded", SECONDS)
        until(lambda: len(stopping(scene)) == 2, SECONDS)
        launcher.signal()
        assert launcher.end() == exit_codes.SUCCEEDED
    assert len(stopping(scene)) == 2
    assert scene.memory.list(LEASES, "default").items == []


def test_leader_waits_until_job_is_completed(scene: Site) -> None:
    """The job's pods are already being deleted, but take some time."""
    with Launcher(scene.options(driver=DriverChoice.AUTO)) as launcher:
        scene.runs()
        scene.end_pod(f"{scene.name}-worker-0", 0)
        until(lambda: scene.outputs().get("outcome") == "succeeded" and len(stopping(scene)) == 2, SECONDS)
        assert launcher.end(scene.bury) == exit_codes.SUCCEEDED
    assert scene.phase() == "Completed"


class StillWritten:
    """A log source of containers that are still writing. Without ``follow``, a reader only gets the beginning."""

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> FixedStream:
        return FixedStream([b"first\n", b"last\n"] if options.follow else [b"first\n"])


def test_logs_are_followed(led: Site) -> None:
    led.memory.log_source = StillWritten().logs
    with Launcher(led.options()) as launcher:
        led.runs()
        led.ends()
        assert launcher.end() == exit_codes.SUCCEEDED
    assert "worker-0 | last\n" in launcher.text


def stopping(scene: Site) -> list[str]:
    """The running pods that are being deleted."""
    running = {name: pod for name, pod in scene.pods().items() if pod["status"]["phase"] == "Running"}
    return [name for name, pod in running.items() if "deletionTimestamp" in pod["metadata"]]


def test_wait_for_end_of_pods_has_timeout(scene: Site) -> None:
    with Launcher(scene.options(driver=DriverChoice.AUTO, settle=0.5)) as launcher:
        scene.runs()
        scene.end_pod(f"{scene.name}-worker-0", 0)
        assert launcher.end() == exit_codes.SUCCEEDED
    assert [pod["status"]["phase"] for pod in scene.pods().values()].count("Running") == 2
    assert scene.memory.list(LEASES, "default").items == []


# Retries


def test_second_launcher_of_step_shares_job(led: Site) -> None:
    """The first launcher was killed, or Argo started the step twice."""
    with Launcher(led.options()) as first:
        led.runs()
        before = led.uid()
        again = led.options(retry=1, out=led.folder / "again")
        with Launcher(again) as second:
            second.said("continues with tfjob/")
            led.ends()
            assert (first.end(), second.end()) == (exit_codes.SUCCEEDED, exit_codes.SUCCEEDED)
    assert led.uid() == before
    assert (again.out / "status").read_text() == "Succeeded"


def test_retry_after_reported_failure_creates_new_job(led: Site) -> None:
    with Launcher(led.options()) as launcher:
        led.runs()
        led.ends(3)
        assert launcher.end() == exit_codes.FAILED
    before = led.uid()
    with Launcher(led.options(retry=1)) as launcher:
        until(lambda: led.buried() and led.uid() not in ("", before), SECONDS)
        led.runs()
        led.ends()
        assert launcher.end() == exit_codes.SUCCEEDED


# An unavailable cluster


def proxied(scene: Site, told: Callable[[Passed], object] = lambda _: None) -> Proxy:
    host, _, port = scene.server.app.url.removeprefix("http://").partition(":")
    return scene.stack.enter_context(Proxy((host, int(port)), told))


def test_survives_broken_watches_and_short_outage(led: Site) -> None:
    proxy = proxied(led)
    with Launcher(led.options(kubeconfig=led.config(proxy.url))) as launcher:
        led.runs()
        led.shows("Running")
        for replica in ("ps-0", "worker-0", "worker-1"):
            launcher.said(f"{replica:<8} | checkpoint=/models/ckpt-1")
        proxy.inject(Fault(Kind.REFUSE, times=None, code=503))
        proxy.disconnect()
        led.ends()
        proxy.calm()
        assert launcher.end() == exit_codes.SUCCEEDED
    assert led.outputs()["status"] == "Succeeded"


@pytest.mark.parametrize("fault", [Fault(Kind.REFUSE, code=500), Fault(Kind.RESET)], ids=["500", "reset"])
def test_logs_are_retried_after_failed_requests(led: Site, fault: Fault) -> None:
    proxy = proxied(led)
    first = replace(fault, verbs=frozenset({"get"}), resources=frozenset({"pods"}), times=3)
    proxy.inject(first)
    with Launcher(led.options(kubeconfig=led.config(proxy.url))) as launcher:
        led.runs()
        for replica in ("ps-0", "worker-0", "worker-1"):
            launcher.said(f"{replica:<8} | checkpoint=/models/ckpt-1")
        led.ends()
        assert launcher.end() == exit_codes.SUCCEEDED
    assert first.times == 0
    assert "no more lines" not in launcher.text


def test_signal_ends_retries_when_server_is_unavailable(scene: Site) -> None:
    proxy = proxied(scene)
    proxy.inject(Fault(Kind.REFUSE, times=None, code=503))
    before = scene.made()
    with Launcher(scene.options(kubeconfig=scene.config(proxy.url))) as launcher:
        until(lambda: bool(proxy.passed), SECONDS)
        launcher.signal()  # the launcher stops its retries soon after a signal
        with pytest.raises(Unavailable):
            launcher.end()
    assert scene.outputs()["status"] == "Error"
    assert scene.uid() == before.uid


@pytest.mark.parametrize("other", [False, True], ids=["its own", "another in its place"])
def test_deletes_only_own_job_when_pods_are_forbidden(scene: Site, other: bool) -> None:
    """No later try would continue the job. Its deletion has the uid as the precondition."""
    proxy = proxied(scene)
    proxy.inject(Fault(Kind.REFUSE, frozenset({"list"}), frozenset({"pods"}), times=None, code=403))
    new = ""
    launcher = Launcher(scene.options(kubeconfig=scene.config(proxy.url)))
    if other:
        held = Fault(Kind.REFUSE, frozenset({"delete"}), times=1, code=503, retry_after=1)
        proxy.inject(held)
    with launcher:
        if other:
            until(lambda: held.times == 0, SECONDS)
            scene.memory.delete(TFJOBS, "default", scene.name)
            scene.memory.create(TFJOBS, "default", step_document(scene.options(), "default")[0].document)
            new = scene.uid()
        with pytest.raises(Forbidden):
            launcher.end()
    assert scene.uid() == new
    assert bool(new) is other
    assert scene.outputs()["reason"] == "Forbidden"


# Signals


def test_signal_before_creation_leaves_no_job(scene: Site) -> None:
    kept = step_document(scene.options(), "default")[0].document
    kept["metadata"]["finalizers"] = ["example.com/keep"]
    scene.memory.create(TFJOBS, "default", kept)
    scene.memory.delete(TFJOBS, "default", scene.name)
    with Launcher(scene.options()) as launcher:
        launcher.said("deletes it, and creates another")
        launcher.signal()
        assert launcher.end() == exit_codes.SIGNAL_BASE + signal.SIGTERM
    assert scene.outputs()["message"] == "stopped before the job was created"


@pytest.mark.parametrize("what", [JobFate.DELETE, JobFate.SUSPEND, JobFate.LEAVE])
def test_on_term_decides_about_job_after_signal(led: Site, what: JobFate) -> None:
    with Launcher(led.options(on_term=what, grace=600.0)) as launcher:
        led.runs()
        led.shows("Running")
        before = led.uid()
        launcher.signal()
        assert launcher.end(led.bury) == exit_codes.SIGNAL_BASE + signal.SIGTERM
    assert f"asked to stop: on_term decides; the job: {what}" in launcher.text
    assert (led.outputs()["status"], led.outputs()["reason"]) == ("Terminated", "Terminated")
    stored = led.stored()
    match what:
        case JobFate.DELETE:
            assert led.gone()
        case JobFate.SUSPEND:
            assert (led.phase(), led.pods()) == ("Aborted", {})
            assert stored is not None
            assert stored["metadata"]["annotations"][contract.STOPPED_BY] == LAUNCHER
        case JobFate.LEAVE:
            assert (led.uid(), led.phase(), len(led.pods())) == (before, "Running", 3)


def test_waits_for_end_of_pods_after_signal(led: Site) -> None:
    with Launcher(led.options(on_term=JobFate.DELETE, grace=600.0)) as launcher:
        led.runs()
        led.shows("Running")
        launcher.signal()
        until(lambda: led.stored() is None, SECONDS)
        assert launcher.end(led.bury) == exit_codes.SIGNAL_BASE + signal.SIGTERM
    assert "still stopping" not in launcher.text


def test_signal_does_not_delete_new_job_with_same_name(led: Site) -> None:
    proxy = proxied(led)
    held = Fault(Kind.REFUSE, frozenset({"delete"}), frozenset({"tfjobs"}), times=1, code=429, retry_after=1)
    options = led.options(on_term=JobFate.DELETE, grace=600.0, kubeconfig=led.config(proxy.url))
    with Launcher(options) as launcher:
        led.runs()
        led.shows("Running")
        proxy.inject(held)
        launcher.signal()
        until(lambda: held.times == 0, SECONDS)
        led.memory.delete(TFJOBS, "default", led.name)
        led.memory.create(TFJOBS, "default", step_document(led.options(), "default")[0].document)
        new = led.uid()
        assert launcher.end(led.bury) == exit_codes.SIGNAL_BASE + signal.SIGTERM
    assert led.uid() == new
    assert "cannot delete" not in launcher.text, "its own is gone"


def change_workflow(scene: Site, what: str) -> None:
    match what:
        case "shut down":
            scene.memory.patch(WORKFLOWS, "default", "wf", {"spec": {"shutdown": "Stop"}})
        case "gone":
            scene.memory.delete(WORKFLOWS, "default", "wf")
        case "another of the name":
            body: Object = {"metadata": {"name": "wf"}, "spec": {}, "status": {}}
            scene.memory.delete(WORKFLOWS, "default", "wf")
            scene.memory.create(WORKFLOWS, "default", body)


@pytest.mark.parametrize(
    ("workflow", "retry", "stays"),
    [
        ("goes on", 0, True),
        ("goes on", 3, False),
        ("shut down", 0, False),
        ("gone", 0, False),
        ("another of the name", 0, False),
    ],
)
def test_workflow_state_decides_about_job_after_signal(led: Site, workflow: str, retry: int, stays: bool) -> None:
    """The job has no owner reference here, so the garbage collector does not delete it with the workflow."""
    options = led.options(retry=retry, retries=3, grace=600.0)
    with Launcher(options) as launcher:
        led.runs()
        led.shows("Running")
        led.memory.patch(TFJOBS, "default", led.name, {"metadata": {"ownerReferences": None}})
        change_workflow(led, workflow)
        launcher.signal()
        assert launcher.end(led.bury) == exit_codes.SIGNAL_BASE + signal.SIGTERM
    assert (led.stored() is not None) is stays
    assert len(led.pods()) == (3 if stays else 0)


def test_unreadable_workflow_counts_as_stopped(led: Site) -> None:
    proxy = proxied(led)
    proxy.inject(Fault(Kind.REFUSE, resources=frozenset({"workflows"}), times=None, code=403))
    options = led.options(kubeconfig=led.config(proxy.url), retries=3, grace=600.0)
    with Launcher(options) as launcher:
        led.runs()
        launcher.signal()
        assert launcher.end(led.bury) == exit_codes.SIGNAL_BASE + signal.SIGTERM
    assert "the workflow cannot be read" in launcher.text
    assert led.stored() is None


def test_second_signal_ends_wait_but_not_deletion(led: Site) -> None:
    with Launcher(led.options(on_term=JobFate.DELETE, grace=600.0)) as launcher:
        led.runs()
        led.shows("Running")
        launcher.signal()
        until(lambda: led.stored() is None, SECONDS)
        launcher.signal()
        assert launcher.end() == exit_codes.SIGNAL_BASE + signal.SIGTERM
    assert "3 of its pods are still stopping" in launcher.text
    assert all("deletionTimestamp" in pod["metadata"] for pod in led.memory.list(PODS).items)


def test_deletion_is_retried_until_grace_period_ends(led: Site) -> None:
    proxy = proxied(led)
    options = led.options(on_term=JobFate.DELETE, grace=1.0, kubeconfig=led.config(proxy.url))
    with Launcher(options) as launcher:
        led.runs()
        led.shows("Running")
        proxy.inject(Fault(Kind.REFUSE, frozenset({"delete"}), times=None, code=503))
        launcher.signal()
        assert launcher.end() == exit_codes.SIGNAL_BASE + signal.SIGTERM
    assert f"cannot delete tfjob/{led.name}" in launcher.text
    assert "and that failed" in led.outputs()["message"]
    assert led.stored() is not None


def test_job_succeeding_before_signal_is_reported_as_succeeded(led: Site) -> None:
    with Launcher(led.options(on_term=JobFate.DELETE)) as launcher:
        led.runs()
        led.shows("Running")
        led.end_pod(f"{led.name}-worker-0", 0)
        launcher.said("is Completing")
        launcher.signal()
        assert launcher.end() == exit_codes.SUCCEEDED
    assert led.outputs()["status"] == "Succeeded"
    assert led.stored() is not None
