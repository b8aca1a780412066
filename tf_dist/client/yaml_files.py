"""Reading YAML files: their documents, where everything in them stands, and what is wrong with one as a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tf_dist.client.yaml_checks import FATAL, check_depth, inspect
from tf_dist.core.paths import parse_path
from tf_dist.core.yaml_types import TAG, Loader
from tf_dist.errors import Problem

LIMIT: Final = 3 << 20  # what an API server takes in one request
_STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class Written:
    """One document of a file. ``number`` counts from 1, None if it is the only one."""

    file: str
    number: int | None
    content: Any
    node: Any

    def line(self, path: str) -> int:
        """The line of the file on which a dotted path stands, or as much of it as there is."""
        node = self.node
        line = node.start_mark.line
        try:
            parts = parse_path(path) if path else ()
        except ValueError:
            parts = ()
        for part in parts:
            found = _child(node, part)
            if found is None:
                break
            line, node = found
        return int(line) + 1


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A problem and where it is. ``line`` 0: the file as a whole."""

    file: str
    number: int | None
    line: int
    problem: Problem
    warning: bool = False


def read(name: str) -> tuple[list[Written], list[FileProblem]]:
    """The documents of a file (``-``: standard input), empty ones left out, and what is wrong with it as a file."""
    try:
        text = _decoded(_content(name))
    except OSError as error:
        return [], [_of_file(name, *_refused(error))]
    except _Unreadable as error:
        return [], [_of_file(name, *error.args)]
    return read_text(name, text)


def read_text(name: str, text: str) -> tuple[list[Written], list[FileProblem]]:
    """``read`` of a text that is at hand; ``name`` stands for it in messages."""
    documents: list[Written] = []
    problems: list[FileProblem] = []
    _load(name, text, documents, problems)
    if not documents and not problems:
        problems.append(_of_file(name, "holds no document", "a job begins with apiVersion: kubeflow.org/v1"))
    return documents, problems


def _of_file(name: str, message: str, hint: str = "", line: int = 0) -> FileProblem:
    return FileProblem(shown(name), None, line, Problem("", message, hint))


def shown(name: str) -> str:
    """The name of a file in messages."""
    return "(standard input)" if name == _STDIN else name


class _Unreadable(Exception):
    """Message, hint and line."""


def _content(name: str) -> bytes:
    if name == _STDIN:
        data = sys.stdin.buffer.read(LIMIT + 1)
        size = len(data)
    else:
        with Path(name).open("rb") as file:
            data = file.read(LIMIT + 1)
            size = max(len(data), Path(name).stat().st_size)
    if len(data) > LIMIT:
        more = "more than " if name == _STDIN else ""
        raise _Unreadable(
            f"is {more}{size / (1 << 20):.1f} MiB large; no more than {LIMIT >> 20} MiB are read, because an API "
            "server takes no more",
            "keep data in volumes, and large settings in files that the image brings",
        )
    return data


def _refused(error: OSError) -> tuple[str, str]:
    if isinstance(error, FileNotFoundError):
        return "does not exist", "check the path; - reads standard input"
    if isinstance(error, IsADirectoryError):
        return "is a folder, not a file", "name the files in it"
    return f"cannot be read: {error.strerror or error}", ""


def _decoded(data: bytes) -> str:
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _Unreadable(f"is not text in UTF-8 (byte {error.start})", "save it as UTF-8", line) from None


def _load(name: str, text: str, documents: list[Written], problems: list[FileProblem]) -> None:
    """Every document up to the first that cannot be told apart from the rest."""
    nodes: list[Any] = []
    loader = Loader(text)
    try:
        check_depth(text)
        while loader.check_node():
            nodes.append(loader.get_node())
    except yaml.YAMLError as error:
        problems.append(_syntax(name, error))
    except RecursionError:
        problems.append(_of_file(name, "is nested too deeply to be read"))
    finally:
        loader.dispose()
    several = len(nodes) > 1
    for number, node in enumerate(nodes, start=1):
        if _empty(node):
            continue
        where = number if several else None
        found = list(inspect(node))
        problems += [FileProblem(shown(name), where, line, problem) for line, problem in found]
        if not any(problem.message in FATAL for _, problem in found):
            _construct(name, where, node, documents, problems)


def _construct(name: str, number: int | None, node: Any, documents: list[Written], problems: list[FileProblem]) -> None:
    maker = Loader("")
    try:
        documents.append(Written(shown(name), number, maker.construct_document(node), node))
    except yaml.YAMLError as error:
        problems.append(_syntax(name, error, number))
    except RecursionError:
        problems.append(FileProblem(shown(name), number, 0, Problem("", "is nested too deeply to be read")))
    except ValueError as error:
        problems.append(FileProblem(shown(name), number, 0, Problem("", f"cannot be read: {error}")))
    finally:
        maker.dispose()


def _syntax(name: str, error: yaml.YAMLError, number: int | None = None) -> FileProblem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    context = getattr(error, "context", None)
    message = f"is not YAML: {context + ', ' if context else ''}{what}"
    hint = "if it is a tab: indent with spaces" if "cannot start any token" in what else ""
    if "could not determine a constructor" in what:
        message, hint = f"has a value that no cluster understands: {what.partition(' for ')[2]}", "quote it, or drop it"
    if mark is None:
        return FileProblem(shown(name), number, 0, Problem("", message, hint))
    return FileProblem(shown(name), number, mark.line + 1, Problem("", f"{message} (column {mark.column + 1})", hint))


def _empty(node: Any) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{TAG}null"


def _child(node: Any, part: str | int) -> tuple[int, Any] | None:
    if isinstance(part, int) and isinstance(node, yaml.SequenceNode) and part < len(node.value):
        return node.value[part].start_mark.line, node.value[part]
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if getattr(key, "value", None) == part:
                return key.start_mark.line, value
    return None
