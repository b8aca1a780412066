"""The command line of the launcher. It imports little: it is read before anything else is loaded."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NoReturn

from tf_dist.client.launch import contract
from tf_dist.core.api.timestamps import seconds_of
from tf_dist.core.steps.adoption import DriverChoice
from tf_dist.core.steps.job_arguments import argument_problems, choice_problems, count_of
from tf_dist.core.steps.shutdown import OnTerm

AUTO: Final = "auto"
SUSPEND: Final = "suspend"
ON_SUSPEND: Final = (SUSPEND, "leave")

_STORED: Final = re.compile(r"@(/tmp/argo_arg_\d+\.txt)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherOptions:
    """Arguments of a launcher. Times are seconds (None: no limit), "" is "not said".

    ``job``: a document, or ``job_file`` where it is. ``changes``, ``changes_json``, ``changes_text``: ``PATH=VALUE``.
    ``inputs``: declarations of values that a workflow fills in, as JSON; ``input_values``: ``NAME=VALUE``, and
    ``input_list``: all parameters of the workflow as Argo lists them, of which the declared ones count.
    ``overrides``: ``{PATH: VALUE}`` as JSON. ``fallback``: a list as JSON. ``workflow``, ``workflow_uid``, ``node``:
    whose step it is; the same for every try of a step. ``retry`` of ``retries``: which try it is. ``reattach``: a try
    goes on with the job of the last one. ``driver``: see ``DriverChoice``. ``grace``: seconds from SIGTERM to
    SIGKILL. ``on_suspend``: the job is suspended while the workflow is, looked at every ``look_every`` seconds, as
    often as Argo does. ``settle``: seconds for the controller to see to the pods of a job that has ended. ``deadline``:
    when Argo stops the pod. ``checkpoint_files``: those of the last checkpoint are an output, copied from what is
    below these folders and from nowhere else.
    """

    job: str = ""
    job_file: str = ""
    changes: tuple[str, ...] = ()
    changes_json: tuple[str, ...] = ()
    changes_text: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    input_values: tuple[str, ...] = ()
    input_list: str = ""
    overrides: str = ""
    fallback: str = ""
    on_eviction: str = ""
    on_preemption: str = ""
    workers: int | None = None
    ps: int | None = None
    queue: str = ""
    priority_class: str = ""
    image: str = ""
    model_dir: str = ""
    namespace: str = ""
    workflow: str = ""
    workflow_uid: str = ""
    node: str = ""
    retry: int = 0
    retries: int = 0
    reattach: bool = True
    driver: DriverChoice = DriverChoice.AUTO
    on_term: OnTerm | None = None
    on_suspend: bool = True
    grace: float = 30.0
    settle: float = 30.0
    look_every: float = 10.0
    admission_timeout: float | None = None
    startup_timeout: float | None = 600.0
    run_timeout: float | None = None
    total_steps: int | None = None
    checkpoint_files: tuple[str, ...] = ()
    out: Path = Path(contract.OUT)
    progress_file: Path | None = None
    deadline: str = ""
    kubeconfig: str = ""
    context: str = ""
    dry_run: bool = False


def parse_arguments(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> LauncherOptions:
    """Read the command line; SystemExit 2 when it is wrong, 0 after ``--help``."""
    parser = _parser()
    given = vars(parser.parse_args([_unfolded(text, parser) for text in arguments]))
    if bool(given["job"]) == bool(given["job_file"]):
        parser.error("give a job: either --job DOCUMENT or --job-file FILE")
    grace_period = environ.get("ARGO_TERMINATION_GRACE_PERIOD_SECONDS", "")
    progress = environ.get("ARGO_PROGRESS_FILE", "")
    texts = {name: tuple(filter(None, value)) for name, value in given.items() if isinstance(value, list)}
    options = {
        **given,
        **texts,
        "checkpoint_files": tuple(given["checkpoint_files"]),
        "retry": given["retry"] or 0,
        "retries": given["retries"] or 0,
        "grace": given["grace"] or (float(grace_period) if grace_period.isdecimal() else 30.0),
        "progress_file": Path(progress) if progress else None,
        "deadline": environ.get("ARGO_DEADLINE", ""),
        # Of this try only: without the step's name none can be told from those of another item of a loop.
        "node": given["node"] or ("" if given["workflow_uid"] else environ.get("ARGO_NODE_ID", "")),
    }
    return LauncherOptions(**options)


def _unfolded(text: str, parser: argparse.ArgumentParser) -> str:
    """Argo's executor hands over an argument of more than 128 KiB as the name of a file that holds it (Argo 4.1)."""
    stored = _STORED.fullmatch(text)
    if stored is None:
        return text
    try:
        return Path(stored[1]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"{stored[1]}, where Argo has put a long argument, cannot be read: {error}")


def _value(kind: str, read: Callable[[str], Any] = str, empty: Any = "") -> Callable[[str], Any]:
    """A reader of an argument of the table of job arguments; an empty text is none."""

    def reader(text: str) -> Any:
        if not text.strip():
            return empty
        # What a workflow was to fill in stands here as it is.
        for problem in argument_problems(kind, text, later=lambda _: False):
            raise argparse.ArgumentTypeError(f"{problem.message}: {problem.hint}")
        return read(text)

    return reader


def _choice(known: Mapping[str, Any], empty: str) -> Callable[[str], Any]:
    """A reader of one of several words, as what it means."""

    def reader(text: str) -> Any:
        for problem in choice_problems("", text or empty, known):
            raise argparse.ArgumentTypeError(f"{problem.message} ({problem.hint})")
        return known[text or empty]

    return reader


_COUNT: Final = _value("workers", count_of, None)
_TIME: Final = _value("run_timeout", seconds_of, None)
_DRIVERS: Final = {one.value: one for one in DriverChoice}
_ON_TERM: Final[Mapping[str, OnTerm | None]] = {AUTO: None, **{one.value: one for one in OnTerm}}
_ON_SUSPEND: Final = {one: one == SUSPEND for one in ON_SUSPEND}


def option_name(argument: str) -> str:
    """The option that is called as an argument in Python: ``--on-eviction`` for ``on_eviction``."""
    return f"--{argument.replace('_', '-')}"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as every command of tf-dist does: without thirty lines of usage in the log of a step."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n  hint: {self.prog} --help shows what can be given\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tf-dist argo-launch",
        description="Run a job as a step of an Argo workflow: create or adopt it, drive it, show it, report its end. "
        "TFJobStep of tf_dist.argo and the exported templates write this command line. An empty value is none.",
        epilog="Exit codes: 0 succeeded, 1 the job failed, 2 set up wrongly, 75 try again, 143 stopped by SIGTERM.",
        allow_abbrev=False,
    )
    usual = {one.name: one.default for one in fields(LauncherOptions)}

    def option(
        group: Any, flag: str, metavar: str, about: str, read: Callable[[str], Any] = str, dest: str = ""
    ) -> None:
        """An option for the field of its name, or ``dest``; what is several there may be said several times."""
        dest = dest or flag.removeprefix("--").replace("-", "_")
        several = isinstance(usual[dest], tuple)
        action, default = ("append", []) if several else ("store", usual[dest])
        group.add_argument(flag, dest=dest, action=action, default=default, metavar=metavar, type=read, help=about)

    job = parser.add_argument_group("the job")
    option(job, "--job", "DOCUMENT", "the job, as YAML or JSON")
    option(job, "--job-file", "FILE", "the job, in a file")
    option(job, "--set", "PATH=VALUE", "change the job first", dest="changes")
    option(job, "--set-json", "PATH=JSON", "the same, with any JSON", dest="changes_json")
    option(job, "--set-string", "PATH=TEXT", "the same, with any text", dest="changes_text")
    declared = (
        "declare a value that the workflow fills in: its name, path, type (string, integer, number, boolean), "
        "minimum, maximum, pattern, enum, maxLength, and the text around it; or a list of such"
    )
    option(job, "--input", "JSON", declared, dest="inputs")
    option(job, "--set-input", "NAME=VALUE", "the value of an input", dest="input_values")
    option(job, "--set-inputs", "JSON", "values of all inputs: {{workflow.parameters.json}}", dest="input_list")
    option(job, "--overrides", "JSON", 'values for places of the job: {"spec.runPolicy.backoffLimit": 3}')
    option(job, "--workers", "N", "how many workers", _COUNT)
    option(job, "--ps", "N", "how many parameter servers", _COUNT)
    option(job, "--queue-name", "QUEUE", "the queue it waits in", _value("queue_name"), dest="queue")
    option(job, "--priority-class", "NAME", "how much it matters", _value("priority_class"))
    option(job, "--image", "IMAGE", "the image of the containers that train", _value("image"))
    option(job, "--model-dir", "DIR", f"the folder that replicas find in ${contract.MODEL_DIR}", _value("model_dir"))
    option(job, "--total-steps", "N", "at which step it is done, for the progress", _COUNT)
    place = parser.add_argument_group("its place")
    option(place, "--namespace", "NS", "where it goes (default: where the pod is)", _value("namespace"))
    option(place, "--workflow", "NAME", "the workflow: {{workflow.name}}")
    option(place, "--workflow-uid", "UID", "{{workflow.uid}}")
    option(place, "--node", "NAME", "the step: {{node.name}}")
    option(place, "--retry", "N", "which try it is: {{retries}}", _COUNT)
    option(place, "--retries", "N", "how many more there are: retryStrategy.limit", _COUNT)
    option(place, "--kubeconfig", "FILE", "a cluster other than the pod's own")
    option(place, "--context", "NAME", "of that kubeconfig")
    run = parser.add_argument_group("how it goes")
    whose = "whose controller (auto: where none leads, this step's)"
    option(run, "--driver", "{auto,controller}", whose, _choice(_DRIVERS, AUTO))
    term = "what becomes of the job on SIGTERM (auto: delete, or leave it when the step will be tried again)"
    option(run, "--on-term", "{auto,delete,suspend,leave}", term, _choice(_ON_TERM, AUTO))
    suspend = "what becomes of the job while the workflow is suspended (default: suspend; leave: it goes on)"
    option(run, "--on-suspend", "{suspend,leave}", suspend, _choice(_ON_SUSPEND, SUSPEND))
    anew = "a try makes a job of its own, the last one's goes"
    run.add_argument("--no-reattach", dest="reattach", action="store_false", help=anew)
    run.add_argument("--grace", metavar="TIME", type=_TIME, help="from SIGTERM to SIGKILL (default: 30s)")
    admission = "give up when it has no place by then; with fallbacks: when those have none for as long again"
    option(run, "--admission-timeout", "TIME", admission, _TIME)
    option(run, "--fallback", "JSON", 'what it may be instead: [{"workers": 4}, {"queue_name": "spot"}]')
    policies = "restart (default), requeue, fail, fallback"
    option(run, "--on-eviction", "POLICY", f"what follows an eviction: {policies}")
    option(run, "--on-preemption", "POLICY", "the same, for a preemption")
    startup = (
        f"give up when it is admitted and does not run by then (default: {contract.STARTUP_TIMEOUT}; empty: never)"
    )
    option(run, "--startup-timeout", "TIME", startup, _TIME)
    option(run, "--run-timeout", "TIME", "give up when it is not done by then", _TIME)
    option(run, "--out", "DIR", "where outputs are written", Path)
    run.add_argument(
        "--checkpoint-files",
        action="append",
        default=[],
        nargs="?",  # a step that names no folder copies nothing, and its log says so
        const="",
        metavar="MOUNT",
        help="copy the last checkpoint into the folder of the outputs if it is below this folder; may be repeated",
    )
    run.add_argument("--dry-run", action="store_true", help="print the job that would be created, and end")
    return parser
