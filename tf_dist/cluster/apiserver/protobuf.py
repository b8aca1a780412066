"""The protobuf bodies of ``kubectl create namespace``, ``configmap`` and similar commands.

Since 1.32 these commands send protobuf and do not fall back to JSON. A table of field numbers decodes the kinds that
users of one machine create in this way. Other kinds can be created with ``kubectl apply -f``, which sends JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Final

from tf_dist.cluster.api import Object
from tf_dist.cluster.api_errors import BadRequest, UnsupportedMediaType

PROTOBUF_MEDIA: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_VARINT, _BYTES = 0, 2  # wire types; kubectl uses no others in these kinds

# By message: number -> (field, type). A type is a scalar, a map to strings or bytes, or the name of a message.
_META: Final = ("metadata", "ObjectMeta")
_MESSAGES: Final[Mapping[str, Mapping[int, tuple[str, str]]]] = {
    "Envelope": {1: ("type", "TypeMeta"), 2: ("raw", "raw")},
    "TypeMeta": {1: ("apiVersion", "string"), 2: ("kind", "string")},
    "ObjectMeta": {
        1: ("name", "string"),
        3: ("namespace", "string"),
        11: ("labels", "strings"),
        12: ("annotations", "strings"),
    },
    "Namespace": {1: _META},
    "ServiceAccount": {1: _META},
    "ConfigMap": {1: _META, 2: ("data", "strings"), 3: ("binaryData", "blobs"), 4: ("immutable", "bool")},
    "Secret": {1: _META, 2: ("data", "blobs"), 3: ("type", "string"), 4: ("stringData", "strings")},
    "PriorityClass": {
        1: _META,
        2: ("value", "int"),
        3: ("globalDefault", "bool"),
        4: ("description", "string"),
        5: ("preemptionPolicy", "string"),
    },
}


def decode_protobuf(body: bytes) -> Object:
    """The object in a Kubernetes protobuf envelope; BadRequest, UnsupportedMediaType for any other kind."""
    if not body.startswith(_MAGIC):
        raise BadRequest("the body is not in Kubernetes' protobuf format")
    try:
        envelope = _message("Envelope", body[len(_MAGIC) :])
        kind: str = envelope["type"]["kind"]
        if kind not in _MESSAGES:
            raise UnsupportedMediaType(f"the embedded cluster accepts {kind} as JSON only: use kubectl apply -f")
        return {**envelope["type"], **_message(kind, envelope.get("raw", b""))}
    except (KeyError, IndexError, TypeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the protobuf body is cut off or damaged: {error!r}") from error


def _message(name: str, data: bytes) -> Object:
    found: Object = {}
    for number, value in _fields(data):
        field, kind = _MESSAGES[name].get(number, ("", ""))
        match kind, value:
            case "", _:
                continue
            case "raw", bytes():
                found[field] = value
            case "string", bytes():
                found[field] = value.decode()
            case "strings" | "blobs", bytes():
                entry = {at: part for at, part in _fields(value) if isinstance(part, bytes)}
                key, text = entry.get(1, b"").decode(), entry.get(2, b"")
                found.setdefault(field, {})[key] = (
                    text.decode() if kind == "strings" else base64.b64encode(text).decode()
                )
            case "bool", int():
                found[field] = bool(value)
            case "int", int():  # negative numbers are 64-bit two's complement
                found[field] = value - (1 << 64) if value >> 63 else value
            case _, bytes():
                found[field] = _message(kind, value)
            case _:
                raise TypeError(f"{field} has the wrong wire type")
    return {field: value for field, value in found.items() if value != ""}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        if tag & 7 == _BYTES:
            if at + value > len(data):
                raise IndexError("a field is longer than the body")
            yield tag >> 3, data[at : at + value]
            at += value
        elif tag & 7 == _VARINT:
            yield tag >> 3, value
        else:
            raise TypeError(f"wire type {tag & 7}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        value |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return value, at
    raise TypeError("a number is too long")
