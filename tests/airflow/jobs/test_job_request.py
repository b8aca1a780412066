"""The document that a task submits for its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.airflow.site import document
from tf_dist.airflow.jobs.job_request import JobRequest, job_request, request_of_try
from tf_dist.core.model.names import QUEUE
from tf_dist.errors import InvalidJob

CONTAINER = {"name": "tensorflow", "image": "none"}
COMMAND = "spec.tfReplicaSpecs.Worker.template.spec.containers[0].command"


def order(job: Any, folder: Path = Path(), render: Any = lambda value: value, **given: Any) -> JobRequest:
    wanted: dict[str, Any] = {"overrides": {}, "queue_name": None, "name": None, "default_name": "train"}
    return job_request(job, [folder], render, **(wanted | given))


def content(found: JobRequest) -> Any:
    return found.entry.written.content


def filled(value: Any) -> Any:
    """Render each string separately, like Jinja."""
    if isinstance(value, str):
        return value.replace("{{ text }}", "a: b\nspec: {x: [1]} # '\"")
    if isinstance(value, dict):
        return {key: filled(one) for key, one in value.items()}
    return [filled(one) for one in value] if isinstance(value, list) else value


def test_job_file_is_found_in_dag_folder(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.yaml").write_text(yaml.safe_dump(document()))
    found = order("jobs/job.yaml", tmp_path)
    assert (found.base_name, found.folder) == ("job", str(tmp_path / "jobs"))


def test_rendered_text_stays_single_value(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document("echo {{ text }}")))
    found = order("job.yaml", tmp_path, filled)
    (container,) = content(found)["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["command"][2] == "echo a: b\nspec: {x: [1]} # '\""
    assert set(content(found)) == {"apiVersion", "kind", "metadata", "spec"}


def test_document_in_dag_is_not_rendered_twice() -> None:
    found = order(document("echo {{ text }}"), render=filled)
    assert "{{ text }}" in str(content(found))


def test_companion_objects_of_file_are_rendered(tmp_path: Path) -> None:
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}, "data": {"a": "{{ text }}"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all([settings, document()]))
    (companion,) = order("job.yaml", tmp_path, filled).companions
    assert companion.content["data"]["a"].startswith("a: b")


def test_overrides_and_queue_take_precedence_over_document() -> None:
    found = order(document(), overrides={"spec.tfReplicaSpecs.Worker.replicas": 3}, queue_name="research")
    assert len(found.entry.job.replicas) == 3
    assert found.entry.job.scheduling.queue == "research"


def test_name_argument_precedes_document_and_default() -> None:
    nameless = document()
    del nameless["metadata"]["name"]
    assert order(document()).base_name == "job"
    assert order(document(), name="other").base_name == "other"
    assert order(nameless).base_name == "train"
    assert order({**nameless, "metadata": {"generateName": "gen-"}}).base_name == "gen"


@pytest.mark.parametrize(
    ("job", "given", "told"),
    [
        ("missing.yaml", {}, "does not exist"),
        (3, {}, "must be the path of a file, a dict, or a TFJob, not int"),
        ({"kind": "TFJob"}, {}, "apiVersion"),
        (document(), {"overrides": {"spec.tfReplicaSpecs.Worker.replica": 1}}, "replicas"),
        (document(), {"overrides": {"spec..x": 1}}, "overrides"),
    ],
)
def test_reports_invalid_arguments(tmp_path: Path, job: Any, given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        order(job, tmp_path, **given)
    assert told in "\n".join(f"{problem.path}: {problem.message} {problem.hint}" for problem in caught.value.problems)


def test_try_changes_copy_of_request() -> None:
    base = document()
    base["metadata"]["labels"] = {"team": "vision"}

    def changed(body: dict[str, Any]) -> None:
        body["spec"]["runPolicy"]["backoffLimit"] = 2
        body["metadata"]["name"] = "not-that-one"

    mine = request_of_try(
        order(base), name="job-1", namespace="ns", labels={"a": "b"}, notes={"n": "m"}, changed=changed
    )
    metadata = content(mine)["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("job-1", "ns")
    assert (metadata["labels"], metadata["annotations"]) == ({"team": "vision", "a": "b"}, {"n": "m"})
    assert content(mine)["spec"]["runPolicy"]["backoffLimit"] == 2
    assert base["metadata"] == {"name": "job", "labels": {"team": "vision"}}
    assert "backoffLimit" not in base["spec"]["runPolicy"]


@pytest.mark.parametrize(
    ("default", "name"),
    [("Train_Model", "train-model"), ("group.train", "group-train"), ("1st", "job-1st"), ("x" * 250, "x" * 31)],
)
def test_job_without_name_is_named_after_task(default: str, name: str) -> None:
    job = document()
    del job["metadata"]["name"]
    assert order(job, default_name=default).base_name == name


def test_rendered_number_is_integer_only_in_integer_fields(tmp_path: Path) -> None:
    job = document("8")
    job["spec"]["runPolicy"]["backoffLimit"] = "{{ text }}"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))

    def eight(value: Any) -> Any:
        return yaml.safe_load(yaml.safe_dump(value).replace("{{ text }}", "8"))

    for given in ("job.yaml", {**job, "spec": {**job["spec"], "runPolicy": {"backoffLimit": "8"}}}):
        found = order(given, tmp_path, eight, overrides={"spec.tfReplicaSpecs.Worker.replicas": "8"})
        spec = content(found)["spec"]
        assert (spec["tfReplicaSpecs"]["Worker"]["replicas"], spec["runPolicy"]["backoffLimit"]) == (8, 8)
        (container,) = spec["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        assert container["command"] == ["sh", "-c", "8"]


@pytest.mark.parametrize("text", ["eight", "8.5", "8 ", "-8"])
def test_rejects_text_in_integer_field(text: str) -> None:
    with pytest.raises(InvalidJob, match="replicas: must be a whole number"):
        order(document(), overrides={"spec.tfReplicaSpecs.Worker.replicas": text})


def test_reports_placeholder_only_if_not_rendered(tmp_path: Path) -> None:
    job = document()
    job["spec"]["runPolicy"]["backoffLimit"] = "{{ text }}"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    with pytest.raises(InvalidJob, match=r"backoffLimit: has the placeholder \{\{ text }}"):
        order("job.yaml", tmp_path)
    with pytest.raises(InvalidJob, match="backoffLimit: must be a whole number") as found:
        order("job.yaml", tmp_path, filled)
    assert "has the placeholder" not in str(found.value)


def _old() -> dict[str, Any]:
    worker = {"tfReplicaType": "MASTER", "replicas": 1, "template": {"spec": {"containers": [CONTAINER]}}}
    metadata = {"name": "job"}
    return {
        "apiVersion": "kubeflow.org/v1alpha1",
        "kind": "TFJob",
        "metadata": metadata,
        "spec": {"replicaSpecs": [worker]},
    }


def _labelled() -> dict[str, Any]:
    job = document()
    job["metadata"]["labels"] = {QUEUE: "another"}
    return job


@pytest.mark.parametrize("job", [document(), _labelled(), _old()], ids=["v1", "v1 with a label", "v1alpha1"])
def test_queue_argument_overrides_document_in_each_format(job: dict[str, Any]) -> None:
    assert order(job, queue_name="research").entry.job.scheduling.queue == "research"
