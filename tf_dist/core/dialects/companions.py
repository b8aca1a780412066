"""Companion objects: ConfigMaps, Secrets, Services and PersistentVolumeClaims in the file of a job.

The rules are those of an API server, so that a file is refused before any of its objects exists. Messages do not
contain values of Secrets.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from tf_dist.core.dialects import field_rules as rules
from tf_dist.core.dialects.field_errors import MISSING, FieldErrors
from tf_dist.core.dialects.pod_rules import check_rules
from tf_dist.core.model.fieldpath import FieldPath, list_items, mapping, mappings, text, texts, value_at

_MOST_BYTES: Final = 1024 * 1024  # of all values of a ConfigMap or Secret
_SERVICE_NAME: Final = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")


def check_companion(content: Mapping[str, Any], out: FieldErrors) -> None:
    """Check the rules of an object whose types are right."""
    kind = str(content["kind"])
    check_rules(content, kind, (), out)
    match kind:
        case "ConfigMap":
            _check_data(content, "data", "binaryData", out)
            for key in mapping(content.get("data")).keys() & mapping(content.get("binaryData")).keys():
                out.error(("binaryData", str(key)), "is also in data", "remove one of them")
        case "Secret":
            _check_data(content, "stringData", "data", out)
            _check_secret(content, out)
        case "Service":
            _check_service(content, out)


# -- ConfigMaps and Secrets --


def _check_data(content: Mapping[str, Any], plain: str, encoded: str, out: FieldErrors) -> None:
    """Check the keys and the size. ``plain`` is the field with text, ``encoded`` that with base64."""
    size = 0
    for field in (plain, encoded):
        for key, value in texts(content.get(field)).items():
            rules.not_empty(rules.config_key)(key, (field, key), out)
            size += len(value.encode()) if field == plain else len(value) * 3 // 4
    if size > _MOST_BYTES:
        out.error((plain,), f"has {size} bytes; {_MOST_BYTES} are allowed", "put files into an image or a volume")


_SSH_KEY: Final = "ssh-privatekey"
_SECRET_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": (_SSH_KEY,),
}
"""The keys that a Secret of a type must have."""
_SERVICE_ACCOUNT: Final = "kubernetes.io/service-account.name"


def _check_secret(secret: Mapping[str, Any], out: FieldErrors) -> None:
    plain, encoded = texts(secret.get("stringData")), texts(secret.get("data"))
    type_ = text(secret.get("type"))
    for key in _SECRET_KEYS.get(type_, ()):
        if (key not in plain and key not in encoded) or (key == _SSH_KEY and not (plain.get(key) or encoded.get(key))):
            out.error(("data", key), MISSING, f"a Secret of type {type_} has it")
        elif key.startswith(".docker") and not _is_json(plain.get(key), encoded.get(key)):
            out.error(("data", key), "is not JSON", "use kubectl create secret docker-registry")
    if type_ == "kubernetes.io/basic-auth" and not {"username", "password"} & (plain.keys() | encoded.keys()):
        out.error(("data", "username"), MISSING, f"a Secret of type {type_} has username, password or both")
    account = value_at(secret, "metadata", "annotations", _SERVICE_ACCOUNT)
    if type_ == "kubernetes.io/service-account-token" and not account:
        out.error(("metadata", "annotations", _SERVICE_ACCOUNT), MISSING, "add it with the name of a ServiceAccount")


def _is_json(plain: str | None, encoded: str | None) -> bool:
    try:
        json.loads(base64.b64decode(encoded or "") if plain is None else plain)
    except (ValueError, binascii.Error):
        return False
    return True


# -- Services --


def _network(value: str, loc: FieldPath, out: FieldErrors) -> None:
    try:
        ipaddress.ip_network(value.strip(), strict=False)
    except ValueError:
        out.error(loc, f"{value!r} is not a network", "write a network such as 10.0.0.0/24")


def _cluster_ip(value: str, loc: FieldPath, out: FieldErrors) -> None:
    if value not in ("", "None"):
        rules.address(value, loc, out)


_POLICY: Final = rules.choice("Cluster", "Local", empty=False)
_SERVICE_FIELDS: Final[Mapping[str, rules.FieldRule]] = {
    "type": rules.choice("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"),
    "selector": rules.labels,
    "clusterIP": _cluster_ip,
    "externalIPs": rules.each(rules.address),
    "loadBalancerSourceRanges": rules.each(_network),
    "sessionAffinity": rules.choice("ClientIP", "None"),
    "externalTrafficPolicy": rules.choice("Cluster", "Local"),
    "internalTrafficPolicy": _POLICY,
    "ipFamilyPolicy": rules.choice("PreferDualStack", "RequireDualStack", "SingleStack", empty=False),
}
_PORT_FIELDS: Final[Mapping[str, rules.FieldRule]] = {
    "name": rules.dns_label,
    "port": rules.port_number,
    "protocol": rules.choice("TCP", "UDP", "SCTP"),
}


_TYPES_OF_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "externalTrafficPolicy": ("NodePort", "LoadBalancer"),
    "loadBalancerSourceRanges": ("LoadBalancer",),
}
"""The types of Services that may have a field."""


def _check_service(service: Mapping[str, Any], out: FieldErrors) -> None:
    name, spec = text(value_at(service, "metadata", "name")), mapping(service.get("spec"))
    if name and not _SERVICE_NAME.fullmatch(name):
        rule = "a letter first, then at most 62 lower-case letters, digits and '-'"
        out.error(("metadata", "name"), f"{name!r} is not the name of a Service", rule)
    for field, rule_of_field in _SERVICE_FIELDS.items():
        if spec.get(field) is not None:
            rule_of_field(spec[field], ("spec", field), out)
    type_ = spec.get("type") or "ClusterIP"
    if type_ == "ExternalName":
        rules.not_empty(rules.subdomain)(text(spec.get("externalName")), ("spec", "externalName"), out)
    elif not spec.get("ports") and spec.get("clusterIP") != "None":
        out.error(("spec", "ports"), MISSING, "add ports: [{port: 80}]")
    for field, types in _TYPES_OF_FIELDS.items():
        if spec.get(field) and type_ not in types:
            out.error(("spec", field), f"needs type: {' or '.join(types)}", "remove it, or change the type")
    seconds = value_at(spec, "sessionAffinityConfig", "clientIP", "timeoutSeconds")
    if type(seconds) is int:
        rules.between(1, 86400)(seconds, ("spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds"), out)
    _check_ports(spec, str(type_), out)


def _check_ports(spec: Mapping[str, Any], type_: str, out: FieldErrors) -> None:
    ports = mappings(spec.get("ports"))
    seen: set[tuple[object, ...]] = set()
    for index, port in enumerate(list_items(spec.get("ports"))):
        loc: FieldPath = ("spec", "ports", index)
        found = mapping(port)
        for field, rule in _PORT_FIELDS.items():
            if found.get(field) is not None:
                rule(found[field], (*loc, field), out)
        target = found.get("targetPort")
        if isinstance(target, int | str) and target not in (0, ""):
            rules.port(target, (*loc, "targetPort"), out)
        if len(ports) > 1 and not found.get("name"):
            out.error((*loc, "name"), MISSING, "each of several ports needs a name")
        if found.get("nodePort") and type_ not in ("NodePort", "LoadBalancer"):
            out.error((*loc, "nodePort"), "needs type: NodePort or LoadBalancer", "remove it, or change the type")
        protocol = found.get("protocol") or "TCP"
        marks = {"name": found.get("name"), "port": (protocol, found.get("port")), "nodePort": found.get("nodePort")}
        for field, mark in marks.items():
            if mark and (field, str(mark)) in seen:
                out.error((*loc, field), "is the same as that of another port", "change one of them")
            seen.add((field, str(mark)))
