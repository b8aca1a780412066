"""The code of a job: the changes of the job's document, and the script that unpacks the archive."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.client.test_tfjob import V1ALPHA1, VOLCANO
from tf_dist import TFJob
from tf_dist.client.code_archive import pack_code
from tf_dist.core.dialects import parse
from tf_dist.core.dialects.code_folder import LARGEST_PART, MOUNTED_AT, with_code_archive, with_code_here
from tf_dist.core.model.names import CODE

V1 = TFJob("mnist", image="tf:1", command=["python", "train.py"], workers=2, ps=1, code="src").to_dict()
DOCUMENTS = [V1, V1ALPHA1, VOLCANO]
KINDS = ["v1", "v1alpha1", "volcano"]


def pod_specs(document: dict[str, Any]) -> list[dict[str, Any]]:
    job = parse(document, strict=True).job
    return [dict(spec.pod_spec) for spec in job.replica_specs]


@pytest.mark.parametrize("document", DOCUMENTS, ids=KINDS)
def test_local_replicas_run_in_code_folder(document: dict[str, Any]) -> None:
    found = with_code_here(document, "/home/me/src")
    for spec in pod_specs(found):
        assert [one["workingDir"] for one in spec["containers"]] == ["/home/me/src"]
        assert "initContainers" not in spec
    assert CODE not in found["metadata"].get("annotations", {})


@pytest.mark.parametrize(
    ("wanted", "inside"),
    [
        ("sub", "/sub"),
        ("./a/b/", "/a/b"),
        (".", ""),
        ("../../etc", "/etc"),
        ("/opt", ""),
        (f"{MOUNTED_AT}/sub", "/sub"),
    ],
)
def test_relative_working_dir_is_inside_code(wanted: str, inside: str) -> None:
    job = TFJob("a", image="x", command=["true"], container={"workingDir": wanted}).to_dict()
    (here,), (there,) = pod_specs(with_code_here(job, "/home/me/src")), pod_specs(with_code_archive(job, b"1", "n")[0])
    assert here["containers"][0]["workingDir"] == f"/home/me/src{inside}"
    assert there["containers"][0]["workingDir"] == f"{MOUNTED_AT}{inside}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=KINDS)
def test_cluster_replicas_unpack_archive(document: dict[str, Any]) -> None:
    archive = bytes(range(256)) * 8_000
    found, parts = with_code_archive(document, archive, "n")
    assert b"".join(base64.b64decode(part["binaryData"]["part"]) for part in parts) == archive
    assert max(len(base64.b64decode(part["binaryData"]["part"])) for part in parts) == LARGEST_PART
    names = [part["metadata"]["name"] for part in parts]
    assert len(names) == 3
    assert all(name.startswith(f"{document['metadata']['name']}-code-") for name in names)
    for spec in pod_specs(found):
        (container,), (unpacks,) = spec["containers"], spec["initContainers"]
        assert (container["workingDir"], unpacks["image"]) == (MOUNTED_AT, container["image"])
        volumes = {one["name"]: one for one in spec["volumes"]}
        assert volumes["tf-dist-code"]["emptyDir"] == {}
        sources = volumes["tf-dist-code-parts"]["projected"]["sources"]
        assert [one["configMap"]["name"] for one in sources] == names
        assert [one["configMap"]["items"][0]["path"] for one in sources] == ["000", "001", "002"]
    assert CODE not in found["metadata"].get("annotations", {})


def test_keeps_containers_volumes_and_security_of_pod(tmp_path: Path) -> None:
    pod = {
        "initContainers": [{"name": "data", "image": "x", "command": ["true"]}],
        "volumes": [{"name": "cache", "emptyDir": {}}],
    }
    container = {
        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
        "imagePullPolicy": "Never",
        "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "2", "nvidia.com/gpu": 1}},
        "securityContext": {"runAsUser": 1000, "runAsNonRoot": True, "privileged": True},
    }
    job = TFJob("a", image="x", command=["true"], pod=pod, container=container).to_dict()
    once, _ = with_code_archive(job, b"1", "n")
    twice, _ = with_code_archive(once, b"1", "n")
    assert once == twice
    (spec,) = pod_specs(twice)
    assert [one["name"] for one in spec["initContainers"]] == ["tf-dist-code", "data"]
    assert [one["name"] for one in spec["volumes"]] == ["cache", "tf-dist-code", "tf-dist-code-parts"]
    assert [one["name"] for one in spec["containers"][0]["volumeMounts"]] == ["cache", "tf-dist-code"]
    unpacks = spec["initContainers"][0]
    assert unpacks["imagePullPolicy"] == "Never"
    assert unpacks["resources"] == {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}
    assert unpacks["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 1000,
        "runAsNonRoot": True,
    }


def test_archive_name_depends_on_code_and_nonce() -> None:
    def name(archive: bytes, nonce: str) -> str:
        _, (part,) = with_code_archive(V1, archive, nonce)
        assert part["metadata"]["labels"][CODE] in part["metadata"]["name"]
        return str(part["metadata"]["name"])

    assert name(b"1", "n") == name(b"1", "n")
    assert len({name(b"1", "n"), name(b"2", "n"), name(b"1", "m")}) == 3


@pytest.mark.parametrize(
    ("programs", "told"),
    [
        (("cat", "tar", "gzip"), ""),
        (("cat", "python3"), ""),
        (("cat", "tar"), "the image has neither tar with gzip nor python3"),
        (("cat", "tar", "gzip", "broken"), "tar failed"),
    ],
    ids=["tar", "python3", "neither", "broken"],
)
def test_script_unpacks_with_programs_of_image(tmp_path: Path, programs: tuple[str, ...], told: str) -> None:
    source, target, parts, path = (tmp_path / name for name in ("source", "target", "parts", "bin"))
    for folder in (source / "pkg", target, parts, path):
        folder.mkdir(parents=True)
    (source / "pkg" / "run.sh").write_text("go")
    (source / "pkg" / "run.sh").chmod(0o755)
    (source / "link").symlink_to("pkg/run.sh")
    archive = pack_code(source)
    for program in programs:
        if program != "broken":
            found = sys.executable if program == "python3" else shutil.which(program)
            (path / program).write_text(f'#!/bin/sh\nexec {found} "$@"\n')
            (path / program).chmod(0o755)
    broken = "broken" in programs
    for number, start in enumerate(range(0, len(archive), 50)):
        (parts / f"{number:03}").write_bytes(archive[start : start + (7 if broken else 50)])
    (spec,) = pod_specs(with_code_archive(TFJob("a", image="x", command=["true"]).to_dict(), archive, "n").document)
    shell, flag, script = spec["initContainers"][0]["command"]
    script = script.replace("/tf-dist/code-parts", str(parts)).replace("/tf-dist/code", str(target))
    for _ in range(2):  # a rebooted node runs the script again in the same volume
        command, env = [shell, flag, script], {"PATH": str(path)}
        ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert (ended.returncode == 0) is (not told), ended.stderr
    last = (ended.stderr.splitlines() or [""])[-1]
    assert last.startswith("tf-dist: the code was not unpacked") is bool(told)
    assert told in last
    if not told:
        assert (target / "link").read_text() == "go"
        assert (target / "pkg" / "run.sh").stat().st_mode & 0o777 == 0o755
