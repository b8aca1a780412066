"""Properties of parsing: only documented errors are raised, and both parsers agree."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.dialects.documents import ALL, Doc, changed, merged, v1, v1alpha1, volcano
from tests.thorough import thorough
from tf_dist.core.dialects import Parsed, convert, defaulted, parse, read, suspend_patch
from tf_dist.core.model.job import MAX_REPLICAS, Dialect, Job
from tf_dist.core.model.names import FALLBACK
from tf_dist.errors import InvalidJob

WORDS = sorted(
    {
        key
        for make in ALL
        for key in json.dumps(make()).replace('"', " ").replace(":", " ").replace(",", " ").split()
        if key.isidentifier()
    }
    | {"*", "event", "exitCode", "dependsOn", "volumes", "mountPath", "replicaName", "hostNetwork", "min-instance"}
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 5),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(WORDS),
    st.binary(max_size=2),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(WORDS), st.text(max_size=4), st.integers(0, 2)), inner, max_size=4),
    ),
    max_leaves=12,
)


def attempt(document: Any) -> Parsed | None:
    try:
        return parse(document)
    except InvalidJob as error:
        problems = error.problems
    assert problems
    assert all(problem.message for problem in problems)
    return None


def attempt_read(document: Doc) -> Job | None:
    try:
        return read(document)
    except InvalidJob:
        return None


@given(values)
@thorough(100)
def test_any_value_is_parsed_or_refused(value: Any):
    attempt(value)


@given(st.sampled_from(list(Dialect)), values, values)
@thorough(150)
def test_any_spec_is_parsed_or_refused(dialect: Dialect, metadata: Any, spec: Any):
    document = {"apiVersion": dialect.value, "kind": dialect.kind, "metadata": metadata, "spec": spec}
    attempt(document)
    attempt_read(document)


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [way, *(place for key, inner in value.items() for place in places(inner, (*way, key)))]
    if isinstance(value, list):
        return [way, *(place for index, inner in enumerate(value) for place in places(inner, (*way, index)))]
    return [way]


@st.composite
def mutated(draw: st.DrawFn) -> Doc:
    """A valid document in which up to three nodes are removed, replaced or extended."""
    document = draw(st.sampled_from(ALL))()
    for _ in range(draw(st.integers(0, 3))):
        way = draw(st.sampled_from([place for place in places(document) if place]))
        here: Any = document
        for part in way[:-1]:
            here = here[part]
        match draw(st.sampled_from(["remove", "replace", "add"])):
            case "remove":
                del here[way[-1]]
            case "replace":
                here[way[-1]] = draw(values)
            case "add" if isinstance(here[way[-1]], dict):
                here[way[-1]][draw(st.sampled_from(WORDS))] = draw(values)
    return document


@given(mutated())
@thorough(400)
def test_parse_and_read_agree(document: Doc):
    before = copy.deepcopy(document)
    parsed = attempt(document)
    job = attempt_read(document)
    if parsed is not None:
        assert job == parsed.job
        assert read(parsed.document) == parsed.job
        assert parse(parsed.document).job == parsed.job
    assert repr(document) == repr(before), "documents are never changed in place"


@given(mutated())
@thorough(150)
def test_defaulting_is_idempotent_and_keeps_parsed_job(document: Doc):
    job = attempt_read(document)
    if job is not None:
        once = defaulted(document)
        assert repr(defaulted(once)) == repr(once)
        assert read(once) == job


@given(mutated(), st.booleans())
@thorough(150)
def test_conversion_yields_valid_document_or_error(document: Doc, strict: bool):
    try:
        converted = convert(document, strict=strict)
    except InvalidJob:
        return
    assert parse(converted.document, strict=strict).job.dialect is Dialect.TFJOB_V1


@given(mutated(), st.booleans())
@thorough(60)
def test_suspend_patch_sets_suspend(document: Doc, suspend: bool):
    if attempt(document) is None:
        return
    patched = merged(document, suspend_patch(document, suspend))
    assert read(patched).run_policy.suspend is suspend


def test_earlier_api_version_is_accepted_with_warnings():
    document = {**v1(), "apiVersion": "kubeflow.org/v1beta2"}
    document["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "ExitCode"
    found = {problem.path: problem.message for problem in parse(document).warnings}
    assert found["apiVersion"] == "kubeflow.org/v1beta2 is run as kubeflow.org/v1"
    assert "from 128 up" in found["spec.tfReplicaSpecs.Worker.restartPolicy"]


def test_parser_terminates_on_document_that_contains_itself():
    document = ALL[0]()
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["self"] = document
    attempt(document)
    document["spec"]["runPolicy"] = document
    assert attempt(document) is None


_TEMPLATE_OF = {
    v1: "spec.tfReplicaSpecs.Worker.template",
    v1alpha1: "spec.replicaSpecs.0.template",
    volcano: "spec.tasks.0.template",
}


@pytest.mark.parametrize("document", list(_TEMPLATE_OF), ids=lambda document: document.__name__)
@pytest.mark.parametrize(
    ("template", "where"),
    [({}, "spec"), ({"spec": {}}, "spec.containers"), ({"spec": {"containers": []}}, "spec.containers")],
)
def test_reader_of_stored_documents_requires_a_container(document: Any, template: Doc, where: str):
    path = _TEMPLATE_OF[document]
    with pytest.raises(InvalidJob) as caught:
        read(changed(document(), path, template))
    assert f"{path.replace('.0', '[0]')}.{where}" in {problem.path for problem in caught.value.problems}


@pytest.mark.parametrize("load", [parse, read])
@pytest.mark.parametrize(
    ("document", "path", "others"),
    [(v1, "spec.tfReplicaSpecs.PS", 4), (v1alpha1, "spec.replicaSpecs.1", 1), (volcano, "spec.tasks.1", 1)],
    ids=["v1", "v1alpha1", "volcano"],
)
def test_job_is_limited_to_100000_pods(document: Any, path: str, others: int, load: Any):
    for count, refused in ((MAX_REPLICAS - others, False), (MAX_REPLICAS - others + 1, True)):
        with pytest.raises(InvalidJob) as caught:  # other limits are lower, such as the limit of the environment
            load(changed(document(), f"{path}.replicas", count))
        assert ("with it the job has more than 100000 pods" in str(caught.value)) is refused


MANY = 1_000
GROUP = {"replicas": 1, "template": v1()["spec"]["tfReplicaSpecs"]["Worker"]["template"]}


@pytest.mark.parametrize(
    ("document", "path", "value"),
    [
        (v1, "spec.tfReplicaSpecs", {f"W{number}": {"replicas": "x"} for number in range(MANY)}),
        (v1, "spec.tfReplicaSpecs", {f"W{number}": GROUP for number in range(MANY)}),
        (v1, "metadata.annotations", {FALLBACK: json.dumps([{"replicas": 1}] * MANY)}),
        (v1, "metadata.annotations", {FALLBACK: json.dumps([{f"x{number}": 1 for number in range(MANY)}])}),
        (v1, "metadata.annotations", {FALLBACK: json.dumps([{"workers": 1}] * MANY)}),
        (v1alpha1, "spec.replicaSpecs", [{"tfReplicaType": "WORKER", **GROUP}] * MANY),
        (v1alpha1, "spec.replicaSpecs", [{"tfReplicaType": f"W{number}", **GROUP} for number in range(MANY)]),
        (volcano, "spec.tasks", [{"name": "worker", **GROUP}] * MANY),
        (volcano, "spec.tasks", [{"name": f"t{number}", "replicas": "x"} for number in range(MANY)]),
        (volcano, "spec.policies", [{"event": "PodFailed", "action": "Restart"}] * MANY),
        (volcano, "spec.plugins", {f"x{number}": [] for number in range(MANY)}),
    ],
)
def test_reader_of_stored_documents_stops_after_100_problems(document: Any, path: str, value: Any):
    """Other tenants wait while a controller reads a document."""
    with pytest.raises(InvalidJob) as caught:
        read(changed(document(), path, value))
    assert 1 <= len(caught.value.problems) <= 100


@pytest.mark.parametrize("make", ALL)
def test_text_that_cannot_be_encoded_is_reported(make: Callable[[], Doc]) -> None:
    """Python has bytes of a command line that are not UTF-8 as lone surrogates, which no API server accepts."""
    for key, value, path in (("a", "x\udcff", "a"), ("\ud800", "x", '["\\ud800"]')):
        document = make()
        document["metadata"]["annotations"] = {key: value}
        with pytest.raises(InvalidJob) as caught:
            parse(document)
        (problem,) = caught.value.problems
        assert (problem.message, problem.path[-len(path) :]) == ("is not text in UTF-8", path)
