"""Output of ``tf-dist run``: a live table or plain lines while the job runs, and the summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from tf_dist.cli import output
from tf_dist.cli.findings import LinePrefixes, show_findings
from tf_dist.cli.output import STATE_STYLES
from tf_dist.client import exit_codes
from tf_dist.client.job_display import LineView
from tf_dist.client.log_follower import LogLines
from tf_dist.client.monitor import NO_PROGRESS, JobSnapshot, JobView
from tf_dist.client.run_session import Result
from tf_dist.core.diagnostics.display_text import format_duration, format_number, usage_text, visible_text
from tf_dist.core.diagnostics.metrics_parser import Progress
from tf_dist.core.diagnostics.outcome import storable
from tf_dist.core.model.job import Job
from tf_dist.core.model.pods import disruption_counts

if TYPE_CHECKING:
    from rich.table import Table


_TF_DIST: Final = "tf-dist"
_REFRESH: Final = 0.25
_SPOKEN: Final = ("epoch", "step", "loss", "accuracy")


def view_of(job: Job, *, data_wanted: bool) -> JobView:
    """The view that suits the output. If the command prints data, the view uses standard error."""
    stream = sys.stderr if data_wanted else sys.stdout
    if output.rich_wanted(stream):
        return LiveView(job, error=data_wanted)
    write = output.note if data_wanted else _write
    return LineView(write, LinePrefixes(job).line)


def _write(text: str) -> None:
    output.line(text)
    output.flush()


class LiveView:
    """A table that is redrawn below the log lines."""

    tick: float | None = _REFRESH

    def __init__(self, job: Job, *, error: bool) -> None:
        from rich.live import Live

        self._prefixes = LinePrefixes(job)
        self._console = output.console(error=error)
        self._started = time.monotonic()
        self._drawn = 0.0
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._live.start()

    def show(self, snapshot: JobSnapshot, lines: list[LogLines]) -> None:
        """Print lines above the table, and redraw the table if it is due."""
        if lines:
            self._console.print(self._text(lines))
        now = time.monotonic()
        if now - self._drawn >= _REFRESH or lines:
            self._drawn = now
            self._live.update(self._table(snapshot, now), refresh=True)

    def say(self, text: str, style: str = "") -> None:
        """Print a line above the table."""
        from rich.text import Text

        shown = "\n".join(map(visible_text, text.splitlines()))
        self._console.print(Text(shown, style=style or "bold"))

    def close(self) -> None:
        """Remove the table."""
        self._live.stop()

    def _text(self, lines: list[LogLines]) -> Any:
        from rich.text import Text

        text = Text()
        for line in chain.from_iterable(some.each() for some in lines):
            prefix = self._prefixes.plain(line.source)
            text.append(("\n" if text else "") + prefix, style=self._prefixes.colour(line.source))
            text.append_text(Text.from_ansi(f" {visible_text(line.text)}"))
        return text

    def _table(self, snapshot: JobSnapshot, now: float) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        state, ending = snapshot.state, snapshot.ending
        if ending is not None:
            state = f"Stopping ({max(0, round(ending.stops_at - now))} s, Ctrl-C again to {ending.again})"
        title = f"{snapshot.job.key.name}: {state}, {format_duration(now - self._started)}"
        metrics = _metrics(snapshot)
        table = Table(
            title=title, box=SIMPLE_HEAD, title_justify="left", caption=_caption(snapshot), caption_justify="left"
        )
        for name in ("replica", "state", "node", "restarts", *metrics, "last line"):
            table.add_column(name, justify="right" if name in (*metrics, "restarts", "last line") else "left")
        for row in snapshot.replicas:
            progress = snapshot.progress.get(row.replica, NO_PROGRESS)
            last_line_at = snapshot.last_line_at.get(row.replica)
            table.add_row(
                f"[{self._prefixes.colour(str(row.replica))}]{row.replica}[/]",
                f"[{STATE_STYLES.get(row.state, 'default')}]{row.state}[/]",
                row.node,
                str(row.restarts or ""),
                *(_metric(progress, name) for name in metrics),
                "" if last_line_at is None else f"{int(now - last_line_at)}s ago",
            )
        return table


def _metric(progress: Progress, name: str) -> str:
    text = format_number(progress.metrics.get(name))
    return f"{text}/{progress.keras.epochs}" if name == "epoch" and progress.keras and progress.keras.epochs else text


def _metrics(snapshot: JobSnapshot) -> tuple[str, ...]:
    """The metrics to show: epoch, step, loss and accuracy. If the job reports only others, also one of these."""
    spoken = {name for progress in snapshot.progress.values() for name in progress.metrics}
    known = tuple(name for name in _SPOKEN if name in spoken or name in ("step", "loss"))
    return known if spoken & set(_SPOKEN) or not spoken else (*known, min(spoken))


def _caption(snapshot: JobSnapshot) -> str | None:
    from rich.markup import escape

    details = [f"{row.replica}: {row.detail}" for row in snapshot.replicas if row.detail and row.state != "Running"]
    status = snapshot.status
    message = status.display_message
    waiting = [message] if (not status.admission_holds or status.stalled) and message else []
    lines = "\n".join([*waiting, *details]).splitlines()
    return escape("\n".join(map(visible_text, lines))) or None


def show_summary(result: Result, kept: str) -> None:
    """The summary for people. ``kept``: the location of kept files, if any."""
    snapshot, code = result.snapshot, exit_codes.exit_code_of_end(result.end)
    style = "green bold" if code == exit_codes.SUCCEEDED else "red bold"
    output.line()
    output.line(f"{output.styled(snapshot.job.key.name, 'bold')}: {output.styled(result.state, style)}")
    progress = snapshot.result
    metrics = sorted(progress.metrics.items(), key=lambda item: (item[0] != "accuracy", item[0]))
    facts = [
        *((name, format_number(value)) for name, value in metrics),
        ("checkpoint", progress.checkpoint),
        ("duration", format_duration(result.seconds)),
        ("restarts", _restarts(result.restarts)),
        ("disruptions", disruption_counts(snapshot.status.disruptions)),
        ("usage", usage_text(snapshot.status.usage)),
        ("kept in", kept),
    ]
    width = max(12, *(len(name) + 1 for name, value in facts if value))
    for name, value in facts:
        if value:
            output.line(f"  {name + ':':<{width}} {value}")
    show_findings(result.findings)


def _restarts(causes: Mapping[str, int]) -> str:
    total = sum(causes.values())
    return f"{total} ({', '.join(f'{count} × {cause}' for cause, count in causes.items())})" if total else "0"


def run_report(result: Result, kept: str) -> dict[str, Any]:
    """The summary for programs, without ``nan`` and ``inf``, which JSON does not have."""
    snapshot, progress = result.snapshot, result.snapshot.result
    replicas = [
        {"name": str(row.replica), "state": row.state, "restarts": row.restarts}
        | {"metrics": dict(snapshot.progress[row.replica].metrics) if row.replica in snapshot.progress else {}}
        for row in snapshot.replicas
    ]
    report = {
        "name": snapshot.job.key.name,
        "namespace": snapshot.job.key.namespace,
        "end": result.end.cause.value,
        "state": result.state,
        "outcome": result.outcome.document(),
        "reason": snapshot.status.reason,
        "message": snapshot.status.message,
        "exitCode": exit_codes.exit_code_of_end(result.end),
        "seconds": round(result.seconds, 3),
        "metrics": dict(progress.metrics),
        "checkpoint": progress.checkpoint,
        "restarts": dict(result.restarts),
        "disruptions": dict(snapshot.status.disruptions),
        "replicas": replicas,
        "findings": [asdict(one) for one in result.findings],
        "kept": kept or None,
    }
    return dict(storable(report))
