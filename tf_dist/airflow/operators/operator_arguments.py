"""Operator arguments: their meaning, and everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tf_dist.airflow.jobs.job_request import NO_CHANGES, JobRequest, job_request
from tf_dist.airflow.operators.argument_checks import operator_problems
from tf_dist.airflow.versions import TASKS_CHOOSE_NATIVE, AirflowFailException
from tf_dist.client.tfjob import TFJob
from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from tf_dist.airflow.operators.base import BaseTFJobOperator
    from tf_dist.airflow.task_options import TaskOptions


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
    return AirflowFailException(f"the job cannot be run:\n{error}")


def request_of_operator(operator: BaseTFJobOperator, render: Callable[[Any], Any]) -> JobRequest:
    """What the operator is to run; InvalidJob with everything that is wrong with it."""
    _check(operator)
    options = operator.options
    return job_request(
        operator.document(),
        _folders(operator),
        render,
        companions=operator.companions,
        changes=NO_CHANGES if operator.job is None else options.changes(),
        overrides=options.overrides or {},
        queue_name=options.queue_name,
        name=options.name,
        default_name=operator.task_id,
    )


def built_job(options: TaskOptions) -> dict[str, Any]:
    """The job that the arguments make where there is no other."""
    job = TFJob(
        image=options.image,
        command=options.command or (),
        args=options.args or (),
        workers=1 if options.workers is None else options.workers,
        ps=options.ps or 0,
        env_vars=options.env_vars,
        resources=options.resources,
        priority_class=options.priority_class,
    )
    return job.to_dict()


def _folders(operator: BaseTFJobOperator) -> list[Path]:
    """Where a file of the job is looked for: beside the DAG's, then on its ``template_searchpath``."""
    if not operator.has_dag():
        return [Path.cwd()]
    searched: Any = operator.dag.template_searchpath or ()
    return [Path(one) for one in (operator.dag.folder, *([searched] if isinstance(searched, str) else searched))]


def _check(operator: BaseTFJobOperator) -> None:
    """InvalidJob with everything that is wrong with the arguments: those that were filled in, and the DAG's."""
    if problems := [*operator.unfilled, *operator_problems(operator), *_of_the_dag(operator)]:
        raise InvalidJob(problems)


def _of_the_dag(operator: BaseTFJobOperator) -> Iterator[Problem]:
    if not TASKS_CHOOSE_NATIVE and operator.has_dag() and operator.dag.render_template_as_native_obj:
        what = "is set, and this Airflow can fill in no single task's fields as text"
        yield Problem("render_template_as_native_obj", what, "leave it out of the DAG")
