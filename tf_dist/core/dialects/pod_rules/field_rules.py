"""Rules of single fields: formats, bounds and known values, by the type of the object and the field."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tf_dist.core.dialects.common_schema import INT32_MAX, check_label
from tf_dist.core.dialects.field_errors import FieldErrors, describe_value, unknown_value
from tf_dist.core.model.fieldpath import FieldPath, suggestion
from tf_dist.core.model.names import DNS_LABEL, is_label_key, is_label_value
from tf_dist.core.model.quantity import parse_quantity

FieldRule = Callable[[Any, FieldPath, FieldErrors], None]
"""Checks a field that is present and has the right type."""

PORT_NAME: Final = re.compile(r"(?=.*[a-z])[a-z0-9](?:-?[a-z0-9])*")
_SUBDOMAIN: Final = re.compile(rf"{DNS_LABEL.pattern}(?:\.{DNS_LABEL.pattern})*")
_KEY: Final = re.compile(r"(?!\.{1,2}$)(?!\.\.)[-._a-zA-Z0-9]{1,253}")
_VARIABLE: Final = re.compile(r"[ -<>-~]+")  # printable ASCII but for "="
_HEADER: Final = re.compile(r"[-A-Za-z0-9]+")


def _choice(*known: str) -> FieldRule:
    def check(value: str, loc: FieldPath, out: FieldErrors) -> None:
        if value and value not in known:
            out.error(loc, unknown_value(value), suggestion(value, [one for one in known if one]))

    return check


def _between(least: int, most: int) -> FieldRule:
    def check(value: int, loc: FieldPath, out: FieldErrors) -> None:
        if not least <= value <= most:
            out.error(loc, f"must be from {least} to {most}, not {value}", f"write a number from {least} to {most}")

    return check


def _file_mode(value: int, loc: FieldPath, out: FieldErrors) -> None:
    if not 0 <= value <= 0o777:
        out.error(loc, f"{value} is not a file mode", "write an octal number from 0000 to 0777, or its decimal value")


def _not_negative(value: int, loc: FieldPath, out: FieldErrors) -> None:
    if value < 0:
        out.error(loc, f"must not be negative, not {value}", "write 0 or more")


def _size(value: object, loc: FieldPath, out: FieldErrors) -> None:
    if parse_quantity(value) < 0:
        out.error(loc, f"must not be negative, not {describe_value(value)}", "write a size: 500Mi, 10Gi")


def _label(value: str, loc: FieldPath, out: FieldErrors) -> None:
    if value:
        check_label(value, loc, out)


def check_subdomain(value: str, loc: FieldPath, out: FieldErrors) -> None:
    """Check the name of an object."""
    if value and (len(value) > 253 or not _SUBDOMAIN.fullmatch(value)):
        better = re.sub(r"[^a-z0-9.]+", "-", value.lower()).strip("-.")[:253]
        out.error(
            loc,
            f"{value!r} is not a valid Kubernetes name: lower-case letters, digits, '-' and '.' only",
            f'write "{better}"' if _SUBDOMAIN.fullmatch(better) else "use the name of the object in the cluster",
        )


def check_label_key(value: str, loc: FieldPath, out: FieldErrors) -> None:
    """Check the key of a label."""
    if value and not is_label_key(value):
        out.error(loc, f"{value!r} is not the key of a label", KEY_HINT)


KEY_HINT: Final = "a key is at most 63 letters, digits, '-', '_' and '.'; a domain and '/' may stand before it"
VALUE_HINT: Final = "at most 63 letters, digits, '-', '_' and '.', a letter or digit first and last"


def label_rules(labels: Mapping[Any, Any], loc: FieldPath, out: FieldErrors) -> None:
    """Check the keys and values of labels, or of a node selector."""
    for key, value in labels.items():
        if isinstance(key, str) and not is_label_key(key):
            out.error((*loc, key), f"{key!r} is not the key of a label", KEY_HINT)
        elif isinstance(value, str) and not is_label_value(value):
            short = value if len(value) <= 80 else f"{value[:77]}..."
            out.error((*loc, str(key)), f"{short!r} is not the value of a label", VALUE_HINT)


def _annotations(annotations: Mapping[Any, Any], loc: FieldPath, out: FieldErrors) -> None:
    size = 0
    for key, value in annotations.items():
        size += len(str(key)) + len(str(value))
        if isinstance(key, str) and not is_label_key(key.lower()):
            out.error((*loc, key), f"{key!r} is not the key of an annotation", KEY_HINT)
    if size > 256 * 1024:
        out.error(loc, f"are {size} bytes together; 262144 are allowed", "put large values into a ConfigMap")


def _port(value: object, loc: FieldPath, out: FieldErrors) -> None:
    if isinstance(value, str):
        if len(value) > 15 or not PORT_NAME.fullmatch(value):
            hint = f"write {value} without quotes" if value.isdecimal() else "write a number, or a name from ports"
            out.error(loc, f"{value!r} is not the name of a port", hint)
    elif not isinstance(value, int) or not 1 <= value <= 65535:
        out.error(
            loc, f"is not a port: {describe_value(value)}; ports go from 1 to 65535", "write a number up to 65535"
        )


def _address(value: str, loc: FieldPath, out: FieldErrors) -> None:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        out.error(loc, f"{value!r} is not an IP address", "write an address such as 10.0.0.10")


def _no_way_up(value: str, loc: FieldPath, out: FieldErrors) -> None:
    if ".." in value.split("/"):
        out.error(loc, f"{value!r} must not contain '..'", "write the path without '..'")


def _inner_path(value: str, loc: FieldPath, out: FieldErrors) -> None:
    if value.startswith("/"):
        out.error(loc, f"{value!r} must be a relative path", f"write {value.lstrip('/') or 'a path inside the volume'}")
    _no_way_up(value, loc, out)


def _file_path(value: str, loc: FieldPath, out: FieldErrors) -> None:
    _inner_path(value, loc, out)
    if value.startswith("..") and not value.startswith("../") and value != "..":
        out.error(loc, f"{value!r} must not start with '..'", "begin the name with another character")


def _key(value: str, loc: FieldPath, out: FieldErrors) -> None:
    if value and not _KEY.fullmatch(value):
        out.error(loc, f"{value!r} is not a key of a ConfigMap or Secret", "letters, digits, '-', '_' and '.' only")


def _variable(value: str, loc: FieldPath, out: FieldErrors) -> None:
    if "=" in value:
        out.error(loc, f"{value!r}: the name of a variable has no '='", "use name: and value:")
    elif value and not _VARIABLE.fullmatch(value):
        out.error(loc, f"{value!r} is not the name of a variable", "letters, digits and '_' only")


def _header(value: str, loc: FieldPath, out: FieldErrors) -> None:
    if value and not _HEADER.fullmatch(value):
        out.error(loc, f"{value!r} is not the name of a header", "letters, digits and '-' only")


def _each(rule: FieldRule) -> FieldRule:
    def check(values: list[Any], loc: FieldPath, out: FieldErrors) -> None:
        for index, value in enumerate(values):
            if value is not None:
                rule(value, (*loc, index), out)

    return check


_USER: Final = _between(0, INT32_MAX)
_WEIGHT: Final = _between(1, 100)
_SELECTORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")
_PROFILE: Final = _choice("Localhost", "RuntimeDefault", "Unconfined")
_HONOR: Final = _choice("Honor", "Ignore")

FIELD_RULES: Final[Mapping[str, Mapping[str, FieldRule]]] = {
    "PodSpec": {
        "activeDeadlineSeconds": _between(1, INT32_MAX),
        "terminationGracePeriodSeconds": _not_negative,
        "restartPolicy": _choice("Always", "OnFailure", "Never"),
        "dnsPolicy": _choice("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
        "preemptionPolicy": _choice("PreemptLowerPriority", "Never"),
        "nodeSelector": label_rules,
        "hostname": _label,
        "subdomain": _label,
        "hostnameOverride": check_subdomain,
        "serviceAccountName": check_subdomain,
        "priorityClassName": check_subdomain,
        "runtimeClassName": check_subdomain,
        "nodeName": check_subdomain,
    },
    "ObjectMeta": {"labels": label_rules, "annotations": _annotations},
    "Container": {
        "imagePullPolicy": _choice("Always", "IfNotPresent", "Never"),
        "terminationMessagePolicy": _choice("File", "FallbackToLogsOnError"),
        "restartPolicy": _choice("Always", "OnFailure", "Never"),
    },
    "ContainerPort": {"protocol": _choice("TCP", "UDP", "SCTP")},
    "ContainerResizePolicy": {
        "resourceName": _choice("cpu", "memory"),
        "restartPolicy": _choice("NotRequired", "RestartContainer"),
    },
    "EnvVar": {"name": _variable},
    "EnvFromSource": {"prefix": _variable},
    "ConfigMapKeySelector": {"name": check_subdomain, "key": _key},
    "SecretKeySelector": {"name": check_subdomain, "key": _key},
    "ConfigMapEnvSource": {"name": check_subdomain},
    "SecretEnvSource": {"name": check_subdomain},
    "FileKeySelector": {"key": _variable, "volumeName": _label, "path": _no_way_up},
    "VolumeMount": {
        "subPath": _inner_path,
        "subPathExpr": _inner_path,
        "mountPropagation": _choice("None", "HostToContainer", "Bidirectional"),
        "recursiveReadOnly": _choice("Disabled", "IfPossible", "Enabled"),
    },
    "VolumeDevice": {"devicePath": _no_way_up},
    "EmptyDirVolumeSource": {"sizeLimit": _size},
    "HostPathVolumeSource": {
        "path": _no_way_up,
        "type": _choice(
            "", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"
        ),
    },
    "KeyToPath": {"key": _key, "path": _file_path, "mode": _file_mode},
    "DownwardAPIVolumeFile": {"path": _file_path, "mode": _file_mode},
    "ConfigMapVolumeSource": {"defaultMode": _file_mode},
    "SecretVolumeSource": {"defaultMode": _file_mode},
    "DownwardAPIVolumeSource": {"defaultMode": _file_mode},
    "ProjectedVolumeSource": {"defaultMode": _file_mode},
    "ServiceAccountTokenProjection": {"expirationSeconds": _between(600, 2**32), "path": _file_path},
    "Probe": {
        "initialDelaySeconds": _not_negative,
        "timeoutSeconds": _not_negative,
        "periodSeconds": _not_negative,
        "successThreshold": _not_negative,
        "failureThreshold": _not_negative,
        "terminationGracePeriodSeconds": _between(1, 2**63 - 1),
    },
    "HTTPGetAction": {"port": _port, "scheme": _choice("HTTP", "HTTPS")},
    "HTTPHeader": {"name": _header},
    "TCPSocketAction": {"port": _port},
    "GRPCAction": {"port": _port},
    "SecurityContext": {
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "procMount": _choice("Default", "Unmasked"),
    },
    "PodSecurityContext": {
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
        "supplementalGroups": _each(_USER),
        "fsGroupChangePolicy": _choice("OnRootMismatch", "Always"),
        "supplementalGroupsPolicy": _choice("Merge", "Strict"),
        "seLinuxChangePolicy": _choice("MountOption", "Recursive"),
    },
    "SeccompProfile": {"type": _PROFILE, "localhostProfile": _inner_path},
    "AppArmorProfile": {"type": _PROFILE},
    "PodOS": {"name": _choice("linux", "windows")},
    "PodDNSConfig": {"nameservers": _each(_address)},
    "HostAlias": {"ip": _address, "hostnames": _each(check_subdomain)},
    "PodReadinessGate": {"conditionType": check_label_key},
    "PodSchedulingGate": {"name": check_label_key},
    "PodResourceClaim": {"name": _label},
    "Toleration": {
        "key": check_label_key,
        "operator": _choice("Exists", "Equal", "Lt", "Gt"),
        "effect": _choice("NoSchedule", "PreferNoSchedule", "NoExecute"),
    },
    "NodeSelectorRequirement": {"operator": _choice(*_SELECTORS, "Gt", "Lt")},
    "LabelSelectorRequirement": {"operator": _choice(*_SELECTORS), "key": check_label_key},
    "LabelSelector": {"matchLabels": label_rules},
    "PreferredSchedulingTerm": {"weight": _WEIGHT},
    "WeightedPodAffinityTerm": {"weight": _WEIGHT},
    "PodAffinityTerm": {"topologyKey": check_label_key, "namespaces": _each(_label)},
    "TopologySpreadConstraint": {
        "maxSkew": _between(1, INT32_MAX),
        "minDomains": _between(1, INT32_MAX),
        "whenUnsatisfiable": _choice("DoNotSchedule", "ScheduleAnyway"),
        "nodeAffinityPolicy": _HONOR,
        "nodeTaintsPolicy": _HONOR,
    },
}
