"""Where a step's job comes from: a file, plain data, Python, or the workflow itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hera.workflows import Parameter

from tf_dist.client.bundle import load, require
from tf_dist.client.tfjob import TFJob
from tf_dist.client.yaml_writing import to_yaml

Job = str | os.PathLike[str] | Mapping[str, Any] | TFJob | Parameter
"""A file's name, a document, a ``TFJob``, a parameter, or a text with ``{{…}}`` that the workflow fills in."""


def is_reference(value: object) -> bool:
    """Whether the workflow says what it is, and not whoever wrote it."""
    return isinstance(value, str) and "{{" in value


def text_of(job: Job) -> str:
    """The document as YAML. InvalidFiles with every problem that it has, unless the workflow fills some of it in."""
    name = os.fspath(job) if isinstance(job, str | os.PathLike) else "the job"
    text = _text(job)
    if "{{" not in text:
        require(load([name], texts={name: text}))
    return text


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
