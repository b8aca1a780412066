"""A strict version of Argo's schema, and checks of references, which a schema cannot express."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

SCHEMA: Final = Path(__file__).parents[3] / "shared" / "argo" / "workflow-schema.json"
REFERENCE: Final = re.compile(r"\{\{=?(.*?)\}\}", re.DOTALL)
REPLACED: Final = re.compile(r'sprig\.replace\("(.)", "(.)", (inputs|workflow)\.parameters\["([\w-]+)"\]\)')
HASHED: Final = re.compile(r'sprig\.trunc\((\d+), sprig\.sha256sum\((inputs|workflow)\.parameters\["([\w-]+)"\]\)\)')
NAMES: Final = {"CronWorkflow": 52}


def strict_schema() -> dict[str, Any]:
    """Argo's published schema, changed to reject unknown fields."""
    schema: dict[str, Any] = json.loads(SCHEMA.read_text())
    for definition in schema["definitions"].values():
        if "properties" in definition:
            definition["additionalProperties"] = False
    schema["definitions"]["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = {"type": ["string", "integer"]}
    return schema


def kind_schema(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The schema of one kind, because errors of a union of five kinds say little."""
    reference = {"$ref": f"#/definitions/io.argoproj.workflow.v1alpha1.{kind}"}
    return {"$schema": schema["$schema"], "definitions": schema["definitions"], **reference}


def problems(document: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The dangling references of a document. ``others`` are templates of other documents by name."""
    return list(_Check(document, others).problems())


class _Check:
    def __init__(self, document: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> None:
        self.document = document
        self.others = others
        spec = document["spec"]
        self.spec: Mapping[str, Any] = spec.get("workflowSpec", spec)
        self.templates = {template["name"]: template for template in self.spec.get("templates", [])}

    def problems(self) -> Iterator[str]:
        yield from self._names()
        if self.document["kind"] == "WorkflowEventBinding":
            yield from self._referred(self.spec["submit"])
            return
        yield from self._referred(self.spec)
        runs = self.document["kind"] in ("Workflow", "CronWorkflow") and not self.spec.get("workflowTemplateRef")
        if runs or "entrypoint" in self.spec:
            yield from self._template(self.spec.get("entrypoint", ""), "entrypoint")
        if "onExit" in self.spec:
            yield from self._template(self.spec["onExit"], "onExit")
        for template in self.templates.values():
            yield from self._in(template)

    def _names(self) -> Iterator[str]:
        metadata = self.document["metadata"]
        name = metadata.get("name") or f"{metadata['generateName']}xxxxx"
        limit = NAMES.get(self.document["kind"], 63)
        if len(name) > limit or not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name):
            yield f"{name} is not a name of at most {limit} characters"
        listed = [template["name"] for template in self.spec.get("templates", [])]
        if len(set(listed)) != len(listed):
            yield f"a template is there twice: {listed}"

    def _template(self, name: str, where: str) -> Iterator[str]:
        if name not in self.templates:
            yield f"{where}: there is no template {name!r}"

    def _referred(self, spec: Mapping[str, Any]) -> Iterator[str]:
        reference = spec.get("workflowTemplateRef")
        if not reference:
            return
        other = self.others.get(reference["name"])
        if other is None:
            yield f"workflowTemplateRef: there is no {reference['name']!r}"
            return
        known = {one["name"] for one in other["spec"].get("arguments", {}).get("parameters", [])}
        for one in (spec.get("arguments") or {}).get("parameters", []):
            if one["name"] not in known:
                yield f"workflowTemplateRef: {reference['name']} has no argument {one['name']!r}"

    def _in(self, template: Mapping[str, Any]) -> Iterator[str]:
        inputs = {one["name"] for one in (template.get("inputs") or {}).get("parameters", [])}
        workflow = {one["name"] for one in (self.spec.get("arguments") or {}).get("parameters", [])}
        tasks = {task["name"]: task for task in (template.get("dag") or {}).get("tasks", [])}
        yield from self._never_ending(tasks)
        tasks |= {step["name"]: step for group in template.get("steps", []) for step in group}
        for text in _texts(template):
            for reference in REFERENCE.findall(text):
                yield from self._reference(reference.strip(), template, inputs, workflow, tasks)
        for task in tasks.values():
            yield from self._task(task, tasks)

    def _reference(
        self,
        reference: str,
        template: Mapping[str, Any],
        inputs: set[str],
        workflow: set[str],
        tasks: Mapping[str, Mapping[str, Any]],
    ) -> Iterator[str]:
        where = f"{template['name']}: {{{{{reference}}}}}"
        if (replaced := REPLACED.fullmatch(reference)) is not None:
            reference = f"{replaced[3]}.parameters.{replaced[4]}"
        if (hashed := HASHED.fullmatch(reference)) is not None:
            reference = f"{hashed[2]}.parameters.{hashed[3]}"
        parts = reference.split(".")
        match parts:
            case ["inputs", "parameters", name]:
                if name not in inputs:
                    yield f"{where}: no such input"
            case ["workflow", "parameters", name]:
                if name not in workflow:
                    yield f"{where}: no such argument of the workflow"
            case ["tasks" | "steps", name, "outputs", "parameters", *output]:
                yield from self._output(where, tasks.get(name), output)
            case ["retries"]:
                if "retryStrategy" not in template:
                    yield f"{where}: only in a template with a retryStrategy"
            case ["workflow", "name" | "uid" | "namespace" | "status"] | ["node", "name"] | ["pod", "name"] | ["item"]:
                return
            case _:
                yield f"{where}: unknown variable"

    def _output(self, where: str, task: Mapping[str, Any] | None, output: list[str]) -> Iterator[str]:
        if task is None:
            yield f"{where}: no such task"
            return
        made = {one["name"] for one in self.templates[task["template"]].get("outputs", {}).get("parameters", [])}
        if output and output[0] not in made:
            yield f"{where}: {task['template']} has no such output"

    def _never_ending(self, tasks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
        """Find memoized tasks with retries and successors. Argo 4.1 loses the successors when the task is memoized."""
        for name, task in tasks.items():
            template = self.templates.get(task["template"], {})
            followed = any(_before(name, other, tasks) for other in tasks)
            if followed and "memoize" in template and "retryStrategy" in template:
                yield f"task {name}: memoized, with a retryStrategy and followed, so the DAG never ends: use steps"

    def _task(self, task: Mapping[str, Any], tasks: Mapping[str, Any]) -> Iterator[str]:
        yield from self._template(task["template"], f"task {task['name']}")
        if task["template"] not in self.templates:
            return
        given = {one["name"] for one in (task.get("arguments") or {}).get("parameters", [])}
        wanted = (self.templates[task["template"]].get("inputs") or {}).get("parameters", [])
        for one in wanted:
            if one["name"] not in given and "default" not in one and "value" not in one:
                yield f"task {task['name']}: {task['template']} needs {one['name']!r}"
        for name in given - {one["name"] for one in wanted}:
            yield f"task {task['name']}: {task['template']} has no input {name!r}"
        for name in re.findall(r"[a-z0-9][a-z0-9-]*", re.sub(r"\.[A-Z]\w*", "", task.get("depends", ""))):
            if name not in tasks:
                yield f"task {task['name']} depends on {name!r}, which is not defined"
        for text in _texts(task):
            for reference in re.findall(r"\{\{tasks\.([a-z0-9-]+)\.", text):
                if not _before(reference, task["name"], tasks):
                    yield f"task {task['name']} uses {reference}, and does not depend on it"


def _before(name: str, task: str, tasks: Mapping[str, Any]) -> bool:
    depends = re.findall(r"[a-z0-9][a-z0-9-]*", re.sub(r"\.[A-Z]\w*", "", tasks[task].get("depends", "")))
    return name in depends or any(_before(name, other, tasks) for other in depends if other in tasks)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
