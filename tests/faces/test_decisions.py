"""A table of situations with the decisions of all interfaces: the reported outcome, and whether the job is kept.

Unlike in the cases, no pods run. The test writes statuses like a controller, so that limits, deletions and rejected
specs happen at the right moment.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tests.airflow.conftest  # noqa: F401 (before Airflow is imported: it reads its environment once)
from tests.airflow.instance import Instance, deferred, event_of
from tests.airflow.light import LightSite, light_site
from tests.airflow.site import SECONDS, document
from tests.argo.launcher.launching import Launcher
from tests.leaderless import held_lease
from tests.waiting import until
from tf_dist import Client, TFJob, run
from tf_dist.argo.launcher.launcher_arguments import LauncherOptions
from tf_dist.cli import main
from tf_dist.client import exit_codes
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import PODS, TFJOBS
from tf_dist.core.model.job import ReplicaId
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.core.model.status import Admission, Failure, Phase, RefusedSpec, Status
from tf_dist.core.model.status_codec import dump_status
from tf_dist.core.pipeline.adoption import DriverChoice
from tf_dist.core.podbuilder.replica_pod import build_pod
from tf_dist.errors import AdmissionTimeout, ImagePullFailed, JobEvicted, JobFailed, JobOutcomeError, JobTimeout

SHORT = 0.3


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What happens to a job after its creation, and the decisions of all interfaces."""

    kind: OutcomeKind
    error: type[JobOutcomeError] | None
    """The error that Python and Airflow raise."""
    code: int
    """The exit code of a command and of a launcher."""
    stays: bool
    """Whether a task and a step keep the job in the cluster. A command always deletes the job."""
    status: Callable[[float], Status] = lambda now: Status(phase=Phase.RUNNING, admission=Admission(now), created=now)
    """The status that the controller writes at the time ``now`` (epoch seconds)."""
    image: str = ""
    """The reason why the only pod waits."""
    deleted: bool = False
    """Whether another client deletes the job."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """``timeout``, ``admission_timeout`` and ``startup_timeout`` of the interface, in seconds."""
    watched: bool = True
    """Whether a command also ends. Otherwise it continues, because its user may repair the job."""


def ended(phase: Phase, **more: Any) -> Callable[[float], Status]:
    return lambda now: Status(phase=phase, created=now, admission=Admission(now), since=now, **more)


def waits(now: float) -> Status:
    return Status(phase=Phase.PENDING, created=now, since=now)


TAKEN = Failure(event="PodEvicted", replica="worker-0")
SITUATIONS: Mapping[str, Situation] = {
    "succeeded": Situation(
        kind=OutcomeKind.SUCCEEDED, error=None, code=exit_codes.SUCCEEDED, stays=True, status=ended(Phase.COMPLETED)
    ),
    "failed": Situation(
        kind=OutcomeKind.FAILED,
        error=JobFailed,
        code=exit_codes.FAILED,
        stays=True,
        status=ended(Phase.FAILED, failure=Failure(event="PodFailed", replica="worker-0", code=3)),
    ),
    "evicted": Situation(
        kind=OutcomeKind.EVICTED,
        error=JobEvicted,
        code=exit_codes.RETRYABLE,
        stays=True,
        status=ended(Phase.FAILED, reason="PodEvicted", failure=TAKEN),
    ),
    "preempted": Situation(
        kind=OutcomeKind.PREEMPTED,
        error=JobEvicted,
        code=exit_codes.RETRYABLE,
        stays=True,
        status=ended(Phase.FAILED, reason="Preempted", failure=TAKEN),
    ),
    "too slow for itself": Situation(
        kind=OutcomeKind.DEADLINE_EXCEEDED,
        error=JobFailed,
        code=exit_codes.FAILED,
        stays=True,
        status=ended(Phase.FAILED, reason="DeadlineExceeded"),
    ),
    "deleted": Situation(kind=OutcomeKind.DELETED, error=JobFailed, code=exit_codes.FAILED, stays=False, deleted=True),
    "not admitted": Situation(
        kind=OutcomeKind.ADMISSION_TIMEOUT,
        error=AdmissionTimeout,
        code=exit_codes.RETRYABLE,
        stays=False,
        status=waits,
        limits={"admission_timeout": SHORT},
    ),
    "too late": Situation(
        kind=OutcomeKind.DEADLINE_EXCEEDED,
        error=JobTimeout,
        code=exit_codes.FAILED,
        stays=False,
        limits={"timeout": SHORT},
    ),
    "does not start": Situation(
        kind=OutcomeKind.START_TIMEOUT,
        error=JobTimeout,
        code=exit_codes.FAILED,
        stays=False,
        status=lambda now: Status(phase=Phase.PENDING, created=now, admission=Admission(now)),
        limits={"startup_timeout": SHORT},
        watched=False,
    ),
    "no image": Situation(
        kind=OutcomeKind.IMAGE_PULL_FAILED,
        error=ImagePullFailed,
        code=exit_codes.FAILED,
        stays=False,
        status=lambda now: Status(phase=Phase.PENDING, created=now, admission=Admission(now)),
        image="ErrImageNeverPull",
        watched=False,
    ),
    "spec refused": Situation(
        kind=OutcomeKind.INVALID,
        error=JobFailed,
        code=exit_codes.USAGE,
        stays=False,
        status=lambda _: Status(refused_spec=RefusedSpec(generation=1, digest="x", message="spec.x: unknown key")),
        watched=False,
    ),
}


@dataclass
class Stage:
    """A cluster in which the test acts as the controller."""

    light: LightSite
    folder: Path
    situation: Situation
    over: threading.Event = field(default_factory=threading.Event)

    def play(self) -> None:
        """Apply the situation to the first job that is created."""
        until(lambda: bool(self.light.uids()) or self.over.is_set(), SECONDS)
        if self.over.is_set():
            return
        (job,) = self.light.cluster.list(TFJOBS, "default").items
        name, one = job["metadata"]["name"], self.situation
        if one.image:
            body = build_pod(StoredJob(TFJOBS, job).job, ReplicaId("worker", 0), "1.0.0")
            made = self.light.cluster.create(PODS, "default", body)["metadata"]["name"]
            waiting = {"name": "tensorflow", "restartCount": 0, "state": {"waiting": {"reason": one.image}}}
            status = {"phase": "Pending", "containerStatuses": [waiting]}
            self.light.cluster.patch(PODS, "default", made, {"status": status}, subresource="status")
        self.light.status(name, **dump_status(one.status(time.time())))
        if one.deleted:
            self.light.cluster.delete(TFJOBS, "default", name)

    def bury(self) -> None:
        """Remove pods that are being deleted, like a kubelet."""
        for one in self.light.cluster.list(PODS, "default").items:
            if "deletionTimestamp" in one["metadata"]:
                self.light.cluster.delete(PODS, "default", one["metadata"]["name"], grace_period=0)


Face = Callable[[Stage, pytest.CaptureFixture[str]], tuple[str, int | type | None]]
"""The kind of the outcome, and the exit code or the error."""


def command(stage: Stage, capsys: pytest.CaptureFixture[str]) -> tuple[str, int | type | None]:
    (stage.folder / "job.yaml").write_text(json.dumps(document()))
    limits = [f"--timeout={seconds}s" for seconds in stage.situation.limits.values()]
    file, config = str(stage.folder / "job.yaml"), stage.light.kubeconfig
    code = main.run(["run", file, "--kubeconfig", config, "--driver", "controller", "-o", "json", *limits])
    return json.loads(capsys.readouterr().out)["outcome"]["kind"], code


def python(stage: Stage, _: pytest.CaptureFixture[str]) -> tuple[str, int | type | None]:
    timeout = next(iter(stage.situation.limits.values()), None)
    with Client(kubeconfig=stage.light.kubeconfig) as client:
        result = run(TFJob.from_dict(document()), client=client, timeout=timeout, show=False)
    try:
        result.raise_for_outcome()
    except JobOutcomeError as error:
        return result.outcome.kind, type(error)
    return result.outcome.kind, None


def step(stage: Stage, _: pytest.CaptureFixture[str]) -> tuple[str, int | type | None]:
    limits = dict(stage.situation.limits)
    options = LauncherOptions(
        job=json.dumps(document()),
        driver=DriverChoice.CONTROLLER,
        kubeconfig=stage.light.kubeconfig,
        out=stage.folder / "out",
        **({"run_timeout": limits.pop("timeout")} if "timeout" in limits else {}),
        **limits,  # type: ignore[arg-type]
    )
    with Launcher(options) as launcher:
        code = launcher.end(stage.bury)
    return (stage.folder / "out" / "outcome").read_text(), code


def task_in_worker(stage: Stage, _: pytest.CaptureFixture[str]) -> tuple[str, int | type | None]:
    return _task(stage, lambda operator, ti: operator.execute(ti.context()))


def task_deferred(stage: Stage, _: pytest.CaptureFixture[str]) -> tuple[str, int | type | None]:
    return _task(stage, lambda operator, ti: operator.execute_complete(ti.context(), event_of(deferred(operator, ti))))


def _task(stage: Stage, execute: Callable[[Any, Instance], Any]) -> tuple[str, int | type | None]:
    from tf_dist.airflow import TFJobOperator

    limits = dict(stage.situation.limits)
    time_limit = timedelta(seconds=limits.pop("timeout")) if "timeout" in limits else None
    startup = {"startup_timeout_seconds": limits.pop("startup_timeout")} if "startup_timeout" in limits else {}
    operator = TFJobOperator(
        task_id="train",
        job=document(),
        config_file=stage.light.kubeconfig,
        driver="controller",
        on_finish_action="keep_job",
        execution_timeout=time_limit,
        **startup,  # type: ignore[arg-type]
        **limits,  # type: ignore[arg-type]
    )
    instance = Instance("r", max_tries=0)
    raised: type | None = None
    try:
        execute(operator, instance)
    except JobOutcomeError as error:
        raised = type(error)
    return instance.xcoms["outcome"]["kind"], raised


COMMANDS: tuple[Face, ...] = (command, python)
PIPELINES: tuple[Face, ...] = (step, task_in_worker, task_deferred)


CASES = [
    pytest.param(face, situation, id=f"{face.__name__}-{name}")
    for name, situation in SITUATIONS.items()
    for face in (*(COMMANDS if situation.watched else ()), *PIPELINES)
]


@pytest.fixture
def light(tmp_path: Path) -> Iterator[LightSite]:
    """A cluster that runs no pods."""
    with light_site(tmp_path) as found:
        yield found


@pytest.mark.filterwarnings("ignore:::airflow")
@pytest.mark.parametrize(("face", "situation"), CASES)
def test_interfaces_decide_alike(
    light: LightSite, tmp_path: Path, capsys: pytest.CaptureFixture[str], face: Face, situation: Situation
) -> None:
    if face in (task_in_worker, task_deferred):
        pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")
    held_lease(light.cluster, time.time(), duration=3600.0)
    stage = Stage(light, tmp_path, situation)
    player = threading.Thread(target=stage.play)
    player.start()
    try:
        kind, sign = face(stage, capsys)
    finally:
        stage.over.set()
        player.join(SECONDS)
    assert kind == situation.kind
    assert sign == (situation.code if face in (command, step) else situation.error)
    assert bool(light.uids()) is (situation.stays and face in PIPELINES)
