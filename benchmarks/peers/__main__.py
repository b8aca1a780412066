"""``python -m benchmarks.peers [--quick] [--turns N] [--only SYSTEM…]``: measure, and write the file and the page.

It takes about ten minutes a turn on two quiet cores; ``--quick`` is one turn. Needs etcd, the binaries of ``servers``,
and Go, which downloads and builds Kueue outside this repository.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.__main__ import commit, write_pages
from benchmarks.control_plane import SPACE
from benchmarks.measure import machine, probe, until
from benchmarks.peers.scenarios import Sizes, measure
from benchmarks.peers.servers import Servers, binaries
from benchmarks.peers.systems import KUEUE, RACK, SERVICE_ACCOUNTS, SYSTEMS, System, ensure
from benchmarks.peers.table import RESULTS, dumped, samples_of
from tf_dist.cluster.api import NODES, Cluster
from tf_dist.errors import ClusterError

_NODES, _NODES_A_RACK = 1_000, 40


def main(arguments: list[str]) -> int:
    """1 if a system failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--quick", action="store_true", help="one turn")
    parser.add_argument("--turns", type=int, default=3, help="how often each system is measured (default: 3)")
    parser.add_argument("--gangs", type=int, default=Sizes().gangs, help="to try it; the page shows the default, 300")
    parser.add_argument("--only", nargs="+", default=[], help="systems by name, to try it: nothing is stored")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the servers, too
    systems = [one for one in SYSTEMS if not options.only or one.name in options.only]
    for one in systems:
        one.build()
    turns, sizes = 1 if options.quick else options.turns, Sizes(gangs=options.gangs)
    stored = not options.only and sizes == Sizes()
    samples: list[tuple[str, dict[str, float]]] = []
    failed: dict[str, str] = {}
    conditions = _conditions(turns)
    for turn in range(turns):
        # The first is another one each time: a machine that gets slower favours none.
        for one in systems[turn % len(systems) :] + systems[: turn % len(systems)]:
            begun = time.monotonic()
            try:
                found = _measured(one, sizes)
            except (TimeoutError, AssertionError, ClusterError, OSError, subprocess.SubprocessError) as error:
                failed[one.name] = f"{type(error).__name__}: {error}"
                print(f"{one.name} failed after {time.monotonic() - begun:.0f} s: {failed[one.name]}", file=sys.stderr)
                continue
            samples.append((one.name, found))
            print(f"{one.name} ({time.monotonic() - begun:.0f} s)")
            print("".join(f"  {name:20} {value:.3g}\n" for name, value in found.items()), flush=True)
            if stored:
                RESULTS.write_text(dumped({**conditions, "rows": samples_of(samples), "failed": failed}))
                write_pages()
    return 1 if failed else 0


def _measured(system: System, sizes: Sizes) -> dict[str, float]:
    """On a control plane of its own, so that none finds what another has left."""
    with (
        tempfile.TemporaryDirectory(prefix="tf-dist-peers-") as folder,
        Servers(Path(folder)) as servers,
        servers.cluster() as cluster,
    ):
        _nodes(cluster)
        system.install(cluster)
        until(lambda: bool(cluster.list(SERVICE_ACCOUNTS, SPACE).items), 60)  # pods need it
        return measure(system, servers, cluster, sizes)


def _nodes(cluster: Cluster) -> None:
    room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    status = {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]}

    def create(number: int) -> None:
        name = f"node-{number:04}"
        labels = {"benchmark/pool": "all", RACK: f"rack-{number // _NODES_A_RACK}", "kubernetes.io/hostname": name}
        ensure(cluster, NODES, {"metadata": {"name": name, "labels": labels}})
        cluster.patch(NODES, None, name, {"status": status}, subresource="status")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(_NODES)))


def _conditions(turns: int) -> dict[str, Any]:
    version = subprocess.check_output([binaries() / "kube-apiserver", "--version"], text=True).strip()
    return {
        "turns": turns,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "versions": f"{version}, {KUEUE.replace('@', ' ')}",
        "nodes": _NODES,
        "load": round(os.getloadavg()[0], 1),
        "probe": probe(),
        **machine(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
