"""Each example equals what its Python renders, and is valid by Argo's schema, Hera's models and its references."""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path
from typing import Any

import pytest

hera = pytest.importorskip("hera.workflows", reason="Hera is missing: pip install '.[argo]'")
jsonschema = pytest.importorskip("jsonschema")

from tests.argo.expressions import substituted  # noqa: E402
from tests.argo.rendered import MODULES, documents, golden, rendered  # noqa: E402
from tests.argo.strict import SCHEMA, kind_schema, problems, strict_schema  # noqa: E402

NAMES = [golden(module).name for module in MODULES]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_yaml_matches_python(module: Path) -> None:
    text = rendered(module)
    if os.environ.get("TF_DIST_REGENERATE"):
        golden(module).write_text(text)
    assert golden(module).read_text() == text, "TF_DIST_REGENERATE=1 pytest tests/argo/test_rendered.py writes it anew"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    if not SCHEMA.exists():
        pytest.skip("Argo's schema is not beside the checkout (../shared/argo)")
    return strict_schema()


def invalid(schema: dict[str, Any], document: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft202012Validator(kind_schema(schema, document["kind"]))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


@pytest.mark.parametrize("name", NAMES)
def test_workflow_is_valid_by_argo_schema(schema: dict[str, Any], name: str) -> None:
    assert invalid(schema, documents()[name]) == []


def test_strict_schema_rejects_misspelled_fields(schema: dict[str, Any]) -> None:
    document = copy.deepcopy(documents()["digits-train.yaml"])
    document["spec"]["templates"][0]["retryStratgy"] = document["spec"]["templates"][0].pop("retryStrategy")
    document["spec"]["templates"][0]["container"]["imagePullPolcy"] = "Always"
    assert len(invalid(schema, document)) == 2


@pytest.mark.parametrize("name", [name for name in NAMES if name != "event-retrain.yaml"])
def test_hera_round_trip_preserves_document(name: str) -> None:
    document = documents()[name]
    read = getattr(hera, document["kind"]).from_dict(document)
    assert read.to_dict() == document


@pytest.mark.parametrize("name", NAMES)
def test_steps_set_fs_group_and_image_pull_policy(name: str) -> None:
    spec = documents()[name]["spec"]
    for template in spec.get("templates", []):
        container = template.get("script") or template.get("container") or {}
        claims = {one["name"] for one in template.get("volumes", []) if "persistentVolumeClaim" in one}
        if claims & {mount["name"] for mount in container.get("volumeMounts", [])}:
            assert spec["securityContext"]["fsGroup"] == 1000, template["name"]
        if container.get("image") == "{{workflow.parameters.image}}":
            assert container["imagePullPolicy"] == "IfNotPresent", template["name"]


@pytest.mark.parametrize("name", NAMES)
def test_all_references_exist(name: str) -> None:
    everything = documents()
    others = {one["metadata"]["name"]: one for one in everything.values() if "name" in one["metadata"]}
    assert problems(everything[name], others) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda spec: spec.update(entrypoint="retrian"), "entrypoint: there is no template 'retrian'"),
        (lambda spec: spec.update(onExit="cleanpu"), "onExit: there is no template 'cleanpu'"),
        (lambda spec: spec["arguments"]["parameters"].pop(1), "no such argument of the workflow"),
        (lambda spec: spec["templates"].append(spec["templates"][0]), "is there twice"),
        (lambda spec: task(spec, "train")["arguments"]["parameters"].pop(), "needs 'learning-rate'"),
        (lambda spec: task(spec, "promote").update(depends="prepare"), "does not depend on it"),
        (lambda spec: task(spec, "promote").update(when="{{tasks.evaluate.outputs.parameters.x}}"), "no such output"),
    ],
)
def test_reference_check_reports_problem(change: Any, told: str) -> None:
    document = copy.deepcopy(documents()["digits-retrain.yaml"])
    change(document["spec"])
    assert any(told in problem for problem in problems(document, {}))


def task(spec: dict[str, Any], name: str) -> dict[str, Any]:
    dag = next(template["dag"] for template in spec["templates"] if "dag" in template)
    return next(one for one in dag["tasks"] if one["name"] == name)


def test_memoize_key_is_valid_and_unique_per_settings() -> None:
    (train,) = [one for one in documents()["train-once.yaml"]["spec"]["templates"] if one["name"] == "train"]
    (folder,) = [word for word in train["container"]["args"] if word.startswith("model_dir=")]
    usual = {
        "workflow.namespace": "research",
        "workflow.parameters.image": "registry:5000/tf-dist/digits_2:v1.0@sha256:4f",
        "workflow.parameters.data": "2024.06",
        "inputs.parameters.steps": "4000",
        "inputs.parameters.learning-rate": "0.05",
    }
    settings = usual.keys() - {"workflow.namespace"}
    for text in (train["memoize"]["key"], folder):
        values = [usual, *({**usual, name: f"{usual[name]}1"} for name in settings)]
        assert len({substituted(text, scope) for scope in values}) == len(values)
        dashed = {**usual, "workflow.parameters.data": "2024-06"}
        assert substituted(text, dashed) != substituted(text, usual)
    # All namespaces share the ConfigMap with Argo's cache, but each namespace has its own volume for the folder.
    other = substituted(train["memoize"]["key"], usual | {"workflow.namespace": "vision"})
    assert other != substituted(train["memoize"]["key"], usual)
    # workflow/controller/cache/cache.go of Argo 4.1; a key of a ConfigMap has at most 253 characters.
    assert re.fullmatch(r"[a-zA-Z0-9][-a-zA-Z0-9]{,252}", substituted(train["memoize"]["key"], usual))
