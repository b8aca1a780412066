"""``tf-dist install``: the printed manifests, warnings about the cluster, and rejected options."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Program
from tests.controller.harness import queue, tfjob
from tests.deploy.manifests import by_place, container, documents, of_kind, rendered, shipped
from tf_dist.cluster.api import QUEUES, TFJOBS, VOLCANO_JOBS
from tf_dist.cluster.apiserver.server import make_kubeconfig
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tools.definitions.crds import tfjobs, volcano_jobs

Object = dict[str, Any]


def kubeflows() -> Object:
    """A definition like Kubeflow's training operator: it serves only v1, and the schema drops unknown fields."""
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


def test_prints_shipped_manifests(tf_dist: Program) -> None:
    image = container(shipped())["image"]
    found = tf_dist("install", "--offline", f"--image={image}", KUBECONFIG="/nowhere/at/all")
    assert (found.returncode, found.stderr) == (0, "")
    assert documents(found.stdout) == shipped()


@pytest.mark.parametrize("namespaced", [False, True])
def test_output_matches_helm_with_same_values(tf_dist: Program, namespaced: bool) -> None:
    options = ["--image=mine/tf-dist:v7", "--replicas=3", "--namespace=ml", *(["--namespaced"] if namespaced else [])]
    values = ["image.repository=mine/tf-dist", "image.tag=v7", "replicas=3"]
    values += ["namespaces={ml}"] if namespaced else ["createNamespace=true", "systemNamespace=ml"]
    found = tf_dist("install", "--offline", *options)
    assert found.returncode == 0
    assert by_place(documents(found.stdout)) == by_place(rendered(*values, namespace="ml"))
    assert ("TF_DIST_SYSTEM_NAMESPACE=ml" in found.stderr) is not namespaced


def test_does_not_print_kube_system_namespace(tf_dist: Program) -> None:
    found = tf_dist("install", "--offline", "--image=mine:7", "--namespace=kube-system")
    assert not of_kind(documents(found.stdout), "Namespace")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--namespace", "Not_A_Name"), "--namespace: 'Not_A_Name' is not a namespace"),
        (("--namespaced",), "--namespaced: needs the namespace whose jobs it runs"),
        (("--replicas", "0"), "--replicas"),
        (("--image", "a b"), "--image: 'a b' is not an image"),
        (("--image", "a@sha256:12"), "--image"),
        (("--image", ""), "--image: '' is not an image"),
        (("--offline", "--check"), "--check"),
    ],
)
def test_rejects_invalid_options(tf_dist: Program, arguments: tuple[str, ...], told: str) -> None:
    found = tf_dist("install", "--offline", *arguments)
    assert (found.returncode, found.stdout) == (2, "")
    assert told in found.stderr


def test_empty_cluster_gives_no_warnings(tf_dist: Program, config: str) -> None:
    found = tf_dist("install", "--check", "--kubeconfig", config)
    assert (found.returncode, found.stdout) == (0, "nothing prevents the installation\n")
    found = tf_dist("install", "--kubeconfig", config, "--image=mine:7")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == tf_dist("install", "--offline", "--image=mine:7").stdout


@pytest.mark.parametrize(("arguments", "warned"), [((), True), (("--image=mine:7",), False)])
def test_warns_about_image_without_registry(tf_dist: Program, arguments: tuple[str, ...], warned: bool) -> None:
    found = tf_dist("install", "--offline", *arguments)
    assert found.returncode == 0
    assert ("is not in a registry" in found.stderr and "make images IMAGE=" in found.stderr) is warned


@pytest.mark.parametrize(("minor", "warned"), [("20", True), ("28+", True), ("29", False), ("35", False)])
def test_warns_about_unsupported_kubernetes_release(tf_dist: Program, tmp_path: Path, minor: str, warned: bool) -> None:
    with answering("/version", {"major": "1", "minor": minor}) as url:
        file = tmp_path / "old"
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(make_kubeconfig(url, "token")))
        printed = tf_dist("install", "--kubeconfig", str(file), "--image=mine:7")
        checked = tf_dist("install", "--kubeconfig", str(file), "--check")
    told = f"the cluster runs Kubernetes 1.{minor.strip('+')}"
    assert (told in printed.stderr, told in checked.stdout) == (warned, warned)
    assert (printed.returncode, checked.returncode) == (0, int(warned))


@contextmanager
def answering(path: str, body: Object) -> Iterator[str]:
    """The URL of a server that returns ``body`` for ``path``, and 404 for all other requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == path
            data = json.dumps(body if found else {"kind": "Status", "reason": "NotFound", "code": 404}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_own_definition_is_updated(tf_dist: Program, config: str, memory: MemoryCluster) -> None:
    older = tfjobs()
    older["spec"]["versions"][0]["additionalPrinterColumns"] = []
    memory.create(CRDS, None, older)
    found = tf_dist("install", "--kubeconfig", config, "--image=mine:7")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == tf_dist("install", "--offline", "--image=mine:7").stdout


def test_kubeflow_definition_is_kept_and_differences_are_reported(
    tf_dist: Program, config: str, memory: MemoryCluster
) -> None:
    memory.create(CRDS, None, kubeflows())
    found = tf_dist("install", "--kubeconfig", config)
    assert found.returncode == 0
    definitions = of_kind(documents(found.stdout), "CustomResourceDefinition")
    assert [one["metadata"]["name"] for one in definitions] == ["queues.tf-dist.dev"]
    assert "a definition tfjobs.kubeflow.org that is not tf-dist's" in found.stderr
    assert "it serves v1, not v1alpha1" in found.stderr
    assert "it drops status.tfDist" in found.stderr
    assert "it drops spec.runPolicy.schedulingPolicy.queue" in found.stderr
    assert "spec.runPolicy.suspend" not in found.stderr
    assert "kubectl get shows no Ready, Reason" in found.stderr
    assert "scale" not in found.stderr.replace("scale it to 0", "")
    assert "kubectl get deployments -A" in found.stderr


def test_check_prints_only_problems(tf_dist: Program, config: str, memory: MemoryCluster) -> None:
    memory.create(CRDS, None, kubeflows())
    found = tf_dist("install", "--check", "--kubeconfig", config)
    assert (found.returncode, found.stderr) == (1, "")
    assert "it drops status.tfDist" in found.stdout
    assert "kind:" not in found.stdout


def test_equal_definition_without_label_is_reported(tf_dist: Program, config: str, memory: MemoryCluster) -> None:
    same = copy.deepcopy(tfjobs())
    del same["metadata"]["labels"]
    memory.create(CRDS, None, same)
    found = tf_dist("install", "--check", "--kubeconfig", config)
    assert found.returncode == 1
    assert "is not tf-dist's" in found.stdout
    assert "drops" not in found.stdout


def test_unavailable_cluster_is_error(tf_dist: Program, config: str) -> None:
    """An unavailable cluster must not count as empty, because the output could then replace objects of others."""
    document = yaml.safe_load(Path(config).read_text())
    document["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (tf_dist.folder / "dead").write_text(yaml.safe_dump(document))
    found = tf_dist("install", "--kubeconfig", "dead")
    assert (found.returncode, found.stdout) == (75, "")
    assert "--offline" in found.stderr


def test_prints_manifests_without_cluster(tf_dist: Program) -> None:
    nothing = {"KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": "", "HOME": str(tf_dist.folder)}
    found = tf_dist("install", **nothing)
    assert found.returncode == 0
    assert documents(found.stdout) == shipped()
    assert "no cluster was checked" in found.stderr
    found = tf_dist("install", "--check", **nothing)
    assert (found.returncode, found.stdout) == (75, "")


def test_closed_pipe_exits_with_141(tf_dist: Program) -> None:
    process = tf_dist.start_anew("install", "--offline", "--image=mine:7")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=120) == 141


@pytest.mark.parametrize(
    ("phase", "annotations", "warned"),
    [
        ("Running", {"tf-dist.dev/gang-scheduler": "kueue"}, True),
        ("Completed", {"tf-dist.dev/gang-scheduler": "kueue"}, False),
        ("Running", {}, False),
    ],
)
def test_warns_about_jobs_that_need_chart_value(
    tf_dist: Program, config: str, memory: MemoryCluster, phase: str, annotations: dict[str, str], warned: bool
) -> None:
    document = tfjob("mnist")
    document["metadata"]["annotations"] = annotations
    created = memory.create(TFJOBS, "default", document)
    memory.replace(
        TFJOBS, "default", "mnist", {**created, "status": {"tfDist": {"phase": phase}}}, subresource="status"
    )
    found = tf_dist("install", "--kubeconfig", config, "--image=mine:7")
    assert found.returncode == 0, found.stderr
    assert ("tfjob/mnist in default needs rights" in found.stderr) is warned
    assert ("--set 'gangSchedulers={kueue}'" in found.stderr) is warned


def test_warns_about_existing_volcano_jobs(tf_dist: Program, config: str, memory: MemoryCluster) -> None:
    memory.create(CRDS, None, volcano_jobs())
    task = {"name": "worker", "replicas": 1, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
    memory.create(VOLCANO_JOBS, "default", {"metadata": {"name": "v"}, "spec": {"tasks": [task]}})
    found = tf_dist("install", "--kubeconfig", config, "--image=mine:7")
    assert "vcjob/v in default needs rights" in found.stderr
    assert "--set 'volcanoJobs=true'" in found.stderr
    assert tf_dist("install", "--check", "--kubeconfig", config).returncode == 0


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
def test_check_warns_about_default_queue_without_quotas(
    tf_dist: Program, config: str, memory: MemoryCluster, more: list[dict[str, Any]], warns: bool
) -> None:
    found = tf_dist("install", "--check", "--kubeconfig", config)
    assert "no quotas" not in found.stdout
    for one in (queue("research", "8"), *more):
        memory.create(QUEUES, None, one)
    found = tf_dist("install", "--check", "--kubeconfig", config)
    said = "the queue default has no quotas, although other queues have some (research)" in found.stdout
    assert (said, found.returncode) == (warns, int(warns))
