"""Valid pod templates and companion objects that together use all fields, and changes of single values."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
Loc = tuple[str | int, ...]
TEXTS = ("", "A_B", "a" * 64, "a" * 254, "a b", "ü", "-x", "a/b", "..", "../x", "/abs", "a.b", "1", "always", "x" * 999)
NUMBERS = (-1, 0, 1, 101, 512, 70000, 2**31, 2**63, 1.5, "5")
KEYS = ("A b", "a" * 300, "", "/x", "x/y/z", "Ünï")
FIXED: tuple[Loc, ...] = (
    ("apiVersion",),
    ("kind",),
    ("metadata",),
    ("spec",),
    ("spec", "containers", 0),
    ("spec", "restartPolicy"),
)


_FILE = yaml.safe_load(Path(__file__).with_name("valid_objects.yaml").read_text())


def template(spec: Object | None = None, container: Object | None = None, metadata: Object | None = None) -> Object:
    main = {"name": "tensorflow", "image": "a:1", **(container or {})}
    return {"metadata": metadata or {}, "spec": {"containers": [main], "restartPolicy": "Never", **(spec or {})}}


_VOLUMES = {name: {"spec": {"volumes": [{"name": "v", name: source}]}} for name, source in _FILE["volumes"].items()}
TEMPLATES = {name: template(**added) for name, added in {**_FILE["templates"], **_VOLUMES}.items()}
"""Valid pod templates."""
_METADATA: Object = {"name": "my-name", "labels": {"a": "b"}, "annotations": {"c": "d"}}
COMPANIONS: dict[str, Object] = {
    name: {"apiVersion": "v1", "metadata": _METADATA, **content} for name, content in _FILE["companions"].items()
}
"""Valid companion objects."""


def changed_objects(valid: Object) -> Iterator[tuple[Loc, Any, Object]]:
    """The object with one value replaced, with the value's path and the new value."""
    for loc, value in values(valid):
        if loc and loc not in FIXED and loc[-1] != "image":  # an API server accepts images that no kubelet can pull
            for new in changes(value):
                yield loc, new, replaced(valid, loc, new)


def values(value: Any, loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    yield loc, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from values(item, (*loc, key))


def changes(value: Any) -> Iterator[Any]:
    match value:
        case bool():
            yield from (not value, "true", 1)
        case int():
            yield from NUMBERS
        case str():
            yield from (*TEXTS, value.lower(), value.upper(), 5, [], {})
        case list():
            yield from ([], value + value[:1], "x", {}, [{}], [""], value * 40)
        case dict():
            yield from ({}, "x", [])
            yield from ({other: item for other, item in value.items() if other != key} for key in value)
            yield from ({**value, key: "v"} for key in KEYS)


def replaced(valid: Object, loc: Loc, value: Any) -> Object:
    found: Object = copy.deepcopy(valid)
    at: Any = found
    for key in loc[:-1]:
        at = at[key]
    at[loc[-1]] = value
    return found
