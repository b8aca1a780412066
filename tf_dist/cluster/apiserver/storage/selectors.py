"""Label and field selectors in kubectl's syntax, compiled to predicates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from tf_dist.cluster.api import Object
from tf_dist.cluster.api_errors import BadRequest
from tf_dist.core.model.fieldpath import value_at

Predicate = Callable[[Object], bool]
_LabelTest = Callable[[Mapping[str, str]], bool]

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    rf"""\s*(?:
        !\s*(?P<absent>{_KEY})
      | (?P<member>{_KEY})\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)
      | (?P<key>{_KEY})\s*(?P<op>==|=|!=)\s*(?P<value>{_VALUE})
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

    def matches(obj: Object) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


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


def _label_tests(text: str) -> list[_LabelTest]:
    tests: list[_LabelTest] = []
    at, ended = 0, True
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
    absent, present = found["absent"], found["present"]
    if absent or present:
        return lambda labels: (absent not in labels) if absent else (present in labels)
    key = found["member"] or found["key"]
    values = [value.strip() for value in found["values"].split(",")] if found["member"] else [found["value"]]
    # A label that is missing satisfies != and notin, as it does in Kubernetes.
    wanted = found["set"] == "in" or found["op"] in ("=", "==")
    return lambda labels: (labels.get(key) in values) is wanted


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
    # The most common path has an optimized test: kubectl watches single objects by name.
    if path == "metadata.name":
        return lambda obj: (obj["metadata"]["name"] == value) is equal
    keys = path.split(".")

    def matches(obj: Object) -> bool:
        found = value_at(obj, *keys)
        text = str(found).lower() if isinstance(found, bool) else "" if found is None else str(found)
        return (text == value) is equal

    return matches
