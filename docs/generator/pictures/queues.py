"""Use of three queues over time: jobs that only wait, on an embedded cluster with the queues of ``examples``."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from docs.generator.pictures import ROOT, keep
from docs.generator.pictures.svg import stacked
from tf_dist.client.tfjob import TFJob
from tf_dist.cluster.api import QUEUES, TFJOBS
from tf_dist.local.embedded import EmbeddedCluster, EmbeddedSettings

COLOURS = {"vision": "#3f7fbf", "speech": "#e08a3c", "spare": "#9bb55a"}
_END = 34.0
# When which queue gets a job: its GPUs, and for how long it works.
_PLAN = (
    *((0.0, "vision", 2, 14.0) for _ in range(5)),
    (3.0, "spare", 2, 40.0),
    *((9.0, "speech", 1, 9.0) for _ in range(4)),
    *((16.0, "vision", 2, 8.0) for _ in range(3)),
    (20.0, "spare", 4, 10.0),
)
_NOTES = (
    (0.0, "vision: 5 × 2"),
    (3.0, "spare: 2, which wait"),
    (9.0, "speech: 4 × 1"),
    (16.0, "vision: 3 × 2"),
    (20.0, "spare: 4 more"),
)


def use() -> None:
    """Keep ``queues.svg``."""
    with tempfile.TemporaryDirectory() as folder:
        settings = EmbeddedSettings(
            state_dir=Path(folder), serve=False, capacity={"nvidia.com/gpu": "12", "cpu": "96", "memory": "384Gi"}
        )
        with EmbeddedCluster(settings) as here:
            for queue in yaml.safe_load_all((ROOT / "examples/queues/two-teams.yaml").read_text()):
                here.cluster.create(QUEUES, None, queue)
            every = list(_samples(here))
    # Where something changes, and the end.
    samples = [one for before, one in zip([(0.0, None), *every], every, strict=False) if one[1] != before[1]] + every[
        -1:
    ]
    times = [time for time, _ in samples]
    curves = {name: [held.get(name, 0.0) for _, held in samples] for name in COLOURS}
    keep(
        "queues.svg",
        stacked("GPUs held by the jobs of three queues", "seconds", times, curves, COLOURS, {"12 GPUs": 12}, _NOTES),
    )


def _samples(here: EmbeddedCluster) -> Iterator[tuple[float, dict[str, float]]]:
    began, left, pause = time.monotonic(), list(enumerate(_PLAN)), threading.Event()
    while (now := time.monotonic() - began) < _END:
        while left and left[0][1][0] <= now:
            number, (_, queue, gpus, seconds) = left.pop(0)
            here.cluster.create(TFJOBS, "default", _job(f"{queue}-{number}", queue, gpus, seconds).to_dict())
        held: dict[str, float] = {}
        for job in here.cluster.list(TFJOBS, "default").items:
            told = (job.get("status") or {}).get("tfDist") or {}
            if told.get("admission") and told.get("phase") not in ("Completed", "Failed"):
                queue = job["spec"]["runPolicy"]["schedulingPolicy"]["queue"]
                held[queue] = held.get(queue, 0.0) + int(job["metadata"]["annotations"]["gpus"])
        yield now, held
        pause.wait(0.1)


def _job(name: str, queue: str, gpus: int, seconds: float) -> TFJob:
    return TFJob(
        name,
        image="python:3.12",
        command=["python", "-c", f"import time; time.sleep({seconds})"],
        workers=1,
        resources={"nvidia.com/gpu": gpus, "cpu": "1"},
        queue=queue,
        annotations={"gpus": str(gpus)},
        restart_policy="ExitCode",
    )
