"""Schedules for one defect each, which drawn schedules seldom or never show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.faults.documents import Shape
from tests.faults.proxy import Kind
from tests.faults.schedule import Schedule, Step

_QUIET = (Step("quiet", 20.0, {}),) * 4

DIRECTED: Final[Mapping[str, Schedule]] = {
    # When the watches reconnect after a restore, etcd has newer versions than the watches had seen, so none notices.
    "overtaken": Schedule(
        seed=22,
        company="alone",
        cpus=(2, 2),
        jobs=(Shape(dialect="v1alpha1", workers=3, policy="OnFailure", priority="high"),),
        queues={},
        steps=(Step("calm", 1.0, {"which": 0}), Step("restore_etcd", 10.0, {"back": 1})),
        restless=0.0,
        slow=8.0,
        failing=0.0,
    ),
    # Nothing but the node shows that the waiting job may start.
    "node returns": Schedule(
        seed=1,
        company="alone",
        cpus=(4,),
        jobs=(),
        queues={},
        steps=(
            Step("lose_node", 0.0, {"which": 0, "seconds": 40.0, "taint": False}),
            Step("submit", 1.0, {"name": "a", "shape": Shape(cpu=2)}),
            *_QUIET,
        ),
        restless=0.0,
        failing=0.0,
        longest=200.0,
    ),
    # A deletion is refused as a conflict, and the pod still exists.
    "deletion conflicts": Schedule(
        seed=1,
        company="alone",
        cpus=(4,),
        jobs=(Shape(workers=2, policy="ExitCode"),),
        queues={},
        steps=(
            Step(
                "write_breaks",
                8.0,
                {
                    "which": 0,
                    "kind": Kind.REFUSE,
                    "code": 409,
                    "skip": 0,
                    "times": 1,
                    "verbs": frozenset({"delete"}),
                    "what": "pods",
                    "seconds": 5.0,
                },
            ),
            Step("end_pod", 1.0, {"which": 0, "code": 137}),
            *_QUIET,
        ),
        restless=0.0,
        failing=0.0,
        longest=200.0,
    ),
}
