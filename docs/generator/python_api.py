"""The Python API: the classes that users import, with their arguments, attributes and methods."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from docs.generator import source
from docs.generator.markdown import argument_table, code, paragraphs, prose, table
from docs.generator.source import Undocumented
from tf_dist.core.pipeline.run_options import Face, RunOptions, options_of

_CLASSES = (
    ("client/tfjob.py", "TFJob"),
    ("client/run_session.py", "Result"),
    ("client/client.py", "Client"),
)


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
        given = source.arguments(made)
        table_ = options_of(RunOptions) if name == "TFJob" else {}
        texts = {one.name: table_[one.name].about(Face.COMMAND) for one in given if one.name in table_}
        yield argument_table(name, given, {**texts, **source.described(docstring)})
    public = [one for one in functions if not one.name.startswith("_")]
    attributes = [(code(one.name), prose(_line(one))) for one in public if _is_property(one)]
    if attributes:
        yield table(("attribute", "meaning"), attributes)
    for one in public:
        if not _is_property(one):
            yield f"### {name}.{one.name}\n\n```text\n{_signature(one)}\n```\n\n{paragraphs(_doc(one))}"


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
