"""The command line of the launcher: every option, what it means, and what holds without it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.controller.harness import tfjob
from tf_dist.client.launch import contract
from tf_dist.client.launch.launcher_arguments import LauncherOptions, parse_arguments
from tf_dist.client.launch.step_job import step_document
from tf_dist.core.steps.adoption import DriverChoice
from tf_dist.core.steps.shutdown import OnTerm

SAID: list[tuple[str, str, Any]] = [
    ("--set=a=1", "changes", ("a=1",)),
    ("--set-json=a={}", "changes_json", ("a={}",)),
    ("--set-string=a=1", "changes_text", ("a=1",)),
    ("--input={}", "inputs", ("{}",)),
    ("--set-input=rate=0.1", "input_values", ("rate=0.1",)),
    ("--set-inputs=[]", "input_list", "[]"),
    ("--workers=3", "workers", 3),
    ("--ps=2", "ps", 2),
    ("--queue-name=research", "queue", "research"),
    ('--overrides={"a": 1}', "overrides", '{"a": 1}'),
    ('--fallback=[{"workers": 1}]', "fallback", '[{"workers": 1}]'),
    ("--on-eviction=fail", "on_eviction", "fail"),
    ("--on-preemption=requeue", "on_preemption", "requeue"),
    ("--priority-class=high", "priority_class", "high"),
    ("--image=digits:1", "image", "digits:1"),
    ("--model-dir=/models/of digits", "model_dir", "/models/of digits"),
    ("--total-steps=100", "total_steps", 100),
    ("--total-steps= 2000000000", "total_steps", 2_000_000_000),
    ("--workers=5\n", "workers", 5),
    ("--namespace=ml", "namespace", "ml"),
    ("--workflow=digits", "workflow", "digits"),
    ("--workflow-uid=4f", "workflow_uid", "4f"),
    ("--node=train", "node", "train"),
    ("--retry=1", "retry", 1),
    ("--retries=3", "retries", 3),
    ("--kubeconfig=/k", "kubeconfig", "/k"),
    ("--context=test", "context", "test"),
    ("--driver=controller", "driver", DriverChoice.CONTROLLER),
    ("--driver=auto", "driver", DriverChoice.AUTO),
    ("--no-reattach", "reattach", False),
    ("--on-suspend=leave", "on_suspend", False),
    ("--checkpoint-files=/models", "checkpoint_files", ("/models",)),
    ("--checkpoint-files", "checkpoint_files", ("",)),
    ("--on-term=leave", "on_term", OnTerm.LEAVE),
    ("--on-term=auto", "on_term", None),
    ("--grace=20s", "grace", 20.0),
    ("--admission-timeout=1h30m", "admission_timeout", 5400.0),
    ("--startup-timeout=20m", "startup_timeout", 1200.0),
    ("--startup-timeout=", "startup_timeout", None),
    ("--run-timeout=2d", "run_timeout", 172800.0),
    ("--run-timeout=1.5m", "run_timeout", 90.0),
    ("--run-timeout=90", "run_timeout", 90.0),
    ("--run-timeout=1234567890", "run_timeout", 1234567890.0),
    ("--out=/tmp/out", "out", Path("/tmp/out")),
    ("--dry-run", "dry_run", True),
]


@pytest.mark.parametrize(("argument", "name", "value"), SAID, ids=[argument for argument, _, _ in SAID])
def test_an_option_says_one_thing(argument: str, name: str, value: Any) -> None:
    assert asdict(parse_arguments(["--job=x", argument], {})) == asdict(LauncherOptions(job="x")) | {name: value}


def test_every_option_is_tried() -> None:
    no_options = {"job", "job_file", "progress_file", "deadline", "settle", "look_every"}  # of Argo, or fixed
    assert {name for _, name, _ in SAID} == asdict(LauncherOptions()).keys() - no_options


def test_what_holds_if_nothing_is_said() -> None:
    found = parse_arguments(["--job-file=job.yaml"], {})
    assert found == LauncherOptions(job_file="job.yaml")
    assert (found.out, found.grace, found.driver) == (Path(contract.OUT), 30.0, DriverChoice.AUTO)


def test_the_outputs_that_templates_of_workflows_read() -> None:
    """Templates that were rendered by another release read these files: none of these words may change."""
    assert {
        **dict.fromkeys(("job", "reason", "replica", "exit-code", "checkpoint"), ""),
        **dict.fromkeys(("restarts", "disruptions", "preemptions", "fallback", "gpu-seconds", "duration"), "0"),
        "outcome": "unknown",
        "status": "Unknown",
        "message": "the launcher did not report",
        "metrics": "{}",
    } == contract.OUTPUTS
    assert (contract.OUT, contract.CHECKPOINT, contract.METRIC) == ("/tf-dist/out", "checkpoint-files", "metric-")


@pytest.mark.parametrize(
    "wrong",
    [
        "--driver=me",
        "--driver=inline",
        "--on-term=never",
        "--workers=-1",
        "--run-timeout=soon",
        "--run-timeout=12345678901",
        "--run-timeout=1.5.5m",
        "--run-timeout=1h30",
        "--queue-name=a b",
    ],
)
def test_what_is_none_of_the_choices_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["--job=x", wrong], {})
    assert caught.value.code == 2
    assert wrong.partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize("length", [1024, 1025])
def test_a_line_has_at_most_1024_characters(length: int) -> None:
    line = "/" * length
    if length <= 1024:
        assert parse_arguments(["--job=x", f"--model-dir={line}"], {}).model_dir == line
    else:
        with pytest.raises(SystemExit):
            parse_arguments(["--job=x", f"--model-dir={line}"], {})


def test_pods_that_still_run_at_the_end_go_where_the_document_does_not_say_which_do() -> None:
    document = tfjob()
    del document["spec"]["runPolicy"]["cleanPodPolicy"]
    found = step_document(LauncherOptions(job=json.dumps(document)), "default")[0].document
    assert found["spec"]["runPolicy"]["cleanPodPolicy"] == "Running"
