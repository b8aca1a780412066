"""Options of a run of a job: one table for Python, the command line, Airflow and Argo.

An option is a field of ``RunOptions`` with a row: its kind, its meaning, and its name in each interface. An interface
with further options adds their fields in a subclass. Checks, readers, help texts, template fields and reference pages
are generated from the rows. None means that an option is not given. A value that a template, another task or the
workflow fills in is checked after it is known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tf_dist.core.model.fieldpath import suggestion
from tf_dist.core.model.names import PACKAGE_HINT, is_dns_label, is_label_key, is_label_value, is_package
from tf_dist.core.model.quantity import parse_quantity
from tf_dist.core.model.timestamps import seconds_of
from tf_dist.core.pipeline.adoption import DriverChoice
from tf_dist.errors import Problem

if TYPE_CHECKING:
    from tf_dist.core.dialects import StepOverrides

Later = Callable[[object], bool]
"""Whether a value is known only later."""

NAME_HINT: Final = "up to 63 of a-z, 0-9 and '-', with a letter or digit at both ends"
_DIGITS: Final = 18
_COUNT: Final = re.compile(rf"[0-9]{{1,{_DIGITS}}}")
_LONGEST_LINE: Final = 1024
_MOST_SHOWN: Final = 60
_JOB_NAME: Final = re.compile(r"((tfjob|vcjob)/)?[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


def is_template(value: object) -> bool:
    """Whether a value is a template, which a pipeline fills in later."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def count_of(given: Any) -> Any:
    """A number of replicas, also from the text of a pipeline. Other values are returned unchanged."""
    return int(given) if isinstance(given, str) and _COUNT.fullmatch(given.strip()) else given


# The checks of each kind of argument. ``example``: a valid value.


def _text(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    if not isinstance(value, str):
        yield Problem(name, f"must be text, not {shown_value(value)}", f'write "{example}"')


def _line(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    """Check text that becomes part of a command line or a document."""
    if not isinstance(value, str):
        yield from _text(name, value, example, later)
    elif len(value) > _LONGEST_LINE or not value.isprintable() or "{{" in value:
        what = f"{shown_value(value)} is not one line of at most {_LONGEST_LINE} printable characters"
        yield Problem(name, what, f"write {example}")


def _word(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    yield from _line(name, value, example, later)
    if isinstance(value, str) and " " in value:
        yield Problem(name, f"{shown_value(value)} has a space in it", "write one word")


def _name(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    """Check the name of a job or a namespace ("": not given)."""
    if not isinstance(value, str):
        yield from _text(name, value, example, later)
    elif value and not is_dns_label(value):
        yield Problem(name, f"{shown_value(value)} is not a name", NAME_HINT)


def _words(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        right = f"write {example}"
        if isinstance(value, str) and len(value) <= _MOST_SHOWN and not is_template(value):
            right = f"give the words one by one: {value.split()!r}"
        yield Problem(name, f"must be a list of texts, not {shown_value(value)}", right)
        return
    for index, word in enumerate(value):
        if not isinstance(word, str) and not later(word):
            yield Problem(
                f"{name}[{index}]", f"must be text, not {shown_value(word)}", f"give {shown_value(str(word))}"
            )


def _packages(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    yield from _words(name, value, example, later)
    for index, word in enumerate(value if isinstance(value, Sequence) and not isinstance(value, str) else ()):
        if isinstance(word, str) and not later(word) and not is_package(word):
            yield Problem(f"{name}[{index}]", f"{shown_value(word)} is not a package", PACKAGE_HINT)


def _count(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    found = count_of(value)
    if type(found) is not int or not 0 <= found < 10**_DIGITS:
        what = f"{shown_value(value)} is not a whole number from 0 up, of at most {_DIGITS} digits"
        yield Problem(name, what, f"write {example}")


def _seconds(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    found = seconds_of(value)
    if isinstance(found, bool) or not isinstance(found, int | float) or not found >= 0:
        yield Problem(name, f"{shown_value(value)} is not a time", "write 90s, 10m or 1h30m")


def _interval(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    """Check seconds between two requests. With 0, the requests would never pause."""
    found = seconds_of(value)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        yield Problem(name, f"{shown_value(value)} is not a time above 0", "write 90s, 10m or 1h30m")


def _switch(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    if not (isinstance(value, int) and value in (0, 1)):
        yield Problem(name, f"must be True or False, not {shown_value(value)}", "give True or False")


def _fields(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    """Check a mapping, whose values the format checks. Do not show other values, because they may be secrets."""
    if not isinstance(value, Mapping):
        yield Problem(name, f"must be a mapping, not {type(value).__name__}", f"write {example}")
        return
    for key in value:
        if not isinstance(key, str):
            yield Problem(f"{name}[{key!r}]", f"must be text, not {key!r}", f"write {example}")


def _texts(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    yield from _entries(name, value, example, later, (str,), shown_value)


def _labels(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    yield from _texts(name, value, example, later)
    yield from _key_problems(name, value, "a label")
    for key, one in value.items() if isinstance(value, Mapping) else ():
        if isinstance(one, str) and not later(one) and not is_label_value(one):
            hint = "up to 63 of a-z, A-Z, 0-9, '-', '_' and '.', with a letter or digit at both ends"
            yield Problem(f"{name}[{key!r}]", f"{shown_value(one)} is not a value that a label can have", hint)


def _annotations(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    yield from _texts(name, value, example, later)
    yield from _key_problems(name, value, "an annotation", str.lower)  # as the API server checks them


def _key_problems(name: str, value: object, holder: str, judged: Callable[[str], str] = str) -> Iterator[Problem]:
    for key in value if isinstance(value, Mapping) else ():
        if isinstance(key, str) and not is_label_key(judged(key)):
            hint = "up to 63 of a-z, A-Z, 0-9, '-', '_' and '.', with or without a DNS name and / before it"
            yield Problem(f"{name}[{key!r}]", f"is not a key that {holder} can have", hint)


def _environment(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    """Check environment variables, which may be secrets. A mapping instead of a text is a ``valueFrom``."""
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


def _anything(name: str, value: object, example: str, later: Later) -> Iterator[Problem]:
    yield from ()


class Kind(NamedTuple):
    """The kind of an option.

    ``of_text``: whether a text that a pipeline fills in can be a value. A text never becomes a list, a mapping or a
    switch. ``read``: converts a text or data to the value for the program. ``empty``: the value of an empty text.
    """

    checks: Callable[[str, object, str, Later], Iterator[Problem]]
    of_text: bool = True
    read: Callable[[Any], Any] = lambda value: value
    empty: Any = ""
    structured: bool = False
    """Whether values are lists or mappings. If an interface has only texts, such a value is JSON."""

    def problems(self, name: str, value: object, later: Later | None = None, example: str = "") -> Iterator[Problem]:
        """The problems of the value of an argument. ``example``: a valid value. None means that it is not given.

        ``later``: which values are known only later (None: templates, for kinds that a text can become).
        """
        if value is not None and not (later(value) if later else self.of_text and is_template(value)):
            yield from self.checks(name, value, example, later or is_template)


def _switched(value: Any) -> Any:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else bool(value)


TEXT: Final = Kind(_text)
LINE: Final = Kind(_line)
WORD: Final = Kind(_word)
NAME: Final = Kind(_name)
COUNT: Final = Kind(_count, read=count_of, empty=None)
SECONDS: Final = Kind(_seconds, read=seconds_of, empty=None)
INTERVAL: Final = Kind(_interval, read=seconds_of, empty=None)
SWITCH: Final = Kind(_switch, of_text=False, read=_switched, empty=None)
WORDS: Final = Kind(_words, of_text=False, empty=None, structured=True)
PACKAGES: Final = Kind(_packages, of_text=False, empty=None, structured=True)
ENVIRONMENT: Final = Kind(_environment, of_text=False, empty=None, structured=True)
QUANTITIES: Final = Kind(_quantities, of_text=False, empty=None, structured=True)
LABELS: Final = Kind(_labels, of_text=False, empty=None, structured=True)
ANNOTATIONS: Final = Kind(_annotations, of_text=False, empty=None, structured=True)
FIELDS: Final = Kind(_fields, of_text=False, empty=None, structured=True)
POLICY: Final = Kind(_anything, empty=None)
"""A policy for fallbacks or disruptions. ``policy_annotations`` checks all of them together."""
POLICIES: Final = Kind(_anything, empty=None, structured=True)
CHOICE: Final = Kind(_anything)
"""A key of the row's ``choices``."""
ANY: Final = Kind(_anything, empty=None)


class Face(StrEnum):
    """An interface in which users give options. The names of options follow its conventions."""

    OPERATOR = "operator"
    """The arguments of Airflow's ``TFJobOperator``."""
    STEP = "step"
    """The arguments of Argo's ``TFJobStep``."""
    LAUNCHER = "launcher"
    """The document of ``tf-dist argo-launch``."""
    COMMAND = "command"
    """The options of ``tf-dist run`` and ``submit``: the names of the fields, with ``-``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The row of an option."""

    name: str
    """The name of its field."""
    kind: Kind
    """Its kind."""
    help: str
    """Its meaning, for the reference and ``--help``."""
    example: str = ""
    """A valid value."""
    choices: Mapping[str, Any]
    """The allowed words, and the value of each word; empty: any."""
    faces: Mapping[Face, str]
    """Its name in each interface that has it."""
    templated: bool
    """Whether Airflow fills in templates in its value."""
    parameter: bool
    """Whether it is an input parameter of Argo's step, so that each use of the step can set another value."""
    since: str
    """The first version of tf-dist with this option."""
    default: Any
    """The value if the option is not given."""

    def about(self, face: Face) -> str:
        """Its meaning, whether Airflow fills in templates, and the first version with this option."""
        templated = " (templated)" if self.templated and face is Face.OPERATOR else ""
        return self.help + templated + ("" if self.since == _FIRST else f" (since {self.since})")

    def problems(self, value: object, later: Later | None = None, shown: str = "") -> Iterator[Problem]:
        """The problems of a value; see ``Kind.problems``. ``shown``: the option's name in the interface."""
        open_ = later(value) if later else self.kind.of_text and is_template(value)
        if self.choices and value is not None and not open_:
            yield from choice_problems(shown or self.name, value, self.choices)
        yield from self.kind.problems(shown or self.name, value, later, self.example)

    def read(self, value: Any) -> Any:
        """The value for the program, from a given text or data."""
        if value is None or value == "":
            return self.default if self.choices else self.kind.empty
        if self.choices:
            return self.choices.get(value, value) if isinstance(value, str) else value
        return self.kind.read(value)


_ROW: Final = "option"
_FIRST: Final = "0.1"


def option(
    kind: Kind,
    about: str,
    example: str = "",
    default: Any = None,
    *,
    choices: Mapping[str, Any] | Collection[str] = (),
    operator: str | bool = True,
    step: str | bool = True,
    launcher: bool = True,
    templated: bool = True,
    parameter: bool = False,
    since: str = _FIRST,
) -> Any:
    """A field of a table of options.

    ``operator``, ``step``: the name in this interface (True: the name of the field; False: the interface lacks it).
    """
    faces = {Face.OPERATOR: operator, Face.STEP: step, Face.LAUNCHER: launcher}
    words = choices if isinstance(choices, Mapping) else {one: one for one in choices}
    row = {
        "kind": kind,
        "help": about,
        "example": example,
        "choices": words,
        "faces": {face: "" if called is True else called for face, called in faces.items() if called},
        "templated": bool(operator) and templated,
        "parameter": parameter,
        "since": since,
    }
    return field(default=default, metadata={_ROW: row})


@cache
def options_of(table: type[RunOptions], face: Face | None = None) -> dict[str, Option]:
    """The rows of a table by their names in ``face`` (None: by their fields), in the order of the fields."""
    found: dict[str, Option] = {}
    for one in fields(table):
        if _ROW not in one.metadata:
            continue
        row = dict(one.metadata[_ROW])
        faces = {place: called or one.name for place, called in row.pop("faces").items()}
        if face is None or face in faces:
            made = Option(name=one.name, default=one.default, faces=faces, **row)
            found[one.name if face is None else faces[face]] = made
    return found


def documented(rows: Mapping[str, Option], face: Face) -> str:
    """The rows as the lines of a docstring."""
    return "".join(f"\n    :param {name}: {row.about(face)}" for name, row in rows.items())


task_option = partial(option, step=False, launcher=False)
fixed_option = partial(option, templated=False)
value_option = partial(option, parameter=True)

_RESOURCES: Final = '{"cpu": "2", "nvidia.com/gpu": 1}'
_DISRUPTIONS: Final = (
    "``restart`` (the job's own policies), ``requeue`` (it gives up its admission and waits again), "
    "``fail``, ``fallback`` (like ``requeue``; the next fallback is tried first)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run of a job, as values for the program."""

    name: str = task_option(
        NAME, "The job's name, instead of the document's. A few random characters are appended.", "mnist", ""
    )
    namespace: str = option(
        NAME,
        "The job's namespace. By default that of its document, of the connection, or of the context. A job in "
        "another namespace than its workflow has no owner.",
        "team-a",
        "",
        step="job_namespace",
    )
    image: str = value_option(
        WORD, "The image of the containers that train.", "registry/trainer:1", "", step="job_image"
    )
    command: Sequence[str] | None = task_option(
        WORDS, "The command of these containers, as a list of words.", '["python", "train.py"]'
    )
    args: Sequence[str] | None = task_option(WORDS, "The arguments of the command.", '["--steps=1000"]')
    code: str = option(
        TEXT,
        "A folder that is sent with the job, and is the working directory of the containers that train. On this "
        "machine, replicas use the folder itself. On a cluster, they use a copy of at most 8 MiB, without the files "
        "that match ``.gitignore`` or ``.tfdistignore``.",
        "src",
        "",
        launcher=False,
    )
    packages: Sequence[str] | None = option(
        PACKAGES,
        "Python packages that the image does not have. On a cluster, each pod installs them when it starts. On this "
        "machine, they must be installed.",
        '["tensorflow-datasets==4.9.7"]',
    )
    workers: int | None = value_option(COUNT, "The number of workers.", "4")
    ps: int | None = value_option(COUNT, "The number of parameter servers.", "4")
    env_vars: Mapping[str, str | Mapping[str, Any]] | None = task_option(
        ENVIRONMENT,
        "Variables of every container. They do not replace variables of the document. A mapping is a "
        '``valueFrom``: ``{"secretKeyRef": {…}}``.',
        '{"RATE": "0.1"}',
    )
    resources: Mapping[str, Any] | None = task_option(
        QUANTITIES, "Requests of each worker. Without a document, requests of each replica.", _RESOURCES
    )
    queue_name: str = value_option(WORD, "The gang's queue, instead of the document's.", "research", "")
    priority_class: str = value_option(WORD, "The priority class of the gang.", "high", "")
    labels: Mapping[str, str] | None = task_option(
        LABELS, "Labels of the job, in addition to those of the document.", '{"team": "research"}'
    )
    annotations: Mapping[str, str] | None = task_option(
        ANNOTATIONS, "Annotations of the job, in addition to those of the document.", '{"note": "weekly"}'
    )
    overrides: Mapping[str, Any] | None = option(
        FIELDS,
        'Values of any fields, by path: ``{"spec.runPolicy.backoffLimit": 3}``.',
        '{"spec.runPolicy.backoffLimit": 3}',
    )
    fallback: Sequence[Mapping[str, Any]] | None = option(
        POLICIES,
        'Alternatives, in order: ``[{"workers": 4}, {"queue_name": "spot"}]``; each may have '
        "``workers``, ``ps``, ``queue_name``, ``priority_class``, ``image``, ``node_selector``, ``tolerations``, "
        "``resources``. The gang waits for all of them at the same time.",
        '[{"workers": 4}]',
    )
    on_eviction: str | None = option(POLICY, f"What happens to the job after an eviction: {_DISRUPTIONS}")
    on_preemption: str | None = option(POLICY, f"What happens to the job after a preemption: {_DISRUPTIONS}")
    admission_timeout: float | None = value_option(
        SECONDS,
        "Seconds, or ``10m``, to wait for admission. With ``fallback``, the job then waits for the alternatives "
        "as well, for the same time. A retry continues to wait with the same job.",
        "10m",
        templated=False,
    )
    startup_timeout: float | None = value_option(
        SECONDS,
        "Seconds, or ``10m``, from admission until the job runs. A job that does not run by then, for example "
        "because an image cannot be pulled, fails. None (0 on the command line): no limit.",
        "10m",
        600.0,
        operator="startup_timeout_seconds",
        templated=False,
    )
    run_timeout: float | None = value_option(
        SECONDS, "Time after which the job is deleted and the step fails.", "2h", operator=False
    )
    driver: DriverChoice = fixed_option(
        CHOICE,
        "Which process reconciles the job. ``auto``: the leader of the cluster or of the job's namespace. If there is "
        "no leader, the process that waits for the job (worker, triggerer, step, command) becomes the namespace's "
        "leader. ``controller``: never this process.",
        "",
        DriverChoice.AUTO,
        choices={one.value: one for one in DriverChoice},
    )
    reattach: bool = fixed_option(
        SWITCH,
        "Whether a retry continues the job of the previous try, or uses its result. False: a retry creates a new job.",
        "",
        True,
        operator="durable",
    )

    def changes(self, **more: Any) -> StepOverrides:
        """The changes of the document by the options, except its queue. ``more``: further changes."""
        from tf_dist.core.dialects import StepOverrides

        own = {
            "workers": self.workers,
            "ps": self.ps,
            "image": self.image,
            "command": self.command or (),
            "args": self.args or (),
            "env": self.env_vars or {},
            "resources": self.resources or {},
            "priority_class": self.priority_class,
            "packages": self.packages or (),
        }
        return StepOverrides(**{**own, **more})

    def policies(self, *, has_fallbacks: bool = False, open_: Later = lambda _: False) -> dict[str, str]:
        """The job's annotations for the policies, see ``policy_annotations``. Raises InvalidJob."""
        given: dict[str, Any]
        given = {"fallback": self.fallback, "on_eviction": self.on_eviction, "on_preemption": self.on_preemption}
        if not has_fallbacks and all(one is None for one in given.values()):
            return {}
        from tf_dist.core.dialects import policy_annotations

        return policy_annotations(
            **given, admission_timeout=self.admission_timeout, has_fallbacks=has_fallbacks, open_=open_
        )


_OF_A_JOB: Final[Mapping[str, tuple[Kind, str]]] = {
    **dict.fromkeys(("min_workers", "max_workers"), (COUNT, "4")),
    **dict.fromkeys(("chief", "evaluator", "enable_dynamic_worker"), (SWITCH, "")),
    "ps_resources": (QUANTITIES, _RESOURCES),
    "restart_policy": (TEXT, "ExitCode"),
    "success_policy": (TEXT, "AllWorkers"),
    "pod": (FIELDS, '{"nodeSelector": {"pool": "gpu"}}'),
    "container": (FIELDS, '{"workingDir": "/work"}'),
    "run_policy": (FIELDS, '{"backoffLimit": 3}'),
}
"""Arguments that exist only for jobs without a document, which ``TFJob`` builds."""


def argument_problems(name: str, value: object, later: Later | None = None, path: str = "") -> Iterator[Problem]:
    """The problems of an option of ``RunOptions`` or an argument of ``TFJob``. ``path``: its name in messages."""
    if name in _OF_A_JOB:
        kind, example = _OF_A_JOB[name]
        return kind.problems(path or name, value, later, example)
    return options_of(RunOptions)[name].problems(value, later, path)


def choice_problems(path: str, value: object, known: Collection[str]) -> Iterator[Problem]:
    """The problem of a value that is not a known word."""
    if value not in list(known):  # a list is not hashable
        words = ", ".join(known)
        hint = suggestion(str(value), known, f"write one of {words}")
        yield Problem(path, f"{shown_value(value)} is not one of {words}", hint)


def job_name_problems(value: object, later: Later = is_template) -> Iterator[Problem]:
    """The problem of an invalid name of an existing job."""
    if not later(value) and not (isinstance(value, str) and _JOB_NAME.fullmatch(value)):
        yield Problem("job_name", f"{shown_value(value)} is not a job", "write NAME, tfjob/NAME or vcjob/NAME")


def shown_value(value: object) -> str:
    """The value, or its beginning if it is long."""
    if isinstance(value, str):
        return repr(value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}…")
    found = repr(value)
    return found if len(found) <= _MOST_SHOWN else f"{found[:_MOST_SHOWN]}…"
