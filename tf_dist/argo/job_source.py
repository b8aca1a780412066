"""Source of a step's job: a file, data, Python, or the workflow; and the inputs that the workflow fills in."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final

from hera.workflows import Parameter

from tf_dist.client.job_files import load_job_files, require_valid
from tf_dist.client.tfjob import TFJob
from tf_dist.client.yaml_files import to_yaml
from tf_dist.core.api.overrides import Override, shorten_text
from tf_dist.core.steps.inputs import InputType, JobInput
from tf_dist.errors import InvalidJob, Problem

_TYPES: Final[Mapping[type, InputType]] = {
    str: InputType.STRING,
    int: InputType.INTEGER,
    float: InputType.NUMBER,
    bool: InputType.BOOLEAN,
}


@dataclass(frozen=True, slots=True)
class Input:
    """An input parameter of the step, whose value goes to one place of the job: ``Input("steps", int, minimum=1)``.

    ``type``: ``str``, ``int``, ``float`` or ``bool``. ``default``: without one each use of the step says it; an empty
    value leaves the job as it is. ``minimum``, ``maximum``, ``pattern``, ``enum``: what else the launcher demands; it
    ends with 2, and submits nothing, where a value is something else. ``text``: what stands around the value, which
    takes the place of ``{}``: ``--steps={}``.
    """

    name: str
    type: type = str
    _: KW_ONLY
    default: str | float | bool | None = None
    minimum: float | None = None
    maximum: float | None = None
    pattern: str = ""
    enum: Sequence[str | float] = ()
    text: str = ""

    def parameter(self) -> Parameter:
        """The step's input parameter."""
        if self.default is None:
            return Parameter(name=self.name)
        return Parameter(name=self.name, default=self.default)

    @property
    def usual(self) -> str:
        """The default as text; "" if there is none, or if it is known only in the workflow."""
        if self.default is None or (isinstance(self.default, str) and "{{" in self.default):
            return ""
        return json.dumps(self.default) if isinstance(self.default, bool) else str(self.default)

    def at(self, path: str) -> JobInput:
        """The declaration, for a place of the job."""
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
        """What is wrong with it."""
        if self.type not in _TYPES:
            known = ", ".join(one.__name__ for one in _TYPES)
            yield Problem(f"input {self.name}", f"{self.type!r} is none of {known}")
        yield from self.at(path).problems()


JobSource = str | os.PathLike[str] | Mapping[str, Any] | TFJob | Parameter
"""A file's name, a document or its text, a ``TFJob``; a parameter, or ``{{…}}`` alone, that is a whole document."""

_ALONE: Final = re.compile(r"\{\{[\w.-]+\}\}")
_PLACE: Final = re.compile(r"\{\{.*?(?:\}\}|$)")


def is_reference(value: object) -> bool:
    """Whether the workflow says what it is, and not its author."""
    return isinstance(value, str) and "{{" in value


def is_document(job: JobSource) -> bool:
    """Whether the document is known here; else the workflow has it."""
    return not (isinstance(job, Parameter) or (isinstance(job, str) and _ALONE.fullmatch(job)))


def document_text(job: JobSource, overrides: Sequence[Override] = (), *, way: str) -> str:
    """The document as YAML. InvalidJob with every problem that it has with the ``overrides`` in place.

    What does not keep the job from running, such as a key that nothing reads, is a UserWarning.

    ``{{…}}`` in it is one: what Argo puts there would be read as YAML, and could be anything. ``way``: what to do then.
    """
    text = _text(job)
    refuse_references("the job", text, way)
    name = os.fspath(job) if isinstance(job, str | os.PathLike) and "\n" not in os.fspath(job) else "the job"
    for problem in require_valid(load_job_files([name], overrides, texts={name: text})).problems:
        warnings.warn(str(problem), stacklevel=2)
    return text


def refuse_references(what: str, text: str, way: str) -> None:
    """InvalidJob where a text that is parsed later on has something that the workflow would fill in."""
    problems = list(_references(what, text, way))
    if problems:
        raise InvalidJob(problems)


def _references(what: str, text: str, way: str) -> Iterator[Problem]:
    for number, line in enumerate(text.split("\n"), start=1):
        for found in _PLACE.findall(line):
            place = f"{what}, line {number}" if "\n" in text else what
            yield Problem(
                place,
                f"{shorten_text(found)[1:-1]} would be parsed together with the value that is filled in for it",
                way,
            )


def _text(job: JobSource) -> str:
    if isinstance(job, TFJob):
        return job.to_yaml()
    if isinstance(job, Mapping):
        return to_yaml(dict(job))
    if isinstance(job, Parameter):
        raise TypeError("a parameter has no text before the workflow runs")
    if is_reference(job) or (isinstance(job, str) and "\n" in job):
        return str(job)
    return Path(job).read_text(encoding="utf-8")
