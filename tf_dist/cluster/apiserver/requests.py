"""Requests and responses of the API server, free of sockets, and the resource that a path names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

import yaml

from tf_dist.cluster.api import Object
from tf_dist.cluster.api_errors import BadRequest, UnsupportedMediaType
from tf_dist.cluster.apiserver import protobuf
from tf_dist.errors import NotFound

JSON = "application/json"
APPLY_PATCH = "application/apply-patch+yaml"
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("", "0", "f", "F", "FALSE", "false", "False")


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: a date stays a string."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, its body read."""

    method: str
    path: str
    query: Mapping[str, str]
    accept: str = ""
    content_type: str = ""
    body: bytes = b""

    def flag(self, name: str) -> bool:
        """A boolean of the query, as Go reads it; BadRequest."""
        value = self.query.get(name, "")
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
        """Whether nothing shall be kept; BadRequest."""
        value = self.query.get("dryRun", "")
        if value not in ("", "All"):
            raise BadRequest(f"invalid dryRun {value!r}: only All is supported")
        return value == "All"

    def document(self) -> Any:
        """The body as data; BadRequest, UnsupportedMediaType."""
        media = self.content_type.partition(";")[0].strip().lower()
        if "yaml" in media:
            return _from_yaml(self.body)
        if media in ("", "*/*") or media.endswith(("/json", "+json")):
            return _from_json(self.body)
        if media == protobuf.PROTOBUF_MEDIA:
            return protobuf.decode_protobuf(self.body)
        raise UnsupportedMediaType(
            f"the body of the request was in an unknown format: {media!r}; accepted are {JSON} and application/yaml"
        )


def _from_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body of the request is not valid JSON: {error}") from error


def _from_yaml(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        pass
    try:
        return yaml.load(body, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadRequest(f"the body of the request is not valid YAML: {error}") from error


def parse_query(text: str) -> dict[str, str]:
    """A query string as a mapping; the last of several values counts."""
    return dict(parse_qsl(text, keep_blank_values=True))


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
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) >= 2:
        return _resource_path("", parts[1], parts[2:])
    if parts[0] == "apis" and len(parts) >= 3:
        return _resource_path(parts[1], parts[2], parts[3:])
    raise NotFound("the server could not find the requested resource")


def _resource_path(group: str, version: str, parts: list[str]) -> ResourcePath:
    if not parts:
        return ResourcePath(group, version)
    namespace: str | None = None
    # /namespaces/x and /namespaces/x/status are the namespace itself; anything longer lies in it.
    within = parts[0] == "namespaces" and len(parts) >= 3
    if within and not (group == "" and parts[2] in ("status", "finalize")):
        namespace, parts = parts[1], parts[2:]
    if len(parts) > 3:
        raise NotFound("the server could not find the requested resource")
    plural, name, subresource = (*parts, "", "")[:3]
    return ResourcePath(group, version, plural, namespace, name, subresource)
