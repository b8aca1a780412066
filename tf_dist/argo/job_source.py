"""Sources of a step's job (a file, data, Python, or the workflow), and its inputs."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeGuard

from hera.workflows import Parameter

from tf_dist.argo.arguments import is_lone_reference, is_reference, reference_of, refuse_references
from tf_dist.client.job_files import JobFiles, load_job_files, problem_text, require_valid, without_server_fields
from tf_dist.client.tfjob import TFJob, job_name
from tf_dist.client.yaml_files import read_yaml_text, to_yaml
from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import FieldPath, list_items, mapping
from tf_dist.core.model.overrides import Override, shorten_text
from tf_dist.core.pipeline.inputs import InputType, JobInput
from tf_dist.errors import InvalidJob, Problem

_TYPES: Final[Mapping[type, InputType]] = {
    str: InputType.STRING,
    int: InputType.INTEGER,
    float: InputType.NUMBER,
    bool: InputType.BOOLEAN,
}


@dataclass(frozen=True, slots=True)
class Input:
    """An input parameter of the step that sets one field of the job: ``Input("steps", int, minimum=1)``.

    The launcher checks the value. If the value is invalid, the launcher submits nothing and ends with exit code 2. An
    empty value does not change the job.
    """

    name: str
    """The name of the parameter."""
    type: type = str
    """``str``, ``int``, ``float`` or ``bool``."""
    _: KW_ONLY
    default: str | float | bool | None = None
    """The default; None: each use of the step must give the value."""
    minimum: float | None = None
    """The smallest allowed number."""
    maximum: float | None = None
    """The largest allowed number."""
    pattern: str = ""
    """A regular expression that the whole text must match."""
    enum: Sequence[str | float] = ()
    """The allowed values; empty: any value."""
    text: str = ""
    """A text in which the value replaces ``{}``: ``--steps={}``."""

    def parameter(self) -> Parameter:
        """The input parameter of the step."""
        if self.default is None:
            return Parameter(name=self.name)
        return Parameter(name=self.name, default=self.default)

    @property
    def usual(self) -> str:
        """The default as text; "" for none, or if the workflow provides it."""
        if self.default is None or (isinstance(self.default, str) and "{{" in self.default):
            return ""
        return json.dumps(self.default) if isinstance(self.default, bool) else str(self.default)

    def at(self, path: str) -> JobInput:
        """The declaration for a field of the job."""
        return JobInput(
            name=self.name,
            path=path,
            type=_TYPES.get(self.type, InputType.STRING),
            minimum=self.minimum,
            maximum=self.maximum,
            pattern=self.pattern,
            enum=tuple(self.enum),
            text=self.text,
        )

    def problems(self, path: str) -> Iterator[Problem]:
        """The problems of the declaration."""
        if self.type not in _TYPES:
            known = ", ".join(one.__name__ for one in _TYPES)
            yield Problem(f"input {self.name}", f"{self.type!r} is not one of {known}")
        yield from self.at(path).problems()


@dataclass(frozen=True, slots=True)
class FilledIn:
    """A value that the workflow fills in."""

    declared: JobInput
    """Its field of the job, and its type."""
    source: str
    """The reference to the value."""
    usual: str = ""
    """The default of the value; "" for none, or if the workflow provides it."""
    parameter: Parameter | None = None
    """The input parameter that the step needs for it."""

    @classmethod
    def of_input(cls, one: Input, path: str) -> FilledIn:
        """The value of an ``Input``."""
        return cls(one.at(path), f"{{{{inputs.parameters.{one.name}}}}}", one.usual, one.parameter())


_SAMPLES: Final = ((InputType.STRING, "1"), (InputType.INTEGER, 1), (InputType.NUMBER, 0.5), (InputType.BOOLEAN, True))
_ONE: Final = re.compile(r"([^{}]*)(\{\{=?[^{}]+\}\})([^{}]*)")
_LAST_WORD: Final = re.compile(r"([-\w]+)\s*\}\}$")


def filled_reference(path: str, value: Any, fits: Callable[[Any], bool]) -> FilledIn | None:
    """The value of an override that is a parameter, or a text with one ``{{…}}``; None for any other override.

    The type of the value is the first type whose sample ``fits`` the job. Inside other text, the value is a string.
    """
    value = reference_of(value)
    parameter = value if isinstance(value, Parameter) else None
    if parameter is not None:
        value = f"{{{{inputs.parameters.{parameter.name}}}}}"
    if not isinstance(value, str) or (found := _ONE.fullmatch(value)) is None:
        return None
    before, reference, after = found.groups()
    word = _LAST_WORD.search(reference)
    alone = not (before or after)
    type_ = next((one for one, sample in _SAMPLES if fits(sample)), InputType.STRING) if alone else InputType.STRING
    text = "" if alone else f"{before}{{}}{after}"
    usual = "" if parameter is None or parameter.default is None else str(parameter.default)
    declared = JobInput(name=word[1] if word else "value", path=path, type=type_, text=text)
    return FilledIn(declared, reference, "" if is_reference(usual) else usual, parameter)


JobSource = str | os.PathLike[str] | Mapping[str, Any] | TFJob | Parameter
"""A path, a document or its text, a ``TFJob``; or a parameter, or one ``{{…}}``, with a whole document."""


def is_document(job: JobSource) -> bool:
    """Whether the document is known here. Otherwise, the workflow provides it."""
    return not (isinstance(job, Parameter) or is_lone_reference(job))


def named_job(job: JobSource, step: str | None) -> JobSource:
    """The job. A ``TFJob`` without a name gets the name of its step."""
    return job.replace(name=job_name(step)) if isinstance(job, TFJob) and not job.name and step else job


def job_documents(job: JobSource, overrides: Sequence[Override] = (), *, way: str) -> list[dict[str, Any]]:
    """The job and its companion objects. Raises InvalidJob with all problems. Warnings are UserWarnings.

    ``{{…}}`` in a document is a problem, because its value would be parsed as YAML. ``way``: the hint for this problem.
    """
    text = _text(job)
    refuse_references("the job", text, way)
    for problem in require_valid(_loaded(job, text, overrides)).problems:
        warnings.warn(f"{problem_text(problem)} {problem.problem.hint}".rstrip(), stacklevel=2)
    documents, _ = read_yaml_text("the job", text)
    return [dict(without_server_fields(one.content)) for one in documents]


def fits(job: JobSource, override: Override) -> bool:
    """Whether the document is valid with the override. True if the workflow provides the document."""
    return not is_document(job) or not _loaded(job, _text(job), [override]).errors


def check_readable(job: JobSource) -> None:
    """Raise InvalidJob if the document cannot be read."""
    if is_document(job):
        _text(job)


def has_fallbacks(job: JobSource) -> bool:
    """Whether the document has fallbacks. True if the workflow provides the document."""
    if not is_document(job):
        return True
    documents = (entry.document for entry in _loaded(job, _text(job), ()).jobs)
    return any(names.FALLBACK in mapping(mapping(one.get("metadata")).get("annotations")) for one in documents)


def code_folder_of(job: JobSource) -> str:
    """The folder that the document sends with the job; "" for none, or if the workflow provides the document."""
    if not is_document(job):
        return ""
    text, beside = _text(job), Path(job).parent if _is_file(job) else Path()
    for entry in _loaded(job, text, ()).jobs:
        named = mapping(mapping(entry.document.get("metadata")).get("annotations")).get(names.CODE)
        if named:
            return str(beside / os.path.expanduser(str(named)))
    return ""


def is_script(job: JobSource, path: FieldPath) -> bool:
    """Whether a shell parses the value at this path of the document, because it is the word after ``-c``."""
    field, index = path[-2:] if len(path) > 1 else ("", "")
    if not is_document(job) or field not in ("command", "args") or not isinstance(index, int):
        return False
    for entry in _loaded(job, _text(job), ()).jobs:
        container = mapping(reduce(_part, path[:-2], entry.document))
        before = [] if field == "command" else [*list_items(container.get("command"))]
        words = [*before, *list_items(container.get(str(field)))]
        here = len(before) + index
        if 0 < here <= len(words) and re.fullmatch(r"-\w*c", str(words[here - 1])):
            return True
    return False


def _part(value: Any, key: str | int) -> Any:
    if isinstance(key, int):
        return list_items(value)[key] if key < len(list_items(value)) else None
    return mapping(value).get(key)


def _loaded(job: JobSource, text: str, overrides: Sequence[Override]) -> JobFiles:
    name = os.fspath(job) if _is_file(job) else "the job"
    return load_job_files([name], overrides, texts={name: text})


def _is_file(job: JobSource) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(job, str | os.PathLike) and "\n" not in os.fspath(job)


def _text(job: JobSource) -> str:
    if isinstance(job, TFJob):
        return job.to_yaml()
    if isinstance(job, Mapping):
        return to_yaml(dict(job))
    if isinstance(job, Parameter):
        raise TypeError("a parameter has no text before the workflow runs")
    if is_reference(job) or (isinstance(job, str) and "\n" in job):
        return str(job)
    what = "the path of a file, a document, or a TFJob"
    way = f"give {what}"
    if not isinstance(job, str | os.PathLike):
        raise InvalidJob([Problem("job", f"must be {what}, not {type(job).__name__}", 'write job="digits.yaml"')])
    if not os.fspath(job):
        raise InvalidJob([Problem("job", "is empty", way)])
    try:
        return Path(job).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidJob([Problem("job", f"cannot read the file {shorten_text(str(job))}: {reason}", way)]) from None
