"""``tf-dist install``: what it prints, what it says about the cluster it looks at, and what it refuses."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Program
from tests.controller.harness import queue, tfjob
from tf_dist.cli.install.crds import tfjobs, volcano_commands, volcano_jobs
from tf_dist.cluster.api import POD_DISRUPTION_BUDGETS, QUEUES, TFJOBS, VOLCANO_JOBS
from tf_dist.cluster.apiserver.server import ApiServer, make_kubeconfig
from tf_dist.cluster.apiserver.storage.api_resources import BUILTIN_KINDS, CRDS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster

Object = dict[str, Any]


def kubeflows() -> Object:
    """A definition like that of Kubeflow's training operator: v1 only, every field typed, the rest dropped."""
    integer, text = {"type": "integer"}, {"type": "string"}
    policy = {"cleanPodPolicy": text, "backoffLimit": integer, "suspend": {"type": "boolean"}}
    template = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    replica = {"type": "object", "properties": {"replicas": integer, "template": template}}
    spec = {
        "runPolicy": {"type": "object", "properties": policy},
        "tfReplicaSpecs": {"type": "object", "additionalProperties": replica},
    }
    status = {"conditions": {"type": "array", "items": {"type": "object", "properties": {"type": text}}}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.a", "statusReplicasPath": ".status.b"}},
        "additionalPrinterColumns": [
            {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {"type": "object", "properties": spec},
                    "status": {"type": "object", "properties": status},
                },
            }
        },
    }
    ours = tfjobs()
    return {
        **ours,
        "metadata": {"name": ours["metadata"]["name"]},
        "spec": {**ours["spec"], "versions": [version]},
    }


def kinds(text: str) -> list[str]:
    return [one["kind"] for one in yaml.safe_load_all(text)]


def test_offline_it_looks_at_nothing(tf_dist: Program) -> None:
    found = tf_dist("install", "--offline", "--image=mine:7", KUBECONFIG="/nowhere/at/all")
    assert (found.returncode, found.stderr) == (0, "")
    assert kinds(found.stdout).count("CustomResourceDefinition") == 2
    assert "Deployment" in kinds(found.stdout)


def test_options_reach_what_is_printed(tf_dist: Program) -> None:
    found = tf_dist(
        "install",
        "--offline",
        "--into",
        "ml",
        "--image",
        "mine/tf-dist:7",
        "--replicas",
        "3",
        "-n",
        "a",
        "-n",
        "b",
        "--cluster-domain",
        ".example.local",
    )
    deployment = next(one for one in yaml.safe_load_all(found.stdout) if one["kind"] == "Deployment")
    assert deployment["metadata"]["namespace"] == "ml"
    assert deployment["spec"]["replicas"] == 3
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "mine/tf-dist:7"
    assert {"--namespace=a", "--namespace=b", "--cluster-domain=example.local"} <= set(container["args"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--into", "Not_A_Name"), "--into: 'Not_A_Name' is no namespace"),
        (("--namespace", "a.b"), "--namespace: 'a.b' is no namespace"),
        (("--drivers", ""), "--drivers: '' is no namespace"),
        (("--replicas", "0"), "--replicas"),
        (("--no-controller", "--namespace", "a"), "--namespace"),
        (("--see-nodes",), "add --no-controller"),
        (("--crds-only", "--drivers", "a"), "--crds-only"),
        (("--no-controller", "--disruption-budgets"), "--disruption-budgets"),
        (("--no-crds", "--crds-only"), "--no-crds"),
        (("--no-controller", "--service-monitor"), "--service-monitor: is for the controller"),
        (("--metrics-from", "a"), "--metrics-from: says who may scrape"),
        (("--image", "a b"), "--image: 'a b' is no image"),
        (("--image", "a@sha256:12"), "--image"),
        (("--image", ""), "--image: '' is no image"),
        (("--image-pull-policy", "never"), "--image-pull-policy"),
        (("--image-pull-secret", "A"), "--image-pull-secret: 'A' is no name"),
        (("--requests", "cpu=much"), "--requests: 'cpu=much' is no amount"),
        (("--limits", "memory"), "write cpu=100m,memory=256Mi"),
        (("--node-selector", "a"), "--node-selector: 'a' is no label"),
        (("--toleration", "a:Never"), "an effect is NoSchedule"),
        (("--monitoring-label", "a=b c"), "--monitoring-label"),
        (("--priority-class", "High"), "--priority-class"),
        (("--offline", "--check"), "--check"),
        (("--monitoring-label", "a=b"), "--monitoring-label: is for --service-monitor or --prometheus-rule"),
        (("--monitoring-label", "a=b", "--grafana-dashboard"), "--monitoring-label"),
        (("--controller-config", "A b/c"), "--controller-config: 'A b' is no name of an object"),
        (("--controller-config", "/own.yaml"), "--controller-config: '' is no name of an object"),
        (("--controller-config", "a/../x"), "--controller-config: '../x' is no key of a ConfigMap"),
        (("--controller-config", "a/.."), "--controller-config: '..' is no key of a ConfigMap"),
        (("--cluster-domain", "a b"), "--cluster-domain: 'a b' is no domain"),
        (("--priority-class", "a..b"), "--priority-class: 'a..b' is no name"),
        (("--requests", "cpus=1"), "--requests: 'cpus' is no resource of a container"),
        (
            ("--requests", "memory=2Gi"),
            "--requests: memory=2Gi is more than the limit, 1Gi\n  hint: add --limits memory=2Gi",
        ),
        (("--limits", "memory=100Mi"), "--limits: memory=100Mi is less than what is requested, 256Mi"),
        (("--limits", "memory=100Mi"), "hint: add --requests memory=100Mi"),
        (("--requests", "cpu=2", "--limits", "cpu=1500m"), "--requests: cpu=2 is more than the limit, 1500m"),
    ],
)
def test_what_makes_no_sense_is_refused(tf_dist: Program, arguments: tuple[str, ...], told: str) -> None:
    found = tf_dist("install", "--offline", *arguments)
    assert (found.returncode, found.stdout) == (2, "")
    assert told in found.stderr


def test_all_that_is_wrong_is_said_at_once(tf_dist: Program) -> None:
    found = tf_dist(
        "install", "--offline", "--requests=cpu", "--limits=x=y", "--toleration=:", "--kube-version=a", "--see-nodes"
    )
    assert found.returncode == 2
    for option in ("--requests", "--limits", "--toleration", "--kube-version", "--see-nodes"):
        assert option in found.stderr


OF_THE_CONTROLLER = (
    ("--into", "ml"),
    ("--image", "mine:7"),
    ("--replicas", "3"),
    ("--namespace", "a"),
    ("--image-pull-policy", "Never"),
    ("--image-pull-secret", "a"),
    ("--requests", "cpu=1"),
    ("--limits", "memory=2Gi"),
    ("--node-selector", "a=b"),
    ("--toleration", "a"),
    ("--priority-class", "high"),
    ("--no-pod-budget",),
    ("--network-policy",),
    ("--service-monitor",),
    ("--prometheus-rule",),
    ("--grafana-dashboard",),
    ("--default-scheduler", "kueue"),
    ("--disruption-budgets",),
    ("--controller-config", "a"),
)
NOT_OF_DEFINITIONS = (
    *OF_THE_CONTROLLER,
    ("--no-controller",),
    ("--system-namespace", "meeting"),
    ("--drivers", "a"),
    ("--see-nodes",),
    ("--gang-scheduler", "kueue"),
)


@pytest.mark.parametrize(
    ("leaves_out", "given"), [("--no-controller", OF_THE_CONTROLLER), ("--crds-only", NOT_OF_DEFINITIONS)]
)
def test_no_option_is_ignored_in_silence(tf_dist: Program, leaves_out: str, given: tuple[tuple[str, ...], ...]) -> None:
    found = tf_dist("install", "--offline", leaves_out, *(part for option in given for part in option))
    assert (found.returncode, found.stdout) == (2, "")
    refused = re.findall(rf"(--[a-z-]+): .* {leaves_out} leaves it out$", found.stderr, flags=re.MULTILINE)
    assert sorted(refused) == sorted(option for option, *_ in given)


def test_what_definitions_depend_on_goes_with_them_alone(tf_dist: Program) -> None:
    found = tf_dist("install", "--offline", "--crds-only", "--volcano-jobs", "--kube-version=1.26", "-o", "out")
    assert (found.returncode, found.stderr) == (0, "")


def test_requests_that_are_the_limits_are_taken(tf_dist: Program) -> None:
    found = tf_dist("install", "--offline", "--image=mine:7", "--requests=cpu=1,memory=1024Mi", "--limits=cpu=1000m")
    assert (found.returncode, found.stderr) == (0, "")


def test_a_folder_is_written(tf_dist: Program) -> None:
    found = tf_dist("install", "--offline", "-o", "out/deploy", "--drivers", "research")
    paths = [path for path in (tf_dist.folder / "out").rglob("*") if path.is_file()]
    written = sorted(str(path.relative_to(tf_dist.folder)) for path in paths)
    assert sorted(found.stdout.split()) == written
    listed = yaml.safe_load((tf_dist.folder / "out/deploy/kustomization.yaml").read_text())["resources"]
    assert "driver-research.yaml" in listed


def test_a_folder_that_cannot_be_written(tf_dist: Program) -> None:
    (tf_dist.folder / "file").write_text("")
    found = tf_dist("install", "--offline", "-o", "file")
    assert found.returncode == 1
    assert "cannot write file/crds" in found.stderr
    assert "hint: give another folder with -o" in found.stderr


def test_a_cluster_without_anything(tf_dist: Program, config: str) -> None:
    found = tf_dist("install", "--check", "--kubeconfig", config)
    assert (found.returncode, found.stdout) == (0, "nothing stands in the way\n")
    found = tf_dist("install", "--kubeconfig", config, "--image=mine:7")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == tf_dist("install", "--offline", "--image=mine:7").stdout


@pytest.mark.parametrize(
    ("arguments", "warned"), [((), True), (("--image=mine:7",), False), (("--no-controller",), False)]
)
def test_an_image_that_no_registry_has_is_warned_of(tf_dist: Program, arguments: tuple[str, ...], warned: bool) -> None:
    found = tf_dist("install", "--offline", *arguments)
    assert found.returncode == 0
    assert ("is in no registry" in found.stderr and "make images IMAGE=" in found.stderr) is warned
    assert "registry" not in found.stdout


@pytest.mark.parametrize(
    ("release", "knows"), [("1.26", False), ("v1.20.2", False), ("1.27", True), ("2.0.1", True), ("", True)]
)
def test_a_server_that_knows_no_validation_rules_gets_none(
    tf_dist: Program, config: str, release: str, knows: bool
) -> None:
    for where in (("--offline",), ("--kubeconfig", config)):
        found = tf_dist("install", "--crds-only", "--kube-version", release, *where)
        assert (found.returncode, found.stderr) == (0, "")
        assert ("x-kubernetes-validations" in found.stdout) == knows
    wrong = tf_dist("install", "--offline", "--kube-version", "new")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "write 1.27" in wrong.stderr


def test_tf_dists_own_definition_is_brought_up_to_date(tf_dist: Program, config: str, memory: MemoryCluster) -> None:
    older = tfjobs()
    older["spec"]["versions"][0]["additionalPrinterColumns"] = []
    memory.create(CRDS, None, older)
    found = tf_dist("install", "--crds-only", "--kubeconfig", config)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == tf_dist("install", "--crds-only", "--offline").stdout


def test_kubeflows_definition_is_left_alone_and_what_differs_is_told(
    tf_dist: Program, config: str, memory: MemoryCluster
) -> None:
    memory.create(CRDS, None, kubeflows())
    found = tf_dist("install", "--kubeconfig", config)
    assert found.returncode == 0
    definitions = [one for one in yaml.safe_load_all(found.stdout) if one["kind"] == "CustomResourceDefinition"]
    assert [one["metadata"]["name"] for one in definitions] == ["queues.tf-dist.dev"]
    assert "a definition tfjobs.kubeflow.org that is not tf-dist's" in found.stderr
    assert "it serves v1, not v1alpha1" in found.stderr
    assert "it drops status.tfDist" in found.stderr
    assert "it drops spec.runPolicy.schedulingPolicy.queue" in found.stderr
    assert "spec.runPolicy.suspend" not in found.stderr
    assert "kubectl get shows no Ready, Reason" in found.stderr
    assert "scale" not in found.stderr.replace("scale it to 0", "")
    assert "kubectl get deployments -A" in found.stderr


def test_check_only_says_so(tf_dist: Program, config: str, memory: MemoryCluster) -> None:
    memory.create(CRDS, None, kubeflows())
    found = tf_dist("install", "--check", "--kubeconfig", config)
    assert (found.returncode, found.stderr) == (1, "")
    assert "it drops status.tfDist" in found.stdout
    assert "kind:" not in found.stdout


def test_a_definition_with_everything_but_our_label(tf_dist: Program, config: str, memory: MemoryCluster) -> None:
    same = copy.deepcopy(tfjobs())
    del same["metadata"]["labels"]
    memory.create(CRDS, None, same)
    found = tf_dist("install", "--check", "--kubeconfig", config)
    assert found.returncode == 1
    assert "is not tf-dist's" in found.stdout
    assert "drops" not in found.stdout


def test_volcanos_jobs_are_refused_where_volcano_is(tf_dist: Program, config: str, memory: MemoryCluster) -> None:
    theirs = volcano_jobs()
    del theirs["metadata"]["labels"]
    memory.create(CRDS, None, theirs)
    found = tf_dist("install", "--volcano-jobs", "--kubeconfig", config)
    assert (found.returncode, found.stdout) == (2, "")
    assert "would drive the same jobs" in found.stderr
    assert tf_dist("install", "--kubeconfig", config).returncode == 0


def test_volcanos_definition_of_commands_is_used_where_it_was_left(
    tf_dist: Program, config: str, memory: MemoryCluster
) -> None:
    """It may be all that is left of Volcano, and what ``vcctl`` makes is the same."""
    named = "commands.bus.volcano.sh"
    assert named in tf_dist("install", "--volcano-jobs", "--crds-only", "--kubeconfig", config).stdout
    theirs = volcano_commands()
    del theirs["metadata"]["labels"]
    memory.create(CRDS, None, theirs)
    found = tf_dist("install", "--volcano-jobs", "--crds-only", "--kubeconfig", config)
    assert found.returncode == 0
    assert named not in found.stdout
    assert "jobs.batch.volcano.sh" in found.stdout


def test_disruption_budgets_need_a_server_that_has_them(tf_dist: Program, tmp_path: Path) -> None:
    """Kubernetes before 1.21; without the option tf-dist needs nothing of it but its own budget."""
    kinds = [kind for kind in BUILTIN_KINDS if kind.resource != POD_DISRUPTION_BUDGETS]
    with MemoryCluster(kinds=kinds) as old, ApiServer(old) as server:
        file = tmp_path / "old"
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(make_kubeconfig(server.app.url, server.token)))
        found = tf_dist("install", "--disruption-budgets", "--kubeconfig", str(file))
        assert (found.returncode, found.stdout) == (2, "")
        assert "does not serve policy/v1" in found.stderr
        assert "policy/v1beta1" in tf_dist("install", "--kubeconfig", str(file)).stdout


def test_a_cluster_that_does_not_answer_is_an_error(tf_dist: Program, config: str) -> None:
    """Not "nothing is there": the output could then replace what belongs to others."""
    document = yaml.safe_load(Path(config).read_text())
    document["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (tf_dist.folder / "dead").write_text(yaml.safe_dump(document))
    found = tf_dist("install", "--kubeconfig", "dead")
    assert (found.returncode, found.stdout) == (75, "")
    assert "--offline" in found.stderr


def test_no_cluster_at_all(tf_dist: Program) -> None:
    nothing = {"KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": "", "HOME": str(tf_dist.folder)}
    found = tf_dist("install", **nothing)
    assert found.returncode == 0
    assert "Deployment" in kinds(found.stdout)
    assert "no cluster was looked at" in found.stderr
    found = tf_dist("install", "--check", **nothing)
    assert (found.returncode, found.stdout) == (75, "")


def test_a_reader_that_leaves_is_no_error(tf_dist: Program) -> None:
    process = tf_dist.start_anew("install", "--offline", "--image=mine:7")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=120) == 141


@pytest.mark.parametrize(
    ("named", "key"), [("tf-job-operator-config", "controller_config_file.yaml"), ("mine/own.yaml", "own.yaml")]
)
def test_the_controller_reads_accelerators_from_a_config_map(tf_dist: Program, named: str, key: str) -> None:
    found = tf_dist("install", "--offline", "--controller-config", named)
    (deployment,) = (one for one in yaml.safe_load_all(found.stdout) if one["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {"name": "config", "configMap": {"name": named.partition("/")[0]}} in pod["volumes"]
    assert f"--controller-config-file=/etc/config/{key}" in container["args"]
    assert {"name": "config", "mountPath": "/etc/config", "readOnly": True} in container["volumeMounts"]


def test_a_configuration_needs_a_controller(tf_dist: Program) -> None:
    found = tf_dist("install", "--offline", "--no-controller", "--controller-config", "x")
    assert (found.returncode, "--controller-config" in found.stderr) == (2, True)


@pytest.mark.parametrize(
    ("phase", "annotations", "kept"),
    [
        ("Running", {"tf-dist.dev/gang-scheduler": "kueue"}, True),
        ("Completed", {"tf-dist.dev/gang-scheduler": "kueue"}, False),
        ("Running", {}, False),
    ],
)
def test_installing_anew_takes_no_right_away_that_a_job_needs(
    tf_dist: Program, config: str, memory: MemoryCluster, phase: str, annotations: dict[str, str], kept: bool
) -> None:
    document = tfjob("mnist")
    document["metadata"]["annotations"] = annotations
    created = memory.create(TFJOBS, "default", document)
    memory.replace(
        TFJOBS, "default", "mnist", {**created, "status": {"tfDist": {"phase": phase}}}, subresource="status"
    )
    found = tf_dist("install", "--kubeconfig", config, "--image=mine:7", "--drivers", "default")
    assert found.returncode == 0, found.stderr
    assert ("as with --gang-scheduler kueue (tfjob/mnist in default)" in found.stderr) is kept
    roles = [one for one in yaml.safe_load_all(found.stdout) if one["kind"] in ("Role", "ClusterRole")]
    granted = {one["metadata"]["name"] for one in roles for rule in one["rules"] if "workloads" in rule["resources"]}
    assert granted == ({"tf-dist-controller", "tf-dist-driver"} if kept else set())


def test_installing_anew_keeps_the_rights_on_volcanos_jobs_while_there_are_some(
    tf_dist: Program, config: str, memory: MemoryCluster
) -> None:
    memory.create(CRDS, None, volcano_jobs())
    task = {"name": "worker", "replicas": 1, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
    memory.create(VOLCANO_JOBS, "default", {"metadata": {"name": "v"}, "spec": {"tasks": [task]}})
    found = tf_dist("install", "--kubeconfig", config, "--image=mine:7")
    assert "as with --volcano-jobs (vcjob/v in default)" in found.stderr
    assert found.stdout == tf_dist("install", "--offline", "--image=mine:7", "--volcano-jobs").stdout


CLOSED = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "DoesNotExist"}]}


@pytest.mark.parametrize(
    ("more", "warns"),
    [
        ([], True),
        ([queue("default", "9")], False),
        ([queue("shared", "9", default=True)], False),
        ([{**queue("default", "9"), "spec": {"namespaceSelector": CLOSED}}], False),
        ([{**queue("default", "9"), "spec": {"weight": 2}}], True),
        ([{**queue("default", "9"), "spec": {"parent": "research"}}], False),
    ],
)
def test_check_warns_of_default_queue_without_quotas_beside_queues_with_some(
    tf_dist: Program, config: str, memory: MemoryCluster, more: list[dict[str, Any]], warns: bool
) -> None:
    found = tf_dist("install", "--check", "--kubeconfig", config)
    assert "no quotas" not in found.stdout
    for one in (queue("research", "8"), *more):
        memory.create(QUEUES, None, one)
    found = tf_dist("install", "--check", "--kubeconfig", config)
    said = "the queue default has no quotas, beside queues that have some (research)" in found.stdout
    assert (said, found.returncode) == (warns, int(warns))
