"""Arguments that make a job, or change one, and what is wrong with them: said when the DAG is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tf_dist.errors import Problem

_MAPPINGS: Final = {
    "overrides": '{"spec.tfReplicaSpecs.Worker.replicas": 4}',
    "labels": '{"team": "research"}',
    "annotations": '{"note": "weekly"}',
    "env_vars": '{"RATE": "0.1"}',
    "job_resources": '{"cpu": "2", "nvidia.com/gpu": 1}',
}
_OF_TEXTS: Final = ("labels", "annotations", "env_vars")


def argument_problems(operator: Any) -> Iterator[Problem]:
    """What is wrong; a template, or what another task returns, may still become what is wanted."""
    if operator.job is None and operator.image is None:
        yield Problem("job", "nothing says what is to run", "give job, or image and command")
    for name in ("image", "priority_class"):
        given = getattr(operator, name)
        if not isinstance(given, str | None) and not _comes_later(given):
            yield Problem(name, f"{given!r} is no text", f'write "{given}"')
    for name in ("command", "args"):
        given = getattr(operator, name)
        if given is not None and not _comes_later(given) and not _are_words(given):
            yield Problem(name, f"{given!r} is no list of texts", 'write ["python", "train.py"]')
    for name in ("workers", "ps"):
        count = count_of(getattr(operator, name), 0)
        if not _comes_later(count) and (type(count) is not int or count < 0):
            yield Problem(name, f"{count!r} is no number of replicas", "write 4")
    for name, hint in _MAPPINGS.items():
        given = getattr(operator, name)
        if given is None or _comes_later(given):
            continue
        shown = name.removeprefix("job_")
        if not isinstance(given, Mapping):
            yield Problem(shown, f"a {type(given).__name__} is given", f"write {hint}")
        elif name in _OF_TEXTS:
            for key, value in given.items():
                if not isinstance(key, str) or not (isinstance(value, str) or _comes_later(value)):
                    yield Problem(f"{shown}[{key!r}]", f"{value!r} is no text", f'write "{value}"')


def count_of(given: Any, default: Any) -> Any:
    """A number of replicas: what Jinja fills in is text."""
    return default if given is None else int(given) if isinstance(given, str) and given.isdecimal() else given


def _are_words(given: Any) -> bool:
    words = isinstance(given, Sequence) and not isinstance(given, str)
    return words and all(isinstance(word, str) or _comes_later(word) for word in given)


def _comes_later(given: Any) -> bool:
    """A template, or an XComArg."""
    return hasattr(given, "resolve") or (isinstance(given, str) and ("{{" in given or "{%" in given))
