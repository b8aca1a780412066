"""Arguments of steps: values, parameters and references, their problems, and merges with those of the author."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import yaml
from hera.workflows import Artifact, Parameter
from hera.workflows import models as m

from tf_dist.argo.launcher import contract
from tf_dist.core.model.overrides import shorten_text
from tf_dist.core.pipeline import run_options
from tf_dist.core.pipeline.run_options import Option
from tf_dist.errors import InvalidJob, Problem

Value = str | int | Parameter | None
"""A value, an input parameter of the step, or a text with ``{{…}}``."""

_ALONE: Final = re.compile(r"\{\{=?[^{}]+\}\}")
_PLACE: Final = re.compile(r"\{\{.*?(?:\}\}|$)")
_OF_A_USE: Final = re.compile(r"\{\{=?\s*(?:tasks|steps|item)\b.*?\}\}")
_NOT_IN_A_KEY: Final = re.compile(r"[^-a-zA-Z0-9]")
_OUTPUT: Final = re.compile(r"[-\w]+", re.ASCII)


def is_reference(value: object) -> bool:
    """Whether the workflow fills in a part of the text."""
    return isinstance(value, str) and "{{" in value


def is_lone_reference(value: object) -> bool:
    """Whether the text is one ``{{…}}`` and nothing else."""
    return isinstance(value, str) and _ALONE.fullmatch(value) is not None


def reference_of(value: Any) -> Any:
    """The reference in a parameter, as made by ``w.get_parameter("steps")``. Other values are not changed."""
    return value.value if isinstance(value, Parameter) and is_reference(value.value) else value


def reference_text(value: Any) -> Any:
    """The reference to a value of the workflow or to a parameter. Other values are not changed."""
    value = reference_of(value)
    return f"{{{{inputs.parameters.{value.name}}}}}" if isinstance(value, Parameter) else value


def is_given_later(value: Any) -> bool:
    """Whether the value is a parameter or a reference."""
    return isinstance(value, Parameter) or is_reference(value)


def refuse_references(what: str, text: str, way: str) -> None:
    """Raise InvalidJob if a text that is parsed later has references."""
    problems = list(reference_problems(what, text, way))
    if problems:
        raise InvalidJob(problems)


def reference_problems(what: str, text: str, way: str) -> Iterator[Problem]:
    """A problem for each reference in a text that is parsed later."""
    for number, line in enumerate(text.split("\n"), start=1):
        for found in _PLACE.findall(line):
            place = f"{what}, line {number}" if "\n" in text else what
            yield Problem(
                place,
                f"{shorten_text(found)[1:-1]} would be parsed together with the value that is filled in for it",
                way,
            )


def as_argument(name: str, value: Value, own: list[Parameter]) -> str:
    """The value as a launcher argument. A new input parameter is added to ``own``."""
    value = reference_of(value)
    if is_reference(value):
        return str(value)
    parameter = value if isinstance(value, Parameter) else Parameter(name=name, default=_plain(value))
    own.append(parameter)
    return f"{{{{inputs.parameters.{parameter.name}}}}}"


def _plain(value: str | int | None) -> str:
    return "" if value is None else str(value)


# Problems


def value_problems(name: str, value: Any, row: Option) -> Iterator[Problem]:
    """The problems of a value for an option of the launcher. Also checks the default of a parameter."""
    value = _known(value)
    if row.kind.of_text and is_reference(value):
        yield from use_problems(name, value)
    elif value not in (None, ""):
        problems = [*row.problems(value, lambda _: False, name)]
        if not problems and row.parameter:
            problems = [*row.problems(_plain(value), lambda _: False, name)]  # the launcher reads the text of a number
        yield from problems


def choice_problems(name: str, value: Any, known: Collection[str]) -> Iterator[Problem]:
    """The problem of a value that is not one of ``known``."""
    value = _known(value)
    if is_reference(value):
        yield from use_problems(name, value)
    elif value is not None:
        yield from run_options.choice_problems(name, value, known)


def _known(value: Any) -> Any:
    """The known value: the default of a parameter, or the value itself."""
    value = reference_of(value)
    if isinstance(value, Parameter):
        return value.default if value.value is None else value.value
    return value


def use_problems(name: str, text: str, *, step: str = "train", instead: str = "leave it out") -> Iterator[Problem]:
    """Problems of references to outputs of other tasks or to items of a loop, which belong to the use of a step."""
    for found in _OF_A_USE.findall(text):
        given = f'{step}(arguments={{"{name.replace("_", "-")}": "{found}"}})'
        yield Problem(name, f"{found} is known only where the step is used", f"{instead} here and write {given}")


def cache_key_problems(key: str | None) -> Iterator[Problem]:
    """The problem of characters that Argo 4.1 rejects in the key of a memoized step."""
    wrong = sorted(set(_NOT_IN_A_KEY.findall(_PLACE.sub("", key or ""))))
    if wrong:
        hint = 'use letters, digits and -, and {{=sprig.replace(".", "-", inputs.parameters["rate"])}} for a value'
        yield Problem("memoize", f"a key may not have {' '.join(map(repr, wrong))} in it: {key}", hint)


def output_problems(given: Any) -> Iterator[Problem]:
    """Problems of metrics that cannot be output parameters, or that have the name of another output."""
    where = "metric_outputs"
    if isinstance(given, str) or not isinstance(given, Collection):
        hint = f'write ["{given}"]' if isinstance(given, str) else 'write ["accuracy"]'
        yield Problem(where, f"{shorten_text(str(given))} is not a list of metrics", hint)
        return
    seen: list[Any] = []
    for name in given:
        if not isinstance(name, str) or not _OUTPUT.fullmatch(name):
            yield Problem(where, f"{name!r} is not the name of an output", "use letters, digits, - and _")
        elif name in contract.OUTPUTS:
            yield Problem(where, f"every step already has an output {name}", "give the metric another name")
        elif name in seen:
            yield Problem(where, f"{name} is in it twice", "leave one out")
        seen.append(name)
    for name, metric in given.items() if isinstance(given, Mapping) else ():
        if not isinstance(metric, str) or not metric or "." in _PLACE.sub("", metric):
            yield Problem(where, f"{metric!r} (of {name}) is not the name of a metric", 'write {"best": "accuracy"}')


# Merges

_REFERENCE: Final = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_STAND_IN: Final = 9_100_000_000_000_000  # a number that no patch contains; it works with and without quotes
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
    """Both lists. A parameter or artifact of the author replaces that of the step with the same name."""
    theirs = [one for value in as_list(given) for one in as_parameters(value)]
    taken = {_key(one) for one in theirs}
    return [*(one for one in own if _key(one) not in taken), *theirs]


def as_parameters(value: Any) -> list[Any]:
    """Hera's ``{name: default}`` as parameters."""
    return [Parameter(name=name, value=one) for name, one in value.items()] if isinstance(value, dict) else [value]


def _key(one: Any) -> tuple[bool, str | None]:
    return isinstance(one, Artifact | m.Artifact), one.name


def merged_patch(own: dict[str, Any], given: PodPatch) -> str:
    """The patch of the pod. Values of the author replace those of the step. ``{{…}}`` is kept. Raises InvalidJob."""
    theirs, references = _parsed(given)
    result = json.dumps({**own, **theirs})
    for number, one in references.items():
        result = result.replace(str(number), one)
    return result


def patched_value(given: PodPatch, field: str) -> Any:
    """The author's value of a field; None for none. A reference is returned as its text. Raises InvalidJob."""
    theirs, references = _parsed(given)
    value = theirs.get(field)
    return references.get(value, value) if isinstance(value, int) else value


def _parsed(given: PodPatch) -> tuple[dict[str, Any], dict[int, str]]:
    """The patch as data, and the references by the stand-in numbers that replace them."""
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
