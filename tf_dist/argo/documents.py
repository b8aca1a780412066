"""Where a step's job comes from: a file, plain data, Python, or the workflow itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hera.workflows import Parameter

from tf_dist.client.bundle import load, require
from tf_dist.client.tfjob import TFJob
from tf_dist.client.yaml_writing import to_yaml
from tf_dist.core.overrides import Override, shortened
from tf_dist.errors import InvalidJob, Problem

Job = str | os.PathLike[str] | Mapping[str, Any] | TFJob | Parameter
"""A file's name, a document or its text, a ``TFJob``; a parameter, or ``{{…}}`` alone, that is a whole document."""

_ALONE: Final = re.compile(r"\{\{[\w.-]+\}\}")
_PLACE: Final = re.compile(r"\{\{.*?(?:\}\}|$)")


def is_reference(value: object) -> bool:
    """Whether the workflow says what it is, and not whoever wrote it."""
    return isinstance(value, str) and "{{" in value


def is_document(job: Job) -> bool:
    """Whether the document is known here; else the workflow has it."""
    return not (isinstance(job, Parameter) or (isinstance(job, str) and _ALONE.fullmatch(job)))


def text_of(job: Job, overrides: Sequence[Override] = (), *, way: str) -> str:
    """The document as YAML. InvalidJob with every problem that it has with the ``overrides`` in place.

    ``{{…}}`` in it is one: what Argo puts there would be read as YAML, and could be anything. ``way``: what to do then.
    """
    text = _text(job)
    refuse_references("the job", text, way)
    name = os.fspath(job) if isinstance(job, str | os.PathLike) and "\n" not in os.fspath(job) else "the job"
    require(load([name], overrides, texts={name: text}))
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
                place, f"{shortened(found)[1:-1]} would be parsed together with the value that is filled in for it", way
            )


def _text(job: Job) -> str:
    if isinstance(job, TFJob):
        return to_yaml(job.document())
    if isinstance(job, Mapping):
        return to_yaml(dict(job))
    if isinstance(job, Parameter):
        raise TypeError("a parameter has no text before the workflow runs")
    if is_reference(job) or (isinstance(job, str) and "\n" in job):
        return str(job)
    return Path(job).read_text(encoding="utf-8")
