"""``@task.tfjob``: a function as the code of every replica."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.running import run
from tests.airflow.site import Site
from tf_dist.errors import InvalidJob

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from airflow.sdk import DAG, task

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_replicas_run_function_with_arguments(site: Site) -> None:
    with DAG("decorated") as dag:

        @task
        def numbers() -> list[float]:
            return [1.5, 2.5]

        @task.tfjob(workers=2, python=sys.executable, config_file=site.kubeconfig, deferrable=True)
        def add(values: list[float], *, more: dict[str, float], text: str) -> dict[str, object]:
            """Add the values, and print the replica."""
            import json
            import os

            me = json.loads(os.environ["TF_CONFIG"])["task"]
            print(f"{text} of {me['type']} {me['index']}")
            return {"total": sum(values) + more["x"], "checkpoint": "/tmp/m", "leads": me["index"] == 0, "parts": [1]}

        @task
        def double(total: float) -> float:
            return 2 * total

        double(add(numbers(), more={"x": 1.0}, text="'\"$(HOME) {{ dag.dag_id }}")["total"])

    found = run(dag)
    assert set(found.tasks.values()) == {"success"}
    assert found.xcom("add") == {"total": 5.0, "checkpoint": "/tmp/m", "leads": True, "parts": [1]}
    assert found.xcom("double") == 10.0
    result = found.xcom("add", "result")
    assert (result["metrics"], result["checkpoint"]) == ({"total": 5.0}, "/tmp/m")
    assert result["name"].startswith("add-")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("import os; os._exit(0)", "the value of its function is not in its leader's log"),
    ],
)
def test_task_fails_without_return_value(
    site: Site, tmp_path: Path, body: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.py").write_text(f"def bad():\n    {body}\n")
    spec = importlib.util.spec_from_file_location("bad", tmp_path / "bad.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with DAG("bad") as dag:
        task.tfjob(module.bad, python=sys.executable, config_file=site.kubeconfig)()
    assert run(dag).tasks == {"bad": "failed"}
    assert told in capfd.readouterr().out


def test_parameter_servers_run_standard_server() -> None:
    with DAG("servers") as dag:

        @task.tfjob(workers=2, ps=1)
        def train() -> float:
            return 0.5

        train()
    operator: Any = dag.get_task("train").prepare_for_execution()
    operator.render_template_fields({"ti": None})
    replicas = operator.job["spec"]["tfReplicaSpecs"]
    scripts = {name: group["template"]["spec"]["containers"][0]["command"][-1] for name, group in replicas.items()}
    assert "def train" in scripts["Worker"]
    assert "def train" not in scripts["PS"]
    compile(scripts["PS"], "ps", "exec")
    assert "tf.distribute.Server(" in scripts["PS"]


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is missing: pip install '.[tensorflow]'"
)
def test_workers_use_parameter_server_and_task_returns_value_of_worker_0(site: Site) -> None:
    """With real TensorFlow, a variable is on the standard server and each worker adds to it."""
    with DAG("trains") as dag:

        @task.tfjob(workers=2, ps=1, python=sys.executable, config_file=site.kubeconfig, multiple_outputs=True)
        def train(rate: float):  # type: ignore[no-untyped-def]
            import json
            import os
            import time

            import tensorflow as tf

            config = json.loads(os.environ["TF_CONFIG"])
            me = config["task"]
            v1 = tf.compat.v1
            v1.disable_eager_execution()
            server = v1.train.Server(config["cluster"], job_name=me["type"], task_index=me["index"])
            with tf.device("/job:ps/task:0"):
                total = v1.get_variable("total", initializer=0.0)
            only = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{me['index']}"])
            with v1.Session(server.target, config=only) as session:
                if me["index"] == 0:
                    session.run(total.initializer)
                while not session.run(v1.is_variable_initialized(total)):
                    time.sleep(0.1)
                session.run(total.assign_add(rate * (me["index"] + 1)))
                while session.run(total) < 3 * rate:  # until both have added to the same variable
                    time.sleep(0.1)
                return {"total": float(session.run(total)), "where": total.device, "worker": me["index"]}

        train(0.5)

    found = run(dag)
    assert found.tasks == {"train": "success"}
    expected = {"total": 1.5, "where": "/job:ps/task:0", "worker": 0}
    assert found.xcom("train") == expected
    assert {key: found.xcom("train", key) for key in expected} == expected
    assert found.xcom("train", "result")["metrics"]["total"] == 1.5


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ({"command": ["python3", "train.py"]}, ["command"]),
        ({"job": "file.yaml", "workers": 2}, ["job"]),
        ({"job": {"kind": "TFJob"}, "command": ["a"]}, ["command", "job"]),
    ],
)
def test_rejects_arguments_that_replace_function(given: dict[str, Any], paths: list[str]) -> None:
    with DAG("other"):

        @task.tfjob(**given)
        def train() -> None:
            pass

        with pytest.raises(InvalidJob) as caught:
            train()
    assert [problem.path for problem in caught.value.problems] == paths
    assert all("TFJobOperator" in problem.hint for problem in caught.value.problems)


def test_rejects_arguments_that_are_too_large_or_not_json(site: Site) -> None:
    with DAG("refused") as dag:

        @task.tfjob(config_file=site.kubeconfig)
        def train(value: object) -> None:
            pass

        train.override(task_id="no_json")({1, 2})
        train.override(task_id="large")("x" * 200_000)

    found = run(dag)
    assert found.tasks == {"no_json": "failed", "large": "failed"}


# Characters with a special meaning for Kubernetes, Jinja, a shell, or Python's literals and lines.
WORDS = ["$", "$$", "$$$", "$(HOME)", "$$(HOME)", "${HOME}", "a\\b\\n", "one\r\ntwo", "{0}%s", "\u2028\x85é'\""]
MODULE = """
if True:
    def check(words, *, rendered):
        '''Its $source has $$, $(HOME) and {{ braces }}.'''
        import zlib

        own = ['$', '$$', '$(HOME)', '$$(HOME)', '{{ braces }} {0}', '\\\\ \\x41', 'next\x85line\u2028 page\x0c', '''
# $$ at the beginning of a line
two
''']
        seen = {"own": repr(own), "words": repr(words), "rendered": rendered}
        return {name: zlib.crc32(text.encode()) for name, text in seen.items()}
"""


def test_function_and_arguments_arrive_unchanged(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "written.py"
    path.write_bytes(MODULE.replace("\n", "\r\n").encode())
    spec = importlib.util.spec_from_file_location("written", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with DAG("verbatim", user_defined_macros={"braces": "{{ x }} {% raw %}"}) as dag:
        check = task.tfjob(module.check, python=sys.executable, config_file=site.kubeconfig)
        check(WORDS, rendered="{{ braces }}")
    found = run(dag)
    assert found.tasks["check"] == "success"
    expected = module.check(WORDS, rendered="{{ x }} {% raw %}")
    assert found.xcom("check") == expected


VALUES = """
def numbers(value):
    import enum
    import sys
    from datetime import date
    from pathlib import Path

    import numpy as np

    class Color(enum.Enum):
        RED = "red"

    class Odd:
        def __str__(self):
            return "odd"

    sys.stdout.write("no line end")
    assert value == [1.5, [1, 2], 3.0], value
    return {
        "f": np.float32(0.5), "i": np.int64(3), "b": np.bool_(True), "a": np.arange(3), "m": np.eye(2),
        "set": {2, 1}, "frozen": frozenset("a"), "nan": float("nan"), "inf": [np.inf, -np.inf], "t": (1, 2),
        "d": date(2026, 1, 2), "p": Path("/m"), "e": Color.RED, "bytes": b"x", "odd": Odd(), "c": 1j,
        5: {np.int64(7): 1},
        "none": None, "text": "é\u2028", "dt": np.datetime64("2026-01-02"),
    }
"""


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="numpy is missing: pip install numpy")
@pytest.mark.parametrize("deferrable", [False, True])
def test_returns_python_and_numpy_values_as_json(site: Site, tmp_path: Path, deferrable: bool) -> None:
    import numpy as np

    (tmp_path / "values.py").write_text(VALUES)
    spec = importlib.util.spec_from_file_location("values", tmp_path / "values.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with DAG("values") as dag:
        numbers = task.tfjob(module.numbers, python=sys.executable, config_file=site.kubeconfig, deferrable=deferrable)
        numbers([np.float64(1.5), np.array([1, 2]), 3.0])
    found = run(dag)
    assert found.tasks == {"numbers": "success"}
    assert found.xcom("numbers") == {
        "f": 0.5,
        "i": 3,
        "b": True,
        "a": [0, 1, 2],
        "m": [[1.0, 0.0], [0.0, 1.0]],
        "set": [1, 2],
        "frozen": ["a"],
        "nan": "nan",
        "inf": ["inf", "-inf"],
        "t": [1, 2],
        "d": "2026-01-02",
        "p": "/m",
        "e": "red",
        "bytes": "b'x'",
        "odd": "odd",
        "c": "1j",
        "5": {"7": 1},
        "none": None,
        "text": "é\u2028",
        "dt": "2026-01-02",
    }
    assert found.xcom("numbers", "result")["metrics"]["f"] == 0.5
