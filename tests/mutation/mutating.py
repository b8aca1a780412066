"""Mutants: every small change that may be made to a module, found with mutmut's operators and a few of ours."""

from __future__ import annotations

import difflib
import hashlib
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

from tests.mutation.inside import PACKAGES

# Whose results are mostly noticed by any test at all (`x = None` ends in an AttributeError): they say little.
_LEFT_OUT = (mutators.operator_assignment, mutators.operator_arg_removal, mutators.operator_dict_arguments)
_LOGS = {"log", "logger", "_log", "_LOG", "LOG"}
_NOT_RUN = {"cast", "TypeVar", "NewType", "assert_never", "isinstance", "len"}
_TEXTS = {"help", "metavar", "daemon"}
_NAMES_ONLY = {"__slots__", "__all__"}


def negated_condition(node: cst.If | cst.While) -> Iterator[cst.CSTNode]:
    """``if ready:`` becomes ``if not ready:``; comparisons, ``and``, ``or`` and ``not`` have operators of their own."""
    if isinstance(node.test, cst.Comparison | cst.BooleanOperation | cst.UnaryOperation):
        return
    if isinstance(node.test, cst.Name) and node.test.value in {"True", "False"}:
        return
    inner = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    operator = cst.Not(whitespace_after=cst.SimpleWhitespace(" "))
    yield node.with_changes(test=cst.UnaryOperation(operator, inner))


def negated_filter(node: cst.CompIf) -> Iterator[cst.CSTNode]:
    """``for pod in pods if ready``: those that are not."""
    if isinstance(node.test, cst.Comparison | cst.BooleanOperation | cst.UnaryOperation):
        return
    inner = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.with_changes(test=cst.UnaryOperation(cst.Not(whitespace_after=cst.SimpleWhitespace(" ")), inner))


def call_left_out(node: cst.Expr) -> Iterator[cst.CSTNode]:
    """A call that is made for what it does is not made."""
    if isinstance(node.value, cst.Call | cst.Await):
        yield cst.Pass()


def keyword_left_out(node: cst.Call) -> Iterator[cst.CSTNode]:
    """A keyword argument is not given: its default holds, if it has one."""
    for at, argument in enumerate(node.args):
        if argument.keyword is not None and argument.keyword.value not in _TEXTS:
            rest = [*node.args[:at], *node.args[at + 1 :]]
            if rest:
                rest[-1] = rest[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            yield node.with_changes(args=rest)


def key_changed(node: cst.SimpleString) -> Iterator[cst.CSTNode]:
    """A key, a name or a code is another; not sentences, which are for people and may be said otherwise."""
    if re.fullmatch(r"""([rb]*)(['"])[^\s'"]+\2""", node.value):
        yield next(iter(mutators.operator_string(node)))


_Operator = Callable[[Any], Iterable[cst.CSTNode]]
_NARROWED: dict[_Operator, tuple[type, ...]] = {  # what mutmut itself asks, of every node, in a slower way
    mutators.operator_keywords: (cst.Is, cst.IsNot, cst.In, cst.NotIn, cst.Break, cst.Continue),
    mutators.operator_swap_op: (
        cst.BinaryOperation,
        cst.UnaryOperation,
        cst.BooleanOperation,
        cst.ComparisonTarget,
        cst.AugAssign,
    ),
}
OPERATORS: tuple[tuple[type | tuple[type, ...], _Operator], ...] = (
    *(
        (_NARROWED.get(operator, kind), operator)
        for kind, operator in mutators.mutation_operators
        if operator not in (*_LEFT_OUT, mutators.operator_string)
    ),
    (cst.SimpleString, key_changed),
    (cst.If, negated_condition),
    (cst.While, negated_condition),
    (cst.CompIf, negated_filter),
    (cst.Expr, call_left_out),
    (cst.Call, keyword_left_out),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of code as it is known in recordings and lists, which other lines above it do not change.

    ``nth``: which of the file's lines of the same ``text``, from 0.
    """

    file: str
    text: str
    nth: int


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: ``old`` lines are ``new`` ones (stripped, joined by a line feed), which makes ``source`` the file.

    ``defines``: what is defined by a line that runs when the module is imported: a constant, a field, a function.
    """

    line: Line
    number: int
    old: str
    new: str
    source: str
    defines: str

    @property
    def package(self) -> str:
        return next(package for package in PACKAGES if self.line.file.startswith(f"tf_dist/{package}/"))


def lines_of(file: str, source: str) -> list[Line]:
    """The lines of a file, the first at 0."""
    seen: dict[str, int] = {}
    lines = []
    for raw in source.splitlines():
        text = raw.strip()
        nth = seen.get(text, 0)
        seen[text] = nth + 1
        lines.append(Line(file, text, nth))
    return lines


# Line number, node, what it becomes, and what it is a part of the definition of ("": it runs in a function).
_Found = tuple[int, cst.CSTNode, cst.CSTNode, str]


class _Finder(cst.CSTVisitor):
    """Collects what can be changed."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        self.found: list[_Found] = []
        self._defined: list[str] = []
        self._functions = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        if _is_not_code(node):
            return False
        if isinstance(node, cst.ClassDef):  # its decorators and bases are mypy's and dataclasses' business
            self._defined.append(node.name.value)
            node.body.visit(self)
            self._defined.pop()
            return False
        if isinstance(node, cst.FunctionDef):
            name = node.name.value
            self._defined.append(self._defined[-1] if name.startswith("__") and self._defined else name)
            node.params.visit(self)
            self._defined.pop()
            self._functions += 1
            node.body.visit(self)
            self._functions -= 1
            return False
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                number = self.get_metadata(PositionProvider, node).start.line
                defined = "" if self._functions else (self._defined or ["?"])[-1]
                self.found += [(number, node, new, defined) for new in operator(node)]
        if isinstance(node, cst.Assign | cst.AnnAssign) and not self._functions:
            target = node.target if isinstance(node, cst.AnnAssign) else node.targets[0].target
            if isinstance(target, cst.Name) and node.value is not None:
                self._defined.append(target.value)
                node.value.visit(self)
                self._defined.pop()
                return False
        return True


def _is_not_code(node: cst.CSTNode) -> bool:
    """Types, texts of errors and logs, documentation, what only a type checker reads."""
    if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom | cst.Raise | cst.Assert):
        return True
    if isinstance(node, cst.TypeAlias | cst.TypeParameters | cst.FormattedString | cst.ConcatenatedString):
        return True
    if isinstance(node, cst.If) and m.matches(node.test, m.Name("TYPE_CHECKING")):
        return True
    if isinstance(node, cst.Expr):
        if isinstance(node.value, cst.BaseString):
            return True
        call = node.value
        return m.matches(
            call,
            m.Call(
                func=m.Attribute(value=m.Name() | m.Attribute(attr=m.Name(value=m.MatchIfTrue(_LOGS.__contains__))))
            ),
        ) and _logs(call)
    if isinstance(node, cst.Arg):
        return node.keyword is not None and node.keyword.value in _TEXTS
    if isinstance(node, cst.Call):
        return isinstance(node.func, cst.Name) and node.func.value in _NOT_RUN
    if isinstance(node, cst.Assign):
        target = node.targets[0].target
        if isinstance(target, cst.Name) and target.value in _NAMES_ONLY:
            return True
        return isinstance(node.value, cst.Subscript) and m.matches(node.value.value, m.Name("dict") | m.Name("tuple"))
    return False


def _logs(call: cst.BaseExpression) -> bool:
    at = call.func if isinstance(call, cst.Call) else call
    while isinstance(at, cst.Attribute):
        if at.attr.value in _LOGS:
            return True
        at = at.value
    return isinstance(at, cst.Name) and at.value in _LOGS


class Module:
    """A module's mutants, by line; a mutant's text is made when it is asked for."""

    def __init__(self, file: str, source: str) -> None:
        self.file = file
        self.source = source
        self.lines = lines_of(file, source)
        wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
        finder = _Finder()
        wrapper.visit(finder)
        self._tree = wrapper.module
        self._at: dict[Line, list[_Found]] = {}
        for one in finder.found:
            self._at.setdefault(self.lines[one[0] - 1], []).append(one)

    def mutable(self) -> Iterable[Line]:
        """The lines that have mutants."""
        return self._at.keys()

    def mutants(self, line: Line) -> Iterator[Mutant]:
        """Those of a line, in an order that only a hash knows; each is made when it is asked for."""
        seen = {self.source}
        for _, one in sorted(enumerate(self._at[line]), key=lambda numbered: rank(line, numbered[0])):
            mutant = self._make(line, *one)
            if mutant.source not in seen and _compiles(mutant.source):
                seen.add(mutant.source)
                yield mutant

    def _make(self, line: Line, number: int, node: cst.CSTNode, new: cst.CSTNode, defines: str) -> Mutant:
        tree = self._tree.deep_replace(node, new)
        source = tree.code if isinstance(tree, cst.Module) else self.source
        changed = [
            one
            for one in difflib.unified_diff(self.source.splitlines(), source.splitlines(), n=0, lineterm="")
            if not one.startswith(("---", "+++", "@@"))
        ]
        old = "\n".join(one[1:].strip() for one in changed if one.startswith("-"))
        become = "\n".join(one[1:].strip() for one in changed if one.startswith("+"))
        return Mutant(line, number, old, become, source, defines)


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def rank(*what: object) -> str:
    """A number drawn for a thing: the same each time, beside any others."""
    return hashlib.sha256(repr(what).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a module as it is: its lines that have mutants, and the one mutant drawn for some of them."""

    lines: tuple[Line, ...]
    drawn: dict[Line, Mutant | None]


def sample(tree: Path, folder: Path, size: int, seed: int, only: str = "") -> list[Mutant]:
    """So many lines of those that can be changed, drawn evenly, and of each line one mutant.

    A line's draw depends on the seed and on the line alone: a change elsewhere leaves it in the sample. ``only`` those
    of files whose path under ``tf_dist`` starts so. What was found is kept in ``folder``.
    """
    store = folder / "mutants"
    before: dict[tuple[str, str], Known] = pickle.loads(store.read_bytes()) if store.exists() else {}
    known: dict[tuple[str, str], Known] = {}
    found: dict[str, Module] = {}

    def module(file: str) -> Module:
        if file not in found:
            found[file] = Module(file, (tree / file).read_text())
        return found[file]

    for package in PACKAGES:
        for path in sorted((tree / "tf_dist" / package).rglob("*.py")):
            file = path.relative_to(tree).as_posix()
            key = file, hashlib.sha256(path.read_bytes()).hexdigest()
            known[key] = before.get(key) or Known(tuple(module(file).mutable()), {})
    drawn = sorted(
        (
            (rank(seed, line), line, one)
            for (file, _), one in known.items()
            for line in one.lines
            if file.startswith(f"tf_dist/{only}")
        ),
        key=lambda one: one[0],
    )
    mutants: list[Mutant] = []
    for _, line, one in drawn:
        if len(mutants) == size:
            break
        if line not in one.drawn:
            one.drawn[line] = next(module(line.file).mutants(line), None)
        if mutant := one.drawn[line]:
            mutants.append(mutant)
    store.write_bytes(pickle.dumps(known))
    return sorted(mutants, key=lambda mutant: (PACKAGES.index(mutant.package), mutant.line.file, mutant.number))
