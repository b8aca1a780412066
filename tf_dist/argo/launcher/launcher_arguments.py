"""Arguments of the launcher: one JSON document of options, and the values that a workflow fills in.

The document is fixed in the step. Each value is a separate argument, ``NAME=VALUE``, so that it cannot change any other
option. Arguments are read before other modules are imported.
"""

from __future__ import annotations

import base64
import json
import os
import re
import textwrap
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tf_dist.argo.launcher import contract
from tf_dist.core.model.fieldpath import suggestion
from tf_dist.core.pipeline.run_options import (
    ANY,
    CHOICE,
    COUNT,
    FIELDS,
    LINE,
    POLICIES,
    SECONDS,
    SWITCH,
    WORDS,
    Face,
    Option,
    RunOptions,
    option,
    options_of,
    shown_value,
)
from tf_dist.core.pipeline.workflow_stop import JobFate
from tf_dist.errors import InvalidJob, Problem

_JOB: Final = """a document such as '{"job": {"apiVersion": "kubeflow.org/v1", …}, "workers": 4}'"""
_HELP: Final = "tf-dist argo-launch --help shows all options"
_VALUE: Final = "values."
_TEXT: Final = ANY._replace(read=str, empty="")
_NUMBER: Final = COUNT._replace(empty=0)
_FOLDER: Final = ANY._replace(read=Path, empty=Path(contract.OUT))
_DATA: Final = POLICIES

_GRACE: Final = 30.0
"""The default grace period of Kubernetes (seconds)."""


def _as_texts(given: Any) -> Any:
    """Values as text, because values of workflows are text."""
    if not isinstance(given, Mapping):
        return given
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}


_TEXTS: Final = FIELDS._replace(read=_as_texts)


launcher_option = partial(option, operator=False, step=False)
step_option = partial(option, operator=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherOptions(RunOptions):
    """The parsed options of a launcher: those of every run, and those of a step of a workflow."""

    job: Any = step_option(
        ANY, "The job: an object, a list of the job and its companion objects, or their text in YAML."
    )
    job_file: str = launcher_option(_TEXT, "A file with the job, instead of ``job``.", "", "")
    inputs: Any = launcher_option(
        _DATA,
        "Declarations of values that the workflow fills in. Each has ``name``, ``path`` in the job, ``type`` "
        "(string, integer, number, boolean), ``minimum``, ``maximum``, ``pattern``, ``enum``, ``maxLength``, and "
        "the ``text`` in which the value replaces ``{}``.",
    )
    values: Mapping[str, str] | None = launcher_option(
        _TEXTS,
        "The values of inputs, by name. A single value can be an argument, too: ``values.NAME=VALUE``.",
        '{"steps": "4000"}',
    )
    parameters: Any = launcher_option(
        _DATA,
        "All parameters of a workflow, ``{{workflow.parameters.json}}``. Those that are declared as inputs are "
        "used as values.",
    )
    code_archive: str = launcher_option(
        _TEXT,
        "The folder that is sent with the job, as the step's ``code`` packs it: a tar archive, gzip, base64.",
        "",
        "",
    )
    model_dir: str = step_option(
        LINE,
        f"The folder in ``${contract.MODEL_DIR}`` of the replicas. It is the same at each try, so that a retry finds "
        "the checkpoint.",
        "/models/digits",
        "",
        parameter=True,
    )
    total_steps: int | None = step_option(
        COUNT, "The last step of the training, for the progress.", "1000", parameter=True
    )
    on_term: JobFate | None = step_option(
        CHOICE,
        "What happens to the job when the launcher is stopped. ``auto``: it is deleted, or left if the step will be "
        "retried. ``delete``. ``suspend``: its pods stop, and the next try resumes it. ``leave``: it continues.",
        choices={"auto": None, **{one.value: one for one in JobFate if one is not JobFate.MARK}},
    )
    on_suspend: bool = step_option(
        CHOICE,
        "What happens to the job while the workflow is suspended: ``suspend``, or ``leave`` (it continues).",
        "",
        True,
        choices={"suspend": True, "leave": False},
    )
    grace: float = launcher_option(
        SECONDS, "The time from SIGTERM to SIGKILL, if Argo does not pass it.", "60s", _GRACE
    )
    checkpoint_files: Sequence[str] = launcher_option(
        WORDS,
        "Copy the last checkpoint into the folder of the outputs, if it is below one of these folders.",
        '["/models"]',
        (),
    )
    workflow: str = launcher_option(_TEXT, "The workflow: ``{{workflow.name}}``.", "", "")
    workflow_uid: str = launcher_option(_TEXT, "Its uid: ``{{workflow.uid}}``.", "", "")
    node: str = launcher_option(_TEXT, "The step, the same at every try: ``{{node.name}}``.", "", "")
    retry: int = launcher_option(_NUMBER, "The number of this try: ``{{retries}}``.", "", 0)
    retries: int = launcher_option(_NUMBER, "The maximum number of retries: ``retryStrategy.limit``.", "", 0)
    out: Path = launcher_option(_FOLDER, "The folder of the outputs.", "", Path(contract.OUT))
    kubeconfig: str = launcher_option(_TEXT, "A kubeconfig, for a cluster other than the pod's own.", "", "")
    context: str = launcher_option(_TEXT, "The context of that kubeconfig.", "", "")
    dry_run: bool = launcher_option(SWITCH, "Print the job instead of creating it: ``--dry-run``.", "", False)
    progress_file: Path | None = None
    """The file from which Argo reads the progress."""
    deadline: str = ""
    """When Argo stops the pod (RFC 3339)."""
    settle: float = 30.0
    """Seconds for the controller to clean up the pods of a job that has ended."""
    look_every: float = 10.0
    """Seconds between two reads of the workflow, the same as Argo's own interval."""


ROWS: Final[Mapping[str, Option]] = options_of(LauncherOptions, Face.LAUNCHER)

# The document as an argument

LARGEST_ARGUMENT: Final = 131_071
"""The largest argument or environment variable of a process in Linux (bytes)."""
_PACKED: Final = "zlib:"
_MOST_UNPACKED: Final = 64 << 20
_FILE: Final = "@"
_LINE: Final = 100
_EXPANDED: Final = re.compile(r"\$(?=[$(])")


def document_argument(document: Mapping[str, Any], *, pack: bool = False) -> str:
    """The document as an argument: readable text, or compressed."""
    if not pack:
        # The kubelet expands $(NAME) in arguments, and reduces $$ to a dollar sign.
        return _EXPANDED.sub(r"\\u0024", _laid_out(document))
    return _PACKED + base64.b64encode(zlib.compress(json.dumps(document).encode(), 9)).decode()


def _laid_out(value: Any, depth: int = 0) -> str:
    """JSON in which each value that fits on a line is on one line."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) + depth <= _LINE or not isinstance(value, Mapping | list) or not value:
        return text
    inner, outer = "\n" + "  " * (depth + 1), "\n" + "  " * depth
    if isinstance(value, list):
        return f"[{inner}" + f",{inner}".join(_laid_out(one, depth + 1) for one in value) + f"{outer}]"
    lines = (f"{json.dumps(key, ensure_ascii=False)}: {_laid_out(one, depth + 1)}" for key, one in value.items())
    return f"{{{inner}" + f",{inner}".join(lines) + f"{outer}}}"


def read_arguments(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> LauncherOptions:
    """The options of the arguments: the document, ``NAME=VALUE``, ``@FILE`` with one of these, or ``--dry-run``.

    Raises InvalidJob with all problems.
    """
    given: list[tuple[str, Any]] = []
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for argument in arguments:
        try:
            text = _unfolded(argument)
            if text == "--dry-run":
                given.append(("dry_run", True))
            elif text.startswith(("{", _PACKED)):
                given += _document(text).items()
            else:
                name, equals, value = text.partition("=")
                if not equals:
                    raise InvalidJob([Problem(shown_value(text), "is not an option", f"write NAME=VALUE, or {_JOB}")])
                if name.startswith(_VALUE):
                    values[name.removeprefix(_VALUE)] = value
                else:
                    given.append((name, value))
        except InvalidJob as error:
            problems += error.problems
    options: dict[str, Any] = {}
    for name, value in given:
        problems += _read(name, value, options)
    if not problems and bool(options.get("job")) == bool(options.get("job_file")):
        problems.append(Problem("job", "give exactly one of job and job_file", f"write {_JOB}"))
    if problems:
        raise InvalidJob(problems)
    grace, progress = environ.get("ARGO_TERMINATION_GRACE_PERIOD_SECONDS", ""), environ.get("ARGO_PROGRESS_FILE", "")
    own = {
        "values": {**(options.get("values") or {}), **values},
        "grace": options.get("grace") or (float(grace) if grace.isdecimal() else _GRACE),
        "progress_file": Path(progress) if progress else None,
        "deadline": environ.get("ARGO_DEADLINE", ""),
        # ARGO_NODE_ID is different for each try. Without the step's name, it distinguishes the items of a loop.
        "node": options.get("node") or ("" if options.get("workflow_uid") else environ.get("ARGO_NODE_ID", "")),
    }
    return LauncherOptions(**{**options, **own})


def _unfolded(text: str) -> str:
    """The content of ``@FILE``: a mounted document, or an argument above 128 KiB, which Argo 4.1 puts into a file."""
    if not text.startswith(_FILE):
        return text
    try:
        return Path(text.removeprefix(_FILE)).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidJob([Problem(text, f"cannot be read: {error}", "name a file of the pod")]) from None


def _document(text: str) -> dict[str, Any]:
    what = "the document"
    try:
        if text.startswith(_PACKED):
            data = zlib.decompressobj().decompress(base64.b64decode(text.removeprefix(_PACKED)), _MOST_UNPACKED)
            text = data.decode()
        return dict(json.loads(text))
    except (ValueError, TypeError, RecursionError, zlib.error) as error:
        raise InvalidJob([Problem(what, f"is not JSON: {error}", f"write {_JOB}")]) from None


def _read(name: str, value: Any, options: dict[str, Any]) -> Iterator[Problem]:
    """Add the value of an option to ``options``, and yield its problems. Lists and mappings are merged."""
    if (row := ROWS.get(name)) is None:
        yield Problem(shown_value(name)[1:-1], "is not an option", suggestion(name, ROWS, _HELP))
        return
    try:
        read = row.read(json.loads(value) if row.kind.structured and isinstance(value, str) and value else value)
    except (ValueError, RecursionError) as error:
        yield Problem(name, f"{shown_value(str(value))} is not JSON: {error}", f"write {row.example}")
        return
    # A reference that the workflow did not fill in is checked like any other value.
    judged = value if row.kind.of_text and value != "" else read
    yield from row.problems(judged, later=lambda _: False)
    before = options.get(row.name)
    if row.kind.structured and before and type(before) is type(read or before):
        read = before + (read or []) if isinstance(before, list) else {**before, **(read or {})}
    options[row.name] = read


ABOUT: Final = """\
Run a job as a step of an Argo workflow: create or adopt it, follow it, report how it ended. TFJobStep of tf_dist.argo
and the exported templates write these arguments.

DOCUMENT is a JSON object of options; NAME=VALUE gives one option, and an empty value none. @FILE stands for the content
of a file. Exit codes: 0 succeeded, 1 the job failed, 2 an invalid job or option, 75 try again, 143 stopped by
SIGTERM."""


def help_text() -> str:
    """The text of ``--help``."""
    lines = ["Usage: tf-dist argo-launch DOCUMENT [NAME=VALUE]... [--dry-run]", "", ABOUT, "", "Options:", ""]
    for name, row in ROWS.items():
        about = row.about(Face.LAUNCHER).replace("``", "")
        lines.append(textwrap.fill(f"{name:<18} {about}", 110, initial_indent="  ", subsequent_indent=" " * 21))
    return "\n".join(lines)
