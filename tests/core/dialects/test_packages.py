"""Packages that pods install when they start: the changes of the document, and the script."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata as distributions
from pathlib import Path
from typing import Any

import pytest

from tf_dist import InvalidJob, TFJob
from tf_dist.core.dialects.code_folder import packages_of, with_packages

JOB = TFJob("mnist", image="tf", command=["python", "train.py"], ps=1, packages=["tiny-data==1.0", "tiny[all]>=2,<3"])


def pod(document: Any, kind: str = "Worker") -> Any:
    return document["spec"]["tfReplicaSpecs"][kind]["template"]["spec"]


def wheel(folder: Path, name: str, version: str) -> None:
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as made:
        made.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        made.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{info}/RECORD", "")


def installed(folder: Path, *packages: str) -> subprocess.CompletedProcess[str]:
    """Runs the init container's script in a folder instead of its volume. The wheels in ``folder`` are the index."""
    _, _, script, *words = pod(with_packages(JOB.to_dict(), packages))["initContainers"][0]["command"]
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
    }
    script = script.replace("/tf-dist/packages", str(folder / "volume"))
    command = ["/bin/sh", "-c", script, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_every_pod_installs_packages_into_its_own_volume() -> None:
    document = with_packages(JOB.to_dict(), packages_of(JOB.to_dict()))
    assert "annotations" not in document["metadata"]
    for kind in ("Worker", "PS"):
        spec = pod(document, kind)
        (init,), (container,) = spec["initContainers"], spec["containers"]
        assert init["image"] == container["image"] == "tf"
        assert init["command"][-2:] == ["tiny-data==1.0", "tiny[all]>=2,<3"]
        assert init["securityContext"]["readOnlyRootFilesystem"] is True
        assert spec["volumes"] == [{"name": "tf-dist-packages", "emptyDir": {}}]
        assert {"name": "PYTHONPATH", "value": "/tf-dist/packages/site"} in container["env"]
    assert with_packages(document, ["other"]) == with_packages(JOB.to_dict(), ["other"])


def test_keeps_pythonpath_and_index_of_container() -> None:
    variables = {"PYTHONPATH": "/lib", "PIP_INDEX_URL": "https://index", "https_proxy": "http://proxy", "SEED": "1"}
    spec = pod(with_packages(JOB.replace(env_vars=variables).to_dict(), ["tiny"]))
    (init,), (container,) = spec["initContainers"], spec["containers"]
    assert {one["name"]: one["value"] for one in container["env"]}["PYTHONPATH"] == "/tf-dist/packages/site:/lib"
    assert {one["name"] for one in init["env"]} == {"PIP_INDEX_URL", "https_proxy"}


@pytest.mark.parametrize("package", ["-rrequirements.txt", "--index-url=x", "a;b", "a'", "../a", "a=="])
def test_refuses_invalid_packages(package: str) -> None:
    with pytest.raises(InvalidJob, match="is not a package"):
        _ = JOB.replace(annotations={"tf-dist.dev/packages": package}).job
    with pytest.raises(InvalidJob, match=r"packages\[1\]: .* is not a package"):
        TFJob("mnist", image="tf", packages=["tiny", package])


def test_each_invalid_package_of_document_is_named() -> None:
    with pytest.raises(InvalidJob) as told:
        _ = JOB.replace(annotations={"tf-dist.dev/packages": "tiny a;b small==1 c=="}).job
    assert [(one.path, one.message) for one in told.value.problems] == [
        ('metadata.annotations["tf-dist.dev/packages"]', f"the text '{wrong}' is not a package")
        for wrong in ("a;b", "c==")
    ]


def test_replace_exchanges_packages() -> None:
    assert packages_of(JOB.replace(packages=["small==2"]).to_dict()) == ("small==2",)
    assert packages_of(JOB.replace(workers=3).to_dict()) == packages_of(JOB.to_dict())
    with pytest.raises(InvalidJob, match=r"packages: must be a list of texts, not 'small'"):
        JOB.replace(packages="small")


def test_installed_packages_can_be_imported(tmp_path: Path) -> None:
    for name in ("tiny", "small"):
        wheel(tmp_path, name, "1.0")
    for _ in range(2):  # a rebooted node runs the script again in the same volume
        done = installed(tmp_path, "tiny==1.0", "small")
        assert done.returncode == 0, done.stderr
    shown = "import tiny, small; print(tiny.__file__)"
    environment = {"PYTHONPATH": str(tmp_path / "volume" / "site")}
    found = subprocess.run([sys.executable, "-c", shown], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(tmp_path / "volume"))


def test_packages_of_image_are_neither_reinstalled_nor_removed(tmp_path: Path) -> None:
    """Packages of the image are not installed again, and installing another version does not remove them."""
    wheel(tmp_path, "iniconfig", "9.9")
    before = distributions.version("iniconfig")
    assert installed(tmp_path, "pytest").returncode == 0
    assert list((tmp_path / "volume" / "site").iterdir()) == []
    done = installed(tmp_path, "iniconfig==9.9", "pytest")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "volume" / "site" / "iniconfig.py").read_text() == "VERSION = '9.9'\n"
    assert sorted(one.name for one in (tmp_path / "volume").iterdir()) == ["site"]
    assert distributions.version("iniconfig") == before
    subprocess.run([sys.executable, "-c", "import iniconfig; iniconfig.IniConfig"], check=True)


def test_error_names_package_that_failed(tmp_path: Path) -> None:
    wheel(tmp_path, "tiny", "1.0")
    done = installed(tmp_path, "tiny", "absent==9")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("tf-dist: package absent==9 was not installed")
