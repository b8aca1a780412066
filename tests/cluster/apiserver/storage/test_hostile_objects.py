"""A server answers requests with malformed objects, and no accepted object blocks others."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.support import node, pod
from tf_dist.cluster.api import NODES, PODS, Object, Resource
from tf_dist.cluster.api_errors import Invalid
from tf_dist.cluster.apiserver.handlers import Router
from tf_dist.cluster.apiserver.requests import Request
from tf_dist.cluster.apiserver.scheduler import Scheduler
from tf_dist.cluster.apiserver.storage.api_resources import BUILTIN_KINDS, CRDS, Kind
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.core.openapi.kubernetes_types import fields_of, type_of_kind
from tf_dist.errors import ClusterError

TYPED = [kind for kind in BUILTIN_KINDS if type_of_kind(kind.resource.api_version, kind.resource.kind)]
JUNK: tuple[Any, ...] = (
    5,
    -1,
    "x",
    "",
    True,
    [],
    {},
    [5],
    ["x"],
    [None],
    [{}],
    {"x": 5},
    {"x": "y"},
    {"x": None},
    None,
)
VALID: dict[str, Object] = {
    "Pod": {"spec": pod("x")["spec"]},
    "Service": {"spec": {"clusterIP": "None", "ports": [{"port": 80}]}},
    "Node": {key: value for key, value in node("x").items() if key != "metadata"},
}


def places(type_: str, path: tuple[str, ...] = (), depth: int = 4) -> Iterator[tuple[str, ...]]:
    """The paths of all fields of a type to a depth, without the indices of lists and the keys of mappings."""
    for field, kind in fields_of(type_).items():
        if field in ("status", "apiVersion", "kind", "metadata") and not path:
            continue
        yield (*path, field)
        inner = kind.removeprefix("[]").removeprefix("{}")
        if inner[:1].isupper() and depth > 1:
            yield from places(inner, (*path, field), depth - 1)


def with_junk(body: Object, type_: str, path: tuple[str, ...], junk: Any) -> Object:
    """The body with junk at a path. Missing parents are created with the right types."""
    body = copy.deepcopy(body)
    here: Any = body
    for field in path[:-1]:
        kind = fields_of(type_)[field]
        type_ = kind.removeprefix("[]").removeprefix("{}")
        if kind.startswith("[]"):
            here = here.setdefault(field, [{}])[0]
        elif kind.startswith("{}"):
            here = here.setdefault(field, {"x": {}})["x"]
        else:
            here = here.setdefault(field, {})
    here[path[-1]] = junk
    return body


@pytest.mark.parametrize("kind", TYPED, ids=lambda kind: kind.resource.kind)
def test_accepted_malformed_objects_do_not_block_scheduling_or_lists(kind: Kind) -> None:
    resource = kind.resource
    type_ = type_of_kind(resource.api_version, resource.kind)
    valid = VALID.get(resource.kind, {})
    taken = 0
    with MemoryCluster() as memory:
        memory.create(NODES, None, node("good", cpu="100000", memory="100Ti", pods="100000"))
        for at, path in enumerate(places(type_)):
            for number, junk in enumerate(JUNK):
                body = {**with_junk(valid, type_, path, junk), "metadata": {"name": f"x{at}-{number}"}}
                try:
                    memory.create(resource, "default" if resource.namespaced else None, body)
                    taken += 1
                except ClusterError:
                    continue
            if taken:
                assert_progress(memory, resource, f"{at}")
                taken = 0


def assert_progress(memory: MemoryCluster, resource: Resource, mark: str) -> None:
    """Check that a valid pod is scheduled and all objects are listed, then delete these objects."""
    name = f"good-{mark}"
    body = pod(name, tolerations=[{"operator": "Exists"}])
    memory.create(PODS, "default", body)
    Scheduler(memory).step()
    assert memory.get(PODS, "default", name)["spec"].get("nodeName"), mark
    table = Request("GET", resource.path(), {}, accept="application/json;as=Table;g=meta.k8s.io;v=v1")
    assert Router(memory).handle(table).code == 200, mark
    for one in memory.list(resource).items if resource.plural != "namespaces" else ():
        if one["metadata"]["name"] != "good":
            memory.delete(resource, one["metadata"].get("namespace"), one["metadata"]["name"])


@pytest.mark.parametrize("field", ["kind", "plural", "group", "name"])
@pytest.mark.parametrize("junk", [[], {}, 5], ids=str)
def test_definition_with_junk_in_names_is_rejected(field: str, junk: Any) -> None:
    names = {"kind": "Foo", "plural": "foos", "singular": "foo"}
    version = {"name": "v1", "served": True, "storage": True}
    spec: Object = {"group": "a.b", "names": names, "scope": "Namespaced", "versions": [version]}
    {"group": spec, "name": version}.get(field, names)[field] = junk
    with MemoryCluster() as memory, pytest.raises(Invalid, match="must be text"):
        memory.create(CRDS, None, {"metadata": {"name": "foos.a.b"}, "spec": spec})
