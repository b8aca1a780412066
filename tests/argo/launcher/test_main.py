"""The launcher as a program: dry runs, errors and the help text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.controller.harness import tfjob
from tf_dist.argo.launcher.launcher_arguments import ROWS
from tf_dist.argo.launcher.main import main
from tf_dist.client import exit_codes


def test_dry_run_prints_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([json.dumps({"job": tfjob(), "workers": 5}), "--dry-run"]) == exit_codes.SUCCEEDED
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["metadata"]["name"], shown["spec"]["tfReplicaSpecs"]["Worker"]["replicas"]) == ("mnist", 5)


def test_dry_run_reports_invalid_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([json.dumps({"job": tfjob(workers=0, ps=0)}), "--dry-run"]) == exit_codes.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: the job: spec.tfReplicaSpecs: there are no replicas at all")


def test_file_errors_contain_path_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing.yaml"
    assert main([f"job_file={missing}", "--dry-run"]) == exit_codes.USAGE
    assert capsys.readouterr().err.startswith(f"error: {missing}: does not exist (check the path")

    second = tmp_path / "two.yaml"
    second.write_text("\n---\n".join([json.dumps(tfjob(wrong=1)), json.dumps(tfjob("b", workers=0, ps=0))]))
    assert main([f"job_file={second}", "--dry-run"]) == exit_codes.USAGE
    warning, error = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {second}:1: document 1: spec.runPolicy.wrong: unknown key")
    assert error.startswith(f"error: {second}:3: document 2: spec.tfReplicaSpecs: there are no replicas at all")


def test_invalid_arguments_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grace=soon", "worker=2"]) == exit_codes.USAGE
    assert capsys.readouterr().err.splitlines() == [
        "error: grace: 'soon' is not a time (write 90s, 10m or 1h30m)",
        "error: worker: is not an option (did you mean workers?)",
    ]


def test_help_lists_all_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == exit_codes.SUCCEEDED
    shown = capsys.readouterr().out
    assert [name for name in ROWS if f"\n  {name} " not in shown] == []


def test_start_imports_no_heavy_modules() -> None:
    script = "import sys, tf_dist.argo.launcher.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"yaml", "pydantic", "numpy", "tf_dist.core.dialects"}.isdisjoint(done.stdout.split())
