"""Hostile values in parameters of shipped workflows change only one leaf of the job, or the step is rejected."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

hera = pytest.importorskip("hera.workflows", reason="Hera is missing: pip install '.[argo]'")

from tests.argo.expressions import substituted  # noqa: E402
from tests.argo.rendered import documents  # noqa: E402
from tests.argo.runner import spec_of  # noqa: E402
from tests.argo.strict import REFERENCE  # noqa: E402
from tests.payloads import PAYLOADS, changed_leaves  # noqa: E402
from tf_dist.argo.launcher.launcher_arguments import read_arguments  # noqa: E402
from tf_dist.argo.launcher.step_job import step_document  # noqa: E402
from tf_dist.errors import InvalidJob  # noqa: E402

DOCUMENTS = documents()
LIBRARY = {one["metadata"]["name"]: one for one in DOCUMENTS.values() if "name" in one["metadata"]}
RUNNING = ("digits-train.yaml", "digits-retrain.yaml", "cron-retrain.yaml", "event-retrain.yaml", "sweep.yaml")
OTHER = {
    "steps": "4711",
    "learning-rate": "0.5",
    "workers": "3",
    "image": "other/digits:1",
    "learning-rates": "[0.5]",
}
"""Another valid value of each parameter. The leaves that it changes are the leaves that the parameter may change."""
VALUE = re.compile(r"[\w.-]+=")
"""The beginning of an argument that is a single value, not a document."""
SCOPE = {"workflow.name": "wf", "workflow.uid": "u", "workflow.namespace": "default", "node.name": "n", "retries": "0"}


def parameters_of(name: str) -> dict[str, str]:
    """The parameters of a workflow, with their values."""
    spec = spec_of(DOCUMENTS[name], LIBRARY, {"steps": 4000})
    return {one["name"]: one["value"] for one in spec["arguments"]["parameters"]}


CASES = [(name, parameter) for name in RUNNING for parameter in parameters_of(name)]


def command_line(name: str, given: Mapping[str, str]) -> list[str]:
    """The launcher's command line after Argo's substitution of text, which escapes for JSON but not for YAML."""
    spec = spec_of(DOCUMENTS[name], LIBRARY, {"steps": 4000})
    values = {**parameters_of(name), **given}
    scope = SCOPE | {f"workflow.parameters.{key}": value for key, value in values.items()}
    (template,) = [one for one in spec["templates"] if "argo-launch" in (one.get("container") or {}).get("command", [])]
    arguments = dict(values)
    for task in _tasks(spec, template["name"]):
        item = json.loads(substituted(task["withParam"], scope))[0] if "withParam" in task else ""
        filled = scope | {"item": item if isinstance(item, str) else json.dumps(item)}
        for one in task["arguments"]["parameters"]:
            arguments[one["name"]] = substituted(one["value"], filled)
    for one in template["inputs"]["parameters"]:
        scope[f"inputs.parameters.{one['name']}"] = str(arguments.get(one["name"], one.get("default", "")))
    return [substituted(word, scope) for word in template["container"]["args"]]


def _tasks(spec: Mapping[str, Any], template: str) -> Iterator[dict[str, Any]]:
    for one in spec["templates"]:
        used = [*(one.get("dag") or {}).get("tasks", []), *(step for group in one.get("steps", []) for step in group)]
        yield from (task for task in used if task["template"] == template)


def job(name: str, given: Mapping[str, str]) -> dict[str, Any]:
    """The job that the step would create."""
    entry, _ = step_document(read_arguments(command_line(name, given), {}), "default")
    return entry.document


def filled(parameter: str, payload: str) -> dict[str, str]:
    return {parameter: json.dumps([payload]) if parameter == "learning-rates" else payload}


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_payload_changes_only_leaves_of_its_parameter(name: str, parameter: str) -> None:
    honest = job(name, {})
    allowed = changed_leaves(honest, job(name, {parameter: OTHER[parameter]}))
    assert allowed
    changed = {}
    for payload, text in PAYLOADS.items():
        with suppress(InvalidJob, SystemExit):
            changed[payload] = changed_leaves(honest, job(name, filled(parameter, text)))
    assert {payload: leaves - allowed for payload, leaves in changed.items() if leaves - allowed} == {}


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_no_substitution_in_programs_or_documents(name: str) -> None:
    spec = DOCUMENTS[name]["spec"]
    for template in spec.get("workflowSpec", spec).get("templates", []):
        for place, text in _programs(template):
            assert not REFERENCE.search(text), f"{template['name']}: {place}: {text}"


def _programs(template: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts that a program parses after Argo's substitution."""
    if "script" in template:
        yield "script.source", template["script"]["source"]
    if "resource" in template:
        yield "resource.manifest", re.sub(r"\{\{workflow\.(name|uid)\}\}", "", template["resource"]["manifest"])
    yield "podSpecPatch", template.get("podSpecPatch", "")
    for artifact in (template.get("inputs") or {}).get("artifacts", []):
        yield f"artifact {artifact['name']}", (artifact.get("raw") or {}).get("data", "")
    container = template.get("container") or {}
    for word in container["args"] if "argo-launch" in container.get("command", []) else ():
        if not VALUE.match(word):
            yield "document", word
