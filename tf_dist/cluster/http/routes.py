"""Which path means what: a pure reading of the REST dialect's URLs."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from tf_dist.errors import NotFound


@dataclass(frozen=True, slots=True)
class Route:
    """A place in the API. ``plural`` "" is the group version itself, ``name`` "" a collection."""

    group: str
    version: str
    plural: str = ""
    namespace: str | None = None
    name: str = ""
    subresource: str = ""


def route_of(path: str) -> Route:
    """The place that a path names; NotFound."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) >= 2:
        return _placed("", parts[1], parts[2:])
    if parts[0] == "apis" and len(parts) >= 3:
        return _placed(parts[1], parts[2], parts[3:])
    raise NotFound("the server could not find the requested resource")


def _placed(group: str, version: str, parts: list[str]) -> Route:
    if not parts:
        return Route(group, version)
    namespace: str | None = None
    # /namespaces/x and /namespaces/x/status are the namespace itself; anything longer lies in it.
    within = parts[0] == "namespaces" and len(parts) >= 3
    if within and not (group == "" and parts[2] in ("status", "finalize")):
        namespace, parts = parts[1], parts[2:]
    if len(parts) > 3:
        raise NotFound("the server could not find the requested resource")
    plural, name, subresource = (*parts, "", "")[:3]
    return Route(group, version, plural, namespace, name, subresource)
