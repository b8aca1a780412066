"""Schedules as data: the events of a cluster and its controllers, drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from tests.faults.documents import Shape
from tests.faults.proxy import Kind
from tests.faults.puppet import Scope
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS, Resource

STEPS = 14
JOBS = ("a", "b", "c", "d")
WRITES = frozenset({"create", "update", "patch", "delete"})
_ANY: frozenset[str] = frozenset()

ALL_KINDS = (TFJOBS, VOLCANO_JOBS)


class Member(NamedTuple):
    """A process to start, and the kinds of jobs that it may lead."""

    scope: Scope
    kinds: tuple[Resource, ...] = ALL_KINDS


_ALONE, _REPLICA, _HOST, _RUN = map(Member, Scope)
_PARTIAL = Member(Scope.CLUSTER, (TFJOBS,))
COMPANIES: Mapping[str, tuple[Member, ...]] = {
    "alone": (_ALONE,),
    "replicas": (_REPLICA, _REPLICA),
    "hosts": (_HOST, _HOST),
    "runs": (_RUN, _RUN, _HOST),
    "installed": (_HOST, _HOST, _REPLICA),
    "partial": (_PARTIAL, _PARTIAL, _HOST),
    "all": (_RUN, _HOST, _REPLICA, _REPLICA),
}
_OFTEN = (
    *("alone",) * 2,
    *("replicas",) * 3,
    *("hosts",) * 2,
    *("runs",) * 2,
    *("installed",) * 2,
    *("partial",) * 2,
    "all",
)
WRITE_FAULTS = (
    *((Kind.REFUSE, code) for code in (409, 429, 500, 503)),
    *((kind, 0) for kind in (Kind.RESET, Kind.LOSE, Kind.LOSE, Kind.LATE, Kind.LATE, Kind.HANG, Kind.SLOW)),
)
READ_FAULTS = (
    *((Kind.REFUSE, code) for code in (410, 429, 500)),
    *((kind, 0) for kind in (Kind.RESET, Kind.HANG, Kind.SLOW, Kind.STALE, Kind.STALE)),
)
WATCH_FAULTS = (
    *((Kind.REFUSE, code) for code in (410, 429, 503)),
    *((kind, 0) for kind in (Kind.GONE, Kind.CUT, Kind.TWICE, Kind.SLOW, Kind.RESET, Kind.HANG)),
)
WHAT = ("pods", "pods", "tfjobs", "jobs", "services", "leases", "nodes", "queues", "resourcequotas", "")
NONSENSE = (
    {"spec": {"runPolicy": {"schedulingPolicy": {"minAvailable": 99}}}},
    {"metadata": {"annotations": {"tf-dist.dev/max-workers": "many"}}},
    {"spec": {"successPolicy": "Nonsense"}},
)


@dataclass(frozen=True, slots=True)
class Step:
    """A step after a pause in seconds: a method of ``ScheduleRunner`` and its arguments."""

    act: str
    pause: float
    given: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"after {self.pause:g} s: {self.act} {dict(self.given)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule. The seed is the seed of its random choices."""

    seed: int
    company: str
    cpus: tuple[int, ...]
    jobs: tuple[Shape, ...]
    queues: Mapping[str, Mapping[str, Any]]
    steps: tuple[Step, ...]
    late: bool = False
    skewed: bool = False
    retries: int = 3
    restless: float = 0.1
    latency: float = 0.0
    lag: float = 0.0
    slow: float = 2.0
    failing: float = 0.15
    longest: float = 60.0

    def __str__(self) -> str:
        fields = {key: getattr(self, key) for key in self.__slots__ if key != "steps"}
        return "\n".join([str(fields), *(f"  {step}" for step in self.steps)])


def drawn(seed: int) -> Schedule:
    """The schedule of a seed."""
    dice = Random(f"story {seed}")
    pick = dice.choice
    company = pick(_OFTEN)
    cpus = pick(((16,), (4,), (8, 8), (4, 2), (3, 3, 2), (2, 2)))
    queues: dict[str, dict[str, Any]] = {}
    if dice.random() < 0.4:
        queues = {"research": {"cpu": 0}, "vision": {"cpu": pick((1, 2, 4)), "parent": "research"}}
        queues["speech"] = {"cpu": pick((1, 2, 3)), "parent": "research", "order": pick(("", "StrictFIFO"))}
    jobs = tuple(_shape(dice, queues) for _ in range(pick((1, 2, 2, 3, 4))))
    return Schedule(
        seed=seed,
        company=company,
        cpus=cpus,
        jobs=jobs,
        queues=queues,
        steps=tuple(_step(dice, queues) for _ in range(dice.randint(3, STEPS))),
        late=dice.random() < 0.4,
        skewed=dice.random() < 0.4,
        retries=pick((0, 3, 3)),
        restless=pick((0.0, 0.1, 0.4)),
        latency=pick((0.0, 0.0, 0.01, 0.2)),
        lag=pick((0.0, 0.0, 0.05, 1.0)),
        slow=pick((0.5, 2.0, 8.0)),
        failing=pick((0.0, 0.15, 0.4)),
        longest=pick((20.0, 60.0, 200.0)),
    )


def _wider(dice: Random, act: str) -> Step:
    """Install, uninstall or upgrade the controller of the cluster."""
    given: dict[str, Any] = {}
    match act:
        case "install":
            given = {"kinds": dice.choice((ALL_KINDS, ALL_KINDS, (TFJOBS,))), "replicas": dice.choice((1, 2))}
        case "uninstall":
            given = {"killed": dice.random() < 0.3}
    return Step(act, dice.choice((0.0, 1.0, 10.0, 30.0)), given)


def _shape(dice: Random, queues: Mapping[str, Any]) -> Shape:
    pick = dice.choice
    dialect = pick(("v1", "v1", "v1", "v1alpha1", "volcano"))
    elastic = dice.random() < 0.35 and dialect != "v1alpha1"
    workers = pick((1, 2, 2, 3))
    return Shape(
        dialect=dialect,
        workers=workers,
        ps=pick((0, 0, 1)),
        cpu=pick((1, 1, 2)),
        fewest=pick((1, workers)) if elastic else None,
        most=workers + pick((1, 2)) if elastic else None,
        policy=pick(("ExitCode", "ExitCode", "OnFailure", "Never")),
        clean=pick(("Running", "All", "None")),
        backoff=pick((None, 0, 1, 3)),
        deadline=pick((None, None, None, 30, 120)),
        ttl=pick((None, None, None, 0, 20)),
        priority=pick(("", "", "low", "high")),
        queue=pick(sorted(queues)) if queues and dice.random() < 0.7 else "",
        per_job=dice.random() < 0.3,
        depends=dice.random() < 0.5,
        evicted=pick(("RestartJob", "RestartTask", "RestartPod")),
    )


def _step(dice: Random, queues: Mapping[str, Any]) -> Step:
    pick = dice.choice
    which = dice.randrange(6)
    act = pick(_ACTS)
    given: dict[str, Any] = {}
    match act:
        case "die" | "leave" | "calm" | "evict" | "delete_pod":
            given = {"which": which}
        case "doom":
            kinds = pick((_ANY, _ANY, frozenset({"leases"}), frozenset({"pods"}), frozenset({"tfjobs", "jobs"})))
            given = {"which": which, "writes": dice.randint(1, 8), "kinds": kinds}
        case "nap":
            kinds = pick((_ANY, frozenset({"pods"}), frozenset({"tfjobs", "jobs"}), frozenset({"leases"})))
            given = {"which": which, "writes": dice.randint(1, 6), "kinds": kinds, "seconds": pick((4.0, 20.0, 60.0))}
        case "jump":
            given = {"which": which, "seconds": pick((-400.0, -7.0, 7.0, 400.0))}
        case "end_pod":
            given = {"which": which, "code": pick((0, 1, 137, 137))}
        case "write_breaks":
            kind, code = pick(WRITE_FAULTS)
            given = {
                "which": which,
                "kind": kind,
                "code": code,
                "skip": dice.randint(0, 3),
                "times": dice.randint(1, 3),
            }
            given |= {
                "verbs": pick((WRITES, WRITES, frozenset({"create"}), frozenset({"update"}), frozenset({"delete"})))
            }
            given |= {"what": pick(WHAT), "seconds": pick((0.5, 5.0, 20.0, 40.0))}
        case "read_breaks":
            kind, code = pick(READ_FAULTS)
            given = {"which": which, "kind": kind, "code": code, "times": dice.randint(1, 3), "what": pick(WHAT)}
        case "watch_breaks":
            kind, code = pick(WATCH_FAULTS)
            given = {"which": which, "kind": kind, "code": code, "times": dice.randint(1, 3), "what": pick(WHAT)}
            given |= {"after": dice.randint(0, 3)}
        case "delay":
            given = {"which": which, "seconds": pick((3.0, 20.0, 80.0))}
        case "storm":
            given = {
                "which": which,
                "times": dice.randint(3, 12),
                "what": pick(("tfjobs", "jobs", "pods", "leases", "")),
            }
        case "withdraw":
            # The right to get the cluster's Lease is never withdrawn.
            verbs = pick((WRITES | {"list", "watch"}, frozenset({"list", "watch"}), WRITES))
            given = {"which": which, "verbs": verbs, "what": pick(WHAT), "seconds": pick((5.0, 30.0, 90.0))}
        case "delete_lease":
            given = {"kind": pick(ALL_KINDS), "namespaced": dice.random() < 0.5}
        case "install" | "uninstall" | "upgrade":
            given = dict(_wider(dice, act).given)
        case "unserved":
            given = {"which": which, "what": pick(("queues", "tfjobs", "jobs")), "seconds": pick((5.0, 30.0))}
        case "drain" | "lose_node":
            given = {"which": which, "seconds": pick((5.0, 40.0, 200.0)), "taint": dice.random() < 0.7}
        case "submit":
            given = {"name": pick(JOBS), "shape": _shape(dice, queues)}
        case "delete" | "mend":
            given = {"name": pick(JOBS)}
        case "suspend":
            given = {"name": pick(JOBS), "wish": dice.random() < 0.6}
        case "scale":
            given = {"name": pick(JOBS), "workers": dice.randint(1, 4)}
        case "spoil":
            given = {"name": pick(JOBS), "how": pick(NONSENSE)}
        case "limit":
            given = {"hard": pick(({}, {}, {"pods": 0}, {"pods": 2}, {"pods": 4}, {"requests.cpu": 3}))}
        case "quota" if queues:
            given = {"name": pick(("vision", "speech")), "cpu": pick((0, 1, 2, 4))}
        case "restore_etcd":
            given = {"back": dice.randrange(4)}
        case "namespace":
            given = {"seconds": pick((1.0, 10.0))}
        case _:
            pass
    return Step(act, pick((0.0, 0.1, 1.0, 3.0, 10.0, 20.0)), given)


_ACTS = (
    *("die",) * 2,
    *("doom",) * 4,
    *("nap",) * 3,
    *("write_breaks",) * 6,
    *("read_breaks",) * 3,
    *("watch_breaks",) * 3,
    *("submit",) * 4,
    *("end_pod",) * 2,
    *("install",) * 2,
    *("uninstall",) * 2,
    "upgrade",
    "delete_lease",
    "leave",
    "calm",
    "appear",
    "jump",
    "step_clock",
    "evict",
    "delete_pod",
    "delay",
    "storm",
    "forget_history",
    "withdraw",
    "unserved",
    "drain",
    "lose_node",
    "remove_node",
    "delete",
    "suspend",
    "suspend",
    "scale",
    "spoil",
    "mend",
    "limit",
    "quota",
    "namespace",
    "restore_etcd",
    "quiet",
)
