"""What a run on this machine makes of a pod's security: said before and while it runs, once."""

from __future__ import annotations

import os

import pytest

from tests.cli.conftest import Program

LOOSE = {"seccompProfile": {"type": "RuntimeDefault"}}
PROMISE = {"seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"}}


def test_what_is_left_out_is_said_once_however_many_replicas_have_it(tf_dist: Program) -> None:
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
