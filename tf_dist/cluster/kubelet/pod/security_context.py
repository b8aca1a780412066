"""Security contexts and limits that this node can enforce, and the names and paths that a pod may use. Pure.

API servers check these, too. The node does not rely on that, because it writes with its own user's rights.

A protective field that cannot be enforced fails the pod; any other unsupported field is ignored with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tf_dist.cluster.api import Object
from tf_dist.cluster.kubelet.pod.pod_status import PodStartError, config_error
from tf_dist.core.model.quantity import parse_quantity
from tf_dist.core.openapi.kubernetes_types import fields_of

if TYPE_CHECKING:
    from tf_dist.cluster.kubelet.node.machine import Account, NodeFeatures


_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")


def check_names(pod: Object) -> None:
    """PodStartError for an invalid name: names become folders, files and lines of /etc/hosts."""
    for what, name, pattern in _pod_names(pod):
        if not isinstance(name, str) or len(name) > 253 or not pattern.fullmatch(name):
            raise config_error(f"{what} {name!r} is not a name", "use lower case letters, digits and dashes")


def _pod_names(pod: Object) -> Iterator[tuple[str, object, re.Pattern[str]]]:
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


def is_dns_label(name: object) -> bool:
    """Whether ``name`` is a DNS label."""
    return isinstance(name, str) and _LABEL.fullmatch(name) is not None


def check_relative_path(path: str, what: str) -> str:
    """The path, which must stay below its volume's folder; PodStartError if it does not."""
    parts = path.split("/")
    if not path or path.startswith("/") or ".." in parts or parts[0].startswith("..") or "\0" in path:
        raise config_error(f"{what} {path!r} leaves its volume", "use a path below the volume's folder, without '..'")
    return path


def check_absolute_path(path: str, what: str) -> str:
    """The path, which must be absolute and without ``..``; PodStartError if it is not."""
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise config_error(f"{what} {path!r} is not an absolute path without '..'", "begin it with /")
    return path


CAPABILITIES: Final = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip
"""Capabilities by their number in Linux."""
DEFAULT_CAPABILITIES: Final = frozenset(
    {
        "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
        "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
    }
)  # fmt: skip
"""The capabilities that container runtimes leave to root by default."""
_LIMITS: Final = ("memory", "cpu")
_PROFILES: Final = (("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor"))
_APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"
_MAX_ID: Final = 2**32 - 2


@dataclass(frozen=True, slots=True)
class ContainerSecurity:
    """The user of a container, and its rights; None: those of the node.

    ``capabilities``: the numbers of the remaining capabilities. ``limits``: bytes of memory, thousandths of a CPU.
    """

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None
    capabilities: tuple[int, ...] | None = None
    read_only_root: bool = False
    limits: tuple[tuple[str, int], ...] = ()
    env: tuple[tuple[str, str | None], ...] = ()  # None: removed
    warnings: tuple[str, ...] = ()


def plan_security(
    pod: Object, container: Object, node_features: NodeFeatures, find_user: Callable[[int], Account | None]
) -> ContainerSecurity:
    """The security of a container; PodStartError for protection that this node cannot enforce, or a malformed field."""
    try:
        return _plan(pod, container, node_features, find_user)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # The embedded API server has no schema of pods.
        what = f"securityContext or resources of container {container['name']}"
        raise _refused(what, f"it cannot be understood ({error})", "see kubectl explain pod.spec") from error


def _plan(
    pod: Object, container: Object, node_features: NodeFeatures, find_user: Callable[[int], Account | None]
) -> ContainerSecurity:
    of_pod = pod["spec"].get("securityContext") or {}
    known = fields_of("PodSecurityContext")
    context = {
        **{key: value for key, value in of_pod.items() if key in known},  # an API server drops other fields
        **{key: value for key, value in (container.get("securityContext") or {}).items() if value is not None},
    }
    uid, gid = _identity(context, node_features, find_user)
    groups = _groups(of_pod)
    kept = _capabilities(context, node_features)
    read_only = bool(context.get("readOnlyRootFilesystem"))
    if read_only and not node_features.isolated:
        raise _refused("readOnlyRootFilesystem", "pods share the machine's file system", "use network mode isolated")
    _refuse_profiles(pod, container, context)
    if pod["spec"].get("hostUsers") is False and node_features.uid == 0:
        raise _refused("hostUsers: false", "pods have no user namespace of their own", "run the node as another user")
    return ContainerSecurity(
        uid=uid if node_features.switch else None,
        gid=gid if node_features.switch else None,
        groups=groups if node_features.switch else None,
        capabilities=kept,
        read_only_root=read_only,
        limits=_limits(container, node_features),
        env=_home(uid, read_only, node_features, find_user),
        warnings=tuple(_warnings(pod, container, context, node_features)),
    )


def fs_group(pod: Object, node_features: NodeFeatures) -> int | None:
    """The group that owns a pod's own volumes; None for none, or if this node cannot change groups."""
    return _id(pod["spec"].get("securityContext") or {}, "fsGroup") if node_features.switch else None


# Identity


def _identity(
    context: Mapping[str, Any], node_features: NodeFeatures, find_user: Callable[[int], Account | None]
) -> tuple[int, int]:
    asked, group = _id(context, "runAsUser"), _id(context, "runAsGroup")
    uid = node_features.uid if asked is None else asked
    if context.get("runAsNonRoot") and uid == 0:
        raise _refused(
            "runAsNonRoot",
            "the container would run as root" if asked is None else "runAsUser is 0",
            "set runAsUser to another user's number",
        )
    if uid != node_features.uid and not node_features.switch:
        raise _refused(
            f"runAsUser {uid}", f"the node runs as user {node_features.uid} and cannot become another", _AS_ROOT
        )
    known = find_user(uid) if asked else None
    gid = (known.gid if known else 0 if node_features.switch else node_features.gid) if group is None else group
    if group is not None and group != node_features.gid and not node_features.switch:
        raise _refused(
            f"runAsGroup {gid}", f"the node runs as group {node_features.gid} and cannot become another", _AS_ROOT
        )
    return uid, gid


_AS_ROOT: Final = "run the node as root, or leave it out for runs on this machine"


def _id(context: Mapping[str, Any], field: str) -> int | None:
    return None if context.get(field) is None else _whole(context[field], field)


def _whole(value: Any, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_ID:
        raise _refused(f"{field} {value!r}", "it is not a user or group", "write a whole number")
    return value


def _groups(of_pod: Mapping[str, Any]) -> tuple[int, ...]:
    given = [_whole(item, "supplementalGroups") for item in of_pod.get("supplementalGroups") or ()]
    group = _id(of_pod, "fsGroup")
    return tuple(sorted({*given, *(() if group is None else (group,))}))


def _home(
    uid: int, read_only: bool, node_features: NodeFeatures, find_user: Callable[[int], Account | None]
) -> tuple[tuple[str, str | None], ...]:
    """Corrections of variables that name the node's own user, whose temporary folder other users cannot enter."""
    if uid == node_features.uid:
        return (("TMPDIR", None),) if read_only else ()
    user = find_user(uid)
    name = user.name if user else None
    return (("HOME", user.home if user else "/"), ("USER", name), ("LOGNAME", name), ("TMPDIR", None))


# Capabilities


def _capability_names(context: Mapping[str, Any], field: str) -> frozenset[str]:
    given = (context.get("capabilities") or {}).get(field) or ()
    return frozenset(str(name).upper().removeprefix("CAP_") for name in given)


def _capabilities(context: Mapping[str, Any], node_features: NodeFeatures) -> tuple[int, ...] | None:
    """The numbers of root's remaining capabilities; None for other users, or if none can be dropped."""
    dropped = _capability_names(context, "drop")
    if not node_features.drop:
        if dropped and node_features.uid == 0:
            raise _refused("capabilities.drop", "this node may not take any away", "run it where it has CAP_SETPCAP")
        return None
    unknown = sorted(dropped - {"ALL", *CAPABILITIES})
    if unknown:
        raise _refused(f"capabilities.drop {', '.join(unknown)}", "there is no such capability", "see capabilities(7)")
    kept = frozenset() if "ALL" in dropped else DEFAULT_CAPABILITIES - dropped
    kept |= _capability_names(context, "add") & DEFAULT_CAPABILITIES  # as in container runtimes, ``add`` wins
    return tuple(number for number, name in enumerate(CAPABILITIES) if name in kept)


# Profiles, limits, and what is left out


def _refuse_profiles(pod: Object, container: Object, context: Mapping[str, Any]) -> None:
    for field, name in _PROFILES:
        if _profile(context, field) == "Localhost":
            raise _refused(f"{field} Localhost", f"{name} profiles are not loaded here", "leave it out")
    noted = str((pod["metadata"].get("annotations") or {}).get(_APPARMOR + container["name"], ""))
    if noted.startswith("localhost/"):
        raise _refused(f"the AppArmor profile {noted}", "AppArmor profiles are not loaded here", "leave it out")


def _profile(context: Mapping[str, Any], field: str) -> str:
    return str((context.get(field) or {}).get("type", ""))


def _limits(container: Object, node_features: NodeFeatures) -> tuple[tuple[str, int], ...]:
    given = (container.get("resources") or {}).get("limits") or {}
    scale = {"memory": 1, "cpu": 1000}
    return tuple(
        (name, int(parse_quantity(given[name]) * scale[name]))
        for name in _LIMITS
        if name in node_features.enforced and name in given
    )


def _warnings(pod: Object, container: Object, context: Mapping[str, Any], node_features: NodeFeatures) -> Iterator[str]:
    spec = pod["spec"]
    if context.get("privileged"):
        yield "privileged: the container gets no more rights than others here"
    elif added := sorted(_capability_names(context, "add") - DEFAULT_CAPABILITIES):
        yield f"capabilities.add {', '.join(added)}: nothing is added here"
    if context.get("allowPrivilegeEscalation") and not context.get("privileged"):
        yield "allowPrivilegeEscalation: true: no program gains rights here (no_new_privs)"
    if not node_features.switch and _groups(spec.get("securityContext") or {}):
        yield "supplementalGroups, fsGroup: a node that does not run as root cannot change groups"
    for field, name in _PROFILES:
        if _profile(context, field) == "RuntimeDefault":
            yield f"{field} RuntimeDefault: there is no {name} profile here"
    for field in ("seLinuxOptions", "windowsOptions"):
        if context.get(field):
            yield f"{field}: not set here"
    if (spec.get("securityContext") or {}).get("sysctls"):
        yield "sysctls: not set here"
    if node_features.isolated:
        for field in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(field):
                yield f"{field}: the pod has its own here"
    yield from _unlimited(spec, container, node_features)


def _unlimited(spec: Object, container: Object, node_features: NodeFeatures) -> Iterator[str]:
    given = (container.get("resources") or {}).get("limits") or {}
    loose = [name for name in (*_LIMITS, "ephemeral-storage") if name in given and name not in node_features.enforced]
    if loose:
        yield f"limits of {', '.join(loose)}: not enforced here (no cgroup that this user may write)"
    if (spec.get("resources") or {}).get("limits"):
        yield "spec.resources.limits: limits of a whole pod are not enforced here"


def _refused(what: str, why: str, hint: str) -> PodStartError:
    return config_error(f"{what} cannot be honoured: {why}", hint)
