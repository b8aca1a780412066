"""Policies compared on the virtual clock, in the same run: ours, kube-scheduler's, the seed's, and those of the books.

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

from benchmarks.measure import Figure, benchmark
from tf_dist.simulate.engine import simulate
from tf_dist.simulate.metrics import Figures, averaged, figures
from tf_dist.simulate.model import Scenario
from tf_dist.simulate.policies import POLICIES
from tf_dist.simulate.policies.ours import Ours
from tf_dist.simulate.traces import TRACES, Wish
from tf_dist.simulate.world import World

CLUSTERS = {"2x4": (2, 4, 150), "8x4": (8, 4, 300), "32x8": (32, 8, 800)}
KUEUE_CI, KUEUE_BOUND = 351.1, 66.0


@dataclass(frozen=True)
class Result:
    """Figures over some seeds, and jobs simulated a second of CPU time."""

    figures: Figures
    speed: float


@cache
def result(trace: str, policy: str, wish: Wish, seeds: int) -> Result:
    """One policy on a trace; measured once a run of the benchmarks."""
    scenarios = [TRACES[trace](replace(wish, seed=seed)) for seed in range(seeds)]
    start = time.process_time()
    worlds = [simulate(scenario, POLICIES[policy](scenario)) for scenario in scenarios]
    spent = time.process_time() - start
    return Result(averaged([figures(world) for world in worlds]), sum(len(w.runs) for w in worlds) / spent)


# -- B7: Kueue's own workload --


def kueue(rate: float | None = None) -> World:
    """Kueue's baseline workload through our queues, with so many admissions a second."""
    scenario = replace(TRACES["kueue"](Wish()), rate=rate)
    return simulate(scenario, Ours(scenario))


def waits(world: World) -> str:
    """Mean seconds to admission by class."""
    by_kind: dict[str, list[float]] = {}
    for run in world.runs:
        by_kind.setdefault(run.job.kind, []).append((run.started or 0.0) - run.job.submit)
    return ", ".join(f"{kind} {sum(found) / len(found):.1f}" for kind, found in by_kind.items())


def usage(world: World) -> float:
    """What jobs held of the nominal quotas, from the first submission to the last end."""
    ends = max(run.ended or 0.0 for run in world.runs)
    return sum(run.held for run in world.runs) / (ends * world.scenario.cluster.units)


@benchmark("simulate.kueue_makespan")
def kueue_makespan() -> Figure:
    """B7: 15,000 workloads of 30 queues in 5 cohorts; simulated seconds until the last is done."""
    world = kueue()
    found = figures(world)
    told = f"Kueue's CI {KUEUE_CI} s, bound {KUEUE_BOUND:g}; use {usage(world):.0%}; waits {waits(world)} s"
    return Figure(found.makespan, "s", target=75, peer=f"{told}; stuck {found.stuck:.0f}")


# -- B8: the claim of the seed's paper --


def claim(cluster: str, load: float, policy: str, seeds: int) -> Figures:
    """A policy on elastic jobs of parameter servers and workers."""
    nodes, gpus, jobs = CLUSTERS[cluster]
    return result("dragon", policy, Wish(jobs=jobs, nodes=nodes, gpus=gpus, load=load), seeds).figures


def _claims(cluster: str = "8x4", seeds: int = 4) -> list[tuple[float, Figures, Figures]]:
    loads = (0.7, 0.9, 1.1)
    return [
        (load, claim(cluster, load, "default+timeout", seeds), claim(cluster, load, "ours", seeds)) for load in loads
    ]


@benchmark("simulate.claim_elapsed")
def claim_elapsed() -> Figure:
    """B8: mean elapsed time against kube-scheduler with a stall time-out, on 8 nodes with 4 GPUs; the worst load."""
    changes = {load: 100 * (ours.elapsed_mean / peer.elapsed_mean - 1) for load, peer, ours in _claims()}
    told = ", ".join(f"load {load}: {change:.1f} %" for load, change in changes.items())
    return Figure(max(changes.values()), "%", target=-85, peer=f"against default+timeout at {told}")


@benchmark("simulate.claim_goodput")
def claim_goodput() -> Figure:
    """B8: work done by the cluster while jobs come, against the same; the worst load."""
    changes = {load: 100 * (ours.goodput / peer.goodput - 1) for load, peer, ours in _claims()}
    told = ", ".join(f"load {load}: {change:+.0f} %" for load, change in changes.items())
    return Figure(min(changes.values()), "%", target=30, at_least=True, peer=f"against default+timeout at {told}")


@benchmark("simulate.claim_dragon")
def claim_dragon() -> Figure:
    """B8: mean elapsed time against the rules of DRAGON v2, over three clusters and four loads; the worst of them."""
    ratios = {
        f"{cluster} {load}": claim(cluster, load, "ours", seeds).elapsed_mean
        / claim(cluster, load, "dragon", seeds).elapsed_mean
        for cluster, seeds in (("2x4", 2), ("8x4", 2), ("32x8", 1))
        for load in (0.5, 0.7, 0.9, 1.1)
    }
    told = ", ".join(f"{where}: {ratio:.2f}" for where, ratio in ratios.items())
    return Figure(max(ratios.values()), "x", target=1.0, peer=told)


# -- B9 and B11: a trace like Philly's --

_PHILLY = Wish(jobs=10_000, load=0.95)


@benchmark("simulate.philly_slowdown")
def philly_slowdown() -> Figure:
    """B9: mean bounded slowdown against EASY, on 64 nodes with 8 GPUs at load .95."""
    ours, easy = (result("philly", policy, _PHILLY, 1).figures for policy in ("ours", "easy"))
    told = (
        f"ours {ours.slowdown:.2f}, EASY {easy.slowdown:.2f}; mean wait {ours.wait_mean:.0f} and {easy.wait_mean:.0f} s"
    )
    return Figure(ours.slowdown / easy.slowdown, "x", target=0.75, peer=f"{told}; stuck {ours.stuck:.0f}")


@benchmark("simulate.philly_longest_wait")
def philly_longest_wait() -> Figure:
    """B9: the longest wait against EASY, in the same runs."""
    ours, easy = (result("philly", policy, _PHILLY, 1).figures for policy in ("ours", "easy"))
    told = f"ours {ours.wait_max / 3600:.1f} h, EASY {easy.wait_max / 3600:.1f} h"
    return Figure(ours.wait_max / easy.wait_max, "x", target=1.25, peer=told)


@benchmark("simulate.speed")
def speed() -> Figure:
    """B11: simulated jobs a second of CPU time under our policy; 250 nodes with 8 GPUs."""
    wish = Wish(jobs=10_000, nodes=250, load=0.95)
    others = (f"{policy} {result('philly', policy, wish, 1).speed:.0f}" for policy in ("fifo", "skip", "easy"))
    ours = result("philly", "ours", wish, 1).speed
    return Figure(ours, "jobs/s", target=5000, at_least=True, peer=f"{', '.join(others)}; PAI's simulator 180-390")


# -- B10: a storm --


class Crashing(Ours):
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


@benchmark("simulate.storm")
def storm() -> Figure:
    """B10: 200 gangs of 8 at once, room for 20, the admitter lost now and then; time to drain against the ideal."""
    scenario = TRACES["storm"](Wish())
    policy = Crashing(scenario, 1)
    world = simulate(scenario, policy)
    ideal = sum(run.job.duration * run.job.workers for run in world.runs) / scenario.cluster.units
    found, peer = figures(world), result("storm", "default", Wish(), 1).figures
    told = f"{policy.crashes} crashes, stuck {found.stuck:.0f}; kube-scheduler leaves {peer.stuck:.0f} of 200 stuck"
    return Figure(found.makespan / ideal, "x", target=1.05, peer=told)


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
    "goodput",
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
    shares = (found.slowdown, found.utilisation, found.productive, found.goodput)
    counts = (found.idle_hours, found.stuck, found.restarts, found.resizes, one.speed)
    cells = [*(f"{v:>9.0f}" for v in seconds), *(f"{v:>10.3f}" for v in shares), *(f"{v:>9.0f}" for v in counts)]
    return f"{name:<16}{''.join(cells)}"


def _table(title: str, trace: str, wish: Wish, seeds: int, policies: Sequence[str]) -> None:
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
            wish = Wish(jobs=jobs, nodes=nodes, gpus=gpus, load=load)
            _table(f"B8 {cluster}, load {load}", "dragon", wish, seeds, every)
    for load in (0.8, 0.95, 1.05):
        _table(
            f"B9 philly, load {load}",
            "philly",
            Wish(jobs=10_000, load=load),
            min(seeds, 5),
            ("default+timeout", *every[6:]),
        )
        _table(
            f"B9 helios, load {load}",
            "helios",
            Wish(jobs=10_000, load=load),
            min(seeds, 5),
            ("default+timeout", *every[6:]),
        )
    _table("B10 storm", "storm", Wish(), 1, every)
    print("\nB7 Kueue's baseline: admissions a second, makespan, use, waits")
    for rate in (43.0, 69.0, 100.0, 250.0, 500.0, None):
        world = kueue(rate)
        print(f"{rate or 'all':>8} {figures(world).makespan:9.1f} s {usage(world):6.1%}  {waits(world)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8))
