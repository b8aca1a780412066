"""What is wrong with an operator's arguments, as far as it can be said when the DAG is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tf_dist.airflow.jobs.job_request import is_document_text, job_type_problem
from tf_dist.airflow.task_options import OPTIONS, attribute_problems, comes_later, read_options
from tf_dist.errors import InvalidJob, Problem


def operator_problems(operator: Any) -> Iterator[Problem]:
    """Everything that is wrong; what comes later is judged once it is there."""
    if operator.job is None and not operator.image:
        yield Problem("image", "nothing says what is to run", "give job, or image and command")
    if operator.job == "":
        yield Problem("job", "it is empty", "name a file, or leave it out and give image and command")
    if isinstance(operator.job, str) and is_document_text(operator.job):
        hint = "hand over the dict itself (job=task.output); TFJob.from_yaml reads a text"
        yield Problem("job", "is the text of a document, and not the path of a file", hint)
    if not (operator.job is None or isinstance(operator.job, str | Mapping) or comes_later(operator.job)):
        yield job_type_problem(operator.job)
    wrong = [*attribute_problems(operator, OPTIONS)]
    yield from wrong
    for name in ("command", "args") if operator.job is not None else ():
        given = getattr(operator, name)
        if given is not None and not comes_later(given) and not given:
            what = "it is empty, and would leave the job as it is"
            yield Problem(name, what, "leave it out, or give the job without it")
    try:
        read_options(operator).policies(open_=comes_later)
    except InvalidJob as error:
        said = {one.path for one in wrong}  # a time that is none is also no time for the fallbacks
        yield from (one for one in error.problems if one.path not in said)


def unwaited_problem() -> Problem:
    """A job that the task does not wait for, and that no controller leads."""
    hint = "install a controller (tf-dist install), or wait"
    return Problem("wait_for_completion", "nobody leads the namespace once the task is done", hint)
