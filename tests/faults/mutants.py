"""Whether the fault machine notices: each defect of ``mutants_list`` in a copy of the package, under fault schedules.

    python -m tests.faults.mutants [NAME…] [--schedules 400] [--more] [--jobs 2]

A mutant is noticed when a schedule breaks a rule with it and the same schedule keeps all of them without it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.mutants_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tf_dist"
UNCHANGED = Mutant("(unchanged)", "__init__.py", "", "", "")


class Outdated(Exception):
    """The code that a mutant is of has changed."""


@dataclass(frozen=True, slots=True)
class Found:
    """``schedule``: the first that breaks a rule (None: none does), and ``why``; after so many ``seconds``."""

    mutant: Mutant
    schedule: int | None
    why: str
    seconds: float

    @property
    def noticed(self) -> bool:
        return self.schedule is not None


def mutated(mutant: Mutant, package: Path = PACKAGE) -> str:
    """The text of the mutant's file with the defect in it; Outdated."""
    text = (package / mutant.file).read_text()
    if mutant is UNCHANGED:
        return text
    found = text.count(mutant.old)
    if found != 1 or mutant.old == mutant.new:
        raise Outdated(f"{mutant.name}: what it replaces is {found} times in {mutant.file}")
    return text.replace(mutant.old, mutant.new)


@contextmanager
def package_with(mutant: Mutant) -> Iterator[Path]:
    """A folder with a copy of the package that has the defect; the checkout stays as it is."""
    with tempfile.TemporaryDirectory(prefix="tf-dist-mutant-") as folder:
        copy = Path(folder) / "tf_dist"
        shutil.copytree(PACKAGE, copy)
        (copy / mutant.file).write_text(mutated(mutant))
        yield Path(folder)


def run_in_process(mutant: Mutant, schedules: Iterable[int], limit: float, *, more: bool = False) -> Found:
    """Run these schedules with the mutant, up to the first that breaks a rule, in a process of its own.

    What does not come to its end within ``limit`` seconds was not noticed: the machine may only be slow.
    """
    began = time.monotonic()
    with package_with(mutant) as folder:
        command = [sys.executable, "-m", "tests.faults.mutants", "--run", json.dumps(list(schedules))]
        command += ["--more"] if more else []
        path = os.pathsep.join((str(folder), str(ROOT)))
        # The order of sets is part of a schedule.
        environ = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
        try:
            done = subprocess.run(
                command, cwd=folder, env=environ, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            return Found(mutant, None, f"no end within {limit:g} s", time.monotonic() - began)
    seconds = time.monotonic() - began
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise RuntimeError(f"{mutant.name}: {done.stderr[-4000:]}") from None
    return Found(mutant, answer["schedule"], answer["why"], seconds)


def doubted(found: Iterable[Found], limit: float, *, more: bool = False) -> dict[int, str]:
    """Of the schedules that noticed something those that break a rule without any mutant, and which."""
    schedules, flawed = sorted({one.schedule for one in found if one.schedule is not None}), {}
    while schedules:
        again = run_in_process(UNCHANGED, schedules, limit, more=more)
        if again.schedule is None:
            break
        flawed[again.schedule] = again.why
        schedules = [schedule for schedule in schedules if schedule > again.schedule]
    return flawed


def run(schedules: Iterable[int], *, more: bool = False) -> dict[str, object]:
    """In the process of the mutant: run schedules up to the first that breaks a rule."""
    from tests.faults.runner import run as run_schedule  # only here: the package that it imports is the mutant's

    logging.disable(logging.INFO)  # everything that happens here is worth a warning
    for schedule in schedules:
        try:
            run_schedule(schedule, more=more)
        except Exception as error:
            lines = str(error).splitlines() or [""]
            return {"schedule": schedule, "why": f"{type(error).__name__}: {lines[0]}"[:300]}
    return {"schedule": None, "why": ""}


def _say(found: Found) -> None:
    word = f"schedule {found.schedule}" if found.noticed else "SURVIVED"
    print(f"{found.mutant.name:40} {word:>10} {found.seconds:6.0f} s  {found.why}", flush=True)


def main() -> int:
    """Look at the mutants of these names (none: at all); 1 when one survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--schedules", type=int, default=400)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--more", action="store_true", help="schedules with what befalls few clusters")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for a mutant")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run is not None:
        print(json.dumps(run(json.loads(chosen.run), more=chosen.more)))
        return 0
    known = {mutant.name: mutant for mutant in (*MUTANTS, UNCHANGED)}
    if unknown := [name for name in chosen.names if name not in known]:
        parser.error(f"no such mutant: {', '.join(unknown)}")
    mutants = [known[name] for name in chosen.names] or list(MUTANTS)
    schedules = range(chosen.first, chosen.first + chosen.schedules)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        futures = [pool.submit(run_in_process, mutant, schedules, chosen.limit, more=chosen.more) for mutant in mutants]
        found = [future.result() for future in as_completed(futures) if not _say(future.result())]
    flawed = doubted((one for one in found if one.mutant is not UNCHANGED), chosen.limit, more=chosen.more)
    for schedule, why in flawed.items():
        print(f"schedule {schedule} breaks a rule by itself: {why}")
    noticed = sum(one.noticed and one.schedule not in flawed for one in found)
    print(f"{noticed} of {len(mutants)} noticed within {chosen.schedules} schedules")
    return 0 if noticed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
