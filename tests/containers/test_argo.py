"""Argo with real containers: the shipped workflows, and jobs whose step is stopped, suspended, lost or evicted."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.containers.conftest import IMAGE, LONG, TFJOBS, TRAINER, Namespace, Nodes, new_namespace, small_job, written
from tests.faces.cases import CASE, CASES, CONTAINERS
from tests.faces.faces import called, step_outcome
from tests.waiting import until
from tf_dist.argo.launcher.contract import OUTPUTS
from tf_dist.client.connection import connect
from tf_dist.core.pipeline.run_options import Face

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]
INSTALL = "TF_DIST_TEST_ARGO"
WORKFLOWS = "workflows.argoproj.io"
SYSTEM = "argo"
ACCURATE = 0.9


@pytest.fixture(scope="module")
def argo(installed: Namespace) -> Iterator[Namespace]:
    """The cluster with Argo. The fixture installs and removes Argo, unless it is already installed."""
    if installed.kubectl("get", "crd", WORKFLOWS, "--ignore-not-found"):
        yield installed
        return
    release = os.environ.get(INSTALL)
    if not release:
        pytest.skip(f"no Argo: {INSTALL} names the install.yaml of a release (docs/testing.md)")
    space = installed.sibling(SYSTEM)
    space.kubectl("create", "namespace", SYSTEM)
    try:
        space.kubectl("create", "-f", release)  # its definitions are too large for kubectl apply
        space.kubectl("rollout", "status", "deployment", "workflow-controller", "--timeout", "120s")
        yield installed
    finally:
        space.kubectl("delete", "--ignore-not-found", "-f", release)
        space.kubectl("delete", "--ignore-not-found", "namespace", SYSTEM)


class Workflows:
    """Workflows in a namespace with the objects that the pages about Argo tell a user to apply."""

    def __init__(self, space: Namespace, folder: Path) -> None:
        self.space, self.folder = space, folder

    def by_the_docs(self, *beginning: str) -> None:
        """Run the commands with these beginnings from the pages about Argo, in this namespace."""
        for command in written(*beginning, pages=("argo.md", "argo-in-production.md")):
            here = command.replace("my-workflows", str(self.folder)).replace("research", self.space.name)
            self.space.run("sh", "-ec", here.replace("my-registry/digits:1", TRAINER))

    def shipped(self, file: str) -> dict[str, Any]:
        document: dict[str, Any] = yaml.safe_load((self.folder / file).read_text())
        return document

    def submit(self, document: dict[str, Any], **parameters: object) -> str:
        """Create a workflow with these ``parameters``, as ``argo submit -p`` does, and return its name."""
        arguments = document["spec"].setdefault("arguments", {}).setdefault("parameters", [])
        given = {name.replace("_", "-"): str(value) for name, value in parameters.items()}
        kept = [one for one in arguments if one["name"] not in given]
        document["spec"]["arguments"]["parameters"] = kept + [{"name": n, "value": v} for n, v in given.items()]
        name = self.space.kubectl("create", "-f", "-", "-o", "name", given=yaml.safe_dump(document))
        return name.strip().rpartition("/")[2]

    def patch(self, name: str, spec: dict[str, Any]) -> None:
        self.space.kubectl("patch", WORKFLOWS, name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def found(self, name: str) -> dict[str, Any]:
        return self.space.job(name, WORKFLOWS)

    def ended(self, name: str, seconds: float = 240) -> dict[str, Any]:
        """Wait until the workflow and its exit handler have ended, and return the workflow."""

        def over() -> bool:
            return self.found(name).get("status", {}).get("phase") in ("Succeeded", "Failed", "Error")

        try:
            until(over, seconds, every=1)
        except AssertionError:
            raise AssertionError(f"not over: {self.told(self.found(name))}") from None
        return self.found(name)

    def told(self, workflow: dict[str, Any]) -> str:
        nodes = nodes_of(workflow)
        shown = [f"{name} {one['phase']}: {one.get('message', '')} {outputs_of(one)}" for name, one in nodes.items()]
        return "\n".join([str(workflow.get("status", {}).get("phase")), *shown, str(sorted(self.space.pods()))])

    def succeeded(self, name: str, seconds: float = 240) -> dict[str, Any]:
        workflow = self.ended(name, seconds)
        assert workflow["status"]["phase"] == "Succeeded", self.told(workflow)
        return workflow

    def job_of(self, name: str) -> str:
        """Wait for the job of the workflow's only step, and return its name."""
        uid = self.found(name)["metadata"]["uid"]

        def owned() -> list[str]:
            jobs = self.space.objects(TFJOBS)
            owners = {job["metadata"]["name"]: job["metadata"].get("ownerReferences", []) for job in jobs}
            return [job for job, them in owners.items() if uid in [one["uid"] for one in them]]

        until(lambda: bool(owned()), 120, every=0.5)
        (job,) = owned()
        return job

    def training(self, name: str) -> str:
        """Wait until the first worker of the only step's job trains, and return the job's name."""
        job = self.job_of(name)
        self.space.until_said(f"{job}-worker-0", "step=", seconds=120)
        return job

    def replicas(self, job: str) -> list[str]:
        """The names of a job's pods."""
        return [pod for pod in self.space.pods() if pod.startswith(f"{job}-")]

    def launchers(self, name: str) -> list[str]:
        """The names of the workflow's own running pods. The pods of replicas have the label of the workflow, too."""
        pods = self.space.pods().items()
        return [pod for pod, found in pods if pod.startswith(name) and found["status"]["phase"] == "Running"]


def nodes_of(workflow: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The nodes by display name. Each try has its own display name."""
    return {one["displayName"]: one for one in workflow.get("status", {}).get("nodes", {}).values()}


def outputs_of(node: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in node.get("outputs", {}).get("parameters", [])}


def exit_handler(workflow: dict[str, Any]) -> dict[str, Any]:
    name = f"{workflow['metadata']['name']}.onExit"
    return nodes_of(workflow).get(name, {"phase": "none"})


@pytest.fixture(scope="module")
def workflows(argo: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workflows]:
    for space in new_namespace(argo):
        made = Workflows(space, tmp_path_factory.mktemp("workflows"))
        made.by_the_docs("tf-dist workflows export", "kubectl apply -f my-workflows/rbac.yaml")
        yield made


def test_single_step_trains_and_runs_exit_handler(workflows: Workflows) -> None:
    name = workflows.submit(workflows.shipped("digits-train.yaml"))
    workflow = workflows.succeeded(name)
    outputs = outputs_of(nodes_of(workflow)[name])
    assert outputs.keys() >= OUTPUTS.keys()
    assert (outputs["outcome"], outputs["status"]) == ("succeeded", "Succeeded")
    assert float(outputs["accuracy"]) >= ACCURATE
    assert "model.ckpt-4000" in outputs["checkpoint"]
    assert exit_handler(workflow)["phase"] == "Succeeded"


@pytest.mark.parametrize(("how", "cleaned"), [("Stop", "Succeeded"), ("Terminate", "none")])
def test_stopped_workflow_deletes_its_job(workflows: Workflows, how: str, cleaned: str) -> None:
    name = workflows.submit(workflows.shipped("digits-train.yaml"), steps=10 * LONG)
    job = workflows.training(name)
    workflows.patch(name, {"shutdown": how})
    workflow = workflows.ended(name, 60)
    until(lambda: not workflows.replicas(job), 60, every=0.5)
    assert job not in workflows.space.jobs()
    assert workflow["status"]["phase"] == "Failed"
    assert exit_handler(workflow)["phase"] == cleaned


def test_suspended_workflow_has_no_pods_and_resumes_same_job(workflows: Workflows) -> None:
    name = workflows.submit(workflows.shipped("digits-train.yaml"), steps=LONG)
    job = workflows.training(name)
    workflows.patch(name, {"suspend": True})
    until(lambda: not workflows.replicas(job), 60, every=0.5)
    workflows.patch(name, {"suspend": None})
    outputs = outputs_of(nodes_of(workflows.succeeded(name))[name])
    assert (outputs["job"], outputs["outcome"]) == (job, "succeeded")


def test_lost_launcher_is_replaced_and_continues_same_job(workflows: Workflows) -> None:
    name = workflows.submit(workflows.shipped("digits-train.yaml"), steps=2 * LONG)
    job = workflows.training(name)
    before = workflows.space.pods()[f"{job}-worker-0"]["metadata"]["uid"]
    (launcher,) = workflows.launchers(name)
    workflows.space.kubectl("delete", "pod", launcher, "--grace-period=0", "--force")
    until(lambda: launcher not in workflows.launchers(name) and bool(workflows.launchers(name)), 120, every=1)
    found = workflows.space.pods().get(f"{job}-worker-0")
    assert found
    assert found["metadata"]["uid"] == before
    workflow = workflows.succeeded(name)
    assert outputs_of(nodes_of(workflow)[name])["job"] == job


def test_evicted_job_resumes_in_next_step(workflows: Workflows) -> None:
    name = workflows.submit(workflows.shipped("evicted-or-failed.yaml"), steps=LONG)
    worker = f"{workflows.training(name)}-worker-1"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": worker}}
    path = f"/api/v1/namespaces/{workflows.space.name}/pods/{worker}/eviction"
    workflows.space.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(eviction))
    nodes = nodes_of(workflows.succeeded(name))
    assert outputs_of(nodes["train"])["outcome"] == "evicted"
    assert outputs_of(nodes["resume"])["outcome"] == "succeeded"
    assert nodes["page"]["phase"] == "Omitted"


def test_failed_job_outputs_replica_and_exit_code_and_runs_exit_handler(workflows: Workflows) -> None:
    """The job fails because the image of tf-dist has Python but not the training code."""
    name = workflows.submit(workflows.shipped("evicted-or-failed.yaml"), image=IMAGE)
    workflow = workflows.ended(name)
    assert workflow["status"]["phase"] == "Failed"
    nodes = nodes_of(workflow)
    outputs = outputs_of(nodes["train"])
    assert (outputs["outcome"], outputs["status"]) == ("failed", "Failed")
    assert outputs["replica"].startswith("worker-")
    assert outputs["exit-code"] == "2"
    assert nodes["resume"]["phase"] in ("Skipped", "Omitted")
    assert nodes["page"]["phase"] == "Failed"
    assert exit_handler(workflow)["phase"] == "Succeeded"


@pytest.fixture
def memoizing(workflows: Workflows) -> Iterator[None]:
    """Argo's controller may write ConfigMaps in its namespace, after the commands of the page."""
    space = workflows.space.sibling(SYSTEM)
    if space.kubectl("get", "role", "argo-memoizer", "--ignore-not-found"):
        yield
        return
    workflows.by_the_docs("kubectl create role argo-memoizer", "kubectl create rolebinding argo-memoizer")
    yield
    space.kubectl("delete", "role,rolebinding", "argo-memoizer")


@pytest.mark.usefixtures("memoizing")
def test_memoized_step_does_not_train_again(workflows: Workflows) -> None:
    first, second = (
        workflows.succeeded(workflows.submit(workflows.shipped("train-once.yaml"), steps=2000)) for _ in range(2)
    )
    assert not nodes_of(first)["train"]["memoizationStatus"]["hit"]
    assert nodes_of(second)["train"]["memoizationStatus"]["hit"]
    trained = [outputs_of(nodes_of(one)["train"]) for one in (first, second)]
    assert trained[0] == trained[1]
    assert trained[0]["outcome"] == "succeeded"


def test_each_item_of_loop_has_its_own_job(workflows: Workflows) -> None:
    name = workflows.submit(workflows.shipped("sweep.yaml"))
    nodes = nodes_of(workflows.succeeded(name, 400))
    assert outputs_of(nodes["choose"])["best"] in ("0.05", "0.2")
    jobs = {
        outputs_of(one)["job"]
        for shown, one in nodes.items()
        if shown.startswith("train(") and "job" in outputs_of(one)
    }
    assert len(jobs) == 3


@pytest.fixture
def four_gpus(workflows: Workflows, nodes: Nodes) -> Iterator[None]:
    """A node reports four GPUs."""
    patch = ("patch", "node", nodes.names[0], "--subresource=status", "--type=json", "-p")
    gpus = {"path": "/status/capacity/nvidia.com~1gpu", "value": "4"}
    workflows.space.kubectl(*patch, json.dumps([{"op": "add", **gpus}]))
    yield
    workflows.space.kubectl(*patch, json.dumps([{"op": "remove", **gpus}]))


@pytest.mark.usefixtures("four_gpus")
def test_job_falls_back_to_smaller_gang(workflows: Workflows) -> None:
    document = workflows.shipped("gang-fallback.yaml")
    for template in document["spec"]["templates"]:
        for one in template.get("inputs", {}).get("parameters", []):
            if one["name"] == "admission-timeout":
                one["default"] = "15s"  # instead of 10m
    nodes = nodes_of(workflows.succeeded(workflows.submit(document)))
    outputs = outputs_of(nodes["train"])
    assert (outputs["outcome"], outputs["fallback"]) == ("succeeded", "1")
    assert nodes["which"]["phase"] == "Succeeded"


@pytest.mark.parametrize(("code", "outcome"), [(0, "succeeded"), (3, "failed")])
def test_resource_template_reports_outcome_without_launcher(workflows: Workflows, code: int, outcome: str) -> None:
    hera = pytest.importorskip("hera.workflows", reason="Hera is missing: pip install '.[argo]'")
    from tf_dist.argo import tf_job_resource, wait_admitted_step

    job = yaml.safe_load(small_job("thin", f"sleep 5; exit {code}", restartPolicy="Never"))
    short = yaml.safe_load(small_job("short", "sleep 1"))
    with hera.Workflow(generate_name="thin-", entrypoint="main", service_account_name="tf-dist-argo") as made:
        train = tf_job_resource(job, name="train", fail_with_job=False)
        start = tf_job_resource(short, name="start", wait=False)
        placed = wait_admitted_step(hera.Parameter(name="job"), name="placed", image=IMAGE)
        with hera.DAG(name="main"):
            train()
            started = start()
            started >> placed(arguments={"job": started.get_parameter("job")})
    nodes = nodes_of(workflows.succeeded(workflows.submit(made.to_dict())))
    outputs = outputs_of(nodes["train"])
    assert outputs["outcome"] == outcome
    assert outputs["exit-code"] == (str(code) if code else "")
    assert outputs["replica"] == ("worker-0" if code else "")
    assert nodes["placed"]["phase"] == "Succeeded"


def test_step_by_template_ref_gets_overrides_and_inputs(workflows: Workflows) -> None:
    """The workflow is YAML with a templateRef, a job, and a parameter of the workflow."""
    templates = workflows.shipped("tf-dist-templates.yaml")
    workflows.space.kubectl("apply", "-f", str(workflows.folder / "tf-dist-templates.yaml"))
    declared = [
        {
            "name": "rate",
            "path": "spec.tfReplicaSpecs.Worker.template.spec.containers[0].command[2]",
            "pattern": "[a-z]+",
        }
    ]
    arguments = {
        "job": small_job("by-reference", "exit 3", restartPolicy="Never"),
        "overrides": json.dumps({"spec.runPolicy.backoffLimit": 0}),
        "inputs": json.dumps(declared),
        "input-values": "{{workflow.parameters.json}}",
    }
    task = {
        "name": "train",
        "templateRef": {"name": templates["metadata"]["name"], "template": "tf-job"},
        "arguments": {"parameters": [{"name": name, "value": value} for name, value in arguments.items()]},
    }
    document = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": "by-reference-"},
        "spec": {
            "entrypoint": "main",
            "serviceAccountName": "tf-dist-argo",
            "templates": [{"name": "main", "dag": {"tasks": [task]}}],
        },
    }
    outputs = outputs_of(nodes_of(workflows.succeeded(workflows.submit(document, rate="true")))["train"])
    assert (outputs["outcome"], outputs["exit-code"]) == ("succeeded", "")


def test_cron_workflow_retrains_and_promotes_model(workflows: Workflows) -> None:
    """A CronWorkflow retrains and promotes a model."""
    if "stand-in" in TRAINER:
        pytest.skip("the stand-in trains no model that could be evaluated")
    workflows.by_the_docs("kubectl apply -f my-workflows/rbac.yaml")
    nightly = workflows.shipped("cron-retrain.yaml")
    nightly["spec"]["schedules"] = ["* * * * *"]  # instead of at three
    workflows.space.kubectl("apply", "-f", "-", given=yaml.safe_dump(nightly))

    def nights() -> list[str]:
        return [one["metadata"]["name"] for one in workflows.space.objects(WORKFLOWS) if is_night(one)]

    def is_night(one: dict[str, Any]) -> bool:
        return bool(one["metadata"]["name"].startswith("digits-nightly-"))

    until(lambda: bool(nights()), 120, every=1)
    (name,) = nights()
    workflows.space.kubectl("delete", "cronworkflow", "digits-nightly", "--cascade=orphan")
    nodes = nodes_of(workflows.succeeded(name, 500))
    assert nodes["promote"]["phase"] == "Succeeded"
    assert float(outputs_of(nodes["evaluate"])["accuracy"]) >= ACCURATE


@pytest.fixture(scope="module")
def cases(workflows: Workflows) -> Iterator[str]:
    """The name of a workflow that runs all cases of ``tests/faces``, six at a time."""
    hera = pytest.importorskip("hera.workflows", reason="Hera is missing: pip install '.[argo]'")
    from tf_dist.argo import TFJobStep

    folder = workflows.folder / "cases"
    workflows.space.tf_dist("workflows", "export", str(folder), "--volcano-jobs")
    workflows.space.kubectl("apply", "-f", str(folder / "rbac.yaml"))
    train = TFJobStep(name="train", job=hera.Parameter(name="job"), image=IMAGE, retry_strategy=None)
    options: dict[str, Any] = {"service_account_name": "tf-dist-argo", "parallelism": 6}
    with (
        hera.Workflow(generate_name="cases-", entrypoint="main", **options) as made,
        hera.DAG(name="main", fail_fast=False),
    ):
        for name in CONTAINERS:
            train(name=name, arguments={"job": case_file(name), **case_parameters(name)})
    workflow = workflows.submit(made.to_dict())
    yield workflow
    workflows.space.kubectl("delete", WORKFLOWS, workflow)


def case_file(name: str) -> str:
    """The documents of a case, with an image that exists."""
    case = CASES[name]
    job = {**case.document, "metadata": {**case.document["metadata"], "labels": {CASE: name}}}
    text = "\n---\n".join(json.dumps(one) for one in (job, *case.beside))
    return text.replace('"image": "none"', f'"image": "{TRAINER}", "imagePullPolicy": "IfNotPresent"')


def case_parameters(name: str) -> dict[str, str]:
    """The options of a case as parameters of a step."""
    given = called(CASES[name], Face.STEP)
    return {
        option.replace("_", "-"): f"{value}s" if isinstance(value, int) else json.dumps(value)
        for option, value in given.items()
    }


@pytest.mark.parametrize("name", CONTAINERS)
def test_job_has_same_outcome_as_on_other_interfaces(workflows: Workflows, cases: str, name: str) -> None:
    case = CASES[name]

    def step() -> dict[str, Any]:
        return nodes_of(workflows.found(cases)).get(name, {"phase": "none"})

    def running() -> list[dict[str, Any]]:
        jobs = workflows.space.objects(TFJOBS, "-l", f"{CASE}={name}")
        return [job for job in jobs if job.get("status", {}).get("tfDist", {}).get("phase") == "Running"]

    if case.meanwhile is not None:
        until(lambda: bool(running()), 240, every=0.5)
        connection = connect(workflows.space.kubeconfig)
        case.meanwhile(connection.cluster, running()[0])
        connection.close()
    until(lambda: step()["phase"] in ("Succeeded", "Failed", "Error"), 540, every=1)
    outputs = outputs_of(step())
    outcome = step_outcome(outputs)
    assert (step()["phase"] == "Succeeded") is (outcome["kind"] == "succeeded"), outcome
    if case.refused:
        assert outcome["kind"] == "invalid"
        assert [part for part in case.refused if part not in outcome["message"]] == [], outcome
        return
    assert {field: outcome[field] for field in case.ends} == case.ends, outcome
