"""Hostile file names in pods and ConfigMaps: nothing is written or mounted outside its volume."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.kubelet.bench import Bench, make_pod, sh
from tf_dist.cluster.api import CONFIG_MAPS, SECRETS, Object
from tf_dist.cluster.kubelet.pod.pod_status import PodStartError
from tf_dist.cluster.kubelet.pod.pod_volumes import FilesVolume, plan_volume, write_files
from tf_dist.cluster.kubelet.pod.podspec import PlanContext
from tf_dist.cluster.kubelet.runtime.mounts import open_inside

WAYS_OUT = ["../escaped", "a/../../escaped", "/escaped", "..", "../../../../../../tmp/escaped", "", "..escaped", "a/.."]
FIELD = {"fieldRef": {"fieldPath": "metadata.name"}}


def with_volume(name: str, volume: Object, *, script: str = "true", **mount: Any) -> Object:
    mounts = [{"name": volume["name"], "mountPath": "/v", **mount}]
    return sh(name, script, volumes=[volume], container={"volumeMounts": mounts})


@pytest.mark.parametrize("path", WAYS_OUT)
@pytest.mark.parametrize("kind", ["configMap", "secret", "downwardAPI", "projected"])
def test_item_path_outside_volume_fails_pod(isolated: Bench, kind: str, path: str) -> None:
    isolated.cluster.create(CONFIG_MAPS, "default", {"metadata": {"name": "o"}, "data": {"key": "x"}})
    isolated.cluster.create(SECRETS, "default", {"metadata": {"name": "o"}, "stringData": {"key": "x"}})
    item = {"key": "key", "path": path}
    source: Object = {
        "configMap": {"name": "o", "items": [item]},
        "secret": {"secretName": "o", "items": [item]},
        "downwardAPI": {"items": [{"path": path, **FIELD}]},
        "projected": {"sources": [{"configMap": {"name": "o", "items": [item]}}]},
    }[kind]
    status = isolated.run_unchecked(with_volume("one", {"name": "v", kind: source}))
    assert (status["phase"], status["reason"]) == ("Failed", "CreateContainerConfigError")
    assert "leaves its volume" in status["message"]
    assert not list(isolated.kubelet.state_dir.rglob("*escaped*"))
    assert not Path("/escaped").exists()
    assert not Path("/tmp/escaped").exists()


@given(st.text(alphabet="ab./\0-", min_size=0, max_size=12))
def test_files_are_written_inside_volume_only(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    folder = tmp_path_factory.mktemp("volume")
    pod = make_pod("p", "true")
    volume = {"name": "v", "downwardAPI": {"items": [{"path": path, **FIELD}]}}
    around = PlanContext(find=lambda kind, name: None, exists=lambda path: True)
    try:
        planned = plan_volume(pod, volume, around)
        assert isinstance(planned, FilesVolume)
        write_files(folder / "volume", planned.content)
    except (PodStartError, OSError):
        pass
    assert {entry.name for entry in folder.iterdir()} <= {"volume"}


@pytest.mark.parametrize("key", ["../escaped", "a/b", "..", "/escaped"])
def test_keys_that_are_not_file_names_are_refused(key: str) -> None:
    data = {"ConfigMap": {"data": {key: "x"}}, "Secret": {"data": {key: "eA=="}}}
    around = PlanContext(find=lambda kind, name: data[kind], exists=lambda path: True)
    for volume in ({"configMap": {"name": "o"}}, {"secret": {"secretName": "o"}}):
        with pytest.raises(PodStartError, match=r"key|leaves its volume"):
            plan_volume(make_pod("p", "true"), {"name": "v", **volume}, around)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"volumes": [{"name": "../../x", "emptyDir": {}}]}, "volume's name"),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "../other"}}]}, "claimName"),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": ".."}}]}, "claimName"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/tmp/../etc"}}]}, "hostPath"),
        ({"hostname": "a\n10.0.0.1\tother"}, "hostname"),
        ({"subdomain": "../x"}, "subdomain"),
        ({"mount": {"mountPath": "v/../../etc"}}, "mountPath"),
        ({"mount": {"mountPath": "/v/../../etc"}}, "mountPath"),
        ({"mount": {"subPath": "../x"}}, "subPath"),
        ({"mount": {"subPath": "/etc"}}, "subPath"),
        ({"mount": {"subPathExpr": "$(UP)/x"}}, "subPath"),
        ({"mount": {"subPathExpr": "$(DOWN)/$(UP)$$(X)"}}, "has no variable DOWN"),
    ],
)
def test_invalid_names_and_paths_fail_pod(isolated: Bench, spec: Object, message: str) -> None:
    mount = spec.pop("mount", {})
    volumes = spec.pop("volumes", [{"name": "v", "emptyDir": {}}])
    mounts = [{"name": volumes[0]["name"], "mountPath": "/v", **mount}]
    container = {"volumeMounts": mounts, "env": [{"name": "UP", "value": ".."}]}
    status = isolated.run_unchecked(sh("one", "true", volumes=volumes, container=container, **spec))
    assert (status["phase"], status["reason"]) == ("Failed", "CreateContainerConfigError")
    assert message in status["message"]


def test_relative_mount_path_begins_at_root(isolated: Bench) -> None:
    container = {"volumeMounts": [{"name": "v", "mountPath": "v", "subPathExpr": "a-$(POD)"}]}
    container |= {"env": [{"name": "POD", "value": "one"}]}  # type: ignore[dict-item]
    made = sh("one", "touch /v/f", volumes=[{"name": "v", "emptyDir": {}}], container=container)
    assert isolated.run(made)["phase"] == "Succeeded"


def linking(target: str, *, kind: Object | None = None) -> Object:
    """A pod whose init container creates a link in a volume, and whose main container mounts the link's target."""
    volume = {"name": "v", **(kind or {"emptyDir": {}})}
    whole = [{"name": "v", "mountPath": "/whole"}]
    script = f"mkdir -p /whole/inner; echo kept > /whole/inner/f; ln -sfn {target} /whole/link"
    init = {"name": "i", "image": "x", "command": ["sh", "-c", script], "volumeMounts": whole}
    mounts = [{"name": "v", "mountPath": "/part", "subPath": "link"}]
    read = "cat /part/f; echo new > /part/made"
    return sh("one", read, volumes=[volume], initContainers=[init], container={"volumeMounts": mounts})


@pytest.mark.parametrize("target", ["/", "/etc", "../..", "inner/../../..", pytest.param("link", id="loop")])
@pytest.mark.parametrize("kind", [{"emptyDir": {}}, {"persistentVolumeClaim": {"claimName": "c"}}])
def test_sub_path_through_link_outside_volume_fails_pod(isolated: Bench, target: str, kind: Object) -> None:
    status = isolated.run(linking(target, kind=kind))
    assert status["phase"] == "Failed"
    assert "leaves its volume by a symbolic link" in str(status)
    assert not Path("/made").exists()
    assert not Path("/etc/made").exists()


def test_sub_path_through_link_within_volume_works(isolated: Bench) -> None:
    status = isolated.run(linking("inner"))
    assert (status["phase"], isolated.log("one")) == ("Succeeded", "kept\n"), status


# Mounting opens paths below a folder only, because links may change after they are checked


def test_open_inside_creates_missing_folders_and_follows_no_link_outside(tmp_path: Path) -> None:
    outside, volume = tmp_path / "outside", tmp_path / "volume"
    (outside / "deep").mkdir(parents=True)
    volume.mkdir()
    (volume / "inner").mkdir()
    for name, target in (("out", outside), ("up", ".."), ("ok", "inner"), ("dangling", outside / "none")):
        (volume / name).symlink_to(target)
    fd = open_inside(str(volume), "new/er")
    try:
        assert os.path.samestat(os.fstat(fd), (volume / "new" / "er").stat())
    finally:
        os.close(fd)
    fd = open_inside(str(volume), "ok")
    try:
        assert os.path.samestat(os.fstat(fd), (volume / "inner").stat())
    finally:
        os.close(fd)
    for path in ("out", "out/deep", "out/made", "up", "up/outside", "dangling", "dangling/x", "inner/../../outside"):
        with pytest.raises(OSError, match=r"leaves its volume|No such file|exist"):
            open_inside(str(volume), path)
    assert [one for one in Path("/proc/self/fd").iterdir() if os.path.realpath(one).startswith(str(tmp_path))] == []
    assert sorted(path.name for path in outside.rglob("*")) == ["deep"]


def test_open_inside_follows_no_links_without_openat2(tmp_path: Path) -> None:
    def old(folder: int, path: str) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    (tmp_path / "inner").mkdir()
    (tmp_path / "ok").symlink_to("inner")
    os.close(open_inside(str(tmp_path), "inner/new", beneath=old))
    for path in ("ok", "ok/x", "inner/../.."):
        with pytest.raises(OSError, match="leaves its volume"):
            open_inside(str(tmp_path), path, beneath=old)
