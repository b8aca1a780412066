"""What ``tf-dist run`` adds to the job itself, against the same three processes started by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.jobs import tfjob
from benchmarks.measure import Figure, benchmark, median_seconds

_WORK = ["python", "-c", "import time; time.sleep(1.0)"]


def _by_hand() -> None:
    for process in [subprocess.Popen([sys.executable, *_WORK[1:]]) for _ in range(3)]:
        process.wait()


@benchmark("run.overhead")
def run() -> Figure:
    """Seconds more than the three processes alone, from the command to its end, clean-up included."""
    program = Path(sys.executable).with_name("tf-dist")
    by_hand = median_seconds(_by_hand, repeat=3)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(tfjob("mnist", command=_WORK)))
        call = [str(program), "run", str(file)]
        whole = median_seconds(lambda: subprocess.run(call, check=True, stdout=subprocess.DEVNULL), repeat=3)
    return Figure(whole - by_hand, "s", target=1.5, peer=f"by hand {by_hand:.2f} s")
