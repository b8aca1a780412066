"""Documents that are kept as JSON text."""

from __future__ import annotations

import gc
from typing import Any

from tf_dist.core.api.fieldpath import PackedJson
from tf_dist.core.api.status import StoredDocument
from tf_dist.core.reconciler.ownership import managed_elsewhere


def job(name: str) -> dict[str, Any]:
    return {"kind": "TFJob", "metadata": {"name": name, "labels": {"a": "b"}}, "spec": {"tasks": [{"n": 1}, {"n": 2}]}}


def test_a_packed_document_reads_as_what_it_was_made_of() -> None:
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


def test_of_a_thousand_documents_few_are_more_than_a_text() -> None:
    known = [StoredDocument(job(str(number))) for number in range(1_000)]
    assert [one["spec"] for one in known] == [job("")["spec"]] * 1_000
    gc.collect()
    held = sum(type(one) in (dict, list) for document in known for one in reachable(document))
    assert held < 1_500, "of each its metadata, and those that were read last"


def reachable(document: StoredDocument) -> list[Any]:
    """What a garbage collection sees of a document."""
    seen: list[Any] = [document]
    for one in seen:
        seen += [part for part in gc.get_referents(one) if gc.is_tracked(part) and not isinstance(part, type)]
    return seen


def test_whether_there_is_a_document_is_no_reason_to_decode_it() -> None:
    stored = StoredDocument(job("a"))
    stored.pack()
    assert stored
    assert not any(isinstance(part, dict) and "spec" in part for part in gc.get_referents(stored))
    assert not managed_elsewhere(stored)
    stored.pack()
    assert not managed_elsewhere(stored)
    assert not any(isinstance(part, dict) and "spec" in part for part in gc.get_referents(stored)), "it was read once"
