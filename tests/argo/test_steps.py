"""The Hera classes: the templates for their arguments, and how the launcher reads them."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

hera = pytest.importorskip("hera.workflows", reason="Hera is missing: pip install '.[argo]'")

from tests.argo.expressions import retried, substituted  # noqa: E402
from tests.argo.stage import FOREVER, Stage, job  # noqa: E402
from tests.cli.conftest import surroundings  # noqa: E402
from tests.cli.ready import tf_dist  # noqa: E402
from tests.cli.refusing import forbidden, refusing  # noqa: E402
from tests.core.dialects.documents import v1, v1alpha1, volcano  # noqa: E402
from tests.payloads import changed_leaves  # noqa: E402
from tf_dist.argo import Input, TFJob, TFJobStep, cleanup_step, tf_job_resource, wait_admitted_step  # noqa: E402
from tf_dist.argo.launcher import contract  # noqa: E402
from tf_dist.argo.launcher.launcher_arguments import read_arguments  # noqa: E402
from tf_dist.argo.launcher.step_job import step_document  # noqa: E402
from tf_dist.argo.launcher.step_outputs import StepOutputs, progress_outputs  # noqa: E402
from tf_dist.argo.step_arguments import APART, ROWS  # noqa: E402
from tf_dist.client.code_archive import pack_code  # noqa: E402
from tf_dist.cluster.api import TFJOBS  # noqa: E402
from tf_dist.core.diagnostics.metrics_parser import Progress  # noqa: E402
from tf_dist.core.dialects import read  # noqa: E402
from tf_dist.core.model import names  # noqa: E402
from tf_dist.core.model.names import CODE  # noqa: E402
from tf_dist.core.model.status import TERMINAL, Phase  # noqa: E402
from tf_dist.errors import InvalidJob  # noqa: E402

Parameter = hera.Parameter


def template(step: Any) -> dict[str, Any]:
    """The template that Argo receives."""
    with hera.Workflow(name="w", entrypoint=step.name, templates=[step]) as w:
        pass
    (found,) = w.to_dict()["spec"]["templates"]
    return dict(found)


def command_line(step: Any, **arguments: str) -> Any:
    """The launcher's options after Argo's substitution."""
    found = template(step)
    scope = {"workflow.name": "wf", "workflow.uid": "u", "node.name": "wf.train", "retries": "0"}
    for one in found["inputs"]["parameters"]:
        scope[f"inputs.parameters.{one['name']}"] = arguments.get(one["name"], one.get("default", ""))
    return read_arguments([substituted(word, scope) for word in found["container"]["args"]], {})


def test_all_arguments_reach_launcher() -> None:
    step = TFJobStep(
        name="train",
        job=job("true"),
        packages=["tiny==1"],
        workers=4,
        ps=2,
        queue_name="vision",
        priority_class="high",
        job_image="mine:1",
        model_dir="/models/x",
        total_steps=1000,
        admission_timeout="2h",
        startup_timeout="20m",
        run_timeout="1d",
        overrides={"spec.runPolicy.backoffLimit": 3},
        on_term="suspend",
        on_suspend="leave",
        grace_seconds=90,
        reattach=False,
        driver="controller",
        job_namespace="research",
    )
    found = command_line(step)
    assert found.job == job("true")
    assert (found.workers, found.ps, found.queue_name, found.priority_class) == (4, 2, "vision", "high")
    assert found.packages == ["tiny==1"]
    assert (found.image, found.model_dir, found.total_steps) == ("mine:1", "/models/x", 1000)
    assert (found.admission_timeout, found.run_timeout, found.grace) == (7200.0, 86400.0, 90.0)
    assert found.startup_timeout == 1200.0
    assert command_line(TFJobStep(name="train", job=job("true"))).startup_timeout == 600.0
    assert command_line(TFJobStep(name="train", job=job("true"), startup_timeout=None)).startup_timeout is None
    assert found.overrides == {"spec.runPolicy.backoffLimit": 3}
    assert (found.on_term, found.driver, found.namespace) == ("suspend", "controller", "research")
    assert (found.on_suspend, found.reattach) == (False, False)
    assert (found.workflow, found.workflow_uid, found.node, found.retries) == ("wf", "u", "wf.train", 3)
    assert str(found.out) == contract.OUT
    pod = template(step)
    assert json.loads(pod["podSpecPatch"]) == {"terminationGracePeriodSeconds": 90}
    assert pod["metadata"]["annotations"]["workflows.argoproj.io/progress"] == "0/1000"
    assert {"name": "tf-dist-out", "mountPath": contract.OUT} in pod["container"]["volumeMounts"]


def test_fields_and_docstring_match_option_table() -> None:
    """Each option is a row of the table. Its type is in the field, for editors and type checkers."""
    fields = TFJobStep.__dataclass_fields__
    assert ROWS.keys() <= fields.keys()
    rows = {name: row for name, row in ROWS.items() if name not in APART}
    assert {name for name, row in rows.items() if row.read(fields[name].default) != row.default} == set()
    assert [name for name in ROWS if f":param {name}: " not in (TFJobStep.__doc__ or "")] == []


def test_arguments_can_differ_for_each_use() -> None:
    step = TFJobStep(name="train", job=job("true"), workers=2)
    assert command_line(step, workers="7", **{"queue-name": "vision"}).workers == 7
    assert command_line(step).workers == 2


def test_accepts_parameters_and_references() -> None:
    step = TFJobStep(
        name="train",
        job=Parameter(name="what"),
        workers=Parameter(name="how-many", default="3"),
        queue_name="{{workflow.parameters.queue}}",
        inputs=[Parameter(name="more")],
    )
    args, inputs = template(step)["container"]["args"], template(step)["inputs"]["parameters"]
    assert "job={{inputs.parameters.what}}" in args
    assert "workers={{inputs.parameters.how-many}}" in args
    assert "queue_name={{workflow.parameters.queue}}" in args
    assert {"what", "how-many", "more"} <= {one["name"] for one in inputs}
    assert not {"queue", "queue-name"} & {one["name"] for one in inputs}


def test_accepts_job_as_file_text_or_object(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(job("true")))
    for source in (path, str(path), path.read_text() + "\n"):
        assert command_line(TFJobStep(name="t", job=source)).job == job("true")
    made = TFJob("tiny", image="mine:1", command=["python", "train.py"], workers=2, ps=1)
    assert command_line(TFJobStep(name="t", job=made)).job == made.to_dict()


def test_warns_about_unknown_key_at_definition() -> None:
    document = job("true")
    document["spec"]["tfReplicaSpecs"]["Worker"]["replica"] = 2
    with pytest.warns(UserWarning, match="did you mean replicas"):
        TFJobStep(name="train", job=document)


def test_invalid_job_fails_at_definition() -> None:
    document = job("true")
    document["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "Sometimes"
    with pytest.raises(InvalidJob, match="Sometimes"):
        TFJobStep(name="train", job=document)
    with pytest.raises(InvalidJob, match=r"job: cannot read the file 'missing\.yaml'"):
        TFJobStep(name="train", job="missing.yaml")
    with pytest.raises(TypeError, match="worker"):
        TFJobStep(name="train", job=job("true"), worker=2)


def test_job_without_name_is_named_after_step() -> None:
    nameless = TFJob(image="mine:1", command=["true"])
    assert command_line(TFJobStep(name="Train-it", job=nameless)).job["metadata"]["name"] == "train-it"
    assert "generateName: train-it-" in template(tf_job_resource(nameless, name="Train-it"))["resource"]["manifest"]
    named = nameless.replace(name="mine")
    assert command_line(TFJobStep(name="Train-it", job=named)).job["metadata"]["name"] == "mine"


def test_code_is_packed_at_definition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print(1)")
    document = job("true")
    (tmp_path / "job.yaml").write_text(
        json.dumps({**document, "metadata": {"name": "a", "annotations": {CODE: "src"}}})
    )
    packed = base64.b64encode(pack_code(tmp_path / "src")).decode()
    for step in (
        TFJobStep(name="t", job=document, code=str(tmp_path / "src")),
        TFJobStep(name="t", job=TFJob("tiny", image="mine:1", command=["true"], code=tmp_path / "src")),
        TFJobStep(name="t", job=tmp_path / "job.yaml"),
    ):
        assert command_line(step).code_archive == packed
    monkeypatch.chdir(tmp_path)
    assert command_line(TFJobStep(name="t", job=document, code="src")).code_archive == packed
    assert command_line(TFJobStep(name="t", job=document)).code_archive == ""


def test_invalid_code_fails_at_definition(tmp_path: Path) -> None:
    for code, told in (
        (str(tmp_path / "missing"), "code: .*missing is not a folder"),
        ("{{workflow.parameters.code}}", "code: the folder is packed where the workflow is written"),
        (7, "code: must be text, not 7"),
    ):
        with pytest.raises(InvalidJob, match=told):
            TFJobStep(name="t", job=job("true"), code=code)
    (tmp_path / "noise").write_bytes(os.urandom(900_000))
    with pytest.raises(InvalidJob, match=r"code: .*; 1,200,\d\d\d of them are the code"):
        template(TFJobStep(name="t", job=job("true"), code=str(tmp_path)))
    with pytest.raises(InvalidJob, match="job: a resource step cannot send its code"):
        tf_job_resource(TFJob("tiny", image="mine:1", command=["true"], code=tmp_path), name="t")


LEAF = "spec.tfReplicaSpecs.Worker.template.spec.containers[0].command[2]"
STEPS = Input("steps", int, default=10, minimum=1, maximum=5000, text="train --steps={}")


def made(step: Any, **arguments: str) -> dict[str, Any]:
    """The job that the launcher would create."""
    return dict(step_document(command_line(step, **arguments), "default")[0].document)


def test_input_changes_only_its_field() -> None:
    overrides = {LEAF: STEPS, "spec.runPolicy.backoffLimit": 3, "metadata.labels": {"a": "b"}}
    step = TFJobStep(name="train", job=job("true"), overrides=overrides)
    plain = TFJobStep(name="train", job=job("true"))
    found, before = made(step), made(plain)
    assert found["spec"]["runPolicy"]["backoffLimit"] == 3
    assert found["metadata"]["labels"] == before["metadata"]["labels"] | {"a": "b"}
    (container,) = found["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-c", "train --steps=10"]
    assert len(changed_leaves(found, made(step, steps="4711"))) == 1
    assert {"name": "steps", "default": "10"} in template(step)["inputs"]["parameters"]
    assert made(step, steps="") == made(TFJobStep(name="train", job=job("true"), overrides=overrides | {LEAF: "true"}))


@pytest.mark.parametrize("value", ["0", "5001", "4.5", "4711\n", " 4711", "1e3", "{{workflow.parameters.x}}", "٣"])
def test_rejects_invalid_input_value(value: str) -> None:
    step = TFJobStep(name="train", job=job("true"), overrides={LEAF: STEPS})
    with pytest.raises(InvalidJob, match=r"^input steps: "):
        made(step, steps=value)


def test_job_parameter_accepts_input_declarations_and_values() -> None:
    step = TFJobStep(name="train", job=Parameter(name="job"))
    declared = json.dumps([STEPS.at(LEAF).document()])
    listed = [{"name": "steps", "value": "4711"}, {"name": "image", "value": "x\ny"}]
    found = made(step, job=json.dumps(job("true")), inputs=declared, **{"input-values": json.dumps(listed)})
    (container,) = found["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-c", "train --steps=4711"]
    for wrong in ({"inputs": "{"}, {"inputs": '{"nam": "x"}'}, {"inputs": declared, "input-values": "[1]"}):
        with pytest.raises(InvalidJob):
            made(step, job=json.dumps(job("true")), **wrong)


def filled_in(reference: str) -> Any:
    document = job("true")
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"][2] = reference
    return document


@pytest.mark.parametrize("reference", ["{{inputs.parameters.steps}}", "a {{=1}}", "{{", "# {{workflow.parameters.x}}"])
def test_rejects_reference_in_parsed_text(reference: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{json.dumps(job('true'))}\n# {reference}\n")
    document = filled_in(reference)
    texts = (document, path, path.read_text(), json.dumps(document, indent=1), TFJob(image="i", command=[reference]))
    for text in texts:
        with pytest.raises(InvalidJob, match=r"would be parsed .*Input\("):
            TFJobStep(name="train", job=text)
        with pytest.raises(InvalidJob, match=r"would be parsed .*TFJobStep\(driver="):
            tf_job_resource(text, name="train")
    for wrong in (
        {"overrides": {LEAF: reference}},
        {"overrides": {LEAF: Input("steps", int, text=f"{reference} {{}}")}},
        {"overrides": {LEAF: Input("steps", pattern=reference)}},
    ):
        with pytest.raises(InvalidJob, match="would be parsed"):
            TFJobStep(name="train", job=job("true"), **wrong)
    if reference == "{{inputs.parameters.steps}}":
        return  # on its own, the reference is one word of a manifest
    for field in ("queue_name", "priority_class", "job_image"):
        with pytest.raises(InvalidJob, match=field):
            tf_job_resource(job("true"), name="train", **{field: reference})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (Input("", int), "has no name"),
        (Input("a", list), "not one of str, int, float, bool"),
        (Input("a", int, text="--steps="), "no single place"),
        (Input("a", pattern="("), "is not a regular expression"),
        (Input("a", int, default="many"), "input a: 'many' is not a whole number"),
        (Input("a", int, default=0, minimum=1), "input a: '0' is less than 1"),
    ],
)
def test_invalid_input_fails_at_definition(wrong: Input, told: str) -> None:
    with pytest.raises(InvalidJob, match=re.escape(told)):
        TFJobStep(name="train", job=job("true"), overrides={LEAF: wrong})


POLICIES: dict[str, Any] = {
    "admission_timeout": "10m",
    "fallback": [{"workers": 1}, {"queue_name": "spot", "node_selector": {"pool": "spot"}}],
    "on_eviction": "fallback",
    "on_preemption": "requeue",
}


@pytest.mark.parametrize("document", [v1(), v1alpha1(), volcano()], ids=["v1", "v1alpha1", "volcano"])
def test_policies_are_stored_in_job(document: dict[str, Any]) -> None:
    options = command_line(TFJobStep(name="train", job=document, **POLICIES))
    assert options.admission_timeout == 600
    entry, _ = step_document(options, "vision")
    resource = template(tf_job_resource(document, name="train", **POLICIES))["resource"]
    for job_ in (entry.job, read(yaml.safe_load(resource["manifest"]))):
        assert [one.scheduling.queue for one in job_.fallbacks][1] == "spot"
        assert job_.scheduling.admission_timeout == 600
        assert (job_.run_policy.on_eviction, job_.run_policy.on_preemption) == ("fallback", "requeue")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"fallback": [{"wrokers": 4}], "admission_timeout": "1m"}, r"fallback\[0\]\.wrokers: .*did you mean workers"),
        ({"fallback": [{"workers": 4}]}, "fallback: nothing sets when it is tried"),
        ({"fallback": [{"ps": 2}], "admission_timeout": "1m"}, r"fallback.*\[0\].*with it, "),
        ({"fallback": [{"queue_name": "{{x}}"}], "admission_timeout": "1m"}, "fallback.*write the value itself"),
        ({"on_eviction": "retry"}, "on_eviction: the text 'retry' is not a policy"),
        ({"on_eviction": "fallback"}, r"on_eviction: there is no fallback \(add fallback, a list such as"),
    ],
)
@pytest.mark.parametrize("make", [TFJobStep, lambda *, job, **more: tf_job_resource(job, **more)])
def test_invalid_policies_fail_at_definition(make: Any, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidJob, match=told):
        template(make(name="train", job=job("true"), **arguments))


def test_outputs_have_defaults_and_artifacts_are_optional() -> None:
    found = template(TFJobStep(name="train", job=job("true"), metric_outputs=["accuracy"]))["outputs"]
    assert {one["name"] for one in found["parameters"]} == {*contract.OUTPUTS, "accuracy"}
    assert all("default" in one["valueFrom"] for one in found["parameters"])
    assert "artifacts" not in found
    with_artifact = template(TFJobStep(name="train", job=job("true"), metrics_artifact=True))["outputs"]
    assert with_artifact["artifacts"][0]["path"] == f"{contract.OUT}/metrics"


def test_metric_with_slash_can_be_output(tmp_path: Path) -> None:
    StepOutputs(tmp_path).put(progress_outputs(Progress().after("val/loss=0.5")))
    step = template(TFJobStep(name="train", job=job("true"), metric_outputs={"val-loss": "val/loss"}))
    (path,) = (one["valueFrom"]["path"] for one in step["outputs"]["parameters"] if one["name"] == "val-loss")
    assert (tmp_path / path.rpartition("/")[2]).read_text() == "0.5"


@pytest.mark.parametrize(
    ("status", "code", "again"),
    [
        ("Failed", 1, False),
        ("Failed", 2, False),
        ("Failed", 75, True),
        ("Failed", 143, True),
        ("Failed", 137, True),
        ("Failed", -1, True),  # an evicted pod may have no exit code, which Argo represents as -1
        ("Error", -1, True),
        ("Error", 64, True),
    ],
)
def test_retry_expression_accepts_retryable_exit_codes(status: str, code: int, again: bool) -> None:
    expression = template(TFJobStep(name="train", job=job("true")))["retryStrategy"]["expression"]
    assert retried(expression, status=status, exit_code=code) is again


def test_retry_backoff_has_no_max_duration() -> None:
    # Argo counts maxDuration from the start of the first try. It ends the running try and starts no other after it.
    assert template(TFJobStep(name="train", job=job("true")))["retryStrategy"]["backoff"].keys() == {
        "duration",
        "factor",
    }


def test_step_without_retries_has_no_retry_arguments() -> None:
    found = template(TFJobStep(name="train", job=job("true"), retry_strategy=None))
    assert "retryStrategy" not in found
    assert not [word for word in found["container"]["args"] if "retries" in word]


def test_container_settings_are_kept() -> None:
    step = TFJobStep(
        name="train",
        job=job("true"),
        image="mine:1",
        service_account_name="me",
        volumes=hera.EmptyDirVolume(name="more", mount_path="/more"),
        outputs=Parameter(name="own", value_from=hera.models.ValueFrom(path="/more/own")),
        annotations={"a": "b"},
        pod_spec_patch="priority: 1",
    )
    found = template(step)
    assert (found["container"]["image"], found["serviceAccountName"]) == ("mine:1", "me")
    assert {one["name"] for one in found["volumes"]} == {"tf-dist-out", "more"}
    assert "own" in {one["name"] for one in found["outputs"]["parameters"]}
    assert found["metadata"]["annotations"]["a"] == "b"
    assert json.loads(found["podSpecPatch"]) == {"priority": 1, "terminationGracePeriodSeconds": 60}


# Resource steps


def holds(condition: str, document: dict[str, Any]) -> bool:
    """Evaluate one of Argo's conditions, a requirement of a label selector on a field of the object."""
    found = re.fullmatch(r"([\w.]+) (?:== (\w+)|in \(([\w,]+)\))", condition)
    assert found, condition
    value: Any = document
    for part in found[1].split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value in (found[2], *(found[3] or "").split(","))


@pytest.mark.parametrize("make", [v1, v1alpha1, volcano], ids=lambda make: make.__name__)
@pytest.mark.parametrize("phase", list(Phase))
def test_resource_conditions_match_every_terminal_phase(make: Any, phase: Phase) -> None:
    resource = template(tf_job_resource(make(), name="train"))["resource"]
    document = {"status": {"tfDist": {"phase": phase.value}, "state": {"phase": phase.value}}}
    succeeded, failed = (holds(resource[f"{word}Condition"], document) for word in ("success", "failure"))
    assert not (succeeded and failed)
    aborted = make is volcano and phase is Phase.ABORTED  # an end for Volcano; a TFJob is only suspended
    assert (succeeded or failed) is (phase in TERMINAL or aborted)


def test_resource_belongs_to_workflow() -> None:
    found = template(tf_job_resource(job("true"), name="train", workers=3, wait=False))["resource"]
    manifest = yaml.safe_load(found["manifest"])
    assert manifest["metadata"]["generateName"] == "tiny-"
    assert manifest["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] == 3
    labels = manifest["spec"]["tfReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"]
    assert labels == {contract.WORKFLOW_LABEL: "{{workflow.name}}"}
    assert found["setOwnerReference"] is True
    assert "successCondition" not in found


@pytest.mark.parametrize(
    ("given", "own", "limit"),
    [
        ({}, None, "10m"),
        ({"startup_timeout": "30s"}, None, "30s"),
        ({"startup_timeout": "2d"}, None, "172800s"),
        ({}, "2h", "2h"),
        ({"startup_timeout": None}, None, None),
    ],
)
def test_resource_sets_startup_timeout(given: dict[str, Any], own: str | None, limit: str | None) -> None:
    document = job("true")
    if own is not None:
        document["metadata"]["annotations"] = {names.STARTUP_TIMEOUT: own}
    found = template(tf_job_resource(document, name="train", **given))["resource"]
    annotations = yaml.safe_load(found["manifest"])["metadata"].get("annotations") or {}
    assert annotations.get(names.STARTUP_TIMEOUT) == limit


def test_invalid_startup_timeout_fails_at_definition() -> None:
    for wrong in ("soon", "{{inputs.parameters.limit}}", ""):
        with pytest.raises(InvalidJob, match=r"startup_timeout: .* is not a time"):
            tf_job_resource(job("true"), name="train", startup_timeout=wrong)


# Running wait and clean-up steps


def test_wait_and_cleanup_steps_run(scene: Stage) -> None:
    step = scene.step(job(FOREVER))
    launcher = step.launch()
    launcher.said("worker-0 | up")
    (stored,) = step.jobs()
    uid = step.workflow["metadata"]["uid"]
    waiting = run(scene, template(wait_admitted_step(stored["metadata"]["name"])), {"timeout": "60s"})
    assert waiting == 0
    other = job("true", name="other")
    scene.cluster.create(TFJOBS, "default", other)
    assert run(scene, template(cleanup_step()), {}, **{"workflow.uid": uid}) == 0
    assert step.jobs() == []
    assert launcher.code() == 1
    assert scene.cluster.get(TFJOBS, "default", "other")  # a job of no workflow remains
    scene.cluster.delete(TFJOBS, "default", "other")


@pytest.mark.parametrize("job_name", ["--help", "--kubeconfig=/dev/null", "-A"])
def test_job_name_like_option_is_read_as_name(scene: Stage, job_name: str) -> None:
    words, env = words_of(
        scene, template(wait_admitted_step(Parameter(name="job"))), {"job": job_name, "timeout": "1s"}
    )
    done = tf_dist(*words, env=env)
    assert done.returncode == 2
    assert re.search(f"(there is no job {job_name}|'{job_name}' is not a job)", done.stderr)


def test_cleanup_works_without_rights_to_volcano_jobs(scene: Stage) -> None:
    jobs = {"kind": "TFJobList", "metadata": {"resourceVersion": "1"}, "items": []}
    with refusing({"tfjobs": (200, jobs), "jobs": forbidden("jobs.batch.volcano.sh")}) as url:
        assert run(scene, template(cleanup_step()), {}, url, **{"workflow.uid": "u"}) == 0


def run(scene: Stage, found: dict[str, Any], inputs: dict[str, str], url: str = "", **scope: str) -> int:
    """Run the container of a template as a process."""
    words, env = words_of(scene, found, inputs, url, **scope)
    done = tf_dist(*words, env=env)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
    return done.returncode


def words_of(
    scene: Stage, found: dict[str, Any], inputs: dict[str, str], url: str = "", **scope: str
) -> tuple[list[str], dict[str, str]]:
    for one in found.get("inputs", {}).get("parameters", []):
        scope[f"inputs.parameters.{one['name']}"] = inputs.get(one["name"], one.get("default", ""))
    words = [substituted(word, scope) for word in (*found["container"]["command"], *found["container"]["args"])]
    assert words[0] == "tf-dist"
    env = surroundings(scene.folder, scene.scratch) | {"KUBECONFIG": scene.kubeconfig(url)}
    return words[1:], env
