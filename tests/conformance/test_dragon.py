"""The DRAGON fork of v1alpha1, branch ``auto-scale``: ``pkg/apis/tensorflow/v1alpha1/types.go``, ``pkg/trainer``."""

from __future__ import annotations

import pytest

from tests.core.builders import START
from tests.core.dialects.documents import changed, v1alpha1
from tf_dist.core.api.status import Admission, Phase, Status
from tf_dist.core.dialects import parse
from tf_dist.core.reconciler.status_writer import build_status

FIELDS = ("enqueueScheduleTime", "startRunTime", "jobFinishTime", "runningReplicas")
MOMENT = 1525879176.0  # its own example: 2018-05-09T15:19:36
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
def test_times_and_running_replicas(status: Status, expected: tuple[str, str, str, int]) -> None:
    told = build_status(JOB, status, {}, START)
    assert tuple(told.get(key, "") for key in FIELDS) == expected
