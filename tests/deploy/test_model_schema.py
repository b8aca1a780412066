"""Structural schemas that are made from pydantic models."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from tf_dist.core.dialects.common_schema import Int64, Port, SchemaModel
from tools.definitions.models import model_schema


class Part(SchemaModel):
    """A part.

    More about it, for developers.
    """

    port_number: Port
    """Where it listens."""


class Whole(SchemaModel):
    """A whole."""

    mode: Literal["a", "b"] | None = None
    """How it works."""
    parts: dict[str, list[Part] | None] | None = None
    """What it has."""
    size: Int64 | None = None
    """How large
    it is."""
    rest: Any = None
    """Not used."""


class Undocumented(SchemaModel):
    """A model with a field that nobody can guess."""

    known: str
    """It has a docstring."""
    mystery: str


def test_makes_a_structural_schema_of_a_model() -> None:
    keeps = {"x-kubernetes-preserve-unknown-fields": True}
    part = model_schema(Part, {})
    port = {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535, "description": "Where it listens."}
    assert part == {
        "description": "A part.",
        "type": "object",
        **keeps,
        "properties": {"portNumber": port},
        "required": ["portNumber"],
    }
    assert model_schema(Whole, {})["properties"] == {
        "mode": {"type": "string", "enum": ["a", "b"], "description": "How it works."},
        "parts": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": part, "nullable": True},
            "description": "What it has.",
        },
        "size": {"type": "integer", "format": "int64", "description": "How large it is."},
        "rest": {**keeps, "description": "Not used."},
    }


def test_adds_and_removes_what_a_model_cannot_say() -> None:
    extras = {Whole: {"parts": {"maxProperties": 3}}, Part: {"": {"required": [], "properties": None}}}
    parts = model_schema(Whole, extras)["properties"]["parts"]
    assert parts["maxProperties"] == 3
    assert parts["additionalProperties"]["items"] == {
        "description": "A part.",
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "required": [],
    }


def test_a_field_without_a_docstring_is_an_error() -> None:
    with pytest.raises(LookupError, match="no docstring below Undocumented: mystery"):
        model_schema(Undocumented, {})
