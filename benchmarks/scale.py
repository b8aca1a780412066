"""Scale beyond one machine: the scheduler under large loads, and what that asks of an API server and of etcd.

``python -m benchmarks.scale measure`` runs the scheduler on 10,000 to 100,000 nodes with 1,000 to 1,000,000 gangs that
wait (minutes, and some GiB of memory). ``python -m benchmarks.scale server PID PID`` measures what writes cost the API
server of ``TF_DIST_TEST_KUBECONFIG``: the process ids of kube-apiserver and etcd. Both write ``scale.json``.
``python -m benchmarks.scale docs`` computes the tables and pictures of ``docs/scale.md`` from it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from math import log10
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import cpu_seconds, resident_mib
from tf_dist.core.gang.scheduling import Scheduler
from tf_dist.core.gang.types import AssignedPods, Gang, Node, PodSet
from tf_dist.core.model.assignment import Admit
from tf_dist.core.model.job import JobKey

FOUND: Final = Path(__file__).with_name("scale.json")
PAGE: Final = Path(__file__).parents[1] / "docs" / "scale.md"
NODES: Final = (10_000, 30_000, 100_000)
WAITING: Final = (1_000, 10_000, 100_000, 1_000_000)
GPU: Final = "nvidia.com/gpu"
_NOW: Final = 1_800_000_000.0
_ROOM: Final = {"cpu": Decimal(96), "memory": Decimal(768 << 30), "pods": Decimal(110), GPU: Decimal(8)}

# -- the production scheduler --


def _pods(type_: str, count: int, cpu: int, gpu: int = 0) -> PodSet:
    asked = {"cpu": Decimal(cpu), "pods": Decimal(1)} | ({GPU: Decimal(gpu)} if gpu else {})
    return PodSet(type=type_, count=count, requests=asked)


def _gang(uid: str, *members: PodSet, at: float) -> Gang:
    return Gang(key=JobKey("ml", uid), uid=uid, created_at=at, members=members)


def admitter_point(nodes: int, waiting: int) -> dict[str, float]:
    """A full cluster, a gang of 8 on each node; so many more wait, of 8 shapes. Seconds, milliseconds and MiB."""
    scheduler, eight = Scheduler(), _pods("worker", 8, 8, 1)
    names = [f"node-{number:06}" for number in range(nodes)]
    for name in names:
        scheduler.cache.put_node(Node(name=name, allocatable=_ROOM, free=_ROOM))
    for number, name in enumerate(names):
        place = AssignedPods(at=_NOW - 10_000, sizes={"worker": 8}, placement={"worker": {name: 8}})
        scheduler.put_gang(replace(_gang(f"r{number}", eight, at=_NOW - 10_000), assigned=place))
    scheduler.cycle(_NOW)
    before = resident_mib(os.getpid())
    shapes = [(_pods("ps", 1, 1 + shape % 4), _pods("worker", 1 + shape % 8, 4, 1)) for shape in range(8)]
    begun = time.process_time()
    for number in range(waiting):
        scheduler.put_gang(_gang(f"p{number}", *shapes[number % 8], at=_NOW + number / 1e4))
    taken_in = time.process_time() - begun
    begun = time.process_time()
    scheduler.cycle(_NOW + 200)
    anew = time.process_time() - begun
    released = []
    for number in range(15):
        scheduler.remove_gang(f"r{number}")
        begun = time.process_time()
        verdicts = scheduler.cycle(_NOW + 201 + number / 100).verdicts
        released.append((time.process_time() - begun) * 1e3)
        assert any(isinstance(verdict, Admit) for verdict in verdicts.values()), "no gang was given the room"
    held = resident_mib(os.getpid()) - before
    return {
        "nodes": nodes,
        "waiting": waiting,
        "taken_in_s": taken_in,
        "anew_s": anew,
        "release_ms": statistics.median(released),
        "held_mib": held,
    }


def measure() -> None:
    """Each point in a process of its own; what was measured before is kept."""
    for waiting in WAITING:
        for nodes in NODES:
            command = [sys.executable, "-m", "benchmarks.scale", "point", str(nodes), str(waiting)]
            point, found = json.loads(subprocess.check_output(command)), stored()
            kept = [one for one in found["points"] if (one["nodes"], one["waiting"]) != (nodes, waiting)]
            found["points"] = sorted([*kept, point], key=lambda one: (one["nodes"], one["waiting"]))
            FOUND.write_text(json.dumps(found, indent=1) + "\n")
            print(point, flush=True)


# -- an API server --

_EACH: Final = 400


def server(apiserver: int, etcd: int) -> None:
    """CPU milliseconds that kube-apiserver and etcd take for a write of each kind, and how large the objects are."""
    from benchmarks.control_plane import NO_SCHEDULER, SPACE, job_of, prepared
    from tf_dist.cluster.api import EVENTS, LEASES, PODS, TFJOBS, Cluster, Object, new_event
    from tf_dist.core.dialects import read
    from tf_dist.core.model.context import Create, Observed, WriteStatus
    from tf_dist.core.reconciler.reconcile import reconcile

    def timed(what: str, do: Callable[[Any], Object], over: Iterable[Any]) -> list[Object]:
        before = cpu_seconds(apiserver), cpu_seconds(etcd)
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(do, over))
        spent = cpu_seconds(apiserver) - before[0], cpu_seconds(etcd) - before[1]
        size = statistics.mean(len(json.dumps(one, separators=(",", ":"))) for one in done)
        costs[what] = {"apiserver_ms": spent[0] * 1e3 / len(done), "etcd_ms": spent[1] * 1e3 / len(done), "bytes": size}
        print(what, costs[what], flush=True)
        return done

    costs: dict[str, dict[str, float]] = {}

    def run(cluster: Cluster) -> None:
        jobs = timed(
            "job", lambda n: cluster.create(TFJOBS, SPACE, job_of(n, workers=7, scheduler=NO_SCHEDULER)), range(_EACH)
        )
        plans = [reconcile(read(job), Observed(now=time.time(), verdict=Admit())) for job in jobs]
        statuses = [next(a.status for a in plan.actions if isinstance(a, WriteStatus)) for plan in plans]
        pods = [a.body for plan in plans for a in plan.actions if isinstance(a, Create) and a.body["kind"] == "Pod"]

        def status(pair: tuple[Object, Object]) -> Object:
            job, status_ = pair
            body = {**job, "status": status_}
            return cluster.replace(TFJOBS, SPACE, job["metadata"]["name"], body, subresource="status")

        timed("status", status, zip(jobs, statuses, strict=True))

        def event(job: Object) -> Object:
            made = new_event(
                TFJOBS,
                job,
                type="Normal",
                reason="Admitted",
                message="all pods have a place",
                source={"component": "tf-dist"},
                now="2027-01-15T08:00:00Z",
            )
            name = f"{job['metadata']['name']}.scale"
            return cluster.create(EVENTS, SPACE, {**made, "metadata": {"name": name, "namespace": SPACE}})

        timed("event", event, jobs)
        made = timed("pod", lambda pod: cluster.create(PODS, SPACE, pod), pods[:_EACH])
        timed(
            "pod status",
            lambda pod: cluster.patch(
                PODS, SPACE, pod["metadata"]["name"], {"status": {"phase": "Running"}}, subresource="status"
            ),
            made,
        )

        def lease(number: int) -> Object:
            spec = {"holderIdentity": f"node-{number}", "leaseDurationSeconds": 40}
            return cluster.create(LEASES, SPACE, {"metadata": {"name": f"scale-{number}"}, "spec": spec})

        def renew(held: Object) -> Object:  # as kubelets do: one PUT
            body = {**held, "spec": {**held["spec"], "renewTime": "2027-01-15T08:00:00.000000Z"}}
            return cluster.replace(LEASES, SPACE, held["metadata"]["name"], body)

        with ThreadPoolExecutor(4) as pool:
            leases = list(pool.map(lease, range(_EACH)))
        timed("heartbeat", renew, leases)
        for held in leases:
            cluster.delete(LEASES, SPACE, held["metadata"]["name"])

    with prepared() as cluster:
        run(cluster)
    found = stored()
    found["costs"] = costs
    FOUND.write_text(json.dumps(found, indent=1) + "\n")


def stored() -> dict[str, Any]:
    """What was measured."""
    empty: dict[str, Any] = {"points": [], "costs": {}}
    return json.loads(FOUND.read_text()) if FOUND.exists() else empty


# -- on paper --

# Writes in the life of a gang of 8 pods: what tf-dist writes (tests/faults/golden/eight_pods.txt), what its user does,
# and what the scheduler, kubelets and the garbage collector do to its pods (bound, started, ended, deleted).
BY_TF_DIST: Final[Mapping[str, int]] = {"status": 4, "pod": 9, "event": 5}
BY_OTHERS: Final[Mapping[str, int]] = {"job": 2, "pod status": 8 * 4 + 9, "event": 8 * 4}
HEARTBEAT_EVERY: Final = 10.0  # seconds: kubelets renew their Lease
ETCD_LIMIT_GIB: Final = 8.0  # beyond which etcd's documentation advises against a larger database
DURATIONS: Final = {"10 min": 600.0, "1 h": 3600.0, "6 h": 21_600.0}
_FULL: Final = 1000.0  # milliseconds of a core in a second


@dataclass(frozen=True)
class Load:
    """A full cluster of nodes with a gang of 8 each, which take ``duration`` seconds; so many gangs wait besides."""

    nodes: int
    duration: float
    costs: Mapping[str, Mapping[str, float]]

    @property
    def jobs(self) -> float:
        """Jobs that end, and that are admitted, a second."""
        return self.nodes / self.duration

    def cores(self, of: str, writes: Mapping[str, int]) -> float:
        """Cores of the API server (or of etcd) that such writes of every job take."""
        return self.jobs * sum(count * self.costs[what][of] for what, count in writes.items()) / _FULL

    def heartbeats(self, of: str) -> float:
        """Cores that the heartbeats of all nodes take."""
        return self.nodes / HEARTBEAT_EVERY * self.costs["heartbeat"][of] / _FULL

    def everything(self, of: str) -> float:
        """All of these."""
        return self.cores(of, BY_TF_DIST) + self.cores(of, BY_OTHERS) + self.heartbeats(of)

    def gib(self, waiting: int) -> float:
        """What etcd holds: the gangs that wait and those that run, and the pods of these."""
        job = self.costs["status"]["bytes"]
        return (job * (waiting + self.nodes) + 8 * self.costs["pod status"]["bytes"] * self.nodes) / (1 << 30)


def waiting_gangs_in_etcd(costs: Mapping[str, Mapping[str, float]], nodes: int) -> int:
    """How many gangs may wait until etcd holds as much as it should."""
    load = Load(nodes, 1.0, costs)
    return int((ETCD_LIMIT_GIB - load.gib(0)) * (1 << 30) / costs["status"]["bytes"])


# -- the page --

API_SERVERS: Final = 3 * 32
"""Cores of the API server: three replicas of 32."""
ETCD_CORES: Final = 16
"""Those of etcd's leader: the most that etcd's documentation names for heavily loaded ones."""


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def _n(value: float) -> str:
    """With as many digits as tell something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _admission(found: Mapping[str, Any]) -> str:
    head = ("nodes", "waiting", "read, s", "first decision, s", "after a change, ms", "memory for waiting gangs, MiB")
    return _table(
        head,
        (
            [
                f"{one['nodes']:,}",
                f"{one['waiting']:,}",
                *(_n(one[key]) for key in ("taken_in_s", "anew_s", "release_ms", "held_mib")),
            ]
            for one in found["points"]
        ),
    )


def _costs(found: Mapping[str, Any]) -> str:
    head = ("write of a", "kube-apiserver, ms", "etcd, ms", "object, bytes")
    return _table(
        head,
        (
            [what, *(_n(cost[key]) for key in ("apiserver_ms", "etcd_ms", "bytes"))]
            for what, cost in found["costs"].items()
        ),
    )


def _loads(found: Mapping[str, Any]) -> Iterable[tuple[str, Load]]:
    for nodes in NODES:
        for name, duration in DURATIONS.items():
            yield name, Load(nodes, duration, found["costs"])


def _servers(found: Mapping[str, Any]) -> str:
    head = (
        "nodes",
        "a gang takes",
        "gangs a second",
        "tf-dist's writes, cores",
        "others' writes, cores",
        "heartbeats, cores",
        "etcd, cores",
        "controller, % of its core",
    )
    rows = []
    for name, load in _loads(found):
        cores = (load.cores("apiserver_ms", BY_TF_DIST), load.cores("apiserver_ms", BY_OTHERS))
        more = (load.heartbeats("apiserver_ms"), load.everything("etcd_ms"), 100 * _admission_share(found, load))
        rows.append([f"{load.nodes:,}", name, *(_n(value) for value in (load.jobs, *cores, *more))])
    return _table(head, rows)


def _release(found: Mapping[str, Any], nodes: int, waiting: int) -> float:
    """Milliseconds of a decision."""
    return float(
        next(one["release_ms"] for one in found["points"] if (one["nodes"], one["waiting"]) == (nodes, waiting))
    )


def _admission_share(found: Mapping[str, Any], load: Load, waiting: int = 100_000) -> float:
    """The part of a core that decisions take: one for each gang that ends."""
    return load.jobs * _release(found, load.nodes, waiting) / _FULL


def _sizes(found: Mapping[str, Any]) -> str:
    head = ("nodes", *(f"{waiting:,} wait" for waiting in WAITING), "may wait below 8 GiB")
    rows = []
    for nodes in NODES:
        load = Load(nodes, 1.0, found["costs"])
        sizes = (f"{_n(load.gib(waiting))} GiB" for waiting in WAITING)
        rows.append([f"{nodes:,}", *sizes, f"{waiting_gangs_in_etcd(found['costs'], nodes):,}"])
    return _table(head, rows)


def _first(found: Mapping[str, Any]) -> str:
    """For each load, the parts by how much of them is used, the fullest first."""
    head = ("nodes", "a gang takes", "fullest", "next", "then")
    rows = []
    for name, load in _loads(found):
        used = {
            "API server's CPU": load.everything("apiserver_ms") / API_SERVERS,
            "etcd's CPU": load.everything("etcd_ms") / ETCD_CORES,
            "etcd's size": load.gib(100_000) / ETCD_LIMIT_GIB,
            "controller": _admission_share(found, load),
        }
        order = sorted(used, key=lambda part: -used[part])[:3]
        rows.append([f"{load.nodes:,}", name, *(f"{part} {used[part]:.0%}" for part in order)])
    return _table(head, rows)


def _shards(found: Mapping[str, Any]) -> str:
    """All of it beside a tenth of it, which is what one controller of ten has."""
    by_size = {(point["nodes"], point["waiting"]): point for point in found["points"]}
    nodes, waiting = max(by_size)
    one, ten = by_size[nodes, waiting], by_size[nodes // 10, waiting // 10]
    head = (f"{nodes:,} nodes, {waiting:,} wait", "one controller", "one of ten")
    names = {
        "taken_in_s": "read all gangs after a failover, s",
        "anew_s": "first decision, s",
        "release_ms": "decision after a change, ms",
        "held_mib": "memory for waiting gangs, MiB",
    }
    return _table(head, ([name, _n(one[key]), _n(ten[key])] for key, name in names.items()))


TABLES: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "admission": _admission,
    "costs": _costs,
    "servers": _servers,
    "sizes": _sizes,
    "first": _first,
    "shards": _shards,
}


Points = Sequence[tuple[float, float]]
_COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
_W, _H, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 360, 64, 40, 170, 48


def chart(title: str, across: str, up: str, series: Mapping[str, Points], limits: Mapping[str, float]) -> str:
    """Lines over logarithmic axes as SVG; ``limits``: level lines."""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points] + list(limits.values())
    low_x, high_x = log10(min(xs)), log10(max(xs))
    low_y, high_y = log10(min(ys)) // 1, -(-log10(max(ys)) // 1)

    def at(x: float, y: float) -> tuple[float, float]:
        wide, high = _W - _LEFT - _RIGHT, _H - _TOP - _BOTTOM
        return (
            round(_LEFT + wide * (log10(x) - low_x) / (high_x - low_x or 1), 1),
            round(_TOP + high * (1 - (log10(y) - low_y) / (high_y - low_y or 1)), 1),
        )

    right, floor = _W - _RIGHT, _H - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_W} {_H}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_W}" height="{_H}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">{title}</text>',
        f'<text x="{(_LEFT + right) / 2}" y="{_H - 10}" text-anchor="middle">{across}</text>',
        f'<text transform="translate(14 {(_TOP + floor) / 2}) rotate(-90)" text-anchor="middle">{up}</text>',
    ]
    for power in range(int(low_y), int(high_y) + 1):
        _, y = at(min(xs), 10.0**power)
        parts.append(f'<path d="M{_LEFT} {y}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{10.0**power:,g}</text>')
    for x in sorted(set(xs)):
        parts.append(f'<text x="{at(x, ys[0])[0]}" y="{floor + 18}" text-anchor="middle">{x:,g}</text>')
    for name, value in limits.items():
        _, y = at(min(xs), value)
        parts.append(f'<path d="M{_LEFT} {y}H{right}" stroke="black" stroke-dasharray="5 4"/>')
        parts.append(f'<text x="{right + 8}" y="{y + 4}">{name}</text>')
    for (name, points), colour in zip(series.items(), _COLOURS, strict=False):
        path = "L".join("{} {}".format(*at(x, y)) for x, y in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = at(*points[-1])
        parts.append(f'<text x="{x + 8}" y="{y + 4}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def charts(found: Mapping[str, Any]) -> dict[str, str]:
    """The pictures by their file names."""
    by_nodes = {nodes: [one for one in found["points"] if one["nodes"] == nodes] for nodes in NODES}

    def over_waiting(key: str) -> dict[str, Points]:
        return {f"{nodes:,} nodes": [(p["waiting"], p[key]) for p in points] for nodes, points in by_nodes.items()}

    loads = {name: [(n, Load(n, duration, found["costs"])) for n in NODES] for name, duration in DURATIONS.items()}
    etcd = {f"{n:,} nodes": [(w, Load(n, 1.0, found["costs"]).gib(w)) for w in WAITING] for n in NODES}
    return {
        "scale-decision.svg": chart(
            "A decision after a gang has ended", "gangs that wait", "milliseconds", over_waiting("release_ms"), {}
        ),
        "scale-memory.svg": chart(
            "What a controller holds for gangs that wait", "gangs that wait", "MiB", over_waiting("held_mib"), {}
        ),
        "scale-apiserver.svg": chart(
            "The API server in a full cluster",
            "nodes",
            "cores",
            {
                f"gangs of {name}": [(n, load.everything("apiserver_ms")) for n, load in at]
                for name, at in loads.items()
            },
            {f"{API_SERVERS} cores": API_SERVERS},
        ),
        "scale-etcd.svg": chart("What etcd holds", "gangs that wait", "GiB", etcd, {"8 GiB": ETCD_LIMIT_GIB}),
    }


def page(text: str, found: Mapping[str, Any]) -> str:
    """The page with its tables as they are computed now."""
    for name, table in TABLES.items():
        head, mark, rest = text.partition(f"<!-- {name} -->\n")
        if not mark:
            raise ValueError(f"docs/scale.md has no table {name}")
        text = f"{head}{mark}{table(found)}\n{rest[rest.index('<!-- end -->') :]}"
    return text


def docs() -> None:
    """Write the tables and the pictures."""
    PAGE.write_text(page(PAGE.read_text(), stored()))
    for name, picture in charts(stored()).items():
        PAGE.with_name(name).write_text(picture)


def main(arguments: Sequence[str]) -> int:
    """2 for anything else than this module's documentation names."""
    match list(arguments):
        case ["point", nodes, waiting]:
            print(json.dumps(admitter_point(int(nodes), int(waiting))))
        case ["measure"]:
            measure()
        case ["server", apiserver, etcd]:
            server(int(apiserver), int(etcd))
        case ["docs"]:
            docs()
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
