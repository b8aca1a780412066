"""Label selectors in documents: their shape, and what else must be true of one."""

from __future__ import annotations

from typing import Any, Final, Literal

from tf_dist.core.dialects.problems import MISSING, Findings, Loc
from tf_dist.core.dialects.shape import Shape
from tf_dist.core.labels import is_label_key, is_label_value
from tf_dist.core.untyped import items, mapping

MOST_RULES: Final = 64
"""So many expressions a selector may have here: a rule about them costs an API server as much as there may be."""


class RuleShape(Shape):
    """One entry of ``matchExpressions``."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] | None = None


class SelectorShape(Shape):
    """A metav1.LabelSelector."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[RuleShape] | None = None


def check_selector(stated: object, loc: Loc, out: Findings) -> None:
    """Note what is wrong with a selector besides its shape: what no label can be, and values too many or too few."""
    for key, value in mapping(mapping(stated).get("matchLabels")).items():
        _check_key(key, (*loc, "matchLabels", key), out)
        _check_value(value, (*loc, "matchLabels", key), out)
    rules = items(mapping(stated).get("matchExpressions"))
    if len(rules) > MOST_RULES:
        out.error((*loc, "matchExpressions"), f"has {len(rules)} entries; {MOST_RULES} are allowed")
    for at, rule in enumerate(rules):
        _check_rule(mapping(rule), (*loc, "matchExpressions", at), out)


def _check_rule(rule: Any, loc: Loc, out: Findings) -> None:
    operator, values = rule.get("operator"), items(rule.get("values"))
    if "key" in rule:
        _check_key(rule["key"], (*loc, "key"), out)
    if operator in ("In", "NotIn") and not values:
        out.error(
            (*loc, "values"), MISSING, f"{operator} compares with one value or more; Exists asks for the key alone"
        )
    if operator in ("Exists", "DoesNotExist") and values:
        out.error((*loc, "values"), f"must be left out: {operator} asks for the key alone", "or write In or NotIn")
    for at, value in enumerate(values):
        _check_value(value, (*loc, "values", at), out)


def _check_key(key: object, loc: Loc, out: Findings) -> None:
    if isinstance(key, str) and not is_label_key(key):
        hint = "up to 63 of a-z, A-Z, 0-9, '-', '_' and '.', with or without a DNS name and / before it"
        out.error(loc, f"{key!r} is no key that a label can have", hint)


def _check_value(value: object, loc: Loc, out: Findings) -> None:
    if isinstance(value, str) and not is_label_value(value):
        hint = "up to 63 of a-z, A-Z, 0-9, '-', '_' and '.', with a letter or digit at both ends"
        out.error(loc, f"{value!r} is no value that a label can have", hint)
