"""Tries of a task: adoption of an earlier try's job, and what happens to the job when the task ends."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from tests.airflow.instance import Instance, MakeOperator, deferred, event_of
from tests.airflow.light import LightSite
from tests.airflow.site import FOREVER, SECONDS, Site, document
from tests.leaderless import held_lease
from tests.waiting import until

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from tf_dist.airflow import ImagePullFailed, JobFailed, JobTimeout, TFJobCallbacks, TFJobOperator
from tf_dist.airflow.jobs.task_identity import RESULT_USED
from tf_dist.airflow.operators.task_run import TaskRun
from tf_dist.airflow.version_compat import (
    AirflowFailException,
    AirflowTaskTimeout,
    TaskDeferralError,
    TaskDeferralTimeout,
)
from tf_dist.client.stored_jobs import StoredJob, now
from tf_dist.cluster.api import LEASES, TFJOBS
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.core.pipeline.session import EndCause

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_retry_adopts_running_job(operator: MakeOperator, instance: Instance, cluster_site: Site) -> None:
    task = operator(document(FOREVER))
    first = deferred(task, instance)
    second = deferred(task, instance.retry())
    assert first.request.uid == second.request.uid
    assert first.request.owner != second.request.owner
    assert len(cluster_site.names()) == 1


def test_task_without_wait_needs_controller(operator: MakeOperator, instance: Instance, cluster_site: Site) -> None:
    task = operator(document(FOREVER), wait_for_completion=False)
    with pytest.raises(AirflowFailException, match="no controller leads the namespace after the task has ended"):
        task.execute(instance.context())
    assert cluster_site.names() == []
    ref = held_lease(cluster_site.cluster, now(), duration=3600.0)
    try:
        assert task.execute(instance.retry().context())["name"] in cluster_site.names()
    finally:
        cluster_site.cluster.delete(LEASES, *ref)


def test_retry_returns_unused_result(operator: MakeOperator, instance: Instance) -> None:
    task = operator(document("echo accuracy=0.5"))
    assert event_of(deferred(task, instance))["reached"]  # afterwards, its worker is lost
    result = operator(document("echo accuracy=0.5")).execute(instance.retry().context())
    assert result["uid"] == instance.xcoms["job_uid"]
    assert result["metrics"] == {"accuracy": 0.5}


def test_retry_of_non_durable_task_creates_new_job(
    operator: MakeOperator, instance: Instance, cluster_site: Site
) -> None:
    task = operator(document(FOREVER), durable=False)
    first = deferred(task, instance)
    second = deferred(task, instance.retry())
    assert first.request.uid != second.request.uid
    until(lambda: len(cluster_site.names()) == 1, SECONDS)


def test_event_suffices_after_job_is_deleted(operator: MakeOperator, instance: Instance, cluster_site: Site) -> None:
    task = operator(document("echo accuracy=0.5"))
    event = event_of(deferred(task, instance))
    cluster_site.delete(instance.xcoms["job_name"])
    assert task.execute_complete(instance.context(), event)["metrics"] == {"accuracy": 0.5}


@pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "triggerer"])
def test_reports_job_deleted_before_wait(
    cluster_site: Site, operator: MakeOperator, instance: Instance, deferrable: bool
) -> None:
    class Deletes(TFJobCallbacks):
        @staticmethod
        def on_job_creation(*, job: Any, **kwargs: Any) -> None:
            cluster_site.delete(job.name)

    def run(task: TFJobOperator) -> None:
        if deferrable:
            task.execute_complete(instance.context(), event_of(deferred(task, instance)))
        else:
            task.execute(instance.context())

    with pytest.raises(JobFailed, match=r"^tfjob/\S+: the job was deleted \(find out who") as caught:
        run(operator(document(), callbacks=Deletes))
    assert caught.value.outcome.kind is OutcomeKind.DELETED
    outcome = instance.xcoms["outcome"]
    assert [outcome[what] for what in ("kind", "reason", "message")] == ["deleted", "Deleted", "the job was deleted"]


def test_lost_trigger_keeps_job_until_last_try(operator: MakeOperator, instance: Instance, cluster_site: Site) -> None:
    task = operator(document(FOREVER))
    deferred(task, instance)
    with pytest.raises(TaskDeferralError):
        task.resume_execution("__fail__", {"error": "out of luck"}, instance.context())
    assert len(cluster_site.names()) == 1
    last = instance.retry()
    deferred(task, last)
    with pytest.raises(TaskDeferralError):
        task.resume_execution("__fail__", {"error": "out of luck"}, last.context())
    assert cluster_site.names() == []


def test_deferral_timeout_deletes_job(operator: MakeOperator, instance: Instance, cluster_site: Site) -> None:
    task = operator(document(FOREVER))
    deferred(task, instance)
    with pytest.raises(JobTimeout) as caught:
        task.resume_execution("__fail__", {"error": "Trigger timeout"}, instance.context())
    assert isinstance(caught.value.__cause__, TaskDeferralTimeout)
    assert cluster_site.names() == []


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "ExitCode"])
def test_image_pull_failure_fails_task(
    operator: MakeOperator, instance: Instance, cluster_site: Site, policy: str
) -> None:
    job = document()
    job["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = policy
    del job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"]
    with pytest.raises(ImagePullFailed, match="no command"):
        operator(job).execute(instance.context())
    assert cluster_site.names() == []


def in_background(task: TFJobOperator, instance: Instance) -> tuple[threading.Thread, list[BaseException]]:
    """Execute the task in a thread, and return the thread and what the task raised."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            task.execute(instance.context())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, raised


@pytest.mark.parametrize(("action", "stays"), [("delete_job", False), ("keep_job", True)])
def test_killed_task_in_worker_follows_on_kill_action(
    operator: MakeOperator, instance: Instance, cluster_site: Site, action: str, stays: bool
) -> None:
    task = operator(document(FOREVER), on_kill_action=action)
    thread, raised = in_background(task, instance)
    until(lambda: bool(cluster_site.pods()), SECONDS)
    instance.state = "failed"
    task.on_kill()
    thread.join(SECONDS)
    assert "a user ended the task" in str(raised[0])
    assert bool(cluster_site.names()) is stays
    if not stays:
        until(lambda: not cluster_site.pods(), SECONDS)  # their resources are free


@pytest.mark.parametrize("state", ["restarting", "running"], ids=["cleared", "asked to go"])
def test_job_survives_when_task_process_stops(
    operator: MakeOperator, instance: Instance, cluster_site: Site, tmp_path: Any, state: str
) -> None:
    flag = tmp_path / "flag"
    instance.state = state
    task = operator(document(f"while [ ! -e '{flag}' ]; do sleep 0.05; done"))
    thread, raised = in_background(task, instance)
    until(lambda: bool(cluster_site.pods()), SECONDS)
    task.on_kill()
    until(lambda: not task.killed, SECONDS)
    flag.touch()
    thread.join(SECONDS)
    assert raised == []


def test_reports_timeout_when_airflow_ends_wait_in_worker(
    operator: MakeOperator, instance: Instance, cluster_site: Site
) -> None:
    """Airflow raises AirflowTaskTimeout, which is not an Exception, in a handler of SIGALRM."""

    def late(*_: object) -> None:
        raise AirflowTaskTimeout("Timeout")

    def ring() -> None:
        until(lambda: bool(cluster_site.pods()), SECONDS)
        signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, late)
    ringing = threading.Thread(target=ring)
    ringing.start()
    try:
        with pytest.raises(AirflowTaskTimeout):
            operator(document(FOREVER)).execute(instance.context())
    finally:
        ringing.join(SECONDS)
        signal.signal(signal.SIGALRM, before)
    assert instance.xcoms["outcome"]["kind"] == "deadline_exceeded"
    assert cluster_site.names() == []


def test_waiting_worker_leads_namespace(light: LightSite) -> None:
    uid = light.submit("a")
    task = TFJobOperator(task_id="train", job=document(), config_file=light.kubeconfig, get_logs=False)
    found: list[Any] = []
    with TaskRun(task, Instance("r").context()) as run:
        job = StoredJob(TFJOBS, light.job("a"))
        waiting = threading.Thread(target=lambda: found.append(run.wait(job)))
        waiting.start()
        try:
            until(lambda: bool(light.job("a").get("status")), SECONDS)
            assert "tf-dist-controller" in light.leases()
        finally:
            light.status("a", phase="Completed")
            waiting.join(SECONDS)
    assert (found[0]["reached"], found[0]["result"]["uid"]) == (True, uid)
    assert light.leases() == []


def parted(light: LightSite, ti: Instance, cause: EndCause, *, mine: bool = True, **arguments: Any) -> bool:
    """Whether a try deletes its job after its wait ended with this cause."""
    light.submit("a", f"{ti.id}/{ti.try_number}" if mine else "another/1")
    task = TFJobOperator(task_id="train", job=document(), config_file=light.kubeconfig, **arguments)
    with TaskRun(task, ti.context()) as run:
        return run.part(StoredJob(TFJOBS, light.job("a")), cause)


@pytest.mark.parametrize(
    ("action", "cause", "deleted"),
    [
        ("delete_job", EndCause.SUCCEEDED, True),
        ("delete_job", EndCause.FAILED, True),
        ("keep_job", EndCause.SUCCEEDED, False),
        ("keep_job", EndCause.FAILED, False),
        ("keep_job", EndCause.OVERDUE, True),
        ("delete_succeeded_job", EndCause.SUCCEEDED, True),
        ("delete_succeeded_job", EndCause.FAILED, False),
        ("delete_active_job", EndCause.SUCCEEDED, False),
        ("delete_active_job", EndCause.FAILED, False),
        ("delete_active_job", EndCause.OVERDUE, True),
    ],
)
def test_on_finish_action_decides_about_deletion(light: LightSite, action: str, cause: EndCause, deleted: bool) -> None:
    assert parted(light, Instance("r"), cause, on_finish_action=action) is deleted
    assert len(light.uids()) == (not deleted)
    if not deleted:
        assert RESULT_USED in light.job("a")["metadata"]["annotations"]


@pytest.mark.parametrize("cause", [EndCause.ERROR, EndCause.UNREACHABLE, EndCause.NOT_ADMITTED])
@pytest.mark.parametrize(
    ("durable", "number", "mine", "stays"),
    [(True, 1, True, True), (True, 2, True, False), (False, 1, True, False), (False, 1, False, True)],
)
def test_job_of_lost_wait_is_kept_for_retry(
    light: LightSite, durable: bool, number: int, mine: bool, stays: bool, cause: EndCause
) -> None:
    parted(light, Instance("r", try_number=number), cause, mine=mine, durable=durable)
    assert len(light.uids()) == stays
