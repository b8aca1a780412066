"""Behaviour of all commands: usage, version, errors without tracebacks, and imports at start-up."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.cli.conftest import PROGRAM, Program
from tf_dist import __version__, errors
from tf_dist.cli.command_table import COMMANDS as COMMAND_TABLE
from tf_dist.cli.main import run
from tf_dist.client import exit_codes
from tf_dist.client.wait import GoalNotReached


@pytest.mark.parametrize("command", [*(one.name for one in COMMAND_TABLE if one.name != "argo-launch"), "local up"])
def test_help_shows_usage_and_examples(tf_dist: Program, command: str) -> None:
    found = tf_dist(*command.split(), "--help")
    assert found.returncode == 0
    assert "Usage: tf-dist" in found.stdout
    examples = found.stdout.partition("Examples:")[2]
    assert f"tf-dist {command}" in examples


@pytest.mark.parametrize(
    ("arguments", "code"), [("", 2), ("--plain", 2), ("-h", 0), ("--plain --help", 0), ("--help run", 0)]
)
def test_program_help_lists_commands(tf_dist: Program, arguments: str, code: int) -> None:
    found = tf_dist(*arguments.split())
    assert (found.returncode, found.stderr) == (code, "")
    assert all(f"  {command.name} " in found.stdout for command in COMMAND_TABLE)


def test_completes_command_name(tf_dist: Program) -> None:
    asked = {"_TF_DIST_COMPLETE": "complete_bash", "COMP_WORDS": "tf-dist va", "COMP_CWORD": "1"}
    assert tf_dist(**asked).stdout.split() == ["validate"]


def test_version_is_printed(tf_dist: Program) -> None:
    assert tf_dist("--version").stdout == f"tf-dist {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["validat"], "Did you mean 'validate'?"),
        (["validate"], "Missing argument"),
        (["run", "x.yaml", "--bogus"], "--bogus"),
        (["run", "x.yaml", "--tiemout", "3"], "No such option: --tiemout. Did you mean --timeout?\n"),
        (["run", "x.yaml", "--timeout", "soon"], "--timeout: 'soon' is not a time"),
        (["run", "x.yaml", "--node", "cpu"], "--node: 'cpu' is not an amount of a resource"),
        (["run", "x.yaml", "--node", "cpu=many"], "--node: 'cpu=many' is not an amount of a resource"),
        (["run", "x.yaml", "--entrypoint", "image"], "--entrypoint: 'image' is not IMAGE=COMMAND"),
        (["run", "x.yaml", "--network", "none"], "known: auto, isolated, shared"),
        (["plan", "x.yaml", "--cluster-domain", "a b"], "--cluster-domain: 'a b' is not a domain"),
        (["run", "x.yaml"], "x.yaml: does not exist"),
        (["run", "x" * 5000], "x: cannot be read: File name too long"),
        (["run", "x" * 5000 + ".py"], "x.py\n  hint: check its path"),
        (["run", "x.yaml", "--workdir", "x" * 5000], "x is not a folder"),
        (["wait", "x", "--for", "runing"], "did you mean running?"),
        (["argo-clean", "--workflow-uid", ""], "--workflow-uid: is empty"),
        (["get", "-o", "xml"], "'xml' is not one of 'json', 'yaml', 'name', 'wide', 'table'"),
        (["plan", "x.yaml", "-o", "yml"], "'yml' is not one of 'json', 'yaml', 'table'"),
        (["scale", "x", "--workers", "ten"], "'ten'"),
        (["logs", "x", "--tail", "-5"], "'-5'"),
        (
            ["run", "x.yaml", "-n", "Bad_NS"],
            "--namespace: 'Bad_NS' is not a namespace\n  hint: up to 63 of a-z, 0-9 and '-'",
        ),
        (["submit", "x.yaml", "-n", "Bad_NS"], "--namespace: 'Bad_NS' is not a namespace"),
        (["get", "-n", "a/b"], "--namespace: 'a/b' is not a namespace"),
        (["get", "-n", "٣"], "--namespace: '٣' is not a namespace"),
        (["controller", "-n", "Bad_NS"], "--namespace: 'Bad_NS' is not a namespace"),
        (["controller", "-n", ""], "--namespace: '' is not a namespace"),
        (["install", "-n", "Bad_NS"], "--namespace: 'Bad_NS' is not a namespace\n  hint: up to 63 of "),
        (["submit", "-f", "x.yaml"], "hint: files are named without it: tf-dist submit FILE…"),
        (["validate", "--filename=x.yaml"], "hint: files are named without it: tf-dist validate FILE…"),
        (["run", "--file", "x.yaml"], "hint: files are named without it: tf-dist run FILE"),
        (["wait", "-f", "x.yaml"], "hint: tf-dist wait --help shows what it accepts"),
        (["run", ""], "'': is not the name of a file\n  hint: check the path: a variable in it may be empty"),
        (["run", "x.yaml", "--fallback", "x.json"], "--fallback: 'x.json' cannot be read as JSON"),
    ],
)
def test_usage_error_exits_with_2(tf_dist: Program, arguments: list[str], told: str) -> None:
    found = tf_dist(*arguments)
    assert (found.returncode, found.stdout) == (2, "")
    assert told in found.stderr
    assert found.stderr.startswith("error: ")
    assert "Traceback" not in found.stderr
    assert "Value error" not in found.stderr


@pytest.mark.parametrize("arguments", [[], ["local"], ["workflows"]], ids=" ".join)
def test_missing_command_prints_help(tf_dist: Program, arguments: list[str]) -> None:
    found = tf_dist(*arguments)
    assert (found.returncode, found.stderr) == (2, "")
    assert "Usage: tf-dist" in found.stdout


@pytest.mark.parametrize(
    "arguments", [["get"], ["submit", "job.yaml"], ["logs", "x"], ["delete", "x"], ["explain", "x"]]
)
def test_missing_cluster_is_reported(tf_dist: Program, arguments: list[str]) -> None:
    tf_dist.write("job.yaml", tf_dist.job())
    found = tf_dist(*arguments)
    assert found.returncode == 75
    assert "no cluster is configured" in found.stderr
    assert "tf-dist local up" in found.stderr


def test_debug_option_prints_traceback(tf_dist: Program) -> None:
    assert "Traceback" not in tf_dist("get").stderr
    for found in (tf_dist("--debug", "get"), tf_dist("get", TF_DIST_DEBUG="1")):
        assert "Traceback" in found.stderr
        assert found.returncode == 75


@pytest.mark.parametrize("arguments", ["init {}/train.py", "run - --dry-run", "local up", "local status"])
def test_missing_current_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    (tmp_path / "train.py").touch()
    (folder := tmp_path / "gone").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TF_DIST_HOME", "state")
    folder.rmdir()
    assert run(arguments.format(tmp_path).split()) == 1
    assert capsys.readouterr().err == (
        "error: the current folder does not exist any more, or cannot be read\n  hint: change to another folder: cd\n"
    )


def test_unusable_file_is_not_reported_as_defect(tf_dist: Program) -> None:
    Path(tf_dist.env["TF_DIST_HOME"], "up.lock").mkdir(parents=True)
    Path(tf_dist.env["TF_DIST_HOME"]).chmod(0o700)
    found = tf_dist("local", "up")
    assert (found.returncode, found.stderr.splitlines()[1]) == (
        1,
        "  hint: check that the path exists, your permissions, and the free disk space",
    )
    assert found.stderr.startswith(f"error: {tf_dist.env['TF_DIST_HOME']}/up.lock: Is a directory\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidJob([]), 2),
        (errors.JobFailed("x"), 1),
        (errors.ImagePullFailed("x"), 1),
        (errors.JobEvicted("x"), 75),
        (errors.JobTimeout("x"), 1),
        (errors.AdmissionTimeout("x"), 75),
        (errors.Unavailable("x"), 75),
        (GoalNotReached("x"), 75),
        (errors.Throttled("x"), 75),
        (errors.Conflict("x"), 75),
        (errors.Gone("x"), 75),
        (errors.NotFound("x"), 2),
        (errors.AlreadyExists("x"), 2),
        (errors.Forbidden("x"), 2),
        (errors.Rejected("x"), 2),
        (errors.ClusterError("x"), 2),
        (errors.TFDistError("x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_exit_code_of_error(error: errors.TFDistError, code: int) -> None:
    assert exit_codes.exit_code_of_error(error) == code


@pytest.mark.parametrize(
    ("arguments", "forbidden"),
    [
        (
            ["--help"],
            {"typer", "rich", "pydantic", "yaml", "tf_dist.cli.commands", "tf_dist.cluster", "tf_dist.core"},
        ),
        (
            ["validate", "job.yaml"],
            {"kubernetes", "numpy", "rich", "urllib3", "tf_dist.cluster", "tf_dist.controller", "tf_dist.local"},
        ),
        (
            ["run", "job.yaml"],
            {
                "asyncio",
                "cryptography",
                "kubernetes",
                "prometheus_client",
                "rich",
                "sqlite3",
                "urllib3",
                "tf_dist.cli.commands.install",
                "tf_dist.cluster.apiserver.server",
                "tf_dist.cluster.client.rest",
                "tf_dist.simulate",
            },
        ),
    ],
)
def test_command_imports_no_heavy_modules(tf_dist: Program, arguments: list[str], forbidden: set[str]) -> None:
    assert [name for name in sorted(forbidden) if name.startswith("tf_dist.") and not find_spec(name)] == []
    tf_dist.write("job.yaml", tf_dist.job())
    script = (
        "import sys\nfrom tf_dist.cli.main import run\n"
        f"code = run({arguments})\nprint(code, *sys.modules, file=sys.stderr)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=tf_dist.folder, env=tf_dist.env, capture_output=True, text=True, check=True
    )
    code, *modules = found.stderr.splitlines()[-1].split()
    assert code == "0"
    assert not forbidden & set(modules)


def test_package_runs_as_program() -> None:
    said = subprocess.run([sys.executable, "-m", "tf_dist", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.strip().endswith(__version__)


WRITING = [
    ["validate", "job.yaml"],
    ["plan", "-o", "json", "job.yaml"],
    ["--help"],
    ["submit", "--help"],
    ["argo-launch", "--help"],
    ["argo-launch", "job_file=job.yaml", "--dry-run"],
]


@pytest.mark.parametrize("arguments", WRITING, ids=" ".join)
@pytest.mark.parametrize(("output", "problem"), [("/dev/full", "No space left on device"), ("&-", "not writable")])
def test_unwritable_output_is_error(tf_dist: Program, output: str, problem: str, arguments: list[str]) -> None:
    """The output is lost, so the command must not succeed."""
    tf_dist.write("job.yaml", tf_dist.job())
    command = ["sh", "-c", f'exec "$@" >{output}', "sh", *PROGRAM, *arguments]
    found = subprocess.run(command, cwd=tf_dist.folder, env=tf_dist.env, stderr=PIPE)
    assert found.returncode == 1
    assert found.stderr.decode().splitlines() == [
        f"error: cannot write to standard output: {problem}",
        "  hint: free disk space, or redirect the output elsewhere",
    ]


@pytest.mark.parametrize("command", ["validate", "plan", "run", "submit", "convert --to kubeflow.org/v1"])
def test_closed_standard_input_is_reported(tf_dist: Program, command: str) -> None:
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", *PROGRAM, *command.split(), "-"]
    found = subprocess.run(shell, cwd=tf_dist.folder, env=tf_dist.env, capture_output=True, text=True)
    assert found.returncode == 2
    assert "error: (standard input): is closed\n" in found.stdout + found.stderr


def test_exit_code_is_right_without_any_output(tf_dist: Program) -> None:
    tf_dist.write("job.yaml", tf_dist.job())
    for name, code in (("job.yaml", 1), ("missing.yaml", 2)):
        command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *PROGRAM, "plan", name]
        assert subprocess.run(command, cwd=tf_dist.folder, env=tf_dist.env).returncode == code


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_dry_run_with_closed_pipe_exits_with_141(tf_dist: Program, unbuffered: str) -> None:
    command = [*PROGRAM, "argo-launch", f"job_file={tf_dist.write('job.yaml', tf_dist.job())}", "--dry-run"]
    env = {**tf_dist.env, "PYTHONUNBUFFERED": unbuffered}
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as left:
        found = subprocess.run(command, cwd=tf_dist.folder, env=env, stdout=left, stderr=PIPE)
    assert (found.returncode, found.stderr) == (141, b"")
