"""Airflow's operators and Argo's steps: arguments, callbacks, settings, outputs. Neither has to be installed."""

from __future__ import annotations

import ast

from docs.generator import source
from docs.generator.markdown import argument_table, code, paragraphs, prose, table
from docs.generator.source import Argument, Undocumented
from tf_dist.airflow.provider import get_provider_info
from tf_dist.airflow.task_options import OPTIONS
from tf_dist.argo.launcher.launcher_arguments import LauncherOptions
from tf_dist.core.pipeline.run_options import Face, options_of

OPERATOR = "airflow/operators/tfjob.py"
ARGUMENTS = "airflow/operators/operator_arguments.py"
SENSORS = "airflow/sensors/tfjob.py"
DECORATOR = "airflow/decorators/tfjob.py"
ACTIONS = "airflow/operators/job_actions.py"
NAMED_JOB = "airflow/jobs/named_job.py"
CLASSES = {
    ACTIONS: (
        "SubmitTFJobOperator",
        "SuspendTFJobOperator",
        "ResumeTFJobOperator",
        "ScaleTFJobOperator",
        "DeleteTFJobOperator",
    ),
    SENSORS: ("TFJobSensor", "GangAdmittedSensor"),
}
CALLBACKS = "airflow/callbacks.py"
STEPS = "argo/steps.py"
RESOURCE = "argo/resource.py"
SOURCE = "argo/job_source.py"
CONTRACT = "argo/launcher/contract.py"


def airflow() -> str:
    """The operator, the decorator, the sensors, the callbacks, the settings."""
    operator = _doc(source.class_(OPERATOR, "TFJobOperator"))
    of_operator = {name: row.about(Face.OPERATOR) for name, row in OPTIONS.items()}
    parts = [
        "## TFJobOperator\n\n" + paragraphs(source.summary(operator)),
        argument_table(
            "TFJobOperator", source.arguments(source.function(ARGUMENTS, "__init__", "BaseTFJobOperator")), of_operator
        ),
        "Every argument of Airflow's `BaseOperator` works, too (`retries`, `execution_timeout`, `pool`, …).",
        "## @task.tfjob\n\n" + paragraphs(_doc(source.class_(DECORATOR, "TFJobDecoratedOperator"))),
    ]
    parts += [_class(path, name, of_operator) for path, names in CLASSES.items() for name in names]
    parts += ["## Callbacks\n\n" + paragraphs(_doc(source.class_(CALLBACKS, "TFJobCallbacks"))), _callbacks()]
    parts += ["## Settings of Airflow\n\nIn `airflow.cfg`, or as `AIRFLOW__TF_DIST__NAME`.", _settings()]
    return "\n\n".join(parts)


def _class(path: str, name: str, of_operator: dict[str, str]) -> str:
    """A class with its arguments and those of its bases; what none describes is as of its siblings or the operator."""
    given: dict[str, Argument] = {}
    texts: dict[str, str] = {}
    said: set[str] = set()  # what a class says itself when it calls its base
    modules = (source.module(path), source.module(NAMED_JOB))
    siblings = [one for module in modules for one in module.body if isinstance(one, ast.ClassDef)]
    found: ast.ClassDef | None = source.class_(path, name)
    about = _doc(source.class_(path, name))
    while found is not None:
        made = [one for one in found.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        for one in [argument for function in made for argument in source.arguments(function)]:
            if one.name not in said:
                given.setdefault(one.name, one)
        for key, text in source.described(ast.get_docstring(found) or "").items():
            if not text.startswith("See ``"):
                texts.setdefault(key, text)
        calls = [call for function in made for call in ast.walk(function) if isinstance(call, ast.Call)]
        upward = [call for call in calls if ast.unparse(call.func) == "super().__init__"]
        said |= {word.arg for call in upward for word in call.keywords if word.arg}
        bases = {one.id for one in found.bases if isinstance(one, ast.Name)}
        found = next((one for one in siblings if one.name in bases), None)
    beside = [source.described(ast.get_docstring(one) or "") for one in siblings]
    shared = {"poke_interval": "Seconds between two looks.", **of_operator}
    shared |= {key: text for one in beside for key, text in one.items() if not text.startswith("See ``")}
    told = {key: texts.get(key) or shared.get(key, "") for key in given}
    parts = [f"## {name}\n\n{paragraphs(source.summary(about))}"]
    if given:
        parts.append(argument_table(name, given.values(), told))
    return "\n\n".join(parts)


def _callbacks() -> str:
    methods = [one for one in source.class_(CALLBACKS, "TFJobCallbacks").body if isinstance(one, ast.FunctionDef)]
    rows = [
        (code(one.name), ", ".join(code(argument.arg) for argument in one.args.kwonlyargs), prose(_doc(one)))
        for one in methods
    ]
    return table(("method", "arguments", "called when"), rows)


def _settings() -> str:
    sections = get_provider_info()["config"]
    rows = [
        (code(f"[{section}] {name}"), code(option["default"]), prose(option["description"]))
        for section, found in sections.items()
        for name, option in found["options"].items()
    ]
    return table(("setting", "default", "meaning"), rows)


def argo() -> str:
    """The steps, and what they hand over."""
    step = source.class_(STEPS, "TFJobStep")
    parts = ["## TFJobStep\n\n" + paragraphs(source.summary(_doc(step)))]
    rows = {name: row.about(Face.STEP) for name, row in options_of(LauncherOptions, Face.STEP).items()}
    parts.append(argument_table("TFJobStep", source.fields(step), {**rows, **source.described(_doc(step))}))
    declared = source.class_(SOURCE, "Input")
    parts.append("## Input\n\n" + paragraphs(_doc(declared)))
    parts.append(argument_table("Input", source.fields(declared), source.field_texts(declared)))
    for path, name in (
        (STEPS, "wait_admitted_step"),
        (STEPS, "cleanup_step"),
        (STEPS, "default_retries"),
        (RESOURCE, "tf_job_resource"),
    ):
        found = source.function(path, name)
        parts.append(f"## {name}\n\n" + paragraphs(source.summary(_doc(found))))
        if given := source.arguments(found):
            own = {one.name: rows[one.name] for one in given if one.name in rows}
            parts.append(argument_table(name, given, {**own, **source.described(_doc(found))}))
    parts.append("## Outputs of a step\n\n" + _outputs())
    return "\n\n".join(parts)


def _outputs() -> str:
    found = source.entries(CONTRACT, "OUTPUTS")
    if missing := [one.name for one in found if not one.text]:
        raise Undocumented(f"{CONTRACT}: no comment beside {', '.join(missing)}")
    rows = [(code(one.name), code(str(one.value)), prose(one.text)) for one in found]
    return table(("output parameter", "if nothing was reported", "meaning"), rows)


def _doc(found: ast.ClassDef | ast.FunctionDef) -> str:
    text = ast.get_docstring(found)
    if not text:
        raise Undocumented(f"{found.name} has no docstring")
    return text
