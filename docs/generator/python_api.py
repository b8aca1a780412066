"""The Python API: the classes that users import, with their arguments, attributes and methods."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from docs.generator import source
from docs.generator.markdown import argument_table, code, paragraphs, prose, table
from docs.generator.source import Undocumented

_CLASSES = (
    ("client/tfjob.py", "TFJob"),
    ("client/run_session.py", "Result"),
    ("client/client.py", "Client"),
)
_NESTED = re.compile(r"[;.] ``(\w+)``: ")


def page() -> str:
    """A section for each class."""
    return "\n\n".join(text for path, name in _CLASSES for text in _class(path, name))


def _class(path: str, name: str) -> Iterator[str]:
    found = source.class_(path, name)
    docstring = _doc(found)
    yield f"## {name}\n\n{paragraphs(source.summary(docstring))}"
    functions = [one for one in found.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    made = next((one for one in functions if one.name == "__init__"), None)
    if made is not None:
        texts = dict(_unnested(source.described(docstring)))
        yield argument_table(name, source.arguments(made), texts)
    public = [one for one in functions if not one.name.startswith("_")]
    attributes = [(code(one.name), prose(_line(one))) for one in public if _is_property(one)]
    if attributes:
        yield table(("attribute", "meaning"), attributes)
    for one in public:
        if not _is_property(one):
            yield f"### {name}.{one.name}\n\n```text\n{_signature(one)}\n```\n\n{paragraphs(_doc(one))}"


def _unnested(texts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """``:param a: text; ``b``: text`` describes two arguments."""
    for name, text in texts.items():
        first, *others = _NESTED.split(text)
        yield name, first
        yield from zip(others[::2], others[1::2], strict=True)


def _signature(found: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    given = (
        ast.unparse(found.args).removeprefix("self, ").removeprefix("cls, ").removeprefix("self").removeprefix("cls")
    )
    returned = f" -> {ast.unparse(found.returns)}" if found.returns else ""
    return f"{'await ' if isinstance(found, ast.AsyncFunctionDef) else ''}{found.name}({given}){returned}"


def _is_property(found: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(one) in ("property", "cached_property") for one in found.decorator_list)


def _line(found: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return " ".join(_doc(found).split("\n\n")[0].split())


def _doc(found: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.get_docstring(found)
    if not text:
        raise Undocumented(f"{found.name} has no docstring")
    return text
