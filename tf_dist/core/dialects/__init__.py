"""Three document formats, one job: TFJob v1, TFJob v1alpha1 and Volcano Job.

``parse`` is for files: strict, all problems at once, warnings for what most likely was not meant. ``read`` is for
objects of a cluster: tolerant of what it does not know, and fast. Both give the same
:class:`~tf_dist.core.model.Job` for a document that both accept.
"""

from __future__ import annotations

from tf_dist.core.dialects.convert import Converted, convert
from tf_dist.core.dialects.formats import dialect_of
from tf_dist.core.dialects.reading import Parsed, as_written, defaulted, parse, read, suspend_patch
from tf_dist.core.dialects.scaling import scale_patch
from tf_dist.core.dialects.tailoring import Tailoring, tailored

__all__ = [
    "Converted",
    "Parsed",
    "Tailoring",
    "as_written",
    "convert",
    "defaulted",
    "dialect_of",
    "parse",
    "read",
    "scale_patch",
    "suspend_patch",
    "tailored",
]
