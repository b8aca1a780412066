"""Arguments of steps: those that are rejected when a step is defined, and those that the workflow can substitute."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import yaml

hera = pytest.importorskip("hera.workflows", reason="Hera is missing: pip install '.[argo]'")

from hera.shared import global_config  # noqa: E402

from tests.argo.stage import job  # noqa: E402
from tests.argo.test_steps import LEAF, command_line, made, template  # noqa: E402
from tests.core.dialects.documents import v1, v1alpha1, volcano  # noqa: E402
from tf_dist.argo import IMAGE, Input, TFJobStep, cleanup_step, tf_job_resource, wait_admitted_step  # noqa: E402
from tf_dist.argo.launcher.step_job import step_document  # noqa: E402
from tf_dist.argo.step_arguments import ROWS  # noqa: E402
from tf_dist.core.dialects import read  # noqa: E402
from tf_dist.errors import InvalidJob  # noqa: E402

Parameter = hera.Parameter
ARGS = "spec.tfReplicaSpecs.Worker.template.spec.containers[0].args"


def step(**arguments: Any) -> Any:
    return TFJobStep(**{"name": "train", "job": job("true"), **arguments})


def memoized(key: str) -> Any:
    cache = hera.models.Cache(config_map=hera.models.LocalObjectReference(name="cache"))
    return hera.models.Memoize(key=key, cache=cache, max_age="1h")


# Rejected arguments


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"on_term": "delte"}, "on_term: 'delte' is not one of auto, delete, suspend, leave (did you mean delete?)"),
        ({"on_suspend": "stop"}, "on_suspend: 'stop' is not one of suspend, leave"),
        ({"driver": "me"}, "driver: 'me' is not one of auto, controller"),
        ({"driver": True}, "driver: True is not one of"),
        ({"admission_timeout": "soon"}, "admission_timeout: 'soon' is not a time (write 90s, 10m or 1h30m)"),
        ({"run_timeout": True}, "run_timeout: True is not a time"),
        ({"run_timeout": Parameter(name="limit", default="x")}, "run_timeout: 'x' is not a time"),
        ({"workers": "many"}, "workers: 'many' is not a whole number from 0 up, of at most 18 digits (write 4)"),
        ({"run_timeout": 10**11}, "run_timeout: '100000000000' is not a time"),
        ({"run_timeout": 1e-10}, "run_timeout: '1e-10' is not a time"),
        ({"queue_name": 5}, "queue_name: must be text, not 5"),
        ({"queue_name": "a b"}, "queue_name: 'a b' has a space in it"),
        ({"packages": "tiny"}, "packages: must be a list of texts, not 'tiny'"),
        ({"packages": ["tiny", "a;b"]}, "packages[1]: 'a;b' is not a package (write a name with its versions"),
        ({"grace_seconds": 0}, "grace_seconds: 0 is not a whole number of seconds above 0 (write 60)"),
        ({"grace_seconds": "{{x}}"}, "grace_seconds: '{{x}}' is not a whole number"),
        ({"metric_outputs": ["a/b"]}, "metric_outputs: 'a/b' is not the name of an output"),
        ({"metric_outputs": ["status"]}, "metric_outputs: every step already has an output status"),
        (
            {"metric_outputs": "accuracy"},
            """metric_outputs: 'accuracy' is not a list of metrics (write ["accuracy"])""",
        ),
        ({"metric_outputs": None}, "metric_outputs: 'None' is not a list of metrics"),
        ({"metric_outputs": ["a", "b", "a"]}, "metric_outputs: a is in it twice"),
        ({"metric_outputs": {"best": "eval.accuracy"}}, "metric_outputs: 'eval.accuracy' (of best) is not the name"),
        ({"metric_outputs": {"best": 3}}, "metric_outputs: 3 (of best) is not the name of a metric"),
        ({"metric_outputs": {"best": ""}}, "metric_outputs: '' (of best) is not the name of a metric"),
        ({"job": "nope.yaml"}, "job: cannot read the file 'nope.yaml': No such file or directory (give the path"),
        ({"job": "."}, "job: cannot read the file '.': Is a directory"),
        ({"job": ""}, "job: is empty"),
        ({"job": None}, "job: must be the path of a file, a document, or a TFJob, not NoneType"),
        ({"job": 3}, "job: must be the path of a file, a document, or a TFJob, not int"),
        ({"overrides": ["a=1"]}, "overrides: must be a mapping, not list (write {"),
        (
            {"command": ["python", "train.py"]},
            "command: is set by the launcher itself (write the command of the replicas into",
        ),
        ({"overrides": {3: 1}}, "overrides[3]: is not a path in the job"),
        ({"overrides": {"spec.x": {1, 2}}}, "overrides['spec.x']: cannot be written as JSON"),
        ({"pod_spec_patch": 3}, "pod_spec_patch: must be a mapping, not int"),
        ({"pod_spec_patch": {"a": {1, 2}}}, "pod_spec_patch: cannot be written as JSON"),
        ({"pod_spec_patch": "terminationGracePeriodSeconds: 0"}, "terminationGracePeriodSeconds is not a whole number"),
        ({"pod_spec_patch": {"terminationGracePeriodSeconds": "{{x}}"}}, "with {{…}} without quotes around it"),
        ({"pod_spec_patch": "terminationGracePeriodSeconds: 1{{x}}"}, "is not a whole number of seconds above 0"),
        ({"memoize": memoized("a_b.{{x}}")}, "memoize: a key may not have '.' '_' in it: a_b.{{x}}"),
        ({"pod_spec_patch": "[1]"}, "pod_spec_patch: must be a mapping, not list"),
        ({"pod_spec_patch": "{"}, "pod_spec_patch: is not YAML: "),
        ({"overrides": {"a[": 1}}, "overrides['a[']: cannot read '['"),
        ({"workers": "{{tasks.a.outputs.parameters.n}}"}, 'write train(arguments={"workers": "{{tasks.a.'),
        ({"on_eviction": "retry"}, "on_eviction: the text 'retry' is not a policy"),
        ({"on_eviction": "{{a}} or {{b}}"}, "on_eviction: "),
        ({"reattach": "no"}, "reattach: must be True or False, not 'no' (give True or False)"),
        ({"reattach": "{{x}}"}, "reattach: must be True or False, not '{{x}}'"),
        ({"metrics_artifact": "yes"}, "metrics_artifact: must be True or False, not 'yes'"),
        ({"checkpoint_artifact": "yes"}, "checkpoint_artifact: must be True or False, not 'yes'"),
        ({"retry_strategy": 3}, "retry_strategy: must be a RetryStrategy, not int (write RetryStrategy(limit=3))"),
        ({"retry_strategy": {"limit": 3}}, "retry_strategy: must be a RetryStrategy, not dict"),
        ({"retry_strategy": hera.RetryStrategy(limit="x")}, "retry_strategy.limit: 'x' is not a whole number"),
        ({"resources": "x"}, 'resources: must be a Resources, not str (write Resources(cpu_request="100m"))'),
        ({"resources": {"cpu": 1}}, "resources: must be a Resources, not dict"),
        ({"memoize": "weekly"}, "memoize: must be a Memoize, not str"),
        ({"annotations": "x"}, """annotations: must be a mapping, not str (write {"note": "weekly"})"""),
        ({"annotations": {"note": 3}}, "annotations['note']: must be text, not 3"),
        ({"inputs": 3}, "inputs: must be a Parameter, an Artifact, or several, not int"),
        ({"outputs": [3]}, "outputs: must be a Parameter, an Artifact, or several, not int"),
    ],
)
def test_invalid_argument_fails_at_definition(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidJob, match=re.escape(told)):
        step(**arguments)


STRANGE: tuple[Any, ...] = (
    *("", -1, 0, 1.5, 1e99, float("nan"), True, [], {}, "x" * 5000, "-1s", b"x", object(), ["a", 1], {"a": 1}, {1: 2}),
    *({"a": {"b": None}}, ("x",), {"x"}, "{{ params.x }}", "\0"),
)


@pytest.mark.parametrize("name", ["labels", "annotations", *ROWS])
def test_any_value_of_argument_is_accepted_or_reported(name: str) -> None:
    for value in STRANGE:
        with suppress(InvalidJob), warnings.catch_warnings(action="ignore"):
            step(**{name: value})


def test_accepts_hera_models() -> None:
    models = hera.models
    limit = models.IntOrString(root="{{workflow.parameters.tries}}")
    found = step(
        retry_strategy=models.RetryStrategy(limit=limit),
        resources=models.ResourceRequirements(requests={"cpu": "1"}),
        annotations={"note": "{{workflow.name}}"},
        inputs=models.Inputs(parameters=[models.Parameter(name="a", value="1")]),
        outputs=[hera.Artifact(name="b", path="/b"), models.Parameter(name="c", value="1")],
    )
    assert "retries={{workflow.parameters.tries}}" in template(found)["container"]["args"]
    assert template(step(retry_strategy=None, resources=None, annotations=None, inputs=None, outputs=None))


@pytest.mark.parametrize("given", ["soon", True])
def test_invalid_time_is_reported_once(given: Any) -> None:
    with pytest.raises(InvalidJob) as caught:
        step(admission_timeout=given, fallback=[{"workers": 1}], on_eviction="x")
    assert sorted(one.path for one in caught.value.problems) == ["admission_timeout", "on_eviction"]


def test_all_problems_are_reported_at_once() -> None:
    wrong = {"on_term": "x", "driver": "x", "run_timeout": "x", "on_preemption": "x", "pod_spec_patch": "[]"}
    with pytest.raises(InvalidJob) as caught:
        step(**wrong)
    assert {one.path for one in caught.value.problems} == set(wrong)
    wrong = {"on_term": "x", "job": "nope.yaml", "overrides": [], "pod_spec_patch": 3, "metric_outputs": "x"}
    with pytest.raises(InvalidJob) as caught:
        step(**wrong)
    assert {one.path for one in caught.value.problems} == set(wrong)
    wrong = {"retry_strategy": 3, "resources": "x", "reattach": "no", "memoize": 3, "workers": "x"}
    with pytest.raises(InvalidJob) as caught:
        step(**wrong)
    assert {one.path for one in caught.value.problems} == set(wrong)
    assert all(one.hint for one in caught.value.problems)
    with pytest.raises(InvalidJob) as caught:
        tf_job_resource(job("true"), name="t", queue_name="a b", job_image="{{=1}}", startup_timeout="soon")
    assert {one.path for one in caught.value.problems} == {"queue_name", "job_image", "startup_timeout"}
    wrong = {"workers": "x", "ps": -1, "admission_timeout": "soon", "wait": "no", "fail_with_job": "no"}
    with pytest.raises(InvalidJob) as caught:
        tf_job_resource(job("true"), name="t", **wrong)
    assert {one.path for one in caught.value.problems} == set(wrong)
    with pytest.raises(InvalidJob, match="all_jobs: must be True or False, not 'no'"):
        cleanup_step(all_jobs="no")
    with pytest.raises(InvalidJob) as caught:
        wait_admitted_step("a", timeout="soon", require="x")
    assert {one.path for one in caught.value.problems} == {"require", "timeout"}


def test_accepts_time_in_days() -> None:
    found = command_line(step(admission_timeout="2d", fallback=[{"workers": 1}]))
    assert found.admission_timeout == 172_800.0


@pytest.mark.parametrize("given", [str, lambda text: Parameter(name="job", value=text)])
def test_wait_step_rejects_output_of_another_task(given: Callable[[str], Any]) -> None:
    """Argo resolves outputs only where a step is used: 'failed to resolve {{tasks.start.outputs.parameters.job}}'."""
    output = "{{tasks.start.outputs.parameters.job}}"
    with pytest.raises(InvalidJob) as caught:
        wait_admitted_step(given(output))
    told = str(caught.value)
    assert f"job: {output} is known only where the step is used" in told
    assert 'Parameter(name="job")' in told
    assert f'arguments={{"job": "{output}"}}' in told
    assert wait_admitted_step(Parameter(name="job")).inputs[0].name == "job"


def test_resource_reports_missing_file() -> None:
    with pytest.raises(InvalidJob, match=r"job: cannot read the file 'nope\.yaml'"):
        tf_job_resource("nope.yaml", name="t")


def test_overrides_none_equals_no_overrides() -> None:
    assert template(step(overrides=None)) == template(step())


# Names of input parameters

STEPS = Input("steps", int, default=1, text="--steps={}")


@pytest.mark.parametrize("name", ["workers", "queue-name", "job-image", "admission-timeout", "startup-timeout"])
@pytest.mark.parametrize("kind", [Input, lambda name: Parameter(name=name)])
def test_input_cannot_have_name_of_own_parameter(name: str, kind: Any) -> None:
    told = f"overrides['{ARGS}[0]']: each step has an input parameter {name} of its own"
    with pytest.raises(InvalidJob, match=re.escape(told)):
        step(job=trainer(), overrides={f"{ARGS}[0]": kind(name)})


@pytest.mark.parametrize("name", ["inputs", "overrides", "input-values", "driver", "on-eviction"])
def test_job_parameter_reserves_more_input_names(name: str) -> None:
    assert step(job=trainer(), overrides={f"{ARGS}[0]": Input(name)})
    with pytest.raises(InvalidJob, match=f"input parameter {name} of its own"):
        TFJobStep(name="t", job=Parameter(name="job"), overrides={f"{ARGS}[0]": Input(name)})


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"overrides": {f"{ARGS}[0]": STEPS, f"{ARGS}[1]": Input("steps", int, default=2)}}, "overrides["),
        ({"overrides": {f"{ARGS}[0]": STEPS, f"{ARGS}[1]": Input("steps", str, default="1")}}, "overrides["),
        ({"overrides": {f"{ARGS}[0]": STEPS}, "inputs": [Parameter(name="steps", default="2")]}, "overrides["),
        ({"overrides": {f"{ARGS}[0]": STEPS}, "inputs": {"steps": 2}}, "overrides["),
        ({"workers": Parameter(name="n", default="1"), "ps": Parameter(name="n", default="2")}, ""),
    ],
)
def test_inputs_with_same_name_must_be_equal(arguments: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidJob, match=f"^{re.escape(where)}.*is declared differently by "):
        step(job=trainer(), **arguments)


def test_input_can_be_used_twice() -> None:
    count = Parameter(name="count", default="3")
    found = step(
        job=trainer(),
        workers=count,
        total_steps=count,
        overrides={
            f"{ARGS}[0]": STEPS,
            f"{ARGS}[1]": Input("steps", int, default=1, text="-n={}"),
            f"{ARGS}[2]": count,
        },
    )
    document = made(found, steps="7", count="4")
    (container,) = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["args"] == ["--steps=7", "-n=7", "4"]
    assert step(job=trainer(), overrides={f"{ARGS}[0]": STEPS}, inputs={"steps": 1})
    declared = [Parameter(name="steps", default="5", enum=["5", "7"])]
    found = step(job=trainer(), overrides={f"{ARGS}[0]": Input("steps", int)}, inputs=declared)
    assert {"name": "steps", "default": "5", "enum": ["5", "7"]} in template(found)["inputs"]["parameters"]


# Checkpoint artifacts


def volume(kind: str, path: str | None, **source: str) -> Any:
    return getattr(hera, kind)(name=path and path.strip("/"), mount_path=path, **source)


MODELS = volume("ExistingVolume", "/models", claim_name="models")
SECRET = volume("SecretVolume", "/keys", secret_name="keys")


def test_checkpoint_is_copied_only_from_data_volumes() -> None:
    mounts = [hera.models.VolumeMount(name="shared", mount_path="/shared")]
    kinds = [volume("ConfigMapVolume", "/settings"), volume("ProjectedVolume", "/tokens")]
    found = step(checkpoint_artifact=True, volumes=[MODELS, SECRET, *kinds], volume_mounts=mounts)
    assert command_line(found).checkpoint_files == ["/models", "/shared"]
    raw = hera.models.Volume(name="shared", secret=hera.models.SecretVolumeSource(secret_name="keys"))
    found = step(checkpoint_artifact=True, volumes=[MODELS, raw], volume_mounts=mounts)
    assert command_line(found).checkpoint_files == ["/models"]
    assert command_line(step(volumes=MODELS)).checkpoint_files == ()


@pytest.mark.parametrize(
    ("volumes", "told"),
    [
        (None, "the step mounts no volume for checkpoints"),
        (SECRET, "the step mounts no volume for checkpoints"),
        ([SECRET, volume("EmptyDirVolume", "/")], "/keys is within /, "),
        ([volume("EmptyDirVolume", "/run")], "/run/secrets/kubernetes.io/serviceaccount is within /run, "),
        ([volume("EmptyDirVolume", "/tf-dist")], "/tf-dist/out is within /tf-dist, "),
    ],
)
def test_checkpoint_is_not_copied_from_volume_around_secrets(volumes: Any, told: str) -> None:
    with pytest.raises(InvalidJob, match=f"checkpoint_artifact: {told}"):
        step(checkpoint_artifact=True, volumes=volumes)


# Values from the workflow


def test_text_can_be_parameter_or_reference() -> None:
    found = template(
        step(
            on_term=Parameter(name="stop", default="leave"),
            on_suspend="{{workflow.parameters.pause}}",
            driver=Parameter(name="driver", default="auto"),
            job_namespace="{{workflow.parameters.team}}",
            on_eviction="{{workflow.parameters.policy}}",
            on_preemption=Parameter(name="preempted"),
            fallback=Parameter(name="fallback"),
            admission_timeout="5m",
        )
    )
    args, inputs = found["container"]["args"], {one["name"]: one for one in found["inputs"]["parameters"]}
    for word in (
        "on_term={{inputs.parameters.stop}}",
        "on_suspend={{workflow.parameters.pause}}",
        "driver={{inputs.parameters.driver}}",
        "namespace={{workflow.parameters.team}}",
        "on_eviction={{workflow.parameters.policy}}",
        "on_preemption={{inputs.parameters.preempted}}",
        "fallback={{inputs.parameters.fallback}}",
    ):
        assert word in args
    assert inputs["stop"] == {"name": "stop", "default": "leave"}
    assert {"preempted", "fallback"} <= inputs.keys()


def test_workflow_parameter_is_referenced() -> None:
    with hera.Workflow(name="w", entrypoint="train", arguments=[Parameter(name="count", value="3")]) as w:
        found = step(workers=w.get_parameter("count"), model_dir=w.get_parameter("count"))
    assert "workers={{workflow.parameters.count}}" in found.args
    assert "model_dir={{workflow.parameters.count}}" in found.args


def trainer() -> dict[str, Any]:
    document = job("true")
    (container,) = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container |= {"command": ["python", "train.py"], "args": ["--steps=1", "$(TF_CONFIG)"]}
    return document


def test_override_reference_has_type_of_its_field() -> None:
    found = step(
        job=trainer(),
        overrides={
            "spec.runPolicy.backoffLimit": "{{inputs.parameters.limit}}",
            f"{ARGS}[0]": "--steps={{inputs.parameters.steps}}",
            f"{ARGS}[1]": Parameter(name="folder", default="/data"),
            "metadata.labels": {"a": "b"},
        },
        inputs=[Parameter(name="limit"), Parameter(name="steps")],
    )
    document = made(found, limit="7", steps="10 $(TF_CONFIG)")
    assert document["spec"]["runPolicy"]["backoffLimit"] == 7
    (container,) = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["args"] == ["--steps=10 $$(TF_CONFIG)", "/data"]
    assert document["metadata"]["labels"]["a"] == "b"
    for hostile in ("1\n2", "x", "3, 4", "{}"):
        with pytest.raises(InvalidJob, match=r"^input limit: "):
            made(found, limit=hostile, steps="1")


def test_references_with_same_name_are_separate_values() -> None:
    found = step(
        job=trainer(),
        overrides={f"{ARGS}[0]": "{{workflow.parameters.x}}", f"{ARGS}[1]": "{{inputs.parameters.x}}"},
        inputs=[Parameter(name="x")],
    )
    assert "values.x={{workflow.parameters.x}}" in found.args
    assert "values.x-2={{inputs.parameters.x}}" in found.args


def test_rejects_reference_in_shell_script() -> None:
    for reference in ("train {{inputs.parameters.steps}}", Parameter(name="steps")):
        with pytest.raises(InvalidJob, match="would be parsed by the shell"):
            step(overrides={LEAF: reference})
    assert step(overrides={LEAF: Input("steps", int, text="train {}")})


@pytest.mark.parametrize("document", [v1(), v1alpha1(), volcano()], ids=["v1", "v1alpha1", "volcano"])
def test_resource_quotes_references(document: dict[str, Any]) -> None:
    image = Parameter(name="job-image", default="digits:1")
    found = template(
        tf_job_resource(document, name="train", queue_name="{{workflow.parameters.queue}}", job_image=image)
    )
    manifest = found["resource"]["manifest"]
    assert found["inputs"]["parameters"] == [{"name": "job-image", "default": "digits:1"}]
    hostile = 'x\nprivileged: true "'
    text = manifest.replace("{{=toJson(workflow.parameters['queue'])}}", json.dumps(hostile))
    text = text.replace("{{=toJson(inputs.parameters['job-image'])}}", json.dumps("digits:2"))
    assert "{{=" not in text
    stored = yaml.safe_load(text)
    assert "privileged" not in stored
    assert read(stored).scheduling.queue == hostile
    assert "digits:2" in text


def test_job_parameter_accepts_overrides_and_policies_as_json() -> None:
    whole = TFJobStep(name="tf-job", job=Parameter(name="job"))
    options = command_line(
        whole,
        job=json.dumps(job("true", workers=4)),
        overrides='{"spec.runPolicy.backoffLimit": 3}',
        fallback='[{"workers": 2}]',
        driver="controller",
        **{"admission-timeout": "5m", "on-eviction": "fallback"},
    )
    entry, _ = step_document(options, "default")
    assert entry.document["spec"]["runPolicy"]["backoffLimit"] == 3
    assert (entry.job.run_policy.on_eviction, entry.job.scheduling.admission_timeout) == ("fallback", 300)
    assert len(entry.job.fallbacks) == 1
    assert options.driver == "controller"
    wrong = (
        ({"overrides": "[1]"}, "overrides: "),
        ({"overrides": "{"}, "overrides: "),
        ({"overrides": '{"a[": 1}'}, r"overrides\['a\['\]: "),
        ({"fallback": "{"}, "fallback: "),
        ({"fallback": "[1]", "admission-timeout": "5m"}, "fallback"),
        ({"on-eviction": "retry"}, "on_eviction: "),
    )
    for arguments, path in wrong:
        with pytest.raises(InvalidJob, match=path):
            step_document(command_line(whole, job=json.dumps(job("true")), **arguments), "default")


# Merging


def test_keeps_inputs_and_outputs_of_author() -> None:
    inputs = [Parameter(name="workers", default="2", enum=["2", "4"]), Parameter(name="more")]
    outputs = [Parameter(name="checkpoint", global_name="best", value_from=hera.models.ValueFrom(path="/x"))]
    found = template(step(workers=3, inputs=inputs, outputs=outputs))
    named = [one["name"] for one in found["inputs"]["parameters"]]
    assert len(named) == len(set(named))
    assert {"name": "workers", "default": "2", "enum": ["2", "4"]} in found["inputs"]["parameters"]
    kept = [one for one in found["outputs"]["parameters"] if one["name"] == "checkpoint"]
    assert kept == [{"name": "checkpoint", "globalName": "best", "valueFrom": {"path": "/x"}}]
    assert "outcome" in {one["name"] for one in found["outputs"]["parameters"]}


def test_inputs_can_be_single_object() -> None:
    model = hera.models.Inputs(parameters=[hera.models.Parameter(name="more", default="1")])
    found = template(step(inputs=model))["inputs"]["parameters"]
    assert {"more", "workers"} <= {one["name"] for one in found}
    found = template(step(inputs={"more": "1"}))["inputs"]["parameters"]
    assert {"name": "more", "value": "1"} in found


@pytest.mark.parametrize(
    ("patch", "merged", "grace"),
    [
        (None, '{"terminationGracePeriodSeconds": 60}', 60),
        ("terminationGracePeriodSeconds: 120", '{"terminationGracePeriodSeconds": 120}', 120),
        ({"hostNetwork": True}, '{"terminationGracePeriodSeconds": 60, "hostNetwork": true}', 60),
        ({"terminationGracePeriodSeconds": 90}, '{"terminationGracePeriodSeconds": 90}', 90),
        ({"hostname": "{{x}}"}, '{"terminationGracePeriodSeconds": 60, "hostname": "{{x}}"}', 60),
        ("hostNetwork: true", '{"terminationGracePeriodSeconds": 60, "hostNetwork": true}', 60),
        (
            "priority: {{=asInt(inputs.parameters.p)}}\nhostname: 'a-{{workflow.name}}'",
            '{"terminationGracePeriodSeconds": 60, "priority": {{=asInt(inputs.parameters.p)}},'
            ' "hostname": "a-{{workflow.name}}"}',
            60,
        ),
    ],
)
def test_pod_spec_patch_is_merged(patch: Any, merged: str, grace: int) -> None:
    found = step(pod_spec_patch=patch)
    assert found.pod_spec_patch == merged
    assert command_line(found).grace == grace


def test_pod_spec_patch_accepts_grace_period_of_workflow() -> None:
    patch = "priority: {{=asInt(inputs.parameters.p)}}\nterminationGracePeriodSeconds: {{inputs.parameters.grace}}"
    found = step(pod_spec_patch=patch, inputs=[Parameter(name="p"), Parameter(name="grace")])
    assert json.loads(
        found.pod_spec_patch.replace("{{=asInt(inputs.parameters.p)}}", "1").replace("{{inputs.parameters.grace}}", "2")
    )
    assert "grace={{inputs.parameters.grace}}" in found.args


# The image


@pytest.fixture
def config() -> Iterator[Any]:
    try:
        yield global_config
    finally:
        global_config.reset()


def test_launcher_image_precedence(config: Any) -> None:
    def images(**image: str) -> set[str]:
        steps = (step(**image), wait_admitted_step("a", **image), cleanup_step(**image))
        return {template(one)["container"]["image"] for one in steps}

    assert images() == {IMAGE}
    config.image = "registry/everything:1"
    assert images() == {"registry/everything:1"}
    assert images(image="mine:1") == {"mine:1"}
    config.set_class_defaults(TFJobStep, image="class:1", service_account_name="robot")
    found = template(step())
    assert (found["container"]["image"], found["serviceAccountName"]) == ("class:1", "robot")


@pytest.mark.parametrize("make", [lambda: step(), lambda: wait_admitted_step("a"), lambda: cleanup_step()])
def test_warns_about_image_without_registry(config: Any, make: Callable[[], object]) -> None:
    with pytest.warns(UserWarning, match=f"image {IMAGE}, which is not in a registry: build and push") as said:
        make()
    assert [one.filename for one in said] == [__file__]
    config.image = "registry/tf-dist:1"
    with warnings.catch_warnings(action="error"):
        make()
        step(image="registry/mine:2")


def large(size: int, *, random: bool) -> Any:
    """A job of about ``size`` bytes. Random bytes cannot be compressed."""
    document = job("true")
    notes = hashlib.shake_256(b"notes").hexdigest(size // 2) if random else "x" * size
    document["metadata"]["annotations"] = {"notes": notes}
    return document


def test_step_of_200_kb_is_compressed_with_warning() -> None:
    document = large(200_000, random=False)
    with pytest.warns(UserWarning, match=r"step train have 20\d,\d{3} bytes, .* compressed \([\d,]{3,6} bytes") as said:
        found = TFJobStep(name="train", job=document, image="i")
    assert [one.filename for one in said] == [__file__]
    assert "Argo 4.1" not in str(said[0].message)
    assert max(map(len, found.args)) < 10_000
    assert command_line(found, workers="3").job == document
    with warnings.catch_warnings(action="error"):
        assert '"notes": "xx' in TFJobStep(name="train", job=large(100_000, random=False), image="i").args[0]


def test_warns_about_step_that_needs_argo_4_1() -> None:
    with pytest.warns(UserWarning, match=r"before Argo 4\.1 a pod with more than 131,071 does not start") as said:
        TFJobStep(name="train", job=large(400_000, random=True), image="i")
    assert [one.filename for one in said] == [__file__]


def test_rejects_step_larger_than_workflow() -> None:
    with pytest.raises(
        InvalidJob, match=r"^job: the arguments of the step have 1,\d{3},\d{3} bytes, and a workflow has"
    ):
        TFJobStep(name="train", job=large(2_000_000, random=True), image="i")


def test_step_document_is_readable_in_workflow() -> None:
    found = step(
        workers=4, fallback=[{"workers": 2}], admission_timeout="5m", overrides={"spec.runPolicy.suspend": False}
    )
    document = json.loads(found.args[0])
    assert document == {
        "fallback": [{"workers": 2}],
        "overrides": {"spec.runPolicy.suspend": False},
        "job": job("true"),
    }
    assert "{{" not in found.args[0]
    assert max(map(len, found.args[0].splitlines())) <= 110
    assert "workers={{inputs.parameters.workers}}" in found.args
