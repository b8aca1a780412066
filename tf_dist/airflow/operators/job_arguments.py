"""Arguments that make a job, or change one, and what is wrong with them: said when the DAG is read."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from typing import Any, Final

from tf_dist.airflow.callbacks import TFJobCallbacks
from tf_dist.core.api.fieldpath import suggestion
from tf_dist.core.api.timestamps import parse_duration
from tf_dist.core.steps.adoption import DriverChoice
from tf_dist.errors import Problem

_MAPPINGS: Final = {
    "overrides": '{"spec.tfReplicaSpecs.Worker.replicas": 4}',
    "labels": '{"team": "research"}',
    "annotations": '{"note": "weekly"}',
    "env_vars": '{"RATE": "0.1"}',
    "job_resources": '{"cpu": "2", "nvidia.com/gpu": 1}',
}
_JOB_NAME: Final = re.compile(r"((tfjob|vcjob)/)?[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "on_finish_action": ("delete_job", "keep_job", "delete_succeeded_job", "delete_active_job"),
    "on_kill_action": ("delete_job", "keep_job"),
    "driver": tuple(DriverChoice),
}
_SECONDS: Final = ("poll_interval", "admission_timeout", "startup_timeout_seconds")
_OF_TEXTS: Final = ("labels", "annotations", "env_vars")


def argument_problems(operator: Any) -> Iterator[Problem]:
    """What is wrong; a template, or what another task returns, may still become what is wanted."""
    if operator.job is None and operator.image is None:
        yield Problem("job", "nothing says what is to run", "give job, or image and command")
    elif operator.job is None and operator.image == "":
        yield Problem("image", "it is empty, and there is no job", "name the image, or give job")
    if isinstance(operator.job, str) and not operator.job:
        yield Problem("job", "it is empty", "name a file, or leave it out and give image and command")
    for name in ("image", "priority_class"):
        given = getattr(operator, name)
        if not isinstance(given, str | None) and not _comes_later(given):
            yield Problem(name, f"{given!r} is no text", f'write "{given}"')
    for name in ("command", "args"):
        given = getattr(operator, name)
        if given is not None and not _comes_later(given) and not _are_words(given):
            yield Problem(name, f"{given!r} is no list of texts", 'write ["python", "train.py"]')
        elif operator.job is not None and given is not None and not given:
            hint = "leave it out, or give the job without it"
            yield Problem(name, "it is empty, and would leave the job as it is", hint)
    for name in ("workers", "ps"):
        if getattr(operator, name) is not None:
            yield from count_problems(name, getattr(operator, name))
    for name, hint in _MAPPINGS.items():
        given = getattr(operator, name)
        if given is None or _comes_later(given):
            continue
        shown = name.removeprefix("job_")
        if not isinstance(given, Mapping):
            yield Problem(shown, f"a {type(given).__name__} is given", f"write {hint}")
        elif name == "overrides":
            for key in given:
                if not isinstance(key, str):
                    yield Problem(f"overrides[{key!r}]", f"{key!r} is no path", f"write {hint}")
        elif name == "job_resources":
            for key in given:
                if not isinstance(key, str):
                    yield Problem(f"resources[{key!r}]", f"{key!r} is no text", f"write {hint}")
        elif name in _OF_TEXTS:
            for key, value in given.items():
                source = name == "env_vars" and isinstance(value, Mapping)  # {"secretKeyRef": {…}}
                if not isinstance(key, str) or not (isinstance(value, str) or source or _comes_later(value)):
                    yield Problem(f"{shown}[{key!r}]", f"{value!r} is no text", f'write "{value}"')
    yield from _of_the_wait(operator)


def _of_the_wait(operator: Any) -> Iterator[Problem]:
    for name, known in _CHOICES.items():
        yield from choice_problems(name, getattr(operator, name), known)
    if not operator.wait_for_completion and operator.driver == DriverChoice.INLINE:
        yield unwaited_problem()
    for name in _SECONDS:
        value = getattr(operator, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and value >= 0):
            yield Problem(name, f"{value!r} is no number of seconds, or less than none", "write 600")
    codes: object = operator.skip_on_exit_code
    if not _are_exit_codes(codes):
        yield Problem("skip_on_exit_code", f"{codes!r} is neither a number nor several", "write [3, 4]")
    given: object = operator.callbacks
    for one in given if isinstance(given, Sequence) else () if given is None else (given,):
        if not (isinstance(one, type) and issubclass(one, TFJobCallbacks)):
            yield Problem("callbacks", f"{one!r} is no class of TFJobCallbacks", "give the class, not an object of it")


def unwaited_problem() -> Problem:
    """A job that the task does not wait for, and that no controller drives."""
    hint = "install a controller (tf-dist install), or wait"
    return Problem("wait_for_completion", "no driver would be left once the task is done", hint)


def count_problems(name: str, given: Any) -> Iterator[Problem]:
    """What is wrong with a number of replicas."""
    count = count_of(given, None)
    if not _comes_later(count) and (type(count) is not int or count < 0):
        yield Problem(name, f"{count!r} is no number of replicas", "write 4")


def choice_problems(name: str, given: Any, known: Sequence[str]) -> Iterator[Problem]:
    """What is wrong with one of several words."""
    if given not in known:
        yield Problem(
            name, f"{given!r} is none of {', '.join(known)}", suggestion(str(given), known, f'write "{known[0]}"')
        )


def job_name_problems(given: Any) -> Iterator[Problem]:
    """What is wrong with the name of a job."""
    if not _comes_later(given) and not (isinstance(given, str) and _JOB_NAME.fullmatch(given)):
        yield Problem("job_name", f"{given!r} is no job", "write NAME, tfjob/NAME or vcjob/NAME")


def count_of(given: Any, default: Any) -> Any:
    """A number of replicas: what Jinja fills in is text."""
    return default if given is None else int(given) if isinstance(given, str) and given.isdecimal() else given


def seconds_of(given: Any) -> Any:
    """A time: ``10m`` as seconds, as in a document; what is no time stays as it is, and is a problem."""
    found = parse_duration(given) if isinstance(given, str) else None
    return given if found is None else found


def _are_exit_codes(given: object) -> bool:
    """None, one, or several; a container that cannot be gone through is believed."""
    if isinstance(given, str | bytes | bool):
        return False
    if isinstance(given, Collection) and not isinstance(given, range):
        return all(isinstance(code, int) and not isinstance(code, bool) for code in given)
    return isinstance(given, int | Container | None)


def _are_words(given: Any) -> bool:
    words = isinstance(given, Sequence) and not isinstance(given, str)
    return words and all(isinstance(word, str) or _comes_later(word) for word in given)


def _comes_later(given: Any) -> bool:
    """A template, or an XComArg."""
    return hasattr(given, "resolve") or (isinstance(given, str) and ("{{" in given or "{%" in given))
