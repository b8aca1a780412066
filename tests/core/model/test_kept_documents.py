"""Documents that are kept as JSON text."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tf_dist.core.model.fieldpath import PackedJson, shared
from tf_dist.core.model.status import StoredDocument
from tf_dist.core.reconciler.ownership import managed_elsewhere


def job(name: str) -> dict[str, Any]:
    return {"kind": "TFJob", "metadata": {"name": name, "labels": {"a": "b"}}, "spec": {"tasks": [{"n": 1}, {"n": 2}]}}


def test_packed_document_equals_original() -> None:
    for made in (PackedJson(job("a")), StoredDocument(job("a"))):
        for _ in range(2):
            assert made == job("a") == {**made} == dict(made)
            assert (len(made), sorted(made), "spec" in made, "status" in made) == (
                3,
                ["kind", "metadata", "spec"],
                True,
                False,
            )
            assert (made["spec"], made.get("status")) == (job("a")["spec"], None)
            assert made != job("b")
            made.pack()


def test_keeps_few_of_many_documents_decoded() -> None:
    known = [StoredDocument(job(str(number))) for number in range(1_000)]
    assert [one["spec"] for one in known] == [job("")["spec"]] * 1_000
    gc.collect()
    held = sum(type(one) in (dict, list) for document in known for one in reachable(document))
    assert held < 1_500, "of each its metadata, and those that were read last"


def reachable(document: StoredDocument) -> list[Any]:
    """The objects that the garbage collector reaches from a document."""
    seen: list[Any] = [document]
    for one in seen:
        seen += [part for part in gc.get_referents(one) if gc.is_tracked(part) and not isinstance(part, type)]
    return seen


def test_bool_and_repeated_owner_check_do_not_decode_document() -> None:
    stored = StoredDocument(job("a"))
    stored.pack()
    assert stored
    assert not any(isinstance(part, dict) and "spec" in part for part in gc.get_referents(stored))
    assert not managed_elsewhere(stored)
    stored.pack()
    assert not managed_elsewhere(stored)
    assert not any(isinstance(part, dict) and "spec" in part for part in gc.get_referents(stored)), "it was read once"


def test_threads_read_more_documents_than_stay_decoded() -> None:
    known = [StoredDocument(job(str(number))) for number in range(200)]

    def read(start: int) -> bool:
        return all(known[(start + step) % 200]["spec"] == job("")["spec"] for step in range(2_000))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(0, 200, 25)))


def test_document_that_json_cannot_hold_is_kept_unchanged() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    odd, deep = {"spec": {1, 2}}, {"spec": nested}
    kept = [PackedJson(odd), PackedJson(deep)]
    others = [StoredDocument(job(str(number))) for number in range(100)]
    assert all(one["kind"] == "TFJob" for one in others)
    assert kept[0]["spec"] is odd["spec"]
    assert kept[1]["spec"] is nested
    while nested:  # not by recursion
        nested = nested.pop()


def test_equal_values_are_shared() -> None:
    one, two = [{"a": [1]}], [{"a": [1]}]
    assert shared(one) is shared(two)
    assert shared({"a": 1}) == {"a": 1}
    assert type(shared((1,))[0]) is int
    assert type(shared((True,))[0]) is bool
    assert type(shared((1.0,))[0]) is float
