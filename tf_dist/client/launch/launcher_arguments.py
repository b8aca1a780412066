"""The command line of the launcher. Only the standard library: it is read before anything else is loaded."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tf_dist.client.launch import contract
from tf_dist.core.steps.adoption import DriverChoice
from tf_dist.core.steps.shutdown import OnTerm

AUTO: Final = "auto"
SUSPEND: Final = "suspend"
ON_SUSPEND: Final = (SUSPEND, "leave")

_STORED: Final = re.compile(r"@(/tmp/argo_arg_\d+\.txt)")
_NUMBER: Final = r"[0-9]{1,10}(?:\.[0-9]{1,9})?"
_TIME: Final = re.compile(rf"(?:{_NUMBER}[smhd])*{_NUMBER}[smhd]?")
_TIME_PART: Final = re.compile(rf"({_NUMBER})([smhd]?)")
_COUNT: Final = re.compile(r"[0-9]{1,9}")
_MAX_SECONDS: Final = 1024
_MAX_SHOWN: Final = 60
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherOptions:
    """Arguments of a launcher. Times are seconds (None: no limit), "" is "not said".

    ``job``: a document, or ``job_file`` where it is. ``changes``, ``changes_json``, ``changes_text``: ``PATH=VALUE``.
    ``inputs``: declarations of values that a workflow fills in, as JSON; ``input_values``: ``NAME=VALUE``, and
    ``input_list``: all parameters of the workflow as Argo lists them, of which the declared ones count.
    ``overrides``: ``{PATH: VALUE}`` as JSON. ``fallback``: a list as JSON. ``workflow``, ``workflow_uid``, ``node``:
    whose step it is; the same for every try of a step. ``retry`` of ``retries``: which try it is. ``reattach``: a try
    goes on with the job of the last one. ``driver``: from here, or by a controller. ``grace``: seconds from SIGTERM to
    SIGKILL. ``on_suspend``: the job is suspended while the workflow is, looked at every ``look_every`` seconds, as
    often as Argo does. ``settle``: seconds for the driver to see to the pods of a job that has ended. ``deadline``:
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
    dry_run: bool = field(default=False)


def parse_arguments(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> LauncherOptions:
    """Read the command line; SystemExit 2 when it is wrong, 0 after ``--help``."""
    parser = _parser()
    given = parser.parse_args([_unfolded(text, parser) for text in arguments])
    if bool(given.job) == bool(given.job_file):
        parser.error("give a job: either --job DOCUMENT or --job-file FILE")
    grace_period = environ.get("ARGO_TERMINATION_GRACE_PERIOD_SECONDS", "")
    progress = environ.get("ARGO_PROGRESS_FILE", "")
    return LauncherOptions(
        job=given.job,
        job_file=given.job_file,
        changes=_given_texts(given.set),
        changes_json=_given_texts(given.set_json),
        changes_text=_given_texts(given.set_string),
        inputs=_given_texts(given.input),
        input_values=_given_texts(given.set_input),
        input_list=given.set_inputs,
        overrides=given.overrides,
        fallback=given.fallback,
        on_eviction=given.on_eviction,
        on_preemption=given.on_preemption,
        workers=given.workers,
        ps=given.ps,
        queue=given.queue_name,
        priority_class=given.priority_class,
        image=given.image,
        model_dir=given.model_dir,
        namespace=given.namespace,
        workflow=given.workflow,
        workflow_uid=given.workflow_uid,
        node=given.node,
        retry=given.retry or 0,
        retries=given.retries or 0,
        reattach=given.reattach,
        driver=DriverChoice(given.driver or AUTO),
        on_term=None if given.on_term in (AUTO, "") else OnTerm(given.on_term),
        on_suspend=given.on_suspend in (SUSPEND, ""),
        grace=given.grace or (float(grace_period) if grace_period.isdecimal() else 30.0),
        admission_timeout=given.admission_timeout,
        startup_timeout=given.startup_timeout,
        run_timeout=given.run_timeout,
        total_steps=given.total_steps,
        checkpoint_files=tuple(given.checkpoint_files),
        out=Path(given.out),
        progress_file=Path(progress) if progress else None,
        deadline=environ.get("ARGO_DEADLINE", ""),
        kubeconfig=given.kubeconfig,
        context=given.context,
        dry_run=given.dry_run,
    )


def _unfolded(text: str, parser: argparse.ArgumentParser) -> str:
    """Argo's executor hands over an argument of more than 128 KiB as the name of a file that holds it (Argo 4.1)."""
    stored = _STORED.fullmatch(text)
    if stored is None:
        return text
    try:
        return Path(stored[1]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"{stored[1]}, where Argo has put a long argument, cannot be read: {error}")


def _given_texts(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for text in texts if text)


def read_count(text: str) -> int | None:
    """The whole number; None for an empty text. ArgumentTypeError, as for the others below."""
    if not text.strip():
        return None
    if not _COUNT.fullmatch(text.strip()):
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a whole number: write 4")
    return int(text)


def read_line(text: str) -> str:
    """One line of text: what a workflow fills in here goes into the job as it is."""
    if len(text) > _MAX_SECONDS or not text.isprintable() or "{{" in text:
        raise argparse.ArgumentTypeError(
            f"{_shown(text)} is not one line of at most {_MAX_SECONDS} printable characters"
        )
    return text


def read_word(text: str) -> str:
    """A text without a space in it."""
    if " " in read_line(text):
        raise argparse.ArgumentTypeError(f"{_shown(text)} has a space in it: write one word")
    return text


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")


def read_seconds(text: str) -> float | None:
    """Seconds of ``90``, ``10m`` or ``1h30m``; None for an empty text."""
    if not text.strip():
        return None
    if not _TIME.fullmatch(text.strip()):
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a time: write 90s, 10m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in _TIME_PART.findall(text))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tf-dist argo-launch",
        description="Run a job as a step of an Argo workflow: create or adopt it, drive it, show it, report its end. "
        "TFJobStep of tf_dist.argo and the exported templates write this command line. An empty value is none.",
        epilog="Exit codes: 0 succeeded, 1 the job failed, 2 set up wrongly, 75 try again, 143 stopped by SIGTERM.",
        allow_abbrev=False,
    )
    job = parser.add_argument_group("the job")
    job.add_argument("--job", default="", metavar="DOCUMENT", help="the job, as YAML or JSON")
    job.add_argument("--job-file", default="", metavar="FILE", help="the job, in a file")
    job.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change the job first")
    job.add_argument("--set-json", action="append", default=[], metavar="PATH=JSON", help="the same, with any JSON")
    job.add_argument("--set-string", action="append", default=[], metavar="PATH=TEXT", help="the same, with any text")
    job.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="JSON",
        help="declare a value that the workflow fills in: its name, path, type (string, integer, number, boolean), "
        "minimum, maximum, pattern, enum, maxLength, and the text around it; or a list of such",
    )
    job.add_argument("--set-input", action="append", default=[], metavar="NAME=VALUE", help="the value of an input")
    job.add_argument(
        "--set-inputs", default="", metavar="JSON", help="values of all inputs: {{workflow.parameters.json}}"
    )
    job.add_argument(
        "--overrides",
        default="",
        metavar="JSON",
        help='values for places of the job: {"spec.runPolicy.backoffLimit": 3}',
    )
    job.add_argument("--workers", type=read_count, metavar="N", help="how many workers")
    job.add_argument("--ps", type=read_count, metavar="N", help="how many parameter servers")
    job.add_argument("--queue-name", type=read_word, default="", metavar="QUEUE", help="the queue it waits in")
    job.add_argument("--priority-class", type=read_word, default="", help="how much it matters")
    job.add_argument("--image", type=read_word, default="", help="the image of the containers that train")
    job.add_argument(
        "--model-dir",
        type=read_line,
        default="",
        metavar="DIR",
        help=f"the folder that replicas find in ${contract.MODEL_DIR}",
    )
    job.add_argument("--total-steps", type=read_count, metavar="N", help="at which step it is done, for the progress")
    place = parser.add_argument_group("its place")
    place.add_argument(
        "--namespace", type=read_word, default="", metavar="NS", help="where it goes (default: where the pod is)"
    )
    place.add_argument("--workflow", default="", metavar="NAME", help="the workflow: {{workflow.name}}")
    place.add_argument("--workflow-uid", default="", metavar="UID", help="{{workflow.uid}}")
    place.add_argument("--node", default="", metavar="NAME", help="the step: {{node.name}}")
    place.add_argument("--retry", type=read_count, metavar="N", help="which try it is: {{retries}}")
    place.add_argument("--retries", type=read_count, metavar="N", help="how many more there are: retryStrategy.limit")
    place.add_argument("--kubeconfig", default="", metavar="FILE", help="a cluster other than the pod's own")
    place.add_argument("--context", default="", metavar="NAME", help="of that kubeconfig")
    run_options = parser.add_argument_group("how it goes")
    run_options.add_argument(
        "--driver",
        choices=(*DriverChoice, ""),
        default=DriverChoice.AUTO,
        help="who drives it: this step, or a controller (auto: a controller where one lives)",
    )
    run_options.add_argument(
        "--on-term",
        choices=(AUTO, *OnTerm, ""),
        default=AUTO,
        help="what becomes of the job on SIGTERM (auto: delete, or leave it when the step will be tried again)",
    )
    run_options.add_argument(
        "--on-suspend",
        choices=(*ON_SUSPEND, ""),
        default=SUSPEND,
        help="what becomes of the job while the workflow is suspended (default: suspend; leave: it goes on)",
    )
    run_options.add_argument(
        "--no-reattach", dest="reattach", action="store_false", help="a try makes a job of its own, the last one's goes"
    )
    run_options.add_argument(
        "--grace", type=read_seconds, metavar="TIME", help="from SIGTERM to SIGKILL (default: 30s)"
    )
    run_options.add_argument(
        "--admission-timeout",
        type=read_seconds,
        metavar="TIME",
        help="give up when it has no place by then; with fallbacks: when those have none for as long again",
    )
    run_options.add_argument(
        "--fallback",
        default="",
        metavar="JSON",
        help='what it may be instead: [{"workers": 4}, {"queue_name": "spot"}]',
    )
    policies = "restart (default), requeue, fail, fallback"
    run_options.add_argument(
        "--on-eviction", default="", metavar="POLICY", help=f"what follows an eviction: {policies}"
    )
    run_options.add_argument("--on-preemption", default="", metavar="POLICY", help="the same, for a preemption")
    run_options.add_argument(
        "--startup-timeout",
        type=read_seconds,
        default=contract.STARTUP_TIMEOUT,
        metavar="TIME",
        help="give up when it is admitted and does not run by then (default: %(default)s; empty: never)",
    )
    run_options.add_argument(
        "--run-timeout", type=read_seconds, metavar="TIME", help="give up when it is not done by then"
    )
    run_options.add_argument("--out", default=contract.OUT, metavar="DIR", help="where outputs are written")
    run_options.add_argument(
        "--checkpoint-files",
        action="append",
        default=[],
        nargs="?",  # a step that names no folder copies nothing, and its log says so
        const="",
        metavar="MOUNT",
        help="copy the last checkpoint into the folder of the outputs if it is below this folder; may be repeated",
    )
    run_options.add_argument("--dry-run", action="store_true", help="print the job that would be created, and end")
    return parser
