"""``make mutants``: of some hundred small changes of the code, how many do the tests near them notice?

python -m tests.mutation [--sample 400] [--seed 1] [--only core/gang] [--again] [--list] [--jobs 2]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mutation import inside
from tests.mutation.inside import PACKAGES
from tests.mutation.mutating import Mutant, sample
from tests.mutation.recording import NotRecorded, Recording, recorded
from tests.mutation.running import Copies, Ended, Job, run

TREE = Path(__file__).resolve().parents[2]
FOLDER = TREE / ".mutants"
EQUIVALENTS = Path(__file__).with_name("equivalents.toml")
TABLE = Path(__file__).with_name("results.md")

NOTICED, SURVIVED, TOO_LONG, NOT_RUN = "noticed", "survived", "took too long", "no test"
EQUIVALENT, NOT_TRIED, BROKEN_OFF = "equivalent", "not tried", "broke off"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant; ``by``: the test that noticed it, or the reason why none can."""

    mutant: Mutant
    outcome: str
    by: str = ""

    @property
    def noticed(self) -> bool:
        return self.outcome in {NOTICED, TOO_LONG}

    def lines(self) -> str:
        mutant = self.mutant
        where = f"{mutant.line.file}:{mutant.number}"
        return "\n".join([f"{self.outcome}: {where} {self.by}", *_marked("-", mutant.old), *_marked("+", mutant.new)])


def _marked(mark: str, text: str) -> list[str]:
    return [f"    {mark} {line}" for line in text.splitlines()]


def equivalents() -> dict[tuple[str, str, str], str]:
    """(file, line, what it becomes) of the mutants that no test can notice, and why."""
    listed = tomllib.loads(EQUIVALENTS.read_text()).get("equivalent", [])
    return {(one["file"], one["old"].strip(), one["new"].strip()): one["reason"] for one in listed}


class Outcomes:
    """What became of each change, kept from run to run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}

    def last(self, mutant: Mutant) -> Result:
        """What it was when it was tried last."""
        return Result(mutant, *self._kept.get(_key(mutant), (NOT_TRIED, "")))

    def keep(self, result: Result) -> None:
        self._kept[_key(result.mutant)] = [result.outcome, result.by]
        self._path.write_text(json.dumps(self._kept, indent=0))


def _key(mutant: Mutant) -> str:
    return json.dumps([mutant.line.file, mutant.line.nth, mutant.old, mutant.new])


class Judge:
    """Says what becomes of changes to ``outcomes``. ``spread``: all tests that run a line are tried, however slow."""

    def __init__(self, recording: Recording, copies: Copies, outcomes: Outcomes, spread: bool) -> None:
        self._recording, self._copies, self._outcomes = recording, copies, outcomes
        self._spread = spread
        self._tried = 0
        self._failing = ""

    def judge(self, mutants: Sequence[Mutant]) -> str:
        """Tries each; says which tests fail without any change, in which case none was tried.

        A change is tried in a fork of a process that has collected all tests, which takes a tenth of the time. It is
        tried again in a process of its own, changed before it is imported, if that noticed nothing.
        """
        near = {mutant: self._near(mutant) for mutant in mutants}
        for mutant, tests in near.items():
            if not tests:
                self._say(Result(mutant, NOT_RUN))
        tried = [mutant for mutant in mutants if near[mutant]]
        left = [mutant for mutant in tried if mutant.defines]
        quick = [mutant for mutant in tried if not mutant.defines]
        files = sorted({test.partition("::")[0] for mutant in quick for test in near[mutant]})

        def all_collected(session: pytest.Session) -> list[tuple[int, str]]:
            found: list[tuple[int, str]] = []
            root = Path.cwd()

            def job(number: int, mutant: Mutant | None, tests: list[str]) -> Job:
                path, source = (str(root / mutant.line.file), mutant.source) if mutant else ("", "")

                def ended(end: Ended) -> None:
                    told = TOO_LONG if end.too_long else BROKEN_OFF if end.told is None else end.told
                    found.append((number, told))
                    if mutant and told:
                        self._say(_result(mutant, told))

                return self._job(
                    tests, lambda _: inside.first_failure_of(session, tests, path, source), ended, apart=False
                )

            run((job(-1, None, near[one]) for one in _one_each(quick)), self._copies, FOLDER)
            if not any(told for _, told in found):
                run((job(at, one, near[one]) for at, one in enumerate(quick)), self._copies, FOLDER)
            return found

        def ended(end: Ended) -> None:
            nonlocal left
            if end.told is None:
                self._failing = end.output[-3000:]
                return
            for number, told in end.told:
                if number < 0:
                    self._failing += told and f"{told}\n"
                elif told:
                    self._say(_result(quick[number], told))
                else:
                    left.append(quick[number])

        def collect(root: Path) -> list[tuple[int, str]]:
            found: list[tuple[int, str]] = []
            inside.collected(root, files, lambda session: found.extend(all_collected(session)))
            return found

        if quick:
            run([Job(collect, ended, 36_000, 36_000)], self._copies, FOLDER)
        if not self._failing:
            run((self._apart(mutant, near[mutant]) for mutant in left), self._copies, FOLDER)
        return self._failing

    def _near(self, mutant: Mutant) -> list[str]:
        if self._spread:
            return sorted(self._recording.touching(mutant), key=self._recording.seconds.__getitem__)
        return self._recording.near(mutant, TREE)

    def _job(self, tests: list[str], work: Callable[[Path], str], ended: Callable[[Ended], None], **more: Any) -> Job:
        long = sum(self._recording.seconds[test] for test in tests)
        return Job(work, ended, cpu=int(60 + 4 * long), wall=60 + 40 * long, **more)

    def _apart(self, mutant: Mutant, tests: list[str]) -> Job:
        def ended(end: Ended) -> None:
            told = TOO_LONG if end.too_long else BROKEN_OFF if end.told is None else end.told
            self._say(_result(mutant, told) if told else Result(mutant, SURVIVED))

        change = mutant.line.file, mutant.source
        return self._job(tests, lambda root: inside.first_failure(root, tests), ended, change=change)

    def _say(self, result: Result) -> None:
        self._tried += 1
        self._outcomes.keep(result)
        if result.outcome != NOTICED:
            print(f"{self._tried}: {result.lines()}", flush=True)


def _result(mutant: Mutant, told: str) -> Result:
    """``told``: the test that failed, or that it came to no end."""
    return Result(mutant, told) if told in {TOO_LONG, BROKEN_OFF} else Result(mutant, NOTICED, told)


def _package(only: str) -> str:
    """The package in which all files are whose path starts so ("": several)."""
    return next((package for package in PACKAGES if f"{only}/".startswith(f"{package}/")), "")


def _one_each(mutants: Iterable[Mutant]) -> list[Mutant]:
    """One of each package."""
    return list({mutant.package: mutant for mutant in mutants}.values())


def table(results: Iterable[Result]) -> str:
    """By package: how many of the sample are noticed; equivalents are not counted."""
    counts = {package: Counter[str]() for package in PACKAGES}
    for result in results:
        counts[result.mutant.package][result.outcome] += 1
    heads = (NOTICED, TOO_LONG, SURVIVED, NOT_RUN, EQUIVALENT)
    rows = ["| package | counted | noticed | took too long | survived | no test runs it | share noticed | equivalent |"]
    rows.append("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, found in [*counts.items(), ("all", sum(counts.values(), Counter[str]()))]:
        good, long, bad, none, same = (found[head] for head in heads)
        counted = found.total() - same - found[NOT_TRIED]
        share = f"{100 * (good + long) / counted:.1f} %" if counted else ""
        rows.append(f"| {name} | {counted} | {good} | {long} | {bad} | {none} | {share} | {same} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=400, help="so many mutants")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument(
        "--only", default="", help="of files under tf_dist that start so: core/gang, controller/leases/lease"
    )
    parser.add_argument("--again", action="store_true", help="only those that the runs before did not notice")
    parser.add_argument("--all", action="store_true", help="try all tests that run a line, however slow")
    parser.add_argument("--list", action="store_true", help="say which mutants, and the tests near them; run nothing")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--nice", type=int, default=10, help="how much everything else on this machine goes first")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    os.nice(options.nice)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what it started ends with it

    start = time.monotonic()
    mutants = sample(TREE, FOLDER, options.sample, options.seed, options.only)
    copies = Copies(TREE, FOLDER, options.jobs)
    try:
        recording = recorded(TREE, copies, FOLDER, _package(options.only))
    except NotRecorded as error:
        print(error, file=sys.stderr)
        return 1
    if options.list:
        for mutant in mutants:
            near = recording.near(mutant, TREE)
            print(Result(mutant, f"{len(near)} tests", near[0] if near else "").lines())
        return 0
    known, outcomes = equivalents(), Outcomes(FOLDER / "outcomes.json")
    same = {mutant: reason for mutant in mutants if (reason := known.get((mutant.line.file, mutant.old, mutant.new)))}
    left = [one for one in mutants if one not in same and not (options.again and outcomes.last(one).noticed)]
    if failing := Judge(recording, copies, outcomes, options.all).judge(left):
        print(f"these fail without any change:\n{failing}")
        return 1
    results = [Result(one, EQUIVALENT, same[one]) if one in same else outcomes.last(one) for one in mutants]
    survivors = [one for one in results if not one.noticed and one.outcome not in {EQUIVALENT, NOT_TRIED}]
    report = table(results)
    print(report)
    minutes = (time.monotonic() - start) / 60
    print(f"{len(results)} mutants (seed {options.seed}) in {minutes:.0f} minutes")
    if options.write:
        _write(options, results, report, survivors)
    return 0


def _write(options: argparse.Namespace, results: Sequence[Result], report: str, survivors: Sequence[Result]) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=TREE, capture_output=True, text=True
    ).stdout.strip()
    text = "# Changes of the code that the tests notice\n\nWhat `make mutants` found: "
    text += f"{len(results)} changes, seed {options.seed}, at {commit}. See docs/testing.md.\n\n"
    text += report + "\n"
    if survivors:
        text += "\n## Not noticed\n\n```\n" + "\n".join(result.lines() for result in survivors) + "\n```\n"
    TABLE.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
