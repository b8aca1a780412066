"""YAML files: their documents, the line of each field, and their problems."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tf_dist.core.model.fieldpath import format_field_path, parse_field_path
from tf_dist.core.model.overrides import TAG, Loader
from tf_dist.errors import Problem

_MAX_VALUES: Final = 1_000_000
_MAX_DEPTH: Final = 100
_SAFE_DEPTH: Final = 2000

_NO_TEXT: Final = "a key must be text, not a list or a mapping"
_INVISIBLE: Final = "the key contains invisible characters"
_DEEP: Final = "is nested more than a hundred deep"
_BOMB: Final = "expands to more than a million values: its aliases (*name) repeat each other"
_NO_NUMBER: Final = "is not a number that can be read"
_NO_BOOLEAN: Final = "is neither true nor false"


FATAL: Final = (_BOMB, _DEEP, _NO_TEXT, _NO_NUMBER, _NO_BOOLEAN, _INVISIBLE)
"""Messages after which a document cannot be read further."""


class _NodePath(NamedTuple):
    """A path as its last part and the path above. Shared, because full paths would be quadratic."""

    above: _NodePath | None
    part: str | int
    depth: int

    def path(self) -> str:
        parts: list[str | int] = []
        place: _NodePath | None = self
        while place is not None:
            parts.append(place.part)
            place = place.above
        return format_field_path(tuple(reversed(parts)))


def find_yaml_problems(root: Any) -> Iterator[tuple[int, Problem]]:
    """Duplicate keys, and aliases that expand without limit. Iterative, because documents may be deeply nested."""
    pending: list[tuple[Any, _NodePath | None]] = [(root, None)]
    inspected: set[int] = set()
    seen = 0
    while pending:
        node, place = pending.pop()
        seen += 1
        if seen > _MAX_VALUES:
            yield root.start_mark.line + 1, Problem("", _BOMB, "write values out, or use fewer aliases")
            return
        depth = place.depth + 1 if place else 1
        if depth > _MAX_DEPTH:
            yield node.start_mark.line + 1, Problem("", _DEEP, "an alias (*name) may contain itself")
            return
        if isinstance(node, yaml.MappingNode):
            if id(node) not in inspected:
                inspected.add(id(node))
                yield from _keys(node, place)
            pending += [(value, _NodePath(place, str(getattr(key, "value", "?")), depth)) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            pending += [(item, _NodePath(place, index, depth)) for index, item in enumerate(node.value)]
        elif problem := _scalar_problem(node):
            yield node.start_mark.line + 1, replace(problem, path=place.path() if place else "")


def _scalar_problem(node: yaml.ScalarNode) -> Problem | None:
    """The problem of a value that does not fit its tag. PyYAML raises errors without a line, or crashes."""
    if node.tag == f"{TAG}bool":
        known = node.value.lower() in Loader.bool_values
        return None if known else Problem("", _NO_BOOLEAN, "write true or false, and leave out !!bool")
    if node.tag in (f"{TAG}int", f"{TAG}float"):
        try:
            Loader.yaml_constructors[node.tag](None, node)
        except ValueError:
            return Problem("", _NO_NUMBER, "write it as text, in quotes")
    return None


def _keys(node: yaml.MappingNode, place: _NodePath | None) -> Iterator[tuple[int, Problem]]:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            yield line, Problem(place.path() if place else "", _NO_TEXT)
            continue
        name = str(key.value)
        path = _NodePath(place, name, 0).path()
        if key.tag not in (f"{TAG}str", f"{TAG}merge"):
            yield line, Problem(path, f"the key {name} is not text", f'write "{name}"')
        elif not name.isprintable():
            visible = "".join(filter(str.isprintable, name))
            codes = ", ".join(dict.fromkeys(f"U+{ord(one):04X}" for one in name if not one.isprintable()))
            hint = f"remove {codes}, and indent with spaces"
            yield line, Problem(_NodePath(place, visible, 0).path(), _INVISIBLE, hint)
        elif name in lines:
            yield line, Problem(path, f"appears twice: on line {lines[name]} too", "keep one of them")
        lines[name] = line


def check_depth(text: str) -> None:
    """RecursionError for texts that would overflow the C stack of the parser."""
    if sum(map(text.count, ("[", "{", "- "))) <= _SAFE_DEPTH:
        return
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _SAFE_DEPTH:
            raise RecursionError


MAX_FILE_SIZE: Final = 3 << 20  # the maximum size of a request to an API server
_STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A document of a file."""

    file: str
    """The file."""
    number: int | None
    """The number of the document, from 1; None if it is the only one."""
    content: Any
    """The content."""
    node: Any
    """The YAML node, for lines; None for a document from Python."""

    def line(self, path: str) -> int:
        """The line of a dotted path, or of its longest existing part; 0 without a file."""
        return self._find(path)[0]

    def in_its_words(self, problem: Problem) -> Problem:
        """A problem of this document, with scalars as the file writes them."""
        from tf_dist.core.dialects.field_errors import in_source_words  # slow to import, and few commands read files

        node = self._find(problem.path)[1]
        if not isinstance(node, yaml.ScalarNode) or node.style in ("'", '"', "|", ">"):
            return problem
        maker = Loader("")
        try:
            return in_source_words(problem, maker.construct_document(node), str(node.value))
        finally:
            maker.dispose()

    def _find(self, path: str) -> tuple[int, Any]:
        """The line of a path, or of its longest existing part, and its node (None: it does not exist)."""
        node = self.node
        if node is None:
            return 0, None
        line = node.start_mark.line
        try:
            parts = parse_field_path(path) if path else ()
        except ValueError:
            return int(line) + 1, None
        for part in parts:
            found = _child(node, part)
            if found is None:
                return int(line) + 1, None
            line, node = found
        return int(line) + 1, node


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A problem with its location."""

    file: str
    """The file."""
    number: int | None
    """The number of the document; None if it is the only one."""
    line: int
    """The line; 0 for the whole file."""
    problem: Problem
    """The problem."""
    warning: bool = False
    """Whether the file can still be used."""


_JOB_EXPECTED: Final = "a job starts with apiVersion: kubeflow.org/v1"


def read_yaml_file(name: str, expected: str = _JOB_EXPECTED) -> tuple[list[YamlDocument], list[FileProblem]]:
    """The documents of a file (``-``: standard input), without empty ones, and its problems.

    ``expected``: the hint for a file without documents.
    """
    try:
        text = _decoded(_content(name))
    except OSError as error:
        return [], [_of_file(name, *_refused(error))]
    except _Unreadable as error:
        return [], [_of_file(name, *error.args)]
    if name.endswith(".py"):
        return [], [_of_file(name, "is a Python program, not a job file", f"tf-dist init {name} writes its job file")]
    return read_yaml_text(name, text, expected)


def read_yaml_text(name: str, text: str, expected: str = _JOB_EXPECTED) -> tuple[list[YamlDocument], list[FileProblem]]:
    """See ``read_yaml_file``, for a text. ``name``: the file in messages."""
    documents: list[YamlDocument] = []
    problems: list[FileProblem] = []
    _load(name, text, documents, problems)
    if not documents and not problems:
        problems.append(_of_file(name, "contains no document", expected))
    return documents, problems


def _of_file(name: str, message: str, hint: str = "", line: int = 0, number: int | None = None) -> FileProblem:
    return FileProblem(display_name(name), number, line, Problem("", message, hint))


def display_name(name: str) -> str:
    """The name of a file in messages."""
    return "(standard input)" if name == _STDIN else name or "''"


class _Unreadable(Exception):
    """Message, hint and line."""


def _content(name: str) -> bytes:
    if not name:
        raise _Unreadable("is not the name of a file", "check the path: a variable in it may be empty")
    if is_address(name):
        raise _Unreadable("is an address, and only files are read", "download it, and name the file")
    if name == _STDIN and sys.stdin is None:  # Python's value if it was closed before the start
        raise _Unreadable("is closed", "give it a file: < FILE")
    if name == _STDIN:
        data = sys.stdin.buffer.read(MAX_FILE_SIZE + 1)
        size = len(data)
    else:
        with Path(name).open("rb") as file:
            data = file.read(MAX_FILE_SIZE + 1)
            size = max(len(data), Path(name).stat().st_size)
    if len(data) > MAX_FILE_SIZE:
        more = "more than " if name == _STDIN else ""
        raise _Unreadable(
            f"is {more}{size / (1 << 20):.1f} MiB large; no more than {MAX_FILE_SIZE >> 20} MiB are read, because an "
            "API server accepts no more",
            "keep data in volumes, and large settings in files that the image brings",
        )
    return data


def is_address(name: str) -> bool:
    """Whether a name is a URL instead of a path."""
    return re.match(r"[A-Za-z][\w+.-]+://", name) is not None and not os.path.exists(name)


def _refused(error: OSError) -> tuple[str, str]:
    if isinstance(error, FileNotFoundError):
        return "does not exist", "check the path"
    if isinstance(error, IsADirectoryError):
        return "is a folder, not a file", "name the files in it"
    return f"cannot be read: {error.strerror or error}", ""


def _decoded(data: bytes) -> str:
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        if b"\0" in data:
            raise _Unreadable("is a binary file", "name a YAML file with a job") from None
        line = data.count(b"\n", 0, error.start) + 1
        raise _Unreadable(f"is not text in UTF-8 (byte {error.start})", "save it as UTF-8", line) from None


def _load(name: str, text: str, documents: list[YamlDocument], problems: list[FileProblem]) -> None:
    """Read all documents up to the first syntax error."""
    from tf_dist.core.dialects.placeholders import find_ytt

    if ytt := find_ytt(text):
        line = text.count("\n", 0, ytt.start) + 1
        problems.append(_of_file(name, f"is a template that was not rendered: {ytt.text}", ytt.hint, line))
        return
    nodes: list[Any] = []
    loader = Loader(text)
    try:
        check_depth(text)
        while loader.check_node():
            nodes.append(loader.get_node())
    except yaml.reader.ReaderError as error:
        problems.append(_unprintable(name, text, error))
    except yaml.YAMLError as error:
        problems.append(_template_or_copy(name, text, error) or _syntax(name, error))
    except RecursionError:
        problems.append(_of_file(name, "is nested too deeply to be read"))
    finally:
        loader.dispose()
    lines = text.split("\n")
    objects = [one for node in nodes if not _empty(node) for one in _objects(node)]
    for number, one in enumerate(objects, start=1):
        where = number if len(objects) > 1 else None
        found = list(find_yaml_problems(one.node))
        said = dict.fromkeys((line, _unfilled(problem, lines[line - 1])) for line, problem in found)
        if one.problem is not None:
            said[one.node.start_mark.line + 1, one.problem] = None
        problems += [FileProblem(display_name(name), where, line, problem) for line, problem in said]
        if one.problem is None and not any(problem.message in FATAL for _, problem in found):
            _construct(name, where, one, documents, problems)


class _Object(NamedTuple):
    """An object of a file: a document, or an item of a list."""

    node: Any
    envelope: Mapping[str, str] = {}
    """The apiVersion and kind of the list for its items."""
    problem: Problem | None = None
    """Why the items of a list cannot be read."""


def _objects(root: Any) -> Iterator[_Object]:
    """The document, or the items of a List as ``kubectl get -o yaml`` writes it, including nested Lists."""
    if _list_of(root) is None or any(problem.message in FATAL for _, problem in find_yaml_problems(root)):
        yield _Object(root)
        return
    pending = [_Object(root)]
    while pending:
        one = pending.pop()
        listed = _list_of(one.node)
        if listed is None:
            yield one
        elif not isinstance(listed.items, yaml.SequenceNode):
            yield _Object(one.node, problem=Problem("items", "must be a list (- item)"))
        elif not listed.items.value:
            yield _Object(one.node, problem=Problem("items", f"is empty: this {listed.kind} holds no objects"))
        else:
            version = str(getattr(_value(one.node, "apiVersion"), "value", ""))
            item_kind = listed.kind.removesuffix("List")
            envelope = {"apiVersion": version, "kind": item_kind} if item_kind else {}
            pending += [_Object(item, envelope) for item in reversed(listed.items.value)]


class _ListNode(NamedTuple):
    kind: str
    items: Any


def _list_of(node: Any) -> _ListNode | None:
    kind, items = (_value(node, key) for key in ("kind", "items"))
    named = str(getattr(kind, "value", ""))
    return _ListNode(named, items) if named.endswith("List") and items is not None else None


def _value(node: Any, key: str) -> Any:
    found = _child(node, key) if isinstance(node, yaml.MappingNode) else None
    return found and found[1]


def _unfilled(problem: Problem, line: str) -> Problem:
    """Explain ``{{ name }}`` without quotes, which YAML reads as a mapping with a mapping as its key."""
    from tf_dist.core.dialects.placeholders import find_placeholder, placeholder_problem

    found = find_placeholder(line) if problem.message == _NO_TEXT and "{{" in line else None
    return placeholder_problem(problem.path, found) if found else problem


# Lines that are not YAML, and what to do about them.
_FOREIGN_LINES: Final = {
    # Text around YAML on web pages and in scripts: a code fence, a here document, a prompt, a diff, an escaped dash.
    re.compile(r"(?:```|~~~|cat\b.*<<|\$ |\+ ).*|[ \t]*\\- .*"): "copy only the YAML, without the text around it",
    re.compile(r"<{7} .*|={7}|>{7} .*"): "resolve the conflict of Git, and remove its markers",
    re.compile("[ \t]*\u00a0.*"): "indent with spaces: these are no-break spaces (U+00A0)",
}


def _template_or_copy(name: str, text: str, error: yaml.YAMLError) -> FileProblem | None:
    """The problem of a text that is not YAML because it is a template, or was copied with the text around it."""
    from tf_dist.core.dialects.placeholders import find_placeholder, find_template

    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    lines = text.split("\n")
    last = mark.line if mark else 0
    for line in range(min(last, len(lines) - 1), max(last - 3, -1), -1):
        for pattern, hint in _FOREIGN_LINES.items():
            if pattern.fullmatch(lines[line].rstrip("\r")):
                return _of_file(name, f"is not YAML: {lines[line].strip()[:80]}", hint, line + 1)
    for line in range(min(last, len(lines) - 1), max(last - 2, -1), -1):
        found = find_placeholder(lines[line])
        quoted = found and any(lines[line].count(quote, 0, found.start) % 2 for quote in "'\"")
        if found and not quoted and found.text.startswith(("{", "${", "%", "@", "[[")):
            hint = (find_template(text) or found).hint
            return _of_file(name, f"is a template that was not rendered: {found.text}", hint, line + 1)
    found = find_template(text)
    if found is None:
        return None
    whole = _syntax(name, error)
    hint = f"it seems to be a template ({found.text}): {found.hint}"
    return replace(whole, problem=replace(whole.problem, hint=hint))


def _construct(
    name: str, number: int | None, one: _Object, documents: list[YamlDocument], problems: list[FileProblem]
) -> None:
    maker = Loader("")
    try:
        content = maker.construct_document(one.node)
        if isinstance(content, dict):
            content = {**one.envelope, **content}
        documents.append(YamlDocument(display_name(name), number, content, one.node))
    except yaml.YAMLError as error:
        problems.append(_syntax(name, error, number))
    except RecursionError:
        problems.append(_of_file(name, "is nested too deeply to be read", number=number))
    except ValueError as error:
        problems.append(_of_file(name, f"cannot be read: {error}", number=number))
    finally:
        maker.dispose()


def _unprintable(name: str, text: str, error: yaml.reader.ReaderError) -> FileProblem:
    line = text.encode(errors="replace").count(b"\n", 0, error.position) + 1  # libyaml counts bytes
    return _of_file(name, f"is not YAML: {error.reason}", f"remove U+{error.character:04X}", line)


def _syntax(name: str, error: yaml.YAMLError, number: int | None = None) -> FileProblem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    context = getattr(error, "context", None)
    message = f"is not YAML: {context + ', ' if context else ''}{what}"
    hint = "if it is a tab: indent with spaces" if "cannot start any token" in what else ""
    if "could not determine a constructor" in what:
        message, hint = (
            f"has a value that no cluster understands: {what.partition(' for ')[2]}",
            "quote it, or remove it",
        )
    if mark is None:
        return _of_file(name, message, hint, number=number)
    return _of_file(name, f"{message} (column {mark.column + 1})", hint, mark.line + 1, number)


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


# Text that Go's YAML (kubectl, Argo) reads as a boolean or a number, and PyYAML as text: ``y``, ``12e03`` of a hash.
_GO_BOOLEAN: Final = re.compile(r"[yYnN]$")
_GO_NUMBER: Final = re.compile(
    r"[-+]?(0[xX][0-9a-fA-F]+|0[oO][-+]?[0-7]+|0[bB][-+]?[01]+|(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?)$"
)


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _GoNumber:
    """Numbers for Go, which ignores every ``_``."""

    @staticmethod
    def match(text: str) -> object:
        return _GO_NUMBER.match(text.replace("_", ""))


def to_yaml(objects: Any) -> str:
    """YAML as people write it: keys in order, long texts in blocks. A list becomes several documents.

    Texts that another parser reads as a different type are quoted. Lone surrogates, which YAML lacks, become U+FFFD, as
    in Go.
    """
    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(dumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        value = _SURROGATE.sub("\ufffd", value)
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", _GO_BOOLEAN, list("yYnN"))
    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _GoNumber, list("-+.0123456789"))
    dump: Callable[..., str] = yaml.dump_all if isinstance(objects, list) else yaml.dump
    return dump(objects, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)
