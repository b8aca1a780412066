"""Policies compared on the virtual clock, in the same run: ours, kube-scheduler's, DRAGON's, and those of the books.

``python -m benchmarks simulate`` takes the short figures. ``python -m benchmarks.simulations`` prints the whole tables,
over more seeds; that takes some minutes.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.measure import Measured, Row, Target, benchmark
from tf_dist.simulate.engine import World, simulate
from tf_dist.simulate.metrics import Figures, averaged, figures
from tf_dist.simulate.policies import POLICIES
from tf_dist.simulate.policies.tf_dist_admission import TfDistAdmission
from tf_dist.simulate.scenario import Scenario
from tf_dist.simulate.traces import TRACES, TraceOptions

CLUSTERS = {"2x4": (2, 4, 150), "8x4": (8, 4, 300), "32x8": (32, 8, 800)}
# Admissions a second: 15,000 workloads in the 351.1 s that Kueue's CI takes; and the least time the workload can take.
KUEUE_RATE, KUEUE_BOUND = 43.0, 66.0
_BOUND, _KUBE = "the least it can take (computed)", "kube-scheduler, pod by pod"


@dataclass(frozen=True)
class Result:
    """Figures over some seeds, and jobs simulated a second of CPU time."""

    figures: Figures
    speed: float


@cache
def result(trace: str, policy: str, wish: TraceOptions, seeds: int) -> Result:
    """One policy on a trace; measured once a run of the benchmarks."""
    scenarios = [TRACES[trace](replace(wish, seed=seed)) for seed in range(seeds)]
    start = time.process_time()
    worlds = [simulate(scenario, POLICIES[policy](scenario)) for scenario in scenarios]
    spent = time.process_time() - start
    return Result(averaged([figures(world) for world in worlds]), sum(len(w.runs) for w in worlds) / spent)


# -- Kueue's own workload --


def kueue(rate: float | None = None) -> World:
    """Kueue's baseline workload through our queues, with so many admissions a second."""
    scenario = replace(TRACES["kueue"](TraceOptions()), rate=rate)
    return simulate(scenario, TfDistAdmission(scenario))


def waits(world: World) -> str:
    """Mean seconds to admission by class."""
    by_kind: dict[str, list[float]] = {}
    for run in world.runs:
        by_kind.setdefault(run.job.kind, []).append((run.started or 0.0) - run.job.submit)
    return ", ".join(f"{kind} {sum(found) / len(found):.1f}" for kind, found in by_kind.items())


def usage(world: World) -> float:
    """What jobs held of the nominal quotas, from the first submission to the last end."""
    ends = max(run.ended or 0.0 for run in world.runs)
    return sum(run.spent.held for run in world.runs) / (ends * world.scenario.cluster.units)


@benchmark(
    Row(
        "simulate.kueue_makespan",
        "Kueue's baseline workload (15,000 workloads of 30 queues in 5 cohorts) by our policy, at any number of "
        "admissions a second: simulated seconds until the last is done.",
        "s",
        target=Target(1.14, of=_BOUND),
    ),
    Row(
        "simulate.kueue_43",
        "The same at the 43 admissions a second that Kueue's CI comes to.",
        "s",
        published="Kueue's CI: 351.1 s of wall time on the same workload, with a real API server and its client held "
        "to 50 requests a second. Ours is simulated: held to the same rate, the policy takes about as long.",
    ),
)
def kueue_makespan() -> dict[str, Measured]:
    """Deterministic."""
    found = {}
    for name, rate in (("simulate.kueue_makespan", None), ("simulate.kueue_43", KUEUE_RATE)):
        world = kueue(rate)
        seen = figures(world)
        assert not seen.stuck, f"{seen.stuck:.0f} workloads are stuck"
        told = f"use {usage(world):.0%}; mean waits {waits(world)} s."
        found[name] = Measured(seen.makespan, {_BOUND: KUEUE_BOUND}, told)
    return found


# -- the claim of the paper on DRAGON --


def claim(cluster: str, load: float, policy: str, seeds: int) -> Figures:
    """A policy on elastic jobs of parameter servers and workers."""
    nodes, gpus, jobs = CLUSTERS[cluster]
    return result("dragon", policy, TraceOptions(jobs=jobs, nodes=nodes, gpus=gpus, load=load), seeds).figures


def _claims(cluster: str = "8x4", seeds: int = 4) -> list[tuple[float, Figures, Figures]]:
    loads = (0.7, 0.9, 1.1)
    return [
        (load, claim(cluster, load, "default+timeout", seeds), claim(cluster, load, "ours", seeds)) for load in loads
    ]


@benchmark(
    Row(
        "simulate.claim_elapsed",
        "Mean elapsed time of elastic jobs on 8 nodes with 4 GPUs against kube-scheduler with a stall time-out, four "
        "seeds; the worst of three loads.",
        "%",
        target=Target(-85),
    ),
    Row(
        "simulate.claim_goodput",
        "Work done by the cluster while jobs come, against the same; the worst load.",
        "%",
        better="higher",
        target=Target(30),
    ),
)
def claim_elapsed() -> dict[str, Measured]:
    """Deterministic."""
    claims = _claims()
    elapsed = {load: 100 * (ours.elapsed_mean / peer.elapsed_mean - 1) for load, peer, ours in claims}
    done = {load: 100 * (ours.done / peer.done - 1) for load, peer, ours in claims}

    def told(changes: dict[float, float]) -> str:
        return ", ".join(f"load {load}: {change:+.1f} %" for load, change in changes.items()) + "."

    return {
        "simulate.claim_elapsed": Measured(max(elapsed.values()), note=told(elapsed)),
        "simulate.claim_goodput": Measured(min(done.values()), note=told(done)),
    }


@benchmark(
    Row(
        "simulate.claim_dragon",
        "Mean elapsed time against the rules of DRAGON v2, over three clusters and four loads; the worst of them.",
        "times",
        target=Target(1.0),
    )
)
def claim_dragon() -> Measured:
    """Deterministic."""
    ratios = {
        f"{cluster} {load}": claim(cluster, load, "ours", seeds).elapsed_mean
        / claim(cluster, load, "dragon", seeds).elapsed_mean
        for cluster, seeds in (("2x4", 2), ("8x4", 2), ("32x8", 1))
        for load in (0.5, 0.7, 0.9, 1.1)
    }
    return Measured(max(ratios.values()), note=", ".join(f"{at}: {ratio:.2f}" for at, ratio in ratios.items()) + ".")


# -- a trace like Philly's --

_PHILLY = TraceOptions(jobs=10_000, load=0.95)


@benchmark(
    Row(
        "simulate.philly_slowdown",
        "Mean bounded slowdown of 10,000 jobs like Philly's on 64 nodes with 8 GPUs at load .95.",
        "times",
        target=Target(0.75, of="EASY"),
    ),
    Row("simulate.philly_longest_wait", "The longest wait in the same run.", "h", target=Target(1.25, of="EASY")),
)
def philly() -> dict[str, Measured]:
    """Deterministic; the peer is EASY backfilling on the same jobs."""
    ours, easy = (result("philly", policy, _PHILLY, 1).figures for policy in ("ours", "easy"))
    assert not ours.stuck, f"{ours.stuck:.0f} jobs are stuck"
    told = f"mean wait {ours.wait_mean:.0f} s, EASY {easy.wait_mean:.0f} s."
    return {
        "simulate.philly_slowdown": Measured(ours.slowdown, {"EASY": easy.slowdown}, told),
        "simulate.philly_longest_wait": Measured(ours.wait_max / 3600, {"EASY": easy.wait_max / 3600}),
    }


@benchmark(
    Row(
        "simulate.speed",
        "Simulated jobs a second of CPU time under our policy: 10,000 jobs like Philly's on 250 nodes with 8 GPUs.",
        "jobs/s",
        better="higher",
        target=Target(5_000),
        published="Alibaba PAI's simulator: 180 to 390 jobs a second, on a trace and a machine of its own.",
    )
)
def speed() -> Measured:
    """One run of each policy. EASY keeps no quotas, places and reasons."""
    wish = TraceOptions(jobs=10_000, nodes=250, load=0.95)
    names = {"EASY": "easy", "first in, first out": "fifo", "the first that fits": "skip"}
    peers = {name: result("philly", policy, wish, 1).speed for name, policy in names.items()}
    return Measured(result("philly", "ours", wish, 1).speed, peers)


# -- a storm --


class Crashing(TfDistAdmission):
    """Ours, whose admitter is lost and made anew from what was written, now and then."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        super().__init__(scenario)
        self._dice = random.Random(seed)
        self.crashes = 0

    def act(self, world: World) -> float | None:
        """Crash before every third decision or so."""
        if self._dice.random() < 0.3:
            self.crashes += 1
            self.restart()
        return super().act(world)


@benchmark(
    Row(
        "simulate.storm",
        "200 gangs of 8 at once, room for 20, the admitter lost now and then: time to drain, in terms of the ideal.",
        "times",
        target=Target(1.05),
    ),
    Row("simulate.storm_stuck", "Gangs that are never done in that storm.", "gangs", target=Target(0)),
)
def storm() -> dict[str, Measured]:
    """Deterministic."""
    scenario = TRACES["storm"](TraceOptions())
    policy = Crashing(scenario, 1)
    world = simulate(scenario, policy)
    ideal = sum(run.job.duration * run.job.workers for run in world.runs) / scenario.cluster.units
    found, peer = figures(world), result("storm", "default", TraceOptions(), 1).figures
    assert policy.crashes, "the admitter was never lost"
    return {
        "simulate.storm": Measured(found.makespan / ideal, note=f"{policy.crashes} crashes."),
        "simulate.storm_stuck": Measured(found.stuck, {_KUBE: peer.stuck}),
    }


# -- whole tables --

_TITLES = (
    "policy",
    "elapsed",
    "p50",
    "p95",
    "wait",
    "p95",
    "max",
    "slowdown",
    "held",
    "productive",
    "done",
    "idle h",
)


def _row(name: str, one: Result) -> str:
    found = one.figures
    seconds = (
        found.elapsed_mean,
        found.elapsed_p50,
        found.elapsed_p95,
        found.wait_mean,
        found.wait_p95,
        found.wait_max,
    )
    shares = (found.slowdown, found.utilisation, found.productive, found.done)
    counts = (found.idle_hours, found.stuck, found.restarts, found.resizes, one.speed)
    cells = [*(f"{v:>9.0f}" for v in seconds), *(f"{v:>10.3f}" for v in shares), *(f"{v:>9.0f}" for v in counts)]
    return f"{name:<16}{''.join(cells)}"


def _table(title: str, trace: str, wish: TraceOptions, seeds: int, policies: Sequence[str]) -> None:
    print(f"\n{title}, {seeds} seeds")
    widths = (9, 9, 9, 9, 9, 9, 10, 10, 10, 10, 9)
    more = "".join(f"{text:>9}" for text in ("stuck", "restarts", "resizes", "jobs/s"))
    print(f"{_TITLES[0]:<16}" + "".join(f"{t:>{w}}" for t, w in zip(_TITLES[1:], widths, strict=True)) + more)
    for policy in policies:
        print(_row(policy, result(trace, policy, wish, seeds)), flush=True)


def main(seeds: int) -> int:
    """All policies on all benchmarks."""
    every = tuple(POLICIES)
    for cluster, (nodes, gpus, jobs) in CLUSTERS.items():
        for load in (0.5, 0.7, 0.9, 1.1):
            wish = TraceOptions(jobs=jobs, nodes=nodes, gpus=gpus, load=load)
            _table(f"B8 {cluster}, load {load}", "dragon", wish, seeds, every)
    for load in (0.8, 0.95, 1.05):
        _table(
            f"B9 philly, load {load}",
            "philly",
            TraceOptions(jobs=10_000, load=load),
            min(seeds, 5),
            ("default+timeout", *every[6:]),
        )
        _table(
            f"B9 helios, load {load}",
            "helios",
            TraceOptions(jobs=10_000, load=load),
            min(seeds, 5),
            ("default+timeout", *every[6:]),
        )
    _table("B10 storm", "storm", TraceOptions(), 1, every)
    print("\nB7 Kueue's baseline: admissions a second, makespan, use, waits")
    for rate in (43.0, 69.0, 100.0, 250.0, 500.0, None):
        world = kueue(rate)
        print(f"{rate or 'all':>8} {figures(world).makespan:9.1f} s {usage(world):6.1%}  {waits(world)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8))
