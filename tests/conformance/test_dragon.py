"""The DRAGON fork of v1alpha1, branch ``auto-scale``: ``pkg/apis/tensorflow/v1alpha1/types.go``, ``pkg/trainer``."""

from __future__ import annotations

import pytest

from tests.core.builders import written_status
from tests.core.dialects.documents import changed, v1alpha1
from tests.core.world import World
from tf_dist.core.dialects import parse
from tf_dist.core.model.assignment import Admit, Resize, with_replica_counts
from tf_dist.core.model.job import ReplicaId
from tf_dist.core.model.status import Admission, Phase, Status
from tf_dist.core.podbuilder.replica_pod import build_pod

FIELDS = ("enqueueScheduleTime", "startRunTime", "jobFinishTime", "runningReplicas")
MOMENT = 1525879176.0  # the fork's own example: 2018-05-09T15:19:36
JOB = parse(changed(v1alpha1(), "spec.max-instance", 4)).job


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (Status(), ("", "", "", 0)),
        (Status(created=MOMENT), ("2018.05.09-15:19:36", "", "", 0)),
        (
            Status(phase=Phase.RUNNING, created=MOMENT, start_time=MOMENT + 60, admission=Admission(MOMENT + 60)),
            ("2018.05.09-15:19:36", "2018.05.09-15:20:36", "", 2),
        ),
        (
            Status(
                phase=Phase.RUNNING,
                created=MOMENT,
                start_time=MOMENT,
                admission=Admission(MOMENT, sizes={"master": 1, "worker": 3, "ps": 1}),
            ),
            ("2018.05.09-15:19:36", "2018.05.09-15:19:36", "", 3),
        ),
        (
            Status(phase=Phase.COMPLETED, created=MOMENT, start_time=MOMENT + 1, completion_time=MOMENT + 3600),
            ("2018.05.09-15:19:36", "2018.05.09-15:19:37", "2018.05.09-16:19:36", 0),
        ),
    ],
)
def test_status_has_times_and_running_replicas(status: Status, expected: tuple[str, str, str, int]) -> None:
    told = written_status(JOB, status)
    assert tuple(told.get(key, "") for key in FIELDS) == expected


def arguments_of(arguments: list[str], total: int, workers: int, kind: str = "worker") -> list[str]:
    """The arguments of a pod's training container, in a job that runs with this number of workers."""
    document = v1alpha1()
    for at in (0, 1):
        document = changed(document, f"spec.replicaSpecs.{at}.template.spec.containers.0.args", arguments)
    job = parse(changed(changed(document, "spec.total-number", total), "spec.max-instance", 8)).job
    sized = with_replica_counts(job, {"master": 1, "worker": workers, "ps": 1})
    pod = build_pod(sized, ReplicaId(kind, 0), "1")
    return list(pod["spec"]["containers"][0]["args"])


BENCHMARK = ["python", "cnn.py", "--model=resnet50", "--batch_size=32", "--variable_update=parameter_server"]
BENCHMARK += ["--local_parameter_device=cpu", "--device=gpu", "--num_batches=200", "--data_format=NHWC"]


@pytest.mark.parametrize(
    ("total", "workers", "share"),
    [(1000, 1, "1000"), (1000, 2, "500"), (1000, 3, "333"), (1000, 8, "125"), (1, 4, "1")],
)
def test_worker_trains_its_share_of_total(total: int, workers: int, share: str) -> None:
    """``CreatePodsAndRunJob``: the total, divided by the workers that start, replaces the eighth argument."""
    expected = [*BENCHMARK[:7], f"--num_batches={share}", BENCHMARK[8]]
    assert arguments_of(BENCHMARK, total, workers) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--num_batches", "200", "--x"], ["--num_batches", "500", "--x"]),
        (["--num-batches=200"], ["--num-batches=500"]),
        (["-num_batches=200"], ["-num_batches=500"]),
        (["a", "--num_batches="], ["a", "--num_batches=500"]),
        (["a", "--num_batches"], ["a", "--num_batches"]),
        ([f"--{at}" for at in range(9)], [f"--{at}" for at in range(9)]),
        (["--num_batches_per_epoch=3", "x --num_batches=1"], ["--num_batches_per_epoch=3", "x --num_batches=1"]),
    ],
)
def test_only_num_batches_flag_is_replaced(arguments: list[str], expected: list[str]) -> None:
    assert arguments_of(arguments, 1000, 2) == expected


def test_total_is_divided_again_after_resize() -> None:
    """A deliberate difference: ``ScaleUp`` deducts the steps in the workers' logs, although all workers start from new
    weights unless their program saves checkpoints.
    """
    document = changed(v1alpha1(), "spec.replicaSpecs.1.template.spec.containers.0.args", BENCHMARK)
    document = changed(changed(document, "spec.total-number", 1200), "spec.max-instance", 8)
    world = World(parse(document).job)
    shares = []
    for verdict in (
        Admit(sizes={"master": 1, "worker": 2, "ps": 1}),
        Resize(sizes={"master": 1, "worker": 4, "ps": 1}, placement={}, message="no gang waits"),
    ):
        world.verdict = verdict
        world.settle()
        for pod in world.pods.values():
            world.run(pod)
        world.settle()
        workers = [pod["spec"]["containers"][0] for name, pod in world.pods.items() if "-worker-" in name]
        shares.append([argument for one in workers for argument in one["args"] if "num_batches" in argument])
    assert shares == [["--num_batches=600"] * 2, ["--num_batches=300"] * 4]


def test_arguments_are_unchanged_without_total_and_for_other_types() -> None:
    assert arguments_of(BENCHMARK, 0, 2) == BENCHMARK
    assert arguments_of(BENCHMARK, 1000, 2, kind="master") == BENCHMARK
