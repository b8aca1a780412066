"""Findings about jobs and prefixed log lines, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from tf_dist.cli import output
from tf_dist.client.job_display import prefix_width
from tf_dist.client.job_files import JobFiles, problem_text, require_valid
from tf_dist.client.stored_jobs import leader_problems
from tf_dist.core.diagnostics.diagnose import Diagnosis
from tf_dist.core.diagnostics.display_text import visible_text
from tf_dist.core.model.assignment import possible_replicas
from tf_dist.core.model.job import Job

if TYPE_CHECKING:
    from tf_dist.client.client import Client
    from tf_dist.client.stored_jobs import StoredJob

_STYLES: Final = {"error": "red bold", "warning": "yellow bold", "info": "cyan"}


def show_findings(found: Iterable[Diagnosis], write: Callable[[str], None] = output.line) -> None:
    """Write each finding with its evidence and its resolution."""
    for one in found:
        write(f"{output.styled(one.level.value, _STYLES[one.level.value])}: {visible_text(one.summary)}")
        for text in one.detail.splitlines():
            write(f"    {visible_text(text)}")
        if one.resolution:
            write(f"  {output.styled('what to do:', 'bold')} {one.resolution}")


def show_leaders(client: Client, jobs: Sequence[StoredJob], *, wanted: bool) -> None:
    """Warn about jobs without a leader. With ``wanted``, also print the leaders of the other jobs."""
    for one in client.leaders(jobs) if wanted else ():
        if one.holder:
            output.note(str(one))
    for problem in leader_problems(client.cluster, jobs):
        output.warning(problem.summary, problem.resolution)


def require_valid_files(bundle: JobFiles) -> JobFiles:
    """Print the warnings of a bundle, and return the bundle. Raises InvalidFiles if it is invalid."""
    for found in require_valid(bundle).problems:
        output.warning(problem_text(found), found.problem.hint)
    return bundle


_COLOURS: Final = ("cyan", "green", "magenta", "yellow", "blue")


class LinePrefixes:
    """``worker-0 | `` for every source of a job, padded to the same width."""

    def __init__(self, job: Job) -> None:
        replicas = [str(replica) for replica in possible_replicas(job)]
        self._width = prefix_width(job)
        self._colours = {replica: _COLOURS[number % len(_COLOURS)] for number, replica in enumerate(replicas)}

    def colour(self, source: str) -> str:
        """The colour of a source. Containers have the colour of their replica."""
        return self._colours.get(source.partition("/")[0], "")

    def plain(self, source: str) -> str:
        """The prefix without its colour."""
        return f"{source:<{self._width}} |"

    def line(self, source: str, text: str) -> str:
        """The whole line."""
        return f"{output.styled(self.plain(source), self.colour(source))} {visible_text(text)}"

    def lines(self, entries: Iterable[tuple[str, str]]) -> str:
        """Several lines."""
        return "\n".join(self.line(source, text) for source, text in entries)
