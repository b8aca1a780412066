"""The launcher as a program: the job of a step, shown and not made."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.controller.harness import tfjob
from tf_dist.client import exit_codes
from tf_dist.client.launch.main import main


def test_a_dry_run_shows_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--job={json.dumps(tfjob())}", "--workers=5", "--dry-run"]) == exit_codes.SUCCEEDED
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["metadata"]["name"], shown["spec"]["tfReplicaSpecs"]["Worker"]["replicas"]) == ("mnist", 5)


def test_a_dry_run_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--job={json.dumps(tfjob(workers=0, ps=0))}", "--dry-run"]) == exit_codes.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: spec.tfReplicaSpecs: there are no replicas at all")
