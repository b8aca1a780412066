"""The Helm chart: it is what is generated, and what Helm makes of it is what ``tf-dist install`` prints."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.helm.helm import CHART, Helm, Manifest, Place, by_place, documents
from tf_dist.cli.install.helm.chart import chart_files
from tf_dist.cli.install.helm.chart_values import chart_values, values_yaml
from tf_dist.cli.install.install_options import InstallOptions
from tf_dist.cli.main import run
from tf_dist.cli.options import PullPolicy
from tf_dist.controller.leases.lease import controller_lease_name
from tf_dist.core.api.gang_scheduler import GangScheduler
from tf_dist.core.api.names import short_hash

SYSTEM = "tf-dist-system"


def test_the_folder_is_what_the_generator_writes() -> None:
    """After a change: tf-dist install --chart deploy/chart"""
    written = {str(path.relative_to(CHART)): path.read_text() for path in CHART.rglob("*") if path.is_file()}
    assert written == chart_files()


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture
def install(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[Place, Manifest]]:
    """What ``tf-dist install`` prints with these options."""

    def printed(*options: str) -> dict[Place, Manifest]:
        assert run(["install", "--offline", *options]) == 0
        return by_place(documents(capsys.readouterr().out))

    return printed


def without_helms(found: dict[Place, Manifest]) -> dict[Place, Manifest]:
    """Without the note to Helm that definitions and the place of all drivers stay."""
    found = copy.deepcopy(found)
    for (kind, _, _), one in found.items():
        if kind in ("CustomResourceDefinition", "Namespace"):
            assert one["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    return found


DIGEST = "sha256:" + "0123456789abcdef" * 4

# Options of the command, and the values that mean the same.
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "defaults": ([], {}),
    "image": (["--image=my/tf-dist:7"], {"image": {"repository": "my/tf-dist", "tag": "7"}}),
    "digest": ([f"--image=my/tf-dist@{DIGEST}"], {"image": {"repository": "my/tf-dist", "digest": DIGEST}}),
    "pull policy": (["--image-pull-policy=Never"], {"image": {"pullPolicy": "Never"}}),
    "pull secrets": (
        ["--image-pull-secret=a", "--image-pull-secret=b.c"],
        {"imagePullSecrets": [{"name": "a"}, {"name": "b.c"}]},
    ),
    "replicas": (["--replicas=3"], {"replicas": 3}),
    "namespace": (["-n", "research"], {"namespaces": ["research"]}),
    "namespaces": (["-n", "b", "-n", "123", "-n", "a"], {"namespaces": ["b", "123", "a"]}),
    "requests": (["--requests=cpu=2,memory=1Gi"], {"resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}),
    "limits": (["--limits=memory=3Gi"], {"resources": {"limits": {"memory": "3Gi"}}}),
    "node selector": (
        ["--node-selector=pool=system", "--node-selector=example.org/a="],
        {"nodeSelector": {"pool": "system", "example.org/a": ""}},
    ),
    "tolerations": (
        ["--toleration=only=system:NoSchedule", "--toleration=gpu"],
        {
            "tolerations": [
                {"key": "only", "operator": "Equal", "value": "system", "effect": "NoSchedule"},
                {"key": "gpu", "operator": "Exists"},
            ]
        },
    ),
    "priority class": (["--priority-class=high"], {"priorityClassName": "high"}),
    "no pod budget": (["--no-pod-budget"], {"podDisruptionBudget": False}),
    "network policy": (["--network-policy"], {"networkPolicy": {"enabled": True}}),
    "scrapes from": (
        ["--network-policy", "--metrics-from=monitoring", "--metrics-from=b"],
        {"networkPolicy": {"enabled": True, "from": ["monitoring", "b"]}},
    ),
    "volcano jobs": (["--volcano-jobs"], {"volcanoJobs": True}),
    "gang scheduler": (["--gang-scheduler=kueue"], {"gangSchedulers": ["kueue"]}),
    "gang schedulers": (
        ["--gang-scheduler=workload", "--gang-scheduler=volcano"],
        {"gangSchedulers": ["volcano", "workload"]},
    ),
    "default scheduler": (["--default-scheduler=coscheduling"], {"defaultScheduler": "coscheduling"}),
    "kueue in a namespace": (
        ["--default-scheduler=kueue", "-n", "a"],
        {"defaultScheduler": "kueue", "namespaces": ["a"]},
    ),
    "cluster domain": (["--cluster-domain=example.local"], {"clusterDomain": "example.local"}),
    "disruption budgets": (["--disruption-budgets"], {"disruptionBudgets": True}),
    "controller config": (
        ["--controller-config=mine/own.yaml"],
        {"controllerConfig": {"name": "mine", "key": "own.yaml"}},
    ),
    "drivers": (["--drivers=a", "--drivers=b"], {"drivers": ["a", "b"]}),
    "no controller": (["--no-controller", "--drivers=a"], {"controller": False, "drivers": ["a"]}),
    "one driver sees nodes": (
        ["--no-controller", "--see-nodes", "--drivers=a"],
        {"controller": False, "seeNodes": True, "drivers": ["a"]},
    ),
    "drivers see nodes": (
        ["--no-controller", "--see-nodes", "--drivers=a", "--drivers=b", "--drivers=c", "--volcano-jobs"],
        {"controller": False, "seeNodes": True, "drivers": ["a", "b", "c"], "volcanoJobs": True},
    ),
    "no definitions": (["--no-crds"], {"crds": False}),
    "monitoring": (
        ["--service-monitor", "--prometheus-rule", "--grafana-dashboard", "--monitoring-label=release=stack"],
        {
            "serviceMonitor": True,
            "prometheusRule": True,
            "grafanaDashboard": True,
            "monitoringLabels": {"release": "stack"},
        },
    ),
    "meeting place": (["--system-namespace=meeting"], {"systemNamespace": "meeting"}),
    "meeting place of Kubernetes": (["--system-namespace=kube-system"], {"systemNamespace": "kube-system"}),
}


def values_file(folder: Path, values: dict[str, Any]) -> str:
    file = folder / "values.yaml"
    file.write_text(json.dumps(values))
    return f"--values={file}"


def agrees(
    helm: Helm, install: Callable[..., dict[Place, Manifest]], options: list[str], values: str, into: str = SYSTEM
) -> None:
    """Helm makes the release's namespace itself (--create-namespace); all else is the same."""
    place = () if "--no-controller" in options else (f"--into={into}",)  # which is of the controller only
    expected = install(*options, *place)
    expected.pop(("Namespace", "", into), None)
    assert without_helms(helm.template(values, namespace=into)) == expected


@pytest.mark.parametrize(("case", "into"), [(case, (SYSTEM, "ml-system")[n % 2]) for n, case in enumerate(CASES)])
def test_the_chart_makes_what_install_prints(
    helm: Helm, install: Callable[..., dict[Place, Manifest]], tmp_path: Path, case: str, into: str
) -> None:
    options, values = CASES[case]
    agrees(helm, install, options, values_file(tmp_path, values), into)


def test_in_kube_system_it_is_one_of_the_clusters_components(
    helm: Helm, install: Callable[..., dict[Place, Manifest]], tmp_path: Path
) -> None:
    agrees(helm, install, [], values_file(tmp_path, {}), "kube-system")
    agrees(
        helm, install, ["--priority-class=mine"], values_file(tmp_path, {"priorityClassName": "mine"}), "kube-system"
    )


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Both; a list of the second replaces one of the first."""
    found = dict(values)
    for key, value in more.items():
        found[key] = merged(found[key], value) if isinstance(value, dict) and key in found else value
    return found


# Cases that set the same: one of them at a time.
ONE_OF = (
    {"image", "digest"},
    {"namespace", "namespaces", "kueue in a namespace"},
    {"gang scheduler", "gang schedulers"},
    {"default scheduler", "kueue in a namespace"},
    {"drivers", "no controller", "one driver sees nodes", "drivers see nodes"},
    {"meeting place", "meeting place of Kubernetes"},
    {"network policy", "scrapes from"},
)


@pytest.mark.parametrize("seed", range(12))
def test_options_agree_together(
    helm: Helm, install: Callable[..., dict[Place, Manifest]], tmp_path: Path, seed: int
) -> None:
    """Templates are merged from settings that differ in two options at a time; more of them must agree, too."""
    draw = random.Random(seed)
    without = seed % 3 == 0
    of_controllers = {"namespace", "namespaces", "kueue in a namespace", "network policy", "scrapes from"}
    of_controllers |= {"monitoring", "disruption budgets", "controller config", "default scheduler"}
    of_controllers |= {"image", "digest", "pull policy", "pull secrets", "replicas", "requests", "limits"}
    of_controllers |= {"node selector", "tolerations", "priority class", "no pod budget"}
    of_drivers = {"no controller", "one driver sees nodes", "drivers see nodes"}
    names = sorted(CASES.keys() - (of_controllers if without else of_drivers))
    chosen = draw.sample(names, k=10)
    for group in ONE_OF:
        chosen = [name for name in chosen if name not in group or name == min(group & set(chosen))]
    options: list[str] = []
    values: dict[str, Any] = {}
    for name in chosen:
        options += CASES[name][0]
        values = merged(values, CASES[name][1])
    if without and values.get("controller", True):
        options.append("--no-controller")
        values["controller"] = False
    agrees(helm, install, options, values_file(tmp_path, values), draw.choice([SYSTEM, "ml", "kube-system"]))


def leaves() -> list[tuple[str, Mapping[str, Any]]]:
    """Each value that is one, by its path."""
    return [
        (f"{name}.{part}" if part else name, found)
        for name, one in chart_values().items()
        for part, found in one.get("parts", {"": one}).items()
    ]


def test_every_value_has_a_case() -> None:
    """And so every option of the command that is one; the others concern the command itself, or Helm."""
    covered = {key for _, values in CASES.values() for key in values}
    assert covered == chart_values().keys()
    options = {
        option.partition("=")[0] for arguments, _ in CASES.values() for option in arguments if option[:2] == "--"
    }
    named = {option.strip() for _, part in leaves() for option in part["option"].split(",")}
    assert named == options | {"--namespace"}


def test_the_document_has_every_value_with_its_option() -> None:
    text = (CHART.parents[1] / "docs/install.md").read_text().partition("## With Helm")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \| (.*) \|$", text, flags=re.MULTILINE)
    expected = []
    for name, part in leaves():
        options = " ".join(f"`{option.strip()}`" for option in part["option"].split(","))
        expected.append((name, options, part["meaning"]))
    assert rows == expected


def test_the_chart_is_by_default_what_the_command_is() -> None:
    values, options = {name: one["default"] for name, one in leaves()}, InstallOptions()
    assert values["resources"] == options.resources
    assert (values["replicas"], values["systemNamespace"]) == (options.replicas, options.system_namespace)
    assert (values["defaultScheduler"], values["controllerConfig.key"]) == (options.gang_scheduler, options.config_key)
    schemas = {name: one["schema"] for name, one in leaves()}
    assert schemas["defaultScheduler"]["enum"] == schemas["gangSchedulers"]["items"]["enum"] == [*GangScheduler]
    assert schemas["image.pullPolicy"]["enum"] == ["", *PullPolicy]


@pytest.mark.parametrize("release", ["1.26", "1.20.2"])
def test_an_older_server_gets_no_rules(helm: Helm, install: Callable[..., dict[Place, Manifest]], release: str) -> None:
    expected = install("--kube-version", release)
    del expected["Namespace", "", SYSTEM]
    found = without_helms(helm.template("--kube-version", release))
    budget = ("PodDisruptionBudget", SYSTEM, "tf-dist-controller")
    # Which versions of its objects a server has, Helm only knows from a server.
    assert {**found, budget: {**found[budget], "apiVersion": expected[budget]["apiVersion"]}} == expected
    assert "x-kubernetes-validations" not in json.dumps(list(found.values()))


@pytest.mark.parametrize("namespaces", [("a",), ("b", "a"), ("x" * 63, "y" * 63, "0")])
def test_leases_have_the_names_that_the_controller_asks_for(
    helm: Helm, tmp_path: Path, namespaces: tuple[str, ...]
) -> None:
    found = helm.template(values_file(tmp_path, {"namespaces": namespaces}))
    leases = {name for kind, _, name in found if kind == "Lease"}
    own = controller_lease_name(namespaces)
    assert leases == {
        "tf-dist-arbiter",
        "tf-dist-admissions",
        own,
        *(f"{own}-admissions-{short_hash(namespace)}" for namespace in namespaces),
    }


def test_helm_finds_no_fault(helm: Helm) -> None:
    said = helm("lint", "--strict", str(CHART))
    assert "1 chart(s) linted, 0 chart(s) failed" in said
    assert "[WARNING]" not in said


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
    ({"resources": {"requests": {"cpu": "much"}}}, "cpu"),
    ({"resources": {"request": {"cpu": "1"}}}, "request"),
    ({"nodeSelector": {"a": 1}}, "nodeSelector"),
    ({"tolerations": [{"keys": "a"}]}, "tolerations"),
    ({"tolerations": [{"key": "a", "effect": "Never"}]}, "tolerations"),
    ({"gangSchedulers": ["yunikorn"]}, "gangSchedulers"),
    ({"defaultScheduler": ""}, "defaultScheduler"),
    ({"clusterDomain": "a'b"}, "clusterDomain"),
    ({"networkPolicy": {"enabled": "yes"}}, "networkPolicy"),
    ({"systemNamespace": ""}, "systemNamespace"),
]


@cache
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return found


@pytest.mark.parametrize(("values", "where"), REFUSED, ids=[str(one) for one, _ in REFUSED])
def test_bad_values_are_refused_by_the_schema(values: dict[str, Any], where: str) -> None:
    whole = merged(yaml.safe_load(values_yaml()), values)
    errors = list(jsonschema.Draft7Validator(schema()).iter_errors(whole))
    assert errors
    assert any(where in f"{error.json_path} {error.message}" for error in errors)


def test_the_schema_takes_what_the_cases_say() -> None:
    for _, values in CASES.values():
        jsonschema.validate(merged(yaml.safe_load(values_yaml()), {**values, "global": {"a": 1}}), schema())


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (("replicas=0",), "replicas"),
        (("controller=false", "namespaces={a}"), "namespaces: says what the controller drives, and controller: false"),
        (("seeNodes=true",), "seeNodes: is for drivers without a controller"),
        (("networkPolicy.from={a}",), "networkPolicy.from: says who may scrape"),
        (("controller=false", "prometheusRule=true"), "prometheusRule: is for the controller"),
        (("controller=false", "replicas=3"), "replicas: is for the controller"),
        (("controller=false", "nodeSelector.a=b"), "nodeSelector: is for the controller"),
        (("controller=false", "tolerations[0].key=a"), "tolerations: is for the controller"),
        (("controller=false", "priorityClassName=a"), "priorityClassName: is for the controller"),
        (("controller=false", "podDisruptionBudget=false"), "podDisruptionBudget: is for the controller"),
        (("controller=false", "defaultScheduler=kueue"), "gangSchedulers gives drivers the rights"),
        (("monitoringLabels.a=b",), "monitoringLabels: is for serviceMonitor or prometheusRule"),
        (("controllerConfig.name=a", "controllerConfig.key=.."), "controllerConfig"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(helm: Helm, values: tuple[str, ...], told: str) -> None:
    arguments = [f"--set={value}" for value in values]
    assert told in helm("template", "tf-dist", str(CHART), *arguments, fails=True)


def test_values_that_releases_share_may_have_the_image_and_resources(helm: Helm) -> None:
    values = ("controller=false", "image.repository=mine", "resources.requests.cpu=1", "clusterDomain=example.local")
    assert not any(kind == "Deployment" for kind, _, _ in helm.template(*(f"--set={value}" for value in values)))


def test_the_chart_can_be_written_from_the_wheel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["install", "--chart", str(tmp_path / "chart")]) == 0
    assert (tmp_path / "chart/Chart.yaml").read_text() == (CHART / "Chart.yaml").read_text()
    assert len(capsys.readouterr().out.splitlines()) == sum(path.is_file() for path in CHART.rglob("*"))
    assert run(["install", "--chart", str(tmp_path / "other"), "--replicas=3"]) == 2
    assert "helm --set" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_domain_of_the_environment_is_no_option_of_the_chart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUSTOM_CLUSTER_DOMAIN", "example.local")
    assert run(["install", "--chart", str(tmp_path / "chart")]) == 0
    assert "helm --set clusterDomain=example.local" in capsys.readouterr().err
    assert (tmp_path / "chart/values.yaml").read_text() == values_yaml()
    assert run(["install", "--chart", str(tmp_path / "other"), "--cluster-domain=example.local"]) == 2
    assert not (tmp_path / "other").exists()
