"""Log lines as they are shown: prefixed with their replica, each replica in its colour."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tf_dist.cli import output
from tf_dist.client.telling import prefix_width, visible
from tf_dist.core.model import Job
from tf_dist.core.sizes import largest

_COLOURS: Final = ("cyan", "green", "magenta", "yellow", "blue")


class Prefixes:
    """``worker-0 | `` for every source of a job, of one width."""

    def __init__(self, job: Job) -> None:
        replicas = [str(replica) for replica in largest(job).replicas]
        self._width = prefix_width(job)
        self._colours = {replica: _COLOURS[number % len(_COLOURS)] for number, replica in enumerate(replicas)}

    def colour(self, source: str) -> str:
        """The colour of a source; containers have that of their replica."""
        return self._colours.get(source.partition("/")[0], "")

    def plain(self, source: str) -> str:
        """The prefix without its colour."""
        return f"{source:<{self._width}} |"

    def line(self, source: str, text: str) -> str:
        """The whole line."""
        return f"{output.painted(self.plain(source), self.colour(source))} {visible(text)}"

    def lines(self, entries: Iterable[tuple[str, str]]) -> str:
        """Several lines."""
        return "\n".join(self.line(source, text) for source, text in entries)
