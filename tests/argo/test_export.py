"""``tf-dist workflows export``: the YAML of the examples, put where they are to run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tf_dist.cli.commands.argo_workflows import home
from tf_dist.cli.install import rbac
from tf_dist.cli.install.rbac import argo_roles, launcher_rules

TF_DIST = Path(sys.executable).with_name("tf-dist")


def exported(folder: Path, *options: str) -> dict[str, list[Any]]:
    subprocess.run([TF_DIST, "workflows", "export", folder, *options], check=True, capture_output=True)
    return {path.name: list(yaml.safe_load_all(path.read_text())) for path in folder.iterdir()}


def test_as_they_are(tmp_path: Path) -> None:
    found = exported(tmp_path / "out")
    kept = {path.name for path in home().glob("*.yaml")} - {"digits-job.yaml"}
    assert set(found) == kept
    for name, documents in found.items():
        assert documents == list(yaml.safe_load_all((home() / name).read_text())), f"{name} is out of date"


def test_elsewhere_with_another_image(tmp_path: Path) -> None:
    found = exported(tmp_path, "-n", "research", "--image", "registry/tf-dist:1")
    for documents in found.values():
        for one in documents:
            wide = one["kind"].startswith("Cluster")
            assert one["metadata"].get("namespace") == (None if wide else "research")
    text = (tmp_path / "digits-retrain.yaml").read_text()
    assert "image: registry/tf-dist:1" in text
    assert "tf-dist/digits:latest" in text  # an image of the user's own
    (binding,) = [one for one in found["rbac.yaml"] if one["kind"] == "RoleBinding"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "tf-dist-argo", "namespace": "research"}]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = subprocess.run(
        [TF_DIST, "workflows", "export", tmp_path / "file"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "give another folder" in done.stderr


def test_a_step_may_what_a_driver_may_and_what_argo_needs() -> None:
    more = [rule for rule in launcher_rules() if rule not in rbac.inline_driver_rules()]
    assert [(rule["resources"], rule["verbs"]) for rule in more] == [
        (["workflowtaskresults"], ["create", "patch"]),
        (["workflows"], ["get"]),
    ]


@pytest.mark.parametrize("namespace", ["default", "research"])
def test_the_account_is_bound_where_it_is(namespace: str) -> None:
    for one in argo_roles(namespace):
        for subject in one.get("subjects", []):
            assert subject["namespace"] == namespace
