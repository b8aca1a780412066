"""The Helm chart: values have their documented effects, and invalid values are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.manifests import (
    CHART,
    DEPLOY,
    KUBERNETES,
    Manifest,
    by_place,
    container,
    documents,
    helm,
    of_kind,
    rendered,
)
from tf_dist.cli.install.cluster_check import OLDEST_KUBERNETES
from tf_dist.core.model.gang_scheduler import GangScheduler

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DIGEST = "sha256:" + "0123456789abcdef" * 4


def deployment(*values: str, namespace: str = "tf-dist-system") -> Manifest:
    (found,) = of_kind(rendered(*values, namespace=namespace), "Deployment")
    return found


def pod(*values: str, namespace: str = "tf-dist-system") -> Manifest:
    spec: Manifest = deployment(*values, namespace=namespace)["spec"]["template"]["spec"]
    return spec


def test_helm_lint_succeeds_without_warnings() -> None:
    said = helm("lint", "--strict", str(CHART))
    assert "1 chart(s) linted, 0 chart(s) failed" in said
    assert "[WARNING]" not in said


# Values, and the fields of the pod spec that they set.
POD: list[tuple[str, str, Any]] = [
    ("image.repository=my/tf-dist,image.tag=v7", "containers.0.image", "my/tf-dist:v7"),
    (f"image.repository=my/tf-dist,image.digest={DIGEST}", "containers.0.image", f"my/tf-dist@{DIGEST}"),
    ("image.pullPolicy=Never", "containers.0.imagePullPolicy", "Never"),
    ("imagePullSecrets[0].name=a", "imagePullSecrets", [{"name": "a"}]),
    ("resources.limits.memory=3Gi", "containers.0.resources.limits", {"memory": "3Gi"}),
    ("nodeSelector.pool=system", "nodeSelector", {"pool": "system"}),
    ("tolerations[0].key=gpu,tolerations[0].operator=Exists", "tolerations", [{"key": "gpu", "operator": "Exists"}]),
    ("affinity.nodeAffinity.a=b", "affinity", {"nodeAffinity": {"a": "b"}}),
    ("topologySpreadConstraints[0].maxSkew=2", "topologySpreadConstraints", [{"maxSkew": 2}]),
    ("priorityClassName=high", "priorityClassName", "high"),
    ("serviceAccount.name=mine", "serviceAccountName", "mine"),
    ("serviceAccount.create=false", "serviceAccountName", "default"),
    ("extraEnv[0].name=A,extraEnv[0].value=b", "containers.0.env.1", {"name": "A", "value": "b"}),
    ("systemNamespace=meeting", "containers.0.env.0.value", "meeting"),
    ("extraArgs={--log-format=text}", "containers.0.args.3", "--log-format=text"),
    ("namespaces={a,b}", "containers.0.args.4", "--namespace=b"),
    ("volcanoJobs=true", "containers.0.args.3", "--volcano-jobs"),
    ("defaultScheduler=kueue", "containers.0.args.3", "--gang-scheduler=kueue"),
    ("clusterDomain=example.local", "containers.0.args.3", "--cluster-domain=example.local"),
    ("disruptionBudgets=true", "containers.0.args.3", "--disruption-budgets"),
]


def at(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


@pytest.mark.parametrize(("value", "path", "expected"), POD)
def test_value_is_set_in_pod_spec(value: str, path: str, expected: Any) -> None:
    with pytest.raises((KeyError, IndexError, AssertionError)):
        assert at(pod(), path) == expected
    assert at(pod(value), path) == expected


def test_labels_and_annotations_are_set_in_pod_template() -> None:
    found = deployment("podLabels.team=ml", "podAnnotations.note=x", "commonLabels.owner=me", "replicas=3")
    assert found["spec"]["replicas"] == 3
    metadata = found["spec"]["template"]["metadata"]
    assert metadata["annotations"] == {"note": "x"}
    assert {"team": "ml", "owner": "me"}.items() <= metadata["labels"].items()
    assert not {"team", "owner"} & found["spec"]["selector"]["matchLabels"].keys()


def test_service_account_has_annotations() -> None:
    (account,) = of_kind(rendered("serviceAccount.annotations.role=arn"), "ServiceAccount")
    assert account["metadata"]["annotations"] == {"role": "arn"}


def test_kube_system_has_cluster_critical_priority_class() -> None:
    assert pod(namespace="kube-system")["priorityClassName"] == "system-cluster-critical"
    assert pod("priorityClassName=mine", namespace="kube-system")["priorityClassName"] == "mine"
    assert "priorityClassName" not in pod()


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("tf-dist", (), "tf-dist-controller"),
        ("my-tf-dist", (), "my-tf-dist-controller"),
        ("ml", (), "ml-tf-dist-controller"),
        ("ml", ("nameOverride=jobs",), "ml-jobs-controller"),
        ("ml", ("fullnameOverride=jobs",), "jobs-controller"),
        ("x" * 53, (), "x" * 40 + "-controller"),
    ],
)
def test_names_follow_release(release: str, values: tuple[str, ...], name: str) -> None:
    objects = rendered("namespaces={a}", *values, release=release)
    (found,) = of_kind(objects, "Deployment")
    assert found["metadata"]["name"] == name
    assert all(len(one["metadata"]["name"]) <= 63 for one in of_kind(objects, "Service"))


def test_names_that_look_like_numbers_stay_strings() -> None:
    values = ('drivers=["1","true"]', 'systemNamespace="null"', 'networkPolicy={"enabled":true,"from":["2"]}')
    said = helm(
        "template",
        "3",
        str(CHART),
        "--namespace=4",
        f"--kube-version={KUBERNETES}",
        *(f"--set-json={value}" for value in values),
    )
    for one in documents(said):
        metadata = one["metadata"]
        texts = [metadata["name"], metadata.get("namespace", ""), *metadata["labels"].values()]
        texts += [subject.get("namespace", "") for subject in one.get("subjects", ())]
        assert all(isinstance(text, str) for text in texts), metadata
    (policy,) = of_kind(documents(said), "NetworkPolicy")
    (source,) = policy["spec"]["ingress"][0]["from"]
    assert source["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "2"}
    assert container(documents(said))["env"][0]["value"] == "null"


def test_two_releases_share_only_definitions() -> None:
    first, second = (
        by_place(rendered(f"namespaces={{{name}}}", namespace=name, release=name)) for name in ("one", "two")
    )
    assert {kind for kind, _, _ in first.keys() & second.keys()} == {"CustomResourceDefinition"}


def test_definitions_and_system_namespace_are_kept_on_uninstall() -> None:
    kept = of_kind(rendered("volcanoJobs=true", namespace="ml"), "CustomResourceDefinition", "Namespace")
    assert len(kept) == 5
    assert all(one["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for one in kept)
    gone = of_kind(rendered("crds.keep=false"), "CustomResourceDefinition")
    assert not any("annotations" in one["metadata"] for one in gone)
    assert not of_kind(rendered("crds.enabled=false", "systemNamespace=default", namespace="ml"), *KEPT)


KEPT = ("CustomResourceDefinition", "Namespace")


def test_network_policy_allows_scrapes() -> None:
    (policy,) = of_kind(rendered("networkPolicy.enabled=true", "networkPolicy.from={a,b}"), "NetworkPolicy")
    (rule,) = policy["spec"]["ingress"]
    spaces = [one["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for one in rule["from"]]
    assert spaces == ["a", "b"]
    (open_,) = of_kind(rendered("networkPolicy.enabled=true"), "NetworkPolicy")
    assert "from" not in open_["spec"]["ingress"][0]


@pytest.mark.parametrize(("minor", "fails"), [(OLDEST_KUBERNETES[1] - 1, True), (OLDEST_KUBERNETES[1], False)])
def test_chart_refuses_unsupported_kubernetes_releases(minor: int, fails: bool) -> None:
    """The oldest release is the same as in ``tf-dist install --check`` and in the documentation."""
    assert (
        f"| Kubernetes | 1.{OLDEST_KUBERNETES[1]} or later |"
        in (DEPLOY.parent / "docs/reference/versions.md").read_text()
    )
    said = helm("template", "tf-dist", str(CHART), "--kube-version", f"1.{minor}.3-eks-1", fails=fails)
    assert ("kubeVersion: >=1.29.0-0" in said) is fails


REFUSED = [
    ({"replicas": 0}, "replicas"),
    ({"replicas": "two"}, "replicas"),
    ({"replica": 2}, "replica"),
    ({"image": {"digest": "sha256:abc"}}, "digest"),
    ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
    ({"imagePullSecrets": ["a"]}, "imagePullSecrets"),
    ({"namespaces": "a"}, "namespaces"),
    ({"namespaces": ["Not_A_Name"]}, "namespaces"),
    ({"namespaces": ["a", "a"]}, "namespaces"),
    ({"crds": True}, "crds"),
    ({"resources": {"requests": {"cpu": "much"}}}, "cpu"),
    ({"resources": {"request": {"cpu": "1"}}}, "request"),
    ({"nodeSelector": {"a": 1}}, "nodeSelector"),
    ({"podLabels": {"a": 1}}, "podLabels"),
    ({"tolerations": [{"keys": "a"}]}, "tolerations"),
    ({"tolerations": [{"key": "a", "effect": "Never"}]}, "tolerations"),
    ({"extraArgs": "--a"}, "extraArgs"),
    ({"gangSchedulers": ["yunikorn"]}, "gangSchedulers"),
    ({"defaultScheduler": ""}, "defaultScheduler"),
    ({"clusterDomain": "a'b"}, "clusterDomain"),
    ({"networkPolicy": {"enabled": "yes"}}, "networkPolicy"),
    ({"systemNamespace": ""}, "systemNamespace"),
]


@pytest.mark.parametrize(("values", "where"), REFUSED, ids=[str(one) for one, _ in REFUSED])
def test_schema_refuses_bad_values(values: dict[str, Any], where: str) -> None:
    merged = {
        **VALUES,
        **{
            key: {**VALUES[key], **value} if isinstance(value, dict) else value
            for key, value in values.items()
            if key in VALUES
        },
    }
    errors = list(
        jsonschema.Draft7Validator(SCHEMA).iter_errors(
            {**merged, **{k: v for k, v in values.items() if k not in VALUES}}
        )
    )
    assert any(where in f"{error.json_path} {error.message}" for error in errors)


def leaves(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, below in schema.get("properties", {}).items():
        yield f"{path}{key}"
        yield from leaves(below, f"{path}{key}.")


def test_schema_has_all_values_and_no_others() -> None:
    assert set(SCHEMA["properties"]) == {*VALUES, "global"}
    for name in leaves(SCHEMA):
        assert name == "global" or at(VALUES, name) is not None
    jsonschema.validate({**VALUES, "global": {"a": 1}}, SCHEMA)
    assert SCHEMA["definitions"]["gangScheduler"]["enum"] == [*GangScheduler]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (("controller=false", "namespaces={a}"), "namespaces: names the namespaces of the controller"),
        (("seeNodes=true",), "seeNodes: is for programs without a controller"),
        (("networkPolicy.from={a}",), "networkPolicy.from: limits who may scrape"),
        (("drivers={a}", "userRoles=false"), "drivers: are bound to ClusterRoles"),
    ],
)
def test_contradicting_values_are_refused_with_message(values: tuple[str, ...], told: str) -> None:
    assert told in helm(
        "template",
        "tf-dist",
        str(CHART),
        f"--kube-version={KUBERNETES}",
        *(f"--set={value}" for value in values),
        fails=True,
    )


def test_documented_values_exist() -> None:
    """Checks ``--set a.b=c`` in all pages."""
    text = "".join(path.read_text() for path in (DEPLOY.parent / "docs").rglob("*.md"))
    known = {*leaves(SCHEMA)}
    for given in re.findall(r"--set(?:-string)? '?([\w.]+)[=\[]", text):
        assert given.split("[")[0] in known or given.rpartition(".")[0] in known, given


def test_extra_arguments_stay_strings() -> None:
    assert container(rendered("extraArgs[0]=--a: b"))["args"][-1] == "--a: b"
