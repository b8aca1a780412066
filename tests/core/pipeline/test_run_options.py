"""The table of job arguments: allowed values, parsing of times and counts, and checks that run later."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tf_dist.argo.launcher.launcher_arguments import LauncherOptions
from tf_dist.core.model.timestamps import seconds_of
from tf_dist.core.pipeline.run_options import (
    INTERVAL,
    DriverChoice,
    Face,
    Option,
    RunOptions,
    argument_problems,
    choice_problems,
    count_of,
    job_name_problems,
    options_of,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("1.5", 1.5),
        ("90s", 90.0),
        ("250ms", 0.25),
        ("1h30m", 5400.0),
        ("2d", 172_800.0),
        (" 10m ", 600.0),
        (7, 7),
        ("1h30", "1h30"),
        ("-1m", "-1m"),
        ("soon", "soon"),
        ("", ""),
    ],
)
def test_parses_times(text: Any, seconds: Any) -> None:
    assert seconds_of(text) == seconds
    assert [*argument_problems("run_timeout", text)] == [] or seconds_of(text) == text


@pytest.mark.parametrize(
    ("kind", "wrong", "told"),
    [
        ("workers", -1, "workers: -1 is not a whole number from 0 up, of at most 18 digits (write 4)"),
        ("workers", True, "workers: True is not a whole number"),
        ("workers", "4.5", "workers: '4.5' is not a whole number"),
        ("ps", "1" * 19, f"ps: '{'1' * 19}' is not a whole number from 0 up, of at most 18 digits"),
        ("ps", 10**18, f"ps: {10**18} is not a whole number from 0 up, of at most 18 digits"),
        ("run_timeout", -1, "run_timeout: -1 is not a time (write 90s, 10m or 1h30m)"),
        ("run_timeout", float("nan"), "run_timeout: nan is not a time"),
        ("image", "a b", "image: 'a b' has a space in it (write one word)"),
        ("image", "a\nb", "image: 'a\\nb' is not one line of at most 1024 printable characters"),
        ("image", "/" * 1025, f"image: '{'/' * 60}…' is not one line"),
        (
            "command",
            "python train.py",
            "command: must be a list of texts, not 'python train.py' (give the words one by",
        ),
        ("command", ["a", 5], "command[1]: must be text, not 5 (give '5')"),
        ("env_vars", {"A": 1}, "env_vars['A']: must be text, not int (write {"),
        ("labels", {"a": {}}, "labels['a']: must be text, not {}"),
        ("labels", {3: "a"}, 'labels[3]: must be text, not 3 (write {"team": "research"})'),
        ("overrides", ["a"], "overrides: must be a mapping, not list"),
        ("resources", {"cpu": "lots"}, "resources['cpu']: 'lots' is not a quantity (write 500m, 2 or 64Gi)"),
        ("chief", "yes", "chief: must be True or False, not 'yes'"),
        (
            "namespace",
            "Bad NS",
            "namespace: 'Bad NS' is not a name (up to 63 of a-z, 0-9 and '-', with a letter or digit at both ends)",
        ),
        ("namespace", "a.b", "namespace: 'a.b' is not a name"),
        ("name", "a" * 64, f"name: '{'a' * 60}…' is not a name"),
        ("labels", {"bad key!": "a"}, "labels['bad key!']: is not a key that a label can have (up to 63 of"),
        ("labels", {"team": "a b"}, "labels['team']: 'a b' is not a value that a label can have (up to 63 of"),
        ("labels", {"team": "a" * 64}, f"labels['team']: '{'a' * 60}…' is not a value that a label can have"),
        (
            "annotations",
            {"a/b/c": "any text\nat all"},
            "annotations['a/b/c']: is not a key that an annotation can have",
        ),
    ],
)
def test_refuses_wrong_options_with_a_hint(kind: str, wrong: Any, told: str) -> None:
    (problem,) = argument_problems(kind, wrong)
    assert str(problem).startswith(told)
    assert problem.hint


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("env_vars", '{"DB_PASSWORD": "hunter2"}'),
        ("env_vars", ["hunter2"]),
        ("env_vars", {"DB_PASSWORD": ["hunter2"]}),
        ("overrides", "hunter2"),
        ("command", f"{'-' * 60} hunter2"),
        ("args", [["-" * 60, "hunter2"]]),
        ("name", ["-" * 60, "hunter2"]),
    ],
)
def test_errors_do_not_show_variables_or_long_values(kind: str, wrong: Any) -> None:
    problems = [*argument_problems(kind, wrong, later=lambda _: False)]
    assert problems
    assert "hunter2" not in " ".join(map(str, problems))


@pytest.mark.parametrize(
    ("kind", "right"),
    [
        ("workers", "4"),
        ("ps", 10**18 - 1),
        ("ps", "9" * 18),
        ("workers", "{{ params.workers }}"),
        ("image", None),
        ("env_vars", {"A": "b", "TOKEN": {"secretKeyRef": {}}, "RATE": "{{ params.rate }}"}),
        ("resources", {"cpu": "{{ params.cpu }}", "nvidia.com/gpu": 1}),
        ("command", ["python", "{{ params.script }}"]),
        ("evaluator", 1),
        ("namespace", "team-a"),
        ("namespace", ""),
        ("name", "{{ params.name }}"),
        ("labels", {"team": "", "example.com/team": "A.b_c", "run": "{{ run_id }}"}),
        ("annotations", {"note": "any text\nat all", "Example.com/Note": ""}),
    ],
)
def test_accepts_valid_options_and_templates(kind: str, right: Any) -> None:
    assert [*argument_problems(kind, right)] == []


def test_refuses_templates_that_are_never_rendered() -> None:
    (problem,) = argument_problems("image", "{{inputs.parameters.image}}", later=lambda _: False)
    assert "is not one line" in problem.message


@pytest.mark.parametrize("wrong", [0, float("inf"), float("nan"), "soon"])
def test_poll_interval_must_be_positive(wrong: Any) -> None:
    (problem,) = INTERVAL.problems("poll_interval", wrong)
    assert str(problem) == f"poll_interval: {wrong!r} is not a time above 0 (write 90s, 10m or 1h30m)"
    assert [*INTERVAL.problems("poll_interval", 0.1)] == []


def test_options_have_help_and_valid_examples_and_defaults() -> None:
    for table in (RunOptions, LauncherOptions):
        rows = options_of(table)
        assert [name for name, row in rows.items() if not row.help.endswith(".")] == []
        assert [name for name, row in rows.items() if row.example and [*row.problems(_example(row))]] == []
        assert [name for name, row in rows.items() if row.choices and row.default not in row.choices.values()] == []


def _example(row: Option) -> Any:
    return json.loads(row.example) if row.kind.structured else row.example


def test_options_have_names_of_their_interface() -> None:
    startup = options_of(RunOptions)["startup_timeout"]
    assert options_of(RunOptions, Face.OPERATOR)["startup_timeout_seconds"] == startup
    assert options_of(LauncherOptions, Face.STEP)["job_image"].name == "image"
    assert "command" not in options_of(LauncherOptions, Face.STEP)


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        ("name", None, ""),
        ("name", "", ""),
        ("name", "mnist", "mnist"),
        ("run_timeout", "", None),
        ("run_timeout", "1m", 60.0),
        ("driver", None, DriverChoice.AUTO),
        ("driver", "", DriverChoice.AUTO),
        ("driver", "controller", DriverChoice.CONTROLLER),
        ("driver", "other", "other"),
    ],
)
def test_reads_values_and_empty_texts(name: str, given: Any, read: Any) -> None:
    assert options_of(RunOptions)[name].read(given) == read


def test_parses_counts_from_text() -> None:
    given = ("4", 4, None, "many", " 4", "4\n", "4 4")
    assert [count_of(one) for one in given] == [4, 4, None, "many", 4, 4, "4 4"]


def test_checks_choices_and_job_names() -> None:
    (problem,) = choice_problems("on_term", "delte", ("auto", "delete"))
    assert str(problem) == "on_term: 'delte' is not one of auto, delete (did you mean delete?)"
    assert [*choice_problems("on_term", "auto", ("auto", "delete"))] == []
    for strange in ([], {}, None, 1, ["auto"]):
        assert len([*choice_problems("on_term", strange, {"auto": 1, "delete": 2})]) == 1
    assert [bool([*job_name_problems(name)]) for name in ("a", "vcjob/a-b", "{{ x }}", "pod/a", "A", 3)] == [
        False,
        False,
        False,
        True,
        True,
        True,
    ]
