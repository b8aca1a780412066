"""Code that is sent with a job: the changes of a document so that its replicas run in a folder of the user.

On this machine, replicas run in the folder itself. On a cluster, the parts of an archive of the folder are stored in
ConfigMaps. In each pod, an init container with the training image unpacks the archive into an ``emptyDir``, and another
init container installs packages that the image does not have.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from tf_dist.core.dialects.step_overrides import training_containers
from tf_dist.core.model.fieldpath import FieldPath, list_items, mapping, mappings, text, value_at
from tf_dist.core.model.job import Document
from tf_dist.core.model.names import CODE, PACKAGES
from tf_dist.core.model.overrides import Override, apply_overrides

LARGEST_PART: Final = 900 << 10
"""Bytes of the archive in one ConfigMap. The API server accepts 1 MiB of data."""
LARGEST_CODE: Final = 8 << 20
"""Bytes of the archive of one job. Every node keeps the archive in memory for each of its pods."""
CODE_LABEL: Final = CODE
"""Label of the ConfigMaps: the hash of the archive."""
MOUNTED_AT: Final = "/tf-dist/code"
"""The working directory of the training containers."""
_PARTS_AT: Final = "/tf-dist/code-parts"
_CODE: Final = "tf-dist-code"
_PARTS: Final = "tf-dist-code-parts"
_HASH: Final = 12

# A script for sh, which images that run programs contain. The pod's status shows the end of the output as the message
# of the init container.
_UNPACK: Final = f"""\
set -u
fail() {{ echo "tf-dist: the code was not unpacked: $1" >&2; exit 1; }}
cd {MOUNTED_AT} || fail "{MOUNTED_AT} cannot be entered"
if command -v tar >/dev/null 2>&1 && command -v gzip >/dev/null 2>&1; then
  cat {_PARTS_AT}/* | gzip -dc | tar -xof - || fail "tar failed, see the line before"
elif command -v python3 >/dev/null 2>&1; then
  cat {_PARTS_AT}/* | python3 -c 'import sys, tarfile
tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz").extractall(".")' || fail "python3 failed, see the line before"
else
  fail "the image has neither tar with gzip nor python3; use an image that has them, or put the code into the image"
fi
"""


_PACKAGES: Final = "tf-dist-packages"
_PACKAGES_AT: Final = "/tf-dist/packages"
_SITE: Final = f"{_PACKAGES_AT}/site"

# Packages are installed one by one, so that the error names the package that failed. Packages of the image are kept:
# pip reports which packages are missing, and only these are installed. If a version differs from the image's version,
# the new version comes first in the path. pip itself would remove the image's version, which may be read-only.
_INSTALL: Final = f"""\
set -u
fail() {{ echo "tf-dist: package $1" >&2; exit 1; }}
python=$(command -v python3 || command -v python) || fail "$*: the image has no python3"
export TMPDIR={_PACKAGES_AT}/tmp HOME={_PACKAGES_AT}/tmp PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
export PYTHONPATH={_SITE}
mkdir -p "$TMPDIR" {_SITE} || fail "$*: $TMPDIR cannot be made"
for package in "$@"; do
  "$python" -m pip install --dry-run --report "$TMPDIR/report" "$package" &&
    "$python" -c 'import json, sys
for one in json.load(open(sys.argv[1]))["install"]:
    print(one["metadata"]["name"] + "==" + one["metadata"]["version"])' "$TMPDIR/report" >"$TMPDIR/lacking" &&
    {{ [ ! -s "$TMPDIR/lacking" ] ||
      "$python" -m pip install --no-deps --upgrade --target {_SITE} -r "$TMPDIR/lacking"; }} ||
    fail "$package was not installed, see the lines before; without a network, take an image that has it"
done
rm -rf "$TMPDIR"
"""


class CodeOnCluster(NamedTuple):
    """A job with its code, in the form for a cluster."""

    document: dict[str, Any]
    """The job, whose pods refer to the ConfigMaps."""
    config_maps: tuple[dict[str, Any], ...]
    """The parts of the archive, which the job will own."""


def packages_of(document: Document) -> tuple[str, ...]:
    """The packages that the replicas of a job need."""
    return tuple(text(value_at(document, "metadata", "annotations", PACKAGES)).split())


def with_packages(document: Document, packages: Iterable[str]) -> dict[str, Any]:
    """The job for a cluster, whose pods install packages when they start."""
    listed = list(packages)
    changes = [one for found in training_containers(document) for one in _package_changes(*found, listed)]
    return _without_annotation(apply_overrides(document, changes), PACKAGES)


def _package_changes(
    template: FieldPath, index: int, container: Mapping[str, Any], pod: Mapping[str, Any], packages: list[str]
) -> Iterator[Override]:
    spec = (*template, "spec")
    here = (*spec, "containers", index)
    env = mappings(container.get("env"))
    before = next((text(one.get("value")) for one in env if one.get("name") == "PYTHONPATH"), "")
    path = {"name": "PYTHONPATH", "value": f"{_SITE}:{before.removeprefix(_SITE).lstrip(':')}".rstrip(":")}
    yield Override((*here, "env"), [*_others(container, "env", "PYTHONPATH"), path])
    mount = _mount(_PACKAGES, _PACKAGES_AT)
    yield Override((*here, "volumeMounts"), [*_others(container, "volumeMounts", _PACKAGES), mount])
    yield Override((*spec, "volumes"), [*_others(pod, "volumes", _PACKAGES), {"name": _PACKAGES, "emptyDir": {}}])
    install = ["/bin/sh", "-c", _INSTALL, _PACKAGES, *packages]
    init = _init_container(container, _PACKAGES, install, [mount])
    # The settings of the package index and of proxies.
    asked = [one for one in env if text(one.get("name")).startswith("PIP_") or _PROXY.fullmatch(text(one.get("name")))]
    init |= {"env": asked} if asked else {}
    yield Override((*spec, "initContainers"), [init, *_others(pod, "initContainers", _PACKAGES)])


_PROXY: Final = re.compile(r"(https?|no|all)_proxy", re.IGNORECASE)


def with_code_annotation(document: Document, folder: str) -> dict[str, Any]:
    """The document with a folder that is sent with the job."""
    return dict(apply_overrides(document, [Override(("metadata", "annotations", CODE), folder)]))


def with_code_here(document: Document, folder: str) -> dict[str, Any]:
    """The job for this machine, where the folder itself is the working directory."""
    changes = (
        Override((*template, "spec", "containers", index, "workingDir"), _working_folder(container, folder))
        for template, index, container, _ in training_containers(document)
    )
    return _without_annotation(apply_overrides(document, [*changes]))


def with_code_archive(document: Document, archive: bytes, nonce: str) -> CodeOnCluster:
    """The job for a cluster, with an archive of its code.

    ``nonce``: different for each created job, because ConfigMaps of an earlier job of the same name may not be deleted
    yet.
    """
    digest = hashlib.sha256(archive).hexdigest()[:_HASH]
    metadata = mapping(document.get("metadata"))
    base = str(metadata.get("name") or metadata.get("generateName") or "job").rstrip("-.")
    parts = [archive[start : start + LARGEST_PART] for start in range(0, len(archive), LARGEST_PART)]
    names = [f"{base}-code-{digest}-{nonce}-{number}" for number in range(len(parts))]
    changes = [change for found in training_containers(document) for change in _changes(*found, names)]
    return CodeOnCluster(
        _without_annotation(apply_overrides(document, changes)),
        tuple(_config_map(name, digest, part) for name, part in zip(names, parts, strict=True)),
    )


def _working_folder(container: Mapping[str, Any], folder: str) -> str:
    inside = inner_folder(container)
    return f"{folder}/{inside}" if inside else folder


def inner_folder(container: Mapping[str, Any]) -> str:
    """The folder in the code that a relative ``workingDir`` names; "" for the root of the code."""
    wanted = text(container.get("workingDir"))
    if wanted.startswith(f"{MOUNTED_AT}/"):  # the document of a job that was already submitted
        wanted = wanted.removeprefix(f"{MOUNTED_AT}/")
    return "" if wanted.startswith("/") else posixpath.normpath(f"/{wanted}").strip("/")


def code_parts(document: Document) -> list[str]:
    """The ConfigMaps with the code of a submitted job; empty for a job without code."""
    for _, _, _, pod in training_containers(document):
        for volume in mappings(pod.get("volumes")):
            if volume.get("name") == _PARTS:
                sources = mappings(value_at(volume, "projected", "sources"))
                return [text(value_at(one, "configMap", "name")) for one in sources]
    return []


def code_archive_of(config_maps: Iterable[Document]) -> bytes:
    """The archive in these ConfigMaps."""
    return b"".join(base64.b64decode(text(value_at(one, "binaryData", "part"))) for one in config_maps)


def _without_annotation(document: Document, name: str = CODE) -> dict[str, Any]:
    metadata = mapping(document.get("metadata"))
    kept = {key: value for key, value in mapping(metadata.get("annotations")).items() if key != name}
    others = {key: value for key, value in metadata.items() if key != "annotations"}
    return {**document, "metadata": {**others, **({"annotations": kept} if kept else {})}}


def _config_map(name: str, digest: str, part: bytes) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {CODE_LABEL: digest}},
        "immutable": True,
        "binaryData": {"part": base64.b64encode(part).decode()},
    }


def _changes(
    template: FieldPath, index: int, container: Mapping[str, Any], pod: Mapping[str, Any], names: list[str]
) -> Iterator[Override]:
    """The changes of a pod template: the init container, its volumes, and the training container."""
    spec = (*template, "spec")
    here = (*spec, "containers", index)
    yield Override((*here, "workingDir"), _working_folder(container, MOUNTED_AT))
    yield Override((*here, "volumeMounts"), [*_others(container, "volumeMounts", _CODE), _mount(_CODE, MOUNTED_AT)])
    # The shell sorts the names that `*` matches, so numbers of equal width keep the order.
    sources = [
        {"configMap": {"name": name, "items": [{"key": "part", "path": f"{number:03}"}]}}
        for number, name in enumerate(names)
    ]
    volumes = [
        *_others(pod, "volumes", _CODE, _PARTS),
        {"name": _CODE, "emptyDir": {}},
        {"name": _PARTS, "projected": {"sources": sources}},
    ]
    yield Override((*spec, "volumes"), volumes)
    mounts = [_mount(_CODE, MOUNTED_AT), _mount(_PARTS, _PARTS_AT, readOnly=True)]
    init = _init_container(container, _CODE, ["/bin/sh", "-c", _UNPACK], mounts)
    yield Override((*spec, "initContainers"), [init, *_others(pod, "initContainers", _CODE)])


def _init_container(
    container: Mapping[str, Any], name: str, command: list[str], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    """An init container with the image and the resources of the training container.

    Its user is that of the training container, which then owns the files. The other settings conform to the restricted
    Pod Security Standard.
    """
    own = mapping(container.get("securityContext"))
    user = ("runAsUser", "runAsGroup", "runAsNonRoot", "seLinuxOptions", "seccompProfile")
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        **{key: own[key] for key in user if key in own},
    }
    resources = {
        kind: {key: value for key, value in mapping(amounts).items() if key in ("cpu", "memory", "ephemeral-storage")}
        for kind, amounts in mapping(container.get("resources")).items()
        if kind in ("requests", "limits")
    }
    pull = container.get("imagePullPolicy")
    return {
        "name": name,
        "image": container.get("image"),
        **({"imagePullPolicy": pull} if pull else {}),
        "command": command,
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": security,
        **({"resources": resources} if any(resources.values()) else {}),
    }


def _mount(name: str, path: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "mountPath": path, **more}


def _others(holder: Mapping[str, Any], field: str, *ours: str) -> list[Any]:
    return [one for one in list_items(holder.get(field)) if mapping(one).get("name") not in ours]
