"""Inputs of a job: a value of a declared type at one path, or an error that names the input."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.payloads import PAYLOADS, changed_leaves
from tf_dist.core.model.overrides import apply_overrides
from tf_dist.core.pipeline.inputs import InputType, JobInput, input_overrides, listed_values, read_inputs
from tf_dist.errors import InvalidJob

DOCUMENT = {"spec": {"containers": [{"args": ["a", "b"], "env": [{"name": "X", "value": "y"}]}], "replicas": 1}}
ARGUMENT = "spec.containers[0].args[1]"


def put(one: JobInput, text: str) -> Any:
    return apply_overrides(DOCUMENT, input_overrides([one], {one.name: text}))


def declared(kind: str, path: str = ARGUMENT, **more: Any) -> JobInput:
    return JobInput(name="x", path=path, type=InputType(kind), **more)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", "4000", 4000),
        ("integer", "-3", -3),
        ("number", "0.05", 0.05),
        ("number", "1e-3", 0.001),
        ("boolean", "true", True),
        ("string", "a b: {c}", "a b: {c}"),
        ("string", "yes", "yes"),
        ("string", "012", "012"),
    ],
)
def test_parses_typed_values(kind: str, text: str, value: Any) -> None:
    found = put(declared(kind, "spec.replicas"), text)["spec"]["replicas"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("kind", [*InputType])
@pytest.mark.parametrize("payload", PAYLOADS)
def test_payload_changes_one_leaf_or_is_refused(kind: InputType, payload: str) -> None:
    for text in ("", "--x={}"):
        one = JobInput(name="learning-rate", path=ARGUMENT, type=kind, text=text)
        try:
            found = put(one, PAYLOADS[payload])
        except InvalidJob as error:
            (problem,) = error.problems
            told = (problem.path, len(str(problem)) < 300)
        else:
            assert kind is InputType.STRING or PAYLOADS[payload] == "-1"
            told = ("input learning-rate", changed_leaves(DOCUMENT, found) == {("spec", "containers", 0, "args", 1)})
        assert told == ("input learning-rate", True)


@given(st.text(), st.sampled_from(InputType))
def test_any_text_is_finite_value_or_refused(text: str, kind: InputType) -> None:
    try:
        found = put(declared(kind), text)
    except InvalidJob as error:
        assert str(error).isprintable()  # noqa: PT017
        return
    (value,) = {found["spec"]["containers"][0]["args"][1]}
    assert not isinstance(value, float) or math.isfinite(value)
    assert found["spec"]["containers"][0]["args"][0] == "a"


@pytest.mark.parametrize(
    ("more", "text", "told"),
    [
        ({"minimum": 1}, "0", "is less than 1"),
        ({"maximum": 8}, "9", "is more than 8"),
        ({"enum": (1, 2)}, "3", "is not one of 1, 2"),
    ],
)
def test_refuses_numbers_outside_bounds(more: Any, text: str, told: str) -> None:
    with pytest.raises(InvalidJob, match=f"input x: '{text}' {told}"):
        put(declared("integer", **more), text)


@pytest.mark.parametrize(
    ("more", "text", "told"),
    [
        ({"pattern": "[a-z]+"}, "ab1", "does not match"),
        ({"pattern": "a$"}, "a\n", "line break"),
        ({"enum": ("adam", "sgd")}, "rms", "is not one of adam, sgd"),
        ({"max_length": 3}, "abcd", "is longer than 3"),
        ({}, "a" * 1025, "is longer than 1024"),
        ({}, "a{{b}}", "did not fill in"),
    ],
)
def test_refuses_invalid_texts(more: Any, text: str, told: str) -> None:
    with pytest.raises(InvalidJob, match=told):
        put(declared("string", **more), text)


@pytest.mark.parametrize(
    ("more", "text"), [({}, "a" * 1024), ({"max_length": 3}, "abc"), ({"pattern": "[a-z]+"}, "ab")]
)
def test_accepts_valid_texts(more: Any, text: str) -> None:
    put(declared("string", **more), text)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (ARGUMENT, "$$(HOME)"),
        ("spec.containers[0].command[0]", "$$(HOME)"),
        ("spec.containers[0].env[0].value", "$$(HOME)"),
        ("spec.containers[0].image", "$(HOME)"),
    ],
)
def test_references_are_escaped_for_programs(path: str, expected: str) -> None:
    (found,) = input_overrides([declared("string", path)], {"x": "$(HOME)"})
    assert found.value == expected


def test_reports_all_invalid_inputs_at_once() -> None:
    with pytest.raises(InvalidJob) as caught:
        input_overrides([declared("integer"), JobInput(name="y", path="a")], {"x": "?", "y": "\n", "z": "1"})
    assert sorted(problem.path for problem in caught.value.problems) == ["input x", "input y", "input z"]


def test_empty_value_changes_nothing() -> None:
    both = [declared("integer"), JobInput(name="y", path="metadata.name")]
    assert [one.value for one in input_overrides(both, {"x": "", "y": "a"})] == ["a"]


def test_written_declaration_reads_back() -> None:
    one = declared("integer", minimum=1, maximum=2.5, enum=(1, 2), pattern="x", max_length=3, text="--x={}")
    assert read_inputs([one.document()]) == (one,)


@pytest.mark.parametrize(
    "content",
    [1, "x", {}, {"name": 1, "path": "a"}, {"name": "x", "path": "a..b"}]
    + [{"name": "x", "path": "a", **more} for more in ({"type": "array"}, {"tpye": "string"}, {"enum": 1})]
    + [{"name": "x", "path": "a", **more} for more in ({"minimum": True}, {"text": "x"}, {"pattern": "("})],
)
def test_refuses_invalid_declarations(content: Any) -> None:
    with pytest.raises(InvalidJob):
        read_inputs(content)


CONTENT = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)
)


@given(CONTENT)
def test_any_declaration_or_value_list_is_read_or_refused(content: Any) -> None:
    for read in (read_inputs, lambda listed: listed_values(listed, {"x"})):
        try:
            read(content)
        except InvalidJob:
            continue


def test_reads_declared_parameters_of_a_workflow() -> None:
    listed = [{"name": "x", "value": "1"}, {"name": "y", "value": "2"}, {"name": "z"}]
    assert listed_values(listed, {"x", "z"}) == {"x": "1"}
    assert listed_values(None, {"x"}) == {}
