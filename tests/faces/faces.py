"""Interfaces: each runs a case like its users do, and returns the outcome in the same form."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.airflow.conftest import INSTALLED
from tests.airflow.instance import Instance
from tests.argo.stage import Stage
from tests.cli import ready
from tests.cli.conftest import surroundings
from tests.faces.cases import COMMAND, PYTHON, STEP, TRIGGERER, WORKER, Case
from tf_dist import Client, TFJob, run
from tf_dist.core.pipeline.run_options import Face, RunOptions, options_of
from tf_dist.errors import TFDistError

SECONDS = 90

if INSTALLED:
    # Import here, because concurrent imports in the threads that run cases would wait for each other.
    import tf_dist.airflow.jobs.job_waiter
    import tf_dist.airflow.operators.task_run  # noqa: F401
    from tf_dist.airflow import TFJobOperator
    from tf_dist.airflow.version_compat import AirflowFailException, TaskDeferred


@dataclass(frozen=True)
class Ended:
    """The result of a case in an interface: its outcome, or why the job was rejected."""

    outcome: Mapping[str, Any]
    refused: str = ""


def refused(text: object) -> Ended:
    """The result of a job that was never created."""
    return Ended({"kind": "invalid"}, str(text))


def called(case: Case, face: Face) -> dict[str, Any]:
    """The options of a case, with the names of an interface."""
    names = {row.name: name for name, row in options_of(RunOptions, face).items()}
    return {names[name]: value for name, value in case.options.items()}


def on_command(stage: Stage, case: Case, folder: Path) -> Ended:
    """``tf-dist run FILE --kubeconfig FILE -o json``."""
    file = _file(case, folder)
    given: list[str] = []
    for name, value in case.options.items():
        match name:
            case "overrides":
                given += [f"--set={path}={json.dumps(one)}" for path, one in value.items()]
            case "fallback":
                given += [f"--fallback={json.dumps(one)}" for one in value]
            case _:
                given.append(f"--{name.replace('_', '-')}={value}s")
    command = ["run", str(file), f"--kubeconfig={stage.kubeconfig()}", "-o", "json", *given]
    done = ready.run(command, folder, surroundings(folder, stage.scratch), b"", timeout=SECONDS)
    text = done.stdout.decode()
    return Ended(json.loads(text)["outcome"]) if text.startswith("{") else refused(done.stderr.decode())


def in_python(stage: Stage, case: Case, folder: Path) -> Ended:
    """``tf_dist.run(FILE, client=…)``."""
    with Client(kubeconfig=stage.kubeconfig()) as client:
        try:
            job = TFJob.from_file(_file(case, folder))
            return Ended(run(job, client=client, show=False).outcome.document())
        except TFDistError as error:
            return refused(error)


def in_worker(stage: Stage, case: Case, folder: Path) -> Ended:
    """An operator that waits in the worker."""
    return _airflow(stage, case, folder, deferrable=False)


def in_triggerer(stage: Stage, case: Case, folder: Path) -> Ended:
    """An operator that defers."""
    return _airflow(stage, case, folder, deferrable=True)


def _airflow(stage: Stage, case: Case, folder: Path, *, deferrable: bool) -> Ended:
    task = TFJobOperator(
        task_id="train",
        job=str(_file(case, folder)),
        config_file=stage.kubeconfig(),
        deferrable=deferrable,
        **called(case, Face.OPERATOR),
    )
    instance = Instance(uuid.uuid4().hex, max_tries=0)
    try:
        task.execute(instance.context())
    except TaskDeferred as request:
        try:
            task.execute_complete(instance.context(), asyncio.run(_event(request.trigger)))
        except TFDistError as error:
            return Ended(instance.xcoms["outcome"], "" if instance.xcoms.get("job_name") else str(error))
    except AirflowFailException as error:
        return refused(error)
    except TFDistError:
        assert not deferrable
    return Ended(instance.xcoms["outcome"])


async def _event(trigger: Any) -> Any:
    async for event in trigger.run():
        return event.payload
    raise AssertionError("a trigger without an event")


def as_step(stage: Stage, case: Case, folder: Path) -> Ended:
    """The launcher of a step of a workflow."""
    metadata = stage.workflow()["metadata"]
    document = {
        "job": [case_document(case, folder), *case.beside],
        **called(case, Face.LAUNCHER),
        "workflow": metadata["name"],
        "workflow_uid": metadata["uid"],
        "node": "wf.train",
        "out": str(folder / "out"),
        "kubeconfig": stage.kubeconfig(),
    }
    environment = surroundings(folder, stage.scratch)
    done = ready.run(["argo-launch", json.dumps(document)], folder, environment, b"", timeout=SECONDS)
    out = {path.name: path.read_text() for path in (folder / "out").iterdir() if path.is_file()}
    if out["outcome"] == "invalid":
        return refused(done.stderr.decode() + done.stdout.decode())
    return Ended(step_outcome(out))


def step_outcome(out: Mapping[str, str]) -> dict[str, Any]:
    """The outcome in the output parameters of a step."""
    numbers = {name: int(out[name]) for name in ("restarts", "disruptions", "preemptions", "fallback")}
    numbers |= {name: int(out[name.replace("_", "-")]) for name in ("gpu_seconds", "lost_gpu_seconds")}
    texts = {name: out[name] for name in ("reason", "message", "replica", "checkpoint")}
    code = int(out["exit-code"]) if out["exit-code"] else None
    return {"kind": out["outcome"], "exit_code": code, "metrics": json.loads(out["metrics"]), **numbers, **texts}


def case_document(case: Case, folder: Path) -> Any:
    """The document, with the test's folder inserted."""
    return json.loads(json.dumps(case.document).replace("@FOLDER@", str(folder)))


def _file(case: Case, folder: Path) -> Path:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump_all([case_document(case, folder), *case.beside]))
    return file


RUN_ON: Mapping[str, Callable[[Stage, Case, Path], Ended]] = {
    COMMAND: on_command,
    PYTHON: in_python,
    WORKER: in_worker,
    TRIGGERER: in_triggerer,
    STEP: as_step,
}
