"""What an object, a label or an annotation may be called."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from tf_dist.core.labels import is_label_key, is_label_value
from tf_dist.errors import Problem

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
# No vowels and no look-alikes, so that a random suffix spells nothing.
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5
_GENERATED_MAX = 63


class NameRule(StrEnum):
    """The family of names that a kind takes."""

    SUBDOMAIN = "a lowercase RFC 1123 subdomain"
    LABEL = "a lowercase RFC 1123 label"
    LABEL_1035 = "a DNS-1035 label"
    PATH_SEGMENT = "a path segment"


_RULES: Mapping[NameRule, tuple[re.Pattern[str], int, str]] = {
    NameRule.SUBDOMAIN: (
        re.compile(rf"{_LABEL}(\.{_LABEL})*"),
        253,
        "must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric",
    ),
    NameRule.LABEL: (
        re.compile(_LABEL),
        63,
        "must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric",
    ),
    NameRule.LABEL_1035: (
        re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?"),
        63,
        "must consist of lower case alphanumeric characters or '-', start with a letter, and end with an alphanumeric",
    ),
    NameRule.PATH_SEGMENT: (re.compile(r"(?!\.{1,2}$)[^/%]+"), 253, "may not be '.' or '..' or contain '/' or '%'"),
}


def name_problem(rule: NameRule, name: str, path: str) -> Problem | None:
    """What is wrong with a name, if anything."""
    pattern, longest, text = _RULES[rule]
    if not name:
        return Problem(path, "Required value: name or generateName is required")
    if len(name) > longest:
        return Problem(path, f'Invalid value: "{name}": must be no more than {longest} characters')
    if not pattern.fullmatch(name):
        return Problem(path, f'Invalid value: "{name}": {rule} {text}')
    return None


def generated(prefix: str, dice: random.Random) -> str:
    """A name from a ``generateName``: the prefix, cut where a label would overflow, and five random characters."""
    return prefix[: _GENERATED_MAX - _SUFFIX_LENGTH] + "".join(dice.choices(_SUFFIX, k=_SUFFIX_LENGTH))


def label_problems(labels: Any, path: str = "metadata.labels") -> Iterator[Problem]:
    """What is wrong with a map of labels."""
    for key, value in _string_map(labels):
        if not is_label_key(key):
            yield Problem(path, f'Invalid value: "{key}": must be a qualified name of at most 63 characters')
        if not isinstance(value, str):
            yield Problem(f"{path}.{key}", f"Invalid value: {value!r}: must be a string")
        elif not is_label_value(value):
            yield Problem(path, f'Invalid value: "{value}": a valid label is at most 63 of [-A-Za-z0-9_.]')


def annotation_problems(annotations: Any) -> Iterator[Problem]:
    """What is wrong with a map of annotations (their total size is bounded by 256 KiB)."""
    size = 0
    for key, value in _string_map(annotations):
        if not is_label_key(key):
            yield Problem("metadata.annotations", f'Invalid value: "{key}": must be a qualified name')
        if not isinstance(value, str):
            yield Problem(f"metadata.annotations.{key}", f"Invalid value: {value!r}: must be a string")
        else:
            size += len(key) + len(value)
    if size > 256 * 1024:
        yield Problem("metadata.annotations", "Too long: must have at most 262144 bytes")


def _string_map(value: Any) -> Iterator[tuple[str, Any]]:
    return iter(value.items()) if isinstance(value, Mapping) else iter(())
