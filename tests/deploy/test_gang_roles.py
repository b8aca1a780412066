"""What is installed for other gang schedulers: nothing, unless one is asked for."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.cli.ready import tf_dist
from tests.controller.harness import tfjob
from tests.deploy.conftest import container
from tf_dist.cli.install.install_options import InstallOptions
from tf_dist.cli.install.workload import manifest_files
from tf_dist.core.api.gang_scheduler import GangScheduler
from tf_dist.core.api.names import GANG_SCHEDULER

OTHERS = tuple(one.value for one in GangScheduler if one is not GangScheduler.BUILTIN)


def found(settings: InstallOptions, *kinds: str) -> list[dict[str, Any]]:
    return [one for part in manifest_files(settings).values() for one in part if one["kind"] in kinds]


def rights(settings: InstallOptions, role: str) -> set[tuple[str, str, str]]:
    """Group, resource and verb of every right in the roles of that name."""
    named = (one for one in found(settings, "Role", "ClusterRole") if one["metadata"]["name"] == role)
    return {
        (group, resource, verb)
        for one in named
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_nothing_is_granted_that_nobody_asked_for() -> None:
    text = json.dumps(found(InstallOptions(drivers=("a",)), "Role", "ClusterRole"))
    assert not re.search(r"podgroups|workloads|resourceflavors", text)
    assert not any("gang" in one for one in container(InstallOptions())["args"])


@pytest.mark.parametrize("name", OTHERS)
def test_one_that_was_asked_for_may_be_used_by_every_driver_and_no_other(name: str) -> None:
    plain, asked = InstallOptions(drivers=("a",)), InstallOptions(drivers=("a",), gang_schedulers=(name,))
    for role in ("tf-dist-controller", "tf-dist-driver"):
        more = rights(asked, role) - rights(plain, role)
        assert {"get", "list", "watch", "create", "patch", "delete"} <= {verb for _, _, verb in more}
        assert {group for group, _, _ in more} == {
            "volcano": {"scheduling.volcano.sh"},
            "coscheduling": {"scheduling.x-k8s.io"},
            "kueue": {"kueue.x-k8s.io"},
            "workload": {"scheduling.k8s.io"},
        }[name]


def test_the_default_is_granted_and_told_to_the_controller() -> None:
    settings = InstallOptions(gang_scheduler="volcano")
    assert settings.others == ("volcano",)
    assert ("scheduling.volcano.sh", "podgroups", "create") in rights(settings, "tf-dist-controller")
    assert "--gang-scheduler=volcano" in container(settings)["args"]


@pytest.mark.parametrize("where", [{"namespaces": ("a", "b")}, {"drivers": ("a", "b"), "controller": False}])
def test_who_has_rights_in_single_namespaces_sees_what_kueue_has_in_none(where: dict[str, Any]) -> None:
    """They are in no namespace, so that takes a binding of its own."""
    settings = InstallOptions(gang_schedulers=("kueue",), **where)
    assert rights(settings, "tf-dist-flavors") == {
        ("kueue.x-k8s.io", kind, verb)
        for kind in ("resourceflavors", "workloadpriorityclasses")
        for verb in ("list", "watch")
    }
    bound = [one for one in found(settings, "ClusterRoleBinding") if one["roleRef"]["name"] == "tf-dist-flavors"]
    subjects = [(subject["name"], subject["namespace"]) for one in bound for subject in one["subjects"]]
    assert subjects == (
        [("tf-dist-controller", "tf-dist-system")]
        if "namespaces" in where
        else [("tf-dist-driver", "a"), ("tf-dist-driver", "b")]
    )


def test_the_controller_takes_the_argument_that_is_given_to_it() -> None:
    """``--help`` after it: it is read, and nothing is started."""
    assert tf_dist(*container(InstallOptions(gang_scheduler="kueue"))["args"], "--help").returncode == 0


def test_the_command_writes_what_was_asked_for_and_knows_no_other() -> None:
    printed = tf_dist("install", "--offline", "--gang-scheduler=volcano", "--gang-scheduler=kueue")
    assert printed.returncode == 0, printed.stderr
    assert "podgroups" in printed.stdout
    assert "resourceflavors" in printed.stdout
    refused = tf_dist("install", "--offline", "--gang-scheduler=yunikorn")
    assert refused.returncode == 2
    assert "'coscheduling'" in refused.stderr


def test_a_run_on_this_machine_has_no_other_scheduler_to_ask() -> None:
    refused = tf_dist("run", "job.yaml", "--gang-scheduler=kueue", "--embedded")
    assert refused.returncode == 2
    assert "there is no kueue on this machine" in refused.stderr


@pytest.mark.parametrize(
    ("name", "shown"),
    [("volcano", "PodGroup  mnist-"), ("workload", "scheduling.k8s.io/v1beta1"), ("kueue", "kueue.x-k8s.io/v1beta2")],
)
def test_a_plan_shows_what_is_made_for_the_scheduler(name: str, shown: str) -> None:
    document = tfjob()
    document["metadata"]["annotations"] = {GANG_SCHEDULER: name}
    printed = tf_dist("plan", "-", "--plain", stdin=json.dumps(document))
    assert printed.returncode == 0, printed.stderr
    assert shown in printed.stdout
