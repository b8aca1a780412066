"""Requests and responses of the API server, independent of sockets, and the resource that a path names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tf_dist.cluster.api import Object
from tf_dist.cluster.api_errors import BadRequest, UnsupportedMediaType
from tf_dist.cluster.apiserver.protobuf import PROTOBUF_MEDIA, decode_protobuf
from tf_dist.errors import NotFound

JSON = "application/json"
APPLY_PATCH = "application/apply-patch+yaml"
_TRUE, _FALSE = ("1", "t", "true"), ("", "0", "f", "false")


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, including its body."""

    method: str
    path: str
    query: Mapping[str, str]
    accept: str = ""
    content_type: str = ""
    body: bytes = b""

    def flag(self, name: str) -> bool:
        """A boolean of the query; BadRequest."""
        value = self.query.get(name, "").lower()
        if value not in _TRUE + _FALSE:
            raise BadRequest(f"invalid value {value!r} for {name}: true or false")
        return value in _TRUE

    def number(self, name: str) -> int | None:
        """A whole number of the query that is not negative; BadRequest."""
        value = self.query.get(name, "")
        if not value:
            return None
        if not (value.isascii() and value.isdecimal()):
            raise BadRequest(f"invalid value {value!r} for {name}: a whole number, not negative")
        return int(value)

    @property
    def dry_run(self) -> bool:
        """Whether this is a dry run; BadRequest."""
        value = self.query.get("dryRun", "")
        if value not in ("", "All"):
            raise BadRequest(f"invalid dryRun {value!r}: only All is supported")
        return value == "All"

    def document(self) -> Any:
        """The body as data; BadRequest, UnsupportedMediaType."""
        media = self.content_type.partition(";")[0].strip().lower()
        if media == PROTOBUF_MEDIA:
            return decode_protobuf(self.body)
        if media not in ("", "*/*") and not media.endswith(("/json", "+json")):
            raise UnsupportedMediaType(f"the body of the request was in an unknown format: {media!r}, not {JSON}")
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body of the request is not valid JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response."""

    code: int
    document: Any
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """The body's bytes: text as it is, everything else as JSON."""
        if isinstance(self.document, str):
            return self.document.encode()
        return json.dumps(self.document, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """A streamed response; ``close`` ends ``parts`` from any thread."""

    parts: Iterator[bytes]
    close: Callable[[], None]
    content_type: str = JSON


def json_line(document: Object) -> bytes:
    """One line of a stream of JSON documents."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """A path of the API. ``plural`` "" is the group version itself, ``name`` "" a collection."""

    group: str
    version: str
    plural: str = ""
    namespace: str | None = None
    name: str = ""
    subresource: str = ""


def parse_path(path: str) -> ResourcePath:
    """A parsed path; NotFound."""
    prefix, *parts = [unquote(part) for part in path.strip("/").split("/")]
    if prefix == "api":
        parts = ["", *parts]
    if prefix not in ("api", "apis") or len(parts) < 2:
        raise NotFound("the server could not find the requested resource")
    group, version, *rest = parts
    namespace: str | None = None
    # /namespaces/x and /namespaces/x/status are the namespace itself; longer paths are in the namespace.
    if len(rest) >= 3 and rest[0] == "namespaces" and not (group == "" and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        raise NotFound("the server could not find the requested resource")
    plural, name, subresource = (*rest, "", "", "")[:3]
    return ResourcePath(group, version, plural, namespace, name, subresource)
