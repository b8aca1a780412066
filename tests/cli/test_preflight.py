"""Jobs that this machine cannot run are rejected before anything starts.

Fields of a pod's security context that have no effect on this machine are reported once.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli import ready
from tests.cli.conftest import Program

EXAMPLES = Path(__file__).parents[2] / "examples"


def _run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "job.yaml"
    file.write_text(text)
    return ready.tf_dist("run", str(file))


@pytest.mark.parametrize("command", ["pythonn", "/no/such/program", "./train.sh"])
def test_reports_missing_command_with_path(command: str, tmp_path: Path) -> None:
    text = (EXAMPLES / "digits" / "tfjob.yaml").read_text()
    done = _run(text.replace("[python, train.py]", f"[{command}, train.py]"), tmp_path)
    assert done.returncode == 2
    assert f"spec.tfReplicaSpecs.Worker.template.spec.containers[0]: command '{command}'" in done.stderr
    assert done.stdout == ""


def test_suggests_program_for_misspelled_command(tmp_path: Path) -> None:
    text = (EXAMPLES / "digits" / "tfjob.yaml").read_text()
    done = _run(text.replace("[python, train.py]", "[pyton, train.py]"), tmp_path)
    assert "hint: did you mean python" in done.stderr


def test_standard_parameter_server_needs_no_template(tmp_path: Path) -> None:
    text = (EXAMPLES / "digits" / "tfjob-v1alpha1.yaml").read_text()
    done = _run(text.replace("[python, train.py]", "[pythonn, train.py]"), tmp_path)
    assert done.returncode == 2
    assert "spec.replicaSpecs[1].template.spec.containers[0]: command 'pythonn'" in done.stderr


LOOSE = {"seccompProfile": {"type": "RuntimeDefault"}}
PROMISE = {"seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"}}


def test_warns_once_about_ignored_field(tf_dist: Program) -> None:
    file = tf_dist.write("job.yaml", tf_dist.job(workers=3, securityContext=LOOSE))
    planned = tf_dist("plan", file)
    assert planned.returncode == 0
    assert planned.stderr.count("seccompProfile RuntimeDefault") == 1
    assert "warning: on this machine, container tensorflow: " in planned.stderr
    found = tf_dist("run", file)
    assert found.returncode == 0, found.stdout
    assert found.stdout.count("seccompProfile RuntimeDefault") == 1


def test_unsupported_seccomp_profile_starts_nothing(tf_dist: Program) -> None:
    file = tf_dist.write("job.yaml", tf_dist.job("touch started", workers=2, securityContext=PROMISE))
    assert "refused: seccompProfile Localhost" in tf_dist("plan", file).stderr
    found = tf_dist("run", file)
    assert found.returncode == 2
    assert "job.yaml" in found.stderr
    assert "seccompProfile Localhost cannot be honoured" in found.stderr
    assert "Traceback" not in found.stderr
    assert not (tf_dist.folder / "started").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="as another user runAsNonRoot is kept")
def test_root_cannot_run_as_non_root(tf_dist: Program) -> None:
    file = tf_dist.write("job.yaml", tf_dist.job(securityContext={"runAsNonRoot": True}))
    found = tf_dist("run", file)
    assert found.returncode == 2
    assert "runAsUser" in found.stderr


@pytest.mark.parametrize("context", ["safe", [], {"runAsUser": {}}, {"seccompProfile": ["ALL"]}])
def test_invalid_security_context_is_reported(tf_dist: Program, context: object) -> None:
    file = tf_dist.write("job.yaml", tf_dist.job(securityContext=context))
    for command in ("plan", "run"):
        found = tf_dist(command, file)
        assert found.returncode == 2
        assert "securityContext" in found.stderr
        assert "Traceback" not in found.stdout + found.stderr


def test_preflight_ignores_missing_ssh_keys(tmp_path: Path) -> None:
    template = "{spec: {restartPolicy: Never, containers: [{name: main, image: x, command: [pythonn]}]}}"
    job = f"spec: {{plugins: {{ssh: []}}, tasks: [{{name: main, replicas: 1, template: {template}}}]}}"
    done = _run(f"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: keys}}\n{job}\n", tmp_path)
    assert "command 'pythonn'" in done.stderr
    assert "MountVolume" not in done.stderr
