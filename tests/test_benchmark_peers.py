"""The benchmark against Kueue and Volcano: how it counts, and its table."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import binding, table
from benchmarks.peers.scenarios import ROWS
from benchmarks.peers.servers import DECIDER, JOB_CONTROLLER, Servers
from benchmarks.peers.systems import Kueue, TfDist, Volcano
from tests.waiting import until
from tf_dist.cluster.api import Object


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="the system has no setpriv")
def test_servers_end_when_benchmark_is_killed(tmp_path: Path) -> None:
    script = """
import sys, time
from pathlib import Path
from benchmarks.peers.servers import process
with process(["sleep", "1000"], Path(sys.argv[1])) as started:
    print(started.pid, flush=True)
    time.sleep(1000)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        pid = int(benchmark.stdout.readline())
        server = os.pidfd_open(pid)
        until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", 60)
        benchmark.kill()
        ended, _, _ = select.select([server], [], [], 60)
        os.close(server)
    assert ended


def test_counts_requests_by_user_and_ignores_watches(tmp_path: Path) -> None:
    def line(user: str, verb: str) -> str:
        return json.dumps({"user": {"username": user}, "verb": verb}) + "\n"

    servers, log = Servers(tmp_path), tmp_path / "audit.log"
    log.write_text(line(DECIDER, "create") + line(DECIDER, "watch") + line(JOB_CONTROLLER, "patch") + '{"half')
    assert (servers.requests(DECIDER), servers.requests(DECIDER, JOB_CONTROLLER)) == (1, 2)
    log.write_text(log.read_text().removesuffix('{"half') + line(DECIDER, "update"))
    assert servers.requests(DECIDER) == 2


@pytest.mark.parametrize(
    ("conditions", "name"),
    [
        ([{"type": "Admitted", "status": "True"}], "job-00001"),
        ([{"type": "Admitted", "status": "False"}], ""),
        ([{"type": "QuotaReserved", "status": "True"}], ""),
        (None, ""),
    ],
)
def test_reads_admission_of_kueue_from_its_workload(conditions: Any, name: str) -> None:
    owner = {"kind": "Job", "name": "job-00001"}
    workload: Object = {"metadata": {"ownerReferences": [owner]}, "status": {"conditions": conditions}}
    assert Kueue().admitted(workload) == name


@pytest.mark.parametrize(("phase", "name"), [("Pending", ""), ("Inqueue", "job-00001"), ("Running", "job-00001")])
def test_reads_admission_of_volcano_from_its_pod_group(phase: str, name: str) -> None:
    group: Object = {"metadata": {"ownerReferences": [{"name": "job-00001"}]}, "status": {"phase": phase}}
    assert Volcano().admitted(group) == name


def test_gangs_of_all_systems_have_equal_requests() -> None:
    job = Kueue(topology=True).job(7, 8)
    assert (job["spec"]["parallelism"], job["spec"]["suspend"]) == (8, True)
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team-topology"}
    replicas = TfDist().job(7, 8)["spec"]["tfReplicaSpecs"].values()
    assert sum(one["replicas"] for one in replicas) == 8
    task = Volcano().job(7, 8)["spec"]["tasks"][0]
    assert (task["replicas"], task["minAvailable"]) == (8, 8)
    templates = [job["spec"]["template"], task["template"], *(one["template"] for one in replicas)]
    requests = [one["spec"]["containers"][0]["resources"]["requests"] for one in templates]
    assert requests == [{"cpu": "1"}] * 4


CONDITIONS = {"turns": 3, "date": "2026-01-01 00:00 UTC", "commit": "abc", "versions": "Kubernetes v1.35.4"}
CONDITIONS |= {"nodes": 1000, "load": 0.1, "probe": 50, "cpus": 2, "failed": {"Kueue": "TimeoutError: not so"}}


def test_table_shows_median_and_spread_of_turns() -> None:
    turns = [("tf-dist", {"backlog": 100.0}), ("tf-dist", {"backlog": 90.0}), ("tf-dist", {"backlog": 120.0})]
    found = {**CONDITIONS, "rows": table.samples_of([*turns, ("Kueue", {"turns": 31.25})])}
    section = table.section(found)
    assert "| `backlog`, gangs/s | 100 (90 to 120) |  |" in section
    assert "| `turns`, gangs/s |  | 31.2 |" in section
    assert "median of 3 turns" in section
    assert "Kueue failed: TimeoutError: not so." in section
    assert "The training-operator is left out" in section
    assert "| `backlog` | higher | 300 gangs of 8 wait" in table.details(found)
    assert (table.section({}), table.details({})) == ("", "")


def test_table_lists_rows_in_which_tf_dist_is_ahead_or_behind() -> None:
    mine = {"backlog": (100.0, 90.0), "turns": (30.0, 20.0), "cold.first": (2.0, 1.8)}
    kueue = {"backlog": (80.0, 70.0), "turns": (35.0, 25.0), "cold.first": (0.7, 0.6), "cold.all": (9.0,)}
    turns = [
        (system, {name: figure})
        for system, rows in (("tf-dist", mine), ("Kueue", kueue))
        for name, figures in rows.items()
        for figure in figures
    ]
    section = table.section({**CONDITIONS, "rows": table.samples_of(turns)})
    assert "ahead of each other controller in `backlog`," in section
    assert "behind one of them in `cold.first`. In" in " ".join(section.split())


def test_binding_table_has_column_for_each_measured_system() -> None:
    bound = [("kube-scheduler", {"bind.ended": 36.0}), ("Volcano", {"bind.ended": 50.0})]
    found = {**CONDITIONS, "rows": [], "binding": table.samples_of(bound, binding.ROWS)}
    assert "| `bind.ended`, gangs | 36 | 50 |" in table.section(found)


def test_stored_figures_match_defined_rows() -> None:
    found = table.stored()
    assert not found or [row["name"] for row in found["rows"]] == [row.name for row in ROWS], "run make bench-peers"
