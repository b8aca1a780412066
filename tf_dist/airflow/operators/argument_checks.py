"""What is wrong with an operator's arguments, as far as it can be said when the DAG is read."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from typing import Any, Final

from tf_dist.airflow.callbacks import TFJobCallbacks
from tf_dist.airflow.jobs.job_request import is_document_text, job_type_problem
from tf_dist.core.steps.adoption import DriverChoice
from tf_dist.core.steps.job_arguments import argument_problems, choice_problems, is_template
from tf_dist.errors import InvalidJob, Problem

# By the operator's attribute, the argument that it is, and what it is called: Airflow has another use for some names.
_ARGUMENTS: Final[Mapping[str, tuple[str, str]]] = {
    **{name: (name, name) for name in ("image", "command", "args", "workers", "ps", "env_vars", "priority_class")},
    **{name: (name, name) for name in ("overrides", "labels", "annotations", "poll_interval", "admission_timeout")},
    **{name: (name, name) for name in ("name", "namespace", "queue_name", "in_cluster")},
    **{name: (name, name) for name in ("durable", "wait_for_completion", "deferrable", "get_logs")},
    "job_resources": ("resources", "resources"),
    "startup_timeout_seconds": ("startup_timeout", "startup_timeout_seconds"),
}
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "on_finish_action": ("delete_job", "keep_job", "delete_succeeded_job", "delete_active_job"),
    "on_kill_action": ("delete_job", "keep_job"),
    "driver": tuple(DriverChoice),
}


def comes_later(given: object) -> bool:
    """Whether it is a template, or what another task returns: that may still become what is wanted."""
    return hasattr(given, "iter_references") or is_template(given)  # a path can be resolved, too


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
    wrong = [*attribute_problems(operator, _ARGUMENTS)]
    yield from wrong
    for name in ("command", "args") if operator.job is not None else ():
        given = getattr(operator, name)
        if given is not None and not comes_later(given) and not given:
            what = "it is empty, and would leave the job as it is"
            yield Problem(name, what, "leave it out, or give the job without it")
    for name, known in _CHOICES.items():
        yield from choice_problems(name, getattr(operator, name), known)
    try:
        policies_of_operator(operator)
    except InvalidJob as error:
        said = {one.path for one in wrong}  # a time that is none is also no time for the fallbacks
        yield from (one for one in error.problems if one.path not in said)
    codes: object = operator.skip_on_exit_code
    if not _are_exit_codes(codes):
        yield Problem("skip_on_exit_code", f"{codes!r} is neither a number nor several", "write [3, 4]")
    callbacks: object = operator.callbacks
    for one in callbacks if isinstance(callbacks, Sequence) else () if callbacks is None else (callbacks,):
        if not (isinstance(one, type) and issubclass(one, TFJobCallbacks)):
            yield Problem("callbacks", f"{one!r} is no class of TFJobCallbacks", "give the class, not an object of it")


def attribute_problems(task: Any, arguments: Mapping[str, tuple[str, str]]) -> Iterator[Problem]:
    """What is wrong with attributes of a task. ``arguments``: of each, the argument that it is, and its name there."""
    for attribute, (kind, shown) in arguments.items():
        later = comes_later if attribute in task.template_fields else lambda _: False
        yield from argument_problems(kind, getattr(task, attribute), later, shown)


def policies_of_operator(operator: Any) -> dict[str, str]:
    """The job's annotations for the operator's policies; InvalidJob. What comes later is not judged."""
    policies = {name: getattr(operator, name) for name in ("fallback", "on_eviction", "on_preemption")}
    if all(one is None for one in policies.values()):
        return {}
    from tf_dist.core.dialects import policy_annotations

    return policy_annotations(**policies, admission_timeout=operator.admission_timeout, open_=comes_later)


def unwaited_problem() -> Problem:
    """A job that the task does not wait for, and that no controller leads."""
    hint = "install a controller (tf-dist install), or wait"
    return Problem("wait_for_completion", "nobody leads the namespace once the task is done", hint)


def _are_exit_codes(given: object) -> bool:
    """None, one, or several; a container that cannot be gone through is believed."""
    if isinstance(given, str | bytes | bool):
        return False
    if isinstance(given, Collection) and not isinstance(given, range):
        return all(isinstance(code, int) and not isinstance(code, bool) for code in given)
    return isinstance(given, int | Container | None)
