"""Variables that are too long for Linux, at the exact limit, and references to undefined variables."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.core.dialects import documents
from tf_dist.core.dialects import parse, read
from tf_dist.core.model.job import Job, ReplicaId
from tf_dist.core.podbuilder.tf_config import build_tf_config, cluster_hosts
from tf_dist.core.podbuilder.volcano_plugins import host_file_data
from tf_dist.errors import InvalidJob

Document = dict[str, Any]
TEMPLATE = {"spec": {"restartPolicy": "Never", "containers": [{"name": "tensorflow", "image": "any"}]}}


def v1(workers: int, *, dynamic: bool = False, **others: int) -> Document:
    counts = {"Worker": workers, **others}
    specs = {type_: {"replicas": count, "template": TEMPLATE} for type_, count in counts.items()}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "recommender", "namespace": "training"},
        "spec": {"tfReplicaSpecs": specs, "enableDynamicWorker": dynamic},
    }


def v1alpha1(workers: int) -> Document:
    counts = {"MASTER": 1, "PS": 3, "WORKER": workers}
    specs = [{"tfReplicaType": type_, "replicas": count, "template": TEMPLATE} for type_, count in counts.items()]
    return {
        "apiVersion": "kubeflow.org/v1alpha1",
        "kind": "TFJob",
        "metadata": {"name": "recommender-of-the-second-floor", "namespace": "training"},
        "spec": {"RuntimeId": "76no", "replicaSpecs": specs},
    }


def volcano(workers: int, plugin: str) -> Document:
    tasks = [
        {"name": name, "replicas": count, "template": TEMPLATE} for name, count in (("ps", 3), ("worker", workers))
    ]
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "recommender-of-the-second-floor"},
        "spec": {"tasks": tasks, "plugins": {plugin: [], "svc": ["--inject-hosts-env=true"]}},
    }


FORMS: dict[str, Callable[[int], Document]] = {
    "v1": lambda workers: v1(workers, PS=100),
    "v1 with chief and evaluators": lambda workers: v1(workers, Chief=1, PS=11, Evaluator=12),
    "sparse with chief": lambda workers: v1(workers, dynamic=True, Chief=1, PS=11),
    "sparse, many servers": lambda servers: v1(2, dynamic=True, PS=servers),
    "v1alpha1": v1alpha1,
    "tensorflow plugin": lambda workers: volcano(workers, "tensorflow"),
    "svc plugin": lambda workers: volcano(workers, "env"),
}


def accepted(document: Document) -> bool:
    try:
        parse(document)
    except InvalidJob:
        return False
    return True


def longest(job: Job) -> int:
    """The bytes of the longest variable in any container."""
    hosts = cluster_hosts(job)
    first_and_last = {ReplicaId(spec.type, index) for spec in job.replica_specs for index in (0, spec.replicas - 1)}
    values = (build_tf_config(job, replica, hosts) for replica in first_and_last)
    found = [len(f"TF_CONFIG={value}") for value in values if value is not None]
    if job.plugins.svc:
        found += [len(f"{key}={value}") for key, value in host_file_data(job).items() if key.endswith("_HOSTS")]
    return max(found)


@pytest.mark.parametrize("form", FORMS)
def test_refuses_first_job_whose_variable_exceeds_limit(form: str) -> None:
    make = FORMS[form]
    fits, too_many = 100, 100_000 - 200
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if accepted(make(middle)) else (fits, middle)
    job = read(make(fits))
    assert longest(job) <= 131_071
    wider = make(too_many)
    with pytest.raises(InvalidJob, match="Linux allows 131071") as refused:
        read(wider)
    (problem,) = refused.value.problems
    length = int(problem.message.split(" would have ")[1].split()[0])
    assert length > 131_071
    assert length - longest(job) < 100  # one more address


def test_linux_starts_program_with_longest_variable_allowed() -> None:
    value = "x" * (131_071 - len("TF_CONFIG="))
    assert subprocess.run(["true"], env={"TF_CONFIG": value}, check=False).returncode == 0
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["true"], env={"TF_CONFIG": value + "x"}, check=False)


def test_names_way_out_of_too_long_tf_config() -> None:
    with pytest.raises(InvalidJob) as refused:
        parse(v1(5_000, PS=100))
    (problem,) = refused.value.problems
    assert problem.path == "spec.tfReplicaSpecs"
    assert "TF_CONFIG would have" in problem.message
    assert "fewer replicas" in problem.hint
    assert "enableDynamicWorker: true" in problem.hint
    assert accepted(v1(5_000, PS=100, dynamic=True))


def test_warns_when_job_may_grow_beyond_limit() -> None:
    document = v1(100)
    document["metadata"]["annotations"] = {"tf-dist.dev/max-workers": "4000"}
    messages = [problem.message for problem in parse(document).warnings]
    assert any("TF_CONFIG has" in message and "has grown" in message for message in messages)
    assert not any("TF_CONFIG has" in problem.message for problem in parse(v1(100)).warnings)


CONTAINER = "spec.tfReplicaSpecs.Worker.template.spec.containers[0]"


def advice(container: Document, document: Document | None = None) -> list[tuple[str, str, str]]:
    """The path, message and hint of each warning about a job with that container."""
    found = document or v1(1)
    spec = found["spec"].get("tasks") or [found["spec"]["tfReplicaSpecs"]["Worker"]]
    spec[0]["template"] = {
        "spec": {**TEMPLATE["spec"], "containers": [{"name": "tensorflow", "image": "any", **container}]}
    }
    return [(one.path, one.message, one.hint) for one in documents.warnings(found)]


@pytest.mark.parametrize(
    ("container", "place", "told", "hint"),
    [
        (
            {"args": ["--dir=$(MODEL_DIR)/x"]},
            "args[0]",
            "$(MODEL_DIR) is not replaced: env has no variable MODEL_DIR",
            "a shell",
        ),
        (
            {"command": ["sh", "-c", "train $(HOME)"]},
            "command[2]",
            "env has no variable HOME",
            "only a shell replaces variables of the image ($HOME)",
        ),
        ({"args": ["$$$(A)"]}, "args[0]", "env has no variable A", "add it to env"),
        (
            {"args": ["$(DATA_DIRS)"], "env": [{"name": "DATA_DIR", "value": "/data"}]},
            "args[0]",
            "env has no variable DATA_DIRS",
            "did you mean DATA_DIR?",
        ),
        (
            {"env": [{"name": "A", "value": "$(B)"}, {"name": "B", "value": "b"}]},
            "env[0].value",
            "$(B) is not replaced: env has no variable B before this entry",
            "add it",
        ),
    ],
)
def test_warns_of_reference_without_variable(container: Document, place: str, told: str, hint: str) -> None:
    ((path, message, advised),) = advice(container)
    assert path == f"{CONTAINER}.{place}"
    assert told in message
    assert hint in advised


@pytest.mark.parametrize(
    "container",
    [
        {
            "args": [
                "$$(A)",
                "$(A B)",
                "$A ${A}",
                "$(date)",
                "$(KUBERNETES_SERVICE_HOST)",
                "$(DB_PORT_5432_TCP)",
                "$(TF_DIST_MODEL_DIR)",
            ]
        },
        {
            "args": ["$(A)$(TF_CONFIG)"],
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        },
        {"env": [{"name": "A", "value": "a"}, {"name": "B", "value": "$(A)"}]},
        {"args": ["$(A)"], "envFrom": [{"configMapRef": {"name": "settings"}}]},
    ],
)
def test_accepts_references_to_variables_and_texts_without_references(container: Document) -> None:
    assert advice(container) == []


def test_variables_of_volcano_plugins_are_known() -> None:
    volcano = documents.volcano()
    volcano["spec"]["plugins"] = {"env": [], "svc": []}
    name = volcano["spec"]["tasks"][0]["name"].upper()
    of_plugins = [f"$(VC_{name}_HOSTS)", f"$(VC_{name}_NUM)", "$(VC_TASK_INDEX)", "$(VK_TASK_INDEX)"]
    assert advice({"args": of_plugins}, volcano) == []
    ((path, message, _),) = advice({"args": [*of_plugins, f"$(VC_{name}_0_SVC)"]}, volcano)
    assert path == "spec.tasks[0].template.spec.containers[0].args[4]"
    assert message.startswith(f"$(VC_{name}_0_SVC) is not replaced")


def test_document_with_thousands_of_references_gets_a_few_warnings() -> None:
    """Other tenants wait while a controller checks a document."""
    variables = [{"name": f"V{number}", "value": f"$(W{number})"} for number in range(5_000)]
    assert len(advice({"env": variables, "args": [" ".join(f"$(X{number})" for number in range(5_000))]})) == 10


@pytest.mark.parametrize("containers", ["containers", "initContainers"])
@pytest.mark.parametrize(
    ("container", "place"),
    [
        ({"command": ["sh", "a\0b"]}, "command[1]"),
        ({"args": ["\0"]}, "args[0]"),
        ({"env": [{"name": "A", "value": "x\0"}]}, "env[0].value"),
    ],
)
def test_refuses_nul_that_no_program_can_receive(containers: str, container: Document, place: str) -> None:
    found = v1(1)
    first = {"name": "tensorflow", "image": "any"}
    spec = {"containers": [first]}
    spec[containers] = [{**first, "name": "tensorflow" if containers == "containers" else "first", **container}]
    found["spec"]["tfReplicaSpecs"]["Worker"]["template"] = {"spec": spec}
    with pytest.raises(InvalidJob) as told:
        parse(found)
    [problem] = told.value.problems
    path = f"spec.tfReplicaSpecs.Worker.template.spec.{containers}[0].{place}"
    assert (problem.path, problem.message) == (path, "contains a NUL character, so no container starts")
