"""Rights for other gang schedulers are granted only if the values enable them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.cli.ready import tf_dist
from tests.controller.harness import tfjob
from tests.deploy.manifests import container, of_kind, rendered, shipped
from tf_dist.core.integrations.dispatch import INTEGRATIONS
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.names import GANG_SCHEDULER

OTHERS = [one for one in GangScheduler if one is not GangScheduler.BUILTIN]


def rights(objects: list[dict[str, Any]], role: str) -> set[tuple[str, str, str]]:
    """The group, resource and verb of each right in the roles with this name."""
    return {
        (group, resource, verb)
        for one in of_kind(objects, "Role", "ClusterRole")
        if one["metadata"]["name"] == role
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_shipped_manifests_grant_no_rights_for_other_schedulers() -> None:
    text = json.dumps(of_kind(shipped(), "Role", "ClusterRole"))
    assert not re.search(r"podgroups|workloads|resourceflavors", text)
    assert not any("gang" in one for one in container(shipped())["args"])


@pytest.mark.parametrize("name", OTHERS)
def test_chart_grants_rights_for_enabled_scheduler(name: GangScheduler) -> None:
    plain, asked = rendered(), rendered(f"gangSchedulers={{{name}}}")
    kinds = {(api.group, api.plural): api.namespaced for part in INTEGRATIONS[name].apis for api in part}
    every = ("get", "list", "watch", "create", "patch", "delete")
    made = {(*kind, verb) for kind, namespaced in kinds.items() if namespaced for verb in every}
    read = {(*kind, verb) for kind, namespaced in kinds.items() if not namespaced for verb in ("list", "watch")}
    made |= {("kueue.x-k8s.io", "workloads/status", "patch")} if name is GangScheduler.KUEUE else set()
    assert rights(asked, "tf-dist-driver") - rights(plain, "tf-dist-driver") == made
    assert rights(asked, "tf-dist-controller") - rights(plain, "tf-dist-controller") == made | read


def test_default_scheduler_is_granted_and_passed_to_controller() -> None:
    """With ``--help``, the command parses its arguments without starting."""
    objects = rendered("defaultScheduler=volcano")
    assert ("scheduling.volcano.sh", "podgroups", "create") in rights(objects, "tf-dist-controller")
    arguments = container(objects)["args"]
    assert "--gang-scheduler=volcano" in arguments
    assert tf_dist(*arguments, "--help").returncode == 0


@pytest.mark.parametrize(
    ("values", "subjects"),
    [
        ("namespaces={a,b}", [("tf-dist-controller", "tf-dist-system")]),
        ("drivers={a,b}", [("tf-dist-driver", "a"), ("tf-dist-driver", "b")]),
    ],
)
def test_namespaced_rights_include_cluster_scoped_kinds_of_kueue(values: str, subjects: list[tuple[str, str]]) -> None:
    objects = rendered("gangSchedulers={kueue}", values)
    assert {(group, verb) for group, _, verb in rights(objects, "tf-dist-flavors")} == {
        ("kueue.x-k8s.io", "list"),
        ("kueue.x-k8s.io", "watch"),
    }
    bound = [one for one in of_kind(objects, "ClusterRoleBinding") if one["roleRef"]["name"] == "tf-dist-flavors"]
    assert [(subject["name"], subject["namespace"]) for one in bound for subject in one["subjects"]] == subjects


def test_embedded_run_refuses_other_gang_scheduler() -> None:
    refused = tf_dist("run", "job.yaml", "--gang-scheduler=kueue", "--embedded")
    assert refused.returncode == 2
    assert "there is no kueue on this machine" in refused.stderr


@pytest.mark.parametrize(
    ("name", "shown"),
    [("volcano", "PodGroup  mnist-"), ("workload", "scheduling.k8s.io/v1beta1"), ("kueue", "kueue.x-k8s.io/v1beta2")],
)
def test_plan_shows_objects_for_gang_scheduler(name: str, shown: str) -> None:
    document = tfjob()
    document["metadata"]["annotations"] = {GANG_SCHEDULER: name}
    printed = tf_dist("plan", "-", "--plain", stdin=json.dumps(document))
    assert printed.returncode == 0, printed.stderr
    assert shown in printed.stdout
