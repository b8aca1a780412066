"""An informer lists in pages, keeps only the fields that it needs, and starts again when a page expires."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import pytest

from tf_dist.cluster.api import PODS, Object, ObjectList, Resource
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.informer import Informer
from tf_dist.errors import Gone

COUNT = 1700
PAGE = 500


class Raw(dict[str, Any]):
    """An object as the server sent it. The tests count how many of them are alive."""


class Wire:
    """Forwards lists to a cluster. The calls in ``expires`` fail with Gone."""

    def __init__(self, inner: MemoryCluster) -> None:
        self._inner = inner
        self.raw: weakref.WeakSet[Raw] = weakref.WeakSet()
        self.alive = 0
        self.calls: list[tuple[int, bool]] = []
        self.expires: set[int] = set()

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._inner, verb)

    def list(self, resource: Resource, namespace: str | None = None, **how: Any) -> ObjectList:
        self.alive = max(self.alive, sum(1 for _ in self.raw))
        self.calls.append((how.get("limit", 0), bool(how.get("continue_"))))
        if len(self.calls) in self.expires:
            raise Gone("the provided continue parameter is too old")
        found = self._inner.list(resource, namespace, **how)
        items = [Raw(copy.deepcopy(stored)) for stored in found.items]
        for stored in items:
            self.raw.add(stored)
        return found._replace(items=list[Object](items))


# A weak set hashes and compares its items, and dicts have no hash, so these are compared by identity.
Raw.__hash__ = object.__hash__  # type: ignore[method-assign]
Raw.__eq__ = object.__eq__  # type: ignore[method-assign]


def slim(stored: Object) -> Object:
    return {"metadata": {key: stored["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}}


@pytest.fixture
def wire() -> Wire:
    memory = MemoryCluster()
    for number in range(COUNT):
        body = {"metadata": {"name": f"p-{number:05}"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
        memory.create(PODS, "default", body)
    return Wire(memory)


@pytest.fixture
def informer(wire: Wire) -> Informer:
    return Informer(wire, PODS, changed=lambda *_: None, keep=slim)  # type: ignore[arg-type]


def test_at_most_one_page_of_full_objects_is_in_memory(wire: Wire, informer: Informer) -> None:
    for _ in range(2):
        informer.refresh()
        assert len(informer.items()) == COUNT
    assert wire.alive <= PAGE
    assert {limit for limit, _ in wire.calls} == {PAGE}


def test_relist_keeps_unchanged_objects(wire: Wire, informer: Informer) -> None:
    informer.refresh()
    before = {stored["metadata"]["name"]: stored for stored in informer.items()}
    changed = wire.patch(PODS, "default", "p-00003", {"metadata": {"labels": {"a": "b"}}})
    informer.refresh()
    after = {stored["metadata"]["name"]: stored for stored in informer.items()}
    assert [name for name, stored in after.items() if stored is not before[name]] == ["p-00003"]
    assert after["p-00003"]["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


def test_expired_page_restarts_paged_list(wire: Wire, informer: Informer) -> None:
    wire.expires = {3}
    informer.refresh()
    assert len(informer.items()) == COUNT
    assert wire.calls[:4] == [(PAGE, False), (PAGE, True), (PAGE, True), (PAGE, False)]
    assert {limit for limit, _ in wire.calls} == {PAGE}
    assert wire.alive <= PAGE


def test_list_fails_if_pages_always_expire(wire: Wire, informer: Informer) -> None:
    wire.expires = set(range(2, 1000, 2))
    with pytest.raises(Gone):
        informer.refresh()
    assert len(wire.calls) <= 20
    assert informer.items() == []
