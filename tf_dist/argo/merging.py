"""What a step brings along, merged with what its author gives: inputs, outputs, and the patch of the pod."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import yaml
from hera.workflows import Artifact, Parameter
from hera.workflows import models as m

from tf_dist.errors import InvalidJob, Problem

_REFERENCE: Final = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_STAND_IN: Final = 9_100_000_000_000_000  # a number that a patch has no use for; numbers keep their quotes, or none
_EXAMPLE: Final = 'write {"priorityClassName": "high"}, as JSON or YAML'


def as_list(value: Any) -> list[Any]:
    """Hera takes one, several, or none; and inputs and outputs as one object."""
    if value is None:
        return []
    if isinstance(value, m.Inputs | m.Outputs):
        return [*(value.parameters or ()), *(value.artifacts or ())]
    several = isinstance(value, Iterable) and not isinstance(value, str | dict)
    return list(value) if several else [value]


def merged(own: Sequence[Any], given: Any) -> list[Any]:
    """Both lists; where both have a parameter or an artifact of a name, the author's stands."""
    theirs = [one for value in as_list(given) for one in _parameters(value)]
    taken = {_key(one) for one in theirs}
    return [*(one for one in own if _key(one) not in taken), *theirs]


def _parameters(value: Any) -> list[Any]:
    """Hera takes ``{name: default}`` as inputs, too."""
    return [Parameter(name=name, value=one) for name, one in value.items()] if isinstance(value, dict) else [value]


def _key(one: Any) -> tuple[bool, str | None]:
    return isinstance(one, Artifact | m.Artifact), one.name


def merged_patch(own: dict[str, Any], given: str | None) -> str:
    """The patch of the pod with the author's in it, whose values stand; InvalidJob if that is no patch.

    ``{{…}}`` in it stays where it is, with quotes around it or without.
    """
    if not given:
        return json.dumps(own)
    found = [*dict.fromkeys(_REFERENCE.findall(given))]
    text = given
    for number, one in enumerate(found):
        text = text.replace(one, str(_STAND_IN + number))
    theirs = parsed_patch(text)
    result = json.dumps({**own, **theirs})
    for number, one in enumerate(found):
        result = result.replace(str(_STAND_IN + number), one)
    return result


def parsed_patch(text: str | None) -> dict[str, Any]:
    """The patch as data, empty if there is none; InvalidJob. A number stands for each ``{{…}}``."""
    if not text:
        return {}
    try:
        content = yaml.safe_load(_REFERENCE.sub(str(_STAND_IN), text))
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InvalidJob([Problem("pod_spec_patch", f"is no YAML: {reason}", _EXAMPLE)]) from None
    if not isinstance(content, dict):
        raise InvalidJob([Problem("pod_spec_patch", f"is a {type(content).__name__} and no mapping", _EXAMPLE)])
    return content
