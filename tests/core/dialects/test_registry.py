"""Detection of a document's dialect."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from tests.core.dialects.documents import ALL, changed, errors, only_error, v1, v1alpha1, volcano
from tf_dist.core.dialects import as_written, dialect_of, parse, read
from tf_dist.core.model.job import Dialect
from tf_dist.errors import InvalidJob


def test_detects_three_dialects():
    assert [dialect_of(make()) for make in ALL] == list(Dialect)


@pytest.mark.parametrize(
    ("version", "kind", "path", "hint"),
    [
        ("kubeflow.org/v1beta3", "TFJob", "apiVersion", "did you mean kubeflow.org/v1?"),
        ("kubeflow.org/v2", "TFJob", "apiVersion", "did you mean kubeflow.org/v1?"),
        ("kubeflow/v1", "TFJob", "apiVersion", "did you mean kubeflow.org/v1?"),
        ("kubeflow.org/v1", "TfJob", "kind", "did you mean TFJob?"),
        ("kubeflow.org/v1", "TFJobs", "kind", "did you mean TFJob?"),
        ("batch.volcano.sh/v1alpha1", "TFJob", "apiVersion", ""),
        (None, "TFJob", "apiVersion", "known: kubeflow.org/v1, kubeflow.org/v1alpha1"),
        ("kubeflow.org/v1", None, "kind", "write kind: TFJob"),
        (1, "Job", "apiVersion", "write it in quotes"),
    ],
)
def test_unknown_kind_or_version_has_nearest_match_as_hint(version: Any, kind: Any, path: str, hint: str):
    problem = only_error({"apiVersion": version, "kind": kind})
    assert problem.path == path
    assert hint in problem.hint


def test_layout_outweighs_similarity_of_versions():
    """The version resembles v1alpha1, and the layout is that of v1."""
    assert errors(changed(v1(), "apiVersion", "kubeflow.org/v1alpha3"))[0].hint == "did you mean kubeflow.org/v1?"
    assert errors(changed(v1alpha1(), "apiVersion", "kubeflow.org/v2"))[0].hint == "did you mean kubeflow.org/v1alpha1?"


def test_unknown_version_and_kind_are_two_problems():
    document = {"apiVersion": "kubeflow.org/v2", "kind": "Podlet"}
    assert [problem.path for problem in errors(document)] == ["apiVersion", "kind"]


@pytest.mark.parametrize("kind", ["Namespace", "ServiceAccount", "ResourceQuota", "Podlet"])
def test_kind_that_is_not_a_job_is_one_problem_with_hint(kind: str):
    problem = only_error({"apiVersion": "v1", "kind": kind, "metadata": {"name": "a"}})
    assert (problem.path, problem.message) == (
        "kind",
        f"a {kind} is neither a job nor an object that goes with jobs",
    )
    assert "apply it with kubectl" in problem.hint


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "nothing"),
        ([v1()], "a list"),
        ("apiVersion: kubeflow.org/v1", "the text"),
        (42, "the number 42"),
        (datetime.date(2026, 1, 2), "a date"),
    ],
)
def test_refuses_documents_that_are_not_mappings(document: Any, words: str):
    problem = only_error(document)
    assert problem.path == ""
    assert words in problem.message
    assert problem.hint


def test_layout_of_other_version_hints_at_its_version():
    problem = only_error(changed(v1(), "apiVersion", "kubeflow.org/v1alpha1"))
    assert (problem.path, problem.hint) == ("spec.tfReplicaSpecs", "write apiVersion: kubeflow.org/v1")
    problem = only_error(changed(v1alpha1(), "apiVersion", "kubeflow.org/v1"))
    assert (problem.path, problem.hint) == ("spec.replicaSpecs", "write apiVersion: kubeflow.org/v1alpha1")


@pytest.mark.parametrize(
    ("document", "key", "bad", "good", "path"),
    [
        (v1(), "terminationPolicy", 5, None, "spec.terminationPolicy"),
        (v1(), "min-instance", "x", 1, "spec.min-instance"),
        (v1alpha1(), "runPolicy", {"backoffLimit": "x"}, {"backoffLimit": 2}, "spec.runPolicy.backoffLimit"),
        (v1(), "replicaSpecs", [], None, "spec"),
    ],
)
def test_keys_of_other_layout_must_be_valid(document: Any, key: str, bad: Any, good: Any, path: str):
    """The CRD contains both layouts, so an API server that has it refuses the same documents."""
    with pytest.raises(InvalidJob) as caught:
        read(changed(document, f"spec.{key}", bad))
    assert [problem.path for problem in caught.value.problems] == [path]
    assert read(changed(document, f"spec.{key}", good)) == read(document)


def test_volcano_layout_in_tfjob_hints_at_volcano():
    found = errors({**volcano(), "apiVersion": "kubeflow.org/v1", "kind": "TFJob"})
    assert found[0].hint == "write apiVersion: batch.volcano.sh/v1alpha1 and kind: Job"


def test_stored_object_is_read_by_its_layout():
    """A CRD that serves both versions without conversion hands out either apiVersion."""
    assert read(changed(v1(), "apiVersion", "kubeflow.org/v1alpha1")).dialect is Dialect.TFJOB_V1
    assert read(changed(v1alpha1(), "apiVersion", "kubeflow.org/v1")).dialect is Dialect.TFJOB_V1ALPHA1
    with pytest.raises(InvalidJob):
        read({"kind": "Pod"})


def test_stored_object_is_validated_as_written():
    """The problems of the document are reported, not the apiVersion that the server exchanged."""
    for good, other in ((v1(), "kubeflow.org/v1alpha1"), (v1alpha1(), "kubeflow.org/v1")):
        stored = changed(good, "apiVersion", other)
        assert as_written(stored) == good
        assert parse(as_written(stored)).job == parse(good).job
    assert as_written(volcano()) == volcano()
    with pytest.raises(InvalidJob):
        as_written({"kind": "Pod"})


def test_accepts_metadata_and_status_that_kubectl_prints():
    for make in ALL:
        document = make()
        document["metadata"] |= {
            "uid": "0c7a",
            "generation": 3,
            "resourceVersion": "91",
            "creationTimestamp": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
            "selfLink": "/apis/x",
            "finalizers": ["a/b"],
            "ownerReferences": [{"kind": "Workflow"}],
        }
        document["status"] = {"anything": [1, {"goes": None}]}
        job = parse(document).job
        assert job.uid == "0c7a"
