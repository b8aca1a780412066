"""How long the command line takes to say something, as whole processes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.jobs import tfjob
from benchmarks.measure import Figure, benchmark, median_seconds


def _tf_dist(*arguments: str) -> None:
    program = Path(sys.executable).with_name("tf-dist")
    subprocess.run([program, *arguments], check=True, stdout=subprocess.DEVNULL)


def _bare_python() -> float:
    return median_seconds(lambda: subprocess.run([sys.executable, "-c", ""], check=True))


@benchmark("cli.help")
def help_() -> Figure:
    """``tf-dist --help``."""
    bare = _bare_python()
    return Figure(median_seconds(lambda: _tf_dist("--help")), "s", target=0.3, peer=f"bare Python {bare:.3f} s")


@benchmark("cli.validate")
def validate() -> Figure:
    """``tf-dist validate`` of a small job."""
    bare = _bare_python()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(tfjob("mnist")))
        seconds = median_seconds(lambda: _tf_dist("validate", str(file)))
    return Figure(seconds, "s", target=0.4, peer=f"bare Python {bare:.3f} s")
