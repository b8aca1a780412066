"""Options of a task that runs a job: those of every run, and Airflow's own. Imports nothing of Airflow."""

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

DEFAULT_CONNECTION: Final = "kubernetes_default"


def _exit_codes(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    """One, or several; a container that cannot be gone through is believed."""
    codes = value if isinstance(value, Collection) and not isinstance(value, str | bytes | range) else (value,)
    if not all(isinstance(code, int | Container) and not isinstance(code, bool | str | bytes) for code in codes):
        yield Problem(name, f"{value!r} is neither a number nor several", f"write {example}")


def _callbacks(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    for one in value if isinstance(value, Sequence) else (value,):
        if not (isinstance(one, type) and issubclass(one, TFJobCallbacks)):
            yield Problem(name, f"{one!r} is not a class of TFJobCallbacks", "give the class, not an object of it")


_FINISH_ACTIONS: Final = ("delete_job", "keep_job", "delete_succeeded_job", "delete_active_job")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions(RunOptions):
    """The arguments of ``TFJobOperator``, read."""

    job: Any = option(
        ANY,
        "The path of a YAML or JSON file (relative ones: from the DAG's folder), a dict, or a ``TFJob``; none: "
        "the arguments from ``image`` to ``priority_class`` make one, which otherwise stand above what it says. "
        "What a file says is templated, too, after it was read.",
    )
    kubernetes_conn_id: str | None = option(
        ANY, "A connection of type ``kubernetes``; the default one need not exist.", "", DEFAULT_CONNECTION
    )
    in_cluster: bool | None = fixed_option(SWITCH, "Use the cluster that this process is a pod of.")
    config_file: str | None = option(ANY, "A kubeconfig.")
    cluster_context: str | None = option(ANY, "A context of that kubeconfig.")
    wait_for_completion: bool = fixed_option(
        SWITCH, "Without it the task is done once the job is submitted (only with a controller).", "", True
    )
    deferrable: bool = fixed_option(SWITCH, "Wait in the triggerer. [``[operators] default_deferrable``]", "", False)
    poll_interval: float = fixed_option(
        INTERVAL, "Seconds, or ``30s``, between two attempts to find a job or cluster that is not there.", "30s", 10.0
    )
    get_logs: bool = fixed_option(SWITCH, "Bring the log lines of all replicas into the task's log.", "", True)
    on_finish_action: str = fixed_option(
        CHOICE,
        "``delete_job``, ``keep_job``, ``delete_succeeded_job``; ``delete_active_job`` deletes only one that did "
        "not end by itself.",
        "",
        "delete_job",
        choices=_FINISH_ACTIONS,
    )
    on_kill_action: str = fixed_option(
        CHOICE,
        "``delete_job`` or ``keep_job`` when the task is marked failed, or ends otherwise by a user.",
        "",
        "delete_job",
        choices=_FINISH_ACTIONS[:2],
    )
    skip_on_exit_code: int | Container[int] | None = fixed_option(
        Kind(_exit_codes, of_text=False, empty=None),
        "If the job fails with such an exit code, the task is skipped.",
        "[3, 4]",
    )
    callbacks: type[TFJobCallbacks] | Sequence[type[TFJobCallbacks]] | None = fixed_option(
        Kind(_callbacks, of_text=False, empty=None), "One or several ``TFJobCallbacks`` classes."
    )
    job_url: str | None = option(ANY, "A page about the job, with ``{name}`` and ``{namespace}`` filled in.")
    tensorboard_url: str | None = option(ANY, "The TensorBoard of the job, likewise.")

    @property
    def drives(self) -> bool:
        """Whether the process that waits for the job leads its namespace where nobody else does."""
        return self.driver is not DriverChoice.CONTROLLER


OPTIONS: Final = options_of(TaskOptions, Face.OPERATOR)
"""The rows, by the names of the operator's arguments."""
_ATTRIBUTES: Final[Mapping[str, str]] = {"resources": "job_resources"}
ATTRIBUTES: Final = {argument: _ATTRIBUTES.get(argument, argument) for argument in OPTIONS}
"""By argument, the attribute of the operator that holds it: Airflow has another use for some names."""
TEMPLATED: Final = ("job", *(ATTRIBUTES[name] for name, row in OPTIONS.items() if row.templated and name != "job"))
"""The attributes that Airflow fills in."""
RENDERERS: Final = {"job": "yaml"} | {
    ATTRIBUTES[name]: "py"
    for name, row in OPTIONS.items()
    if row.templated and row.kind.structured and row.kind is not WORDS
}


def read_options(task: Any) -> TaskOptions:
    """The arguments of an operator as they are now: read, after their templates were filled in."""
    return TaskOptions(**{row.name: row.read(getattr(task, ATTRIBUTES[name])) for name, row in OPTIONS.items()})


def comes_later(given: object) -> bool:
    """Whether it is a template, or what another task returns: that may still become what is wanted."""
    return hasattr(given, "iter_references") or is_template(given)  # a path can be resolved, too


def attribute_problems(task: Any, options: Mapping[str, Option]) -> Iterator[Problem]:
    """What is wrong with the arguments of a task, as far as it can be said before they are filled in."""
    for name, row in options.items():
        attribute = ATTRIBUTES.get(name, name)
        later = comes_later if attribute in task.template_fields else lambda _: False
        yield from row.problems(getattr(task, attribute), later, name)
