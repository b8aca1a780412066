"""An informer lists page by page, keeps of each page what it needs, and begins anew when the pages expire."""

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
    """An object as it came, which can be looked for afterwards."""


class Wire:
    """Passes lists on; pages expire where they are to."""

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


# A weak set compares what it holds, and dicts cannot be hashed: these are distinguished as objects.
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


def test_no_more_than_one_page_is_held_as_it_came(wire: Wire, informer: Informer) -> None:
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


def test_pages_that_expire_are_listed_from_the_beginning_and_still_as_pages(wire: Wire, informer: Informer) -> None:
    wire.expires = {3}
    informer.refresh()
    assert len(informer.items()) == COUNT
    assert wire.calls[:4] == [(PAGE, False), (PAGE, True), (PAGE, True), (PAGE, False)]
    assert {limit for limit, _ in wire.calls} == {PAGE}
    assert wire.alive <= PAGE


def test_pages_that_always_expire_are_given_up(wire: Wire, informer: Informer) -> None:
    wire.expires = set(range(2, 1000, 2))
    with pytest.raises(Gone):
        informer.refresh()
    assert len(wire.calls) <= 20
    assert informer.items() == []
