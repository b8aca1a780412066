"""Labels and label selectors, as Kubernetes has them (metav1.LabelSelector)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tf_dist.core.untyped import items, mapping, mappings

OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")

LABEL_NAME: Final = "([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]"
_PREFIX: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
LABEL_KEY: Final = f"({_PREFIX}/)?{LABEL_NAME}"
LONGEST_VALUE: Final = 63
LONGEST_PREFIX: Final = 253
LONGEST_KEY: Final = LONGEST_PREFIX + 1 + LONGEST_VALUE

_KEY: Final = re.compile(LABEL_KEY)
_VALUE: Final = re.compile(LABEL_NAME)
_SHOWN: Final = 3


def is_label_key(text: str) -> bool:
    """Whether it is a qualified name: of a label or an annotation, with or without a DNS subdomain before it."""
    return text.find("/") <= LONGEST_PREFIX and len(text) <= LONGEST_KEY and _KEY.fullmatch(text) is not None


def is_label_value(text: str) -> bool:
    """Whether a label may have it."""
    return not text or _VALUE.fullmatch(text) is not None


class Requirement(NamedTuple):
    """One rule of a label selector."""

    key: str
    operator: str
    values: frozenset[str]

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether labels fulfil it; a missing label satisfies NotIn."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
        return self.key not in labels

    def __str__(self) -> str:
        """As kubectl writes it."""
        match self.operator:
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
            case "In" if len(self.values) == 1:
                return f"{self.key}={next(iter(self.values))}"
        return f"{self.key} {self.operator.lower()} ({_first(sorted(self.values), ', ')})"


Requirements = tuple[Requirement, ...]
"""All rules of a selector; labels match if every one of them holds."""


def requirements(selector: object) -> Requirements:
    """What a stored selector asks for. One without rules matches everything."""
    stated = mapping(selector)
    equal = (Requirement(str(key), "In", frozenset({str(v)})) for key, v in mapping(stated.get("matchLabels")).items())
    return (*equal, *map(_requirement, mappings(stated.get("matchExpressions"))))


def _requirement(rule: Mapping[str, Any]) -> Requirement:
    values = frozenset(map(str, items(rule.get("values"))))
    return Requirement(str(rule.get("key")), str(rule.get("operator")), values)


def selector_text(rules: Requirements) -> str:
    """A selector as kubectl writes it, no longer than a line has room for."""
    return _first(list(map(str, rules)), ",")


def _first(parts: list[str], between: str) -> str:
    more = [f"and {len(parts) - _SHOWN} more"] if len(parts) > _SHOWN else []
    return between.join([*parts[:_SHOWN], *more])
