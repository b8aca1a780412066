"""What a request names: a kind at one of its versions, and objects of it."""

from __future__ import annotations

from dataclasses import dataclass

from tf_dist.cluster.api import Object, Resource
from tf_dist.cluster.memory.resources import Kind, Registry
from tf_dist.cluster.memory.store import Key
from tf_dist.cluster.refusals import BadRequest, MethodNotAllowed
from tf_dist.errors import NotFound


@dataclass(frozen=True, slots=True)
class Served:
    """A kind as ``resource`` names it. Objects are stored at the kind's preferred version and shown at this one."""

    kind: Kind
    resource: Resource

    def key(self, namespace: str | None, name: str) -> Key:
        """Where the store has an object; BadRequest when its name or namespace is missing."""
        if not name:
            raise BadRequest(f"{self.kind.key} are asked for by name, and none was given")
        if not self.kind.resource.namespaced:
            return Key(self.kind.key, "", name)
        if not namespace:
            raise BadRequest(f"an empty namespace may not be set when {self.kind.key} are asked for by name")
        return Key(self.kind.key, namespace, name)

    def view(self, obj: Object) -> Object:
        """A stored object at this version. As with a CRD without conversion: only its apiVersion is another."""
        return obj if self._preferred else {**obj, "apiVersion": self.resource.api_version}

    def views(self, objects: list[Object]) -> list[Object]:
        """Many of them; the very list where there is nothing to change."""
        return objects if self._preferred else [self.view(obj) for obj in objects]

    @property
    def _preferred(self) -> bool:
        return self.resource.version == self.kind.resource.version

    def bookmark(self, version: str, *, initial_end: bool = False) -> Object:
        """What a watch says at a version of the store; ``initial_end``: everything there was has been said."""
        metadata: Object = {"resourceVersion": version, "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        return {"apiVersion": self.resource.api_version, "kind": self.resource.kind, "metadata": metadata}


def served(registry: Registry, resource: Resource, subresource: str = "") -> Served:
    """What a request for ``resource`` is about; NotFound, MethodNotAllowed (as a subresource it cannot be written)."""
    kind = registry.find(resource.group, resource.version, resource.plural)
    if subresource and (subresource != "status" or not kind.status):
        known = subresource in ("eviction", "binding", "log")
        wrong = MethodNotAllowed if known else NotFound
        raise wrong(f"{kind.key} cannot be written through a subresource {subresource!r}")
    return Served(kind, resource)
