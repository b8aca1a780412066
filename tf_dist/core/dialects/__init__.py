"""Three document formats, one job: TFJob v1, TFJob v1alpha1 and Volcano Job.

``parse`` is for files: strict, all problems at once, warnings for what most likely was not meant. ``read`` is for
objects of a cluster: tolerant of what it does not know, and fast. Both give the same
:class:`~tf_dist.core.model.job.Job` for a document that both accept.
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
