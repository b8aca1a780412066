"""Helm templates out of manifests: the same objects under different settings, merged into one text with conditions.

Nothing here knows what is installed. Each setting is a bit of a mask; a *case* is a value with the mask of the settings
that lead to it. What all cases share is written once; what some have and others have not stands in an ``if`` of the
simplest condition that tells them apart. Values that are known only to Helm are written into the manifests as
expressions (``inserted``, ``Expression``), and become ``{{ … }}`` in the text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby
from typing import Any, Final

import yaml

# Brackets that no manifest has: braces are also Prometheus' and Argo's.
_OPEN, _CLOSE = "⟦", "⟧"
_BRACES: Final = re.compile(r"\{\{|\}\}")

Case = tuple[int, Any]


def inserted(expression: str) -> str:
    """Text that Helm puts in, as a part of a string."""
    return f"{_OPEN}{expression}{_CLOSE}"


@dataclass(frozen=True, slots=True)
class Expression:
    """A whole value that Helm puts in. ``block``: it is more than one line; ``only_if``: else its key is left out."""

    helm: str
    block: bool = False
    only_if: str = ""


SPREAD: Final = inserted("…")
"""The key of an ``Expression`` whose own keys go into the mapping that it stands in."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A setting that is on or off. ``condition``: how Helm asks for it."""

    name: str
    condition: str

    def literal(self, on: bool) -> str:
        """The question, or its opposite."""
        return self.condition if on else f"not {_nested(self.condition)}"


def _nested(condition: str) -> str:
    return condition if re.fullmatch(r"[\w.$]+", condition) else f"({condition})"


class Conditions:
    """Finds the simplest condition that holds in some settings of a scope and in no others of it.

    ``settings``: what is switched on in each. It is one of up to three switches, or several such joined by ``or``.
    """

    def __init__(self, switches: Sequence[Switch], settings: Sequence[frozenset[str]]) -> None:
        everything = (1 << len(settings)) - 1
        literals: list[tuple[int, str, str]] = []
        for one in switches:
            on = sum(1 << number for number, names in enumerate(settings) if one.name in names)
            literals += [(on, one.literal(True), one.name), (everything & ~on, one.literal(False), one.name)]
        self._products: list[tuple[int, tuple[str, ...]]] = []
        for size in (1, 2, 3):
            for parts in combinations(literals, size):
                if len({name for _, _, name in parts}) == size:
                    mask = everything
                    for part, _, _ in parts:
                        mask &= part
                    self._products.append((mask, tuple(text for _, text, _ in parts)))
        self._found: dict[tuple[int, int], str] = {}

    def of(self, present: int, scope: int) -> str:
        """The condition; "" if it is always so."""
        if present == scope:
            return ""
        key = (present, scope)
        if key not in self._found:
            self._found[key] = self._search(present, scope)
        return self._found[key]

    def _search(self, present: int, scope: int) -> str:
        usable: list[tuple[int, tuple[str, ...]]] = []
        for mask, texts in self._products:
            within = mask & scope
            if within == present:
                return _joined("and", texts)
            if within and not within & ~present:
                usable.append((within, texts))
        chosen, left = [], present
        while left:
            # The simplest one among those that cover most of what is left: they are in the order of their length.
            mask, texts = max(usable, key=lambda one: (one[0] & left).bit_count(), default=(0, ()))
            if not mask & left:
                raise ValueError("no condition of three switches tells these settings apart")
            chosen.append(_joined("and", texts))
            left &= ~mask
        return _joined("or", chosen)


def _joined(word: str, texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{word} {' '.join(map(_nested, texts))}"


# The merged tree


@dataclass(frozen=True, slots=True)
class _Leaf:
    value: Any


@dataclass(frozen=True, slots=True)
class _Entry:
    """``key`` "" in a sequence."""

    key: str
    condition: str
    node: _Node


@dataclass(frozen=True, slots=True)
class _Map:
    entries: tuple[_Entry, ...]


@dataclass(frozen=True, slots=True)
class _List:
    entries: tuple[_Entry, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The value under the first condition that holds; the last one is without."""

    choices: tuple[tuple[str, _Node], ...]


_Node = _Leaf | _Map | _List | _Choice
_Part = tuple[str, list[str]]  # a condition ("": always) and lines


def merge(cases: Iterable[Case], conditions: Conditions) -> _Node:
    """One tree for all cases; their masks have nothing in common."""
    masks: dict[str, int] = {}
    values: dict[str, Any] = {}
    for mask, value in cases:
        key = repr(value)
        masks[key] = masks.get(key, 0) | mask
        values[key] = value
    grouped = [(masks[key], values[key]) for key in values]
    scope = sum(masks.values())
    if all(isinstance(value, Mapping) for value in values.values()):
        keyed = [(mask, {key: (key, inner) for key, inner in value.items()}) for mask, value in grouped]
        return _Map(_entries(keyed, scope, conditions)) if any(values.values()) else _Leaf({})
    if all(isinstance(value, list | tuple) for value in values.values()):
        keyed = [(mask, {key: ("", inner) for key, inner in _identified(value)}) for mask, value in grouped]
        return _List(_entries(keyed, scope, conditions)) if any(values.values()) else _Leaf([])
    if len(grouped) == 1:
        return _Leaf(grouped[0][1])
    choices = [(conditions.of(mask, scope), merge([(mask, value)], conditions)) for mask, value in grouped]
    *first, last = sorted(choices, key=lambda one: one[0].startswith("not "))
    return _Choice((*first, ("", last[1])))


def _entries(
    cases: Sequence[tuple[int, dict[Hashable, tuple[str, Any]]]], scope: int, conditions: Conditions
) -> tuple[_Entry, ...]:
    entries = []
    for key in _in_order([list(found) for _, found in cases]):
        having = [(mask, found[key]) for mask, found in cases if key in found]
        present = sum(mask for mask, _ in having)
        node = merge([(mask, value) for mask, (_, value) in having], conditions)
        entries.append(_Entry(having[0][1][0], conditions.of(present, scope), node))
    return tuple(entries)


def _in_order(sequences: Iterable[list[Hashable]]) -> list[Hashable]:
    """All that occurs, in an order that each of them has."""
    merged: list[Hashable] = []
    for sequence in sorted(sequences, key=len, reverse=True):
        place = 0
        for one in sequence:
            if one in merged:
                place = merged.index(one) + 1
            else:
                merged.insert(place, one)
                place += 1
    return merged


def _identified(items: Sequence[Any]) -> Iterator[tuple[Hashable, Any]]:
    """What makes an item the same one in two lists: an object's place, else its name, else all of it."""
    seen: Counter[Hashable] = Counter()
    for item in items:
        key: Hashable = repr(item)
        if isinstance(item, Mapping) and "metadata" in item:
            key = place_of(item)
        elif isinstance(item, Mapping) and "name" in item and not {"apiGroup", "namespace"} & item.keys():
            key = item["name"]
        seen[key] += 1
        yield (key, seen[key]), item


def place_of(manifest: Mapping[str, Any]) -> tuple[str, str, str]:
    """Kind, namespace and name."""
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", ""), metadata["name"]


# The text


@dataclass(frozen=True, slots=True)
class TemplateWriter:
    """Writes trees as templates. ``lists``: what a variable of expressions runs through, outer variables first."""

    lists: Mapping[str, str] = field(default_factory=dict)

    def documents(self, tree: _Node) -> str:
        """A list of objects as YAML documents; one that has a variable in its name is there for each of its values."""
        assert isinstance(tree, _List)
        parts = []
        for entry in tree.entries:
            names = _text_of(entry.node, only=("name", "namespace"))
            bound = tuple(name for name in self.lists if name in names)
            body = ["---", *self._block(entry.node, "", bound)]
            parts.append(self._repeated(bound, entry.condition, body, ""))
        return "\n".join(_conditional(parts, "")) + "\n"

    def _repeated(self, variables: Sequence[str], condition: str, body: list[str], indent: str) -> _Part:
        for name in reversed(variables):
            body = [f"{indent}{{{{- range {name} := {self.lists[name]} }}}}", *body, f"{indent}{{{{- end }}}}"]
        # Of an empty list nothing is written anyway.
        return ("" if condition in [self.lists[name] for name in variables] else condition), body

    def _block(self, node: _Node, indent: str, bound: Sequence[str]) -> list[str]:
        if isinstance(node, _Map):
            return _conditional([self._entry(one, indent, bound) for one in node.entries], indent)
        assert isinstance(node, _List)
        return _conditional([self._item(one, indent, bound) for one in node.entries], indent)

    def _entry(self, entry: _Entry, indent: str, bound: Sequence[str]) -> _Part:
        key, node = _scalar(entry.key), entry.node
        if isinstance(node, _Choice):
            return entry.condition, self._choice(node, entry.key, indent, bound)
        if isinstance(node, _Leaf):
            value = node.value
            only_if = value.only_if if isinstance(value, Expression) else ""
            if isinstance(value, Expression) and entry.key == SPREAD:
                body = [f"{indent}{{{{- {value.helm} | nindent {len(indent)} }}}}"]
            elif isinstance(value, Expression) and value.block:
                body = [f"{indent}{key}:", f"{indent}  {{{{- {value.helm} | nindent {len(indent) + 2} }}}}"]
            else:
                body = [f"{indent}{key}: {_scalar(value)}"]
            return entry.condition or only_if, body
        below = indent if isinstance(node, _List) else indent + "  "
        return entry.condition, [f"{indent}{key}:", *self._block(node, below, bound)]

    def _choice(self, node: _Choice, key: str, indent: str, bound: Sequence[str]) -> list[str]:
        lines = []
        for number, (condition, chosen) in enumerate(node.choices):
            word = ("else " if number else "") + (f"if {condition}" if condition else "")
            lines.append(f"{indent}{{{{- {word.strip()} }}}}")
            lines += self._entry(_Entry(key, "", chosen), indent, bound)[1]
        return [*lines, f"{indent}{{{{- end }}}}"]

    def _item(self, entry: _Entry, indent: str, bound: Sequence[str]) -> _Part:
        texts = _text_of(entry.node)
        new = tuple(name for name in self.lists if name in texts and name not in bound)
        node = entry.node
        if isinstance(node, _Leaf):
            body = [f"{indent}- {_scalar(node.value)}"]
        elif isinstance(node, _Map) and not node.entries[0].condition:
            first, *rest = self._block(node, indent + "  ", (*bound, *new))
            body = [f"{indent}- {first.strip()}", *rest]
        else:
            body = [f"{indent}-", *self._block(node, indent + "  ", (*bound, *new))]
        return self._repeated(new, entry.condition, body, indent)


def _conditional(parts: Iterable[_Part], indent: str) -> list[str]:
    """Lines with their conditions, one for all that follow each other under the same."""
    lines: list[str] = []
    for condition, group in groupby(parts, key=lambda one: one[0]):
        body = [line for _, part in group for line in part]
        lines += [f"{indent}{{{{- if {condition} }}}}", *body, f"{indent}{{{{- end }}}}"] if condition else body
    return lines


def _text_of(node: _Node, only: Sequence[str] = ()) -> str:
    """All text in it, but for that in lists below it; ``only``: in these keys of its metadata."""
    if only:
        assert isinstance(node, _Map)
        metadata = next(one.node for one in node.entries if one.key == "metadata")
        assert isinstance(metadata, _Map)
        return " ".join(_text_of(one.node) for one in metadata.entries if one.key in only)
    if isinstance(node, _Leaf):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, _Choice):
        return " ".join(_text_of(one) for _, one in node.choices)
    return "" if isinstance(node, _List) else " ".join(f"{one.key} {_text_of(one.node)}" for one in node.entries)


def _scalar(value: Any) -> str:
    """One line of YAML. What is inserted stays text, also where it looks like a number."""
    if isinstance(value, Expression):
        return f"{{{{ {value.helm} }}}}"
    if isinstance(value, str) and (_OPEN in value or "\n" in value):
        quoted = json.dumps(value, ensure_ascii=False) if "\n" in value else "'" + value.replace("'", "''") + "'"
        return _escaped(quoted).replace(_OPEN, "{{ ").replace(_CLOSE, " }}")
    dumped: str = yaml.safe_dump(value, allow_unicode=True, width=1_000_000, default_flow_style=True)
    return _escaped(dumped.removesuffix("...\n").rstrip("\n"))


def _escaped(text: str) -> str:
    return _BRACES.sub(lambda found: f'{{{{ "{found[0]}" }}}}', text)
