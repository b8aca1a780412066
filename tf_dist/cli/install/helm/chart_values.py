"""Values of the Helm chart: ``values.yaml`` and ``values.schema.json`` of one table, ``chart_values.yaml``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from tf_dist.client.yaml_files import to_yaml


@cache
def chart_values() -> Mapping[str, Mapping[str, Any]]:
    """The table: by name ``meaning``, and ``default``, ``schema`` and ``option``, or the ``parts`` of a value."""
    import yaml

    found: dict[str, Any] = yaml.safe_load(files(__package__).joinpath("chart_values.yaml").read_text(encoding="utf-8"))
    return found


def values_yaml() -> str:
    """The values with what they mean."""
    lines = ["# Written by tf-dist install --chart. What each value does in full: docs/install.md."]
    for name, one in chart_values().items():
        lines += ["", *_assigned(name, one)]
    return "\n".join(lines) + "\n"


def _assigned(name: str, value: Mapping[str, Any]) -> Iterator[str]:
    yield f"# {value['meaning']}"
    if "parts" not in value:
        yield from to_yaml({name: value["default"]}).splitlines()
        return
    yield f"{name}:"
    for part, one in value["parts"].items():
        yield from (f"  {line}" for line in _assigned(part, one))


def values_schema() -> str:
    """What Helm refuses before it renders anything."""
    properties: dict[str, Any] = {name: _schema(one) for name, one in chart_values().items()}
    # Helm itself adds it where the chart is a part of another one.
    whole = {"$schema": "http://json-schema.org/draft-07/schema#", **_object({**properties, "global": {}})}
    return json.dumps(whole, indent=2) + "\n"


def _schema(value: Mapping[str, Any]) -> dict[str, Any]:
    parts = {name: _schema(one) for name, one in value.get("parts", {}).items()}
    return {"description": value["meaning"], **(_object(parts) if parts else value["schema"])}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [], "additionalProperties": False}
