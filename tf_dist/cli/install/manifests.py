"""The manifests that are shipped with tf-dist, with the substitutions of ``tf-dist install``.

Helm renders them from the chart in ``deploy/chart`` (``make manifests``). For all other settings, use the chart.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tf_dist import __version__
from tf_dist.core.model.names import SYSTEM_NAMESPACE

Manifest = dict[str, Any]

IMAGE: Final = f"tf-dist:{__version__}"
"""The image in the manifests. It names no registry, because each user pushes it to their own registry."""

# Kubernetes itself creates these namespaces, so the manifests must not change their labels.
_KUBERNETES_OWN: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
_WHOLE_CLUSTER: Final = "tf-dist.yaml"
_NAMESPACED: Final = "tf-dist-namespaced.yaml"
_NAMESPACE_IN_FILE: Final = {_WHOLE_CLUSTER: SYSTEM_NAMESPACE, _NAMESPACED: "my-namespace"}
_DEFINITION: Final = "CustomResourceDefinition"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions:
    """The values that ``tf-dist install`` substitutes."""

    namespace: str = SYSTEM_NAMESPACE
    """The namespace of the controller."""
    image: str = IMAGE
    """The controller's image."""
    replicas: int = 2
    """The number of pods of the controller."""
    namespaced: bool = False
    """The controller runs only the jobs of its own namespace, with Roles instead of ClusterRoles."""


def manifests(options: InstallOptions, foreign: frozenset[str] = frozenset()) -> list[Manifest]:
    """All objects of an installation, in the order in which to apply them.

    ``foreign``: names of definitions that another installation owns, and that are left out.
    """
    file = _NAMESPACED if options.namespaced else _WHOLE_CLUSTER
    objects = _read(file)
    if options.namespaced:
        objects = [*(one for one in _read(_WHOLE_CLUSTER) if one["kind"] == _DEFINITION), *objects]
    found = [_fitted(one, options, _NAMESPACE_IN_FILE[file]) for one in objects]
    return [one for one in found if not _is_left_out(one, foreign)]


def definition(name: str) -> Manifest:
    """A definition of tf-dist, as shipped."""
    (found,) = (one for one in _read(_WHOLE_CLUSTER) if (one["kind"], one["metadata"]["name"]) == (_DEFINITION, name))
    return found


def _read(name: str) -> list[Manifest]:
    import yaml

    import tf_dist

    package = Path(tf_dist.__file__).parent
    inside = package / "deploy"  # in a wheel; in a checkout it is next to the package
    path = (inside if inside.is_dir() else package.parent / "deploy") / name
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast
    return [one for one in yaml.load_all(path.read_text(encoding="utf-8"), Loader=loader) if one is not None]


def _fitted(manifest: Manifest, options: InstallOptions, in_file: str) -> Manifest:
    """The manifest with the options applied."""
    kind = manifest["kind"]
    if kind == _DEFINITION:
        return manifest
    if kind == "Deployment":
        manifest["spec"]["replicas"] = options.replicas
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        container["image"] = options.image
    fitted: Manifest = _replaced(manifest, in_file, options.namespace)
    return fitted


def _is_left_out(manifest: Manifest, foreign: frozenset[str]) -> bool:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    return (kind == _DEFINITION and name in foreign) or (kind == "Namespace" and name in _KUBERNETES_OWN)


def _replaced(value: Any, old: str, new: str) -> Any:
    """The value with the namespace replaced, alone or inside an argument."""
    if isinstance(value, dict):
        return {key: _replaced(inner, old, new) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(inner, old, new) for inner in value]
    return value.replace(old, new) if isinstance(value, str) else value
