"""Structural schemas of the documents that ``core.dialects`` reads, made from its pydantic models.

Types, bounds, words and descriptions are those of the models. What a model cannot say is given by hand: the bounds by
which an API server estimates the cost of a rule, and the rules themselves (``cel_rules``).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import dedent
from typing import Any, Final

from pydantic import BaseModel

from tools.definitions.builders import KEEPS, Schema, mapping

Extras = Mapping[type[BaseModel], Mapping[str, Schema]]
"""By model and key what is added to the schema of a field (None: removed); under "" to that of the model itself."""

_INT32: Final = range(-(2**31), 2**31)
_INT64_BOUNDS: Final = (-(2**63), 2**63 - 1)


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The docstring below each field of a model, by the key of the field."""
    body: Sequence[ast.stmt] = ast.parse(dedent(inspect.getsource(model))).body[0].body  # type: ignore[attr-defined]
    docs: dict[str, str] = {}
    for statement, following in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            field = model.model_fields[statement.target.id]
            match following:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    docs[field.alias or statement.target.id] = " ".join(text.split())
    return docs


def model_schema(model: type[BaseModel], extras: Extras) -> Schema:
    """The structural schema of a model. A field without a docstring is an error."""
    described = model.model_json_schema(by_alias=True)
    docs, own = field_docs(model), extras.get(model, {})
    if missing := described["properties"].keys() - docs.keys():
        raise LookupError(f"no docstring below {model.__name__}: {', '.join(sorted(missing))}")
    models = {one.__name__: one for one in _parts(model)}

    def of(node: Mapping[str, Any]) -> Schema:
        if "$ref" in node:
            return model_schema(models[node["$ref"].rpartition("/")[2]], extras)
        if "anyOf" in node:
            return of(next(one for one in node["anyOf"] if one.get("type") != "null"))
        match node.get("type"):
            case None:
                return {KEEPS: True}
            case "array":
                return {"type": "array", "items": of(node["items"])}
            case "object" if isinstance(value := node.get("additionalProperties"), Mapping):
                nullable = {"nullable": True} if {"type": "null"} in value.get("anyOf", ()) else {}
                return {"type": "object", "additionalProperties": {**of(value), **nullable}}
            case "object":
                return {"type": "object", KEEPS: True}
            case "integer":
                return {"type": "integer", **_bounds(node["minimum"], node["maximum"])}
        return {key: node[key] for key in ("type", "enum") if key in node}

    keys = {
        key: _merged({"description": ""} | of(node), own.get(key, {}), {"description": docs[key]})
        for key, node in described["properties"].items()
    }
    schema = mapping((model.__doc__ or "").partition("\n")[0], keys, required=described.get("required", ()))
    return _merged(schema, own.get("", {}))


def _merged(*parts: Schema) -> Schema:
    whole = {key: value for part in parts for key, value in part.items()}
    return {key: value for key, value in whole.items() if value is not None}


def _bounds(least: int, most: int) -> Schema:
    """Format and bounds of an integer: API servers do not enforce formats, and read bounds as floats."""
    form = "int32" if least in _INT32 and most in _INT32 else "int64"
    bounds = {"minimum": least, "maximum": most}
    return {"format": form, **{key: bound for key, bound in bounds.items() if bound not in _INT64_BOUNDS}}


def _parts(model: type[BaseModel]) -> list[type[BaseModel]]:
    """The models that the fields of a model name."""
    found: list[type[BaseModel]] = []
    pending: list[Any] = [field.annotation for field in model.model_fields.values()]
    while pending:
        one = pending.pop()
        if inspect.isclass(one) and not getattr(one, "__args__", None) and issubclass(one, BaseModel):
            found.append(one)
        pending += getattr(one, "__args__", ())
    return found
