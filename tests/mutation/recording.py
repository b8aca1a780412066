"""Which tests run which line: recorded once for a test file, and anew when that file changes."""

from __future__ import annotations

import hashlib
import pickle
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from tests.mutation import inside
from tests.mutation.mutating import Line, Mutant, lines_of
from tests.mutation.running import Copies, Ended, Job, run

# Tests of whole processes, of packages that are not measured, and of the code's surroundings.
_ELSEWHERE = ("integration", "mutation", "examples", "deploy", "cli", "conformance", "faults", "simulate")
_ELSEWHERE_FOLDERS = ("tests/cluster/apiserver/", "tests/cluster/kubelet/")
_BATCH = 6  # files a process
_NAMED = 0.1  # what a test in the module's own test module is ahead: as if 10 tests ran a line
_AROUND = 8  # lines before and after one that are around it
_SLOW = 5.0  # seconds: a test that takes longer is not near
_ENDLESS = 3600, 6 * 3600.0  # seconds of a processor, and on the clock of a machine that has much else to do
_LONG = 5.0  # seconds: what all the tests near a line take at most


@dataclass(slots=True)
class Recording:
    """``digests`` of its test files; a test's ``seconds`` and how many ``lines`` it runs; the tests that run a line."""

    digests: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    runs: dict[Line, set[str]] = field(default_factory=dict)
    lines: Counter[str] = field(default_factory=Counter)

    def near(self, mutant: Mutant, tree: Path) -> list[str]:
        """The tests near its line: of those that run it, first those that run what few others run around it.

        So the row of a table that a branch is for comes before the hundreds that go past the branch. A test module of
        the same name counts for it. Where this is equal: one of each test function, before the next of any; of these,
        the ones that run little else.
        """
        if mutant.defines:
            around = self._naming(mutant)
        else:
            lines = lines_of(mutant.line.file, (tree / mutant.line.file).read_text())
            around = lines[max(0, mutant.number - 1 - _AROUND) : mutant.number + _AROUND]
        score: dict[str, float] = defaultdict(float)
        for tests in map(self.runs.get, around):
            for test in tests or ():
                score[test] += 1 / len(tests or ())
        found = [test for test in self.touching(mutant) if self.seconds[test] <= _SLOW]
        named = f"/test_{Path(mutant.line.file).name}::"
        for test in found:
            score[test] += _NAMED * (named in test)
        found.sort(key=lambda test: (self.lines[test], test))
        rows: Counter[tuple[str, float]] = Counter()
        ranked = []
        for test in found:
            name = test.partition("[")[0], round(score[test], 4)
            rows[name] += 1
            ranked.append((-name[1], rows[name], len(ranked), test))
        taken, spent = [], 0.0
        for *_, test in sorted(ranked):
            if spent + self.seconds[test] <= _LONG:
                spent += self.seconds[test] + 0.005
                taken.append(test)
        return taken

    def touching(self, mutant: Mutant) -> set[str]:
        """All tests that run its line.

        Where it runs at import, and so in no test: those that run a line which speaks of what it defines; if there are
        none, those that run any of its file.
        """
        if not mutant.defines:
            return self.runs.get(mutant.line, set())
        found = set().union(*(self.runs[line] for line in self._naming(mutant)))
        return found or set().union(*(tests for line, tests in self.runs.items() if line.file == mutant.line.file))

    def _naming(self, mutant: Mutant) -> list[Line]:
        """The lines that speak of what it defines; a private name is that of its own module."""
        named, private = re.compile(rf"\b{re.escape(mutant.defines)}\b"), mutant.defines.startswith("_")
        lines = (line for line in self.runs if not private or line.file == mutant.line.file)
        return [line for line in lines if named.search(line.text)]


class NotRecorded(Exception):
    """Tests whose lines are not known: changes of these lines would count as noticed by no test."""


def recorded(tree: Path, copies: Copies, folder: Path, package: str = "") -> Recording:
    """What is known of the tests as they are now: what is not is recorded, which takes minutes.

    ``package``: only the tests of this one are recorded, if they are not. Raises NotRecorded.
    """
    store = folder / "recording"
    known = pickle.loads(zlib.decompress(store.read_bytes())) if store.exists() else Recording()
    files = {
        path.relative_to(tree).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((tree / "tests").rglob("test_*.py"))
        if path.relative_to(tree).parts[1] not in _ELSEWHERE and len(path.relative_to(tree).parts) > 2
    }
    files = {file: digest for file, digest in files.items() if not file.startswith(_ELSEWHERE_FOLDERS)}
    gone = {file for file, digest in known.digests.items() if files.get(file) != digest}
    if gone:
        _forget(known, gone)
    own = {file for file in files if package not in inside.PACKAGES or file.startswith(f"tests/{package}/")}
    new = sorted(own - known.digests.keys(), key=_order)

    def ended(batch: list[str], end: Ended) -> None:
        if end.told is None:
            print(f"not recorded: {' '.join(batch)}\n{end.output[-2000:]}", flush=True)
            return
        seconds, runs = end.told
        known.seconds.update(seconds)
        for file, lines in runs.items():
            source = lines_of(file, (tree / file).read_text())
            for number, tests in lines.items():
                passed = {test for test in tests if test in seconds}
                if passed and number <= len(source):
                    known.runs.setdefault(source[number - 1], set()).update(passed)
        known.digests.update({file: files[file] for file in batch})
        store.write_bytes(zlib.compress(pickle.dumps(known), 1))
        print(f"recorded {len(own & known.digests.keys())} of {len(own)} files of tests", flush=True)

    def record(batches: Iterable[list[str]]) -> None:
        jobs = (Job(partial(inside.record, files=one), partial(ended, one), *_ENDLESS) for one in batches)
        run(jobs, copies, folder)

    record(new[at : at + _BATCH] for at in range(0, len(new), _BATCH))
    record([file] for file in new if file not in known.digests)  # one of them may have ended what ran the others
    if lost := [file for file in new if file not in known.digests]:
        raise NotRecorded(f"no figure can be trusted: these tests broke off while they were recorded: {' '.join(lost)}")
    known.lines = Counter(chain.from_iterable(known.runs.values()))
    return known


def _order(file: str) -> tuple[int, str]:
    found = (at for at, package in enumerate(inside.PACKAGES) if file.startswith(f"tests/{package}/"))
    return next(found, len(inside.PACKAGES)), file


def _forget(known: Recording, files: set[str]) -> None:
    for file in files:
        del known.digests[file]
    known.seconds = {test: seconds for test, seconds in known.seconds.items() if test.partition("::")[0] not in files}
    for tests in known.runs.values():
        tests.intersection_update(known.seconds)
