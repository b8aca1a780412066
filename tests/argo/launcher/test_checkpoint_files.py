"""The files of a checkpoint are copied completely, and only from volumes that the step mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.argo.launcher.launching import Launcher, site
from tf_dist.argo.launcher.step_outputs import copy_checkpoint
from tf_dist.client import exit_codes

TOKEN = "secrets/token"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A volume with a checkpoint, next to the launcher's own files."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("ckpt-1.index", "ckpt-1.data-00000-of-00001", "ckpt-10.index", "checkpoint"):
        (folder / name).write_text(name)
    (tmp_path / TOKEN).parent.mkdir()
    (tmp_path / TOKEN).write_text("secret")
    return folder


def copied(checkpoint: Path | str, models: Path) -> dict[str, str]:
    """The files of the artifact with their contents."""
    out = models.parent / "files"
    assert copy_checkpoint(str(checkpoint), out, [str(models)]) == ""
    return {str(one.relative_to(out)): one.read_text() for one in out.rglob("*") if one.is_file()}


def refused(checkpoint: Path | str, *mounts: Path) -> str:
    """The reason for the missing artifact."""
    (root,) = {mount.parent for mount in mounts}
    before = set(root.rglob("*"))
    problem = copy_checkpoint(str(checkpoint), root / "files", [str(mount) for mount in mounts])
    assert problem
    assert set(root.rglob("*")) == before
    return problem


def test_checkpoint_is_copied_with_all_its_files(models: Path, tmp_path: Path) -> None:
    assert copied(models / "ckpt-1", models).keys() == {"ckpt-1.index", "ckpt-1.data-00000-of-00001"}


def test_folder_is_copied_recursively(models: Path) -> None:
    (models / "variables").mkdir()
    (models / "variables" / "index").write_text("deep")
    found = copied(models, models)
    assert len(found) == 5
    assert found["variables/index"] == "deep"


def test_file_is_copied_alone(models: Path) -> None:
    assert copied(models / "ckpt-1.index", models) == {"ckpt-1.index": "ckpt-1.index"}


def test_links_within_volume_are_followed(models: Path) -> None:
    (models / "v1").mkdir()
    (models / "v1" / "weights").symlink_to(models / "ckpt-1.index")
    (models / "latest").symlink_to("v1")
    assert copied(models / "latest", models) == {"weights": "ckpt-1.index"}


@pytest.mark.parametrize("checkpoint", ["/", "/etc", "{root}", "{root}/secrets", "{models}/../secrets/token", "models"])
def test_path_outside_volumes_is_not_copied(checkpoint: str, models: Path, tmp_path: Path) -> None:
    checkpoint = checkpoint.format(root=tmp_path, models=models)
    assert f"{checkpoint} is outside the volumes that the step mounts ({models})" in refused(checkpoint, models)


def test_folder_with_same_prefix_as_volume_is_not_copied(models: Path) -> None:
    (models.parent / "models-of-others").mkdir()
    assert "is outside the volumes" in refused(models.parent / "models-of-others", models)


def test_step_without_volumes_copies_nothing(models: Path, tmp_path: Path) -> None:
    assert "that the step mounts (none)" in copy_checkpoint(str(models), tmp_path / "files", [""])


@pytest.mark.parametrize("target", ["{root}/secrets", "../secrets/token", "../../../../../../../../../etc/hostname"])
@pytest.mark.parametrize("place", ["link", "ckpt-1.link", "a/link"])
def test_link_out_of_volume_is_not_followed(place: str, target: str, models: Path, tmp_path: Path) -> None:
    (models / "a").mkdir()
    target = target.format(root=tmp_path)
    (models / place).symlink_to(os.path.relpath(models / target, (models / place).parent))
    assert "outside the volumes that the step mounts" in refused(models / place, models)
    assert "link leads to" in refused(models / "ckpt-1" if place.startswith("ckpt") else models, models)


def test_link_cycle_is_reported(models: Path) -> None:
    (models / "a").mkdir()
    (models / "a" / "back").symlink_to("..")
    assert "contains itself through a link" in refused(models, models)


@pytest.mark.parametrize("path", ["loop", "loop/ckpt-1"])
def test_link_to_itself_is_reported(path: str, models: Path) -> None:
    (models / "loop").symlink_to("loop")
    assert "Too many levels of symbolic links" in refused(models / path, models)


def test_pipe_is_not_copied(models: Path) -> None:
    os.mkfifo(models / "pipe")
    assert "pipe is neither a file nor a folder" in refused(models, models)


@pytest.mark.parametrize(
    ("checkpoint", "told"),
    [
        ("gs://models/ckpt-1", "is not on a volume of the launcher"),
        ("/nowhere/ckpt-1", "give the step the volume"),
        ("{models}/ckpt-2", "the launcher does not see {models}/ckpt-2: give the step the volume"),
        ("{models}/" + "x" * 300, "cannot copy"),
        ("{models}/a\0b", "cannot copy"),
    ],
)
def test_unreadable_checkpoint_is_explained(checkpoint: str, told: str, models: Path) -> None:
    assert told.format(models=models) in refused(checkpoint.format(models=models), models)


@pytest.mark.skipif(os.getuid() == 0, reason="root may search every folder")
def test_folder_without_permission_is_reported(models: Path) -> None:
    models.chmod(0)
    try:
        assert "Permission denied" in copy_checkpoint(f"{models}/a/ckpt-1", models.parent / "files", [str(models)])
    finally:
        models.chmod(0o700)


def test_failed_creation_of_folder_is_reported(models: Path) -> None:
    problem = copy_checkpoint(str(models / "ckpt-1"), models / "ckpt-1.index" / "files", [str(models)])
    assert "cannot copy" in problem


@pytest.mark.parametrize("mounts", [("/mnt", "/data"), ("",)])
def test_launcher_warns_about_missing_artifact(mounts: tuple[str, ...], tmp_path: Path) -> None:
    with site(tmp_path) as scene:
        scene.lead()
        with Launcher(scene.options(checkpoint_files=mounts)) as launcher:
            scene.runs()
            scene.ends()
            assert launcher.end() == exit_codes.SUCCEEDED
    known = ", ".join(filter(None, mounts)) or "none"
    told = (
        f"warning: the checkpoint is not stored as an artifact: /models/ckpt-1 is outside the volumes that the step "
        f"mounts ({known})"
    )
    assert told in launcher.text
