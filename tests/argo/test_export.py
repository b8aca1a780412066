"""``tf-dist workflows export``: the YAML of the examples, put where they are to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.ready import tf_dist
from tf_dist.cli.commands.argo_workflows import home
from tf_dist.cli.install import rbac
from tf_dist.cli.install.argo_rbac import driving_step_roles, step_roles, step_rules


def exported(folder: Path, *options: str) -> dict[str, list[Any]]:
    assert tf_dist("workflows", "export", str(folder), *options).returncode == 0
    return {path.name: list(yaml.safe_load_all(path.read_text())) for path in folder.iterdir()}


def test_as_they_are(tmp_path: Path) -> None:
    found = exported(tmp_path / "out")
    kept = {path.name for path in home().glob("*.yaml")} - {"digits-job.yaml"}
    assert set(found) == kept
    for name, documents in found.items():
        assert documents == list(yaml.safe_load_all((home() / name).read_text())), f"{name} is out of date"


def test_elsewhere_with_another_image(tmp_path: Path) -> None:
    images = ("--image", "registry/tf-dist:1", "--job-image", "registry/digits:2")
    found = exported(tmp_path, "-n", "research", *images)
    for documents in found.values():
        for one in documents:
            wide = one["kind"].startswith("Cluster")
            assert one["metadata"].get("namespace") == (None if wide else "research")
    text = (tmp_path / "digits-retrain.yaml").read_text()
    assert "image: registry/tf-dist:1" in text
    assert "value: registry/digits:2" in text
    assert "default: registry/tf-dist:1" in (tmp_path / "tf-dist-cluster-templates.yaml").read_text()
    accounts = {one["metadata"]["name"] for one in found["rbac.yaml"] if one["kind"] == "ServiceAccount"}
    for binding in [one for one in found["rbac.yaml"] if one["kind"] == "RoleBinding"]:
        (subject,) = binding["subjects"]
        assert (subject["name"] in accounts, subject["namespace"]) == (True, "research")


def test_an_image_in_no_registry_is_a_warning(tmp_path: Path) -> None:
    assert "is in no registry" in tf_dist("workflows", "export", str(tmp_path)).stderr
    done = tf_dist("workflows", "export", str(tmp_path), "--image", "registry/tf-dist:1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["A_b", "a.b", "a" * 64])
def test_a_name_that_no_namespace_can_have_is_refused(tmp_path: Path, name: str) -> None:
    done = tf_dist("workflows", "export", str(tmp_path / "out"), "-n", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--namespace: {name!r} is no namespace" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = tf_dist("workflows", "export", str(tmp_path / "file"))
    assert done.returncode == 1
    assert "give another folder" in done.stderr


def granted(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_jobs_of_volcano_need_an_option(tmp_path: Path) -> None:
    jobs = {("batch.volcano.sh", "jobs", verb) for verb in ("get", "list", "watch", "create", "patch", "delete")}
    for name, wanted in (("rbac.yaml", jobs), ("rbac-driver.yaml", {("batch.volcano.sh", "jobs/status", "update")})):
        for folder, options, given in ((tmp_path / "with", ["--volcano-jobs"], wanted), (tmp_path / "none", [], set())):
            roles = [one for one in exported(folder, "-n", "ml", *options)[name] if one["kind"] == "Role"]
            rules = granted([rule for role in roles for rule in role["rules"]])
            found = {one for one in rules if one[0] == "batch.volcano.sh"}
            assert found >= given
            assert bool(found) == bool(given)


@pytest.mark.parametrize("volcano", [False, True])
def test_a_step_may_no_more_than_an_administrator_of_the_namespace_can_give(volcano: bool) -> None:
    """Those that Kubernetes' role ``admin`` has, with what tf-dist and Argo 4.1 aggregate to it."""
    kubernetes = {("", "pods/log", "get"), ("", "events", "list"), ("", "events", "watch")}
    for resource in ("pods", "configmaps", "secrets", "persistentvolumeclaims", "services"):
        kubernetes |= {("", resource, verb) for verb in ("get", "list", "watch", "create", "patch", "delete")}
    argo = {
        ("argoproj.io", name, verb)
        for name in ("workflows", "workflowtaskresults")
        for verb in ("get", "create", "patch")
    }
    argo |= {("argoproj.io", "workfloweventbindings", "list"), ("argoproj.io", "workflowtemplates", "get")}
    ours = granted(rbac.edit_rules(volcano=volcano))
    assert granted(step_rules(volcano=volcano)) <= kubernetes | argo | ours
    for one in step_roles("research", volcano=volcano):
        assert not one["kind"].startswith("Cluster")
        if one["kind"] == "Role":
            assert granted(one["rules"]) <= kubernetes | argo | ours


def test_with_both_roles_a_step_may_what_a_driver_may_and_what_argo_needs() -> None:
    (driving,) = [one for one in driving_step_roles("research") if one["kind"] == "Role"]
    assert granted(driving["rules"]) == granted(rbac.inline_driver_rules())
    assert {resource for group, resource, _ in granted(step_rules()) if group == "argoproj.io"} == {
        "workflowtaskresults",
        "workflows",
    }


def test_an_event_is_sent_with_the_rights_that_argos_server_uses() -> None:
    """It reads the bindings and the template, and creates the workflow, by the token of the sender."""
    (events,) = [
        one
        for one in step_roles("research")
        if (one["kind"], one["metadata"]["name"]) == ("Role", "tf-dist-argo-events")
    ]
    assert granted(events["rules"]) == {
        ("argoproj.io", "workfloweventbindings", "list"),
        ("argoproj.io", "workflowtemplates", "get"),
        ("argoproj.io", "workflows", "create"),
    }


@pytest.mark.parametrize("namespace", ["default", "research"])
def test_the_account_is_bound_where_it_is(namespace: str) -> None:
    for one in (*step_roles(namespace), *driving_step_roles(namespace)):
        for subject in one.get("subjects", []):
            assert subject["namespace"] == namespace
