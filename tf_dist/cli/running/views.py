"""How a run is shown: a table that lives below the log lines on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tf_dist.cli import output
from tf_dist.cli.commands.get import STYLES
from tf_dist.cli.lines import Prefixes
from tf_dist.cli.texts import duration, number
from tf_dist.client.following import LogLine
from tf_dist.client.onlooking import View
from tf_dist.client.scene import NOTHING, Scene
from tf_dist.client.telling import changes, visible
from tf_dist.core.model import Job

if TYPE_CHECKING:
    from rich.table import Table

_TF_DIST: Final = "tf-dist"
_REFRESH: Final = 0.25
_SPOKEN: Final = ("step", "loss", "accuracy")


def view_of(job: Job, *, data_wanted: bool) -> View:
    """The view for where the output goes; beside data it goes to standard error."""
    stream = sys.stderr if data_wanted else sys.stdout
    if output.rich_wanted(stream):
        return LiveView(job, error=data_wanted)
    return PlainView(job, output.note if data_wanted else output.line)


class PlainView:
    """Lines: those of the replicas, and one for each change of state."""

    tick: float | None = None

    def __init__(self, job: Job, write: Callable[[str], None]) -> None:
        self._prefixes = Prefixes(job)
        self._write = write
        self._shown: dict[str, str] = {}

    def show(self, scene: Scene, lines: list[LogLine]) -> None:
        """Write what is new."""
        if lines:
            self._write(self._prefixes.lines((line.source, line.text) for line in lines))
        for text in changes(scene, self._shown):
            self.say(text)
        output.flush()

    def say(self, text: str, style: str = "") -> None:
        """A line with our own name before it."""
        self._write(self._prefixes.line(_TF_DIST, text))
        output.flush()

    def close(self) -> None:
        """Nothing to take away."""


class LiveView:
    """A table that is drawn anew below the log lines."""

    tick: float | None = _REFRESH

    def __init__(self, job: Job, *, error: bool) -> None:
        from rich.live import Live

        self._prefixes = Prefixes(job)
        self._console = output.console(error=error)
        self._started = time.monotonic()
        self._drawn = 0.0
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._live.start()

    def show(self, scene: Scene, lines: list[LogLine]) -> None:
        """Print lines above the table, and draw the table again if it is time."""
        if lines:
            self._console.print(self._text(lines))
        now = time.monotonic()
        if now - self._drawn >= _REFRESH or lines:
            self._drawn = now
            self._live.update(self._table(scene, now), refresh=True)

    def say(self, text: str, style: str = "") -> None:
        """A line above the table."""
        from rich.text import Text

        self._console.print(Text(text, style=style or "bold"))

    def close(self) -> None:
        """Take the table away."""
        self._live.stop()

    def _text(self, lines: list[LogLine]) -> Any:
        from rich.text import Text

        text = Text()
        for count, line in enumerate(lines):
            prefix = self._prefixes.plain(line.source)
            text.append(("\n" if count else "") + prefix, style=self._prefixes.colour(line.source))
            text.append_text(Text.from_ansi(f" {visible(line.text)}"))
        return text

    def _table(self, scene: Scene, now: float) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        title = f"{scene.job.key.name}: {scene.state}, {duration(now - self._started)}"
        metrics = _metrics(scene)
        table = Table(
            title=title, box=SIMPLE_HEAD, title_justify="left", caption=_caption(scene), caption_justify="left"
        )
        for name in ("replica", "state", "node", "restarts", *metrics, "last line"):
            table.add_column(name, justify="right" if name in (*metrics, "restarts", "last line") else "left")
        for row in scene.replicas:
            progress = scene.progress.get(row.replica, NOTHING)
            heard = scene.heard.get(row.replica)
            table.add_row(
                f"[{self._prefixes.colour(str(row.replica))}]{row.replica}[/]",
                f"[{STYLES.get(row.state, 'default')}]{row.state}[/]",
                row.node,
                str(row.restarts or ""),
                *(number(progress.metrics.get(name)) for name in metrics),
                "" if heard is None else f"{int(now - heard)}s ago",
            )
        return table


def _metrics(scene: Scene) -> tuple[str, ...]:
    """Step, loss and accuracy, and one more if the job speaks of others only."""
    spoken = {name for progress in scene.progress.values() for name in progress.metrics}
    known = tuple(name for name in _SPOKEN if name in spoken or name in ("step", "loss"))
    return known if spoken & set(_SPOKEN) or not spoken else (*known, min(spoken))


def _caption(scene: Scene) -> str | None:
    details = [f"{row.replica}: {row.detail}" for row in scene.replicas if row.detail and row.state != "Running"]
    status = scene.status
    waiting = [status.told] if (status.admission is None or status.stalled) and status.told else []
    return "\n".join([*waiting, *details]) or None
