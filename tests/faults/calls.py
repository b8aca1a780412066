"""The verb and the resource of a request to an API server, in the terms of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self
from urllib.parse import unquote

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_NAMED = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}


class Call(NamedTuple):
    """A verb and its object. ``resource`` is a plural with an optional subresource, such as ``pods/log``."""

    verb: str
    resource: str
    namespace: str
    name: str

    @classmethod
    def of(cls, method: str, path: str, query: Mapping[str, str]) -> Self:
        """Read a request."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        plural, name, subresource = (*rest, "", "", "")[:3]
        resource = f"{plural}/{subresource}" if subresource else plural
        return cls(_verb(method, name, query), resource, namespace, name)

    @property
    def writes(self) -> bool:
        """Whether the verb changes objects."""
        return self.verb in WRITES


def _verb(method: str, name: str, query: Mapping[str, str]) -> str:
    if name:
        return _NAMED.get(method, method)
    match method:
        case "GET":
            return "watch" if query.get("watch") in ("true", "1") else "list"
        case "DELETE":
            return "deletecollection"
    return _NAMED.get(method, method)
