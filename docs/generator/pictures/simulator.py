"""The simulator's picture of two policies on one trace."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.generator.pictures import ROOT, keep

COMMAND = "tf-dist simulate --trace dragon --jobs 120 --load 0.95 --policy ours --policy default"


def compare() -> None:
    """Keep the pictures of its HTML page, one a policy, as ``simulate-POLICY.svg``."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "out.html")
        words = [sys.executable, "-m", "tf_dist", *COMMAND.split()[1:], "--html", str(page)]
        subprocess.run(words, check=True, cwd=ROOT)
        for name, svg in zip(
            ("ours", "default"), re.findall(r"<svg.*?</svg>", page.read_text(), flags=re.DOTALL), strict=True
        ):
            keep(f"simulate-{name}.svg", svg)
