"""A request that found its kind, and what the verbs read from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tf_dist.cluster.api import Object, Resource
from tf_dist.cluster.http.messages import Reply, Request
from tf_dist.cluster.http.routes import Route
from tf_dist.cluster.http.tables import Shape, shape_of
from tf_dist.cluster.memory.cluster import MemoryCluster
from tf_dist.cluster.memory.reaping import DeleteOptions
from tf_dist.cluster.memory.resources import Kind
from tf_dist.cluster.refusals import BadRequest


@dataclass(frozen=True, slots=True)
class Call:
    """A request that found its kind."""

    cluster: MemoryCluster
    request: Request
    route: Route
    kind: Kind
    resource: Resource

    @property
    def space(self) -> str | None:
        """The namespace, or None."""
        return self.route.namespace

    @property
    def shape(self) -> Shape:
        """How the client wants objects shown."""
        include = self.request.query.get("includeObject", "")
        return shape_of(self.request.accept, self.kind, self.resource, include, self.cluster.clock())

    def shown(self, obj: Object, code: int = 200) -> Reply:
        """One object as a reply."""
        return Reply(code, self.shape.one(obj))


def object_of(call: Call) -> Object:
    """The body, which must be an object; BadRequest."""
    body = call.request.document()
    if not isinstance(body, dict):
        raise BadRequest("the body of the request must be an object")
    return body


def options_of(request: Request) -> tuple[DeleteOptions, bool]:
    """The delete options of the body and the query (which wins), and whether it is a dry run; BadRequest."""
    body: Any = request.document() if request.body.strip() else {}
    if not isinstance(body, dict):
        raise BadRequest("delete options must be an object")
    fences = body.get("preconditions") or {}
    grace = request.number("gracePeriodSeconds")
    if grace is None:
        grace = body.get("gracePeriodSeconds")
    orphan = body.get("orphanDependents") or request.flag("orphanDependents")
    policy = request.query.get("propagationPolicy") or body.get("propagationPolicy")
    options = DeleteOptions(
        uid=str(fences.get("uid") or ""),
        version=str(fences.get("resourceVersion") or ""),
        grace_period=None if grace is None else int(grace),
        propagation=str(policy or ("Orphan" if orphan else "Background")),
    )
    return options, request.dry_run or "All" in (body.get("dryRun") or ())


def success(**more: Any) -> Object:
    """The Status of what went well."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", **more}
