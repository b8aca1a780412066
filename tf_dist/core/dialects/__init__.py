"""The document formats: TFJob v1, TFJob v1alpha1 and Volcano Job. All are parsed into the same type of job.

``parse`` is for files: it is strict, reports all problems at once, and warns about probable mistakes. ``read`` is for
objects of a cluster: it is fast, and tolerates unknown fields. For a document that both accept, both return the same
:class:`~tf_dist.core.model.job.Job`.
"""

from __future__ import annotations

from tf_dist.core.dialects.conversion import Conversion, convert
from tf_dist.core.dialects.fallback import parse, policy_annotations, read
from tf_dist.core.dialects.parsing import Parsed, as_written, defaulted, suspend_patch, update_problems
from tf_dist.core.dialects.registry import current, dialect_of
from tf_dist.core.dialects.step_overrides import StepOverrides, apply_step_overrides, scale_patch

__all__ = [
    "Conversion",
    "Parsed",
    "StepOverrides",
    "apply_step_overrides",
    "as_written",
    "convert",
    "current",
    "defaulted",
    "dialect_of",
    "parse",
    "policy_annotations",
    "read",
    "scale_patch",
    "suspend_patch",
    "update_problems",
]
