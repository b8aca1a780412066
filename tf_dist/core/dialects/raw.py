"""Small checks of raw values in a pod template, each noting what is wrong and saying whether it was right."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tf_dist.core.dialects.problems import MISSING, Findings, Loc, described, in_quotes, nearest, suggest


def check_keys(found: Mapping[Any, Any], known: Collection[str], loc: Loc, out: Findings) -> None:
    """A key near a known one is a typing mistake; another unknown key may be newer than we are, and is only told."""
    for key in found:
        if key in known:
            continue
        if not isinstance(key, str):
            out.error(loc, f"a key must be text, not {described(key)}", in_quotes(key))
        elif near := nearest(key, known):
            out.error((*loc, key), "unknown key", f"did you mean {near}?")
        else:
            out.warn((*loc, key), "unknown key: the API server will drop it")


def mapping_at(value: object, loc: Loc, out: Findings) -> Mapping[str, Any] | None:
    """The value if it is a mapping; else an error is noted and None given."""
    if isinstance(value, Mapping):
        return value
    out.error(loc, f"must be a mapping (key: value), not {described(value)}")
    return None


def list_at(found: Mapping[str, Any], key: str, loc: Loc, out: Findings) -> list[Any]:
    """The list under a key, empty if there is none; an error is noted if it is something else."""
    value = found.get(key)
    if value is None:
        return []
    if isinstance(value, list):
        return value
    out.error((*loc, key), f"must be a list (- item), not {described(value)}")
    return []


def mappings_at(
    found: Mapping[str, Any], key: str, loc: Loc, known: Collection[str], out: Findings
) -> Iterator[tuple[Loc, Mapping[str, Any]]]:
    """The mappings in the list under a key, with their places; whatever else is there is an error."""
    for index, item in enumerate(list_at(found, key, loc, out)):
        place = (*loc, key, index)
        if (entry := mapping_at(item, place, out)) is not None:
            check_keys(entry, known, place, out)
            yield place, entry


def text_at(found: Mapping[str, Any], key: str, loc: Loc, out: Findings, *, required: bool = True) -> str | None:
    """The text under a key; a number, boolean or (if required) nothing there is an error."""
    value = found.get(key)
    if isinstance(value, str) and (value or not required):
        return value
    if value is None or value == "":
        if required:
            out.error((*loc, key), MISSING)
    else:
        out.error((*loc, key), f"must be text, not {described(value)}", in_quotes(value))
    return None


def texts_at(found: Mapping[str, Any], key: str, loc: Loc, out: Findings) -> None:
    """A list of texts: ``- 5`` is a number to YAML, and the API server refuses it."""
    value = found.get(key)
    if isinstance(value, str):
        out.error((*loc, key), "must be a list of texts, not one text", "put each word on a line of its own: - word")
        return
    for index, item in enumerate(list_at(found, key, loc, out)):
        if not isinstance(item, str):
            out.error((*loc, key, index), f"must be text, not {described(item)}", in_quotes(item))


def text_map_at(found: Mapping[str, Any], key: str, loc: Loc, out: Findings) -> None:
    """A mapping of texts, as labels, annotations and node selectors are."""
    value = found.get(key)
    entries = mapping_at(value, (*loc, key), out) if value is not None else None
    pairs: Mapping[Any, Any] = entries or {}
    for name, text in pairs.items():
        if not isinstance(name, str):
            out.error((*loc, key), f"a key must be text, not {described(name)}", in_quotes(name))
        elif not isinstance(text, str):
            out.error((*loc, key, name), f"must be text, not {described(text)}", in_quotes(text))


def choice_at(found: Mapping[str, Any], key: str, known: Collection[str], loc: Loc, out: Findings) -> None:
    """One of a few words, if it is there."""
    value = text_at(found, key, loc, out, required=False)
    if value is not None and value not in known:
        out.error((*loc, key), f"unknown value {value!r}", suggest(value, known))


def flag_at(found: Mapping[str, Any], key: str, loc: Loc, out: Findings) -> bool:
    """A true or false, false if it is not there."""
    value = found.get(key)
    if value is None or isinstance(value, bool):
        return bool(value)
    out.error((*loc, key), f"must be true or false, not {described(value)}")
    return False


def port_at(found: Mapping[str, Any], key: str, loc: Loc, out: Findings) -> int | None:
    """A port number 1 to 65535, None if it is not there or wrong."""
    value = found.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        hint = f"write {value} without quotes" if isinstance(value, str) and value.isdecimal() else ""
        out.error((*loc, key), f"must be a whole number, not {described(value)}", hint)
        return None
    if not 1 <= value <= 65535:
        out.error((*loc, key), f"is no port: {described(value)}; ports go from 1 to 65535")
        return None
    return value
