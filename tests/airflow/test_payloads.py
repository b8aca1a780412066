"""Hostile values in parameters of the shipped DAGs change only one leaf of the job, or the task is rejected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.running import read_dags
from tests.airflow.site import document
from tests.payloads import PAYLOADS, changed_leaves

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from airflow.sdk import DAG, task

from tf_dist.airflow import TFJobOperator
from tf_dist.errors import InvalidJob

DAGS = Path(__file__).parents[2] / "dags"
OTHER = {"steps": 4711, "rates": [0.5], "queue": "other", "night_seconds": 1, "workers": 7}
"""Another valid value of each parameter. The leaves that it changes are the leaves that the parameter may change."""
NO_PART_OF_A_JOB = {("pause_at_night", "night_seconds"), ("pause_at_night", "workers")}


def dag_of(name: str) -> Any:
    return read_dags(DAGS / f"{name}.py").dags[name]


DAG_OF = {path.stem: dag_of(path.stem) for path in sorted(DAGS.glob("*.py"))}
CASES = [(name, parameter) for name, dag in DAG_OF.items() for parameter in dag.params]


def jobs(name: str, params: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The jobs that a DAG's operators would create, without the checks of the parameters."""
    dag = DAG_OF[name]
    for one in dag.tasks:
        operator, given = one, {}
        if one.is_mapped:
            (given,) = dag.get_task("choices").python_callable(params=params)
            operator = one.unmap({})
        if isinstance(operator, TFJobOperator) and not hasattr(operator, "python_callable"):
            yield operator.task_id, rendered(operator, params, **given)


def rendered(operator: Any, params: dict[str, Any], **given: Any) -> dict[str, Any]:
    """``given`` are results of other tasks, in which Airflow renders no templates."""
    context: Any = {"params": params, "ti": None, "run_id": "run"}
    operator = operator.prepare_for_execution()
    operator.render_template_fields(context)
    for name, value in given.items():
        setattr(operator, name, value)
    found = operator.read_request(lambda value: operator.render_template(value, context))
    return dict(found.entry.written.content)


def honest(name: str) -> dict[str, Any]:
    usual = {key: DAG_OF[name].params[key] for key in DAG_OF[name].params}
    return {**usual, **({"rates": [0.05]} if "rates" in usual else {})}


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_payload_changes_only_leaves_of_its_parameter(name: str, parameter: str) -> None:
    before, other = dict(jobs(name, honest(name))), dict(jobs(name, {**honest(name), parameter: OTHER[parameter]}))
    assert before
    allowed = {task_id: changed_leaves(before[task_id], other[task_id]) for task_id in before}
    assert all(map(bool, allowed.values())) != ((name, parameter) in NO_PART_OF_A_JOB)
    changed = []
    for payload, text in PAYLOADS.items():
        with suppress(InvalidJob):
            for task_id, found in jobs(name, {**honest(name), parameter: [text] if parameter == "rates" else text}):
                changed.append((payload, task_id, changed_leaves(before[task_id], found) - allowed[task_id]))
    assert [one for one in changed if one[2]] == []


@contextmanager
def native() -> Iterator[Any]:
    with DAG("native", render_template_as_native_obj=True) as dag:
        yield dag


def native_operator() -> TFJobOperator:
    with native():
        return TFJobOperator(task_id="train", job=document("{{ params.x }}"), annotations={"note": "{{ params.x }}"})


def test_native_template_with_nul_is_refused() -> None:
    with pytest.raises(InvalidJob, match="NUL"):
        rendered(native_operator(), {"x": PAYLOADS["nul"]})


@pytest.mark.parametrize("payload", [one for one in PAYLOADS if one != "nul"])
def test_native_template_keeps_text_as_text(payload: str) -> None:
    operator = native_operator()
    honest = rendered(operator, {"x": "true"})
    found = rendered(operator, {"x": PAYLOADS[payload]})
    (container,) = found["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert isinstance(container["command"][2], str)
    assert len(changed_leaves(honest, found)) == 1


def test_function_arguments_render_as_native_objects() -> None:
    with native() as dag:

        @task.tfjob(env_vars={"RATE": "{{ params.x }}"})
        def train(values: list[float]) -> None:
            pass

        train("{{ params.x }}")
    operator: Any = dag.get_task("train").prepare_for_execution()
    operator.render_template_fields({"params": {"x": "[1, 2]"}, "ti": None})
    assert list(operator.op_args) == [[1, 2]]
    (container,) = operator.job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "RATE", "value": "[1, 2]"}]
