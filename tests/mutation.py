"""``make mutants``: make small random changes of the code, one at a time, and check whether the tests notice them.

python -m tests.mutation [--sample 200] [--seed 1] [--only core/gang] [--jobs 2] [--record FILE]
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random

from coverage import CoverageData

TREE = Path(__file__).resolve().parents[1]
# The folders of tf_dist to change, and for each the test folders to run if the coverage data has no test for a line.
PACKAGES = {
    "core": ("core", "conformance", "controller"),
    "controller": ("controller", "conformance"),
    "cluster/client": ("cluster/client", "controller"),
    "client": ("client", "cli"),
    "airflow": ("airflow", "faces"),
    "argo": ("argo", "faces"),
}
NOTICED, SURVIVED = "noticed", "survived"
_LONGEST = 900  # seconds for a run of pytest; a timeout counts as noticed
_MOST_TESTS = 600  # limit of the tests that run a line

_OTHER_COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OTHER_OPERATOR: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_LOGS = re.compile(r"(self\.)?_?log(ger)?\.\w+|warnings\.warn")
_TYPES = {"cast", "TypeVar", "NewType", "assert_never", "isinstance"}
_TEXTS = {"help", "metavar", "daemon", "repr", "stacklevel", "strict"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """The bytes from ``start`` to ``end`` of ``file``, on line ``number``, become ``new``."""

    file: str
    number: int
    start: int
    end: int
    new: str

    def source(self, before: bytes) -> bytes:
        return before[: self.start] + self.new.encode() + before[self.end :]

    def __str__(self) -> str:
        old = (TREE / self.file).read_bytes()[self.start : self.end].decode()
        return f"{self.file}:{self.number}\n    - {' '.join(old.split())}\n    + {self.new}"


class _Finder(ast.NodeVisitor):
    """Collects the mutants of a module. Types, documentation and logs are not changed."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.found = file, list[Mutant]()
        self._offsets = [0]
        for line in source.splitlines(keepends=True):
            self._offsets.append(self._offsets[-1] + len(line))
        self.visit(ast.parse(source))

    def _add(self, node: ast.expr | ast.stmt, new: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._offsets[node.lineno - 1] + node.col_offset
        end = self._offsets[node.end_lineno - 1] + node.end_col_offset
        self.found.append(Mutant(self.file, node.lineno, start, end, new))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.Import | ast.ImportFrom | ast.arg | ast.Assert):
            return
        if isinstance(node, ast.Subscript) and _name(node.value) in ("Literal", "Annotated"):
            return
        if isinstance(node, ast.Call) and (_LOGS.fullmatch(ast.unparse(node.func)) or _name(node.func) in _TYPES):
            return
        match node:
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Expr(value=ast.Call() | ast.Await()) if not _LOGS.match(ast.unparse(node)):
                self._add(node, "pass")
            case ast.AnnAssign():
                if node.value is not None:
                    self.visit(node.value)
                return
            case ast.Assign(targets=[ast.Name(id="__slots__" | "__all__")]):
                return
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.visit(node.args)
                for statement in node.body:
                    self.visit(statement)
                return
            case ast.ClassDef():
                for statement in node.body:
                    self.visit(statement)
                return
        for test in _conditions(node):
            if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant):
                self._add(test, f"(not ({ast.unparse(test)}))")
        if isinstance(node, ast.expr):
            for changed in _changes(node):
                self._add(node, f"({ast.unparse(changed)})")
        self.generic_visit(node)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _conditions(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=[*ops]):
            for at, one in enumerate(ops):
                changed = copy.deepcopy(node)
                changed.ops[at] = _OTHER_COMPARISON[type(one)]()
                yield changed
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.BinOp() if type(node.op) in _OTHER_OPERATOR and not _has_text(node):
            yield ast.BinOp(node.left, _OTHER_OPERATOR[type(node.op)](), node.right)
        case ast.Call():
            for at, keyword in enumerate(node.keywords):
                if keyword.arg and keyword.arg not in _TEXTS:
                    yield ast.Call(node.func, node.args, node.keywords[:at] + node.keywords[at + 1 :])
        case ast.Constant(value=bool() as value):
            yield ast.Name(str(not value))
        case ast.Constant(value=int() | float() as value):
            yield ast.Name(repr(value + 1))
        case ast.Constant(value=str() as text) if re.fullmatch(r"\S+", text):  # keys and codes, not sentences
            yield ast.Name(repr(f"XX{text}XX"))


def _has_text(node: ast.AST) -> bool:
    return any(isinstance(one, ast.JoinedStr | ast.Constant) and not isinstance(getattr(one, "value", 0), int | float)
               for one in ast.walk(node))  # fmt: skip


def mutants(file: str) -> list[Mutant]:
    return _Finder(file, (TREE / file).read_bytes()).found


def drawn(sample: int, seed: int, only: str) -> list[Mutant]:
    """One change for each of ``sample`` random lines."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for package in PACKAGES:
        for path in sorted((TREE / "tf_dist" / package).rglob("*.py")):
            file = path.relative_to(TREE).as_posix()
            if file.removeprefix("tf_dist/").startswith(only):
                for mutant in mutants(file):
                    lines.setdefault((file, mutant.number), []).append(mutant)
    dice = Random(seed)
    chosen = dice.sample(sorted(lines), min(sample, len(lines)))
    return [dice.choice(lines[line]) for line in chosen]


def package_of(mutant: Mutant) -> str:
    return next(package for package in PACKAGES if mutant.file.startswith(f"tf_dist/{package}/"))


def near(mutant: Mutant) -> Iterator[list[str]]:
    """The tests of the module, as arguments of pytest."""
    name = Path(mutant.file).stem.strip("_")
    found = sorted((TREE / "tests" / package_of(mutant)).rglob(f"test_{name}*.py"))
    if found:
        yield [one.relative_to(TREE).as_posix() for one in found]


class Coverage:
    """The tests that run each line, recorded in a run of ``make test`` without changes."""

    def __init__(self, file: Path) -> None:
        self._data = CoverageData(str(file))
        self._data.read()
        self._files = {name.rpartition("/tf_dist/")[2]: name for name in self._data.measured_files()}

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that run the changed statement, or any statement of the file if an import runs it."""
        name = self._files.get(mutant.file.removeprefix("tf_dist/"), "")
        contexts = self._data.contexts_by_lineno(name) if name else {}
        lines = _lines(mutant) or contexts
        found = {context for line in lines for context in contexts.get(line, ())}
        return sorted({context.rpartition("|")[0] for context in found if context})

    def far(self, mutant: Mutant) -> Iterator[list[str]]:
        """The tests that run the line, or else the test folders of the package, as arguments of pytest."""
        tests = self.tests(mutant)
        if tests:
            step = max(1, -(-len(tests) // _MOST_TESTS))
            yield tests[::step]
        else:
            yield [f"tests/{one}" for one in PACKAGES[package_of(mutant)]]


def _lines(mutant: Mutant) -> range:
    """The lines of the changed statement, or of the head of a compound statement. Empty outside functions."""
    found, inside = range(0), False
    for node in ast.walk(ast.parse((TREE / mutant.file).read_bytes())):  # outer nodes come before inner nodes
        if isinstance(node, ast.stmt) and node.lineno <= mutant.number <= (node.end_lineno or 0):
            body = getattr(node, "body", None)
            end = max(body[0].lineno, node.lineno + 1) if body else (node.end_lineno or 0) + 1
            if mutant.number < end:
                found = range(node.lineno, end) if inside else range(0)
            inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return found


class Copy:
    """A copy of the tree in which mutants are tested one at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._written = 0
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=TREE, capture_output=True, text=True, check=True).stdout
        for file in filter(None, listed.split("\0")):
            if (TREE / file).exists():
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(TREE / file, root / file)

    def judge(self, mutant: Mutant, stages: Iterator[list[str]]) -> tuple[str, str]:
        """The outcome of the mutant, and the test that noticed it. ``stages`` are the arguments of each pytest run."""
        path = self.root / mutant.file
        before = path.read_bytes()
        for tests in stages:
            self._write(path, mutant.source(before))
            try:
                failed = self._first_failure(tests)
            finally:
                self._write(path, before)
            # A test that also fails without the change has not noticed the mutant.
            if failed and (failed in _NO_TEST or self._first_failure([failed]) != failed):
                return NOTICED, failed
        return SURVIVED, ""

    def _write(self, path: Path, source: bytes) -> None:
        """Write the file with a unique modification time, so that Python ignores compiled files of other versions."""
        self._written += 1
        path.write_bytes(source)
        os.utime(path, (self._written, self._written))

    def _first_failure(self, tests: list[str]) -> str:
        arguments = self.root / "arguments"  # the list may be too long for a command line
        arguments.write_text("\n".join(tests))
        try:
            code, output = self.pytest("-x", "-p", "no:xdist", f"@{arguments}", timeout=_LONGEST)
        except subprocess.TimeoutExpired:
            return _NO_TEST[0]
        if code in (0, 5):  # passed; none collected
            return ""
        found = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", output, re.MULTILINE)
        return found[1] if found else _NO_TEST[1]

    def pytest(self, *arguments: str, timeout: float | None = None) -> tuple[int, str]:
        """Run pytest, and return the exit code and the output."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        environ = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": ""}
        process = subprocess.Popen(
            command, cwd=self.root, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        _RUNNING.add(process.pid)
        try:
            output, _ = process.communicate(timeout=timeout)
        finally:
            _kill(process.pid)
            process.wait()
        return process.returncode, output

    def record(self, file: Path) -> None:
        """Record which tests run which lines."""
        os.environ["COVERAGE_FILE"] = str(file)
        options = ("--cov=tf_dist", "--cov-context=test", "--cov-report=")
        self.pytest("--numprocesses=2", "--dist=loadfile", *options)  # failed tests also run lines


_NO_TEST = ("(no end)", "(no test began)")
_RUNNING = set[int]()  # process groups


def _kill(group: int) -> None:
    _RUNNING.discard(group)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _end(folder: str) -> None:
    for group in tuple(_RUNNING):
        _kill(group)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(128 + signal.SIGTERM)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=200, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--only", default="", help="files under tf_dist that start so: core/gang, cluster/client")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the tree, each with a run of pytest")
    parser.add_argument("--record", type=Path, help="where it is kept which tests run which lines; read if it exists")
    options = parser.parse_args()
    began, chosen = time.monotonic(), drawn(options.sample, options.seed, options.only)
    with tempfile.TemporaryDirectory(prefix="tf-dist-mutants-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        signal.signal(signal.SIGTERM, lambda *_: _end(folder))
        copies: queue.Queue[Copy] = queue.Queue()
        for number in range(options.jobs):
            copies.put(Copy(Path(folder) / str(number)))
        record = options.record or Path(folder) / "coverage"
        if not record.exists():
            one = copies.get()
            one.record(record.absolute())
            copies.put(one)
        coverage = Coverage(record)

        def judge(mutant: Mutant) -> str:
            one = copies.get()
            try:
                outcome, by = one.judge(mutant, chain(near(mutant), coverage.far(mutant)))
            finally:
                copies.put(one)
            print(f"{outcome}: {mutant if outcome == SURVIVED else f'{mutant.file}:{mutant.number}'} {by}", flush=True)
            return outcome

        outcomes = list(pool.map(judge, chosen))
    counts = Counter((package_of(mutant), outcome) for mutant, outcome in zip(chosen, outcomes, strict=True))
    for package in PACKAGES:
        noticed, survived = counts[package, NOTICED], counts[package, SURVIVED]
        if noticed + survived:
            print(f"{package:15} {noticed:3} of {noticed + survived}")
    noticed, minutes = outcomes.count(NOTICED), (time.monotonic() - began) / 60
    print(f"{noticed} of {len(outcomes)} noticed (seed {options.seed}), {minutes:.0f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
