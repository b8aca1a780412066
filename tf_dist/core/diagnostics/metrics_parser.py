"""Parser of the metrics in replicas' log lines, as Katib's stdout collector reads them.

``name=value`` with a float is read as Katib's stdout collector reads it, so that a job made for the one works with the
other. Two things are better than there: ``nan`` and ``inf`` count as numbers (a loss that diverged is news), and text
that only begins like a number (``10.0.0.1``, ``3s``) is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

_NUMBER: Final = r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|NaN|inf)"
_METRIC: Final = re.compile(rf"(?<![\w|.-])([A-Za-z_][\w|-]*)[ \t]*=[ \t]*({_NUMBER})(?![\w:]|\.\w)")
_CHECKPOINT: Final = re.compile(r"(?<![\w|.-])checkpoint[ \t]*=[ \t]*(?:\"([^\"]+)\"|'([^']+)'|([^\s,;'\"]+))")
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
RESULT_MARK: Final = "tf-dist-result: "
"""A line that begins so has the value of a ``@task.tfjob`` function, as JSON."""
_LONGEST: Final = 4096  # a metrics line is short; a longer one is data


@dataclass(frozen=True, slots=True)
class Progress:
    """The latest value of every metric of a replica, the last checkpoint it named, and its result (JSON)."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    checkpoint: str = ""
    result: str = ""

    def after(self, line: str) -> Self:
        """The progress after ``line``; the same object if the line has no metrics."""
        if line.startswith(RESULT_MARK):
            return replace(self, result=line.removeprefix(RESULT_MARK).strip())
        if "=" not in line:
            return self
        plain = _ESCAPE.sub("", line[:_LONGEST])
        metrics = {name: float(value) for name, value in _METRIC.findall(plain) if name != "checkpoint"}
        found = [next(filter(None, groups)) for groups in _CHECKPOINT.findall(plain)]
        checkpoints = [path for path in found if path != "None"]
        if not metrics and not checkpoints:
            return self
        checkpoint = checkpoints[-1] if checkpoints else self.checkpoint
        return replace(self, metrics={**self.metrics, **metrics}, checkpoint=checkpoint)


def combine_progress(parts: Iterable[Progress]) -> Progress:
    """Merge progress: every metric from the first part that has it, so put the leader first."""
    metrics: dict[str, float] = {}
    checkpoint = result = ""
    for part in parts:
        metrics = {**part.metrics, **metrics}
        checkpoint, result = checkpoint or part.checkpoint, result or part.result
    return Progress(metrics, checkpoint, result)
