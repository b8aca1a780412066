"""Readers of source code: module constants and class members with their descriptions, signatures, docstrings.

The code is read and not imported where importing it would need an extra (Airflow, Hera).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "tf_dist"
PREFIX = "tf-dist.dev/"
"""Of every label and annotation that is tf-dist's own."""


class Undocumented(Exception):
    """Something of the public surface has no description in the code; the message says what and where."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant or member: its name, its value where that is a literal, and its description ("": it has none)."""

    name: str
    value: object
    text: str


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a function or a field of a class, as it is written; ``default`` is None where it is required."""

    name: str
    type: str
    default: str | None


@cache
def module(path: str) -> ast.Module:
    """A module of the package by its path below it, parsed."""
    return ast.parse((PACKAGE / path).read_text())


@cache
def _lines(path: str) -> list[str]:
    return (PACKAGE / path).read_text().splitlines()


_COMMENT = re.compile(r"  # (.*)$")


def _comment(path: str, line: int) -> str:
    """The comment at the end of a line (from 1), by the two blanks that stand before one."""
    found = _COMMENT.search(_lines(path)[line - 1])
    return found[1].strip() if found else ""


def constants(path: str, body: Sequence[ast.stmt] | None = None) -> Iterator[Constant]:
    """The constants of a module (or of a class: its ``body``), each with its docstring or the comment beside it."""
    statements = module(path).body if body is None else body
    for statement, following in zip(statements, [*statements[1:], None], strict=True):
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                yield Constant(name, _literal(value), _below(following) or _beside(path, statement))


def _literal(value: ast.expr) -> object:
    """The value of an expression of literals; None of any other. Keys may begin with ``ANNOTATION_PREFIX``."""
    match value:
        case ast.JoinedStr(values=[ast.FormattedValue(value=prefix), ast.Constant(value=str(rest))]):
            return f"{PREFIX}{rest}" if ast.unparse(prefix).endswith("ANNOTATION_PREFIX") else None
        case ast.BinOp(left=prefix, op=ast.Add(), right=ast.Constant(value=str(rest))):
            return f"{PREFIX}{rest}" if ast.unparse(prefix).endswith("ANNOTATION_PREFIX") else None
        case ast.Dict(keys=[ast.Constant(value="key"), *_], values=[ast.Constant(value=str(key)), *_]):
            return key
    try:
        return ast.literal_eval(value)
    except ValueError:
        return None


def _below(statement: ast.stmt | None) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""


def _beside(path: str, statement: ast.stmt) -> str:
    return _comment(path, statement.end_lineno or 1)


def members(path: str, name: str) -> list[Constant]:
    """The members of an enumeration, each with its description."""
    return list(constants(path, class_(path, name).body))


def entries(path: str, name: str) -> list[Constant]:
    """The entries of a mapping that is a constant of a module, each with the comment beside it."""
    for statement in module(path).body:
        if isinstance(statement, ast.AnnAssign) and getattr(statement.target, "id", "") == name:
            value = statement.value
            if isinstance(value, ast.Dict):
                return [
                    Constant(str(_literal(key)), _literal(entry), _comment(path, entry.end_lineno or 1))
                    for key, entry in zip(value.keys, value.values, strict=True)
                    if key is not None
                ]
    raise LookupError(f"{path} has no mapping {name}")


def class_(path: str, name: str) -> ast.ClassDef:
    """A class of a module."""
    return next(one for one in module(path).body if isinstance(one, ast.ClassDef) and one.name == name)


def function(path: str, name: str, of: str = "") -> ast.FunctionDef:
    """A function of a module, or a method of its class ``of``."""
    body = class_(path, of).body if of else module(path).body
    return next(one for one in body if isinstance(one, ast.FunctionDef) and one.name == name)


def arguments(found: ast.FunctionDef) -> list[Argument]:
    """The arguments of a function, but ``self`` and those that it hands on (``**kwargs``)."""
    given = found.args
    plain = [*given.posonlyargs, *given.args]
    missing: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults))
    pairs = [
        *zip(plain, [*missing, *given.defaults], strict=True),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    return [
        Argument(one.arg, ast.unparse(one.annotation) if one.annotation else "", _source(default))
        for one, default in pairs
        if one.arg not in ("self", "cls")
    ]


def fields(found: ast.ClassDef) -> list[Argument]:
    """The fields of a dataclass."""
    return [
        Argument(one.target.id, ast.unparse(one.annotation), _source(one.value))
        for one in found.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.target.id != "_"
    ]


def field_texts(found: ast.ClassDef) -> dict[str, str]:
    """What the text below each field of a dataclass says."""
    pairs = zip(found.body, found.body[1:], strict=False)
    return {
        field.target.id: str(text.value.value)
        for field, text in pairs
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def _source(default: ast.expr | None) -> str | None:
    if default is None:
        return None
    text = ast.unparse(default)
    made = re.fullmatch(r"field\(default_factory=(\w+)\)", text)
    return f"{made[1]}()" if made else text


_PARAM = re.compile(r"^:param (\w+): ", re.MULTILINE)
_NAMES = re.compile(r"((?:``\w+``(?:,| and)? ?)*``\w+``): ")


def summary(docstring: str) -> str:
    """The docstring without its descriptions of arguments."""
    text = re.split(r"^:param |\n\n(?=``\w+``[:,])", docstring, maxsplit=1, flags=re.MULTILINE)[0]
    return text.strip()


def described(docstring: str) -> dict[str, str]:
    """What a docstring says of each argument: ``:param NAME: …``, or ````NAME````: …`` within a paragraph."""
    if _PARAM.search(docstring):
        parts = _PARAM.split(docstring)[1:]
        return {
            name: " ".join(text.split("\n\n")[0].split()) for name, text in zip(parts[::2], parts[1::2], strict=True)
        }
    found: dict[str, str] = {}
    for paragraph in docstring.split("\n\n"):
        parts = _NAMES.split(" ".join(paragraph.split()))[1:]
        for names, text in zip(parts[::2], parts[1::2], strict=True):
            for name in re.findall(r"``(\w+)``", names):
                found[name] = text.strip().rstrip(";")
    return found


def defined_keys() -> Iterator[Constant]:
    """Every constant of the package that is a label, an annotation or the like of tf-dist's own."""
    for file in sorted(PACKAGE.rglob("*.py")):
        if PREFIX not in (text := file.read_text()) and "ANNOTATION_PREFIX" not in text:
            continue
        for one in constants(str(file.relative_to(PACKAGE))):
            if isinstance(one.value, str) and one.value.startswith(PREFIX):
                yield one
