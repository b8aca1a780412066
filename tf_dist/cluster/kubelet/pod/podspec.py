"""Container plans from a pod spec and the objects that it refers to: command, environment, mounts. Pure.

Expansion, order and precedence are the kubelet's: first ``envFrom`` in order, then ``env`` in order. A later name wins.
``$(NAME)`` refers to earlier definitions, ``$$`` is a dollar sign, and an unknown name is not replaced.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal

from tf_dist.cluster.api import Object
from tf_dist.cluster.kubelet.node.machine import GPU_RESOURCE, Account, NodeFeatures
from tf_dist.cluster.kubelet.pod.pod_status import PodStartError, config_error
from tf_dist.cluster.kubelet.pod.security_context import (
    ContainerSecurity,
    check_absolute_path,
    check_names,
    check_relative_path,
    plan_security,
)
from tf_dist.core.model.fieldpath import nearest_word
from tf_dist.core.model.quantity import parse_quantity

WORKDIR_ANNOTATION = "tf-dist.dev/workdir"
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


@dataclass(frozen=True, slots=True)
class PlanContext:
    """The inputs of a plan in addition to the pod. ``find(kind, name)`` returns a ConfigMap, Secret,
    PersistentVolumeClaim or PersistentVolume (None: missing).
    """

    find: Callable[[str, str], Object | None]
    exists: Callable[[str], bool]
    node: str = "local"
    pod_ip: str = ""
    host_ip: str = ""
    workdir: str = "/"
    base_env: Mapping[str, str] = field(default_factory=dict)
    entrypoints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    node_features: NodeFeatures = field(default_factory=NodeFeatures)
    find_user: Callable[[int], Account | None] = lambda uid: None


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """The mount of a volume, or of a path in it, at a path of the container."""

    volume: str
    target: str
    sub_path: str = ""
    readonly: bool = False


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """The command, working directory, environment and mounts of a container."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    mounts: tuple[VolumeMount, ...] = ()
    gpus: int = 0
    security: ContainerSecurity = field(default_factory=ContainerSecurity)


def plan_container(pod: Object, container: Object, around: PlanContext) -> ContainerPlan:
    """The plan of one container; PodStartError names a missing object."""
    name = container["name"]
    check_names(pod)
    try:
        env = container_env(pod, container, around)
        mounts = tuple(_mounts(container, env))
        cwd = _workdir(pod, container, mounts, around)
        argv = tuple(_argv(container, env, around))
        security = plan_security(pod, container, around.node_features, around.find_user)
    except PodStartError as problem:
        problem.container = name
        raise
    base = {**around.base_env, **dict(security.env), "HOSTNAME": pod_hostname(pod)}
    known = {key: value for key, value in {**base, **env}.items() if value is not None}
    return ContainerPlan(name, argv, known, cwd, mounts, gpu_count(container), security)


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` and ``$$``."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else env.get(match[1], match[0])

    end = text.rfind(")") + 1  # behind it, the end of each $( would be searched in vain
    return _REFERENCE.sub(value, text[:end]) + text[end:].replace("$$", "$")


def pod_hostname(pod: Object) -> str:
    """The pod's host name: at most 63 characters, cut as the kubelet does."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63].rstrip("-.")


def gpu_count(container: Object) -> int:
    """The number of GPUs that a container requests."""
    resources = container.get("resources") or {}
    asked = (resources.get("limits") or {}).get(GPU_RESOURCE, (resources.get("requests") or {}).get(GPU_RESOURCE, 0))
    return int(parse_quantity(asked))


# Command


def _argv(container: Object, env: Mapping[str, str], around: PlanContext) -> list[str]:
    """The words of the command. Variables in an image's entrypoint are not expanded, as in the kubelet."""
    command, args = ([expand(item, env) for item in container.get(key) or []] for key in ("command", "args"))
    if command:
        return [*command, *args]
    image = container.get("image", "")
    entrypoint = around.entrypoints.get(image) or around.entrypoints.get(_untagged(image))
    if entrypoint:
        return [*entrypoint, *args]
    near = nearest_word(image, around.entrypoints)
    raise PodStartError(
        "ErrImageEntrypoint",
        f"container {container['name']} has no command, and a local node has no images to take one from ({image})",
        hint=f"set command in the container, or tf-dist run --entrypoint {image}='python train.py'"
        + (f" (the one that is given is of {near})" if near else ""),
        permanent=True,
    )


def _untagged(image: str) -> str:
    head, slash, tail = image.partition("@")[0].rpartition("/")
    return head + slash + tail.partition(":")[0]


def _workdir(pod: Object, container: Object, mounts: tuple[VolumeMount, ...], around: PlanContext) -> str:
    chosen = (pod["metadata"].get("annotations") or {}).get(WORKDIR_ANNOTATION) or around.workdir
    wanted = container.get("workingDir")
    if not wanted:
        return chosen
    if not wanted.startswith("/"):
        raise PodStartError(
            "CreateContainerError",
            f"workingDir {wanted!r} is a relative path, but containers need an absolute path",
            hint="write an absolute path, or leave it out to use the folder of the job's file",
            permanent=True,
        )
    mounted = any(wanted == mount.target or wanted.startswith(mount.target.rstrip("/") + "/") for mount in mounts)
    if mounted or around.exists(wanted):
        return str(wanted)
    if chosen != "/":
        return chosen
    raise PodStartError(
        "CreateContainerError",
        f"workingDir {wanted} does not exist on this machine (images have it, a local node has no images)",
        hint=f"annotate the pod with {WORKDIR_ANNOTATION}: <folder>, or start the node with a workdir",
        permanent=True,
    )


def _mounts(container: Object, env: Mapping[str, str]) -> list[VolumeMount]:
    return [
        VolumeMount(
            item["name"],
            check_absolute_path(f"/{item['mountPath'].removeprefix('/')}", "mountPath"),  # as the kubelet reads it
            _sub_path(item, env),
            bool(item.get("readOnly")),
        )
        for item in container.get("volumeMounts") or []
        # Local processes do not need the API, so the token that the API server adds to every pod is left out.
        if item["mountPath"].rstrip("/") != _SERVICE_ACCOUNT
    ]


def _sub_path(item: Object, env: Mapping[str, str]) -> str:
    written = item.get("subPathExpr") or ""
    missing = sorted({name for name in _REFERENCE.findall(written) if name and name not in env})
    if missing:
        raise config_error(f"subPathExpr {written!r}: the container has no variable {' and '.join(missing)}")
    path = expand(written, env) or item.get("subPath", "")
    return check_relative_path(path, "subPath") if path else ""


# Environment


def container_env(pod: Object, container: Object, around: PlanContext) -> dict[str, str]:
    """The variables that the container's own fields define."""
    env: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        env.update(_from_object(source, around))
    for item in container.get("env") or []:
        value = _env_value(pod, container, item, env, around)
        if value is not None:
            env[item["name"]] = value
    return env


def _from_object(source: Object, around: PlanContext) -> dict[str, str]:
    prefix = source.get("prefix", "")
    kind, field_name = ("Secret", "secretRef") if "secretRef" in source else ("ConfigMap", "configMapRef")
    reference = source[field_name]
    found = around.find(kind, reference["name"])
    if found is None and not reference.get("optional"):
        raise _missing(kind, reference["name"])
    data = {key: decode_text(value) for key, value in object_data(kind, found).items()}
    return {prefix + key: value for key, value in data.items() if _ENV_NAME.fullmatch(prefix + key)}


def _env_value(pod: Object, container: Object, item: Object, env: Mapping[str, str], around: PlanContext) -> str | None:
    source = item.get("valueFrom")
    if not source:
        return expand(item.get("value") or "", env)
    if "fieldRef" in source:
        return pod_field(pod, source["fieldRef"]["fieldPath"], around)
    if "resourceFieldRef" in source:
        return resource_field(container, source["resourceFieldRef"], around)
    if "secretKeyRef" in source:
        return _key("Secret", source["secretKeyRef"], around)
    return _key("ConfigMap", source["configMapKeyRef"], around)


def _key(kind: str, reference: Object, around: PlanContext) -> str | None:
    found = around.find(kind, reference["name"])
    data = object_data(kind, found)
    if reference["key"] in data:
        return decode_text(data[reference["key"]])
    if reference.get("optional"):
        return None
    if found is None:
        raise _missing(kind, reference["name"])
    raise config_error(f"{kind} {reference['name']} has no key {reference['key']}", permanent=False)


def _missing(kind: str, name: str) -> PodStartError:
    return config_error(f'{kind.lower()} "{name}" not found', permanent=False)


def object_data(kind: str, found: Object | None) -> dict[str, bytes]:
    """The content of a ConfigMap or Secret, as bytes."""
    if found is None:
        return {}
    plain = found.get("data") or {}
    if kind == "Secret":
        written = {key: value.encode() for key, value in (found.get("stringData") or {}).items()}
        return {key: b64decode(value) for key, value in plain.items()} | written
    binary = {key: b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
    return {key: value.encode() for key, value in plain.items()} | binary


def decode_text(value: bytes) -> str:
    """Bytes as text for an environment variable or argument."""
    return value.decode(errors="surrogateescape")


def pod_field(pod: Object, path: str, around: PlanContext) -> str:
    """A downward API field; PodStartError for an unknown field."""
    metadata, spec = pod["metadata"], pod["spec"]
    if match := _SUBSCRIPT.fullmatch(path):
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        values = metadata.get(path.partition(".")[2]) or {}
        return "\n".join(f'{key}="{_escaped(value)}"' for key, value in sorted(values.items()))
    known = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata.get("namespace", "default"),
        "metadata.uid": metadata.get("uid", ""),
        "spec.nodeName": spec.get("nodeName") or around.node,
        "spec.serviceAccountName": spec.get("serviceAccountName") or "default",
        "status.podIP": around.pod_ip,
        "status.podIPs": around.pod_ip,
        "status.hostIP": around.host_ip,
        "status.hostIPs": around.host_ip,
    }
    if path not in known:
        raise config_error(f"fieldRef: unknown field {path}")
    return str(known[path])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource_field(container: Object, reference: Object, around: PlanContext) -> str:
    """A resourceFieldRef: a limit defaults to the node's allocatable, a request to 0; rounded up to the divisor."""
    kind, _, resource = reference["resource"].partition(".")
    resources = container.get("resources") or {}
    default = around.allocatable.get(resource, "0") if kind == "limits" else "0"
    amount = parse_quantity((resources.get(kind) or {}).get(resource, default))
    divisor = parse_quantity(reference.get("divisor") or "1") or Decimal(1)
    return str(int((amount / divisor).to_integral_value(rounding=ROUND_CEILING)))
