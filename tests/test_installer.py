"""``.ci/install``: what make and CI install with."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.child_processes import signals_heard

SCRIPT = Path(__file__).parents[1] / ".ci" / "install"


def installers(**environment: str) -> list[str]:
    """What is run, one after the other, to install a package that is there already, so that no index is asked."""
    pip = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    found = subprocess.run(
        ["sh", "-x", SCRIPT, sys.executable, "--no-deps", "--dry-run", "pyyaml"],
        env=pip | {"PIP_CONFIG_FILE": os.devnull, "UV_OFFLINE": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = [line for line in found.stderr.splitlines() if " install " in line and line.endswith(" pyyaml")]
    return ["uv" if " -m uv " in line else "pip" for line in lines if "with_uv" not in line]


def test_uv_installs_where_pip_is_not_told_from_where() -> None:
    pytest.importorskip("uv", reason="an environment that pip has made by itself; make install brings uv")
    assert installers() == ["uv"]


@pytest.mark.parametrize(
    "setting",
    [
        {"PIP_INDEX_URL": "http://127.0.0.1:1/simple"},
        {"PIP_EXTRA_INDEX_URL": "http://127.0.0.1:1/simple"},
        {"PIP_NO_INDEX": "1"},
        {"PIP_PROXY": "http://127.0.0.1:1"},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_pip_installs_where_it_is_told_from_where_as_uv_does_not_read_that(setting: dict[str, str]) -> None:
    assert installers(**setting) == ["pip"]


def test_pip_installs_where_uv_cannot() -> None:
    pytest.importorskip("uv", reason="an environment that pip has made by itself; make install brings uv")
    assert installers(UV_CONFIG_FILE="/nowhere/uv.toml") == ["uv", "pip"]


@pytest.mark.parametrize("terminal", [True, False])
def test_shows_progress_on_a_terminal_only(terminal: bool, tmp_path: Path) -> None:
    stand_in, calls = tmp_path / "python", tmp_path / "calls"
    stand_in.write_text(f"#!/bin/sh\necho \"$*\" >>'{calls}'\n")
    stand_in.chmod(0o755)
    ours, theirs = pty.openpty()
    stream = theirs if terminal else subprocess.DEVNULL
    subprocess.run(["sh", SCRIPT, stand_in, "pyyaml"], stderr=stream, check=True, timeout=60)
    os.close(ours)
    os.close(theirs)
    (installed,) = (line for line in calls.read_text().splitlines() if line.endswith(" pyyaml"))
    assert ("--quiet" not in installed) is terminal


@pytest.mark.parametrize(("driver", "extra"), [(True, "tensorflow-gpu"), (False, "tensorflow")])
def test_make_installs_tensorflow_for_gpus_where_a_driver_is(driver: bool, extra: str, tmp_path: Path) -> None:
    file = tmp_path / "version"
    if driver:
        file.touch()
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "install", f"NVIDIA_DRIVER={file}"],
        cwd=SCRIPT.parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"[airflow-connection,argo,dev,{extra}]" in done.stdout


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_ctrl_c_while_uv_installs_ends_the_installation(shell: str, tmp_path: Path) -> None:
    """uv catches the signal and exits by itself, after which a shell would go on."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    stand_in, calls = tmp_path / "python", tmp_path / "calls"
    stand_in.write_text(
        f"""#!/bin/sh
echo "$*" >>'{calls}'
[ "$2" != uv ] || {{ trap '' INT; kill -INT 0; exit 130; }}
"""
    )
    stand_in.chmod(0o755)
    with signals_heard():
        done = subprocess.run([shell, SCRIPT, stand_in, "pyyaml"], start_new_session=True, timeout=60)
    assert done.returncode in (130, -signal.SIGINT)
    assert [line.split()[1] for line in calls.read_text().splitlines() if line.endswith(" pyyaml")] == ["uv"]
