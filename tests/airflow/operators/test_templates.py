"""Templates, rendered like in a running task with the environment of its DAG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.airflow.site import document

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from airflow.sdk import DAG, task
from airflow.sdk.definitions._internal.templater import NativeEnvironment

from tf_dist.airflow import ScaleTFJobOperator, TFJobOperator, TFJobSensor
from tf_dist.airflow.version_compat import TASKS_CHOOSE_NATIVE, AirflowFailException
from tf_dist.errors import InvalidJob

VALUES = {
    "number": (7, "7"),
    "float": (0.5, "0.5"),
    "bool": (True, "True"),
    "none": (None, "None"),
    "list": ([1, "a"], "[1, 'a']"),
    "dict": ({"a": 1}, "{'a': 1}"),
    "text": ("7", "7"),
    "text of a list": ("[1]", "[1]"),
}
needs_choice = pytest.mark.skipif(not TASKS_CHOOSE_NATIVE, reason="this Airflow has no templates of a task's own")


def fill_in(operator: Any, value: Any) -> Any:
    """Render the operator like ``airflow.sdk.execution_time.task_runner``."""
    context: Any = {"params": {"x": value}, "ti": None, "run_id": "r", "expanded_ti_count": None}
    ready = operator.prepare_for_execution()
    ready.render_template_fields(context, ready.dag.get_template_env())
    return context.get("task", ready)


def job_of(operator: Any) -> dict[str, Any]:
    """The document that the operator would submit."""
    request = operator.request or operator.read_request(lambda value: value)
    return dict(request.entry.written.content)


def container_of(job: dict[str, Any], group: str = "Worker") -> dict[str, Any]:
    (container,) = job["spec"]["tfReplicaSpecs"][group]["template"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize("own", [None, True], ids=["of the DAG", "of the task"])
@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
@pytest.mark.parametrize("value", VALUES)
@needs_choice
def test_renders_every_type_as_text(value: str, native: bool, own: bool | None) -> None:
    given, text = VALUES[value]
    with DAG("types", render_template_as_native_obj=native) as dag:
        explicit: dict[str, Any] = {} if own is None else {"render_template_as_native_obj": own}
        TFJobOperator(
            task_id="train",
            image="trainer:{{ params.x | string | length }}",
            command=["python", "train.py"],
            args=["--x={{ params.x }}!", "{{ params.x | string }}."],
            env_vars={"X": "{{ params.x }}!"},
            annotations={"x": "{{ params.x }}!"},
            **explicit,
        )
    assert isinstance(dag.get_template_env(), NativeEnvironment) is native
    operator = fill_in(dag.get_task("train"), given)
    container = container_of(job_of(operator))
    assert container["args"] == [f"--x={text}!", f"{text}."]
    assert container["env"] == [{"name": "X", "value": f"{text}!"}]
    assert operator.annotations == {"x": f"{text}!"}


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
@pytest.mark.parametrize("value", VALUES)
@needs_choice
def test_renders_single_template_as_text_everywhere(value: str, native: bool) -> None:
    given, text = VALUES[value]
    with DAG("alone", render_template_as_native_obj=native) as dag:
        TFJobOperator(
            task_id="train",
            job=document("{{ params.x }}"),
            args=["{{ params.x }}"],
            env_vars={"X": "{{ params.x }}"},
            labels={"x": "{{ params.x | length if params.x is mapping else 1 }}"},
        )
    container = container_of(job_of(fill_in(dag.get_task("train"), given)))
    assert container["command"] == ["sh", "-c", text]
    assert container["args"] == [text]
    assert container["env"] == [{"name": "X", "value": text}]


@needs_choice
def test_native_dag_renders_numbers_in_numeric_fields() -> None:
    body = document()
    body["spec"]["runPolicy"]["backoffLimit"] = "{{ params.x }}"
    with DAG("numbers", render_template_as_native_obj=True) as dag:
        TFJobOperator(task_id="train", job=body, workers="{{ params.x }}")
        TFJobOperator.partial(task_id="mapped", job=body, env_vars={"X": "{{ params.x }}"}).expand(workers=[1])
        ScaleTFJobOperator(task_id="scale", job_name="job-{{ params.x }}", workers="{{ params.x }}")
        TFJobSensor(task_id="wait", job_name="job-{{ params.x }}", namespace="{{ params.x }}")
    job = job_of(fill_in(dag.get_task("train"), 3))
    assert job["spec"]["runPolicy"]["backoffLimit"] == 3
    assert job["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] == 3
    mapped = fill_in(dag.get_task("mapped").unmap({"workers": 2}), 3)
    assert container_of(job_of(mapped))["env"] == [{"name": "X", "value": "3"}]
    scale, wait = fill_in(dag.get_task("scale"), 3), fill_in(dag.get_task("wait"), 3)
    assert (scale.job_name, scale.workers, wait.job_name, wait.namespace) == ("job-3", "3", "job-3", "3")


@needs_choice
def test_native_task_renders_list() -> None:
    with DAG("own") as dag:
        TFJobOperator(
            task_id="train",
            image="trainer",
            command=["python", "train.py"],
            args="{{ params.x }}",
            queue_name="{{ none }}",
            render_template_as_native_obj=True,
        )
    operator = fill_in(dag.get_task("train"), ["--a", "b"])
    assert container_of(job_of(operator))["args"] == ["--a", "b"]


FIELDS = ("queue_name", "name", "namespace", "image", "priority_class", "workers", "ps", "cluster_context", "job")


@pytest.mark.parametrize("field", FIELDS)
def test_reports_argument_template_that_rendered_none(field: str) -> None:
    with DAG("none") as dag:
        given: dict[str, Any] = {"job": document(), field: "{{ params.x }}"}
        TFJobOperator(task_id="train", **given)
    operator = fill_in(dag.get_task("train"), None)
    with pytest.raises(AirflowFailException, match=rf"{field}: the template {{{{ params.x }}}} gave None \(write"):
        operator.execute(run_context())


def test_reports_job_template_that_rendered_none(tmp_path: Path) -> None:
    body = document("{{ params.x }}", schedulingPolicy={"queue": "{{ params.x }}"})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(body))
    for job in (body, str(tmp_path / "job.yaml")):
        with DAG("none") as dag:
            TFJobOperator(task_id="train", job=job)
        operator = fill_in(dag.get_task("train"), None)
        with pytest.raises(
            AirflowFailException, match=r"spec\.runPolicy\.schedulingPolicy\.queue: the template"
        ) as found:
            operator.execute(run_context())
        assert str(found.value).count("gave None") == 1


def test_other_operators_report_template_that_rendered_none() -> None:
    with DAG("none") as dag:
        ScaleTFJobOperator(task_id="scale", job_name="a", namespace="{{ params.x }}", workers=1)
        TFJobSensor(task_id="wait", job_name="a", namespace="{{ params.x }}")
    for name in ("scale", "wait"):
        with pytest.raises(AirflowFailException, match=r"namespace: the template .* gave None"):
            fill_in(dag.get_task(name), None).execute(run_context())


@pytest.mark.parametrize("text", ["{{ params.x }}", "apiVersion: v1\nkind: TFJob\n"], ids=["from XCom", "written"])
def test_reports_document_text_given_as_path(text: str) -> None:
    def run() -> None:
        with DAG("text") as dag:
            TFJobOperator(task_id="train", job=text)
        fill_in(dag.get_task("train"), document()).execute(run_context())

    with pytest.raises((AirflowFailException, InvalidJob), match=r"job: .*text of a document.*\.output"):
        run()


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("replicas: 1", "replicas: {{ params.x }}"),
        ("image: none", "image: {{ params.x }}:1"),
        ("- true", "- {{ params.x }}"),
        ("image: none", "image: {% if params.x %}a{% endif %}"),
    ],
)
def test_error_suggests_quotes_around_template_in_file(tmp_path: Path, line: str, value: str) -> None:
    text = yaml.safe_dump(document()).replace("- 'true'", "- true")
    assert line in text
    (tmp_path / "job.yaml").write_text(text.replace(line, value))
    with DAG("unquoted") as dag:
        TFJobOperator(task_id="train", job=str(tmp_path / "job.yaml"))
    operator = fill_in(dag.get_task("train"), "a")
    with pytest.raises(AirflowFailException, match=r"job\.yaml:\d+: .*\(write the value in quotes") as found:
        operator.execute(run_context())
    assert str(found.value).count("\n") == 1


@needs_choice
def test_native_dag_keeps_types_of_function_arguments() -> None:
    with DAG("function", render_template_as_native_obj=True) as dag:

        @task.tfjob(workers="{{ params.x }}", args=["{{ params.x }}"])
        def train(value: object) -> None:
            pass

        train("{{ params.x }}")
    for given in (3, None, [1, 2], {"a": 1.5}, True):
        operator = fill_in(dag.get_task("train"), given)
        assert list(operator.op_args) == [given]


def run_context() -> Any:
    from tests.airflow.instance import Instance

    return Instance("r").context()


@pytest.mark.parametrize(
    "field", ["env_vars", "resources", "labels", "annotations", "overrides", "image", "namespace", "workers"]
)
def test_rendered_text_in_braces_is_checked_as_value(field: str) -> None:
    with DAG("braces") as dag:
        given: dict[str, Any] = {field: "{{ params.x }}"}
        TFJobOperator(task_id="train", job=document(), **given)
    operator = fill_in(dag.get_task("train"), "{{ y }}")
    assert isinstance(operator.invalid, InvalidJob)
    assert {problem.path for problem in operator.invalid.problems} == {field}


def test_rendered_job_name_in_braces_is_refused() -> None:
    with DAG("braces") as dag:
        TFJobSensor(task_id="wait", job_name="{{ params.x }}")
    with pytest.raises(AirflowFailException, match=r"job_name: .* is not a job"):
        fill_in(dag.get_task("wait"), "{{ y }}").execute({})


@pytest.mark.parametrize("value", [5, ["a"], {"a": "b"}], ids=str)
@pytest.mark.parametrize(
    "field", ["kubernetes_conn_id", "config_file", "cluster_context", "job_url", "tensorboard_url"]
)
def test_value_of_another_task_must_be_text(field: str, value: Any) -> None:
    with DAG("types") as dag:
        given: dict[str, Any] = {field: task(lambda: value).override(task_id="before")()}
        TFJobOperator(task_id="train", job=document(), **given)
    operator: Any = dag.get_task("train").prepare_for_execution()
    setattr(operator, field, value)  # as Airflow resolves the reference
    with pytest.raises(InvalidJob, match=f"{field}: must be text, not "):
        operator.read_request(lambda given: given)
