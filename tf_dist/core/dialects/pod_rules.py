"""The rules of pods that an API server checks: the types of Kubernetes, and rules of fields and objects.

A rule belongs to a type of the Kubernetes API, and applies to every object of that type in a pod. ``pod_template``
checks relations between parts of a pod.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from tf_dist.core.dialects import field_rules as rules
from tf_dist.core.dialects.common_schema import INT32_MAX
from tf_dist.core.dialects.field_errors import (
    MISSING,
    FieldErrors,
    check_quantity,
    describe_value,
    quote_hint,
    wrong_type,
)
from tf_dist.core.model.fieldpath import FieldPath, list_items, mapping, mappings, nearest_word, suggestion, value_at
from tf_dist.core.model.names import is_label_key, is_label_value
from tf_dist.core.openapi.kubernetes_types import (
    NOT_THERE,
    UNKNOWN,
    TypedObject,
    TypeMistake,
    fields_of,
    type_mistakes,
)

ObjectRule = Callable[[Mapping[str, Any], FieldPath, FieldErrors], None]
"""Checks relations between the fields of an object, without fields of a wrong type."""


# -- fields --

_label_values: Final = rules.each(rules.label_value)
_ACCESS_MODE: Final = rules.choice("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod", empty=False)
_IQN: Final = rules.matches(
    re.compile(r"iqn\.\d{4}-\d{2}\.[-a-z0-9.]+(?::[!-~]*)?|eui\.[0-9A-Fa-f]{16}|naa\.[0-9A-Fa-f]{16,32}").fullmatch,
    "an iSCSI name",
    "write a name that starts with iqn., eui. or naa.",
)
_REGISTRY: Final = rules.matches(
    lambda value: all(re.fullmatch(r"[^:,]+:[^:,]+", one) for one in value.split(",")),
    "a list of addresses",
    "write HOST:PORT, or several separated by commas",
)
_USER: Final = rules.between(0, INT32_MAX)
_WEIGHT: Final = rules.between(1, 100)
_PARTITION: Final = rules.between(0, 255)
_MODE: Final = {"defaultMode": rules.file_mode}
_LABEL_KEYS: Final = ("matchLabelKeys", "mismatchLabelKeys")
_SELECTORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")
_PROFILE: Final = rules.choice("Localhost", "RuntimeDefault", "Unconfined")
_HONOR: Final = rules.choice("Honor", "Ignore", empty=False)
_PULL_POLICY: Final = rules.choice("Always", "IfNotPresent", "Never")
_NO_SLASH: Final = rules.matches(lambda name: "/" not in name, "a name without '/'", "remove '/'")
_PATH_OF_SERVER: Final = rules.matches(lambda path: path.startswith("/"), "an absolute path", "begin it with /")
_SYSCTL: Final = rules.matches(
    re.compile(r"(?=.{1,253}$)(?:[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?").fullmatch,
    "the name of a sysctl",
    "write a name such as net.core.somaxconn",
)
_WINDOWS_USER: Final = rules.matches(
    re.compile(r"(?:[^\\]{1,256}\\)?(?![. ]*$)[^\"/\\:;|=,+*?<>@\[\]\0-\x1f]{1,104}").fullmatch,
    "the name of a Windows user",
    "write ContainerUser, or DOMAIN\\\\user",
)

_FIELD_RULES: Final[Mapping[str, Mapping[str, rules.FieldRule]]] = {
    "PodSpec": {
        "activeDeadlineSeconds": rules.between(1, INT32_MAX),
        "terminationGracePeriodSeconds": rules.not_negative,
        "restartPolicy": rules.choice("Always", "OnFailure", "Never"),
        "dnsPolicy": rules.choice("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
        "preemptionPolicy": rules.choice("PreemptLowerPriority", "Never", empty=False),
        "nodeSelector": rules.labels,
        "hostname": rules.dns_label,
        "subdomain": rules.dns_label,
        "hostnameOverride": rules.subdomain,
        "serviceAccountName": rules.subdomain,
        "priorityClassName": rules.subdomain,
        "runtimeClassName": rules.subdomain,
        "nodeName": rules.subdomain,
    },
    "ObjectMeta": {"labels": rules.labels, "annotations": rules.annotation_keys},
    "Container": {
        "name": rules.dns_label,
        "image": rules.image_name,
        "imagePullPolicy": _PULL_POLICY,
        "terminationMessagePolicy": rules.choice("File", "FallbackToLogsOnError"),
        "restartPolicy": rules.choice("Always", "OnFailure", "Never", empty=False),
    },
    "ContainerRestartRule": {"action": rules.choice("Restart", empty=False)},
    "ContainerRestartRuleOnExitCodes": {"operator": rules.choice("In", "NotIn", empty=False)},
    "ResourceClaim": {"request": rules.dns_label},
    "ContainerPort": {
        "name": rules.port_name,
        "containerPort": rules.port_number,
        "hostPort": rules.host_port,
        "protocol": rules.choice("TCP", "UDP", "SCTP"),
    },
    "ContainerResizePolicy": {
        "resourceName": rules.choice("cpu", "memory"),
        "restartPolicy": rules.choice("NotRequired", "RestartContainer"),
    },
    "EnvVar": {"name": rules.variable_name},
    "EnvFromSource": {"prefix": rules.variable_name},
    "ConfigMapKeySelector": {"name": rules.subdomain, "key": rules.config_key},
    "SecretKeySelector": {"name": rules.subdomain, "key": rules.config_key},
    "ConfigMapEnvSource": {"name": rules.subdomain},
    "SecretEnvSource": {"name": rules.subdomain},
    "ObjectFieldSelector": {"apiVersion": rules.choice("v1")},
    "FileKeySelector": {"key": rules.variable_name, "volumeName": rules.dns_label, "path": rules.path_without_dots},
    "Volume": {"name": rules.dns_label},
    "VolumeMount": {
        "mountPath": rules.absolute_path,
        "subPath": rules.inner_path,
        "subPathExpr": rules.inner_path,
        "mountPropagation": rules.choice("None", "HostToContainer", "Bidirectional", empty=False),
        "recursiveReadOnly": rules.choice("Disabled", "IfPossible", "Enabled", empty=False),
    },
    "VolumeDevice": {"devicePath": rules.path_without_dots},
    "EmptyDirVolumeSource": {"sizeLimit": rules.amount},
    "HostPathVolumeSource": {
        "path": rules.path_without_dots,
        "type": rules.choice(
            "", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"
        ),
    },
    "NFSVolumeSource": {"path": _PATH_OF_SERVER},
    "CSIVolumeSource": {"driver": rules.csi_driver},
    "ImageVolumeSource": {"pullPolicy": _PULL_POLICY},
    "GitRepoVolumeSource": {"directory": rules.inner_path},
    "ISCSIVolumeSource": {"iqn": _IQN, "lun": _PARTITION},
    "FCVolumeSource": {"lun": _PARTITION},
    "AWSElasticBlockStoreVolumeSource": {"partition": _PARTITION},
    "GCEPersistentDiskVolumeSource": {"partition": _PARTITION},
    "AzureDiskVolumeSource": {
        "cachingMode": rules.choice("None", "ReadOnly", "ReadWrite", empty=False),
        "kind": rules.choice("Dedicated", "Managed", "Shared", empty=False),
    },
    "FlockerVolumeSource": {
        "datasetName": rules.matches(lambda name: "/" not in name, "a name without '/'", "remove '/'")
    },
    "QuobyteVolumeSource": {"registry": _REGISTRY},
    "StorageOSVolumeSource": {"volumeName": rules.dns_label},
    "PersistentVolumeClaimSpec": {
        "accessModes": rules.each(_ACCESS_MODE),
        "storageClassName": rules.subdomain,
        "volumeMode": rules.choice("Block", "Filesystem", empty=False),
    },
    "KeyToPath": {"key": rules.config_key, "path": rules.file_path, "mode": rules.file_mode},
    "DownwardAPIVolumeFile": {"path": rules.file_path, "mode": rules.file_mode},
    **{f"{volume}VolumeSource": _MODE for volume in ("ConfigMap", "Secret", "DownwardAPI", "Projected")},
    "ServiceAccountTokenProjection": {"expirationSeconds": rules.between(600, 2**32), "path": rules.file_path},
    "Probe": {
        **dict.fromkeys(("initialDelaySeconds", "timeoutSeconds", "periodSeconds"), rules.not_negative),
        **dict.fromkeys(("successThreshold", "failureThreshold"), rules.not_negative),
        "terminationGracePeriodSeconds": rules.between(1, 2**63 - 1),
    },
    "HTTPGetAction": {"port": rules.port, "scheme": rules.choice("HTTP", "HTTPS")},
    "HTTPHeader": {"name": rules.header_name},
    "TCPSocketAction": {"port": rules.port},
    "GRPCAction": {"port": rules.port},
    "SecurityContext": {
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "procMount": rules.choice("Default", "Unmasked", empty=False),
    },
    "PodSecurityContext": {
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
        "supplementalGroups": rules.each(_USER, int),
        "fsGroupChangePolicy": rules.choice("OnRootMismatch", "Always", empty=False),
        "supplementalGroupsPolicy": rules.choice("Merge", "Strict", empty=False),
        "seLinuxChangePolicy": rules.choice("MountOption", "Recursive", empty=False),
    },
    "WindowsSecurityContextOptions": {
        "gmsaCredentialSpecName": rules.not_empty(rules.subdomain),
        "gmsaCredentialSpec": rules.not_empty(lambda *_: None),
        "runAsUserName": rules.not_empty(_WINDOWS_USER),
    },
    "SeccompProfile": {"type": _PROFILE, "localhostProfile": rules.inner_path},
    "AppArmorProfile": {"type": _PROFILE},
    "Sysctl": {"name": _SYSCTL},
    "PodOS": {"name": rules.choice("linux", "windows")},
    "PodDNSConfig": {"nameservers": rules.each(rules.address)},
    "HostAlias": {"ip": rules.address, "hostnames": rules.each(rules.not_empty(rules.subdomain))},
    "PodReadinessGate": {"conditionType": rules.label_key},
    "PodSchedulingGate": {"name": rules.label_key},
    "PodResourceClaim": {
        "name": rules.dns_label,
        **dict.fromkeys(("resourceClaimName", "resourceClaimTemplateName"), rules.not_empty(rules.subdomain)),
    },
    "Toleration": {
        "key": rules.label_key,
        "operator": rules.choice("Exists", "Equal", "Lt", "Gt"),
        "effect": rules.choice("NoSchedule", "PreferNoSchedule", "NoExecute"),
    },
    "NodeSelectorRequirement": {"operator": rules.choice(*_SELECTORS, "Gt", "Lt")},
    "LabelSelectorRequirement": {
        "operator": rules.choice(*_SELECTORS),
        "key": rules.label_key,
        "values": _label_values,
    },
    "LabelSelector": {"matchLabels": rules.labels},
    "PreferredSchedulingTerm": {"weight": _WEIGHT},
    "WeightedPodAffinityTerm": {"weight": _WEIGHT},
    "PodAffinityTerm": {
        "topologyKey": rules.label_key,
        "namespaces": rules.each(rules.not_empty(rules.dns_label)),
        **dict.fromkeys(_LABEL_KEYS, rules.each(rules.not_empty(rules.label_key))),
    },
    "TopologySpreadConstraint": {
        "maxSkew": rules.between(1, INT32_MAX),
        "minDomains": rules.between(1, INT32_MAX),
        "whenUnsatisfiable": rules.choice("DoNotSchedule", "ScheduleAnyway"),
        "nodeAffinityPolicy": _HONOR,
        "nodeTaintsPolicy": _HONOR,
        **dict.fromkeys(_LABEL_KEYS, rules.each(rules.not_empty(rules.label_key))),
    },
}


# -- objects --

_REQUIRED: Final[Mapping[str, Mapping[str, str]]] = {
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
    "ContainerRestartRule": {"exitCodes": "add exitCodes: with operator: In and values: [3]"},
    "CSIVolumeSource": {"driver": "add driver: with the name of the CSI driver"},
    "EphemeralVolumeSource": {"volumeClaimTemplate": "add volumeClaimTemplate: with the claim's spec"},
    "ImageVolumeSource": {"reference": "add reference: with the name of the image"},
    "CephFSVolumeSource": {"monitors": "add monitors: with at least one address"},
    "RBDVolumeSource": {"monitors": "add monitors: with at least one address"},
    "ScaleIOVolumeSource": {"volumeName": "add volumeName: with the name of the volume"},
    "StorageOSVolumeSource": {"volumeName": "add volumeName: with the name of the volume"},
    "PersistentVolumeClaimSpec": {"accessModes": "add accessModes: [ReadWriteOnce]"},
    "ExecAction": {"command": "add command: with the list of its words"},
    "HTTPHeader": {"name": "add name: with the name of the header"},
    "Sysctl": {"name": "add name: with the name of the sysctl"},
    "PodDNSConfigOption": {"name": "add name: with the name of the option"},
    "TopologySpreadConstraint": {
        "whenUnsatisfiable": "add whenUnsatisfiable: DoNotSchedule or ScheduleAnyway",
        "topologyKey": "add topologyKey: with a label of nodes",
        "maxSkew": "add maxSkew: 1 or more",
    },
    "WeightedPodAffinityTerm": {"weight": "add weight: 1 to 100"},
    "PreferredSchedulingTerm": {"weight": "add weight: 1 to 100"},
    "NodeSelector": {"nodeSelectorTerms": "add at least one term"},
    "LabelSelectorRequirement": {"key": "add key: with the name of the label"},
}
"""Fields that an API server requires in addition to the schema, and hints for required fields."""


class _OneOf(NamedTuple):
    """Alternative fields: an object must have exactly one of them."""

    fields: tuple[str, ...]
    what: str = "source"
    hint: str = ""  # default: keep one of the fields

    def check(self, found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
        if len(_present(found, self.fields)) != 1 and not out.has_error_in(loc):
            hint = self.hint or f"keep one of {' and '.join(self.fields)}"
            out.error(loc, f"names exactly one {self.what}", hint)


_ONE_OF: Final[Mapping[str, _OneOf]] = {
    "EnvFromSource": _OneOf(("configMapRef", "secretRef")),
    "EnvVarSource": _OneOf((), hint="keep one of configMapKeyRef, secretKeyRef, fieldRef"),
    "DownwardAPIVolumeFile": _OneOf(("fieldRef", "resourceFieldRef")),
    "FCVolumeSource": _OneOf(("targetWWNs", "wwids"), "kind of target"),
    "FlockerVolumeSource": _OneOf(("datasetName", "datasetUUID"), "dataset"),
    "PodResourceClaim": _OneOf(("resourceClaimName", "resourceClaimTemplateName"), "claim"),
}


def _present(found: Mapping[str, Any], fields: tuple[str, ...] = ()) -> list[str]:
    """The present fields among these."""
    return [key for key in fields or found if found.get(key) not in (None, "", [])]


_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")


def _check_handler(handler: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    found = _present(handler, _HANDLERS)
    if len(found) > 1:
        out.contradiction(loc, f"has {' and '.join(found)}; one handler is allowed", "keep one of them")
    elif not found and not out.has_error_in(loc):
        out.error(loc, "has no handler", "add exec, httpGet, tcpSocket or grpc")


def _check_variable(entry: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if entry.get("value") and entry.get("valueFrom") is not None:
        out.contradiction(loc, "has both value and valueFrom", "keep one of them")


def _check_variable_source(source: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    _check_field(source, _ENV_FIELDS, loc, out)
    _check_resource_field(source, loc, out)


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
            out.error(place, f"{key!r} is not the key of a label or annotation", rules.KEY_HINT)
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
        out.error((*loc, "value"), f"{value!r} is not the value of a taint", rules.VALUE_HINT)
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
        elif len(values := found.get("values") or ()) > 1:
            out.error((*loc, "values"), "must be one name of a node", "write a term for each node")
        else:
            rules.each(rules.not_empty(rules.subdomain))(values, (*loc, "values"), out)
    else:
        rules.label_key(key or "", (*loc, "key"), out)
        if "preferredDuringSchedulingIgnoredDuringExecution" not in loc:
            _label_values(found.get("values") or (), (*loc, "values"), out)


def _check_values(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    operator, values = found.get("operator"), found.get("values")
    if operator in ("In", "NotIn") and not values:
        out.error((*loc, "values"), MISSING, f"{operator} needs at least one value; Exists checks only the key")
    elif operator in ("Exists", "DoesNotExist") and values:
        out.error((*loc, "values"), f"must be left out: {operator} checks only the key", "or write operator: In")


def _check_spread(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if found.get("minDomains") is not None and found.get("whenUnsatisfiable") == "ScheduleAnyway":
        out.error((*loc, "minDomains"), "needs whenUnsatisfiable: DoNotSchedule", "remove it")
    _check_label_keys(found, loc, out)


def _check_label_keys(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    for field in _LABEL_KEYS:
        if found.get(field) and found.get("labelSelector") is None:
            out.error((*loc, field), "needs a labelSelector", "add labelSelector:, or remove it")
    # An API server adds the pod's own values of these labels to the selector.
    selector, same, other = mapping(found.get("labelSelector")), *(list_items(found.get(one)) for one in _LABEL_KEYS)
    selected = [
        *mapping(selector.get("matchLabels")),
        *(x.get("key") for x in mappings(selector.get("matchExpressions"))),
    ]
    for index, key in enumerate(same):
        for where, keys in (("labelSelector", selected), ("mismatchLabelKeys", other), ("this list", same[:index])):
            if key in keys:
                out.error((*loc, _LABEL_KEYS[0], index), f"{key!r} is also in {where}", "remove one of them")


def _check_security(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if found.get("allowPrivilegeEscalation") is not False:
        return
    added = mapping(found.get("capabilities")).get("add") or ()
    place, hint = (*loc, "allowPrivilegeEscalation"), "remove one of them"
    if found.get("privileged") is True:
        out.error(place, "must not be false where privileged is true", hint)
    elif "CAP_SYS_ADMIN" in added:
        out.error(place, "must not be false with CAP_SYS_ADMIN", hint)


def _check_profile(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    local, named = found.get("type") == "Localhost", found.get("localhostProfile")
    if local and not named and not out.has_error_in(loc):
        out.error((*loc, "localhostProfile"), MISSING, "add localhostProfile: with the profile's path on the node")
    elif not local and named is not None and found.get("type"):
        out.error((*loc, "localhostProfile"), "needs type: Localhost", "remove it, or write type: Localhost")


def _check_container(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    rules = list_items(found.get("restartPolicyRules"))
    if rules and found.get("restartPolicy") is None:
        out.error((*loc, "restartPolicy"), MISSING, "add restartPolicy: Never; the rules name exceptions from it")
    if len(rules) > 20:
        out.error((*loc, "restartPolicyRules"), "more than 20 rules", "name several exit codes in a rule")


def _check_azure_disk(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    uri, managed = found.get("diskURI"), found.get("kind") == "Managed"
    start = "/subscriptions/" if managed else "https://"
    if isinstance(uri, str) and uri and not uri.startswith(start):
        out.error((*loc, "diskURI"), f"does not begin with {start}", "copy the URI of the disk from Azure")


def _check_fibre_channel(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if found.get("targetWWNs") and found.get("lun") is None and not out.has_error_in(loc):
        out.error((*loc, "lun"), MISSING, "add lun: with the number of the device")


def _check_csi(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    secret, place = found.get("nodePublishSecretRef"), (*loc, "nodePublishSecretRef", "name")
    if isinstance(secret, Mapping):
        if secret.get("name"):
            rules.subdomain(str(secret["name"]), place, out)
        else:
            out.error(place, MISSING, "add name: with the name of the Secret")


def _check_claim(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    storage = value_at(found, "resources", "requests", "storage")
    place = (*loc, "resources", "requests", "storage")
    if storage is None:
        out.error(place, MISSING, "add storage: with the size of the volume, such as 10Gi")
    elif (size := check_quantity(storage, place, FieldErrors(advice=False))) is not None and size <= 0:
        out.error(place, "must be more than 0", "write the size of the volume, such as 10Gi")


def _check_projected(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    seen: set[str] = set()
    for index, source in enumerate(list_items(found.get("sources"))):
        for kind, content in mapping(source).items():
            place = (*loc, "sources", index, kind)
            items = [((*place, "items", at), one) for at, one in enumerate(list_items(mapping(content).get("items")))]
            for at, item in items or [(place, content)]:
                path = mapping(item).get("path")
                if isinstance(path, str) and path in seen:
                    out.error((*at, "path"), f"a second file {path!r} in this volume", "change the path of one of them")
                elif isinstance(path, str):
                    seen.add(path)


def _check_projection(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if len(sources := _present(found)) > 1:
        out.contradiction(loc, f"has {' and '.join(sources)}; one source is allowed", "give each an item of its own")


def _check_dns(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if len(found.get("nameservers") or ()) > 3:
        out.error((*loc, "nameservers"), "more than 3 name servers", "keep three of them")
    searches = found.get("searches") or ()
    if len(searches) > 32 or len(" ".join(map(str, searches))) > 2048:
        out.error((*loc, "searches"), "more than 32 search domains, or 2048 characters", "remove some")
    for index, search in enumerate(searches):
        if isinstance(search, str) and search != ".":
            rules.not_empty(rules.subdomain)(search.removesuffix(".").replace("_", "a"), (*loc, "searches", index), out)


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


_OBJECT_RULES: Final[Mapping[str, ObjectRule]] = {
    "Container": _check_container,
    "AzureDiskVolumeSource": _check_azure_disk,
    "CSIVolumeSource": _check_csi,
    "FCVolumeSource": _check_fibre_channel,
    "PersistentVolumeClaimSpec": _check_claim,
    "ProjectedVolumeSource": _check_projected,
    "EnvVar": _check_variable,
    "EnvVarSource": _check_variable_source,
    "DownwardAPIVolumeFile": _check_file,
    "Probe": _check_probe,
    "LifecycleHandler": _check_handler,
    "VolumeMount": _check_mount,
    "Toleration": _check_toleration,
    "NodeSelectorRequirement": _check_node_requirement,
    "LabelSelectorRequirement": _check_values,
    "TopologySpreadConstraint": _check_spread,
    "PodAffinityTerm": _check_label_keys,
    "SecurityContext": _check_security,
    "SeccompProfile": _check_profile,
    "AppArmorProfile": _check_profile,
    "VolumeProjection": _check_projection,
    "PodDNSConfig": _check_dns,
}


_UNIQUE: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "Container": (("resizePolicy", "resourceName"), ("volumeDevices", "name"), ("volumeDevices", "devicePath")),
    "PodSecurityContext": (("sysctls", "name"),),
}
"""Lists of a type, and the field in which their items must differ."""


def _check_unique(type_: str, found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    for field, key in _UNIQUE.get(type_, ()):
        values = [mapping(one).get(key) for one in list_items(found.get(field))]
        for index, value in enumerate(values):
            if value is not None and value in values[:index]:
                out.error((*loc, field, index, key), f"a second item with {value!r}", "remove one of them")


def _check_object(type_: str, found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    """Check one object of a type, without its fields of a wrong type."""
    for field, hint in _REQUIRED.get(type_, {}).items():
        if found.get(field) in (None, "", []):
            out.error((*loc, field), MISSING, hint)
    for field, rule in _FIELD_RULES.get(type_, {}).items():
        value = found.get(field)
        if value is not None:
            rule(value, (*loc, field), out)
    if one_of := _ONE_OF.get(type_):
        one_of.check(found, loc, out)
    _check_unique(type_, found, loc, out)
    if whole := _OBJECT_RULES.get(type_):
        whole(found, loc, out)


# -- values --


def check_typed(value: object, type_: str, loc: FieldPath, out: FieldErrors) -> None:
    """Check a value against a type of Kubernetes and the rules of all objects in it."""
    check_rules(value, type_, loc, out, types=True)


def check_rules(value: object, type_: str, loc: FieldPath, out: FieldErrors, *, types: bool = False) -> None:
    """Check a value against the rules of all objects in it, without its fields of a wrong type.

    ``types``: whether fields of a wrong type are also reported.
    """
    objects: list[TypedObject] = []
    wrong: dict[FieldPath, set[str | int]] = {}
    for mistake in type_mistakes(value, type_, loc, objects):
        if out.full:
            return
        if types:
            _report(mistake, out)
        wrong.setdefault(mistake.loc[:-1], set()).add(mistake.loc[-1])
    for found in objects:
        if out.full:
            return
        bad = wrong.get(found.loc, ())
        inner = {key: item for key, item in found.value.items() if key not in bad} if bad else found.value
        _check_object(found.type, inner, found.loc, out)


def _report(mistake: TypeMistake, out: FieldErrors) -> None:
    loc, wanted, value, owner = mistake
    if wanted == UNKNOWN:
        known = fields_of(owner)
        if near := nearest_word(value, known):
            out.unknown_key(loc, f"did you mean {near}?")
        else:
            out.warn(loc, "unknown key: the API server will drop it")
    elif wanted == NOT_THERE:
        if (owner, loc[-1]) != ("PodSpec", "containers"):  # require_container reports it
            out.error(loc, MISSING, _REQUIRED.get(owner, {}).get(str(loc[-1]), ""))
    elif wanted == "key":
        out.error(loc[:-1], f"a key must be text, not {describe_value(value)}", quote_hint(value))
    else:
        out.error(loc, *wrong_type(wanted, value))
