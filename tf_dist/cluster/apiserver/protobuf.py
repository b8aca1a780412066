"""The protobuf bodies that kubectl's typed commands send (create namespace, auth can-i).

Only what those commands need is read, by a table of field numbers. Every other kind is asked for as JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from tf_dist.cluster.api import Object
from tf_dist.cluster.api_errors import BadRequest, UnsupportedMediaType

PROTOBUF_MEDIA = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# message: number -> (field, type); a type in [] repeats; "pairs" and "blobs" are maps to strings and to bytes.
_Fields = Mapping[int, tuple[str, str]]
_META: tuple[str, str] = ("metadata", "ObjectMeta")
_MESSAGES: Mapping[str, _Fields] = {
    "Unknown": {1: ("type", "TypeMeta"), 2: ("raw", "raw")},
    "TypeMeta": {1: ("apiVersion", "string"), 2: ("kind", "string")},
    "ObjectMeta": {
        1: ("name", "string"),
        2: ("generateName", "string"),
        3: ("namespace", "string"),
        5: ("uid", "string"),
        6: ("resourceVersion", "string"),
        11: ("labels", "pairs"),
        12: ("annotations", "pairs"),
        14: ("finalizers", "[string]"),
    },
    "Namespace": {1: _META},
    "ServiceAccount": {1: _META},
    "ConfigMap": {1: _META, 2: ("data", "pairs"), 3: ("binaryData", "blobs"), 4: ("immutable", "bool")},
    "Secret": {1: _META, 2: ("data", "blobs"), 3: ("type", "string"), 4: ("stringData", "pairs")},
    "PriorityClass": {
        1: _META,
        2: ("value", "int"),
        3: ("globalDefault", "bool"),
        4: ("description", "string"),
        5: ("preemptionPolicy", "string"),
    },
    "Role": {1: _META, 2: ("rules", "[PolicyRule]")},
    "ClusterRole": {1: _META, 2: ("rules", "[PolicyRule]")},
    "PolicyRule": {
        1: ("verbs", "[string]"),
        2: ("apiGroups", "[string]"),
        3: ("resources", "[string]"),
        4: ("resourceNames", "[string]"),
        5: ("nonResourceURLs", "[string]"),
    },
    "RoleBinding": {1: _META, 2: ("subjects", "[Subject]"), 3: ("roleRef", "RoleRef")},
    "ClusterRoleBinding": {1: _META, 2: ("subjects", "[Subject]"), 3: ("roleRef", "RoleRef")},
    "Subject": {1: ("kind", "string"), 2: ("apiGroup", "string"), 3: ("name", "string"), 4: ("namespace", "string")},
    "RoleRef": {1: ("apiGroup", "string"), 2: ("kind", "string"), 3: ("name", "string")},
    "Eviction": {1: _META, 2: ("deleteOptions", "DeleteOptions")},
    "DeleteOptions": {
        1: ("gracePeriodSeconds", "int"),
        2: ("preconditions", "Preconditions"),
        3: ("orphanDependents", "bool"),
        4: ("propagationPolicy", "string"),
        5: ("dryRun", "[string]"),
    },
    "Preconditions": {1: ("uid", "string"), 2: ("resourceVersion", "string")},
    "SelfSubjectReview": {},
    "SelfSubjectAccessReview": {},
    "SelfSubjectRulesReview": {},
}


def decode_protobuf(body: bytes) -> Object:
    """The object in a Kubernetes protobuf envelope; BadRequest, UnsupportedMediaType for an unknown kind."""
    if not body.startswith(_MAGIC):
        raise BadRequest("the body is not in Kubernetes' protobuf format")
    try:
        envelope = _message("Unknown", memoryview(body)[len(_MAGIC) :])
        kind = str(envelope["type"]["kind"])
        if kind not in _MESSAGES:
            raise UnsupportedMediaType(
                f"{kind} is taken as application/json or application/yaml only: use kubectl apply -f"
            )
        return {**envelope["type"], **_message(kind, memoryview(envelope.get("raw", b"")))}
    except (KeyError, IndexError, TypeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the protobuf body is cut off or damaged: {error!r}") from error


def _message(name: str, data: memoryview) -> Object:
    found: Object = {}
    fields = _MESSAGES[name]
    for number, value in _raw_fields(data):
        if number not in fields:
            continue
        field, kind = fields[number]
        if kind.startswith("["):
            found.setdefault(field, []).append(_value(kind[1:-1], value))
        elif kind in ("pairs", "blobs"):
            key, item = _entry(value)
            found.setdefault(field, {})[key] = item.decode() if kind == "pairs" else base64.b64encode(item).decode()
        else:
            found[field] = _value(kind, value)
    return {field: value for field, value in found.items() if value != ""}


def _value(kind: str, value: Any) -> Any:
    match kind:
        case "string":
            return bytes(value).decode()
        case "raw":
            return bytes(value)
        case "bool":
            return bool(value)
        case "int":
            # Negative numbers are sent as 64-bit two's complement.
            return value - (1 << 64) if value >> 63 else value
    return _message(kind, value)


def _entry(data: memoryview) -> tuple[str, bytes]:
    parts = {number: bytes(value) for number, value in _raw_fields(data)}
    return parts.get(1, b"").decode(), parts.get(2, b"")


def _raw_fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire, 0)
        if wire == _BYTES:
            size, at = _varint(data, at)
        if not size and wire != _BYTES:
            raise TypeError(f"wire type {wire}")
        if at + size > len(data):
            raise IndexError("a field is longer than the body")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if not byte & 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise TypeError("a number is too long")
