"""The commands: their names in the order of the help, the modules of their code, and the help of the program itself.

No commands are imported here, so that ``tf-dist --help`` and the start of a command do not wait for other commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
from typing import Final, NamedTuple

ABOUT: Final = "Distributed TensorFlow jobs, on this machine and on clusters."
EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 the job failed, 2 bad usage or an invalid job, 75 try again, 130/143 interrupted."
)
OPTIONS: Final = {
    "--version": "Show the version and exit.",
    "--plain": "Plain text even on a terminal (also: NO_COLOR).",
    "--debug": "Tracebacks with errors (also: TF_DIST_DEBUG=1).",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Print the completion of the current shell.",
    "--help, -h": "Show this help, or that of a command: tf-dist run --help",
}
_FILE, _JOBS, _CLUSTERS, _PIPELINES = "With a file", "With submitted jobs", "Clusters", "Pipelines"


class Command(NamedTuple):
    """A command of the program, or a group of commands."""

    name: str
    code: str
    """The module in ``tf_dist.cli.commands``, and the function or Typer app in it."""
    panel: str
    """The heading under which the help lists it."""
    summary: str


COMMANDS: Final = (
    Command("validate", "file_checks:validate", _FILE, "Check job files and report every problem with its place"),
    Command("plan", "file_checks:plan", _FILE, "Show what a job would create, without starting it"),
    Command("run", "run:run", _FILE, "Run a job and follow it to its end"),
    Command("init", "init:init", _FILE, "Write a job file for a script"),
    Command("convert", "file_checks:convert", _FILE, "Write a job in another format"),
    Command("submit", "manage_jobs:submit", _JOBS, "Submit jobs and the objects in their files to a cluster"),
    Command("get", "inspect_jobs:get", _JOBS, "List submitted jobs, or show one"),
    Command("describe", "inspect_jobs:describe", _JOBS, "Show a job with its replicas and events"),
    Command("logs", "logs:logs", _JOBS, "Print the logs of all replicas of a job"),
    Command("wait", "manage_jobs:wait", _JOBS, "Wait until jobs reach a state"),
    Command("explain", "inspect_jobs:explain", _JOBS, "Explain why a job waits or failed, and what to do"),
    Command("suspend", "manage_jobs:suspend", _JOBS, "Stop the pods of jobs until they are resumed"),
    Command("resume", "manage_jobs:resume", _JOBS, "Resume suspended jobs"),
    Command("scale", "manage_jobs:scale", _JOBS, "Change the number of workers of a job"),
    Command("delete", "manage_jobs:delete", _JOBS, "Delete jobs with their pods and services"),
    Command("queues", "queues:queues", _CLUSTERS, "List the queues with their quota, usage and waiting jobs"),
    Command("controller", "controller:controller", _CLUSTERS, "Run the controller of a cluster"),
    Command("install", "install:install", _CLUSTERS, "Print the manifests that a cluster needs"),
    Command("simulate", "simulate:simulate", _CLUSTERS, "Compare policies on a trace of jobs"),
    Command("local", "local:app", _CLUSTERS, "Start and stop a persistent cluster on this machine"),
    Command("argo-launch", "argo_workflows:argo_launch", _PIPELINES, "Run a job as a step of an Argo workflow"),
    Command("argo-clean", "argo_workflows:argo_clean", _PIPELINES, "Delete the running jobs of an Argo workflow"),
    Command("workflows", "argo_workflows:app", _PIPELINES, "Export workflows for Argo"),
)

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "validate": ("tf-dist validate job.yaml", "tf-dist validate --strict jobs/*.yaml"),
    "plan": ("tf-dist plan job.yaml", "tf-dist plan job.yaml -o yaml"),
    "run": (
        "tf-dist run train.py --workers 2 --ps 1 -- --epochs 3",
        "tf-dist run train.py --env WANDB_API_KEY --context prod",
        "tf-dist run job.yaml",
        "tf-dist run job.yaml --node nvidia.com/gpu=2",
        "tf-dist run job.yaml --context prod --timeout 2h",
    ),
    "init": ("tf-dist init train.py --workers 2 --ps 1 -- --epochs 3",),
    "convert": ("tf-dist convert job.yaml --to kubeflow.org/v1",),
    "submit": (
        "tf-dist submit train.py --workers 2 -- --epochs 3",
        "tf-dist submit job.yaml",
        "tf-dist submit job.yaml --context prod -n team-a",
    ),
    "get": ("tf-dist get", "tf-dist get my-job -o yaml", "tf-dist get -A -o wide"),
    "describe": ("tf-dist describe my-job",),
    "logs": ("tf-dist logs my-job -f", "tf-dist logs my-job --tail 50"),
    "wait": ("tf-dist wait my-job --timeout 2h", "tf-dist wait my-job --for running"),
    "explain": ("tf-dist explain my-job", "tf-dist explain my-job -o yaml"),
    "suspend": ("tf-dist suspend my-job",),
    "resume": ("tf-dist resume my-job",),
    "scale": ("tf-dist scale my-job --workers 4",),
    "delete": ("tf-dist delete my-job", "tf-dist delete my-job vcjob/other --wait"),
    "queues": ("tf-dist queues", "tf-dist queues -o wide"),
    "controller": ("tf-dist controller", "tf-dist controller -n team-a"),
    "install": ("tf-dist install | kubectl apply --server-side -f -",),
    "simulate": ("tf-dist simulate", "tf-dist simulate --trace philly --html report.html"),
    "local up": ("tf-dist local up", "tf-dist local up --node cpu=8,memory=16Gi"),
    "local down": ("tf-dist local down",),
    "local status": ("tf-dist local status",),
    "workflows export": ("tf-dist workflows export manifests",),
    "argo-clean": ("tf-dist argo-clean --workflow-uid UID",),
}
"""Examples at the end of the help of a command."""


def named(arguments: Sequence[str]) -> Sequence[Command]:
    """The command that a command line names; all commands if it names no existing command."""
    name = next((one for one in arguments if not one.startswith("-")), "")
    return [command for command in COMMANDS if command.name == name] or COMMANDS


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether a command line requests the help of the program itself, or names no command."""
    before = list(takewhile(lambda one: one.startswith("-"), arguments))
    return bool({"-h", "--help"} & set(before)) or set(arguments) <= {"--plain", "--debug"}


def help_text() -> str:
    """The help of the program."""
    lines = ["Usage: tf-dist [OPTIONS] COMMAND [ARGS]...", "", ABOUT]
    for panel, commands in groupby(COMMANDS, lambda one: one.panel):
        lines += ["", f"{panel}:", *(f"  {one.name:<13}{one.summary}" for one in commands)]
    lines += ["", "Options:", *(f"  {name:<22}{text}" for name, text in OPTIONS.items()), "", EXIT_CODES]
    return "\n".join(lines)
