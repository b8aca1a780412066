"""The launcher's arguments: the document and additional values."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.controller.harness import tfjob
from tf_dist.argo.launcher import contract
from tf_dist.argo.launcher.launcher_arguments import ROWS, LauncherOptions, document_argument, read_arguments
from tf_dist.argo.launcher.step_job import step_document
from tf_dist.cluster.kubelet.pod.podspec import expand
from tf_dist.core.pipeline.adoption import DriverChoice
from tf_dist.core.pipeline.workflow_stop import JobFate
from tf_dist.errors import InvalidJob

SAID: list[tuple[str, Any, str, Any]] = [
    ("job_file", "", "job_file", ""),
    ("inputs", '[{"name": "a"}]', "inputs", [{"name": "a"}]),
    ("inputs", [{"name": "a"}], "inputs", [{"name": "a"}]),
    ("values", {"rate": "0.1"}, "values", {"rate": "0.1"}),
    ("values", {"rate": 0.1, "on": True}, "values", {"rate": "0.1", "on": "true"}),
    ("values.rate", "0.1 = $(HOME)", "values", {"rate": "0.1 = $(HOME)"}),
    ("parameters", '[{"name": "rate"}]', "parameters", [{"name": "rate"}]),
    ("workers", "3", "workers", 3),
    ("workers", 3, "workers", 3),
    ("ps", "2", "ps", 2),
    ("queue_name", "research", "queue_name", "research"),
    ("overrides", '{"a": 1}', "overrides", {"a": 1}),
    ("fallback", '[{"workers": 1}]', "fallback", [{"workers": 1}]),
    ("fallback", [{"workers": 1}], "fallback", [{"workers": 1}]),
    ("on_eviction", "fail", "on_eviction", "fail"),
    ("on_preemption", "requeue", "on_preemption", "requeue"),
    ("priority_class", "high", "priority_class", "high"),
    ("packages", ["tiny==1"], "packages", ["tiny==1"]),
    ("packages", '["tiny==1"]', "packages", ["tiny==1"]),
    ("image", "digits:1", "image", "digits:1"),
    ("model_dir", "/models/of digits", "model_dir", "/models/of digits"),
    ("total_steps", "100", "total_steps", 100),
    ("total_steps", " 2000000000", "total_steps", 2_000_000_000),
    ("workers", "5\n", "workers", 5),
    ("namespace", "ml", "namespace", "ml"),
    ("workflow", "digits", "workflow", "digits"),
    ("workflow_uid", "4f", "workflow_uid", "4f"),
    ("node", 'wf.train(0:rate:"0.1")', "node", 'wf.train(0:rate:"0.1")'),
    ("retry", "1", "retry", 1),
    ("retries", "3", "retries", 3),
    ("kubeconfig", "/k", "kubeconfig", "/k"),
    ("context", "test", "context", "test"),
    ("driver", "controller", "driver", DriverChoice.CONTROLLER),
    ("driver", "", "driver", DriverChoice.AUTO),
    ("reattach", False, "reattach", False),
    ("reattach", "false", "reattach", False),
    ("on_suspend", "leave", "on_suspend", False),
    ("checkpoint_files", ["/models"], "checkpoint_files", ["/models"]),
    ("on_term", "leave", "on_term", JobFate.LEAVE),
    ("on_term", "auto", "on_term", None),
    ("grace", "20s", "grace", 20.0),
    ("admission_timeout", "1h30m", "admission_timeout", 5400.0),
    ("startup_timeout", "20m", "startup_timeout", 1200.0),
    ("startup_timeout", "", "startup_timeout", None),
    ("run_timeout", "2d", "run_timeout", 172800.0),
    ("run_timeout", "1.5m", "run_timeout", 90.0),
    ("run_timeout", "90", "run_timeout", 90.0),
    ("run_timeout", 90, "run_timeout", 90.0),
    ("run_timeout", "1234567890", "run_timeout", 1234567890.0),
    ("code_archive", "H4sI", "code_archive", "H4sI"),
    ("out", "/tmp/out", "out", Path("/tmp/out")),
    ("dry_run", "true", "dry_run", True),
]
JOB = '{"job": "x"}'


def options(**more: Any) -> dict[str, Any]:
    return asdict(LauncherOptions(**{"job": "x", "values": {}, **more}))


@pytest.mark.parametrize(("name", "given", "field", "value"), SAID, ids=[f"{one[0]}={one[1]}" for one in SAID])
def test_reads_option(name: str, given: Any, field: str, value: Any) -> None:
    """In the document, options have their types. As separate arguments, they are text."""
    if "." not in name:
        document = json.dumps({"job": "x", name: given})
        assert asdict(read_arguments([document], {})) == options(**{field: value})
    if isinstance(given, str):
        assert asdict(read_arguments([JOB, f"{name}={given}"], {})) == options(**{field: value})


def test_all_options_are_tested() -> None:
    assert {name.partition(".")[0] for name, *_ in SAID} == ROWS.keys() - {"job"}


def test_options_have_defaults() -> None:
    found = read_arguments(["job_file=job.yaml"], {})
    assert found == LauncherOptions(job_file="job.yaml", values={})
    assert (found.out, found.grace, found.driver) == (Path(contract.OUT), 30.0, DriverChoice.AUTO)


def test_reads_argo_environment() -> None:
    environ = {"ARGO_PROGRESS_FILE": "/p", "ARGO_TERMINATION_GRACE_PERIOD_SECONDS": "90", "ARGO_DEADLINE": "d"}
    found = read_arguments([JOB], {**environ, "ARGO_NODE_ID": "n"})
    assert (found.progress_file, found.grace, found.deadline, found.node) == (Path("/p"), 90.0, "d", "n")
    assert read_arguments([JOB, "grace=20s", "workflow_uid=u"], {**environ, "ARGO_NODE_ID": "n"}).node == ""
    assert read_arguments([JOB, "grace=20s"], environ).grace == 20.0


def test_merges_document_with_arguments() -> None:
    document = json.dumps({"job": "x", "overrides": {"a": 1}, "inputs": [{"name": "a"}], "values": {"a": "1"}})
    given = ['overrides={"b": 2}', 'inputs=[{"name": "b"}]', "values.b=2", "overrides=", "inputs="]
    found = read_arguments([document, *given], {})
    assert found.overrides == {"a": 1, "b": 2}
    assert found.inputs == [{"name": "a"}, {"name": "b"}]
    assert found.values == {"a": "1", "b": "2"}


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("mounted", [False, True])
def test_reads_document_in_each_form(pack: bool, mounted: bool, tmp_path: Path) -> None:
    document = {"job": {"metadata": {"name": "grün"}}, "workers": 4}
    text = document_argument(document, pack=pack)
    (tmp_path / "step.json").write_text(text)
    found = read_arguments([f"@{tmp_path}/step.json" if mounted else text], {})
    assert (found.job, found.workers) == (document["job"], 4)


@pytest.mark.parametrize("pack", [False, True])
def test_kubelet_expands_nothing_in_document(pack: bool) -> None:
    """Without escaping, the kubelet would replace a job's $(NAME) by a variable of the launcher, and $$ by $."""
    document = {"job": {"args": ["$(HOME)", "$$(HOME)", "$$$$", "cost: 5$", "$HOME"]}, "model_dir": "$(HOME)"}
    found = read_arguments([expand(document_argument(document, pack=pack), {"HOME": "/root"})], {})
    assert (found.job, found.model_dir) == (document["job"], "$(HOME)")


def test_reads_argument_from_file_of_argo(tmp_path: Path) -> None:
    """Argo 4.1 writes arguments to files if they exceed the kernel's limit."""
    (tmp_path / "argo_arg_3.txt").write_text("job=kind: TFJob\nmetadata:\n  name: long\n")
    found = read_arguments([f"@{tmp_path}/argo_arg_3.txt", "node=@/etc/passwd"], {})
    assert (found.job, found.node) == ("kind: TFJob\nmetadata:\n  name: long\n", "@/etc/passwd")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "job: give exactly one of job and job_file"),
        ([JOB, "job_file=y"], "job: give exactly one"),
        ([JOB, "workers=two"], "workers: 'two' is not a whole number"),
        ([JOB, "workers=-1"], "workers: '-1' is not a whole number"),
        ([JOB, "run_timeout=soon"], "run_timeout: 'soon' is not a time (write 90s, 10m or 1h30m)"),
        ([JOB, "run_timeout=12345678901"], "run_timeout: '12345678901' is not a time"),
        ([JOB, "run_timeout=1.5.5m"], "run_timeout: '1.5.5m' is not a time"),
        ([JOB, "run_timeout=1h30"], "run_timeout: '1h30' is not a time"),
        ([JOB, "queue_name=a b"], "queue_name: 'a b' has a space in it"),
        ([JOB, "queue_name={{inputs.parameters.q}}"], "queue_name: '{{inputs.parameters.q}}' is not one line"),
        ([JOB, "driver=me"], "driver: 'me' is not one of auto, controller"),
        ([JOB, "on_term=never"], "on_term: 'never' is not one of auto, delete, suspend, leave"),
        ([JOB, "worker=2"], "worker: is not an option (did you mean workers?)"),
        ([JOB, "command=sh"], "command: is not an option"),
        ([JOB, "--workers"], "'--workers': is not an option (write NAME=VALUE, or a document such as"),
        ([JOB, "overrides={"], "overrides: '{' is not JSON"),
        ([JOB, "overrides=[1]"], "overrides: must be a mapping, not list"),
        (['{"job": '], "the document: is not JSON"),
        (["zlib:AAAA"], "the document: is not JSON"),
        ([document_argument([1], pack=True)], "the document: is not JSON"),
        (['{"job": "x", "reattach": "no"}'], "reattach: must be True or False, not 'no'"),
        (["@/no/such/file", JOB], "@/no/such/file: cannot be read"),
    ],
)
def test_rejects_invalid_arguments(arguments: list[str], told: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        read_arguments(arguments, {})
    assert str(caught.value).startswith(told)


def test_reports_all_problems_at_once() -> None:
    with pytest.raises(InvalidJob) as caught:
        read_arguments(['{"workers": "x", "driver": "me"}', "grace=soon", "nope"], {})
    assert [one.path for one in caught.value.problems] == ["'nope'", "workers", "driver", "grace"]


def test_outputs_are_stable_across_releases() -> None:
    """Templates rendered by other releases read these files, so the names must not change."""
    assert {
        **dict.fromkeys(("job", "reason", "replica", "exit-code", "checkpoint"), ""),
        **dict.fromkeys(("restarts", "disruptions", "preemptions", "fallback", "duration"), "0"),
        **dict.fromkeys(("gpu-seconds", "lost-gpu-seconds", "goodput"), "0"),
        "outcome": "unknown",
        "status": "Unknown",
        "message": "the launcher did not report",
        "metrics": "{}",
    } == contract.OUTPUTS
    assert (contract.OUT, contract.CHECKPOINT, contract.METRIC) == ("/tf-dist/out", "checkpoint-files", "metric-")


@pytest.mark.parametrize("length", [1024, 1025])
def test_option_has_at_most_1024_characters(length: int) -> None:
    line = "/" * length
    if length <= 1024:
        assert read_arguments([JOB, f"model_dir={line}"], {}).model_dir == line
    else:
        with pytest.raises(InvalidJob, match="is not one line"):
            read_arguments([JOB, f"model_dir={line}"], {})


def test_clean_pod_policy_defaults_to_running() -> None:
    document = tfjob()
    del document["spec"]["runPolicy"]["cleanPodPolicy"]
    found = step_document(LauncherOptions(job=json.dumps(document)), "default")[0].document
    assert found["spec"]["runPolicy"]["cleanPodPolicy"] == "Running"
