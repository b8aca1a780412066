"""The commands of README.md work unchanged and in order in a fresh clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Program, tf_dist

__all__ = ["tf_dist"]

ROOT = Path(__file__).parents[2]
COMMANDS = re.findall(r"^\$ (.*)$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
INSTALL = ["make install", "source .venv/bin/activate"]  # CI runs these before the tests


def test_first_commands_install() -> None:
    assert COMMANDS[:2] == INSTALL


@pytest.mark.slow
@pytest.mark.timeout(660)  # longer than the timeout of the commands
def test_commands_work_in_order_on_fresh_clone(tf_dist: Program) -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is missing: pip install '.[tensorflow]'")
    clone = tf_dist.folder / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{tf_dist.env['PATH']}"
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", "\n".join(COMMANDS[2:])],
        cwd=clone,
        env=tf_dist.env | {"PATH": path, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "digits: Succeeded" in done.stdout
    assert not tf_dist.processes()
