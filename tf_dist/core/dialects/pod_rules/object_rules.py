"""Rules of objects by type: required fields, and relations between fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tf_dist.core.dialects.field_errors import MISSING, FieldErrors
from tf_dist.core.dialects.pod_rules.field_rules import (
    FIELD_RULES,
    KEY_HINT,
    VALUE_HINT,
    check_label_key,
    check_subdomain,
)
from tf_dist.core.model.fieldpath import FieldPath, mapping, suggestion
from tf_dist.core.model.names import is_label_key, is_label_value

ObjectRule = Callable[[Mapping[str, Any], FieldPath, FieldErrors], None]
"""Checks relations between the fields of an object; fields of a wrong type are left out."""

REQUIRED: Final[Mapping[str, Mapping[str, str]]] = {
    "Container": {"image": "add image: with the image of the container"},
    "ContainerPort": {"containerPort": "add containerPort: with the number of the port"},
    "EnvVar": {"name": "add name: with the name of the variable"},
    "VolumeMount": {"mountPath": "add mountPath: with the folder in the container"},
    "PersistentVolumeClaimVolumeSource": {"claimName": "add claimName: with the name of the PersistentVolumeClaim"},
    "ConfigMapKeySelector": {"name": "add name: with the name of the ConfigMap", "key": "add key: with its key"},
    "SecretKeySelector": {"name": "add name: with the name of the Secret", "key": "add key: with its key"},
    "ConfigMapEnvSource": {"name": "add name: with the name of the ConfigMap"},
    "SecretEnvSource": {"name": "add name: with the name of the Secret"},
    "ConfigMapVolumeSource": {"name": "add name: with the name of the ConfigMap"},
    "SecretVolumeSource": {"secretName": "add secretName: with the name of the Secret"},
    "ConfigMapProjection": {"name": "add name: with the name of the ConfigMap"},
    "SecretProjection": {"name": "add name: with the name of the Secret"},
    "ExecAction": {"command": "add command: with the list of its words"},
    "HTTPHeader": {"name": "add name: with the name of the header"},
    "PodDNSConfigOption": {"name": "add name: with the name of the option"},
    "TopologySpreadConstraint": {
        "whenUnsatisfiable": "add whenUnsatisfiable: DoNotSchedule or ScheduleAnyway",
        "topologyKey": "add topologyKey: with a label of nodes",
        "maxSkew": "add maxSkew: 1 or more",
    },
    "WeightedPodAffinityTerm": {"weight": "add weight: 1 to 100"},
    "PreferredSchedulingTerm": {"weight": "add weight: 1 to 100"},
    "NodeSelector": {"nodeSelectorTerms": "add at least one term"},
}
"""Fields that an API server requires in addition to the schema, and hints for required fields."""


def _sources(found: Mapping[str, Any], fields: tuple[str, ...] = ()) -> list[str]:
    """The present fields among these."""
    return [key for key in fields or found if found.get(key) is not None]


_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")


def _check_handler(handler: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    found = _sources(handler, _HANDLERS)
    if len(found) > 1:
        out.contradiction(loc, f"has {' and '.join(found)}; one handler is allowed", "keep one of them")
    elif not found and not out.has_error_in(loc):
        out.error(loc, "has no handler", "add exec, httpGet, tcpSocket or grpc")


def _check_env_from(source: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if len(_sources(source, ("configMapRef", "secretRef"))) != 1 and not out.has_error_in(loc):
        out.error(loc, "names exactly one source", "keep one of configMapRef and secretRef")


def _check_variable(entry: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    source = entry.get("valueFrom")
    if source is None:
        return
    if entry.get("value"):
        out.contradiction(loc, "has both value and valueFrom", "keep one of them")
        return
    place = (*loc, "valueFrom")
    if sum(part is not None for part in source.values()) != 1:
        out.error(place, "names exactly one source", "keep one of configMapKeyRef, secretKeyRef, fieldRef")
    _check_field(source, _ENV_FIELDS, place, out)
    _check_resource_field(source, place, out)


_SUBSCRIPT: Final = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_POD_FIELDS: Final = ("metadata.name", "metadata.namespace", "metadata.uid")
_ENV_FIELDS: Final = (
    *_POD_FIELDS,
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_FILE_FIELDS: Final = (*_POD_FIELDS, "metadata.labels", "metadata.annotations")
_RESOURCES: Final = tuple(
    f"{part}.{name}" for part in ("limits", "requests") for name in ("cpu", "memory", "ephemeral-storage")
)
_UNITS: Final = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")


def _check_field(source: Mapping[str, Any], known: tuple[str, ...], loc: FieldPath, out: FieldErrors) -> None:
    path = mapping(source.get("fieldRef")).get("fieldPath")
    if not isinstance(path, str) or not path or path in known or (path == "spec.host" and known is _ENV_FIELDS):
        return
    place = (*loc, "fieldRef", "fieldPath")
    if subscript := _SUBSCRIPT.fullmatch(path):
        key = subscript[2]
        if not is_label_key(key.lower() if subscript[1] == "annotations" else key):
            out.error(place, f"{key!r} is not the key of a label or annotation", KEY_HINT)
        return
    same = next((one for one in known if one.endswith(f".{path.rpartition('.')[2]}")), "")
    hint = f"did you mean {same}?" if same else suggestion(path, known)
    out.error(place, f"{path!r} is not a field of a pod that can be used here", hint)


def _check_resource_field(source: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    found = mapping(source.get("resourceFieldRef"))
    name = found.get("resource")
    place = (*loc, "resourceFieldRef", "resource")
    known = not name or name in _RESOURCES or str(name).startswith(("limits.hugepages-", "requests.hugepages-"))
    if isinstance(name, str) and not known:
        out.error(place, f"{name!r} is not a resource that can be used here", suggestion(name, _RESOURCES))
        return
    divisor = found.get("divisor")
    allowed = ("1m", "1") if isinstance(name, str) and name.endswith(".cpu") else _UNITS
    if isinstance(divisor, (str, int)) and str(divisor) not in ("0", "", *allowed):
        out.error((*loc, "resourceFieldRef", "divisor"), f"{divisor!r} is not a unit of {name}", "write 1")


def _check_file(item: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if len(_sources(item, ("fieldRef", "resourceFieldRef"))) != 1 and not out.has_error_in(loc):
        out.error(loc, "names exactly one source", "keep one of fieldRef and resourceFieldRef")
    _check_field(item, _FILE_FIELDS, loc, out)
    _check_resource_field(item, loc, out)
    if item.get("resourceFieldRef") is not None and not mapping(item["resourceFieldRef"]).get("containerName"):
        out.error((*loc, "resourceFieldRef", "containerName"), MISSING, "add containerName:")


def _check_toleration(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    operator, value = found.get("operator") or "Equal", found.get("value")
    if operator == "Exists" and value:
        out.error((*loc, "value"), "has no meaning with operator Exists", "remove it, or write operator: Equal")
    elif not found.get("key") and operator != "Exists" and not out.has_error_in(loc):
        out.error((*loc, "operator"), "without a key must be Exists", "add key:, or write operator: Exists")
    elif operator == "Equal" and isinstance(value, str) and not is_label_value(value):
        out.error((*loc, "value"), f"{value!r} is not the value of a taint", VALUE_HINT)
    elif operator in ("Lt", "Gt") and not re.fullmatch(r"-?(?:0|[1-9][0-9]{0,18})", str(value or "")):
        out.error((*loc, "value"), f"must be a whole number in quotes with operator {operator}", 'write "10"')
    if found.get("tolerationSeconds") is not None and found.get("effect") != "NoExecute":
        out.error((*loc, "effect"), "must be NoExecute where tolerationSeconds is set", "write effect: NoExecute")


def _check_node_requirement(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    _check_values(found, loc, out)
    if found.get("operator") in ("Gt", "Lt") and len(found.get("values") or ()) != 1:
        out.error((*loc, "values"), f"must be one value with operator {found['operator']}", "write one number")
    key = found.get("key")
    if isinstance(key, str) and loc[-2:-1] == ("matchFields",):
        if key and key != "metadata.name":
            out.error((*loc, "key"), f"{key!r} is not a field of nodes", "write metadata.name")
    else:
        check_label_key(key or "", (*loc, "key"), out)
        if "preferredDuringSchedulingIgnoredDuringExecution" not in loc:
            _label_values(found, loc, out)


def _check_label_requirement(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    _check_values(found, loc, out)
    _label_values(found, loc, out)


def _label_values(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    for index, value in enumerate(found.get("values") or ()):
        if isinstance(value, str) and not is_label_value(value):
            out.error((*loc, "values", index), f"{value!r} is not the value of a label", VALUE_HINT)


def _check_values(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    operator, values = found.get("operator"), found.get("values")
    if operator in ("In", "NotIn") and not values:
        out.error((*loc, "values"), f"must not be empty with operator {operator}", "add values, or write Exists")
    elif operator in ("Exists", "DoesNotExist") and values:
        out.error((*loc, "values"), f"has no meaning with operator {operator}", "remove it, or write operator: In")


def _check_spread(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if found.get("minDomains") is not None and found.get("whenUnsatisfiable") == "ScheduleAnyway":
        out.error((*loc, "minDomains"), "needs whenUnsatisfiable: DoNotSchedule", "remove it")
    _check_label_keys(found, loc, out)


def _check_label_keys(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    for field in ("matchLabelKeys", "mismatchLabelKeys"):
        if found.get(field) and found.get("labelSelector") is None:
            out.error((*loc, field), "needs a labelSelector", "add labelSelector:, or remove it")
        for index, key in enumerate(found.get(field) or ()):
            if isinstance(key, str):
                check_label_key(key, (*loc, field, index), out)


def _check_security(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if found.get("allowPrivilegeEscalation") is not False:
        return
    added = mapping(found.get("capabilities")).get("add") or ()
    if found.get("privileged") is True:
        out.error(
            (*loc, "allowPrivilegeEscalation"),
            "must not be false where privileged is true",
            "remove one of them",
        )
    elif "CAP_SYS_ADMIN" in added:
        out.error((*loc, "allowPrivilegeEscalation"), "must not be false with CAP_SYS_ADMIN", "remove one of them")


def _check_profile(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    local, named = found.get("type") == "Localhost", found.get("localhostProfile")
    if local and not named and not out.has_error_in(loc):
        out.error((*loc, "localhostProfile"), MISSING, "add localhostProfile: with the profile's path on the node")
    elif not local and named is not None and found.get("type"):
        out.error((*loc, "localhostProfile"), "needs type: Localhost", "remove it, or write type: Localhost")


def _check_projection(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if len(sources := _sources(found)) > 1:
        out.contradiction(loc, f"has {' and '.join(sources)}; one source is allowed", "give each an item of its own")


def _check_dns(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if len(found.get("nameservers") or ()) > 3:
        out.error((*loc, "nameservers"), "more than 3 name servers", "keep three of them")
    searches = found.get("searches") or ()
    if len(searches) > 32 or len(" ".join(map(str, searches))) > 2048:
        out.error((*loc, "searches"), "more than 32 search domains, or 2048 characters", "remove some")
    for index, search in enumerate(searches):
        if isinstance(search, str) and search != ".":
            check_subdomain(search.removesuffix(".").replace("_", "a"), (*loc, "searches", index), out)


def _check_claim(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if len(_sources(found, ("resourceClaimName", "resourceClaimTemplateName"))) != 1 and not out.has_error_in(loc):
        out.error(loc, "names exactly one claim", "keep one of resourceClaimName and resourceClaimTemplateName")


def _check_probe(probe: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    _check_handler(probe, loc, out)
    if loc[-1] == "readinessProbe":
        if probe.get("terminationGracePeriodSeconds") is not None:
            place = (*loc, "terminationGracePeriodSeconds")
            out.error(place, "has no meaning for a readiness probe", "remove it")
    elif probe.get("successThreshold") not in (None, 0, 1):
        out.error((*loc, "successThreshold"), f"must be 1 for a {loc[-1]}", "write 1, or remove it")


def _check_mount(mount: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if mount.get("subPath") and mount.get("subPathExpr"):
        out.error((*loc, "subPathExpr"), "cannot be combined with subPath", "keep one of them")
    if mount.get("recursiveReadOnly") in ("IfPossible", "Enabled") and mount.get("readOnly") is not True:
        out.error((*loc, "recursiveReadOnly"), "needs readOnly: true", "add readOnly: true")


OBJECT_RULES: Final[Mapping[str, ObjectRule]] = {
    "EnvVar": _check_variable,
    "EnvFromSource": _check_env_from,
    "DownwardAPIVolumeFile": _check_file,
    "Probe": _check_probe,
    "LifecycleHandler": _check_handler,
    "VolumeMount": _check_mount,
    "Toleration": _check_toleration,
    "NodeSelectorRequirement": _check_node_requirement,
    "LabelSelectorRequirement": _check_label_requirement,
    "TopologySpreadConstraint": _check_spread,
    "PodAffinityTerm": _check_label_keys,
    "SecurityContext": _check_security,
    "SeccompProfile": _check_profile,
    "AppArmorProfile": _check_profile,
    "VolumeProjection": _check_projection,
    "PodDNSConfig": _check_dns,
    "PodResourceClaim": _check_claim,
}


def check_object(type_: str, found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    """Check one object of a type, without its fields of a wrong type."""
    for field, hint in REQUIRED.get(type_, {}).items():
        if found.get(field) in (None, "", []):
            out.error((*loc, field), MISSING, hint)
    for field, rule in FIELD_RULES.get(type_, {}).items():
        value = found.get(field)
        if value is not None:
            rule(value, (*loc, field), out)
    if whole := OBJECT_RULES.get(type_):
        whole(found, loc, out)
