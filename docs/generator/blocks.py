"""The blocks of reference pages. In a page they are between ``<!-- generate: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from docs.generator import cluster, command_line, jobs, pipelines, python_api

DOCS = Path(__file__).parents[1]
BLOCKS: Mapping[str, Callable[[], str]] = {
    "commands": command_line.page,
    "airflow": pipelines.airflow,
    "argo": pipelines.argo,
    "python": python_api.page,
    "annotations": jobs.annotations,
    "reasons": jobs.reasons,
    "outcomes": jobs.outcomes,
    "exit-codes": jobs.exit_codes,
    "errors": jobs.error_classes,
    "metrics": cluster.metrics,
    "roles": cluster.roles,
}
MARK = re.compile(r"^<!-- generate: ([\w-]+) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


def filled(markdown: str) -> str:
    """The text of a page with its blocks made anew. KeyError for an unknown block."""
    return MARK.sub(lambda mark: f"<!-- generate: {mark[1]} -->\n\n{BLOCKS[mark[1]]()}\n\n<!-- end -->", markdown)


def pages() -> Iterator[Path]:
    """The pages that have a block."""
    return (path for path in sorted(DOCS.rglob("*.md")) if "<!-- generate: " in path.read_text())
