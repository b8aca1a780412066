"""What this machine cannot run is said before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TF_DIST = Path(sys.executable).with_name("tf-dist")


def _run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "job.yaml"
    file.write_text(text)
    return subprocess.run([TF_DIST, "run", file], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ["pythonn", "/no/such/program", "./train.sh"])
def test_a_command_that_does_not_exist_is_named_with_its_place(command: str, tmp_path: Path) -> None:
    text = (EXAMPLES / "digits" / "tfjob.yaml").read_text()
    done = _run(text.replace("[python, train.py]", f"[{command}, train.py]"), tmp_path)
    assert done.returncode == 2
    assert f"spec.tfReplicaSpecs.Worker.template.spec.containers[0]: command '{command}'" in done.stderr
    assert done.stdout == ""


def test_the_standard_parameter_server_needs_no_template(tmp_path: Path) -> None:
    text = (EXAMPLES / "digits" / "tfjob-v1alpha1.yaml").read_text()
    done = _run(text.replace("[python, train.py]", "[pythonn, train.py]"), tmp_path)
    assert done.returncode == 2
    assert "spec.replicaSpecs[1].template.spec.containers[0]: command 'pythonn'" in done.stderr
