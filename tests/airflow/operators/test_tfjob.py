"""The operator, for each way in which its job ends. Most tests run without Airflow's processes."""

from __future__ import annotations

import inspect
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.airflow.instance import Instance, MakeOperator, deferred, event_of
from tests.airflow.running import run
from tests.airflow.site import Site, document
from tf_dist.cluster.api import CONFIG_MAPS
from tf_dist.core.model.names import CODE
from tf_dist.errors import AlreadyExists, InvalidJob

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from tf_dist.airflow import AdmissionTimeout, JobFailed, TFJob, TFJobCallbacks, TFJobOperator
from tf_dist.airflow.operators.operator_arguments import BaseTFJobOperator
from tf_dist.airflow.task_options import OPTIONS
from tf_dist.airflow.version_compat import (
    AirflowFailException,
    AirflowSkipException,
)

MODEL = Asset("model")
RESTARTS = "spec.tfReplicaSpecs.Worker.restartPolicy"
CPU = "spec.tfReplicaSpecs.Worker.template.spec.containers[0].resources.requests"


pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
def test_dag_run_returns_result_of_job(site: Site, operator: MakeOperator, deferrable: bool) -> None:
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


@pytest.mark.parametrize("way", ["argument", "template", "file", "python"])
def test_replicas_run_in_submitted_code(operator: MakeOperator, instance: Instance, tmp_path: Path, way: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "accuracy").write_text("0.97")
    job = document('echo "accuracy=$(cat accuracy)"')
    if way == "file":
        job["metadata"]["annotations"] = {CODE: "src"}
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
        task = operator(str(tmp_path / "job.yaml"))
    elif way == "python":
        task = operator(TFJob.from_yaml(yaml.safe_dump(job)).replace(code=tmp_path / "src"))
    else:
        task = operator(job, code="{{ folder }}" if way == "template" else str(tmp_path / "src"))
    context = {**instance.context(), "folder": str(tmp_path / "src")}
    task.render_template_fields(context)
    assert task.execute(context)["metrics"] == {"accuracy": 0.97}


@pytest.mark.parametrize("job", [document(), None], ids=["of a document", "of arguments"])
def test_packages_are_passed_to_job(operator: MakeOperator, instance: Instance, job: Any) -> None:
    """On the local cluster, packages must be installed."""
    task = operator(job, image="none", packages=["nothing-like-it", "{{ known }}"])
    context = {**instance.context(), "known": "pytest"}
    task.render_template_fields(context)
    with pytest.raises(AirflowFailException, match=r"packages: nothing-like-it is not installed") as told:
        task.execute(context)
    assert "pytest is not" not in str(told.value)
    with pytest.raises(InvalidJob, match=r"packages\[0\]: 'a;b' is not a package"):
        operator(job, image="none", packages=["a;b"])


def test_companion_of_another_owner_is_not_overwritten(
    cluster_site: Site, operator: MakeOperator, instance: Instance, tmp_path: Path
) -> None:
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "beside"}, "data": {"word": "ours"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all([settings, document()]))
    task = operator(str(tmp_path / "job.yaml"))
    try:
        cluster_site.cluster.create(CONFIG_MAPS, "default", {**settings, "data": {"word": "theirs"}})
        with pytest.raises(AlreadyExists, match="ConfigMap beside in namespace default differs"):
            task.execute(instance.context())
        assert cluster_site.names() == []
        assert cluster_site.cluster.get(CONFIG_MAPS, "default", "beside")["data"] == {"word": "theirs"}
        cluster_site.cluster.delete(CONFIG_MAPS, "default", "beside")
        task.execute(instance.context())
        settings["data"] = {"word": "new"}
        (tmp_path / "job.yaml").write_text(yaml.safe_dump_all([settings, document()]))
        task.execute(Instance("another run").context())
        assert cluster_site.cluster.get(CONFIG_MAPS, "default", "beside")["data"] == {"word": "new"}
    finally:
        cluster_site.cluster.delete(CONFIG_MAPS, "default", "beside")


def test_companion_of_python_job_is_created(cluster_site: Site, operator: MakeOperator, instance: Instance) -> None:
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "beside"},
        "data": {"run": "{{ run_id }}"},
    }
    task = operator(TFJob.from_yaml(yaml.safe_dump_all([settings, document()])))
    context = instance.context()
    task.render_template_fields(context)
    task.execute(context)
    try:
        made = cluster_site.cluster.get(CONFIG_MAPS, "default", "beside")
        assert made["data"] == {"run": context["run_id"]}
    finally:
        cluster_site.cluster.delete(CONFIG_MAPS, "default", "beside")


def test_failed_job_raises_job_failed_with_outcome(operator: MakeOperator, instance: Instance) -> None:
    script = "echo loss=2 checkpoint=/m/1; echo ModuleNotFoundError: the last word; exit 3"
    with pytest.raises(JobFailed, match=r"tfjob/job-\w+: worker-0 .*3") as caught:
        operator(document(script)).execute(instance.context())
    assert caught.value.hint.startswith("install it where the container runs")
    outcome = instance.xcoms["outcome"]
    assert (outcome["kind"], outcome["replica"], outcome["exit_code"]) == ("failed", "worker-0", 3)
    assert (outcome["metrics"], outcome["checkpoint"]) == ({"loss": 2.0}, "/m/1")
    assert outcome["log"].endswith("the last word")
    assert caught.value.outcome.document() == outcome


@pytest.mark.parametrize(("codes", "skipped"), [(3, True), ([2, 3], True), (4, False), (range(5, 9), False)])
def test_skip_on_exit_code_skips_task(operator: MakeOperator, instance: Instance, codes: Any, skipped: bool) -> None:
    with pytest.raises(AirflowSkipException if skipped else JobFailed):
        operator(document("exit 3"), skip_on_exit_code=codes).execute(instance.context())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"on_finish_action": "keep"}, "on_finish_action: 'keep' is not one of delete_job"),
        ({"driver": "me"}, "driver: 'me' is not one of"),
        ({"skip_on_exit_code": "3"}, "skip_on_exit_code: '3' is neither"),
        ({"skip_on_exit_code": [3, "4"]}, r"skip_on_exit_code: \[3, '4'\] is neither"),
        ({"skip_on_exit_code": True}, "skip_on_exit_code: True is neither"),
        ({"callbacks": TFJobCallbacks()}, "callbacks: .* is not a class of TFJobCallbacks"),
        ({"poll_interval": -1}, "poll_interval: -1 is not a time"),
        ({"admission_timeout": "soon"}, "admission_timeout: 'soon' is not a time"),
        ({"admission_timeout": "{{ params.limit }}"}, "admission_timeout: .* is not a time"),
        ({"admission_timeout": TFJobOperator(task_id="a", image="tf").output}, "admission_timeout: .* is not a time"),
        ({"startup_timeout_seconds": "{{ params.limit }}"}, "startup_timeout_seconds: .* is not a time"),
        ({"poll_interval": "{{ params.limit }}"}, "poll_interval: .* is not a time"),
        ({"poll_interval": 0}, "poll_interval: 0 is not a time above 0"),
        ({"get_logs": "no"}, "get_logs: must be True or False, not 'no'"),
        ({"deferrable": "{{ params.deferrable }}"}, "deferrable: must be True or False, not '{{ params"),
        ({"durable": "no"}, "durable: must be True or False, not 'no'"),
        ({"wait_for_completion": "no"}, "wait_for_completion: must be True or False, not 'no'"),
        ({"in_cluster": "no"}, "in_cluster: must be True or False, not 'no'"),
    ],
)
def test_invalid_options_fail_when_dag_is_parsed(operator: MakeOperator, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidJob, match=told) as caught:
        operator(document(), **arguments)
    assert all(problem.hint for problem in caught.value.problems)


@pytest.mark.parametrize("name", OPTIONS)
def test_any_value_of_option_is_accepted_or_reported(name: str) -> None:
    strange = (
        "",
        -1,
        1.5,
        float("nan"),
        [],
        {},
        "x" * 5000,
        b"x",
        object(),
        ["a", 1],
        {1: 2},
        {"a": {"b": None}},
        {"x"},
    )
    for value in strange:
        with suppress(InvalidJob):
            TFJobOperator(**{"task_id": "train", "job": document(), name: value})


@pytest.mark.parametrize("argument", ["admission_timeout", "startup_timeout_seconds", "poll_interval"])
def test_durations_accept_text(operator: MakeOperator, argument: str) -> None:
    options = operator(document(), **{argument: "1m30s"}).options
    assert getattr(options, OPTIONS[argument].name) == 90.0


def test_invalid_time_is_reported_once(operator: MakeOperator) -> None:
    with pytest.raises(InvalidJob) as caught:
        operator(document(), fallback=[{"workers": 1}], admission_timeout="soon")
    assert [one.path for one in caught.value.problems] == ["admission_timeout"]


def test_rendered_policy_is_validated(operator: MakeOperator, instance: Instance) -> None:
    task = operator(document(), on_eviction="{{ params.policy }}")
    task.render_template_fields({"params": {"policy": "retry"}, "ti": None})
    with pytest.raises(AirflowFailException, match="on_eviction: the text 'retry' is not a policy"):
        task.execute(instance.context())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"fallback": [{"wrokers": 4}], "admission_timeout": 60}, r"fallback\[0\]\.wrokers: .*did you mean workers"),
        ({"fallback": [{"workers": 4}]}, "fallback: nothing sets when it is tried"),
        ({"on_eviction": "retry"}, "on_eviction: the text 'retry' is not a policy"),
        ({"on_preemption": "fallback"}, r"on_preemption: there is no fallback \(add fallback, a list such as"),
    ],
)
def test_invalid_policies_fail_when_dag_is_parsed(operator: MakeOperator, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidJob, match=told):
        operator(document(), **arguments)


def test_invalid_fallback_fails_before_submission(
    operator: MakeOperator, instance: Instance, cluster_site: Site
) -> None:
    task = operator(document(), fallback=[{"ps": "{{ params.ps }}"}], admission_timeout=60)
    task.fallback = [{"ps": "1"}]  # the rendered value; the job has no parameter servers
    with pytest.raises(AirflowFailException, match=r"tf-dist\.dev/fallback.*\[0\].*with it, "):
        task.execute(instance.context())
    assert cluster_site.names() == []


def waited_for(task: Any, instance: Instance, *, deferrable: bool) -> None:
    if deferrable:
        task.execute_complete(instance.context(), event_of(deferred(task, instance)))
    else:
        task.execute(instance.context())


@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
def test_retry_after_admission_timeout_keeps_job_and_restarts_timeout(
    operator: MakeOperator, instance: Instance, cluster_site: Site, deferrable: bool
) -> None:
    task = operator(document("true"), overrides={CPU: {"cpu": 1000}}, admission_timeout=1.0)
    seen = []
    for one in (instance, instance.retry()):
        began = time.monotonic()
        with pytest.raises(AdmissionTimeout):
            waited_for(task, one, deferrable=deferrable)
        seen.append((one.xcoms["job_uid"], cluster_site.names() == []))
        assert time.monotonic() - began >= 1.0
    (first, gone), (second, over) = seen
    assert first == second
    assert (gone, over) == (False, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"job": None}, "image: no job is given"),
        ({"job": ""}, "job: it is empty"),
        ({"job": 5}, "job: must be the path of a file, a dict, or a TFJob, not int"),
        ({"job": Path("a.yaml")}, "job: must be the path of a file, a dict, or a TFJob, not PosixPath"),
        ({"job": ["a.yaml"]}, "job: must be the path of a file, a dict, or a TFJob, not list"),
        ({"job": "", "image": "tf"}, "job: it is empty"),
        ({"job": None, "image": ""}, "image: no job is given"),
        ({"command": []}, "command: it is empty"),
        ({"args": ()}, "args: it is empty"),
        ({"annotations": {"a": 1}}, r"annotations\['a'\]: must be text, not 1"),
        ({"workers": "many"}, "workers: 'many' is not a whole number"),
        ({"resources": ["cpu"]}, "resources: must be a mapping"),
        ({"image": 7}, "image: must be text, not 7"),
        ({"namespace": "Bad NS"}, "namespace: 'Bad NS' "),
        ({"queue_name": "a queue"}, "queue_name: 'a queue' has a space in it"),
    ],
)
def test_invalid_job_arguments_fail_when_dag_is_parsed(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidJob, match=told):
        TFJobOperator(**{"task_id": "train", "job": document(), **arguments})


def shown(task: Any, **params: Any) -> Any:
    """The job that the task submits."""
    task.render_template_fields({"params": params, "ti": None})
    return task.job


def test_arguments_define_job(instance: Instance) -> None:
    arguments = {
        "image": "train:{{ params.tag }}",
        "command": ["python", "train.py"],
        "args": ["--config", "a.yaml", "--steps={{ params.steps }}"],
        "workers": "{{ params.workers }}",
        "ps": 1,
        "env_vars": {"RATE": "{{ params.rate }}"},
        "resources": {"cpu": "4", "nvidia.com/gpu": 1},
        "priority_class": "high",
    }
    job = shown(TFJobOperator(task_id="train", **arguments), tag=7, steps=5, workers=3, rate=0.1)
    replicas = job["spec"]["tfReplicaSpecs"]
    assert {name: group["replicas"] for name, group in replicas.items()} == {"PS": 1, "Worker": 3}
    (container,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert container["image"] == "train:7"
    assert container["command"] + container["args"] == ["python", "train.py", "--config", "a.yaml", "--steps=5"]
    assert container["env"] == [{"name": "RATE", "value": "0.1"}]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert job["spec"]["runPolicy"]["schedulingPolicy"] == {"priorityClass": "high"}
    assert job["metadata"]["name"] == "train"


def test_overrides_precede_arguments_and_arguments_precede_job() -> None:
    job = document("true", workers=2)
    task = TFJobOperator(task_id="train", job=job, workers="{{ 2 + 2 }}", args=["a"], overrides={RESTARTS: "Always"})
    worker = shown(task)["spec"]["tfReplicaSpecs"]["Worker"]
    assert (worker["replicas"], worker["restartPolicy"]) == (4, "Always")
    assert worker["template"]["spec"]["containers"][0]["args"] == ["a"]
    replicas = {"spec.tfReplicaSpecs.Worker.replicas": 5}
    task = TFJobOperator(task_id="train", job=job, workers=4, overrides=replicas)
    assert shown(task)["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] == 5


def test_file_error_contains_path_and_line(operator: MakeOperator, instance: Instance, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    with pytest.raises(AirflowFailException, match=r"job\.yaml: does not exist"):
        operator(str(file)).execute(instance.context())
    file.write_text("apiVersion: kubeflow.org/v1\r\nkind: TFJob\r\nspec:\r\n  tfReplicaSpec: {}\r\n")
    with pytest.raises(AirflowFailException, match=r"job\.yaml:3: .*tfReplicaSpecs"):
        operator(str(file)).execute(instance.context())


def test_retry_after_failed_job_creates_new_job(operator: MakeOperator, instance: Instance, cluster_site: Site) -> None:
    task = operator(document("exit 3"), on_finish_action="keep_job")
    for one in (instance, instance.retry()):
        with pytest.raises(JobFailed):
            task.execute(one.context())
    assert len(set(cluster_site.names())) == 2


def test_cleared_task_creates_new_job_after_success(operator: MakeOperator, instance: Instance) -> None:
    task = operator(document(), on_finish_action="keep_job")
    first, second = (task.execute(one.context()) for one in (instance, instance.cleared(retries=1)))
    assert first["uid"] != second["uid"]


@pytest.mark.parametrize("stores", [True, False], ids=["3.3", "before"])
@pytest.mark.parametrize("action", ["keep_job", "delete_job"])
def test_retry_after_lost_state_returns_result(
    operator: MakeOperator, instance: Instance, action: str, stores: bool
) -> None:
    task = operator(document("echo accuracy=0.5"), on_finish_action=action, outlets=[MODEL])
    again = instance.retry()
    contexts = [one.context() if stores else one.context() | {"task_state_store": None} for one in (instance, again)]
    first, second = (task.execute(context) for context in contexts)
    assert (first["uid"] == second["uid"]) is (stores or action == "keep_job")
    assert second["metrics"] == {"accuracy": 0.5}
    assert again.events[MODEL].extra == second
    assert again.xcoms["outcome"]["kind"] == "succeeded"


def test_retry_after_lost_report_deletes_job(operator: MakeOperator, instance: Instance, cluster_site: Site) -> None:
    operator(document("echo accuracy=0.5"), on_finish_action="keep_job").execute(instance.context())
    operator(document("echo accuracy=0.5")).execute(instance.retry().context())
    assert cluster_site.names() == []


@pytest.mark.parametrize("state", ["scheduled", "queued", "up_for_retry", "restarting", "running"])
def test_abandoned_try_leaves_result_to_next_try(
    operator: MakeOperator, instance: Instance, cluster_site: Site, state: str
) -> None:
    instance.state, next_try = state, instance.retry()
    if state == "running":  # the next try is already running
        instance.set = unknown_try  # type: ignore[method-assign]
    else:
        instance.set = next_try.set = busy_server  # type: ignore[method-assign]
    first = operator(document("echo accuracy=0.5")).execute(instance.context())
    second = operator(document("echo accuracy=0.5")).execute(next_try.context())
    assert first["uid"] == second["uid"]
    assert cluster_site.names() == []


def unknown_try(key: str, value: Any) -> None:
    detail = {"status_code": 404, "message": "Server returned error"}
    raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))


def busy_server(key: str, value: Any) -> None:
    raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 500}))


class Notes(TFJobCallbacks):
    """Callbacks that record their calls."""

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


def test_callbacks_are_called_in_order(operator: MakeOperator, instance: Instance) -> None:
    Notes.seen.clear()
    operator(document(), callbacks=Notes).execute(instance.context())
    assert Notes.seen == ["document", "yes", "cleaned up", "Succeeded True"]


def test_template_fields_are_rendered(operator: MakeOperator) -> None:
    given = ("name", "namespace", "queue_name", "cluster_context", "job_url", "tensorboard_url")
    task = operator(document("echo {{ run_id }}"), **{name: f"{name}-{{{{ run_id }}}}" for name in given})
    task.render_template_fields({"run_id": "r"})
    assert {name: getattr(task, name) for name in given} == {name: f"{name}-r" for name in given}
    assert "echo r" in str(task.job)


def test_structured_template_fields_have_renderers(operator: MakeOperator) -> None:
    task = operator(document())
    structured = {"env_vars", "packages", "job_resources", "overrides", "fallback", "labels", "annotations"}
    assert task.template_fields_renderers == {"job": "yaml", **dict.fromkeys(structured, "py")}
    assert task.template_fields_renderers.keys() <= set(task.template_fields)


def test_rendered_field_shows_submitted_job(operator: MakeOperator, tmp_path: Path) -> None:
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "beside"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all([settings, document("echo {{ run_id }}")]))
    with DAG("rendered", template_searchpath=[str(tmp_path)]):
        task = operator("job.yaml", overrides={RESTARTS: "Always"}, queue_name="research")
    for run_id in ("first", "second"):  # in dag.test(), both tries render the same object
        task.render_template_fields({"run_id": run_id})
        shown: Any = task.job
        worker = shown["spec"]["tfReplicaSpecs"]["Worker"]
        assert worker["template"]["spec"]["containers"][0]["command"] == ["sh", "-c", f"echo {run_id}"]
        assert worker["restartPolicy"] == "Always"
        assert shown["spec"]["runPolicy"]["schedulingPolicy"]["queue"] == "research"
        assert task.request is not None
        assert task.request.entry.written.content == shown
        assert [one.content["kind"] for one in task.request.companions] == ["ConfigMap"]
    broken = operator("missing.yaml")
    broken.render_template_fields({"run_id": "r"})
    assert broken.job == "missing.yaml"


def test_links_exist_before_job_ends(operator: MakeOperator, instance: Instance) -> None:
    task = operator(document("echo checkpoint=gs://models/7"), tensorboard_url="http://tb/{namespace}/{name}")
    deferred(task, instance)
    assert instance.xcoms["tensorboard_url"] == f"http://tb/default/{instance.xcoms['job_name']}"
    assert {link.xcom_key for link in task.operator_extra_links} <= instance.xcoms.keys()
    task.deferrable = False
    task.execute(instance.retry().context())
    assert instance.xcoms["checkpoint_url"].endswith("/browser/models/7")


def test_failed_task_without_job_logs_no_missing_links(
    site: Site, operator: MakeOperator, capfd: pytest.CaptureFixture[str]
) -> None:
    """Airflow requests all links of each task, and logs an error for each missing link."""
    with DAG("no_job") as dag:
        operator("missing.yaml")
    found = run(dag)
    shown = "".join(capfd.readouterr())
    assert found.tasks == {"train": "failed"}
    assert "missing.yaml: does not exist" in shown
    assert "XCom not found" not in shown


def test_dry_run_prints_document(operator: MakeOperator, capsys: pytest.CaptureFixture[str]) -> None:
    operator(document("echo {{ ds }}"), overrides={"spec.runPolicy.backoffLimit": 2}).dry_run()
    printed = capsys.readouterr().out
    assert "echo {{ ds }}" in printed
    assert "backoffLimit: 2" in printed
    with pytest.raises(AirflowFailException, match="does not exist"):
        operator("missing.yaml").dry_run()


def test_signature_and_docstring_match_option_table() -> None:
    """Each option is a row of the table. Its type is in the signature, for editors and type checkers."""
    signature = inspect.signature(BaseTFJobOperator.__init__).parameters.values()
    given = {one.name: one.default for one in signature if one.kind is inspect.Parameter.KEYWORD_ONLY}
    assert given.keys() == OPTIONS.keys()
    assert {name for name, row in OPTIONS.items() if row.read(given[name]) != row.default} == set()
    assert [name for name in OPTIONS if f":param {name}: " not in (TFJobOperator.__doc__ or "")] == []
