"""The manifests in ``deploy`` are up to date, and their contents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.manifests import CHART, Manifest, by_place, container, of_kind, rendered, shipped, template
from tests.deploy.rbac import Call, Subject, allowed
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS
from tf_dist.cluster.lease import LeaseRef, leader_lease, system_namespace
from tf_dist.core.dialects.queue_resource import QuotaShape, SpecShape
from tools.definitions.crds import queues, templates, tfjobs, volcano_commands, volcano_jobs

NAMESPACED = "tf-dist-namespaced.yaml"


def test_definitions_in_chart_are_up_to_date() -> None:
    """Run ``make manifests`` after a change."""
    written = {path.name: path.read_text() for path in (CHART / "templates/crds").iterdir()}
    assert written == templates()


def test_shipped_manifests_equal_rendered_chart() -> None:
    """Run ``make manifests`` after a change."""
    namespaced = template("namespaces={my-namespace},crds.enabled=false", namespace="my-namespace")
    assert template("createNamespace=true") == (CHART.parent / "tf-dist.yaml").read_text()
    assert namespaced == (CHART.parent / NAMESPACED).read_text()


@pytest.mark.parametrize("file", ["tf-dist.yaml", NAMESPACED])
def test_objects_are_unique_and_have_label_of_tf_dist(file: str) -> None:
    found = by_place(shipped(file))
    assert {one["metadata"]["labels"]["app.kubernetes.io/part-of"] for one in found.values()} == {"tf-dist"}


def test_namespace_precedes_its_objects() -> None:
    kinds = [one["kind"] for one in shipped()]
    assert kinds[0] == "Namespace"
    assert kinds.index("ServiceAccount") < kinds.index("Deployment")


EVERYTHING = ("volcanoJobs=true", "gangSchedulers={volcano,coscheduling,kueue,workload}", "disruptionBudgets=true")
SEEING = ("controller=false", "seeNodes=true", "drivers={research,vision}")
VARIANTS: dict[str, tuple[str, ...]] = {
    "whole cluster": (),
    "everything": (*EVERYTHING, "drivers={research}"),
    "namespaces": (*EVERYTHING, "namespaces={a,b}"),
    "drivers": (*EVERYTHING, *SEEING),
}


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_role_bindings_refer_to_existing_roles_and_accounts(values: tuple[str, ...]) -> None:
    objects = rendered(*values, namespace="home")
    found = by_place(objects)
    for one in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        kind, name = one["roleRef"]["kind"], one["roleRef"]["name"]
        assert (kind, one["metadata"].get("namespace", "") if kind == "Role" else "", name) in found
        for subject in one["subjects"]:
            if subject["kind"] == "ServiceAccount" and subject["name"] != "tf-dist-argo":  # exported with workflows
                assert ("ServiceAccount", subject["namespace"], subject["name"]) in found
            elif subject["kind"] == "Group":
                assert name == "tf-dist-lease-reader"


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_no_role_has_wildcards_or_can_escalate_privileges(values: tuple[str, ...]) -> None:
    for rule in (rule for role in of_kind(rendered(*values), "Role", "ClusterRole") for rule in role["rules"]):
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert not {"bind", "escalate", "impersonate"} & set(rule["verbs"])
        assert "pods/exec" not in rule["resources"]


def test_controller_of_namespaces_has_rights_only_there() -> None:
    objects = rendered("namespaces={research,vision}", namespace="home")
    assert not of_kind(objects, "ClusterRoleBinding")
    bound = {one["metadata"]["namespace"] for one in of_kind(objects, "RoleBinding")}
    assert bound == {"research", "vision"}
    assert container(objects)["args"][-2:] == ["--namespace=research", "--namespace=vision"]


def test_release_without_user_roles_and_definitions_is_namespaced() -> None:
    objects = rendered("namespaces={home}", "crds.enabled=false", "userRoles=false", namespace="home")
    assert {one["metadata"].get("namespace") for one in objects} == {"home"}


def test_release_without_controller_has_no_workloads() -> None:
    kinds = {one["kind"] for one in rendered("controller=false", "drivers={research}", namespace="home")}
    roles = {"ClusterRole", "ClusterRoleBinding", "RoleBinding"}
    assert kinds == {"CustomResourceDefinition", "ServiceAccount", *roles}


@pytest.mark.parametrize(
    ("call", "may"),
    [
        ("list nodes", True),
        ("watch pods", True),
        ("list tfjobs.kubeflow.org", True),
        ("list queues.tf-dist.dev", True),
        ("watch priorityclasses.scheduling.k8s.io", True),
        ("create leases.coordination.k8s.io research/", True),
        ("update leases.coordination.k8s.io research/tf-dist-controller", True),
        ("update leases.coordination.k8s.io tf-dist-system/tf-dist-controller", False),
        ("update leases.coordination.k8s.io vision/tf-dist-controller", False),
        ("update tfjobs/status.kubeflow.org vision/mnist", False),
        ("patch tfjobs.kubeflow.org vision/mnist", False),
        ("create pods vision/", False),
        ("patch nodes a", False),
        ("get secrets vision/a", False),
    ],
)
def test_programs_with_see_nodes_read_cluster_but_write_only_own_namespace(call: str, may: bool) -> None:
    assert allowed(rendered(*SEEING), Subject("tf-dist-driver", "research"), Call.parse(call)) is may


def test_chart_grants_volcano_rights_only_with_volcano_jobs() -> None:
    rules = [rule for role in of_kind(rendered("drivers={a}"), "Role", "ClusterRole") for rule in role["rules"]]
    assert not [rule for rule in rules if any("volcano" in group for group in rule["apiGroups"])]
    asked = rendered("volcanoJobs=true")
    definitions = {one["metadata"]["name"] for one in of_kind(asked, "CustomResourceDefinition")}
    assert {"jobs.batch.volcano.sh", "commands.bus.volcano.sh"} <= definitions
    assert "--volcano-jobs" in container(asked)["args"]


@pytest.mark.parametrize("volcano", [False, True])
def test_manifests_contain_leases_of_controller(volcano: bool) -> None:
    """The controller may not create Leases, so they are installed under the names that it uses."""
    objects = rendered(f"volcanoJobs={str(volcano).lower()}", "systemNamespace=meeting")
    (env,) = container(objects)["env"]
    kinds = (TFJOBS, VOLCANO_JOBS) if volcano else (TFJOBS,)
    expected = {leader_lease(kind, None, system_namespace({env["name"]: env["value"]})) for kind in kinds}
    leases = of_kind(objects, "Lease")
    assert {LeaseRef(one["metadata"]["namespace"], one["metadata"]["name"]) for one in leases} == expected
    assert not any(one.get("spec") for one in leases), "an upgrade leaves them to their holders"


def test_manifests_of_namespaced_controller_contain_no_leases() -> None:
    assert not of_kind(rendered("namespaces={a,b}"), "Lease")


def test_controller_pod_is_restricted_and_refers_to_existing_port_and_volumes() -> None:
    (deployment,) = of_kind(shipped(), "Deployment")
    spec, found = deployment["spec"]["template"]["spec"], container(shipped())
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (port,) = found["ports"]
    assert f"--metrics-port={port['containerPort']}" in found["args"]
    probes = {name: found[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert [probe["path"] for probe in probes.values()] == ["/healthz", "/healthz", "/readyz"]
    assert {mount["name"] for mount in found["volumeMounts"]} == {one["name"] for one in spec["volumes"]}


def test_selectors_match_controller_pods() -> None:
    objects = rendered("networkPolicy.enabled=true", "serviceMonitor=true", "nameOverride=n", release="r")
    (deployment,) = of_kind(objects, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        *(one["spec"]["selector"] for one in of_kind(objects, "Service")),
        *(one["spec"]["selector"]["matchLabels"] for one in of_kind(objects, "PodDisruptionBudget")),
        *(one["spec"]["podSelector"]["matchLabels"] for one in of_kind(objects, "NetworkPolicy")),
        *(
            one["labelSelector"]["matchLabels"]
            for one in deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
        ),
    ]
    assert len(selectors) == 6
    assert all(one and one.items() <= labels.items() for one in selectors)
    (monitor,), (service,) = of_kind(objects, "ServiceMonitor"), of_kind(objects, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {one["port"] for one in monitor["spec"]["endpoints"]} <= {one["name"] for one in service["spec"]["ports"]}


def nodes_of(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The schema and all schemas in it, with their paths."""
    yield path, schema
    for key, below in (schema.get("properties") or {}).items():
        yield from nodes_of(below, f"{path}.{key}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes_of(schema[key], f"{path}[]")


@pytest.mark.parametrize(
    "definition",
    [tfjobs(), volcano_jobs(), volcano_commands()],
    ids=lambda one: one["metadata"]["name"],
)
def test_definitions_of_jobs_preserve_unknown_fields(definition: dict[str, Any]) -> None:
    for version in definition["spec"]["versions"]:
        for path, schema in nodes_of(version["schema"]["openAPIV3Schema"]):
            if schema.get("type") == "object" and path != ".metadata":
                keeps = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
                assert keeps, f"{definition['metadata']['name']}{path} would lose what it does not know"


def test_definition_of_queues_has_exactly_fields_of_reader() -> None:
    (version,) = queues()["spec"]["versions"]
    whole = version["schema"]["openAPIV3Schema"]
    spec = whole["properties"]["spec"]
    quota = spec["properties"]["quotas"]["additionalProperties"]
    for schema in (whole, spec, quota):
        assert "x-kubernetes-preserve-unknown-fields" not in schema
    for schema, shape in ((spec, SpecShape), (quota, QuotaShape)):
        assert schema["properties"].keys() == {field.alias for field in shape.model_fields.values()}


def test_both_versions_accept_both_layouts() -> None:
    """There is no conversion, so the version of the request decides which schema checks an object."""
    schemas = [version["schema"] for version in tfjobs()["spec"]["versions"]]
    assert schemas[0] == schemas[1]


def test_chart_has_version_of_package() -> None:
    """The Python versions 0.1.0.dev0 and 0.1.0rc1 are 0.1.0-dev0 and 0.1.0-rc1 in Helm."""
    import yaml

    from tf_dist import __version__

    about: Manifest = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == __version__
    assert about["version"] == re.sub(r"^(\d+\.\d+\.\d+)\.?([a-z].*)$", r"\1-\2", __version__)
