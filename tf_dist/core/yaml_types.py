"""YAML with the types of JSON, as a cluster reads it.

PyYAML reads YAML 1.1 with Python's types. Here dates and ``12:30`` stay text, and a value that JSON has no word for
(``!!set``, ``!Ref``) is an error.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import yaml

TAG: Final = "tag:yaml.org,2002:"

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Loader(_Base):  # type: ignore[misc]
    """The types of JSON and no others."""


_INT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*|0x[0-9a-fA-F]+|0o?[0-7]+|0b[01]+)\Z")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?\Z")
_OWN: Final = frozenset({f"{TAG}{name}" for name in ("int", "float", "timestamp", "value")})

Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _OWN]
    for first, resolvers in _Base.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(f"{TAG}int", _INT, list("-+0123456789"))
Loader.add_implicit_resolver(f"{TAG}float", _FLOAT, list("-+0123456789."))
Loader.yaml_constructors = {
    tag: make
    for tag, make in _Base.yaml_constructors.items()
    if tag is None or tag.removeprefix(TAG) in ("null", "bool", "int", "float", "seq", "map", "str")
}


def _construct_int(loader: Any, node: yaml.ScalarNode) -> int:
    text = str(node.value)
    return int(text, 0) if not re.match(r"[-+]?0[0-7]", text) else int(text, 8)


def _construct_float(loader: Any, node: yaml.ScalarNode) -> float:
    """ValueError for what is beyond a float: JSON has no infinity."""
    found = float(node.value)
    if math.isinf(found):
        raise ValueError(f"{node.value} is too large a number")
    return found


Loader.add_constructor(f"{TAG}int", _construct_int)
Loader.add_constructor(f"{TAG}float", _construct_float)
