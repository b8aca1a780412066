"""``--set``: paths, values, and paths that do not match the document."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_dist.core.model.fieldpath import format_field_path, parse_field_path
from tf_dist.core.model.overrides import apply_overrides, parse_overrides
from tf_dist.errors import InvalidJob


def document() -> dict[str, Any]:
    return {
        "metadata": {"name": "a", "labels": {"app.io/name": "x"}},
        "spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1}}, "tasks": [{"name": "ps"}, {"name": "worker"}]},
    }


def changed(*texts: str) -> Any:
    return apply_overrides(document(), parse_overrides(texts))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("spec.a[0].b", ("spec", "a", 0, "b")),
        ('labels["app.io/x"]', ("labels", "app.io/x")),
        ("labels['app.io/x'].y", ("labels", "app.io/x", "y")),
        ('labels."app.io/x"', ("labels", "app.io/x")),
        (r"labels.app\.io/x", ("labels", "app.io/x")),
        ("[1][2]", (1, 2)),
    ],
)
def test_parses_field_paths(text: str, path: tuple[str | int, ...]) -> None:
    assert parse_field_path(text) == path


@pytest.mark.parametrize("text", ["", ".a", "a..b", "a.", "a[x]", "a[0]b", "a[", 'a["x', "a]"])
def test_refuses_invalid_field_paths(text: str) -> None:
    with pytest.raises(ValueError, match="path"):
        parse_field_path(text)


KEYS = st.text(st.characters(codec="ascii", exclude_characters="\"'\n\\", categories=["L", "N", "P"]), min_size=1)


@given(st.lists(KEYS | st.integers(0, 99), min_size=1).map(tuple))
def test_formatted_field_path_parses_to_itself(path: tuple[str | int, ...]) -> None:
    assert parse_field_path(format_field_path(path)) == path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("true", True),
        ("1.5", 1.5),
        ("null", None),
        ("", ""),
        ("text", "text"),
        ("'3'", "3"),
        ("a=b", "a=b"),
        ('"a: b"', "a: b"),
        ("yes", True),
        ("2026-11-22", "2026-11-22"),
        ("12:30", "12:30"),
        ("1_000", 1000),
        ("010", 8),
        ("-0x1F", -31),
        ("n", False),
        (".inf", ".inf"),
    ],
)
def test_values_are_parsed_as_yaml_scalars(text: str, value: Any) -> None:
    assert changed(f"spec.x={text}")["spec"]["x"] == value


@pytest.mark.parametrize(
    "text",
    [
        "[sh, -c]",
        "{cpu: 2}",
        "a: b",
        "- a",
        "a\nb: c",
        "a\rb",
        "a\x85b",
        "a\u2028b",
        "a # b",
        "&a b",
        "!!str b",
        "!!python/object/apply:os.system [id]",
        "--- a",
        "|",
        "*a",
        "%0a",
        "1e400",
        "a\udcff",  # a byte of the command line that is not UTF-8
    ],
)
def test_set_refuses_non_scalars_that_set_string_accepts(text: str) -> None:
    with pytest.raises(InvalidJob, match="--set: "):
        changed(f"spec.x={text}")
    assert apply_overrides(document(), parse_overrides(strings=[f"spec.x={text}"]))["spec"]["x"] == text


@pytest.mark.parametrize(("way", "option"), [("scalars", "--set"), ("json", "--set-json"), ("strings", "--set-string")])
def test_errors_of_overrides_name_their_option(way: str, option: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_overrides(**{"scalars": [], way: ["no-value"]})  # type: ignore[arg-type]
    assert [problem.path for problem in caught.value.problems] == [option]
    assert caught.value.problems[0].hint.startswith(f"write {option} ")


@given(st.text())
def test_set_yields_scalar_or_error(text: str) -> None:
    try:
        found = changed(f"spec.x={text}")["spec"]["x"]
    except InvalidJob:
        return
    assert not isinstance(found, dict | list)


def test_set_json_reads_lists_and_mappings() -> None:
    found = parse_overrides(json=['spec.x=[1, {"a": null}]', "spec.y=1.5"])
    assert [one.value for one in found] == [[1, {"a": None}], 1.5]
    with pytest.raises(InvalidJob) as caught:
        parse_overrides(json=["x={a: 1}", "x=NaN", "x", f"x={'[' * 100_000}"])
    assert len(caught.value.problems) == 4


def test_overrides_change_and_create_values() -> None:
    found = changed(
        "spec.tfReplicaSpecs.Worker.replicas=3",
        "spec.runPolicy.suspend=true",
        "spec.tasks[1].name=chief",
        "spec.tasks[2].name=new",
        'metadata.labels["app.io/name"]=blue',
    )
    assert found == {
        "metadata": {"name": "a", "labels": {"app.io/name": "blue"}},
        "spec": {
            "tfReplicaSpecs": {"Worker": {"replicas": 3}},
            "tasks": [{"name": "ps"}, {"name": "chief"}, {"name": "new"}],
            "runPolicy": {"suspend": True},
        },
    }


def test_overrides_do_not_change_original_document() -> None:
    original = document()
    apply_overrides(original, parse_overrides(["spec.tasks[0].name=x", "metadata.name=y"]))
    assert original == document()


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("spec.tfReplicaSpecs.Wroker.replicas=3", "has no 'Wroker'", "did you mean Worker?"),
        ("spec.tfReplicaSpecs.worker.replicas=3", "has no 'worker'", "did you mean Worker?"),
        ("metadata.name.x=1", "metadata.name is the value 'a'", ""),
        ("spec.tasks.ps=1", "spec.tasks is a list", "written [0]"),
        ("spec.tasks[5].name=x", "has 2 entries", "[2] adds one"),
        ("spec[0]=x", "spec is a mapping, not a list", "tfReplicaSpecs, tasks"),
        ("metadata.name[0]=x", "not a list", ""),
    ],
)
def test_refuses_paths_that_do_not_match_document(text: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        changed(text)
    (problem,) = caught.value.problems
    assert message in problem.message
    assert hint in problem.hint
    assert problem.path == text.partition("=")[0]


def test_reports_all_invalid_overrides_at_once() -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_overrides(["a", "b..c=1", "d=[", "e=1"])
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("ways", "message"),
    [
        ({"json": ["spec=x"]}, "spec: 'x' is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ({"json": ["spec.a=[NaN]"]}, "spec.a: '[NaN]' is not JSON: NaN is not one of its values"),
        ({"json": ["a=" + "[" * 100_000]}, "a: it is nested too deeply"),
        ({"scalars": ["spec.a=[1]"]}, "spec.a: '[1]' is more than one number, word or quoted text"),
        ({"scalars": ["spec.a=!!int x"]}, "spec.a: '!!int x' is more than one number, word or quoted text"),
    ],
)
def test_error_of_invalid_value_names_its_path(ways: dict[str, list[str]], message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_overrides(**ways)
    (problem,) = caught.value.problems
    assert problem.message == message


def test_override_creates_key_similar_to_existing_key() -> None:
    template = {"containers": [{"readinessProbe": {}}]}
    found = apply_overrides(
        template, parse_overrides(["initContainers[0].name=x", "containers[0].livenessProbe.timeout=1"])
    )
    assert found["initContainers"] == [{"name": "x"}]
    assert found["containers"][0]["livenessProbe"] == {"timeout": 1}
