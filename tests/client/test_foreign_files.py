"""Files exported by kubectl, templates that were not rendered, and scalars that YAML changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tf_dist.client.job_files import JobFiles, load_job_files, problem_text
from tf_dist.core.model.overrides import parse_overrides

JOB = """\
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: {name}
  labels: {{given: {label}}}
spec:
  tfReplicaSpecs:
    Worker:
      replicas: {replicas}
      template:
        spec:
          containers:
          - {{name: tensorflow, image: img, args: [{argument}]}}
"""
EXPORTED: dict[str, Any] = {
    "uid": "06ce7f5a-6dc3-11e8-996c-42010af000af",
    "resourceVersion": "864756",
    "generation": 3,
    "creationTimestamp": "2018-06-11T22:01:43Z",
    "selfLink": "/apis/kubeflow.org/v1/namespaces/research/tfjobs/a",
    "managedFields": [{"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {}}}],
    "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "1"}],
    "finalizers": ["example.com/waits"],
}
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def loaded(
    folder: Path, text: str, *set_values: str, strict: bool = False, name: str = "job.yaml", **changes: Any
) -> JobFiles:
    path = folder / name
    path.write_text(text)
    return load_job_files([str(path)], parse_overrides(set_values), strict=strict, **changes)


def written(**changes: str) -> str:
    values = {"name": "a", "label": "ok", "replicas": "1", "argument": "--x", **changes}
    return JOB.format(**values)


def only_problem(found: JobFiles) -> tuple[str, str, str]:
    assert len(found.problems) == 1, [problem_text(one) for one in found.problems]
    problem = found.problems[0].problem
    return problem.path, problem.message, problem.hint


@pytest.mark.parametrize(
    ("scalar", "read_as"),
    [
        ("2.10", "the number 2.1"),
        ("0755", "the number 493"),
        ("0o17", "the number 15"),
        ("0x1F", "the number 31"),
        ("1e3", "the number 1000.0"),
        ("+7", "the number 7"),
        (".50", "the number 0.5"),
        ("1_000", "the number 1000"),
        ("1_0.5", "the number 10.5"),
        ("09", "the number 9"),
        ("0X1f", "the number 31"),
        ("y", "the boolean true"),
        ("N", "the boolean false"),
        ("yes", "the boolean true"),
        ("OFF", "the boolean false"),
        ("True", "the boolean true"),
        ("~", "nothing (null)"),
    ],
)
@pytest.mark.parametrize("place", ["label", "argument"])
def test_hint_quotes_scalar_as_written(tmp_path: Path, place: str, scalar: str, read_as: str):
    _, message, hint = only_problem(loaded(tmp_path, written(**{place: scalar})))
    assert message == f"must be text, not {scalar}, which YAML reads as {read_as}"
    assert hint == f'write it in quotes: "{scalar}"'


@pytest.mark.parametrize(("scalar", "message"), [("5", "the number 5"), ("true", "the boolean true")])
def test_unchanged_scalar_is_reported_once(tmp_path: Path, scalar: str, message: str):
    found = only_problem(loaded(tmp_path, written(argument=scalar)))
    assert found[1:] == (f"must be text, not {message}", f'write it in quotes: "{scalar}"')


def test_invalid_count_is_reported_as_written(tmp_path: Path):
    _, message, _ = only_problem(loaded(tmp_path, written(replicas="1e3")))
    assert message == "must be a whole number, not 1e3, which YAML reads as the number 1000.0"


def test_value_of_set_option_is_reported_as_given(tmp_path: Path):
    _, message, hint = only_problem(loaded(tmp_path, written(), "metadata.labels.given=2.10"))
    assert message == "must be text, not 2.10, which YAML reads as the number 2.1"
    assert hint == "--set-string metadata.labels.given=2.10"


@pytest.mark.parametrize(
    ("placeholder", "text", "hint"),
    [
        ("$JOB_NAME", "$JOB_NAME", "envsubst"),
        ("${JOB:-a}", "${JOB:-a}", "envsubst"),
        ("$(JOB_NAME)", "$(JOB_NAME)", "envsubst"),
        ("{{ job }}", "{{ job }}", "Jinja"),
        ('"{{ job }}"', "{{ job }}", "Jinja"),
        ('"{{workflow.parameters.job}}"', "{{workflow.parameters.job}}", "Argo"),
        ('"{{ .Values.job }}"', "{{ .Values.job }}", "helm template"),
        ("{{.Trial}}", "{{.Trial}}", "Katib"),
        ("${trialParameters.job}", "${trialParameters.job}", "Katib"),
        ("<job-name>", "<job-name>", "write a value"),
        ('"%(job)s"', "%(job)s", "write a value"),
        ("__JOB__", "__JOB__", "write a value"),
        ("{job}", "{job}", "write a value"),
    ],
)
def test_placeholder_is_reported(tmp_path: Path, placeholder: str, text: str, hint: str):
    found = only_problem(loaded(tmp_path, written(name=placeholder)))
    assert found[:2] == ("metadata.name", f"has the placeholder {text}, which was not filled in")
    assert hint in found[2]


def test_placeholder_in_image_is_warning(tmp_path: Path):
    found = loaded(tmp_path, written().replace("image: img", "image: $IMAGE"))
    path, message, _ = only_problem(found)
    assert (path.rpartition(".")[2], message) == ("image", "has the placeholder $IMAGE, which was not filled in")
    assert not found.errors


@pytest.mark.parametrize("words", ["sh, -c, 'echo $HOME'", "'$(TF_CONFIG)'"])
def test_variable_in_command_is_not_placeholder(tmp_path: Path, words: str):
    assert not loaded(tmp_path, written(argument=words)).problems


@pytest.mark.parametrize(
    ("line", "told", "hint"),
    [
        ("name: {{ .Release.Name }}-train", "{{ .Release.Name }}", "helm template"),
        ("{{- with .Values.labels }}", "{{- with .Values.labels }}", "helm template"),
        ("{{- with .HyperParameters}}", "{{- with .HyperParameters}}", "Katib"),
        ("{% if big %}", "{% if big %}", "Jinja"),
        ("name: %(job)s", "%(job)s", "write a value"),
        ("name: @job@", "@job@", "write a value"),
        ("name: #@ data.values.name", "#@ data.values.name", "ytt"),
    ],
)
def test_template_that_is_not_yaml_is_recognized(tmp_path: Path, line: str, told: str, hint: str):
    path, message, found = only_problem(loaded(tmp_path, f"kind: TFJob\nmetadata:\n  {line}\n  namespace: b\n"))
    assert (path, message) == ("", f"is a template that was not rendered: {told}")
    assert hint in found


def test_jsonnet_file_is_recognized(tmp_path: Path):
    text = "local name = 'a';\n{ apiVersion: 'kubeflow.org/v1', kind: 'TFJob', metadata: { name: name } }\n"
    assert "jsonnet FILE" in only_problem(loaded(tmp_path, text))[2]


def test_yaml_error_is_reported_despite_quoted_placeholder(tmp_path: Path):
    text = "kind: TFJob\nmetadata: {name: '{{ x }}'}\nspec: a: b\na: 1\n"
    assert only_problem(loaded(tmp_path, text))[1].startswith("is not YAML")


def exported(kind: str = "TFJob", **fields: Any) -> dict[str, Any]:
    metadata = {"name": "a", "annotations": {LAST_APPLIED: "{}", "mine": "kept"}, **EXPORTED}
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": metadata, "status": {"conditions": []}, **fields}


SPEC = {
    "tfReplicaSpecs": {
        "Worker": {
            "template": {
                "metadata": {"creationTimestamp": None},
                "spec": {"containers": [{"name": "tensorflow", "image": "img", "command": ["true"], "resources": {}}]},
            }
        }
    }
}


def dumped(document: Any) -> str:
    import json

    return json.dumps(document)


def test_exported_job_loses_server_fields(tmp_path: Path):
    found = loaded(tmp_path, dumped(exported(spec=SPEC)), strict=True)
    assert not found.problems
    assert found.jobs[0].document == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "a", "annotations": {"mine": "kept"}},
        "spec": SPEC,
    }


def test_exported_companions_lose_server_fields(tmp_path: Path):
    request = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    ports = {"ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]}
    claim = exported("PersistentVolumeClaim", apiVersion="v1", spec={"volumeName": "pv-1", **request})
    service = exported("Service", apiVersion="v1", spec={"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], **ports})
    headless = exported("Service", apiVersion="v1", spec={"clusterIP": "None", "clusterIPs": ["None"]})
    headless["metadata"]["name"] = "b"
    found = loaded(tmp_path, "\n---\n".join(map(dumped, (claim, service, headless))))
    assert not found.problems
    specs = [one.content["spec"] for one in found.companions]
    assert specs == [request, ports, {"clusterIP": "None", "clusterIPs": ["None"]}]


def test_owner_of_new_job_is_kept(tmp_path: Path):
    owner = [{"apiVersion": "v1", "kind": "Pod", "name": "step", "uid": "1"}]
    document = exported(spec=SPEC)
    document["metadata"] = {"name": "a", "ownerReferences": owner, "creationTimestamp": None}
    found = loaded(tmp_path, dumped(document))
    assert found.jobs[0].document["metadata"] == {"name": "a", "ownerReferences": owner}


def test_list_items_are_read_as_objects(tmp_path: Path):
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
    job = exported(spec=SPEC)
    typed = {"metadata": {"name": "b"}, "spec": SPEC}  # items of a typed list need no kind
    jobs = {"apiVersion": "kubeflow.org/v1", "kind": "TFJobList", "items": [typed]}
    listed = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [settings, job, jobs]}
    found = loaded(tmp_path, dumped(listed))
    assert not found.problems
    assert [entry.job.key.name for entry in found.jobs] == ["a", "b"]
    assert [one.content["metadata"]["name"] for one in found.companions] == ["settings"]


def test_problem_of_list_item_has_line_and_keeps_other_items(tmp_path: Path):
    good = "".join(f"  {line}\n" for line in written(name="good").splitlines())
    bad = "".join(f"  {line}\n" for line in written(name="bad", replicas="many").splitlines())
    text = "apiVersion: v1\nkind: List\nitems:\n-" + good[1:] + "-" + bad[1:]
    found = loaded(tmp_path, text)
    assert [entry.job.key.name for entry in found.jobs] == ["good"]
    (problem,) = found.problems
    assert problem.problem.path == "spec.tfReplicaSpecs.Worker.replicas"
    assert "many" in text.splitlines()[problem.line - 1]


def test_recursive_list_is_rejected(tmp_path: Path):
    found = loaded(tmp_path, "apiVersion: v1\nkind: List\nitems: &a\n- {kind: List, items: *a}\n")
    assert "more than a hundred deep" in only_problem(found)[1]


def test_empty_role_has_no_replicas(tmp_path: Path):
    text = written().replace("    Worker:\n", "    Chief:\n    PS: null\n    Worker:\n")
    found = loaded(tmp_path, text, strict=True)
    assert not found.errors
    assert [one.problem.path for one in found.problems] == ["spec.tfReplicaSpecs.Chief", "spec.tfReplicaSpecs.PS"]
    assert [spec.name for spec in found.jobs[0].job.replica_specs] == ["Worker"]


def test_v1alpha2_ttl_is_read(tmp_path: Path):
    text = written().replace("kubeflow.org/v1", "kubeflow.org/v1alpha2")
    found = loaded(tmp_path, text.replace("spec:\n  tf", "spec:\n  ttlSecondsAfterFinishing: 30\n  tf"), strict=True)
    assert not found.errors
    assert found.jobs[0].job.run_policy.ttl == 30
    assert [one.problem.path for one in found.problems] == ["apiVersion"]


def test_default_of_earlier_version_gives_no_warning(tmp_path: Path):
    found = loaded(tmp_path, written().replace("kubeflow.org/v1", "kubeflow.org/v1beta1"))
    assert [one.problem.path for one in found.problems] == ["apiVersion"]
    assert found.jobs[0].job.run_policy.clean_pods == "Running"


def test_lower_case_replica_type_is_only_problem(tmp_path: Path):
    entry = "template: {spec: {containers: [{name: tensorflow, image: i}]}}"
    text = f"""\
apiVersion: kubeflow.org/v1alpha1
kind: TFJob
metadata: {{name: old}}
spec:
  replicaSpecs:
  - {{tfReplicaType: MASTER, {entry}}}
  - {{tfReplicaType: worker, replicas: 2, {entry}}}
"""
    assert only_problem(loaded(tmp_path, text)) == (
        "spec.replicaSpecs[1].tfReplicaType",
        "unknown value 'worker'",
        "did you mean WORKER?",
    )
    servers = text.replace("worker, replicas: 2", "ps").replace(f"ps, {entry}", "ps")
    assert only_problem(loaded(tmp_path, servers))[2] == "did you mean PS?"


def test_invalid_restart_policy_gives_no_second_warning(tmp_path: Path):
    text = written().replace("      replicas: 1\n", "      restartPolicy: Sometimes\n")
    text = text.replace("        spec:\n", "        spec:\n          restartPolicy: OnFailure\n")
    assert only_problem(loaded(tmp_path, text))[0] == "spec.tfReplicaSpecs.Worker.restartPolicy"
