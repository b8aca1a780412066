"""What is generated: the files in ``deploy/`` are the generator's own, and each option does what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.support import names
from tests.deploy.rbac import Call, Subject, allowed
from tests.waiting import until
from tf_dist.cli.commands.install import folder_files
from tf_dist.cli.install.crds import queues, tfjobs, volcano_commands, volcano_jobs
from tf_dist.cli.install.install_options import DisruptionBudgetVersion, InstallOptions
from tf_dist.cli.install.rbac import ARGO_ACCOUNT
from tf_dist.cli.install.workload import kustomize_tree, manifest_files
from tf_dist.cluster.api import LEASES, NAMESPACES, NODES, Resource
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.controller.settings import ControllerSettings
from tf_dist.controller.leases.lease import controller_lease_name, system_namespace
from tf_dist.controller.manager import Manager, ManagerSettings
from tf_dist.errors import AlreadyExists, Forbidden

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def objects(settings: InstallOptions) -> list[dict[str, Any]]:
    return [one for part in manifest_files(settings).values() for one in part]


def found(settings: InstallOptions, kind: str) -> list[dict[str, Any]]:
    return [one for one in objects(settings) if one["kind"] == kind]


def pod(settings: InstallOptions) -> dict[str, Any]:
    (deployment,) = found(settings, "Deployment")
    return deployment["spec"]["template"]["spec"]


def test_the_folder_is_what_the_generator_writes() -> None:
    """After a change: tf-dist install --offline -o deploy"""
    written = {str(path.relative_to(DEPLOY)): path.read_text() for path in ours("*.yaml", "*.json")}
    assert written == folder_files(InstallOptions())


def ours(*patterns: str) -> set[Path]:
    """Files of the folder, without those of the Helm chart."""
    found = {path for pattern in patterns for path in DEPLOY.rglob(pattern)}
    return {path for path in found if not path.is_relative_to(DEPLOY / "chart")}


def test_every_file_is_named_in_its_kustomization() -> None:
    for place in ours("kustomization.yaml"):
        named = {place.parent / name for name in yaml.safe_load(place.read_text())["resources"]}
        assert named <= ours("*.yaml")
    listed = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"]
    others = {"kustomization.yaml", "driver/kustomization.yaml", "driver/driver.yaml"}
    assert {*listed, *others} == {str(path.relative_to(DEPLOY)) for path in ours("*.yaml")}


EVERYTHING = InstallOptions(service_monitor=True, volcano_jobs=True, drivers=("research",))


def test_everything_is_known_as_tf_dists() -> None:
    labels = [one["metadata"]["labels"]["app.kubernetes.io/part-of"] for one in objects(EVERYTHING)]
    assert set(labels) == {"tf-dist"}


def test_objects_are_written_before_what_refers_to_them() -> None:
    kinds = [one["kind"] for one in objects(InstallOptions())]
    assert kinds.index("CustomResourceDefinition") == 0
    assert kinds.index("Namespace") < kinds.index("ServiceAccount") < kinds.index("Deployment")


def test_no_object_is_written_twice() -> None:
    settings = InstallOptions(
        namespaces=("research", "tf-dist-system"), drivers=("research", "vision"), volcano_jobs=True
    )
    places = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects(settings)]
    assert len(places) == len(set(places))


def test_roles_are_bound_to_accounts_that_exist() -> None:
    for settings in (EVERYTHING, SEEING, InstallOptions(namespaces=("a", "b"), into="system")):
        accounts = {
            (one["metadata"]["namespace"], one["metadata"]["name"]) for one in found(settings, "ServiceAccount")
        }
        roles = {
            (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"])
            for kind in ("Role", "ClusterRole")
            for one in found(settings, kind)
        }
        for kind in ("RoleBinding", "ClusterRoleBinding"):
            for one in found(settings, kind):
                # Accounts of Argo's steps come with their workflows (tf-dist workflows export).
                subjects = [subject for subject in one["subjects"] if subject["name"] != ARGO_ACCOUNT]
                if [subject["kind"] for subject in subjects] == ["Group"]:
                    assert one["metadata"]["name"] == "tf-dist-arbiter-seen"
                    continue
                assert {(subject["namespace"], subject["name"]) for subject in subjects} <= accounts
                assert (one["roleRef"]["kind"], one["metadata"].get("namespace"), one["roleRef"]["name"]) in roles


def test_no_role_grants_by_wildcard_or_lets_anyone_raise_their_rights() -> None:
    for kind in ("Role", "ClusterRole"):
        roles = [*found(EVERYTHING, kind), *found(SEEING, kind)]
        for rule in (rule for role in roles for rule in role["rules"]):
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"bind", "escalate", "impersonate"} & set(rule["verbs"])
            assert "pods/exec" not in rule["resources"]


def test_a_controller_of_some_namespaces_has_rights_in_these_alone() -> None:
    settings = InstallOptions(namespaces=("research", "vision"))
    assert not found(settings, "ClusterRoleBinding")
    bound = {one["metadata"]["namespace"] for one in found(settings, "RoleBinding")}
    assert bound == {"research", "vision", "tf-dist-system"}
    assert pod(settings)["containers"][0]["args"][-2:] == ["--namespace=research", "--namespace=vision"]


def test_without_a_controller_nothing_runs_in_the_cluster() -> None:
    kinds = {one["kind"] for one in objects(InstallOptions(controller=False, drivers=("research",)))}
    roles = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    meeting_place = {"Namespace", "Lease"}
    assert kinds == {"CustomResourceDefinition", "ServiceAccount", *meeting_place, *roles}


def test_a_driver_without_a_controller_reaches_beyond_its_namespace_only_to_see_queues() -> None:
    settings = InstallOptions(controller=False, drivers=("research", "vision"))
    bindings = found(settings, "ClusterRoleBinding")
    assert [one["subjects"][0]["namespace"] for one in bindings] == ["research", "vision"]
    (role,) = (one for one in found(settings, "ClusterRole") if one["metadata"]["name"] == "tf-dist-queues")
    assert {one["roleRef"]["name"] for one in bindings} == {"tf-dist-queues"}
    assert role["rules"] == [
        {"apiGroups": ["tf-dist.dev"], "resources": ["queues"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["node.k8s.io"], "resources": ["runtimeclasses"], "verbs": ["get", "list", "watch"]},
    ]


SEEING = InstallOptions(controller=False, see_nodes=True, drivers=("research", "vision"))


@pytest.mark.parametrize(
    ("call", "may"),
    [
        ("list nodes", True),
        ("watch pods", True),
        ("list tfjobs.kubeflow.org", True),
        ("list queues.tf-dist.dev", True),
        ("watch priorityclasses.scheduling.k8s.io", True),
        ("update leases.coordination.k8s.io tf-dist-system/tf-dist-arbiter", True),
        ("update leases.coordination.k8s.io tf-dist-system/tf-dist-admissions", True),
        ("update leases.coordination.k8s.io tf-dist-system/tf-dist-controller", False),
        ("update tfjobs/status.kubeflow.org vision/mnist", True),
        ("patch tfjobs.kubeflow.org vision/mnist", True),
        ("update tfjobs/status.kubeflow.org other/mnist", False),
        ("delete tfjobs.kubeflow.org vision/mnist", False),
        ("create pods vision/", False),
        ("patch nodes a", False),
        ("get secrets vision/a", False),
    ],
)
def test_drivers_that_see_nodes_read_the_cluster_and_write_verdicts_where_other_drivers_are(
    call: str, may: bool
) -> None:
    assert allowed(objects(SEEING), Subject("tf-dist-driver", "research"), Call.parse(call)) is may
    if may and "vision/" in call:
        alone = InstallOptions(controller=False, see_nodes=True, drivers=("research",))
        assert not allowed(objects(alone), Subject("tf-dist-driver", "research"), Call.parse(call))


def test_nodes_are_seen_only_if_asked_for() -> None:
    assert "tf-dist-see-nodes" not in json.dumps(objects(InstallOptions(controller=False, drivers=("research",))))
    alone = InstallOptions(controller=False, see_nodes=True)
    assert [one["metadata"]["name"] for one in found(alone, "ClusterRole")][-1] == "tf-dist-see-nodes"


@pytest.mark.parametrize("volcano", [False, True])
def test_volcanos_queues_may_be_seen_where_its_jobs_are_driven(volcano: bool) -> None:
    roles = found(InstallOptions(volcano_jobs=volcano), "ClusterRole")
    seeing = {
        one["metadata"]["name"]: rule["verbs"]
        for one in roles
        for rule in one["rules"]
        if rule["apiGroups"] == ["scheduling.volcano.sh"] and rule["resources"] == ["queues"]
    }
    read = ["get", "list", "watch"]
    found_then = {"tf-dist-controller": ["list", "watch"], "tf-dist-queues": read, "tf-dist-view": read}
    assert seeing == (found_then if volcano else {})


def test_definitions_alone() -> None:
    assert {one["kind"] for one in objects(InstallOptions(only_definitions=True))} == {"CustomResourceDefinition"}
    assert set(kustomize_tree(InstallOptions(only_definitions=True))) == {
        "crds/tfjobs.kubeflow.org.yaml",
        "crds/queues.tf-dist.dev.yaml",
        "kustomization.yaml",
    }


def test_somebody_elses_definition_is_left_out() -> None:
    settings = InstallOptions(left_out=frozenset({"tfjobs.kubeflow.org"}))
    assert [one["metadata"]["name"] for one in found(settings, "CustomResourceDefinition")] == ["queues.tf-dist.dev"]


def test_volcanos_jobs_are_driven_only_if_asked_for() -> None:
    assert "batch.volcano.sh" not in json.dumps(objects(InstallOptions()))
    assert "--volcano-jobs" not in pod(InstallOptions())["containers"][0]["args"]
    asked = InstallOptions(volcano_jobs=True)
    theirs = {"jobs.batch.volcano.sh", "commands.bus.volcano.sh"}
    assert theirs <= {one["metadata"]["name"] for one in found(asked, "CustomResourceDefinition")}
    assert "--volcano-jobs" in pod(asked)["containers"][0]["args"]


def test_disruption_budgets_of_gangs_only_if_asked_for() -> None:
    """No drain of their nodes would end."""
    assert "poddisruptionbudgets" not in json.dumps(found(InstallOptions(), "ClusterRole"))
    asked = InstallOptions(disruption_budgets=True)
    assert "--disruption-budgets" in pod(asked)["containers"][0]["args"]
    rules = {
        role["metadata"]["name"]: rule["verbs"]
        for role in found(asked, "ClusterRole")
        for rule in role["rules"]
        if rule["resources"] == ["poddisruptionbudgets"]
    }
    assert rules == {"tf-dist-controller": ["get", "list", "watch", "create", "delete", "patch"]}


def test_a_service_monitor_only_if_asked_for() -> None:
    assert not found(InstallOptions(), "ServiceMonitor")
    (monitor,) = found(InstallOptions(service_monitor=True), "ServiceMonitor")
    (service,) = found(InstallOptions(), "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {one["port"] for one in monitor["spec"]["endpoints"]} <= {one["name"] for one in service["spec"]["ports"]}


@pytest.mark.parametrize(
    ("into", "made", "priority"),
    [("kube-system", set(), "system-cluster-critical"), ("a", {"a"}, None), ("tf-dist-system", set(), None)],
)
def test_where_the_controller_runs(into: str, made: set[str], priority: str | None) -> None:
    settings = InstallOptions(into=into)
    assert {one["metadata"]["name"] for one in found(settings, "Namespace")} == {"tf-dist-system"} | made
    assert pod(settings).get("priorityClassName") == priority
    (deployment,) = found(settings, "Deployment")
    assert deployment["metadata"]["namespace"] == into


@pytest.mark.parametrize(
    "settings", [InstallOptions(), InstallOptions(namespaces=("a", "b"), into="home", system_namespace="kube-system")]
)
def test_the_leases_that_drivers_take_turns_in_are_installed(settings: InstallOptions) -> None:
    """Under the very names that the controller asks for: no role lets it create any."""
    options = ManagerSettings(
        namespaces=settings.namespaces,
        lease_namespace=settings.into,
        driver=ControllerSettings(
            volcano_jobs=False,
            system_namespace=system_namespace(
                {one["name"]: one["value"] for one in pod(settings)["containers"][0].get("env", ())}
            ),
        ),
        metrics_port=0,
        renew_every=0.05,
    )
    with MemoryCluster() as memory:
        for one in found(settings, "Namespace"):
            with suppress(AlreadyExists):
                memory.create(NAMESPACES, None, one)
        for name in settings.namespaces:
            memory.create(NAMESPACES, None, {"metadata": {"name": name}})
        for one in found(settings, "Lease"):
            memory.create(LEASES, one["metadata"]["namespace"], one)
        installed = names(memory, LEASES, None)
        cluster: Any = WithoutNodes(memory) if settings.namespaces else memory
        with Manager(cluster, options) as controller:
            until(lambda: not controller.unready() and bool(held(memory, settings)), 60)
            until(lambda: all(driver._admission_runner.ours(driver._right()) for _, driver in controller._pairs), 60)
        assert names(memory, LEASES, None) == installed


class WithoutNodes:
    """A cluster as one sees it who has rights in single namespaces."""

    def __init__(self, inner: MemoryCluster) -> None:
        self._inner = inner

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._inner, verb)

    def list(self, resource: Resource, *args: Any, **kwargs: Any) -> Any:
        if resource is NODES:
            raise Forbidden("may not list nodes")
        return self._inner.list(resource, *args, **kwargs)


def held(memory: MemoryCluster, settings: InstallOptions) -> str:
    """Who drives."""
    stored = memory.get(LEASES, settings.into, controller_lease_name(settings.namespaces))
    return str((stored.get("spec") or {}).get("holderIdentity", ""))


def test_the_pod_meets_the_restricted_standard_and_what_it_needs_is_there() -> None:
    spec = pod(InstallOptions(image="mine:2", replicas=3))
    (container,) = spec["containers"]
    assert container["image"] == "mine:2"
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (port,) = container["ports"]
    assert f"--metrics-port={port['containerPort']}" in container["args"]
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert [probe["path"] for probe in probes.values()] == ["/healthz", "/healthz", "/readyz"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in spec["volumes"]}


def test_the_budget_lets_a_single_replica_be_drained() -> None:
    (budget,) = found(InstallOptions(replicas=1, budgets=DisruptionBudgetVersion.V1BETA1), "PodDisruptionBudget")
    assert budget["apiVersion"] == "policy/v1beta1"
    assert budget["spec"]["maxUnavailable"] == 1
    (deployment,) = found(InstallOptions(replicas=1), "Deployment")
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]


def nodes_of(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below one, with its place."""
    yield path, schema
    for key, below in (schema.get("properties") or {}).items():
        yield from nodes_of(below, f"{path}.{key}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes_of(schema[key], f"{path}[]")


@pytest.mark.parametrize(
    "definition",
    [tfjobs(), queues(), volcano_jobs(), volcano_commands()],
    ids=lambda one: one["metadata"]["name"],
)
def test_no_definition_drops_what_a_user_wrote(definition: dict[str, Any]) -> None:
    for version in definition["spec"]["versions"]:
        for path, schema in nodes_of(version["schema"]["openAPIV3Schema"]):
            if schema.get("type") == "object" and path != ".metadata":
                keeps = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
                assert keeps, f"{definition['metadata']['name']}{path} would lose what it does not know"


def test_both_versions_take_both_layouts() -> None:
    """Without conversion an object is checked against whichever version it is written at."""
    schemas = [version["schema"] for version in tfjobs()["spec"]["versions"]]
    assert schemas[0] == schemas[1]


def strings(value: object) -> Iterable[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from (str(key), *strings(inner))
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    else:
        yield str(value)


def test_no_image_names_a_registry() -> None:
    images = [container["image"] for container in pod(InstallOptions())["containers"]]
    assert all(re.fullmatch(r"[a-z-]+:[\w.]+", image) for image in images)
    assert not [text for text in strings(list(objects(EVERYTHING))) if "://" in text]
