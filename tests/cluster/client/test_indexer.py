"""The cache keeps the newest version of each object, in any order of arrival."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_dist.cluster.client.indexer import Indexer, object_key, parse_resource_version


def item(name: str, version: int | str, uid: str = "", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": uid or name, "resourceVersion": str(version), "labels": labels}}


def group_of(stored: dict[str, Any]) -> str:
    return stored["metadata"]["labels"].get("group", "")


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("9" * 20, 10**20 - 1), ("9" * 21, 0), ("", 0), (None, 0), ("-1", 0), ("1a", 0)],
)
def test_invalid_resource_version_is_zero(text: str | None, number: int) -> None:
    assert parse_resource_version(text) == number


@pytest.mark.parametrize(("namespace", "key"), [({"namespace": "n"}, ("n", "a")), ({}, ("", "a"))])
def test_object_key_contains_namespace(namespace: dict[str, str], key: tuple[str, str]) -> None:
    assert object_key({"metadata": {"name": "a", **namespace}}) == key


def test_only_newer_version_replaces_object() -> None:
    cache = Indexer()
    assert cache.put(item("a", 5)) is not None
    assert cache.put(item("a", 4)) is None
    assert cache.put(item("a", 5)) is None
    change = cache.put(item("a", 10))
    assert change is not None
    assert change.old == item("a", 5)
    assert cache.get(("", "a")) == item("a", 10)


def test_versions_that_are_not_numbers_replace_each_other() -> None:
    cache = Indexer()
    cache.put(item("a", "x"))
    assert cache.put(item("a", "x")) is None
    assert cache.put(item("a", "w")) is not None
    assert cache.put(item("a", 5)) is not None
    assert cache.put(item("a", "v")) is not None


@pytest.mark.parametrize(
    ("known", "deleted", "goes"),
    [(2, 1, False), (9, 8, False), (9, 9, True), (9, 10, True), (9, "x", True), ("x", 9, True)],
)
def test_deletion_does_not_remove_newer_version(known: int | str, deleted: int | str, goes: bool) -> None:
    cache = Indexer()
    cache.put(item("a", known))
    assert (cache.remove(item("a", deleted)) is not None) is goes
    assert len(cache) == (0 if goes else 1)


@pytest.mark.parametrize(
    ("followed", "answered", "news"),
    [(0, 1, True), (5, 4, False), (5, 5, False), (5, 6, True), (5, "x", True)],
)
def test_response_is_cached_if_newer_than_last_watched_version(followed: int, answered: int | str, news: bool) -> None:
    cache = Indexer()
    if followed:
        cache.replace([], followed)
    assert (cache.put_response(item("a", answered)) is not None) is news
    assert len(cache) == news


def test_deletion_does_not_remove_recreated_object() -> None:
    cache = Indexer()
    cache.put(item("a", 9, uid="second"))
    assert cache.remove(item("a", 7, uid="first")) is None
    assert cache.discard(("", "a"), "first") is None
    assert len(cache) == 1
    assert cache.remove(item("a", 12, uid="second")) is not None
    assert len(cache) == 0


def test_list_removes_missing_objects_unless_newer() -> None:
    cache = Indexer()
    for name, version in (("old", 6), ("new", 8), ("kept", 4)):
        cache.put(item(name, version))
    changes = cache.replace([item("kept", 4), item("more", 5)], 6)
    assert sorted(one["metadata"]["name"] for one in cache.items()) == ["kept", "more", "new"]
    assert [(change.old is not None, change.new is not None) for change in changes] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    "drop",
    [
        lambda cache: cache.remove(item("a", 3)),
        lambda cache: cache.discard(("", "a"), "a"),
        lambda cache: cache.put(item("a", 3, uid="another")),
        lambda cache: cache.replace([], 3),
        lambda cache: cache.replace([item("a", 3, uid="another")], 3),
    ],
    ids=["removed", "discarded", "made anew", "lacking in a list", "made anew in a list"],
)
def test_removal_is_announced_while_object_is_still_readable(drop: Callable[[Indexer], object]) -> None:
    def leaves(stored: dict[str, Any]) -> None:
        announced.append((stored, cache.get(object_key(stored)), cache.group("g")))

    announced: list[object] = []
    cache = Indexer(group_of, leaves=leaves)
    cache.put(item("a", 1, group="g"))
    cache.put(item("a", 2, group="g"))
    cache.mark_deleting(("", "a"), "a", "2027-01-15T08:00:00Z")
    assert announced == [], "it was only changed"
    last = cache.get(("", "a"))
    drop(cache)
    assert announced == [(last, last, [last])]


def test_newer_list_replaces_object_with_older_version() -> None:
    """A list that is newer than the cache contains an older version of an object. The cached version is invalid."""
    cache = Indexer(group_of)
    cache.put(item("a", 8, group="g"))
    cache.put(item("newer", 12))
    changes = cache.replace([item("a", 3, group="h"), item("newer", 11)], 10)
    assert cache.get(("", "a")) == item("a", 3, group="h")
    assert cache.get(("", "newer")) == item("newer", 12), "the list was made before that"
    assert [(change.old, change.new) for change in changes] == [(item("a", 8, group="g"), item("a", 3, group="h"))]
    assert cache.group("g") == []


def test_doubted_list_replaces_object_with_equal_version() -> None:
    """The cached object with this version is invalid. Without a restoration, equal versions mean equal objects."""
    cache = Indexer(group_of)
    cache.put(item("a", 8, group="g"))
    cache.put(item("b", 4))
    assert cache.replace([item("a", 8, group="h"), item("b", 4)], 10) == []
    changes = cache.replace([item("a", 8, group="h"), item("b", 4)], 10, doubted=True)
    assert changes == [(item("a", 8, group="g"), item("a", 8, group="h"))]
    assert cache.group("g") == []
    assert cache.group("h") == [item("a", 8, group="h")]


@pytest.mark.parametrize(
    ("known", "listed", "at", "shown"),
    [(8, 1, 10, 1), (10, 3, 10, 3), (11, 3, 10, 11), (8, "x", 10, "x")],
    ids=["the first version", "as new as the list", "newer than the list", "no number"],
)
def test_list_with_another_version_causes_at_most_one_change(
    known: int, listed: int | str, at: int, shown: int | str
) -> None:
    cache = Indexer()
    cache.put(item("a", known))
    changes = cache.replace([item("a", listed)], at)
    assert cache.get(("", "a")) == item("a", shown)
    assert len(changes) == (shown != known)


def test_list_of_restored_server_replaces_newer_objects() -> None:
    cache = Indexer()
    cache.put(item("kept", 3))
    cache.put(item("never-was", 9))
    cache.put(item("changed", 8))
    cache.replace([item("kept", 3), item("changed", 2)], 4, set_back=True)
    assert {one["metadata"]["name"]: one for one in cache.items()} == {
        "kept": item("kept", 3),
        "changed": item("changed", 2),
    }
    assert cache.put_response(item("changed", 5)) is not None


def test_expected_deletion_is_visible_until_next_version() -> None:
    cache = Indexer()
    cache.put(item("a", 1))
    assert cache.mark_deleting(("", "a"), "other", "now") is None
    assert cache.mark_deleting(("", "a"), "a", "now") is not None
    assert cache.mark_deleting(("", "a"), "a", "later") is None
    found = cache.get(("", "a"))
    assert found is not None
    assert found["metadata"]["deletionTimestamp"] == "now"
    cache.put(item("a", 2))
    assert cache.get(("", "a")) == item("a", 2)


def test_group_contains_current_members() -> None:
    cache = Indexer(group_of)
    cache.put(item("a", 1, group="x"))
    cache.put(item("b", 2, group="x"))
    cache.put(item("c", 3))
    assert [one["metadata"]["name"] for one in cache.group("x")] == ["a", "b"]
    cache.put(item("a", 4, group="y"))
    assert [one["metadata"]["name"] for one in cache.group("x")] == ["b"]
    cache.discard(("", "b"), "b")
    assert cache.group("x") == []


def test_reader_does_not_wait_for_writer() -> None:
    """An event loop reads the cache. A writer thread that is suspended during a write must not block it."""

    def leaves(_: dict[str, Any]) -> None:
        writing.set()
        read.wait(30)

    writing, read = threading.Event(), threading.Event()
    cache = Indexer(group_of, leaves=leaves)
    cache.put(item("a", 1, group="x"))
    writer = threading.Thread(target=cache.remove, args=(item("a", 2),))
    writer.start()
    assert writing.wait(30)
    found = [cache.group("x"), cache.items(), [cache.get(("", "a"))]]
    assert writer.is_alive()
    read.set()
    writer.join()
    assert found == [[item("a", 1, group="x")]] * 3


def test_changing_object_is_never_missing_for_readers(fast_switches: None) -> None:
    cache = Indexer(group_of)
    names = [f"{number:02}" for number in range(20)]
    cache.replace([item(name, 1, group="x") for name in names], 1)

    def write() -> None:
        for version in range(2, 400):
            listed = [item(name, version, group="x") for name in names]
            match version % 3:
                case 0:
                    cache.replace(listed, version)
                case 1:
                    cache.replace([item(name, 1, group="x") for name in names], 1, set_back=True)
                case 2:
                    for one in listed:
                        cache.put(one)

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        assert [one["metadata"]["name"] for one in cache.group("x")] == names
        assert [one["metadata"]["name"] for one in cache.items()] == names
    writer.join()


@pytest.fixture
def fast_switches() -> Iterator[None]:
    """Threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, dict[str, Any]]]:
    """Writes and deletions of a few objects, in the order of their versions."""
    alive: dict[str, int] = {}
    history = []
    for version in range(1, draw(st.integers(1, 25)) + 1):
        name = draw(st.sampled_from("abc"))
        if name in alive and draw(st.booleans()):
            history.append(("DELETED", item(name, version, f"{name}{alive.pop(name)}", group="x")))
        else:
            alive.setdefault(name, version)
            group = draw(st.sampled_from(["x", "y"]))
            history.append(("MODIFIED", item(name, version, f"{name}{alive[name]}", group=group)))
    return history


@given(histories(), st.data())
def test_watch_lists_and_responses_converge_to_server_state(
    history: list[tuple[str, dict[str, Any]]], data: st.DataObject
) -> None:
    """The watch sends all changes in order. Lists are made at any time. Responses to writes come early or late."""
    cache = Indexer(group_of)
    at = 0
    truth: dict[str, dict[str, Any]] = {}
    answers = []
    for version, (type_, stored) in enumerate(history, 1):
        if type_ == "DELETED":
            truth.pop(stored["metadata"]["name"])
        else:
            truth[stored["metadata"]["name"]] = stored
            answers.append(stored)
        match data.draw(st.sampled_from(["watch", "list", "nothing"])):
            case "list":
                cache.replace(list(truth.values()), version)
                at = version
            case "watch":
                upto = data.draw(st.integers(at, version))
                _follow(cache, history, at, upto)
                at = upto
        if answers and data.draw(st.booleans()):
            cache.put_response(answers.pop(data.draw(st.integers(0, len(answers) - 1))))
    _follow(cache, history, at, len(history))
    for late in answers:
        cache.put_response(late)
    assert {one["metadata"]["name"]: one for one in cache.items()} == truth
    for group in ("x", "y"):
        wanted = [one for one in truth.values() if group_of(one) == group]
        assert sorted(map(str, cache.group(group))) == sorted(map(str, wanted))


def _follow(cache: Indexer, history: list[tuple[str, dict[str, Any]]], begin: int, end: int) -> None:
    for type_, stored in history[begin:end]:
        (cache.remove if type_ == "DELETED" else cache.put)(stored)
    cache.followed = max(cache.followed, end)
