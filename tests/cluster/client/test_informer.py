"""The informer and a faulty server: the cache becomes correct, with exactly the necessary requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pytest

from tests.cluster.client.raw import failure, saying
from tests.faults.flaky import (
    Answer,
    Asked,
    End,
    FlakyServer,
    Late,
    Refusal,
    Silence,
    bookmark,
    event,
    gone,
    listed,
    watched,
)
from tests.waiting import until
from tf_dist.cluster.api import PODS, TFJOBS, Object, Resource
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.informer import Informer
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.concurrency import ThreadRuntime
from tf_dist.errors import Forbidden, Unavailable

SECONDS = 60


@dataclass
class Scene:
    """An informer, its server, and the calls of its callbacks."""

    server: FlakyServer
    client: RestCluster
    resource: Resource
    changes: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    informer: Informer = field(init=False)

    def obj(self, name: str, version: int) -> Object:
        metadata = {"name": name, "namespace": "default", "resourceVersion": str(version), "uid": f"uid-{name}"}
        return {"apiVersion": self.resource.api_version, "kind": self.resource.kind, "metadata": metadata}

    def changed(self, old: Object | None, new: Object | None) -> None:
        self.changes.append(f"{_short(old)}>{_short(new)}")

    def paused(self, failures: int) -> float:
        self.failures.append(failures)
        return 0.0

    def rows(self) -> list[str]:
        """The objects in the cache, as ``name@version``."""
        return sorted(_short(obj) for obj in self.informer.items())

    def told(self, *changes: str) -> None:
        """Wait until the informer has reported exactly these changes, which may be shortly after they are cached."""
        try:
            until(lambda: self.changes == [*changes], SECONDS, every=0.005)
        except AssertionError:
            assert self.changes == [*changes]

    def expect(self, rows: list[str], asked: list[str]) -> None:
        """Wait until the cache has these rows, after exactly these requests."""
        try:
            until(lambda: self.rows() == rows and self.server.said() == asked, SECONDS, every=0.005)
        except AssertionError:
            assert (self.rows(), self.server.said()) == (rows, asked)


def labelled(scene: Scene, name: str, version: int, label: str) -> Object:
    """An object of this version with other contents."""
    obj = scene.obj(name, version)
    return {**obj, "metadata": {**obj["metadata"], "labels": {"is": label}}}


def _short(obj: Object | None) -> str:
    return f"{obj['metadata']['name']}@{obj['metadata']['resourceVersion']}" if obj else "-"


Script = Callable[[Scene], list[Answer]]


@contextmanager
def following(
    script: Script,
    resource: Resource = PODS,
    *,
    last: Callable[[Asked], Answer] | None = None,
    stall: float = 90,
    **options: Any,
) -> Iterator[Scene]:
    """A started informer of a server with this script, which ends before the server does."""
    with FlakyServer([], last) as server, RestCluster(server.url, stall=stall, retries=0) as client:
        scene = Scene(server, client, resource)
        server.script.extend(script(scene))
        wanted: dict[str, Any] = {"changed": scene.changed, "pause": scene.paused, **options}
        scene.informer = Informer(
            client, resource, restarted=lambda _, cause: scene.causes.append(cause), namespace="default", **wanted
        )
        scene.informer.start()
        try:
            yield scene
        finally:
            scene.informer.stop()
        assert [str(asked) for asked in server.unexpected] == []


both_kinds = pytest.mark.parametrize("resource", [PODS, TFJOBS], ids=["pods", "custom"])


# Common faults of API servers.


@both_kinds
def test_watch_resumes_at_last_version(resource: Resource) -> None:
    def script(s: Scene) -> list[Answer]:
        return [
            listed(5, s.obj("a", 3)),
            watched(event("ADDED", s.obj("b", 7)), end=End.CLEAN),
            watched(event("MODIFIED", s.obj("a", 8)), event("DELETED", s.obj("b", 9))),
        ]

    with following(script, resource) as scene:
        scene.expect(["a@8"], ["list", "watch 5", "watch 7"])
        scene.told("->a@3", "->b@7", "a@3>a@8", "b@7>-")
        until(lambda: scene.informer.version == "9", SECONDS, every=0.005)
        assert scene.server.asked[1].query["allowWatchBookmarks"] == "true"
        assert scene.server.asked[0].path == resource.path("default")
        assert scene.informer.problem is None


@both_kinds
def test_watch_resumes_at_bookmark(resource: Resource) -> None:
    def script(s: Scene) -> list[Answer]:
        return [
            listed(5, s.obj("a", 3)),
            watched(event("ADDED", s.obj("b", 7)), bookmark(20), end=End.CLEAN),
            watched(),
        ]

    with following(script, resource) as scene:
        scene.expect(["a@3", "b@7"], ["list", "watch 5", "watch 20"])
        assert scene.changes == ["->a@3", "->b@7"]


@both_kinds
@pytest.mark.parametrize("refusal", [watched(gone()), Refusal(410)], ids=["in the stream", "HTTP"])
def test_gone_causes_relist(resource: Resource, refusal: Answer) -> None:
    def script(s: Scene) -> list[Answer]:
        return [
            listed(5, s.obj("a", 3), s.obj("b", 4), s.obj("c", 5)),
            refusal,
            listed(30, s.obj("a", 3), s.obj("c", 22), s.obj("d", 25)),
            watched(),
        ]

    with following(script, resource) as scene:
        scene.expect(["a@3", "c@22", "d@25"], ["list", "watch 5", "list", "watch 30"])
        assert scene.changes[:3] == ["->a@3", "->b@4", "->c@5"]
        assert sorted(scene.changes[3:]) == ["->d@25", "b@4>-", "c@5>c@22"]
        assert scene.informer.problem is None
        assert len(scene.causes) == 1


@both_kinds
@pytest.mark.parametrize("refusal", [watched(gone()), Refusal(410)], ids=["in the stream", "HTTP"])
def test_repeated_gone_relists_with_growing_pauses(resource: Resource, refusal: Answer) -> None:
    rounds = 6

    def script(s: Scene) -> list[Answer]:
        lists = [listed(10 * n, s.obj("a", 10 * n)) for n in range(1, rounds + 1)]
        return [answer for one in lists for answer in (one, refusal)] + [listed(100, s.obj("b", 99)), watched()]

    with following(script, resource) as scene:
        each = [asked for n in range(1, rounds + 1) for asked in ("list", f"watch {10 * n}")]
        scene.expect(["b@99"], [*each, "list", "watch 100"])
        # The first retry may be immediate. If the server keeps refusing, the pauses become longer.
        assert len(scene.failures) >= rounds - 1
        assert max(scene.failures) >= rounds - 1


@both_kinds
@pytest.mark.parametrize("end", [End.RESET, End.CUT])
def test_watch_resumes_after_truncated_line(resource: Resource, end: End) -> None:
    read = threading.Event()

    def script(s: Scene) -> list[Answer]:
        half = b'{"type":"MODIFIED","object":{"metadata":{"name":"a","names'
        return [
            listed(5, s.obj("a", 3)),
            watched(event("ADDED", s.obj("b", 7)), half, end=end, when=read),
            watched(event("MODIFIED", s.obj("a", 8))),
        ]

    with following(script, resource) as scene:
        until(lambda: scene.rows() == ["a@3", "b@7"], SECONDS, every=0.005)
        read.set()
        scene.expect(["a@8", "b@7"], ["list", "watch 5", "watch 7"])
        scene.told("->a@3", "->b@7", "a@3>a@8")
        assert scene.failures


@both_kinds
def test_retry_after_is_respected(resource: Resource) -> None:
    def script(s: Scene) -> list[Answer]:
        return [
            Refusal(429, retry_after=1),
            listed(5, s.obj("a", 3)),
            Refusal(429, retry_after=1),
            watched(event("ADDED", s.obj("b", 7))),
        ]

    with following(script, resource) as scene:
        scene.expect(["a@3", "b@7"], ["list", "list", "watch 5", "watch 5"])
        first, second, third, fourth = (asked.at for asked in scene.server.asked)
        assert second - first >= 0.95
        assert fourth - third >= 0.95


@both_kinds
@pytest.mark.parametrize("silence", [Silence(), watched()], ids=["before the answer", "in the stream"])
def test_silent_connection_is_abandoned(resource: Resource, silence: Answer) -> None:
    """The answer depends on the request, because on a busy machine, the client may also give up other connections."""
    stall, begun = 0.3, time.monotonic()
    scenes: list[Scene] = []
    silent = iter([silence])

    def script(s: Scene) -> list[Answer]:
        scenes.append(s)
        return []

    def answer(asked: Asked) -> Answer:
        obj = scenes[0].obj
        match str(asked):
            case "list":
                return listed(5, obj("a", 3))
            case "watch 5":
                return next(silent, None) or watched(event("MODIFIED", obj("a", 8)), end=End.CLEAN)
            case _:
                return watched()

    with following(script, resource, last=answer, stall=stall) as scene:
        # The next watches are silent, too, so the informer repeats them.
        until(lambda: scene.rows() == ["a@8"] and scene.server.said()[-2:] == ["watch 8"] * 2, SECONDS, every=0.005)
        said, seconds = scene.server.said(), time.monotonic() - begun
        assert [what for what, _ in groupby(said)] == ["list", "watch 5", "watch 8"]
        assert said.count("watch 5") >= 2
        assert said.count("watch 8") <= 1 + seconds / stall, "each is waited for"
        scene.told("->a@3", "a@3>a@8")


# Lists


def test_list_is_cached_only_after_last_page() -> None:
    allowed = threading.Event()

    def script(s: Scene) -> list[Answer]:
        return [listed(5, s.obj("a", 3), token="t1"), Late(listed(5, s.obj("b", 4)), allowed), watched()]

    with following(script) as scene:
        until(lambda: scene.server.said() == ["list", "list +t1"], SECONDS, every=0.005)
        assert not scene.informer.synced()
        assert not scene.informer.wait_synced(0)
        assert scene.rows() == []
        allowed.set()
        assert scene.informer.wait_synced(SECONDS)
        assert scene.rows() == ["a@3", "b@4"]


def test_older_list_is_ignored() -> None:
    def script(s: Scene) -> list[Answer]:
        return [
            listed(50, s.obj("a", 40)),
            watched(event("MODIFIED", s.obj("a", 60)), event("ADDED", s.obj("b", 61)), gone()),
            listed(45, s.obj("a", 40), s.obj("c", 41)),
            listed(70, s.obj("a", 60), s.obj("b", 61)),
            watched(),
        ]

    with following(script) as scene:
        scene.expect(["a@60", "b@61"], ["list", "watch 50", "list", "list", "watch 70"])
        assert scene.changes == ["->a@40", "a@40>a@60", "->b@61"]
        assert scene.failures


def test_retries_soon_when_server_returns_with_older_lists() -> None:
    """The informer accepts the older lists of a restored server only after several of them."""

    def script(s: Scene) -> list[Answer]:
        away = [Refusal(503) for _ in range(5)]
        older = [listed(45, s.obj("a", 40)) for _ in range(3)]
        return [listed(50, s.obj("a", 40)), watched(gone()), *away, *older, listed(70, s.obj("a", 60)), watched()]

    with following(script) as scene:
        scene.expect(["a@60"], ["list", "watch 50", *["list"] * 9, "watch 70"])
        assert scene.failures[-8:] == [1, 2, 3, 4, 5, 0, 1, 2]


def test_restored_server_is_reported_once() -> None:
    """Informers of other kinds may not notice the restoration, if the server's version is newer than theirs.

    The report comes before the changes, so that no decision uses these changes with outdated objects of other kinds.
    """
    said: list[tuple[int, list[str]]] = []

    def script(s: Scene) -> list[Answer]:
        older = [listed(45, s.obj("a", 40)) for _ in range(10)]
        return [listed(50, s.obj("a", 48)), watched(gone()), *older, watched()]

    with following(script, set_back=lambda: said.append((len(scene.server.said()), [*scene.changes]))) as scene:
        scene.expect(["a@40"], ["list", "watch 50", *["list"] * 10, "watch 45"])
        assert said == [(11, ["->a@48"])]
        scene.told("->a@48", "a@48>a@40")


def test_restored_server_with_newer_version_is_detected_by_older_object() -> None:
    """The restoration is reported once, and not again by the relist that follows."""
    said: list[int] = []

    def script(s: Scene) -> list[Answer]:
        lists = [listed(52, s.obj("a", 40)), listed(55, s.obj("a", 39))]
        return [listed(50, s.obj("a", 48)), watched(gone()), *lists, watched()]

    with following(script, set_back=lambda: said.append(len(scene.server.said()))) as scene:
        scene.expect(["a@39"], ["list", "watch 50", "list", "list", "watch 55"])
        assert said == [3]


@pytest.mark.parametrize("version", [45, 52], ids=["the server is older", "its versions have overtaken ours"])
def test_restored_server_that_reused_a_version_is_listed_again(version: int) -> None:
    """An object has the same version as before the restoration, and other contents. No watch shows it again."""

    def script(s: Scene) -> list[Answer]:
        old, new = labelled(s, "b", 44, "old"), labelled(s, "b", 44, "new")
        first = [listed(50, s.obj("a", 48), old), watched(gone())]
        return [*first, *[listed(version, s.obj("a", 40), new)] * (10 if version < 50 else 2), watched()]

    with following(script) as scene:
        lists = ["list"] * (10 if version < 50 else 2)
        scene.expect(["a@40", "b@44"], ["list", "watch 50", *lists, f"watch {version}"])
        assert scene.informer.cache.get(("default", "b")) == labelled(scene, "b", 44, "new")


def test_object_with_a_reused_version_is_detected_after_an_outage() -> None:
    """No object is older: the restored server has only reused a version."""
    said: list[int] = []

    def script(s: Scene) -> list[Answer]:
        begin = [listed(50, labelled(s, "a", 48, "old")), watched(end=End.RESET), Refusal(403)]
        return [*begin, *[listed(54, labelled(s, "a", 48, "new"))] * 2, watched()]

    with following(script, set_back=lambda: said.append(len(scene.server.said()))) as scene:
        scene.expect(["a@48"], ["list", "watch 50", "watch 50", "list", "list", "watch 54"])
        assert scene.informer.items() == [labelled(scene, "a", 48, "new")]
        assert said == [4]


def test_doubted_relist_accepts_older_list_immediately() -> None:
    """The restoration is not reported, because the caller that requested the list knows it."""
    said: list[int] = []

    def script(s: Scene) -> list[Answer]:
        return [listed(50, s.obj("a", 48), s.obj("b", 49)), watched(), listed(45, s.obj("a", 40)), watched()]

    with following(script, set_back=lambda: said.append(len(scene.server.said()))) as scene:
        until(lambda: scene.server.said() == ["list", "watch 50"], SECONDS, every=0.005)
        scene.informer.relist(doubted=True)
        scene.expect(["a@40"], ["list", "watch 50", "list", "watch 45"])
        assert said == []


def test_long_outage_causes_relist() -> None:
    """The server may have been restored, and already have newer versions. A watch would not show the difference."""
    said: list[int] = []

    def script(s: Scene) -> list[Answer]:
        begin = [listed(50, s.obj("a", 48)), watched(event("ADDED", s.obj("b", 51)), end=End.CLEAN)]
        short = [*[Refusal(503)] * 5, watched(event("DELETED", s.obj("b", 52)), end=End.CLEAN)]
        return [*begin, *short, *[Refusal(503)] * 6, *[listed(54, s.obj("a", 40))] * 2, watched()]

    with following(script, set_back=lambda: said.append(len(scene.server.said()))) as scene:
        asked = ["list", "watch 50", *["watch 51"] * 6, *["watch 52"] * 6, "list", "list", "watch 54"]
        scene.expect(["a@40"], asked)
        assert len(said) == 1


def test_starting_server_causes_relist() -> None:
    """A server that refuses requests after its start may have been restored."""

    def script(s: Scene) -> list[Answer]:
        begin = [listed(50, s.obj("a", 48), s.obj("b", 49)), watched(end=End.RESET)]
        return [*begin, Refusal(403), *[listed(54, s.obj("a", 40))] * 2, watched()]

    with following(script) as scene:
        scene.expect(["a@40"], ["list", "watch 50", "watch 50", "list", "list", "watch 54"])


def test_recovery_is_reported_once_before_changes() -> None:
    """The caches of other kinds may be older than the outage, so no decision may use them with the new changes."""
    said: list[tuple[bool, list[str]]] = []

    def recovered(since: float) -> None:
        said.append((began <= since <= scene.informer.listed_at, [*scene.changes]))

    def script(s: Scene) -> list[Answer]:
        begin = [listed(50, s.obj("b", 49)), watched(end=End.RESET), Refusal(403)]
        return [*begin, listed(54, s.obj("a", 53)), watched(gone()), listed(56, s.obj("a", 55)), watched()]

    began = time.monotonic()
    with following(script, recovered=recovered) as scene:
        scene.expect(["a@55"], ["list", "watch 50", "watch 50", "list", "watch 54", "list", "watch 56"])
        assert said == [(True, ["->b@49"])]


def test_throttling_server_causes_no_relist() -> None:
    """A throttling server is not in an outage, and a list is its most expensive request."""

    def script(s: Scene) -> list[Answer]:
        return [listed(50, s.obj("a", 48)), *[Refusal(429)] * 8, watched(event("MODIFIED", s.obj("a", 51)))]

    with following(script) as scene:
        scene.expect(["a@51"], ["list", *["watch 50"] * 9])


def test_slow_failures_cause_relist() -> None:
    """Two failures are enough if each takes seconds."""

    class SlowRuntime(ThreadRuntime):
        """Each failure takes three seconds."""

        def monotonic(self) -> float:
            return super().monotonic() + 3.0 * failures

    failures = 0

    def count(failed: int) -> float:
        nonlocal failures
        failures += 1
        return 0.0

    def script(s: Scene) -> list[Answer]:
        begin = [listed(50, s.obj("a", 48)), watched(event("ADDED", s.obj("b", 51)), end=End.CLEAN)]
        return [*begin, *[Refusal(503)] * 2, *[listed(54, s.obj("a", 40))] * 2, watched()]

    with following(script, pause=count, runtime=SlowRuntime()) as scene:
        scene.expect(["a@40"], ["list", "watch 50", *["watch 51"] * 2, "list", "list", "watch 54"])


def test_own_write_is_dropped_after_restoration_of_server() -> None:
    """A list is newer than the last watched version, but older than the response to a write."""
    answered = threading.Event()
    said: list[int] = []

    def script(s: Scene) -> list[Answer]:
        first = [listed(50, s.obj("a", 48)), watched(gone(), when=answered)]
        return [*first, *(listed(52, s.obj("a", 40)) for _ in range(10)), watched()]

    with following(script, set_back=lambda: said.append(len(scene.server.said()))) as scene:
        until(lambda: scene.server.said() == ["list", "watch 50"], SECONDS, every=0.005)
        scene.informer.put(scene.obj("a", 90))
        answered.set()
        scene.expect(["a@40"], ["list", "watch 50", *["list"] * 10, "watch 52"])
        assert said == [11]


# The cache


def test_own_writes_are_cached_before_watch_confirms_them() -> None:
    written = threading.Event()

    def script(s: Scene) -> list[Answer]:
        late = [event("MODIFIED", s.obj("a", 6)), event("MODIFIED", s.obj("a", 8)), event("ADDED", s.obj("b", 9))]
        return [listed(5, s.obj("a", 3)), watched(end=End.CLEAN, when=written), watched(*late)]

    with following(script) as scene:
        until(lambda: scene.server.said() == ["list", "watch 5"], SECONDS, every=0.005)
        scene.informer.put(scene.obj("a", 8))
        scene.informer.put(scene.obj("a", 7))
        assert scene.rows() == ["a@8"]
        written.set()
        # The watch continues at its last version, because an own write does not show the changes of other clients.
        scene.expect(["a@8", "b@9"], ["list", "watch 5", "watch 5"])
        scene.told("->a@3", "a@3>a@8", "->b@9")


def test_list_that_started_before_write_does_not_undo_it() -> None:
    written = threading.Event()

    def script(s: Scene) -> list[Answer]:
        late = Late(listed(7, s.obj("a", 3)), written)
        return [listed(5, s.obj("a", 3)), watched(gone()), late, watched()]

    with following(script) as scene:
        until(lambda: scene.server.said() == ["list", "watch 5", "list"], SECONDS, every=0.005)
        scene.informer.put(scene.obj("b", 9))
        written.set()
        scene.expect(["a@3", "b@9"], ["list", "watch 5", "list", "watch 7"])
        assert "b@9>-" not in scene.changes


def test_late_write_response_does_not_restore_deleted_object() -> None:
    def script(s: Scene) -> list[Answer]:
        return [listed(5), watched(event("ADDED", s.obj("b", 7)), event("DELETED", s.obj("b", 9)))]

    with following(script) as scene:
        until(lambda: scene.informer.version == "9", SECONDS, every=0.005)
        # The writing thread is slower than the watch, and passes its response after the deletion.
        scene.informer.put(scene.obj("b", 7))
        assert scene.rows() == []


def test_only_kept_fields_are_cached() -> None:
    def keep(obj: Object) -> Object:
        return {"metadata": obj["metadata"]}

    def script(s: Scene) -> list[Answer]:
        return [listed(5, {**s.obj("a", 3), "spec": {}}), watched(event("ADDED", {**s.obj("b", 7), "spec": {}}))]

    with following(script, keep=keep) as scene:
        scene.expect(["a@3", "b@7"], ["list", "watch 5"])
        scene.informer.put({**scene.obj("c", 8), "spec": {}})
        assert all(obj.keys() == {"metadata"} for obj in scene.informer.items())
        found = scene.informer.get("default", "c")
        assert found is not None
        assert found["metadata"]["resourceVersion"] == "8"
        assert scene.informer.get("default", "absent") is None


# Missing permissions and missing kinds


def test_informer_recovers_when_permission_is_granted_again() -> None:
    def script(s: Scene) -> list[Answer]:
        refused = [Refusal(403)] * 3
        return [
            *refused,
            listed(5, s.obj("a", 3)),
            watched(event("ADDED", s.obj("b", 7)), end=End.CLEAN),
            *refused,
            # A starting server refuses at first, and this server was restored.
            listed(8, s.obj("a", 3)),
            watched(event("ADDED", s.obj("c", 9))),
        ]

    problems: list[object] = []
    scenes: list[Scene] = []

    def pause(failures: int) -> float:
        problems.append(scenes[0].informer.problem if scenes else "first")
        return 0.01

    def scripted(s: Scene) -> list[Answer]:
        scenes.append(s)
        return script(s)

    with following(scripted, pause=pause) as scene:
        until(lambda: scene.rows() == ["a@3", "c@9"], SECONDS, every=0.005)
        assert scene.server.said() == ["list"] * 4 + ["watch 5"] + ["watch 7"] + ["list"] * 3 + ["watch 8"]
        assert len(problems) >= 6
        assert any(isinstance(problem, Forbidden) for problem in problems)
        until(lambda: scene.informer.problem is None, SECONDS)


def test_forbidden_kind_counts_as_absent_only_if_optional() -> None:
    with saying(failure(403)) as (client, _), pytest.raises(Forbidden):
        Informer(client, PODS, changed=lambda *_: None).refresh()
    with saying(failure(403)) as (client, _):
        optional = Informer(client, PODS, changed=lambda *_: None, optional=True)
        optional.refresh()
    assert (optional.items(), type(optional.hidden)) == ([], Forbidden)


def test_informer_recovers_when_definition_is_created_again() -> None:
    def script(s: Scene) -> list[Answer]:
        return [
            listed(5, s.obj("a", 3)),
            watched(event("DELETED", s.obj("a", 9)), end=End.CLEAN),
            *[Refusal(404)] * 4,
        ]

    back = threading.Event()

    def last(asked: Asked) -> Answer:
        if not back.is_set():
            return Refusal(404)
        made = {"name": "b", "namespace": "default", "resourceVersion": "30", "uid": "uid-b"}
        return watched() if str(asked).startswith("watch") else listed(31, {"metadata": made})

    with following(script, TFJOBS, last=last, pause=lambda _: 0.01) as scene:
        until(lambda: len(scene.server.said()) >= 8, SECONDS, every=0.005)
        assert scene.rows() == []
        assert scene.informer.synced()
        back.set()
        until(lambda: scene.rows() == ["b@30"] and scene.server.said()[-1] == "watch 31", SECONDS, every=0.005)
        assert scene.changes == ["->a@3", "a@3>-", "->b@30"]
        assert scene.informer.problem is None


@pytest.mark.parametrize("before", [[], [Refusal(503)], [Refusal(503)] * 2], ids=["at once", "once", "twice"])
def test_kind_that_is_not_served_is_reported_once(before: list[Answer]) -> None:
    with following(lambda _: [*before], TFJOBS, last=lambda _: Refusal(404), pause=lambda _: 0.01) as scene:
        until(lambda: len(scene.server.said()) >= len(before) + 3, SECONDS, every=0.005)
        assert scene.causes == ["Unavailable"] * len(before) + ["404"]


# Stopping


@pytest.mark.parametrize(
    "script",
    [
        lambda s: [listed(5), watched()],
        lambda s: [listed(5), watched(b'{"type":"ADDED","obj')],
        lambda s: [Refusal(429, retry_after=600)],
    ],
    ids=["in the watch", "in a line", "in a pause"],
)
def test_stop_does_not_wait_for_server(script: Script) -> None:
    with following(script, stall=600) as scene:
        wanted = len(script(scene))
        until(lambda: len(scene.server.said()) == wanted, SECONDS, every=0.005)
        assert threads() == 1
        # Waiting for the server would take ten minutes.
        stopping = threading.Thread(target=scene.informer.stop, daemon=True)
        stopping.start()
        stopping.join(SECONDS)
        assert not stopping.is_alive()
        scene.informer.stop()
        assert not scene.informer.alive()
        assert threads() == 0


def threads() -> int:
    """The number of informers of pods that run in this process."""
    return sum(thread.name == "informer-pods" for thread in threading.enumerate())


def test_error_in_callback_does_not_stop_informer() -> None:
    def script(s: Scene) -> list[Answer]:
        return [
            listed(5, s.obj("a", 3)),
            watched(event("ADDED", s.obj("b", 7)), event("ADDED", s.obj("c", 8)), end=End.CLEAN),
        ]

    calls: list[str] = []

    def changed(old: Object | None, new: Object | None) -> None:
        calls.append(_short(new))
        raise ZeroDivisionError("a defect in a handler")

    def last(asked: Asked) -> Answer:
        return watched() if str(asked).startswith("watch") else listed(8)

    with following(script, changed=changed, last=last) as scene:
        until(lambda: {"a@3", "b@7", "c@8"} <= set(calls), SECONDS, every=0.005)
        until(lambda: scene.rows() == ["a@3", "b@7", "c@8"], SECONDS, every=0.005)


def test_requested_relist_survives_failed_list() -> None:
    def script(s: Scene) -> list[Answer]:
        refused: list[Answer] = [Refusal(403), Refusal(500)]
        return [listed(5, s.obj("a", 3)), watched(), *refused, listed(9, s.obj("b", 8)), watched()]

    with following(script) as scene:
        until(lambda: scene.server.said() == ["list", "watch 5"], SECONDS, every=0.005)
        scene.informer.relist()
        assert not scene.informer.synced()
        assert scene.informer.wait_synced(SECONDS)
        scene.expect(["b@8"], ["list", "watch 5", "list", "list", "list", "watch 9"])


@pytest.mark.parametrize("begun", [["list"], ["list", "watch 5"]])
def test_relist_requested_before_watch_starts_needs_another_list(begun: list[str]) -> None:
    """The list in progress may be older than the request, so it does not fulfil the request."""
    first, second = threading.Event(), threading.Event()

    def script(s: Scene) -> list[Answer]:
        *before, late = [listed(5, s.obj("a", 3)), watched()][: len(begun)]
        return [*before, Late(late, first), Late(listed(9, s.obj("b", 8)), second), watched()]

    with following(script) as scene:
        until(lambda: scene.server.said() == begun, SECONDS, every=0.005)
        scene.informer.relist()
        first.set()
        until(lambda: scene.server.said() == [*begun, "list"], SECONDS, every=0.005)
        assert not scene.informer.synced()
        second.set()
        assert scene.informer.wait_synced(SECONDS)
        scene.expect(["b@8"], [*begun, "list", "watch 9"])


def test_doubted_relist_replaces_objects_with_equal_version() -> None:
    """The doubt survives a list that fails, and ends with a successful list."""

    def script(s: Scene) -> list[Answer]:
        lists = [
            listed(version, labelled(s, "a", 3, label))
            for version, label in ((5, "first"), (9, "second"), (9, "third"))
        ]
        return [lists[0], watched(), Refusal(500), lists[1], watched(), lists[2], watched()]

    with following(script) as scene:
        until(lambda: scene.server.said() == ["list", "watch 5"], SECONDS, every=0.005)
        scene.informer.relist(doubted=True)
        scene.expect(["a@3"], ["list", "watch 5", "list", "list", "watch 9"])
        assert [one["metadata"]["labels"] for one in scene.informer.items()] == [{"is": "second"}]
        scene.informer.relist()
        scene.expect(["a@3"], ["list", "watch 5", "list", "list", "watch 9", "list", "watch 9"])
        assert [one["metadata"]["labels"] for one in scene.informer.items()] == [{"is": "second"}]


def test_requested_relist_survives_error_in_keep() -> None:
    """For example, a defect in the ``keep`` function."""
    broken = [True]

    def keep(obj: Object) -> Object:
        if obj["metadata"]["name"] == "b" and broken[0]:
            broken[0] = False
            raise ZeroDivisionError("a defect of ours")
        return obj

    def script(s: Scene) -> list[Answer]:
        return [listed(5, s.obj("a", 3)), watched(), listed(9, s.obj("b", 8)), listed(9, s.obj("b", 8)), watched()]

    with following(script, keep=keep) as scene:
        until(lambda: scene.server.said() == ["list", "watch 5"], SECONDS, every=0.005)
        scene.informer.relist()
        scene.expect(["b@8"], ["list", "watch 5", "list", "list", "watch 9"])
        assert scene.informer.wait_synced(SECONDS)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_informer_is_dead_only_if_its_thread_ended_by_itself() -> None:
    """An unavailable server does not make the informer dead. A thread that ended by itself does."""

    class Away:
        """A cluster that does not answer, and later ends the calling thread."""

        ends = False
        asked = 0

        def list(self, *_: Any, **__: Any) -> Any:
            self.asked += 1
            if self.ends:
                raise SystemExit
            raise Unavailable("no route to it")

    cluster: Any = Away()
    informer = Informer(cluster, PODS, changed=lambda *_: None, pause=lambda _: 0.01)
    assert not informer.died()
    informer.start()
    heard = informer.last_response_at
    until(lambda: cluster.asked > 3, SECONDS)
    rounds = informer.last_loop_at
    until(lambda: informer.last_loop_at > rounds, SECONDS)
    assert informer.last_response_at == heard
    assert not informer.died()
    cluster.ends = True
    until(informer.died, SECONDS)
    informer.stop()
    assert not informer.died(), "it was ended"


def test_lists_and_events_update_last_response_time() -> None:
    with MemoryCluster() as memory:
        informer = Informer(memory, PODS, changed=lambda *_: None, pause=lambda _: 0.01)
        informer.start()
        until(informer.synced, SECONDS)
        assert informer.lists == 1
        heard = informer.last_response_at
        memory.create(
            PODS, "default", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        )
        until(lambda: informer.last_response_at > heard, SECONDS)
        informer.relist()
        until(lambda: informer.lists == 2, SECONDS)
        informer.stop()
