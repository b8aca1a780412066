"""The operator: what it does with a job, whatever becomes of it. Most of this without Airflow's own processes."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.airflow.instance import Instance
from tests.airflow.running import run
from tests.airflow.site import FOREVER, SECONDS, Site, document
from tests.waiting import until

pytest.importorskip("airflow", reason="Airflow is missing: pip install 'tf-dist[airflow]'")

from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferralTimeout,
    TaskDeferred,
)

from tf_dist.airflow import ImagePullFailed, JobFailed, JobTimeout, TFJobCallbacks, TFJobOperator, TFJobTrigger

MODEL = Asset("model")
FLAKY = "[ -e '{flag}' ] && exit 0; exit 3"


@pytest.fixture(autouse=True)
def nothing_is_left(cluster_site: Site) -> Iterator[None]:
    yield
    for job in cluster_site.jobs():
        cluster_site.delete(job["metadata"]["name"])
    cluster_site.until_empty()


@pytest.fixture
def instance() -> Instance:
    return Instance(f"run-{uuid.uuid4().hex[:6]}")


@pytest.fixture
def operator(cluster_site: Site) -> Callable[..., TFJobOperator]:
    def make(job: Any, **arguments: Any) -> TFJobOperator:
        return TFJobOperator(task_id="train", job=job, config_file=cluster_site.kubeconfig, **arguments)

    return make


def names(site: Site) -> list[str]:
    return [job["metadata"]["name"] for job in site.jobs()]


@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
def test_a_dag(site: Site, operator: Callable[..., TFJobOperator], deferrable: bool) -> None:
    script = "echo step=1 loss=0.5; sleep 1; echo step=2 loss=0.25 accuracy=0.97; echo checkpoint=/tmp/{{ run_id }}"
    with DAG("succeeds") as dag:
        operator(document(script, workers=2), deferrable=deferrable, outlets=[MODEL], job_url="http://x/{name}")
    found = run(dag)
    assert found.tasks == {"train": "success"}
    result = found.xcom("train")
    assert result["metrics"] == {"step": 2.0, "loss": 0.25, "accuracy": 0.97}
    assert result["checkpoint"] == f"/tmp/{found.dag_run.run_id}"
    assert (result["status"], result["restarts"]) == ("Succeeded", 0)
    assert result["ran_seconds"] >= 1
    assert found.xcom("train", "job_uid") == result["uid"]
    assert found.xcom("train", "job_url") == f"http://x/{result['name']}"


def test_the_model_is_told_of_with_its_data(operator: Callable[..., TFJobOperator], instance: Instance) -> None:
    task = operator(document("echo accuracy=0.5"), outlets=[MODEL])
    result = task.execute(instance.context())
    assert instance.events[MODEL].extra == result
    assert result["metrics"] == {"accuracy": 0.5}


def test_a_job_that_fails(operator: Callable[..., TFJobOperator], instance: Instance) -> None:
    with pytest.raises(JobFailed, match=r"tfjob/job-\w+: worker-0 .*3") as caught:
        operator(document("exit 3")).execute(instance.context())
    assert caught.value.hint


@pytest.mark.parametrize(("codes", "skipped"), [(3, True), ([2, 3], True), (4, False), (range(5, 9), False)])
def test_an_exit_code_that_skips(
    operator: Callable[..., TFJobOperator], instance: Instance, codes: Any, skipped: bool
) -> None:
    with pytest.raises(AirflowSkipException if skipped else JobFailed):
        operator(document("exit 3"), skip_on_exit_code=codes).execute(instance.context())


def test_a_job_that_can_never_run_is_not_tried_again(
    operator: Callable[..., TFJobOperator], instance: Instance, cluster_site: Site
) -> None:
    broken = document()
    broken["spec"]["tfReplicaSpecs"]["Worker"]["replica"] = 2
    with pytest.raises(AirflowFailException, match=r"(?s)replica: .*replicas"):
        operator(broken).execute(instance.context())
    assert names(cluster_site) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"on_finish_action": "keep"}, "on_finish_action: 'keep' is none of delete_job"),
        ({"driver": "me"}, "driver: 'me' is none of"),
        ({"wait_for_completion": False}, "nobody would drive"),
    ],
)
def test_arguments_that_mean_nothing(
    operator: Callable[..., TFJobOperator], instance: Instance, arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(AirflowFailException, match=told):
        operator(document(), **arguments).execute(instance.context())


@pytest.mark.parametrize(
    ("action", "script", "stays"),
    [
        ("delete_job", "true", False),
        ("delete_job", "exit 3", False),
        ("keep_job", "true", True),
        ("delete_succeeded_job", "true", False),
        ("delete_succeeded_job", "exit 3", True),
        ("delete_active_job", "exit 3", True),
    ],
)
def test_what_becomes_of_a_job_that_is_over(
    operator: Callable[..., TFJobOperator],
    instance: Instance,
    cluster_site: Site,
    action: str,
    script: str,
    stays: bool,
) -> None:
    try:
        operator(document(script), on_finish_action=action).execute(instance.context())
    except JobFailed:
        assert script != "true"
    assert bool(names(cluster_site)) is stays


def test_a_retry_of_a_job_that_failed_makes_another_one(
    operator: Callable[..., TFJobOperator], instance: Instance, cluster_site: Site
) -> None:
    task = operator(document("exit 3"), on_finish_action="keep_job")
    for one in (instance, instance.retry()):
        with pytest.raises(JobFailed):
            task.execute(one.context())
    assert len(set(names(cluster_site))) == 2


def test_a_run_again_of_a_job_that_succeeded_makes_another_one(
    operator: Callable[..., TFJobOperator], instance: Instance
) -> None:
    task = operator(document(), on_finish_action="keep_job")
    first, second = (task.execute(one.context()) for one in (instance, instance.retry()))
    assert first["uid"] != second["uid"]


def deferred(task: TFJobOperator, instance: Instance) -> TFJobTrigger:
    """The trigger that it goes on with."""
    task.deferrable = True
    with pytest.raises(TaskDeferred) as caught:
        task.execute(instance.context())
    path, arguments = caught.value.trigger.serialize()
    assert path == "tf_dist.airflow.trigger.TFJobTrigger"
    return TFJobTrigger(**arguments)


def event_of(trigger: TFJobTrigger) -> Any:
    """The only event that it yields."""

    async def events() -> list[Any]:
        return [event async for event in trigger.run()]

    (event,) = asyncio.run(events())
    return event.payload


def test_a_retry_takes_up_the_job_that_lives(
    operator: Callable[..., TFJobOperator], instance: Instance, cluster_site: Site
) -> None:
    task = operator(document(FOREVER))
    first = deferred(task, instance)
    second = deferred(task, instance.retry())
    assert first.request.uid == second.request.uid
    assert first.request.owner != second.request.owner
    assert len(names(cluster_site)) == 1


def test_a_retry_takes_the_result_that_nobody_had(operator: Callable[..., TFJobOperator], instance: Instance) -> None:
    task = operator(document("echo accuracy=0.5"))
    assert event_of(deferred(task, instance))["end"] == "reached"  # and then its worker is lost
    result = operator(document("echo accuracy=0.5")).execute(instance.retry().context())
    assert result["uid"] == instance.xcoms["job_uid"]
    assert result["metrics"] == {"accuracy": 0.5}


def test_who_is_not_durable_begins_anew(
    operator: Callable[..., TFJobOperator], instance: Instance, cluster_site: Site
) -> None:
    task = operator(document(FOREVER), durable=False)
    first = deferred(task, instance)
    second = deferred(task, instance.retry())
    assert first.request.uid != second.request.uid
    until(lambda: len(names(cluster_site)) == 1, SECONDS)


def test_an_event_is_all_that_is_needed(
    operator: Callable[..., TFJobOperator], instance: Instance, cluster_site: Site
) -> None:
    task = operator(document("echo accuracy=0.5"))
    event = event_of(deferred(task, instance))
    cluster_site.delete(instance.xcoms["job_name"])
    assert task.execute_complete(instance.context(), event)["metrics"] == {"accuracy": 0.5}


def test_a_trigger_that_is_gone_leaves_the_job_to_the_retry_and_to_nobody_after_the_last(
    operator: Callable[..., TFJobOperator], instance: Instance, cluster_site: Site
) -> None:
    task = operator(document(FOREVER))
    deferred(task, instance)
    with pytest.raises(TaskDeferralError):
        task.resume_execution("__fail__", {"error": "out of luck"}, instance.context())
    assert len(names(cluster_site)) == 1
    last = instance.retry()
    deferred(task, last)
    with pytest.raises(TaskDeferralError):
        task.resume_execution("__fail__", {"error": "out of luck"}, last.context())
    assert names(cluster_site) == []


def test_a_deferral_that_took_too_long_ends_the_job(
    operator: Callable[..., TFJobOperator], instance: Instance, cluster_site: Site
) -> None:
    task = operator(document(FOREVER))
    deferred(task, instance)
    with pytest.raises(JobTimeout) as caught:
        task.resume_execution("__fail__", {"error": "Trigger timeout"}, instance.context())
    assert isinstance(caught.value.__cause__, TaskDeferralTimeout)
    assert names(cluster_site) == []


def test_the_time_of_the_task_is_kept_while_deferred(
    operator: Callable[..., TFJobOperator], instance: Instance, cluster_site: Site
) -> None:
    task = operator(document(FOREVER), execution_timeout=timedelta(seconds=1))
    event = event_of(deferred(task, instance))
    assert event["end"] == "timeout"
    with pytest.raises(JobTimeout):
        task.execute_complete(instance.context(), event)
    assert names(cluster_site) == []


def test_an_image_that_cannot_be_had(
    operator: Callable[..., TFJobOperator], instance: Instance, cluster_site: Site
) -> None:
    job = document()
    del job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"]
    with pytest.raises(ImagePullFailed, match="no command"):
        operator(job).execute(instance.context())
    assert names(cluster_site) == []


def in_background(task: TFJobOperator, instance: Instance) -> tuple[threading.Thread, list[BaseException]]:
    """Execute it in a thread; what it raised."""
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
def test_a_user_ends_a_task_in_the_worker(
    operator: Callable[..., TFJobOperator], instance: Instance, cluster_site: Site, action: str, stays: bool
) -> None:
    task = operator(document(FOREVER), on_kill_action=action)
    thread, raised = in_background(task, instance)
    until(lambda: bool(cluster_site.pods()), SECONDS)
    instance.state = "failed"
    task.on_kill()
    thread.join(SECONDS)
    assert "a user has ended the task" in str(raised[0])
    assert bool(names(cluster_site)) is stays


def test_a_worker_that_goes_is_no_reason_to_touch_the_job(
    operator: Callable[..., TFJobOperator], instance: Instance, cluster_site: Site, tmp_path: Any
) -> None:
    flag = tmp_path / "flag"
    task = operator(document(f"while [ ! -e '{flag}' ]; do sleep 0.05; done"))
    thread, raised = in_background(task, instance)
    until(lambda: bool(cluster_site.pods()), SECONDS)
    task.on_kill()
    until(lambda: not task.killed, SECONDS)
    flag.touch()
    thread.join(SECONDS)
    assert raised == []


def test_a_user_ends_a_deferred_task(
    operator: Callable[..., TFJobOperator], instance: Instance, cluster_site: Site
) -> None:
    trigger = deferred(operator(document(FOREVER)), instance)
    trigger.task_instance = None
    asyncio.run(trigger.on_kill())  # nobody knows what the task is: hands off
    assert len(names(cluster_site)) == 1


class Notes(TFJobCallbacks):
    """What was called."""

    seen: list[str] = []  # noqa: RUF012 -- a class of static methods has no other place

    @staticmethod
    def on_job_document_created(*, document: dict[str, Any], **kwargs: Any) -> None:
        document["metadata"]["labels"] = {"called": "yes"}
        Notes.seen.append("document")

    @staticmethod
    def on_job_creation(*, job: Any, **kwargs: Any) -> None:
        Notes.seen.append(job.stored["metadata"]["labels"]["called"])

    @staticmethod
    def on_job_completion(*, result: dict[str, Any], succeeded: bool, **kwargs: Any) -> None:
        Notes.seen.append(f"{result['status']} {succeeded}")

    @staticmethod
    def on_job_cleanup(*, name: str, namespace: str, **kwargs: Any) -> None:
        Notes.seen.append("cleaned up")


def test_callbacks(operator: Callable[..., TFJobOperator], instance: Instance) -> None:
    Notes.seen.clear()
    operator(document(), callbacks=Notes).execute(instance.context())
    assert Notes.seen == ["document", "yes", "cleaned up", "Succeeded True"]


def test_a_dry_run_prints_the_document(
    operator: Callable[..., TFJobOperator], capsys: pytest.CaptureFixture[str]
) -> None:
    operator(document("echo {{ ds }}"), overrides={"spec.runPolicy.backoffLimit": 2}).dry_run()
    printed = capsys.readouterr().out
    assert "echo {{ ds }}" in printed
    assert "backoffLimit: 2" in printed
    with pytest.raises(AirflowFailException, match="does not exist"):
        operator("missing.yaml").dry_run()
