"""Label and field selectors in kubectl's syntax, compiled to predicates."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from tf_dist.cluster.api import Object
from tf_dist.cluster.api_errors import BadRequest
from tf_dist.core.api.fieldpath import value_at

Predicate = Callable[[Object], bool]
_LabelTest = Callable[[Mapping[str, str]], bool]

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    rf"""\s*(?:
        !\s*(?P<absent>{_KEY})
      | (?P<member>{_KEY})\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)
      | (?P<key>{_KEY})\s*(?P<op>==|=|!=|>|<)\s*(?P<value>{_VALUE})
      | (?P<present>{_KEY})
    )\s*(?P<end>,|$)""",
    re.VERBOSE | re.ASCII,
)
_FIELD = re.compile(r"(?P<path>[A-Za-z0-9.\-_/\[\]]+)(?P<op>==|!=|=)(?P<value>(?:\\.|[^\\,=])*)(?:,|$)", re.DOTALL)


@lru_cache(maxsize=1024)
def label_predicate(text: str) -> Predicate | None:
    """The predicate of a label selector; None when it selects everything; BadRequest."""
    tests = tuple(_label_tests(text))
    if not tests:
        return None
    return lambda obj: _all_hold(tests, obj["metadata"].get("labels") or {})


@lru_cache(maxsize=1024)
def field_predicate(text: str) -> Predicate | None:
    """The predicate of a field selector over any dotted path; None when it selects everything; BadRequest."""
    tests = tuple(_field_tests(text.strip()))
    if not tests:
        return None
    return lambda obj: all(test(obj) for test in tests)


def object_predicate(labels: str, fields: str) -> Predicate | None:
    """Both selectors in one predicate; None when everything is selected."""
    first, second = label_predicate(labels), field_predicate(fields)
    if first is None or second is None:
        return first or second
    return lambda obj: first(obj) and second(obj)


def _all_hold(tests: tuple[_LabelTest, ...], labels: Mapping[str, str]) -> bool:
    return all(test(labels) for test in tests)


def _label_tests(text: str) -> list[_LabelTest]:
    tests: list[_LabelTest] = []
    at = 0
    ended = True
    while at < len(text) and text[at:].strip():
        found = _REQUIREMENT.match(text, at)
        if not found:
            raise BadRequest(f"unable to parse requirement: {text[at:]!r} in label selector {text!r}")
        tests.append(_label_test(found))
        at, ended = found.end(), found["end"] == ""
    if not ended:
        raise BadRequest(f"unable to parse requirement: label selector {text!r} ends with a comma")
    return tests


def _label_test(found: re.Match[str]) -> _LabelTest:
    if key := found["absent"]:
        return lambda labels: key not in labels
    if key := found["present"]:
        return lambda labels: key in labels
    if key := found["member"]:
        values = frozenset(value.strip() for value in found["values"].split(","))
        return _one_of(key, values, wanted=found["set"] == "in")
    if found["op"] in ("<", ">"):
        return _compared(found["key"], found["op"], found["value"])
    return _one_of(found["key"], frozenset((found["value"],)), wanted=found["op"] != "!=")


def _one_of(key: str, values: frozenset[str], *, wanted: bool) -> _LabelTest:
    # A label that is missing satisfies != and notin, as it does in Kubernetes.
    if wanted:
        return lambda labels: labels.get(key) in values
    return lambda labels: labels.get(key) not in values


def _compared(key: str, op: str, bound: str) -> _LabelTest:
    compare = operator.gt if op == ">" else operator.lt
    try:
        limit = int(bound)
    except ValueError:
        raise BadRequest(f"for {op!r}, the value of label {key!r} must be an integer, not {bound!r}") from None

    def test(labels: Mapping[str, str]) -> bool:
        value = labels.get(key, "")
        return value.lstrip("-").isdecimal() and compare(int(value), limit)

    return test


def _field_tests(text: str) -> list[Predicate]:
    tests: list[Predicate] = []
    at = 0
    while at < len(text):
        found = _FIELD.match(text, at)
        if not found:
            raise BadRequest(f"invalid field selector {text!r}; can't understand {text[at:]!r}")
        value = re.sub(r"\\(.)", r"\1", found["value"])
        tests.append(_field_test(found["path"].strip(), value, equal=found["op"] != "!="))
        at = found.end()
    return tests


def _field_test(path: str, value: str, *, equal: bool) -> Predicate:
    # The commonest path, worth its own reader: kubectl watches one object by name.
    if path == "metadata.name":
        return lambda obj: (obj["metadata"]["name"] == value) is equal
    keys = path.split(".")
    return lambda obj: (_text(value_at(obj, *keys)) == value) is equal


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
