"""Source of a function that runs in another process. A function that uses names from outside is refused."""

from __future__ import annotations
import __future__

import ast
import builtins
import inspect
import symtable
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.errors import InvalidJob, Problem

_GIVEN: Final = frozenset(dir(builtins)) | {"json", "__name__", "__doc__", "__builtins__"}
"""Names that are defined in every script."""
_OF_CLASSES: Final = frozenset({"__module__", "__qualname__", "__class__", "__annotations__"})


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """The source of a function."""

    text: str
    """The function as written, without decorators."""
    lazy: bool
    """Whether annotations must not be evaluated when the script runs."""


def function_source(function: Callable[..., Any]) -> FunctionSource:
    """The source of a function. Raises InvalidJob, with all missing names, if the function cannot run on its own."""
    name = getattr(function, "__name__", "function")
    if problem := _kind_problem(function, name):
        raise InvalidJob([problem])
    try:
        # The lines of the function from its ``def`` on. Python's line ends do not include U+2028.
        source = inspect.getsource(function)
        indented = source[:1].isspace()
        whole = f"if True:\n{source}" if indented else source
        node = next(one for one in ast.walk(ast.parse(whole)) if isinstance(one, ast.FunctionDef))
        lines = whole.split("\n")[node.lineno - 1 :]
        text = "\n".join(["if True:", *lines] if indented else lines)
    except (OSError, SyntaxError, StopIteration):
        what = "its source cannot be read, but the job needs the source"
        raise InvalidJob([Problem(name, what, "define it with def, in a file of its DAG")]) from None
    lazy = bool(function.__code__.co_flags & __future__.annotations.compiler_flag)
    quiet = "from __future__ import annotations\n"
    if not lazy and {*_outside(text)} != {*_outside(quiet + text)}:
        lazy = True  # the annotations use names that only the DAG has, and are not needed to run the function
    missing = sorted({*_outside(quiet + text if lazy else text)})
    if missing:
        raise InvalidJob(Problem(name, *_advice(function, one)) for one in missing)
    return FunctionSource(text, lazy)


def _kind_problem(function: Callable[..., Any], name: str) -> Problem | None:
    if inspect.ismethod(function) or not inspect.isfunction(function):
        return Problem(name, "is not a plain function", "define it with def, outside of classes")
    if function.__name__ == "<lambda>":
        return Problem(name, "a lambda has no source of its own", "define it with def")
    if inspect.unwrap(function) is not function:
        return Problem(name, "another decorator wraps it, which would be missing in the job", "remove that decorator")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return Problem(name, "is async, and nothing awaits it in the job", "use def, and asyncio.run(…) inside")
    if inspect.isgeneratorfunction(function):
        return Problem(name, "is a generator, and nothing iterates over it in the job", "return a list")
    return None


def _outside(text: str) -> Iterator[str]:
    """The names that a module uses but does not define."""
    tables = [symtable.symtable(text, "function", "exec")]
    bound, wanted = set(_GIVEN), set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            of_module = table.get_type() == "module" or symbol.is_global()
            if of_module and (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()):
                bound.add(symbol.get_name())
            if (
                of_module
                and symbol.is_referenced()
                and not (table.get_type() == "class" and symbol.get_name() in _OF_CLASSES)
            ):
                wanted.add(symbol.get_name())
    yield from wanted - bound


def _advice(function: Callable[..., Any], name: str) -> tuple[str, str]:
    closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    found: object = function.__globals__.get(name)
    if isinstance(found, types.ModuleType):
        return f"names {name}, which only the DAG imports", f"write import {found.__name__} inside the function"
    if name not in closure and callable(found):
        return f"names {name}, which only the DAG has", "import it inside the function from a package of the image"
    return f"names {name}, which only the DAG has", "pass it as an argument, or write it inside the function"
