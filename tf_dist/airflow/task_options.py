"""Options of a task that runs a job: those of every run, and those of Airflow. Does not import Airflow itself."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.airflow.callbacks import TFJobCallbacks
from tf_dist.core.pipeline.adoption import DriverChoice
from tf_dist.core.pipeline.run_options import (
    ANY,
    CHOICE,
    INTERVAL,
    SWITCH,
    TEXT,
    WORDS,
    Face,
    Kind,
    Later,
    Option,
    RunOptions,
    fixed_option,
    is_template,
    option,
    options_of,
)
from tf_dist.errors import Problem

_TEXT: Final = TEXT._replace(empty=None)
DEFAULT_CONNECTION: Final = "kubernetes_default"


def _exit_codes(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    """Problems of one or several exit codes. A container that is not iterable is accepted."""
    codes = value if isinstance(value, Collection) and not isinstance(value, str | bytes | range) else (value,)
    if not all(isinstance(code, int | Container) and not isinstance(code, bool | str | bytes) for code in codes):
        yield Problem(name, f"{value!r} is neither a number nor a list of numbers", f"write {example}")


def _callbacks(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    for one in value if isinstance(value, Sequence) else (value,):
        if not (isinstance(one, type) and issubclass(one, TFJobCallbacks)):
            yield Problem(name, f"{one!r} is not a class of TFJobCallbacks", "give the class, not an object of it")


_FINISH_ACTIONS: Final = ("delete_job", "keep_job", "delete_succeeded_job", "delete_active_job")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions(RunOptions):
    """The parsed arguments of ``TFJobOperator``."""

    job: Any = option(
        ANY,
        "The path of a YAML or JSON file (a relative path starts at the DAG's folder), a dict, or a ``TFJob``. "
        "The arguments from ``image`` to ``priority_class`` change it. Without ``job``, they make a TFJob. Templates "
        "in a file are filled in after YAML has parsed it.",
    )
    kubernetes_conn_id: str | None = option(
        _TEXT,
        "A connection of type ``kubernetes``. The default connection does not have to exist.",
        DEFAULT_CONNECTION,
        DEFAULT_CONNECTION,
    )
    in_cluster: bool | None = fixed_option(SWITCH, "Use the cluster of the pod in which this process runs.")
    config_file: str | None = option(_TEXT, "A kubeconfig.", "/files/kubeconfig")
    cluster_context: str | None = option(_TEXT, "A context of that kubeconfig.", "production")
    wait_for_completion: bool = fixed_option(
        SWITCH, "Wait for the job. False: the task ends when the job is submitted, which needs a controller.", "", True
    )
    deferrable: bool = fixed_option(
        SWITCH, "Wait in the triggerer. The default is the setting ``[operators] default_deferrable``.", "", False
    )
    poll_interval: float = fixed_option(
        INTERVAL, "Seconds, or ``30s``, between two attempts to find a job that does not exist.", "30s", 10.0
    )
    get_logs: bool = fixed_option(SWITCH, "Write the log lines of all replicas to the log of the task.", "", True)
    on_finish_action: str = fixed_option(
        CHOICE,
        "What happens to the job at the end of the task: ``delete_job``, ``keep_job``, ``delete_succeeded_job``, or "
        "``delete_active_job`` (delete only a job that has not ended by itself).",
        "",
        "delete_job",
        choices=_FINISH_ACTIONS,
    )
    on_kill_action: str = fixed_option(
        CHOICE,
        "What happens to the job when a user ends the task, or marks it failed: ``delete_job`` or ``keep_job``.",
        "",
        "delete_job",
        choices=_FINISH_ACTIONS[:2],
    )
    skip_on_exit_code: int | Container[int] | None = fixed_option(
        Kind(_exit_codes, of_text=False, empty=None),
        "If the job fails with one of these exit codes, the task is skipped.",
        "[3, 4]",
    )
    callbacks: type[TFJobCallbacks] | Sequence[type[TFJobCallbacks]] | None = fixed_option(
        Kind(_callbacks, of_text=False, empty=None), "One or several ``TFJobCallbacks`` classes."
    )
    job_url: str | None = option(
        _TEXT,
        "The URL of a page about the job. ``{name}`` and ``{namespace}`` are filled in.",
        "https://jobs.example.com/{namespace}/{name}",
    )
    tensorboard_url: str | None = option(
        _TEXT,
        "The URL of the TensorBoard of the job, with the same placeholders.",
        "https://tensorboard.example.com/{name}",
    )

    @property
    def drives(self) -> bool:
        """Whether the process that waits for the job leads its namespace if nobody else does."""
        return self.driver is not DriverChoice.CONTROLLER


OPTIONS: Final = options_of(TaskOptions, Face.OPERATOR)
"""The rows of the options, by the operator's arguments."""
_ATTRIBUTES: Final[Mapping[str, str]] = {"resources": "job_resources"}
ATTRIBUTES: Final = {argument: _ATTRIBUTES.get(argument, argument) for argument in OPTIONS}
"""The operator's attribute for each argument. Airflow uses some names for its own attributes."""
TEMPLATED: Final = ("job", *(ATTRIBUTES[name] for name, row in OPTIONS.items() if row.templated and name != "job"))
"""The attributes with templates."""
RENDERERS: Final = {"job": "yaml"} | {
    ATTRIBUTES[name]: "py"
    for name, row in OPTIONS.items()
    if row.templated and row.kind.structured and row.kind is not WORDS
}


def read_options(task: Any) -> TaskOptions:
    """The current arguments of an operator, parsed. Their templates may be rendered or not."""
    return TaskOptions(**{row.name: row.read(getattr(task, ATTRIBUTES[name])) for name, row in OPTIONS.items()})


def comes_later(given: object) -> bool:
    """Whether the value is a template or the result of another task, so that it is known later."""
    return hasattr(given, "iter_references") or is_template(given)  # not ``resolve``, which paths also have


def attribute_problems(task: Any, options: Mapping[str, Option]) -> Iterator[Problem]:
    """The problems of a task's arguments. Values that are known later are not checked."""
    for name, row in options.items():
        attribute = ATTRIBUTES.get(name, name)
        later = task.later if attribute in task.template_fields else lambda _: False
        yield from row.problems(getattr(task, attribute), later, name)
