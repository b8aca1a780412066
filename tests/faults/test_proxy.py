"""The proxy does to requests what its faults say, and no more: the fault tests stand on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.cluster.support import config_map
from tests.cluster.support import names as names_of
from tests.faults.calls import Call
from tests.faults.proxy import Fault, Kind, Proxy
from tests.waiting import until
from tf_dist.cluster.api import CONFIG_MAPS, PODS, ObjectList
from tf_dist.cluster.apiserver.server import ApiServer
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.errors import ClusterError, Conflict, Forbidden, Gone, NotFound, Throttled, Unavailable

SECONDS = 60


@pytest.fixture
def memory() -> Iterator[MemoryCluster]:
    with MemoryCluster() as cluster:
        yield cluster


@pytest.fixture
def proxy(memory: MemoryCluster) -> Iterator[Proxy]:
    with ApiServer(memory, token="secret") as server:
        host, _, port = server.app.url.removeprefix("http://").partition(":")
        with Proxy((host, int(port))) as proxy:
            yield proxy
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("proxy")]


@pytest.fixture
def client(proxy: Proxy) -> Iterator[RestCluster]:
    with RestCluster(proxy.url, token="secret", retries=0) as client:
        yield client


def listed(client: RestCluster) -> ObjectList:
    return client.list(CONFIG_MAPS, "default")


def test_what_no_fault_is_for_passes(client: RestCluster, proxy: Proxy) -> None:
    proxy.inject(Fault(Kind.REFUSE, verbs=frozenset({"patch"})), Fault(Kind.RESET, resources=frozenset({"pods"})))
    client.create(CONFIG_MAPS, "default", config_map("a"))
    client.get(CONFIG_MAPS, "default", "a")
    client.delete(CONFIG_MAPS, "default", "a")
    assert listed(client).items == []
    assert [passed.call for passed in proxy.passed] == [
        Call("create", "configmaps", "default", ""),
        Call("get", "configmaps", "default", "a"),
        Call("delete", "configmaps", "default", "a"),
        Call("list", "configmaps", "default", ""),
    ]
    assert [passed.code for passed in proxy.passed] == [201, 200, 200, 200]


@pytest.mark.parametrize(
    ("code", "error"),
    [(403, Forbidden), (404, NotFound), (409, Conflict), (410, Gone), (429, Throttled), (500, Unavailable)],
)
def test_a_refusal_never_reaches_the_server(
    client: RestCluster, proxy: Proxy, code: int, error: type[ClusterError]
) -> None:
    proxy.inject(Fault(Kind.REFUSE, code=code, retry_after=3))
    with pytest.raises(error) as raised:
        client.create(CONFIG_MAPS, "default", config_map("a"))
    if isinstance(raised.value, Throttled):
        assert raised.value.after == 3
    assert listed(client).items == []


@pytest.mark.parametrize(("kind", "there"), [(Kind.RESET, []), (Kind.HANG, []), (Kind.LOSE, ["a"]), (Kind.LATE, [])])
def test_a_broken_connection(client: RestCluster, proxy: Proxy, kind: Kind, there: list[str]) -> None:
    proxy.inject(Fault(kind, verbs=frozenset({"create"})))
    with pytest.raises(Unavailable):
        client.create(CONFIG_MAPS, "default", config_map("a"))
    assert names_of(client, CONFIG_MAPS, "default") == there
    assert proxy.deliver() == (1 if kind is Kind.LATE else 0)
    assert names_of(client, CONFIG_MAPS, "default") == (["a"] if kind in (Kind.LATE, Kind.LOSE) else [])


def test_how_often_and_from_when_on(client: RestCluster, proxy: Proxy) -> None:
    proxy.inject(Fault(Kind.REFUSE, skip=1, times=2))
    found = []
    for _ in range(4):
        try:
            found.append(len(listed(client).items))
        except Unavailable:
            found.append(-1)
    assert found == [0, -1, -1, 0]


def test_until_it_is_calm(client: RestCluster, proxy: Proxy) -> None:
    proxy.inject(Fault(Kind.REFUSE, code=403, times=None))
    for _ in range(3):
        with pytest.raises(Forbidden):
            listed(client)
    proxy.calm()
    assert listed(client).items == []


def test_an_older_list(client: RestCluster, proxy: Proxy) -> None:
    old = listed(client)
    client.create(CONFIG_MAPS, "default", config_map("a"))
    proxy.inject(Fault(Kind.STALE))
    assert listed(client) == old
    assert names_of(client, CONFIG_MAPS, "default") == ["a"]


def test_what_hangs_breaks_when_it_is_calm(client: RestCluster, proxy: Proxy) -> None:
    proxy.inject(Fault(Kind.HANG, seconds=600))
    errors: list[ClusterError] = []

    def ask() -> None:
        try:
            listed(client)
        except ClusterError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: bool(proxy.passed), SECONDS, every=0.005)
    proxy.calm()
    thread.join(SECONDS)
    assert len(errors) == 1


def seen(client: RestCluster, memory: MemoryCluster, count: int) -> list[str]:
    """The first changes of a watch over two writes, and how it ends if it does before ``count`` of them."""
    since = client.list(CONFIG_MAPS, "default").resource_version
    found: list[str] = []
    with client.watch(CONFIG_MAPS, "default", since=since) as events:
        for name in "ab":
            memory.create(CONFIG_MAPS, "default", config_map(name))
        try:
            for event in events:
                found.append(event.object["metadata"]["name"])
                if len(found) == count:
                    break
        except ClusterError as error:
            found.append(type(error).__name__)
    return found


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (None, ["a", "b"]),
        (Fault(Kind.TWICE), ["a", "a", "b", "b", "a"]),
        (Fault(Kind.GONE, after=1), ["a", "Gone"]),
        (Fault(Kind.CUT, after=1), ["a", "Unavailable"]),
        (Fault(Kind.SLOW), ["a", "b"]),
        (Fault(Kind.REFUSE, verbs=frozenset({"create"})), ["a", "b"]),
    ],
)
def test_watches(
    client: RestCluster, proxy: Proxy, memory: MemoryCluster, fault: Fault | None, found: list[str]
) -> None:
    if fault is not None:
        proxy.inject(fault)
    assert seen(client, memory, len(found)) == found


def test_events_that_come_late(client: RestCluster, proxy: Proxy, memory: MemoryCluster) -> None:
    proxy.hold_events()
    found: list[str] = []
    with client.watch(CONFIG_MAPS, "default", since=listed(client).resource_version) as events:
        thread = threading.Thread(target=lambda: found.append(next(events).object["metadata"]["name"]))
        thread.start()
        memory.create(CONFIG_MAPS, "default", config_map("a"))
        assert names_of(client, CONFIG_MAPS, "default") == ["a"]
        assert found == []
        proxy.release_events()
        thread.join(SECONDS)
        assert found == ["a"]


def test_watches_of_one_resource_break_alone(client: RestCluster, proxy: Proxy, memory: MemoryCluster) -> None:
    since = listed(client).resource_version
    with (
        client.watch(PODS, "default", since=since) as pods,
        client.watch(CONFIG_MAPS, "default", since=since) as others,
    ):
        proxy.disconnect(frozenset({"pods"}))
        with pytest.raises(Unavailable):
            next(pods)
        memory.create(CONFIG_MAPS, "default", config_map("a"))
        assert next(others).object["metadata"]["name"] == "a"


def test_the_end_of_a_watch_is_its_servers(client: RestCluster, proxy: Proxy, memory: MemoryCluster) -> None:
    with client.watch(PODS, "default", since=listed(client).resource_version) as events:
        memory.close()
        assert list(events) == []


def test_the_end_of_the_proxy_ends_everything(memory: MemoryCluster) -> None:
    with ApiServer(memory, token="secret") as server:
        host, _, port = server.app.url.removeprefix("http://").partition(":")
        with Proxy((host, int(port))) as proxy, RestCluster(proxy.url, token="secret", retries=0) as client:
            proxy.inject(Fault(Kind.HANG, verbs=frozenset({"get"}), seconds=600))
            watch = client.watch(PODS, "default", since="1")
            threads = [threading.Thread(target=ask, args=(client, watch)) for ask in (_get, _watch)]
            for thread in threads:
                thread.start()
            until(lambda: len(proxy.passed) >= 2, SECONDS, every=0.005)
            begun = time.monotonic()
            proxy.__exit__()
            assert time.monotonic() - begun < 250, "far from the 600 s that the answer hangs"
            for thread in threads:
                thread.join(SECONDS)
            assert not [thread for thread in threads if thread.is_alive()]
            watch.close()
            # Leaving the block ends it once more, which is no error.


def _get(client: RestCluster, watch: object) -> None:
    with pytest.raises(Unavailable):
        client.get(PODS, "default", "a")


def _watch(client: RestCluster, watch: Iterator[object]) -> None:
    with suppress(Unavailable):
        assert list(watch) == []
