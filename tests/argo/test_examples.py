"""Every example runs: a double of Argo runs its YAML with real processes and launchers.

Examples that evaluate a model train with TensorFlow. The others run a program with the same output and files
(tests/stand_in).
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
import yaml

hera = pytest.importorskip("hera.workflows", reason="Hera is missing: pip install '.[argo]'")


from tests.argo.rendered import FOLDER, documents  # noqa: E402
from tests.argo.runner import Place, Runner, spec_of  # noqa: E402
from tests.argo.stage import Stage, stage  # noqa: E402
from tests.waiting import until  # noqa: E402
from tf_dist.cluster.api import PODS, TFJOBS  # noqa: E402

DIGITS = FOLDER.parent / "examples" / "digits"
STAND_IN = Path(__file__).parents[1] / "stand_in"
SHORT = {"steps": "300"}


def trains(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that trains with TensorFlow."""
    for mark in (
        pytest.mark.slow,
        pytest.mark.tensorflow,
        pytest.mark.timeout(900),
        pytest.mark.skipif(
            importlib.util.find_spec("tensorflow") is None,
            reason="TensorFlow is missing: pip install '.[tensorflow]'",
        ),
    ):
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def theatres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Stage]]:
    """One cluster for each folder in which programs start."""
    with ExitStack() as stack:

        @cache
        def theatre(workdir: Path) -> Stage:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="ta-", ignore_cleanup_errors=True))
            return stack.enter_context(stage(tmp_path_factory.mktemp("argo"), scratch, workdir=workdir))

        yield theatre


@pytest.fixture
def workdir(request: pytest.FixtureRequest) -> Path:
    """The folder of the training program."""
    return DIGITS if request.node.get_closest_marker("tensorflow") else STAND_IN


@pytest.fixture
def theatre(theatres: Callable[[Path], Stage], workdir: Path) -> Stage:
    return theatres(workdir)


class Lines:
    """The output of a workflow."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def __call__(self, line: object) -> None:
        self.all.append(str(line))

    def __repr__(self) -> str:
        return "\n".join(self.all[-200:])


@pytest.fixture
def place(theatre: Stage, tmp_path: Path, workdir: Path) -> Place:
    mounts = {"/models": tmp_path / "models"}
    return Place(theatre.cluster, theatre.kubeconfig(), tmp_path / "pods", mounts, workdir, Lines())


def library() -> dict[str, object]:
    return {one["metadata"]["name"]: one for one in documents().values() if "name" in one["metadata"]}


def runner(place: Place, name: str, payload: object = None, **parameters: str) -> Runner:
    return Runner(place, spec_of(documents()[name], library(), payload), parameters)


def said(place: Place, text: str) -> bool:
    assert isinstance(place.say, Lines)
    return any(text in line for line in place.say.all)


def test_digits_train_reports_outputs(place: Place) -> None:
    run = runner(place, "digits-train.yaml", **SHORT)
    assert run.run() == "Succeeded", place.say
    outputs = run.nodes[run.name].outputs
    assert outputs["status"] == "Succeeded"
    assert float(outputs["accuracy"]) > 0.2
    assert Path(f"{outputs['checkpoint']}.index").exists()
    assert said(place, "worker-1 | ")


@trains
def test_retrain_promotes_only_better_model(place: Place) -> None:
    first = runner(place, "digits-retrain.yaml", **SHORT)
    assert first.run() == "Succeeded", place.say
    assert first.node("promote").phase == "Succeeded"
    production = place.mounts["/models"] / "production"
    accuracy = float((production / "accuracy").read_text())
    assert first.node("evaluate").outputs["accuracy"] == f"{accuracy:.4f}"
    assert first.nodes[f"{first.name}.onExit"].phase == "Succeeded"
    second = runner(place, "event-retrain.yaml", {"steps": 2})
    assert second.run() == "Succeeded", place.say
    assert second.node("promote").phase == "Skipped"
    assert float((production / "accuracy").read_text()) == accuracy


@trains
def test_cron_workflow_starts_retrain_template(place: Place) -> None:
    spec = spec_of(documents()["cron-retrain.yaml"], library())
    assert spec["entrypoint"] == "retrain"
    assert {"name": "steps", "value": "4000"} in spec["arguments"]["parameters"]
    run = Runner(place, spec, SHORT)
    assert run.run() == "Succeeded", place.say


@pytest.mark.slow
def test_sweep_finds_best_learning_rate(place: Place) -> None:
    run = runner(place, "sweep.yaml", steps="200", **{"learning-rates": "[0.0001, 0.05]"})
    assert run.run() == "Succeeded", place.say
    assert run.node("choose").outputs["best"] == "0.05"
    results = run.node("train").outputs
    assert [one["status"] for one in results] == ["Succeeded", "Succeeded"]
    assert len({one["job"] for one in results}) == 2


def test_stopped_workflow_runs_exit_handler_and_leaves_nothing(place: Place, theatre: Stage) -> None:
    run = runner(place, "digits-retrain.yaml", steps="100000000")
    thread = threading.Thread(target=run.run)
    thread.start()
    try:
        until(lambda: said(place, "step=") or not thread.is_alive(), 300)
        run.stop()
    finally:
        thread.join()
    assert run.phase == "Failed"
    assert run.node("train").outputs == {}
    assert said(place, "asked to stop: the workflow was asked to shut down (Stop); the job: delete")
    assert run.nodes[f"{run.name}.onExit"].phase == "Succeeded"
    uid = run.stored["metadata"]["uid"]
    jobs = theatre.cluster.list(TFJOBS, "default", labels=f"tf-dist.dev/workflow-uid={uid}").items
    assert jobs == []
    until(lambda: not theatre.cluster.list(PODS, labels=f"workflows.argoproj.io/workflow={run.name}").items, 120)


@pytest.mark.slow
def test_resume_step_runs_after_eviction(place: Place, theatre: Stage) -> None:
    def worker() -> list[str]:
        pods = theatre.cluster.list(PODS, "default").items
        running = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
        return [pod["metadata"]["name"] for pod in running if pod["metadata"]["name"].endswith("worker-1")]

    run = runner(place, "evicted-or-failed.yaml", steps="20000")
    thread = threading.Thread(target=run.run)
    thread.start()
    try:
        until(lambda: bool(worker()) or not thread.is_alive(), 120)
        theatre.cluster.delete(PODS, "default", worker()[0])
    finally:
        thread.join()
    outputs = run.node("train").outputs
    assert (outputs["outcome"], outputs["replica"], outputs["disruptions"]) == ("evicted", "worker-1", "1"), place.say
    assert run.node("resume").phase == "Succeeded", place.say
    assert f"{run.name}.page" not in run.nodes
    assert run.node("resume").outputs["outcome"] == "succeeded"
    assert run.phase == "Succeeded"


def test_gang_fallback_runs_smaller_gang(place: Place) -> None:
    text = json.dumps(spec_of(documents()["gang-fallback.yaml"], library()))
    for written, here in (
        ('Worker.replicas\\": 8', 'Worker.replicas\\": 500'),  # more than any machine has
        ('\\"workers\\": 4', '\\"workers\\": 1'),
        ('{\\"nvidia.com/gpu\\": 1}', "{}"),
        ("10m", "1s"),
    ):
        assert written in text
        text = text.replace(written, here)
    run = Runner(place, json.loads(text), {"steps": "200", "image": "tf-dist/digits:latest"})
    assert run.run() == "Succeeded", place.say
    outputs = run.node("train").outputs
    assert (outputs["outcome"], outputs["fallback"]) == ("succeeded", "1")
    assert said(place, "succeeded: fallback 1")


@pytest.mark.slow
def test_gang_that_is_never_admitted_fails(place: Place) -> None:
    spec = json.loads(json.dumps(spec_of(documents()["gang-fallback.yaml"], library())))
    (train,) = [one for one in spec["templates"] if one["name"] == "train"]
    train["container"]["args"] += ["admission_timeout=1s"]  # no node here has a GPU
    train["retryStrategy"]["limit"] = 0
    run = Runner(place, spec, {"steps": "200"})
    assert run.run() == "Failed", place.say
    assert run.node("train").outputs["outcome"] == "admission_timeout"
    assert said(place, "admission_timeout: fallback 0")


@pytest.mark.slow
def test_memoized_training_is_not_repeated(place: Place, theatre: Stage) -> None:
    first = runner(place, "train-once.yaml", steps="200")
    assert first.run() == "Succeeded", place.say
    second = runner(place, "train-once.yaml", steps="200")
    assert second.run() == "Succeeded", place.say
    assert second.node("train").outputs == first.node("train").outputs
    assert (first.node("train").tries, second.node("train").tries) == (1, 0)
    other = runner(place, "train-once.yaml", steps="300")
    assert other.run() == "Succeeded", place.say
    assert other.node("train").tries == 1


def test_new_data_event_starts_retrain_template() -> None:
    """The test creates the Sensor's object with the event's body, like Argo Events."""
    source, sensor = yaml.safe_load_all((FOLDER / "new-data.yaml").read_text())
    (dependency,) = sensor["spec"]["dependencies"]
    assert dependency["eventSourceName"] == source["metadata"]["name"]
    assert dependency["eventName"] in source["spec"]["webhook"]
    (trigger,) = sensor["spec"]["triggers"]
    created = trigger["template"]["k8s"]["source"]["resource"]
    (put,) = trigger["template"]["k8s"]["parameters"]
    assert (put["src"]["dependencyName"], put["src"]["dataKey"]) == (dependency["name"], "body.steps")
    place, path = created, put["dest"].split(".")
    for part in path[:-1]:
        place = place[int(part)] if part.isdigit() else place[part]
    place[path[-1]] = 6000
    spec = spec_of(created, library())
    assert {"name": "steps", "value": "6000"} in spec["arguments"]["parameters"]
    assert spec["entrypoint"] == "retrain"
    rbac = yaml.safe_load_all((FOLDER / "rbac.yaml").read_text())
    accounts = {one["metadata"]["name"] for one in rbac if one["kind"] == "ServiceAccount"}
    assert sensor["spec"]["template"]["serviceAccountName"] in accounts


def test_page_step_runs_after_failure(place: Place) -> None:
    spec = json.loads(json.dumps(spec_of(documents()["evicted-or-failed.yaml"], library())))
    text = json.dumps(spec)
    trains = r"[\"python\", \"train.py\"]"
    assert trains in text
    text = text.replace(trains, r"[\"python\", \"-c\", \"raise SystemExit(3)\"]")

    run = Runner(place, json.loads(text), {"steps": "200"})
    assert run.run() == "Failed", place.say
    outputs = run.node("train").outputs
    assert (outputs["outcome"], outputs["exit-code"]) == ("failed", "3"), place.say
    assert (run.node("resume").phase, run.node("page").phase) == ("Skipped", "Failed")
    assert said(place, "failed: worker-")


@pytest.mark.slow
def test_retryable_exit_code_starts_next_try(place: Place) -> None:
    spec = json.loads(json.dumps(spec_of(documents()["digits-train.yaml"], library())))
    template = spec["templates"][0]
    # No machine has free capacity for 500 workers, so each try ends with exit code 75.
    template["container"]["args"] += ["admission_timeout=1s", "workers=500"]
    template["retryStrategy"]["limit"] = 1
    run = Runner(place, spec, SHORT)
    assert run.run() == "Failed"
    node = run.nodes[run.name]
    assert (node.tries, node.exit_code) == (2, 75)
    assert node.outputs["status"] == "PendingTimeout"
