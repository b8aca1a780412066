"""A workflow's run: its steps as they went, with what they handed over, and the log of the training.

Argo itself is not at hand where this runs: the steps are those of ``workflows/``, run by the tests' double of Argo.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from html import escape
from pathlib import Path

from docs.generator.pictures import keep
from docs.generator.pictures.svg import page
from tests.argo.demo import DIGITS
from tests.argo.rendered import documents
from tests.argo.runner import Node, Place, Runner, spec_of
from tests.argo.stage import stage

WORKFLOW = "digits-retrain.yaml"
_STEPS = ("prepare", "train", "evaluate", "promote", "onExit")
_SHOWN = ("samples", "status", "step", "accuracy", "better", "restarts", "gpu-seconds", "duration")
_COLOURS = {"Succeeded": "#2e9e6b", "Skipped": "#9aa5b1", "Failed": "#d14343"}
_LINES = 9


def workflow() -> None:
    """Keep ``argo.svg``."""
    known = documents()
    library = {one["metadata"]["name"]: one for one in known.values() if "name" in one["metadata"]}
    scratch = Path(tempfile.mkdtemp(prefix="td-"))
    said: list[tuple[float, str]] = []
    try:
        with stage(scratch, str(scratch), workdir=DIGITS) as made:

            def say(line: object) -> None:
                said.append((time.monotonic(), str(line)))

            mounts = {"/models": scratch / "models"}
            place = Place(made.cluster, made.kubeconfig(), scratch / "pods", mounts, DIGITS, say)
            run = Runner(place, spec_of(known[WORKFLOW], library))
            began = time.monotonic()
            run.run()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if run.phase != "Succeeded":
        raise RuntimeError("\n".join(line for _, line in said[-30:]))
    keep("argo.svg", _drawn(run, said, began, str(scratch)))


def _drawn(run: Runner, said: list[tuple[float, str]], began: float, scratch: str) -> str:
    parts = []
    for number, step in enumerate(_STEPS):
        name = f"{run.name}.{step}"
        ends = [at for at, line in said if line.startswith(f"{name}: ")]
        starts = (
            [at for at, line in said if line.startswith(f"{run.name}.{_STEPS[number - 1]}: ")] if number else [began]
        )
        parts.append(_box(number, step, run.nodes[name], ends[-1] - starts[-1]))
    log = [line.partition(": ")[2] for _, line in said if line.startswith(f"{run.name}.train: ")]
    shown = [line.replace(scratch, "") for line in log[:-1]][-_LINES:]
    top = 176
    parts.append(f'<rect x="14" y="{top}" width="772" height="{22 + 16 * len(shown)}" rx="4" fill="#1e2430"/>')
    for number, line in enumerate(shown):
        text = escape(re.sub(r"\s+", " ", line)[:112])
        parts.append(
            f'<text x="24" y="{top + 20 + 16 * number}" fill="#dbe2ee" font-size="11" '
            f'font-family="ui-monospace, Menlo, Consolas, monospace">{text}</text>'
        )
    return page(top + 34 + 16 * len(shown), f"Workflow {run.name}: {run.phase}", "".join(parts))


def _box(number: int, step: str, node: Node, seconds: float) -> str:
    x, y = 14 + 157 * number, 40
    told = [f"{key}={node.outputs[key]}" for key in _SHOWN if isinstance(node.outputs, dict) and node.outputs.get(key)]
    title = "exit handler" if step == "onExit" else step
    found = [
        f'<rect x="{x}" y="{y}" width="144" height="120" rx="5" fill="#f4f6f9" stroke="{_COLOURS[node.phase]}"/>',
        f'<circle cx="{x + 14}" cy="{y + 16}" r="6" fill="{_COLOURS[node.phase]}"/>',
        f'<text x="{x + 26}" y="{y + 20}" font-weight="600">{title}</text>',
        f'<text x="{x + 10}" y="{y + 40}" fill="#555">{node.phase}, {seconds:.0f} s</text>',
    ]
    found += [
        f'<text x="{x + 10}" y="{y + 58 + 15 * row}" font-size="11">{escape(text[:24])}</text>'
        for row, text in enumerate(told[:4])
    ]
    if number:
        dash = ' stroke-dasharray="3 3"' if step == "onExit" else ""
        found.append(f'<path d="M{x - 13} {y + 60}H{x}" stroke="#777" stroke-width="1.5"{dash}/>')
    return "".join(found)
