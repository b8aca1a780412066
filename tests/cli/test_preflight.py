"""What this machine cannot run is said before anything is started.

What a run on this machine makes of a pod's security: said before and while it runs, once.
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
def test_a_command_that_does_not_exist_is_named_with_its_place(command: str, tmp_path: Path) -> None:
    text = (EXAMPLES / "digits" / "tfjob.yaml").read_text()
    done = _run(text.replace("[python, train.py]", f"[{command}, train.py]"), tmp_path)
    assert done.returncode == 2
    assert f"spec.tfReplicaSpecs.Worker.template.spec.containers[0]: command '{command}'" in done.stderr
    assert done.stdout == ""


def test_misspelt_program_is_suggested(tmp_path: Path) -> None:
    text = (EXAMPLES / "digits" / "tfjob.yaml").read_text()
    done = _run(text.replace("[python, train.py]", "[pyton, train.py]"), tmp_path)
    assert "hint: did you mean python" in done.stderr


def test_the_standard_parameter_server_needs_no_template(tmp_path: Path) -> None:
    text = (EXAMPLES / "digits" / "tfjob-v1alpha1.yaml").read_text()
    done = _run(text.replace("[python, train.py]", "[pythonn, train.py]"), tmp_path)
    assert done.returncode == 2
    assert "spec.replicaSpecs[1].template.spec.containers[0]: command 'pythonn'" in done.stderr


LOOSE = {"seccompProfile": {"type": "RuntimeDefault"}}
PROMISE = {"seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"}}


def test_warns_of_an_ignored_field_once_for_all_replicas(tf_dist: Program) -> None:
    file = tf_dist.write("job.yaml", tf_dist.job(workers=3, securityContext=LOOSE))
    planned = tf_dist("plan", file)
    assert planned.returncode == 0
    assert planned.stderr.count("seccompProfile RuntimeDefault") == 1
    assert "warning: on this machine, container tensorflow: " in planned.stderr
    found = tf_dist("run", file)
    assert found.returncode == 0, found.stdout
    assert found.stdout.count("seccompProfile RuntimeDefault") == 1


def test_a_promise_that_cannot_be_kept_starts_nothing(tf_dist: Program) -> None:
    file = tf_dist.write("job.yaml", tf_dist.job("touch started", workers=2, securityContext=PROMISE))
    assert "refused: seccompProfile Localhost" in tf_dist("plan", file).stderr
    found = tf_dist("run", file)
    assert found.returncode == 2
    assert "job.yaml" in found.stderr
    assert "seccompProfile Localhost cannot be honoured" in found.stderr
    assert "Traceback" not in found.stderr
    assert not (tf_dist.folder / "started").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="as another user runAsNonRoot is kept")
def test_run_as_non_root_is_refused_to_root(tf_dist: Program) -> None:
    file = tf_dist.write("job.yaml", tf_dist.job(securityContext={"runAsNonRoot": True}))
    found = tf_dist("run", file)
    assert found.returncode == 2
    assert "runAsUser" in found.stderr


@pytest.mark.parametrize("context", ["safe", [], {"runAsUser": {}}, {"capabilities": ["ALL"]}])
def test_nonsense_is_an_error_and_no_traceback(tf_dist: Program, context: object) -> None:
    file = tf_dist.write("job.yaml", tf_dist.job(securityContext=context))
    for command in ("plan", "run"):
        found = tf_dist(command, file)
        assert "Traceback" not in found.stdout + found.stderr


def test_keys_that_the_job_will_have_are_not_missed_before_it_starts(tmp_path: Path) -> None:
    template = "{spec: {restartPolicy: Never, containers: [{name: main, image: x, command: [pythonn]}]}}"
    job = f"spec: {{plugins: {{ssh: []}}, tasks: [{{name: main, replicas: 1, template: {template}}}]}}"
    done = _run(f"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: keys}}\n{job}\n", tmp_path)
    assert "command 'pythonn'" in done.stderr
    assert "MountVolume" not in done.stderr
