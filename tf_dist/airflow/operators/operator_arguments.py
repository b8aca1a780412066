"""Operator arguments: their meaning, and everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tf_dist.airflow.callbacks import TFJobCallbacks
from tf_dist.airflow.jobs.job_request import NO_CHANGES, JobRequest, job_request
from tf_dist.airflow.operators.job_arguments import argument_problems, count_of
from tf_dist.airflow.versions import TASKS_CHOOSE_NATIVE, AirflowFailException
from tf_dist.client.job_files import InvalidFiles, problem_text
from tf_dist.client.tfjob import TFJob
from tf_dist.core.dialects import StepOverrides, policy_annotations
from tf_dist.core.steps.adoption import DriverChoice
from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from tf_dist.airflow.operators.base import BaseTFJobOperator

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "on_finish_action": ("delete_job", "keep_job", "delete_succeeded_job", "delete_active_job"),
    "on_kill_action": ("delete_job", "keep_job"),
    "driver": tuple(DriverChoice),
}

_SECONDS: Final = ("poll_interval", "admission_timeout", "startup_timeout_seconds")


def dry_run_text(operator: BaseTFJobOperator) -> str:
    """The document as it would be submitted, but for what only a run knows; AirflowFailException."""
    import yaml

    try:
        request = request_of_operator(operator, lambda value: value)
    except InvalidJob as error:
        raise task_failure(error) from None
    return str(yaml.safe_dump(request.entry.document, sort_keys=False))


def task_failure(error: InvalidJob) -> AirflowFailException:
    """What the task fails with: everything that is wrong, and where. No other try would help."""
    problems: list[str] = [str(problem) for problem in error.problems]
    if isinstance(error, InvalidFiles):
        hints = (f" ({found.problem.hint})" if found.problem.hint else "" for found in error.found)
        problems = [f"{problem_text(found)}{hint}" for found, hint in zip(error.found, hints, strict=True)]
    return AirflowFailException("\n".join(["the job cannot be run:", *problems]))


def request_of_operator(operator: BaseTFJobOperator, render: Callable[[Any], Any]) -> JobRequest:
    """What the operator is to run; InvalidJob with everything that is wrong with it."""
    _check(operator)
    return job_request(
        operator.document(),
        _folders(operator),
        render,
        changes=NO_CHANGES if operator.job is None else _changes(operator),
        overrides=operator.overrides or {},
        queue_name=operator.queue_name,
        name=operator.name,
        default_name=operator.task_id,
    )


def policies_of_operator(operator: BaseTFJobOperator) -> dict[str, str]:
    """The job's annotations for the operator's policies; InvalidJob. What is a template yet is not judged."""
    return policy_annotations(
        fallback=operator.fallback,
        on_eviction=operator.on_eviction,
        on_preemption=operator.on_preemption,
        admission_timeout=operator.admission_timeout,
        open_=lambda value: isinstance(value, str) and ("{{" in value or "{%" in value),
    )


def built_job(operator: BaseTFJobOperator) -> dict[str, Any]:
    """The job that the arguments make where there is no other."""
    job = TFJob(
        image=operator.image or "",
        command=operator.command or (),
        args=operator.args or (),
        workers=count_of(operator.workers, 1),
        ps=count_of(operator.ps, 0),
        env=operator.env_vars or {},
        resources=operator.job_resources or {},
        priority_class=operator.priority_class or "",
    )
    return job.to_dict()


def _changes(operator: BaseTFJobOperator) -> StepOverrides:
    """What the arguments change of the job."""
    return StepOverrides(
        workers=count_of(operator.workers, None),
        ps=count_of(operator.ps, None),
        priority_class=operator.priority_class or "",
        image=operator.image or "",
        command=operator.command or (),
        args=operator.args or (),
        resources=operator.job_resources or {},
        env=operator.env_vars or {},
    )


def _folders(operator: BaseTFJobOperator) -> list[Path]:
    """Where a file of the job is looked for: beside the DAG's, then on its ``template_searchpath``."""
    if not operator.has_dag():
        return [Path.cwd()]
    searched: Any = operator.dag.template_searchpath or ()
    return [Path(one) for one in (operator.dag.folder, *([searched] if isinstance(searched, str) else searched))]


def _check(operator: BaseTFJobOperator) -> None:
    """InvalidJob with everything that is wrong with the arguments."""
    found = (_of_choices, argument_problems, _of_seconds, _of_the_rest)
    problems = [problem for look in found for problem in look(operator)]
    if problems:
        raise InvalidJob(problems)


def _of_choices(operator: BaseTFJobOperator) -> Iterator[Problem]:
    for name, known in _CHOICES.items():
        if getattr(operator, name) not in known:
            yield Problem(name, f"{getattr(operator, name)!r} is none of {', '.join(known)}")
    if not operator.wait_for_completion and operator.driver == DriverChoice.INLINE:
        yield unwaited_problem()


def unwaited_problem() -> Problem:
    """A job that the task does not wait for, and that no controller drives."""
    hint = "install a controller (tf-dist install), or wait"
    return Problem("wait_for_completion", "no driver would be left once the task is done", hint)


def _of_seconds(operator: BaseTFJobOperator) -> Iterator[Problem]:
    for name in _SECONDS:
        value = getattr(operator, name)
        if value is not None and not (isinstance(value, int | float) and value >= 0):
            yield Problem(name, f"{value!r} is no number of seconds, or less than none")


def _of_the_rest(operator: BaseTFJobOperator) -> Iterator[Problem]:
    if not TASKS_CHOOSE_NATIVE and operator.has_dag() and operator.dag.render_template_as_native_obj:
        what = "is set, and this Airflow can fill in no single task's fields as text"
        yield Problem("render_template_as_native_obj", what, "leave it out of the DAG")
    codes: object = operator.skip_on_exit_code
    if isinstance(codes, str | bytes) or not isinstance(codes, int | Container | None):
        yield Problem("skip_on_exit_code", f"{codes!r} is neither a number nor several", "write [3, 4]")
    given: object = operator.callbacks
    for one in given if isinstance(given, Sequence) else () if given is None else (given,):
        if not (isinstance(one, type) and issubclass(one, TFJobCallbacks)):
            yield Problem("callbacks", f"{one!r} is no class of TFJobCallbacks", "give the class, not an object of it")
