"""Unknown keys: an error in a validated file, a warning elsewhere, and ignored in a stored object."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.dialects.documents import Doc, changed, errors, paths, v1, v1alpha1, volcano
from tf_dist.core.dialects import convert, parse, read
from tf_dist.core.model.job import Dialect
from tf_dist.errors import InvalidJob

CASES: list[tuple[Doc, str, Any]] = [
    (v1(), "spec.runPolicy.backofLimit", 1),
    (v1(), "spec.tfReplicaSpecs.Worker.restartpolicy", "Never"),
    (v1(), "spec.elasticPolicy", {"minReplicas": 1}),
    (v1(), "metadata.lables", {}),
    (v1(), "spec.tfReplicaSpecs.Worker.template.spec.volume", []),
    (v1alpha1(), "spec.max-instances", 2),
    (v1alpha1(), "spec.replicaSpecs.1.replica", 2),
    (v1alpha1(), "spec.replicaSpecs.0.isDefaultPS", True),
    (volcano(), "spec.minAvalable", 3),
    (volcano(), "spec.tasks.1.policies.0.actoin", "x"),
    (volcano(), "spec.tasks.0.template.spec.containers.0.comand", ["x"]),
]


@pytest.mark.parametrize(("document", "path", "value"), CASES, ids=[path for _, path, _ in CASES])
def test_unknown_key_is_error_only_in_strict_mode(document: Doc, path: str, value: Any) -> None:
    document = changed(document, path, value)
    (problem,) = errors(document)
    assert problem.message == "unknown key"
    found = parse(document, strict=False)
    assert problem in found.warnings
    document["metadata"]["uid"] = "some-uid"
    assert read(document).replica_specs == found.job.replica_specs


@pytest.mark.parametrize(("document", "path", "value"), CASES, ids=[path for _, path, _ in CASES])
def test_only_strict_conversion_refuses_unknown_keys(document: Doc, path: str, value: Any) -> None:
    document = changed(document, path, value)
    if document["apiVersion"] == Dialect.TFJOB_V1ALPHA1:
        del document["spec"]["replicaSpecs"][2]  # the standard parameter server, which v1 does not have
    with pytest.raises(InvalidJob):
        convert(document)
    found = convert(document, strict=False).document
    assert parse(found, strict=False).job.dialect is Dialect.TFJOB_V1


def test_other_errors_are_reported_with_and_without_strict_mode() -> None:
    document = changed(v1alpha1(), "spec.replicaSpecs.1.replicas", -1)
    document = changed(document, "spec.newer", 1)
    assert set(paths(errors(document))) == {"spec.replicaSpecs[1].replicas", "spec.newer"}
    with pytest.raises(InvalidJob) as caught:
        parse(document, strict=False)
    assert paths(list(caught.value.problems)) == ["spec.replicaSpecs[1].replicas"]


def test_cross_field_checks_run_despite_unknown_key() -> None:
    document = changed(v1alpha1(), "spec.max-instance", 1)
    document = changed(document, "spec.newer", 1)
    with pytest.raises(InvalidJob) as caught:
        parse(document, strict=False)
    assert paths(list(caught.value.problems)) == ["spec.replicaSpecs[1].replicas"]


@pytest.mark.parametrize("document", [v1(), v1alpha1(), volcano()], ids=["v1", "v1alpha1", "volcano"])
def test_metadata_of_api_server_is_known(document: Doc) -> None:
    """``kubectl get -o yaml``. Servers before 1.24 set clusterName, as in tf-operator's README."""
    for key in ("clusterName", "selfLink", "resourceVersion", "creationTimestamp"):
        document = changed(document, f"metadata.{key}", "")
    assert parse(document).warnings == ()
