"""The blocks that pages may name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from docs.generator import cluster, command_line, jobs, pipelines

BLOCKS: Mapping[str, Callable[[], str]] = {
    "commands": command_line.page,
    "airflow": pipelines.airflow,
    "argo": pipelines.argo,
    "annotations": jobs.annotations,
    "reasons": jobs.reasons,
    "outcomes": jobs.outcomes,
    "exit-codes": jobs.exit_codes,
    "errors": jobs.error_classes,
    "metrics": cluster.metrics,
    "roles": cluster.roles,
}
MARK = re.compile(r"^<!-- generate: ([\w-]+) -->$", re.MULTILINE)


def fill(markdown: str) -> str:
    """The text with each mark replaced by its block; KeyError for a block that there is not."""
    return MARK.sub(lambda mark: BLOCKS[mark[1]](), markdown)
