"""The launcher as a program: the job of a step, shown and not made."""

from __future__ import annotations

import json
from pathlib import Path

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
    assert err.startswith("error: --job:1: spec.tfReplicaSpecs: there are no replicas at all")


def test_what_is_wrong_with_a_file_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing.yaml"
    assert main([f"--job-file={missing}", "--dry-run"]) == exit_codes.USAGE
    assert capsys.readouterr().err.startswith(f"error: {missing}: does not exist (check the path")

    second = tmp_path / "two.yaml"
    second.write_text("\n---\n".join([json.dumps(tfjob(wrong=1)), json.dumps(tfjob("b", workers=0, ps=0))]))
    assert main([f"--job-file={second}", "--dry-run"]) == exit_codes.USAGE
    warning, error = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {second}:1: document 1: spec.runPolicy.wrong: unknown key")
    assert error.startswith(f"error: {second}:3: document 2: spec.tfReplicaSpecs: there are no replicas at all")


def test_a_wrong_command_line_is_one_error_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--grace=soon"])
    assert capsys.readouterr().err.splitlines() == [
        "error: argument --grace: 'soon' is not a time: write 90s, 10m or 1h30m",
        "  hint: tf-dist argo-launch --help shows what can be given",
    ]
