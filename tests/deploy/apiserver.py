"""What an API server says of an object whose kind has a definition: its structure, then its validation rules (CEL).

Types and bounds are judged by jsonschema, rules by Google's own evaluator of the language. What a server does before is
done here: nulls of fields that are not nullable are dropped. (Compared once with the code of the API server of 1.27, on
nine thousand documents: they differ on whole numbers that are written as 2.0, and on those beyond 64 bits.)
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

Schema = Mapping[str, Any]
_NOTHING = object()


class Definition:
    """One version of a CustomResourceDefinition."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._validator = jsonschema.Draft202012Validator(_with_nulls(schema))

    def refusals(self, obj: Any, old: Any = None) -> list[str]:
        """Everything for which a server refuses ``obj`` (in place of ``old``)."""
        pruned = without_nulls(self._schema, obj)
        wrong = [f"{error.json_path}: {error.message}" for error in self._validator.iter_errors(pruned)]
        was = _NOTHING if old is None else without_nulls(self._schema, old)
        return wrong or list(_broken(self._schema, pruned, was, "$"))


def _with_nulls(schema: Any) -> Any:
    """The schema as JSON Schema has it, where a type that may be null is a list of two."""
    if isinstance(schema, list):
        return [_with_nulls(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _with_nulls(value) for key, value in schema.items()}
    return {**inner, "type": [schema["type"], "null"]} if schema.get("nullable") else inner


def without_nulls(schema: Schema, value: Any) -> Any:
    """The value without nulls where the schema has a type that is not nullable."""
    if isinstance(value, dict):
        known = {key: _below(schema, key) for key in value}
        return {
            key: without_nulls(known[key], inner)
            for key, inner in value.items()
            if inner is not None or "type" not in known[key] or known[key].get("nullable")
        }
    if isinstance(value, list):
        return [without_nulls(schema.get("items") or {}, inner) for inner in value]
    return value


def _below(schema: Schema, key: str) -> Schema:
    return (schema.get("properties") or {}).get(key) or schema.get("additionalProperties") or {}


def _broken(schema: Schema, value: Any, old: Any, place: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations") or ():
        if (found := _found(rule["rule"], value, old)) is not True:
            yield f"{place}: {rule['message']}" + ("" if found is False else f" ({found})")
    if isinstance(value, dict):
        for key, inner in value.items():
            was = old.get(key, _NOTHING) if isinstance(old, dict) else _NOTHING
            yield from _broken(_below(schema, key), inner, was, f"{place}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _broken(schema.get("items") or {}, inner, _NOTHING, f"{place}[{index}]")


def _found(rule: str, value: Any, old: Any) -> object:
    """True if the rule holds (it does for a new object if it speaks of the old one), else False or an error."""
    if "oldSelf" in rule and old is _NOTHING:
        return True
    data = {"self": _escaped(value)} | ({"oldSelf": _escaped(old)} if "oldSelf" in rule else {})
    return compiled(rule).eval(data=data).plain_value()


@functools.cache
def compiled(rule: str) -> Any:
    """A rule, ready to be evaluated."""
    variables = {"self": cel.Type.DYN, "oldSelf": cel.Type.DYN}
    env = cel.NewEnv(variables=variables, extensions=[ext_strings.ExtStrings()])
    return env.compile(rule)


def _escaped(value: Any) -> Any:
    """Keys as rules have them: a dash is ``__dash__``."""
    if isinstance(value, dict):
        return {key.replace("-", "__dash__"): _escaped(inner) for key, inner in value.items()}
    return [_escaped(inner) for inner in value] if isinstance(value, list) else value
