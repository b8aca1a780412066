"""``tf-dist run`` as a terminal shows it: one moment of a real training."""

from __future__ import annotations

import io
import re
import sys
from collections import deque
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.text import Text

from docs.generator.pictures import ROOT, keep
from tf_dist.cli import main, output, run_output
from tf_dist.client.log_follower import LogLine
from tf_dist.client.monitor import JobSnapshot

COMMAND = "tf-dist run examples/digits/tfjob.yaml"
_WIDTH = 96
_LINES = 12
_STEP = 2500  # the moment: all replicas run, and the loss has fallen


def run() -> None:
    """Train the digits of ``examples``; keep what the terminal shows at one moment as ``run.svg``."""
    taken: list[str] = []

    class Camera(run_output.LiveView):
        """The live view, which keeps its frame of that moment."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.recent: deque[Text] = deque(maxlen=_LINES)

        def show(self, snapshot: JobSnapshot, lines: list[LogLine]) -> None:
            super().show(snapshot, lines)
            self.recent += [self._text([line]) for line in lines]
            steps = [progress.metrics.get("step", 0) for progress in snapshot.progress.values()]
            if not taken and max(steps, default=0) >= _STEP and len(self.recent) == _LINES:
                taken.append(_frame(self, snapshot))

    sys.argv = COMMAND.split()
    sys.argv[-1] = str(ROOT / sys.argv[-1])
    shown = Console(file=io.StringIO(), force_terminal=True, width=_WIDTH, highlight=False)
    with (
        patch.object(run_output, "LiveView", Camera),
        patch.object(output, "rich_wanted", lambda *_: True),
        patch.object(output, "console", lambda **_: shown),
    ):
        try:
            main.main()
        except SystemExit as ended:
            if ended.code:
                raise
    keep("run.svg", taken[0])


def _frame(view: Any, snapshot: JobSnapshot) -> str:
    import time

    paper = Console(file=io.StringIO(), record=True, force_terminal=True, width=_WIDTH, highlight=False)
    paper.print(Text.assemble(("$ ", "dim"), COMMAND))
    for line in view.recent:
        paper.print(line)
    paper.print(view._table(snapshot, time.monotonic()))
    return plain_svg(paper.export_svg(title=COMMAND, unique_id="run"))


def plain_svg(svg: str) -> str:
    """Rich's picture without fonts from elsewhere."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace")
