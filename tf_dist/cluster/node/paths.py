"""Names and paths of a pod that become paths of this machine: none may lead out of where it belongs. Pure.

API servers check these, too; the node does not rely on it, since it writes with its own user's rights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tf_dist.cluster.api import Object
from tf_dist.cluster.node.problems import PodProblem

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")


def check_names(pod: Object) -> None:
    """PodProblem for a name that is none: folders, files and lines of /etc/hosts are made of them."""
    for what, name, pattern in _names(pod):
        if not isinstance(name, str) or len(name) > 253 or not pattern.fullmatch(name):
            raise PodProblem(
                "CreateContainerConfigError",
                f"{what} {name!r} is no name",
                hint="use lower case letters, digits and dashes",
                permanent=True,
            )


def _names(pod: Object) -> Iterator[tuple[str, object, re.Pattern[str]]]:
    spec = pod["spec"]
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or []:
            yield "the container's name", container.get("name"), _LABEL
    for volume in spec.get("volumes") or []:
        yield "the volume's name", volume.get("name"), _LABEL
        if claim := volume.get("persistentVolumeClaim"):
            yield "claimName", claim.get("claimName"), _SUBDOMAIN
    for field in ("hostname", "subdomain"):
        if spec.get(field):
            yield field, spec[field], _LABEL


def is_label(name: object) -> bool:
    """Whether it is a DNS label."""
    return isinstance(name, str) and _LABEL.fullmatch(name) is not None


def within(path: str, what: str) -> str:
    """A path that stays below where it starts; PodProblem for one that does not."""
    parts = path.split("/")
    if not path or path.startswith("/") or ".." in parts or parts[0].startswith("..") or "\0" in path:
        raise PodProblem(
            "CreateContainerConfigError",
            f"{what} {path!r} leaves its volume",
            hint="use a path below the volume's folder, without '..'",
            permanent=True,
        )
    return path


def absolute(path: str, what: str) -> str:
    """A path from the root, without steps back; PodProblem."""
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise PodProblem(
            "CreateContainerConfigError",
            f"{what} {path!r} is no absolute path without '..'",
            hint="begin it with /",
            permanent=True,
        )
    return path
