"""Values that may occur anywhere in a document of another author, and functions that insert them.

Bombs are short inputs that could take far more time or memory than their length suggests.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from hypothesis import strategies as st

from tests.thorough import ALL

DEEP: Final = "[" * 50_000 + "]" * 50_000


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


BOMBS: Final[list[Any]] = [
    10**40,
    10**300,
    -(10**300),
    1e308,
    float("inf"),
    float("nan"),
    "9" * 100_000,
    "1e999999999",
    "1e400",
    "0-3000000",
    "0-99999," * 2000,
    "0-99999999999999999999",
    DEEP,
    nested(500),
    "\x00",
    "\ud800",
    "١٢",
    "²",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59",
    True,
    [None],
    {"a": {"b": [1]}},
    {"": ""},
]

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(BOMBS)
    | st.sampled_from(["True", "Pending", "Running", "0-2,5", "worker-0", "2027-01-15T08:00:00Z", "64Gi", "1e40"])
)

ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def bombs_at(position: int, every: int = 1) -> list[Any]:
    """Every n-th bomb, with another offset for each position in a document. ``make test`` takes fewer."""
    step = every if ALL else 4 * every
    return BOMBS[position % step :: step]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a document."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from places(inner, (*path, key))


def disfigured(document: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """The document with up to three values replaced, except those that the API server validates."""
    kept = ("metadata", "apiVersion", "kind")
    paths = [path for path in places(document) if path[0] not in kept]

    @st.composite
    def changed(draw: st.DrawFn) -> Any:
        found = copy.deepcopy(dict(document))
        for path in draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3)):
            put(found, path, draw(ANYTHING))
        return found

    return changed()


def put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    """Does nothing if the path no longer exists."""
    with suppress(KeyError, IndexError, TypeError):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value
