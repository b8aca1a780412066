"""Schedules for one defect each, which drawn schedules seldom or never show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.faults.documents import Shape
from tests.faults.proxy import Kind
from tests.faults.schedule import ALL_KINDS, Schedule, Step

_QUIET: Final = (Step("quiet", 20.0, {}),) * 4


def _fails(pause: float, which: int, verb: str, what: str, **given: Any) -> Step:
    """Requests of a process fail."""
    usual = {"kind": Kind.REFUSE, "code": 500, "skip": 0, "times": 1, "seconds": 5.0}
    return Step("write_breaks", pause, {"which": which, "verbs": frozenset({verb}), "what": what, **usual, **given})


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
            _fails(8.0, 0, "delete", "pods", code=409),
            Step("end_pod", 1.0, {"which": 0, "code": 137}),
            *_QUIET,
        ),
        restless=0.0,
        failing=0.0,
        longest=200.0,
    ),
    # Hosts hear nothing of the controller that is installed, because the server answers no read of a Lease.
    "leader unknown": Schedule(
        seed=1,
        company="hosts",
        cpus=(4,),
        jobs=(Shape(),),
        queues={},
        steps=(
            _fails(5.0, 0, "get", "leases", times=400),
            _fails(0.0, 1, "get", "leases", times=400),
            Step("install", 0.0, {"kinds": ALL_KINDS, "replicas": 1}),
            *_QUIET,
        ),
        restless=0.0,
        failing=0.0,
    ),
    # A job waits and is then admitted, and the server refuses the only write of its admission.
    "admission refused": Schedule(
        seed=1,
        company="alone",
        cpus=(4,),
        jobs=(),
        queues={},
        steps=(
            Step("lose_node", 0.0, {"which": 0, "seconds": 40.0, "taint": False}),
            Step("submit", 1.0, {"name": "a", "shape": Shape(cpu=2)}),
            _fails(20.0, 0, "update", "tfjobs", code=409),
            *_QUIET,
        ),
        restless=0.0,
        failing=0.0,
        longest=200.0,
    ),
    # The limit of an elastic job without a maximum is its number of replicas, so that scaling changes the limit.
    "scaled down": Schedule(
        seed=1,
        company="alone",
        cpus=(4,),
        jobs=(Shape(workers=3, fewest=1),),
        queues={},
        steps=(Step("calm", 10.0, {"which": 0}), Step("scale", 1.0, {"name": "a", "workers": 1})),
        restless=0.0,
        failing=0.0,
        longest=2000.0,
    ),
    # A leader stops while it creates pods, and leads again before it continues. Another leader has restarted the job.
    "second term": Schedule(
        seed=1,
        company="replicas",
        cpus=(4,),
        jobs=(),
        queues={},
        steps=(
            _fails(0.0, 1, "create", "leases"),  # this process does not lead first
            _fails(5.0, 0, "create", "pods", kind=Kind.HANG),
            Step("nap", 0.0, {"which": 0, "writes": 1, "kinds": frozenset({"leases"}), "seconds": 45.0}),
            Step("submit", 0.0, {"name": "a", "shape": Shape(workers=3)}),
            Step("suspend", 25.0, {"name": "a", "wish": True}),
            _fails(5.0, 1, "create", "pods", skip=1, times=100),
            Step("suspend", 1.0, {"name": "a", "wish": False}),
            Step("leave", 9.0, {"which": 1}),
            *_QUIET,
        ),
        restless=0.0,
        slow=0.5,
        failing=0.0,
        longest=200.0,
    ),
    # A new leader lists the job as it was before the last leader restarted it.
    "old list": Schedule(
        seed=1,
        company="replicas",
        cpus=(4,),
        jobs=(Shape(),),
        queues={},
        steps=(
            _fails(0.0, 1, "create", "leases"),
            Step("delay", 0.0, {"which": 1, "seconds": 80.0}),
            Step("suspend", 10.0, {"name": "a", "wish": True}),
            Step("suspend", 5.0, {"name": "a", "wish": False}),
            _fails(5.0, 1, "list", "tfjobs", kind=Kind.STALE),
            Step("leave", 0.0, {"which": 0}),
            *_QUIET,
        ),
        restless=0.0,
        slow=0.5,
        failing=0.0,
        longest=200.0,
    ),
}
