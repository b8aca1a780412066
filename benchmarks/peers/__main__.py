"""``python -m benchmarks.peers [--quick] [--turns N] [--only SYSTEM…]``: measure, and write the file and the page.

It takes about twenty minutes a turn on two quiet cores; ``--quick`` is one turn. Needs etcd, the binaries of
``servers``, and Go, which downloads and builds Kueue, Volcano and coscheduling outside this repository.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.__main__ import commit, write_pages
from benchmarks.control_plane import SPACE
from benchmarks.measure import machine, probe, until
from benchmarks.peers import binding
from benchmarks.peers.binding import BINDERS, COSCHEDULING, FEATURES, Binder, measure_binding
from benchmarks.peers.scenarios import Figures, Sizes, measure
from benchmarks.peers.servers import Servers, binaries
from benchmarks.peers.systems import KUEUE, RACK, SERVICE_ACCOUNTS, SYSTEMS, VOLCANO, System, ensure
from benchmarks.peers.table import RESULTS, dumped, samples_of
from tf_dist.cluster.api import NODES, Cluster
from tf_dist.errors import ClusterError

_NODES, _NODES_A_RACK = 1_000, 40
T = TypeVar("T", System, Binder)


def main(arguments: list[str]) -> int:
    """1 if a system failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--quick", action="store_true", help="one turn")
    parser.add_argument("--turns", type=int, default=3, help="how often each system is measured (default: 3)")
    parser.add_argument("--gangs", type=int, default=Sizes().gangs, help="to try it; the page shows the default, 300")
    parser.add_argument("--only-binding", action="store_true", help="to try that part: nothing is stored")
    parser.add_argument("--only", nargs="+", default=[], help="systems by name, to try it: nothing is stored")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the servers, too
    systems = [one for one in SYSTEMS if not options.only or one.name in options.only]
    if options.only_binding:
        systems = []
    binders = [one for one in BINDERS if not options.only or one.name in options.only]
    for built in (*systems, *binders):
        built.build()
    turns, sizes = 1 if options.quick else options.turns, Sizes(gangs=options.gangs)
    stored = not options.only and not options.only_binding and sizes == Sizes()
    samples: list[tuple[str, Figures]] = []
    bound: list[tuple[str, Figures]] = []
    failed: dict[str, str] = {}
    conditions = _conditions(turns)
    for turn in range(turns):
        for one, found in _turn(
            [] if options.only_binding else systems, turn, failed, lambda one: _measured(one, sizes)
        ):
            samples.append((one, found))
        for one, found in _turn(binders, turn, failed, _bound):
            bound.append((one, found))
        if stored:
            rows = {"rows": samples_of(samples), "binding": samples_of(bound, binding.ROWS), "failed": failed}
            RESULTS.write_text(dumped({**conditions, **rows}))
            write_pages()
    return 1 if failed else 0


def _turn(
    all_: list[T], turn: int, failed: dict[str, str], measured: Callable[[T], Figures]
) -> Iterator[tuple[str, Figures]]:
    """Each once. The first is another one each time: a machine that gets slower favours none."""
    first = turn % max(1, len(all_))
    for one in all_[first:] + all_[:first]:
        begun = time.monotonic()
        try:
            found = measured(one)
        except (TimeoutError, AssertionError, ClusterError, OSError, subprocess.SubprocessError) as error:
            failed[one.name] = f"{type(error).__name__}: {error}"
            print(f"{one.name} failed after {time.monotonic() - begun:.0f} s: {failed[one.name]}", file=sys.stderr)
            continue
        print(f"{one.name} ({time.monotonic() - begun:.0f} s)")
        print("".join(f"  {name:20} {value:.3g}\n" for name, value in found.items()), flush=True)
        yield one.name, found


def _measured(system: System, sizes: Sizes) -> Figures:
    """On a control plane of its own, so that none finds what another has left."""
    with _plane() as (servers, cluster):
        _nodes(cluster, _NODES, cpus=64)
        system.install(cluster)
        until(lambda: bool(cluster.list(SERVICE_ACCOUNTS, SPACE).items), 60)  # pods need it
        return measure(system, servers, cluster, sizes)


def _bound(binder: Binder) -> Figures:
    with _plane(FEATURES) as (servers, cluster):
        _nodes(cluster, binding.NODES, cpus=binding.NODE_CPUS)
        binder.install(cluster)
        until(lambda: bool(cluster.list(SERVICE_ACCOUNTS, SPACE).items), 60)
        return measure_binding(binder, servers, cluster)


@contextmanager
def _plane(options: Sequence[str] = ()) -> Iterator[tuple[Servers, Cluster]]:
    with (
        tempfile.TemporaryDirectory(prefix="tf-dist-peers-") as folder,
        Servers(Path(folder), options) as servers,
        servers.cluster() as cluster,
    ):
        yield servers, cluster


def _nodes(cluster: Cluster, count: int, *, cpus: int) -> None:
    room = {"cpu": str(cpus), "memory": "256Gi", "pods": "110"}
    status = {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]}

    def create(number: int) -> None:
        name = f"node-{number:04}"
        labels = {"benchmark/pool": "all", RACK: f"rack-{number // _NODES_A_RACK}", "kubernetes.io/hostname": name}
        ensure(cluster, NODES, {"metadata": {"name": name, "labels": labels}})
        cluster.patch(NODES, None, name, {"status": status}, subresource="status")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(count)))


def _conditions(turns: int) -> dict[str, Any]:
    version = subprocess.check_output([binaries() / "kube-apiserver", "--version"], text=True).strip()
    return {
        "turns": turns,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "versions": ", ".join((version, *(one.replace("@", " ") for one in (KUEUE, VOLCANO, COSCHEDULING)))),
        "nodes": _NODES,
        "load": round(os.getloadavg()[0], 1),
        "probe": probe(),
        **machine(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
