"""The source of a function that runs in a job. Names that are undefined there are errors when the DAG is parsed."""

from __future__ import annotations

import functools
import os.path as path
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tf_dist.errors import InvalidJob

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from airflow.sdk import DAG
from airflow.sdk import task as t

from tests.airflow.running import read_dags
from tf_dist.airflow.decorators.function_source import function_source

RATE = 0.5


def helper() -> None: ...


def names_a_default(rate: float = RATE) -> float:
    return rate


def names_a_module() -> bool:
    return path.exists("/")


def names_a_function() -> None:
    helper()


def names_within() -> Any:
    def inner() -> list[float]:
        return [RATE for _ in range(2)]

    return inner


def names_its_file() -> str:
    return __file__


def closure() -> Callable[[], float]:
    inside = 0.5

    def train() -> float:
        return inside

    return train


class Owner:
    def method(self) -> None: ...


async def coroutine() -> None: ...


def generator() -> Any:
    yield 1


def wraps(function: Any) -> Any:
    @functools.wraps(function)
    def inner() -> Any:
        return function()

    return inner


@wraps
def wrapped() -> None: ...


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (names_a_default, "names RATE.*pass it as an argument"),
        (names_a_module, "names path.*import posixpath inside"),
        (names_a_function, "names helper.*import it inside"),
        (names_within, "names RATE"),
        (names_its_file, "names __file__"),
        (closure(), "names inside.*pass it"),
        (Owner().method, "not a plain function"),
        (functools.partial(names_a_default), "not a plain function"),
        (lambda: 1, "a lambda"),
        (coroutine, "is async"),
        (generator, "is a generator"),
        (wrapped, "another decorator"),
    ],
)
def test_rejects_function_that_cannot_run_in_job(function: Any, told: str) -> None:
    with pytest.raises(InvalidJob, match=told):
        function_source(function)


def test_accepts_self_contained_function() -> None:
    def train(values: Path, *, more: helper = 1) -> Path:  # type: ignore[valid-type]
        import json
        import os as system

        class Model:
            rate: float = 0.5

            def name(self) -> str:
                return f"{__class__} {super().__repr__()}"  # type: ignore[name-defined]

        def again(n: int) -> Any:
            return again(n - 1) if n else [f"{one}" for one in (values, more, json, system)]

        try:
            found = again(1)
        except ValueError as error:
            found = [error, __name__]
        return Model, found  # type: ignore[return-value]

    assert function_source(train).lazy
    compile(function_source(train).text, "train", "exec")


def test_reports_undefined_name_when_dag_is_parsed(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "from airflow.sdk import DAG, task\nimport math\nwith DAG('bad'):\n"
        "    @task.tfjob()\n    def train():\n        return math.pi\n    train()\n"
    )
    (error,) = read_dags(tmp_path / "bad.py").import_errors.values()
    assert "train: names math, which only the DAG imports (write import math inside the function)" in error


def test_removes_decorators_in_every_spelling() -> None:
    with DAG("decorated") as dag:
        spelled = t.tfjob(workers=1)

        @spelled
        def first(words: list[helper]) -> None: ...  # type: ignore[valid-type]

        @t.tfjob(
            workers=1,
        )
        def second(words: list[str]) -> None:
            """Its text."""

        first([])
        second([])
    for name in ("first", "second"):
        script: Any = dag.get_task(name)
        assert "@" not in script.get_python_source()
        assert f"def {name}(words" in script.get_python_source()
