"""Arguments of a pipeline's job: one table of what each may be, for Python, Airflow, Argo and the command line.

None is an argument that is not given. What a template, another task or the workflow fills in is judged by then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tf_dist.core.api.fieldpath import suggestion
from tf_dist.core.api.names import is_dns_label, is_label_key, is_label_value
from tf_dist.core.api.quantity import parse_quantity
from tf_dist.core.api.timestamps import seconds_of
from tf_dist.errors import Problem

Later = Callable[[object], bool]
"""Whether a value is only known later."""

NAME_HINT: Final = "up to 63 of a-z, 0-9 and '-', with a letter or digit at both ends"
_DIGITS: Final = 18
_COUNT: Final = re.compile(rf"[0-9]{{1,{_DIGITS}}}")
_LONGEST_LINE: Final = 1024
_MOST_SHOWN: Final = 60
_JOB_NAME: Final = re.compile(r"((tfjob|vcjob)/)?[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


def is_template(value: object) -> bool:
    """Whether a pipeline is still to fill it in."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def count_of(given: Any) -> Any:
    """A number of replicas, also where a pipeline has it as text; what is none stays as it is."""
    return int(given) if isinstance(given, str) and _COUNT.fullmatch(given.strip()) else given


# What each kind of argument may be. ``example``: one that is right.


def _text(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    if not isinstance(value, str):
        yield Problem(name, f"must be text, not {_shown(value)}", f'write "{example}"')


def _line(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    """What goes into a command line or a document as it is."""
    if not isinstance(value, str):
        yield from _text(name, value, example, later)
    elif len(value) > _LONGEST_LINE or not value.isprintable() or "{{" in value:
        what = f"{_shown(value)} is not one line of at most {_LONGEST_LINE} printable characters"
        yield Problem(name, what, f"write {example}")


def _word(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    yield from _line(name, value, example, later)
    if isinstance(value, str) and " " in value:
        yield Problem(name, f"{_shown(value)} has a space in it", "write one word")


def _name(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    """The name of a job or a namespace, "" where it is not said."""
    if not isinstance(value, str):
        yield from _text(name, value, example, later)
    elif value and not is_dns_label(value):
        yield Problem(name, f"{_shown(value)} is no name", NAME_HINT)


def _words(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        right = f"write {example}"
        if isinstance(value, str) and len(value) <= _MOST_SHOWN and not is_template(value):
            right = f"give the words one by one: {value.split()!r}"
        yield Problem(name, f"must be a list of texts, not {_shown(value)}", right)
        return
    for index, word in enumerate(value):
        if not isinstance(word, str) and not later(word):
            yield Problem(f"{name}[{index}]", f"must be text, not {_shown(word)}", f"give {_shown(str(word))}")


def _count(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    found = count_of(value)
    if type(found) is not int or not 0 <= found < 10**_DIGITS:
        what = f"{_shown(value)} is not a whole number from 0 up, of at most {_DIGITS} digits"
        yield Problem(name, what, f"write {example}")


def _seconds(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    found = seconds_of(value)
    if isinstance(found, bool) or not isinstance(found, int | float) or not found >= 0:
        yield Problem(name, f"{_shown(value)} is not a time", "write 90s, 10m or 1h30m")


def _interval(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    """Seconds between two requests; with 0 they would never pause."""
    found = seconds_of(value)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        yield Problem(name, f"{_shown(value)} is not a time above 0", "write 90s, 10m or 1h30m")


def _switch(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    if not (isinstance(value, int) and value in (0, 1)):
        yield Problem(name, f"must be True or False, not {_shown(value)}", "give True or False")


def _fields(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    """A mapping whose values are their format's to judge; what stands in its place may hold secrets."""
    if not isinstance(value, Mapping):
        yield Problem(name, f"must be a mapping, not {type(value).__name__}", f"write {example}")
        return
    for key in value:
        if not isinstance(key, str):
            yield Problem(f"{name}[{key!r}]", f"must be text, not {key!r}", f"write {example}")


def _texts(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    yield from _entries(name, value, example, later, (str,), _shown)


def _labels(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    yield from _texts(name, value, example, later)
    yield from _key_problems(name, value, "a label")
    for key, one in value.items() if isinstance(value, Mapping) else ():
        if isinstance(one, str) and not later(one) and not is_label_value(one):
            hint = "up to 63 of a-z, A-Z, 0-9, '-', '_' and '.', with a letter or digit at both ends"
            yield Problem(f"{name}[{key!r}]", f"{_shown(one)} is no value that a label can have", hint)


def _annotations(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    yield from _texts(name, value, example, later)
    yield from _key_problems(name, value, "an annotation", str.lower)  # as the API server judges them


def _key_problems(name: str, value: object, holder: str, judged: Callable[[str], str] = str) -> Iterator[Problem]:
    for key in value if isinstance(value, Mapping) else ():
        if isinstance(key, str) and not is_label_key(judged(key)):
            hint = "up to 63 of a-z, A-Z, 0-9, '-', '_' and '.', with or without a DNS name and / before it"
            yield Problem(f"{name}[{key!r}]", f"is no key that {holder} can have", hint)


def _environment(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    """Variables, which may be secrets; a mapping instead of a text is a ``valueFrom``."""
    yield from _entries(name, value, example, later, (str, Mapping), lambda one: type(one).__name__)


def _entries(
    name: str, value: object, example: str, later: Later, types: tuple[type, ...], shown: Callable[[object], str]
) -> Iterator[Problem]:
    yield from _fields(name, value, example, later)
    for key, one in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(one, types) and not later(one):
            yield Problem(f"{name}[{key!r}]", f"must be text, not {shown(one)}", f"write {example}")


def _quantities(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    yield from _fields(name, value, example, later)
    for key, one in value.items() if isinstance(value, Mapping) else ():
        try:
            _ = None if later(one) else parse_quantity(one)
        except ValueError as error:
            yield Problem(f"{name}[{key!r}]", str(error), "write 500m, 2 or 64Gi")


_OF_TEXT: Final = (_text, _line, _word, _name, _count, _seconds, _interval)
"""What a text that a pipeline fills in can be; it is never a list, a mapping or a switch."""


class _Argument(NamedTuple):
    problems: Callable[[str, object, str, Later], Iterator[Problem]]
    example: str


_TIME_EXAMPLE: Final = "10m"
_COUNT_EXAMPLE: Final = "4"
_RESOURCES: Final = '{"cpu": "2", "nvidia.com/gpu": 1}'
_ARGUMENTS: Final[Mapping[str, _Argument]] = {
    "name": _Argument(_name, "mnist"),
    "namespace": _Argument(_name, "team-a"),
    "image": _Argument(_word, "registry/trainer:1"),
    "command": _Argument(_words, '["python", "train.py"]'),
    "args": _Argument(_words, '["--steps=1000"]'),
    "workers": _Argument(_count, _COUNT_EXAMPLE),
    "ps": _Argument(_count, _COUNT_EXAMPLE),
    "min_workers": _Argument(_count, _COUNT_EXAMPLE),
    "max_workers": _Argument(_count, _COUNT_EXAMPLE),
    **dict.fromkeys(("chief", "evaluator", "enable_dynamic_worker"), _Argument(_switch, "")),
    **dict.fromkeys(("in_cluster", "durable", "wait_for_completion", "deferrable", "get_logs"), _Argument(_switch, "")),
    **dict.fromkeys(("reattach", "metrics_artifact", "checkpoint_artifact"), _Argument(_switch, "")),
    **dict.fromkeys(("wait", "fail_with_job", "all_jobs"), _Argument(_switch, "")),
    "env_vars": _Argument(_environment, '{"RATE": "0.1"}'),
    "resources": _Argument(_quantities, _RESOURCES),
    "ps_resources": _Argument(_quantities, _RESOURCES),
    "queue_name": _Argument(_word, "research"),
    "priority_class": _Argument(_word, "high"),
    "restart_policy": _Argument(_text, "ExitCode"),
    "success_policy": _Argument(_text, "AllWorkers"),
    "labels": _Argument(_labels, '{"team": "research"}'),
    "annotations": _Argument(_annotations, '{"note": "weekly"}'),
    "pod": _Argument(_fields, '{"nodeSelector": {"pool": "gpu"}}'),
    "container": _Argument(_fields, '{"workingDir": "/work"}'),
    "run_policy": _Argument(_fields, '{"backoffLimit": 3}'),
    "overrides": _Argument(_fields, '{"spec.runPolicy.backoffLimit": 3}'),
    "model_dir": _Argument(_line, "/models/digits"),
    "total_steps": _Argument(_count, "1000"),
    "admission_timeout": _Argument(_seconds, _TIME_EXAMPLE),
    "startup_timeout": _Argument(_seconds, _TIME_EXAMPLE),
    "run_timeout": _Argument(_seconds, _TIME_EXAMPLE),
    "poll_interval": _Argument(_interval, _TIME_EXAMPLE),
}


def argument_problems(kind: str, value: object, later: Later | None = None, path: str = "") -> Iterator[Problem]:
    """What is wrong with the value of an argument of this ``kind`` (a name of the table), and what would be right.

    ``later``: what is only known later; None: texts and numbers of which a template is filled in. ``path``: what the
    argument is called, where that is another name.
    """
    checks, example = _ARGUMENTS[kind]
    open_ = later(value) if later else checks in _OF_TEXT and is_template(value)
    if value is not None and not open_:
        yield from checks(path or kind, value, example, later or is_template)


def choice_problems(path: str, value: object, known: Collection[str]) -> Iterator[Problem]:
    """What is wrong with one of several words."""
    if value not in known:
        words = ", ".join(known)
        hint = suggestion(str(value), known, f"write one of {words}")
        yield Problem(path, f"{_shown(value)} is none of {words}", hint)


def job_name_problems(value: object, later: Later = is_template) -> Iterator[Problem]:
    """What is wrong with the name of a job that is there."""
    if not later(value) and not (isinstance(value, str) and _JOB_NAME.fullmatch(value)):
        yield Problem("job_name", f"{_shown(value)} is no job", "write NAME, tfjob/NAME or vcjob/NAME")


def _shown(value: object) -> str:
    """The value, or how it begins."""
    if isinstance(value, str):
        return repr(value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}…")
    found = repr(value)
    return found if len(found) <= _MOST_SHOWN else f"{found[:_MOST_SHOWN]}…"
