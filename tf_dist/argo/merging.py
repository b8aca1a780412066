"""Merges of a step's inputs, outputs and pod patch with those of its author."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import yaml
from hera.workflows import Artifact, Parameter
from hera.workflows import models as m

from tf_dist.errors import InvalidJob, Problem

_REFERENCE: Final = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_STAND_IN: Final = 9_100_000_000_000_000  # a number that a patch has no use for; numbers keep their quotes, or none
PodPatch = str | Mapping[str, Any] | None
"""A patch of the pod: JSON, YAML, or data."""
_EXAMPLE: Final = 'write {"priorityClassName": "high"}, as JSON or YAML'


def as_list(value: Any) -> list[Any]:
    """Hera's arguments as a list: none, one or several values, or an object of inputs or outputs."""
    if value is None:
        return []
    if isinstance(value, m.Inputs | m.Outputs):
        return [*(value.parameters or ()), *(value.artifacts or ())]
    several = isinstance(value, Iterable) and not isinstance(value, str | dict)
    return list(value) if several else [value]


def merged(own: Sequence[Any], given: Any) -> list[Any]:
    """Both lists. A parameter or artifact of the author replaces one of the same name."""
    theirs = [one for value in as_list(given) for one in as_parameters(value)]
    taken = {_key(one) for one in theirs}
    return [*(one for one in own if _key(one) not in taken), *theirs]


def as_parameters(value: Any) -> list[Any]:
    """Hera's ``{name: default}`` as parameters."""
    return [Parameter(name=name, value=one) for name, one in value.items()] if isinstance(value, dict) else [value]


def _key(one: Any) -> tuple[bool, str | None]:
    return isinstance(one, Artifact | m.Artifact), one.name


def merged_patch(own: dict[str, Any], given: PodPatch) -> str:
    """The patch of the pod. Values of the author replace those of the step; ``{{…}}`` stay as they are. InvalidJob."""
    theirs, references = _parsed(given)
    result = json.dumps({**own, **theirs})
    for number, one in references.items():
        result = result.replace(str(number), one)
    return result


def patched_value(given: PodPatch, field: str) -> Any:
    """The author's value of a field, None for none; a reference as its text. InvalidJob."""
    theirs, references = _parsed(given)
    value = theirs.get(field)
    return references.get(value, value) if isinstance(value, int) else value


def _parsed(given: PodPatch) -> tuple[dict[str, Any], dict[int, str]]:
    """The patch as data, and the references that its stand-in numbers replace."""
    if not given:
        return {}, {}
    if not isinstance(given, str | Mapping):
        raise InvalidJob([Problem("pod_spec_patch", f"must be a mapping, not {type(given).__name__}", _EXAMPLE)])
    try:
        text = given if isinstance(given, str) else json.dumps(given)
    except (TypeError, ValueError) as error:
        raise InvalidJob([Problem("pod_spec_patch", f"cannot be written as JSON: {error}", _EXAMPLE)]) from None
    references = {_STAND_IN + number: one for number, one in enumerate(dict.fromkeys(_REFERENCE.findall(text)))}
    for number, one in references.items():
        text = text.replace(one, str(number))
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InvalidJob([Problem("pod_spec_patch", f"is not YAML: {reason}", _EXAMPLE)]) from None
    if not isinstance(content, dict):
        raise InvalidJob([Problem("pod_spec_patch", f"must be a mapping, not {type(content).__name__}", _EXAMPLE)])
    return content, references
