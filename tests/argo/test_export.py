"""``tf-dist workflows export`` writes the YAML of the examples for a namespace and images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.ready import tf_dist
from tests.deploy.manifests import rendered, shipped
from tf_dist.cli.commands.argo_workflows import documents, home


def exported(folder: Path, *options: str) -> dict[str, list[Any]]:
    assert tf_dist("workflows", "export", str(folder), *options).returncode == 0
    return {path.name: list(yaml.safe_load_all(path.read_text())) for path in folder.iterdir()}


def test_exports_shipped_files_unchanged(tmp_path: Path) -> None:
    found = exported(tmp_path / "out")
    kept = {path.name for path in home().glob("*.yaml")} - {"digits-job.yaml"}
    assert set(found) == kept
    for name, objects in found.items():
        assert objects == list(yaml.safe_load_all((home() / name).read_text())), f"{name} is out of date"


def test_sets_namespace_and_images(tmp_path: Path) -> None:
    images = ("--image", "registry/tf-dist:1", "--job-image", "registry/digits:2")
    found = exported(tmp_path, "-n", "research", *images)
    for objects in found.values():
        for one in objects:
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


def test_warns_about_image_without_registry(tmp_path: Path) -> None:
    assert "is not in a registry" in tf_dist("workflows", "export", str(tmp_path)).stderr
    done = tf_dist("workflows", "export", str(tmp_path), "--image", "registry/tf-dist:1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["A_b", "a.b", "a" * 64])
def test_rejects_invalid_namespace(tmp_path: Path, name: str) -> None:
    done = tf_dist("workflows", "export", str(tmp_path / "out"), "-n", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--namespace: {name!r} is not a namespace" in done.stderr
    assert not (tmp_path / "out").exists()


def test_reports_folder_that_cannot_be_written(tmp_path: Path) -> None:
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


def step_rules(*, volcano: bool = False) -> set[tuple[str, str, str]]:
    """The rules of all roles in ``rbac.yaml``."""
    roles = [one for one in documents("rbac.yaml", "research", volcano=volcano) if one["kind"] == "Role"]
    return granted([rule for role in roles for rule in role["rules"]])


def test_volcano_jobs_need_option(tmp_path: Path) -> None:
    jobs = {("batch.volcano.sh", "jobs", verb) for verb in ("get", "list", "watch", "create", "patch", "delete")}
    assert step_rules(volcano=True) - step_rules() == jobs
    found = exported(tmp_path, "-n", "research", "--volcano-jobs")["rbac.yaml"]
    assert found == documents("rbac.yaml", "research", volcano=True)


@pytest.mark.parametrize("volcano", [False, True])
def test_namespace_administrator_can_grant_step_rules(volcano: bool) -> None:
    """The rules are a subset of Kubernetes' role ``admin`` and of what tf-dist and Argo 4.1 aggregate to it."""
    kubernetes = {("", "pods/log", "get"), ("", "events", "list"), ("", "events", "watch")}
    for resource in ("pods", "configmaps", "secrets", "persistentvolumeclaims", "services"):
        kubernetes |= {("", resource, verb) for verb in ("get", "list", "watch", "create", "patch", "delete")}
    argo = {
        ("argoproj.io", name, verb)
        for name in ("workflows", "workflowtaskresults")
        for verb in ("get", "create", "patch")
    }
    argo |= {("argoproj.io", "workfloweventbindings", "list"), ("argoproj.io", "workflowtemplates", "get")}
    objects = rendered("volcanoJobs=true") if volcano else shipped()
    (edit,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("ClusterRole", "tf-dist-edit")]
    assert step_rules(volcano=volcano) <= kubernetes | argo | granted(edit["rules"])
    assert not [one for one in documents("rbac.yaml", "research") if one["kind"].startswith("Cluster")]


def test_roles_of_leading_steps_are_installed() -> None:
    installed = {one["metadata"]["name"] for one in shipped() if one["kind"] == "ClusterRole"}
    assert {one["roleRef"]["name"] for one in documents("rbac-driver.yaml", "research")} <= installed


def test_event_sender_has_rights_that_argo_server_uses() -> None:
    """Argo's server reads the bindings and the template and creates the workflow with the sender's token."""
    (events,) = [
        one
        for one in documents("rbac.yaml", "research")
        if (one["kind"], one["metadata"]["name"]) == ("Role", "tf-dist-argo-events")
    ]
    assert granted(events["rules"]) == {
        ("argoproj.io", "workfloweventbindings", "list"),
        ("argoproj.io", "workflowtemplates", "get"),
        ("argoproj.io", "workflows", "create"),
    }


@pytest.mark.parametrize("namespace", ["default", "research"])
def test_service_accounts_are_bound_in_their_namespace(namespace: str) -> None:
    for one in (*documents("rbac.yaml", namespace), *documents("rbac-driver.yaml", namespace)):
        for subject in one.get("subjects", []):
            assert subject["namespace"] == namespace
