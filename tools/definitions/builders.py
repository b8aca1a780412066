"""Builders of structural schemas (OpenAPI v3), so that a definition reads like the document it describes.

A mapping keeps keys that it does not know, unless it is ``closed``. A TFJob in the wild has fields of other releases
and other operators, and what tf-dist itself refuses it must have seen: it names the key and the nearest known one, a
pruned one is silent. Queues are of tf-dist alone: kubectl refuses a key that their definition does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tf_dist.core.dialects.common_schema import MAX_CONTAINERS

Schema = dict[str, Any]
Rule = tuple[str, str]
"""An expression that must be true, and the message where it is not."""

RULES: Final = "x-kubernetes-validations"
KEEPS: Final = "x-kubernetes-preserve-unknown-fields"

_INT32_MAX: Final = 2**31 - 1
# Kubernetes' quantities, as far as an amount can be one: nothing negative.
_AMOUNT: Final = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$"


def mapping(about: str, keys: Mapping[str, Schema] | None = None, *, required: Sequence[str] = ()) -> Schema:
    """A mapping with these known keys, and room for others."""
    schema: Schema = {"description": about, "type": "object", KEEPS: True}
    if keys:
        schema["properties"] = dict(keys)
    if required:
        schema["required"] = list(required)
    return schema


def closed(schema: Schema) -> Schema:
    """A mapping without room for other keys than the known ones."""
    return {key: value for key, value in schema.items() if key != KEEPS}


def mapping_of(about: str, value: Schema, *, most: int | None = None) -> Schema:
    """A mapping with (``most``) keys of the user's choice, all values alike."""
    schema: Schema = {"description": about, "type": "object", "additionalProperties": value}
    return schema if most is None else {**schema, "maxProperties": most}


def list_of(about: str, item: Schema, *, least: int | None = None, most: int | None = None) -> Schema:
    """A list of things alike."""
    schema: Schema = {"description": about, "type": "array", "items": item}
    bounds = {"minItems": least, "maxItems": most}
    return {**schema, **{key: bound for key, bound in bounds.items() if bound is not None}}


def text(about: str, *, longest: int | None = None, pattern: str = "") -> Schema:
    """Any text, or one of at most so many characters that the pattern matches."""
    schema: Schema = {"description": about, "type": "string"}
    if longest is not None:
        schema["maxLength"] = longest
    return {**schema, "pattern": pattern} if pattern else schema


def choice(about: str, *words: str) -> Schema:
    """One of a few words."""
    return {"description": about, "type": "string", "enum": list(words)}


def flag(about: str) -> Schema:
    """True or false."""
    return {"description": about, "type": "boolean"}


def number(about: str, *, least: int | None = 0, most: int = _INT32_MAX) -> Schema:
    """A whole number (int32; API servers do not enforce that format, so it has bounds)."""
    schema: Schema = {"description": about, "type": "integer", "format": "int32"}
    return {**schema, "minimum": -_INT32_MAX if least is None else least, "maximum": most}


def amount(about: str) -> Schema:
    """A quantity of a resource: 4, 500m, 16Gi."""
    either = [{"type": "integer"}, {"type": "string"}]
    return {"description": about, "x-kubernetes-int-or-string": True, "anyOf": either, "pattern": _AMOUNT}


def anything(about: str) -> Schema:
    """A field of which everything is kept."""
    return {"description": about, KEEPS: True}


def pod_template(*, bare: bool = False) -> Schema:
    """A pod template, as far as pods are made from it: the rest is checked when the first pod is made.

    ``bare``: it may have no container. Amounts may be any number or text, as for pods.
    """
    entry = mapping("As in any pod.")
    amounts = mapping_of("By resource.", anything("How much."))
    resources = mapping("What it asks for.", {"limits": amounts, "requests": amounts})
    parts = {key: list_of("As in any pod.", entry) for key in ("env", "ports", "volumeMounts")}
    named: Schema = {"name": {**text("Its name.", longest=63), "minLength": 1}}
    container = mapping("A container.", {**named, "resources": resources, **parts}, required=["name"])
    spec = {
        "containers": list_of("What runs.", container, least=None if bare else 1, most=MAX_CONTAINERS),
        "initContainers": list_of("What runs before.", container),
        "volumes": list_of("As in any pod.", entry),
        "priorityClassName": text("Who goes first."),
        "overhead": amounts,
        "resources": resources,
    }
    metadata = {"labels": mapping("As in any pod."), "annotations": mapping("As in any pod.")}
    run = mapping("What they run.", spec, required=() if bare else ["containers"])
    keys = {"metadata": mapping("Their labels.", metadata), "spec": run}
    return mapping("The pods to run, as in any workload.", keys, required=() if bare else ["spec"])


def validated(schema: Schema, *rows: Rule) -> Schema:
    """The schema with rules of Kubernetes' validation language (CEL)."""
    return {**schema, **rules(rows)}


def rules(rows: Iterable[Rule]) -> Schema:
    """Rules, as a part of a schema."""
    return {RULES: [{"rule": " ".join(rule.split()), "message": message} for rule, message in rows]}


def root(about: str, spec: Schema, status: Schema, *, name: Schema | None = None) -> Schema:
    """A whole object."""
    metadata: Schema = {"type": "object", **({"properties": {"name": name}} if name else {})}
    keys: dict[str, Schema] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }
    return mapping(about, keys, required=["spec"])
