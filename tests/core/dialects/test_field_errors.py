"""Field paths and hints."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.dialects.documents import changed, errors, only_error, paths, v1, v1alpha1, volcano
from tf_dist.core.dialects.field_errors import describe_value
from tf_dist.core.model.fieldpath import format_field_path, nearest_word, parse_field_path, suggestion


@pytest.mark.parametrize(
    ("loc", "text"),
    [
        (("spec", "replicaSpecs", 0, "template"), "spec.replicaSpecs[0].template"),
        (("spec", "min-instance"), "spec.min-instance"),
        (("metadata", "labels", "a.b/c"), 'metadata.labels["a.b/c"]'),
        (("a.b", "c d", "", 3), '["a.b"]["c d"][""][3]'),
        ((), ""),
    ],
)
def test_formats_field_paths(loc: tuple[str | int, ...], text: str):
    assert format_field_path(loc) == text
    if loc and "" not in loc:
        assert parse_field_path(text) == loc


def test_suggests_nearest_word():
    assert nearest_word("Comand", ["command", "args"]) == "command"
    assert nearest_word("xyzzy", ["command", "args"]) == ""
    assert suggestion("comand", ["command", "args"], "see the docs") == "did you mean command?"
    assert suggestion("xyzzy", ["command", "args"]) == "known: command, args"
    assert suggestion("xyzzy", ["command", "args"], "see the docs") == "see the docs"
    assert describe_value(10**5000) == "the number too large to print"


@pytest.mark.parametrize(
    ("document", "path", "value", "message", "hint"),
    [
        (
            v1(),
            "spec.tfReplicaSpecs.Worker.replicas",
            "2",
            "must be a whole number, not the text '2'",
            "2 without quotes",
        ),
        (v1(), "spec.tfReplicaSpecs.Worker.replicas", 2.5, "must be a whole number, not the number 2.5", ""),
        (v1(), "spec.tfReplicaSpecs.Worker.replicas", True, "must be a whole number, not the boolean true", ""),
        (v1(), "spec.tfReplicaSpecs.Worker.replicas", -1, "must not be negative, not -1", ""),
        (v1(), "spec.tfReplicaSpecs.Worker.replicas", 2**40, "must be at most 100000", ""),
        (v1(), "spec.tfReplicaSpecs.Worker.restartPolicy", "ExitCodes", "unknown value", "did you mean ExitCode?"),
        (v1(), "spec.tfReplicaSpecs.Worker.restartpolicy", "Never", "unknown key", "did you mean restartPolicy?"),
        (v1(), "spec.tfReplicaSpecs.Worker.tempalte", {}, "unknown key", "did you mean template?"),
        (v1(), "spec.tfReplicaSpecs.Worker", 5, "must be a mapping (key: value), not the number 5", ""),
        (v1(), "spec.tfReplicaSpecs.Worker.template", ..., "is required and missing", ""),
        (v1(), "spec.tfReplicaSpecs", [], "must be a mapping", ""),
        (v1(), "spec.runPolicy.cleanPodPolicy", "", "unknown value ''", "known: All, Running, None"),
        (v1(), "spec.runPolicy.cleanPodPolicy", "all", "unknown value 'all'", "did you mean All?"),
        (v1(), "spec.runPolicy.suspend", "true", "must be true or false, not the text 'true'", "true without quotes"),
        (v1(), "spec.runPolicy.backofLimit", 1, "unknown key", "did you mean backoffLimit?"),
        (v1(), "spec.runPolicy.managedBy", "me", "unknown value", "multikueue"),
        (v1(), "metadata.name", 123, "must be text, not the number 123", 'write it in quotes: "123"'),
        (v1(), "metadata.labels.app", True, "must be text, not the boolean true", 'in quotes: "true"'),
        (v1(), "metadata.lables", {}, "unknown key", "did you mean labels?"),
        (v1(), "metadata", ..., "is required and missing", ""),
        (v1(), "specs", {}, "unknown key", "did you mean spec?"),
        (v1(), "spec", None, "must be a mapping", ""),
        (v1alpha1(), "spec.replicaSpecs.0.tfReplicaType", "Master", "unknown value", "did you mean MASTER?"),
        (v1alpha1(), "spec.replicaSpecs.1.replica", 2, "unknown key", "did you mean replicas?"),
        (v1alpha1(), "spec.max-instances", 2, "unknown key", "did you mean max-instance?"),
        (volcano(), "spec.tasks.1.policies.0.actoin", "x", "unknown key", "did you mean action?"),
        (volcano(), "spec.tasks.1.policies.0.timeout", 10, "must be text, not the number 10", '"10"'),
        (volcano(), "spec.plugins.svc", "", "must be a list", ""),
        (volcano(), "spec.minAvalable", 3, "unknown key", "did you mean minAvailable?"),
    ],
)
def test_reports_wrong_types_of_keys(document: Any, path: str, value: Any, message: str, hint: str):
    problem = only_error(changed(document, path, value))
    assert problem.path == path.replace(".0", "[0]").replace(".1", "[1]")
    assert message in problem.message
    assert hint in problem.hint


def test_refuses_keys_that_are_not_text():
    problem = only_error(changed(v1(), "spec", {**v1()["spec"], 7: "x"}))
    assert (problem.path, problem.hint) == ("spec[7]", 'write it in quotes: "7"')
    document = v1()
    document["spec"]["tfReplicaSpecs"][7] = {}
    assert "a key must be text, not the number 7" in [problem.message for problem in errors(document)]


def test_all_problems_of_document_are_reported_at_once():
    document = changed(v1(), "metadata.name", "My_Job")
    document = changed(document, "spec.tfReplicaSpecs.Worker.replicas", "3")
    document = changed(document, "spec.tfReplicaSpecs.Master", document["spec"]["tfReplicaSpecs"]["Chief"])
    document = changed(document, "spec.tfReplicaSpecs.PS.template.spec.containers.0.image", ...)
    document = changed(document, "spec.tfReplicaSpecs.PS.template.spec.containers.0.args", [5])
    document = changed(document, "spec.runPolicy.cleanPodPolicyy", "All")
    document = changed(document, "spec.activeDeadlineSeconds", 1)
    assert set(paths(errors(document))) == {
        "metadata.name",
        "spec.tfReplicaSpecs.Worker.replicas",
        "spec.tfReplicaSpecs.Master",
        "spec.tfReplicaSpecs.PS.template.spec.containers[0].image",
        "spec.tfReplicaSpecs.PS.template.spec.containers[0].args[0]",
        "spec.runPolicy.cleanPodPolicyy",
        "spec.activeDeadlineSeconds",
    }


@pytest.mark.parametrize("template", [..., [1]], ids=["missing", "a list"])
def test_invalid_template_hides_no_other_problems(template: object):
    document = changed(volcano(), "spec.tasks.0.template", template)
    document = changed(document, "spec.policies", [{"event": "Nope", "action": "RestartJob", "timeout": "soon"}])
    document = changed(document, "spec.plugins", {"foo": []})
    assert set(paths(errors(document))) == {
        "spec.tasks[0].template",
        "spec.policies[0].event",
        "spec.policies[0].timeout",
        "spec.plugins.foo",
    }
    document = changed(v1(), "spec.tfReplicaSpecs.Worker.template", template)
    document = changed(document, "spec.tfReplicaSpecs.Chief.replicas", 2)
    assert set(paths(errors(document))) == {
        "spec.tfReplicaSpecs.Worker.template",
        "spec.tfReplicaSpecs.Chief.replicas",
    }
