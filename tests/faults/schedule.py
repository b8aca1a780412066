"""Schedules as data: what befalls a cluster and its controllers, drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

from tests.faults.documents import Shape
from tests.faults.proxy import Kind
from tests.faults.puppet import Scope
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS, Resource

STEPS = 14
JOBS = ("a", "b", "c", "d")
LATE_JOBS = ("e", "f", "g")
WRITES = frozenset({"create", "update", "patch", "delete"})
_ANY: frozenset[str] = frozenset()

ALL_KINDS = (TFJOBS, VOLCANO_JOBS)


class Member(NamedTuple):
    """A process that there is to be, and the kinds of jobs that it would lead."""

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
    """Something that is done after a pause of so many seconds: a method of ``ScheduleRunner`` and what it is given."""

    act: str
    pause: float
    given: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"after {self.pause:g} s: {self.act} {dict(self.given)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One schedule; the seed is that of its dice.

    ``calm``: what is done when all controllers are well and see everything, so that what they make of it can be judged
    to the second; ``closed``: until then one node takes no pods. ``narrow``: the hosts of a namespace see no nodes.
    """

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
    polite: float = 0.0
    closed: bool = False
    narrow: bool = False
    calm: tuple[Step, ...] = ()

    def __str__(self) -> str:
        fields = {key: getattr(self, key) for key in self.__slots__ if key not in ("steps", "calm")}
        lines = [*(f"  {step}" for step in self.steps), *(f"  in the calm {step}" for step in self.calm)]
        return "\n".join([str(fields), *lines])


def drawn(seed: int, *, more: bool = False) -> Schedule:
    """The schedule of a seed; ``more``: half of them with what befalls few clusters (see ``_MORE``)."""
    dice = Random(f"story {seed}")
    pick = dice.choice
    company = pick(_OFTEN)
    cpus = pick(((16,), (4,), (8, 8), (4, 2), (3, 3, 2), (2, 2)))
    queues: dict[str, dict[str, Any]] = {}
    if dice.random() < 0.4:
        queues = {"research": {"cpu": 0}, "vision": {"cpu": pick((1, 2, 4)), "parent": "research"}}
        queues["speech"] = {"cpu": pick((1, 2, 3)), "parent": "research", "order": pick(("", "StrictFIFO"))}
    jobs = tuple(_shape(dice, queues) for _ in range(pick((1, 2, 2, 3, 4))))
    schedule = Schedule(
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
    return _with_more(schedule, Random(f"more 358 {seed}")) if more else schedule


def _with_more(schedule: Schedule, dice: Random) -> Schedule:
    """With what most schedules do without. Drawn by dice of its own, so that the others stay as they are."""
    if dice.random() < 0.5:
        return schedule
    schedule = replace(schedule, polite=dice.choice((0.0, 0.5, 1.0)))
    for add in dice.sample(_MORE, 3):
        schedule = add(schedule, dice)
    return schedule


def _at(schedule: Schedule, dice: Random, *steps: Step) -> Schedule:
    """With these steps, somewhere in the second half."""
    index = dice.randint(len(schedule.steps) // 2, len(schedule.steps))
    return replace(schedule, steps=(*schedule.steps[:index], *steps, *schedule.steps[index:]))


def _strangers(schedule: Schedule, dice: Random) -> Schedule:
    """Pods of others: with labels of ours, or under a name of ours; those that run go when it is calm, or never."""
    pick = dice.choice
    for _ in range(pick((1, 2))):
        given = {"which": dice.randrange(6), "how": pick(("", "labels", "name")), "cpu": pick((1, 2, 2))}
        schedule = _at(schedule, dice, Step("stranger", pick((0.0, 3.0, 10.0)), given))
    goes = Step("strangers_go", pick((0.0, 10.0)), {"most": pick((1, 9))})
    return replace(schedule, calm=(*schedule.calm, *pick(((), (goes,), (goes, goes)))))


def _late_jobs(schedule: Schedule, dice: Random) -> Schedule:
    """Jobs that come when it is calm, to queues and into a namespace with quotas."""
    pick = dice.choice
    queues = {**schedule.queues, "lone": {"cpu": pick((1, 2, 3))}}
    hard = Step("limit", 0.0, {"hard": pick(({}, {"pods": 1}, {"pods": 2}, {"pods": 3}, {"pods": 4}))})
    shapes = [replace(_shape(dice, queues), queue=pick(("", "lone", "lone"))) for _ in range(pick((1, 2, 3)))]
    steps = [
        Step("submit", pick((0.0, 1.0, 10.0)), {"name": name, "shape": shape})
        for name, shape in zip(LATE_JOBS, shapes, strict=False)
    ]
    return replace(
        schedule,
        queues=queues,
        steps=(*schedule.steps, *([hard] if hard.given["hard"] else [])),
        calm=(*schedule.calm, *steps),
    )


def _closed(schedule: Schedule, dice: Random) -> Schedule:
    """A node that takes pods again once it is calm, and nothing else happens."""
    return replace(schedule, closed=True, calm=(*schedule.calm, Step("open_node", dice.choice((10.0, 30.0)))))


def _restarts(schedule: Schedule, dice: Random) -> Schedule:
    """Kubelets restart the containers of a job with a bound for that, and pods of it are taken in between."""
    backoff = dice.choice((1, 2, 3))
    shape = Shape(workers=dice.choice((1, 2)), ps=1, policy="OnFailure", backoff=backoff, priority="high", lasts=300.0)
    restart = Step("restart_container", 10.0, {"name": "restarted"})
    steps = [Step("submit", 0.0, {"name": "restarted", "shape": shape}), Step("restart_container", 20.0, restart.given)]
    steps += [restart] * (backoff - 1)
    steps += [Step("evict_of", 10.0, {"name": "restarted"}), Step("restart_container", 20.0, restart.given)]
    return replace(schedule, calm=(*schedule.calm, *steps))


def _submit(dice: Random, **fields: Any) -> Step:
    """A job that can start where there is some room."""
    shape = {"workers": dice.choice((1, 2)), "policy": "OnFailure", "lasts": dice.choice((0.0, 100.0)), **fields}
    return Step("submit", 0.0, {"name": dice.choice(LATE_JOBS), "shape": Shape(**shape)})


def _everywhere(dice: Random, what: tuple[str, ...], verb: str, codes: tuple[int, ...]) -> Step:
    """A fault on the way of every process."""
    given = {"what": frozenset(what), "verbs": frozenset({verb}), "code": dice.choice(codes)}
    given |= {
        "skip": dice.choice((0, 0, 1, 2)),
        "times": dice.choice((1, 2, 3, None)),
        "seconds": dice.choice((10.0, 30.0)),
    }
    return Step("refused_everywhere", dice.choice((0.0, 10.0)), given)


def _full(schedule: Schedule, dice: Random) -> Schedule:
    """A job waits for room that only pods of others have, until those go and nothing else happens."""
    go = Step("strangers_go", 20.0, {"most": dice.choice((2, 99))})
    return replace(schedule, calm=(Step("crowd", 0.0), replace(_submit(dice), pause=5.0), go, *schedule.calm))


def _no_pods(schedule: Schedule, dice: Random) -> Schedule:
    """No controller may make pods for a while, and then they may."""
    refused = _everywhere(dice, ("pods",), "create", (403, 403, 409, 500))
    return _at(schedule, dice, refused, _submit(dice), Step("quiet", 0.0))


def _unwritten(schedule: Schedule, dice: Random) -> Schedule:
    """What is decided about a job cannot be written, though the job stays as it is."""
    refused = _everywhere(dice, ("tfjobs", "jobs"), "update", (409, 409, 403))
    return _at(schedule, dice, refused, _submit(dice), Step("quiet", 0.0))


def _clinging(schedule: Schedule, dice: Random) -> Schedule:
    """Pods cannot be deleted for a while, and are to be followed by others."""
    submit = _submit(dice, workers=2, ps=dice.choice((0, 1)), lasts=300.0)
    called = submit.given["name"]
    refused = _everywhere(dice, ("pods",), "delete", (409,))
    stop, go_on = (
        Step("suspend", pause, {"name": called, "wish": wish}) for pause, wish in ((0.0, True), (3.0, False))
    )
    return _at(schedule, dice, submit, replace(refused, pause=10.0), stop, go_on, Step("quiet", 0.0))


def _lapse(schedule: Schedule, dice: Random) -> Schedule:
    """A leader's Lease runs out while what it writes is under way."""
    lapse = Step("lapse", 1.0, {"times": dice.randrange(6), "later": dice.choice((7, 8, 9))})
    return _at(replace(schedule, retries=3), dice, lapse, _submit(dice), Step("quiet", 0.0))


def _blind(schedule: Schedule, dice: Random) -> Schedule:
    """The next leader does not see the pods that the last one has made."""
    hold = Step("hold_pods", 0.0, {"seconds": dice.choice((40.0, 60.0))})
    die = Step("die_leader", dice.choice((3.0, 10.0)))
    return replace(schedule, steps=(hold, die, Step("quiet", 0.0), *schedule.steps))


def _set_back(schedule: Schedule, dice: Random) -> Schedule:
    """etcd is restored after others have written much, so that its versions stay behind for long."""
    return _at(schedule, dice, Step("others_write", 1.0, {"times": 20_000}), Step("restore_etcd", 1.0, {"back": 1}))


def _unled(schedule: Schedule, dice: Random) -> Schedule:
    """All processes stop for a while, and a job comes."""
    stop, comes = Step("stop_all", 1.0, {"seconds": 50.0}), replace(_submit(dice), pause=30.0)
    return _at(schedule, dice, stop, comes, Step("quiet", 0.0))


def _narrow(schedule: Schedule, dice: Random) -> Schedule:
    """The hosts of a namespace have no right to see nodes; the controller of the cluster has, while there is one."""
    if schedule.company not in ("hosts", "installed", "partial", "all"):
        schedule = replace(schedule, company="installed")
    calm = replace(_submit(dice), pause=5.0)
    return replace(schedule, narrow=True, calm=(*schedule.calm, calm, replace(_submit(dice), pause=5.0)))


def _moves(schedule: Schedule, dice: Random) -> Schedule:
    """The controller of the cluster comes and goes beside the hosts of a namespace, while jobs run and wait."""
    pick = dice.choice
    company = pick(("hosts", "runs", "installed", "partial"))
    moves = [
        _wider(dice, act)
        for act in (
            *("install", "uninstall") * pick((1, 2)),
            *("upgrade",) * pick((0, 1)),
            *("install",) * pick((0, 1)),
        )
    ]
    submits = [_submit(dice, lasts=pick((0.0, 60.0))) for _ in moves]
    steps = [step for pair in zip(moves, submits, strict=True) for step in pair]
    calm = [replace(_wider(dice, act), pause=30.0) for act in pick(((), ("uninstall", "install"), ("upgrade",)))]
    return replace(_at(schedule, dice, *steps, Step("quiet", 0.0)), company=company, calm=(*schedule.calm, *calm))


def _wider(dice: Random, act: str) -> Step:
    """The controller of the cluster comes, goes, or is replaced by another release."""
    given: dict[str, Any] = {}
    match act:
        case "install":
            given = {"kinds": dice.choice((ALL_KINDS, ALL_KINDS, (TFJOBS,))), "replicas": dice.choice((1, 2))}
        case "uninstall":
            given = {"killed": dice.random() < 0.3}
    return Step(act, dice.choice((0.0, 1.0, 10.0, 30.0)), given)


def _edited(schedule: Schedule, dice: Random) -> Schedule:
    """A job that runs for long is made smaller, suspended, or comes to its deadline, in the calm."""
    pick, submit = dice.choice, _submit(dice, lasts=300.0)
    called, shape = submit.given["name"], submit.given["shape"]
    shape, step = pick(
        (
            (replace(shape, workers=3, fewest=1), Step("scale", 20.0, {"name": called, "workers": 1})),
            (replace(shape, cpu=pick((1, 9))), Step("suspend", 10.0, {"name": called, "wish": True})),
            (replace(shape, deadline=30), Step("quiet", 0.0)),
        )
    )
    return replace(schedule, calm=(*schedule.calm, replace(submit, given={"name": called, "shape": shape}), step))


def _node_gone(schedule: Schedule, dice: Random) -> Schedule:
    """A node goes for good, and with it a part of a job that runs for long."""
    return replace(schedule, steps=(*schedule.steps, _submit(dice, workers=3, lasts=300.0), Step("remove_node", 10.0)))


def _politely(schedule: Schedule, dice: Random) -> Schedule:
    """Pods get the signal to stop, and do so with 0 before any controller sees it."""
    take = [Step("delete_pod", 0.0, {"which": dice.randrange(6)}) for _ in range(dice.choice((1, 2, 3)))]
    schedule = _at(schedule, dice, Step("delay_all", 1.0, {"seconds": 20.0}), *take, Step("quiet", 0.0))
    return replace(schedule, polite=1.0)


_MORE = (
    *(_strangers,) * 2,
    *(_late_jobs,) * 2,
    *(_edited,) * 2,
    *(_moves,) * 4,
    _closed,
    _restarts,
    _full,
    _no_pods,
    _unwritten,
    _clinging,
    _lapse,
    _blind,
    _set_back,
    _unled,
    _narrow,
    _node_gone,
    _politely,
)


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
        case "die" | "leave" | "calm" | "evict" | "delete_pod" | "restore":
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
            # Everybody may get the cluster's Lease, for ever.
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
