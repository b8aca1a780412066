"""The right to write is asked again before every attempt of a request, also those that the client repeats itself."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.driver.harness import Hands, World, tfjob
from tests.faults.proxy import Fault, Kind, Passed, Proxy
from tf_dist.cluster.api import PODS
from tf_dist.cluster.http import ApiServer
from tf_dist.cluster.rest import RestCluster
from tf_dist.driver.loop import Driver
from tf_dist.driver.settings import DriverSettings


class Lost(Hands):
    """A mandate that is lost when somebody says so, or lasts for so many seconds more."""

    seconds = float("inf")

    def valid(self) -> bool:
        return self.remaining() > 0

    def remaining(self) -> float:
        return self.seconds


class Scene:
    """A driver that writes through a proxy, by a client that repeats what fails."""

    def __init__(self, server: ApiServer, world: World) -> None:
        host, _, port = server.url.removeprefix("http://").partition(":")
        self.world = world
        self.mandate = Lost()
        self.proxy = Proxy((host, int(port)), self._passed)
        self.loses = False

    def _passed(self, passed: Passed) -> None:
        """The Lease is lost while the client waits before it tries again."""
        if passed.fault is not None and self.loses:
            self.mandate.seconds = 0.0

    def writes(self) -> list[str]:
        return [passed.call.verb for passed in self.proxy.passed if passed.call.writes]

    def creates(self) -> int:
        return sum(p.call.verb == "create" and p.call.resource == "pods" for p in self.proxy.passed)


@pytest.fixture
def scene() -> Iterator[Scene]:
    world = World()
    server = ApiServer(world.memory)
    server.url = server.start()
    try:
        scene = Scene(server, world)
        with scene.proxy, RestCluster(scene.proxy.url, token=server.token, retries=3, sleep=lambda _: None) as client:
            settings = DriverSettings(volcano_jobs=False)
            clock = world.clock
            world.driver = Driver(client, clock=clock, monotonic=clock, mandate=scene.mandate, settings=settings)
            yield scene
    finally:
        server.stop()


@pytest.mark.parametrize("kind", [Kind.REFUSE, Kind.RESET, Kind.LOSE], ids=lambda kind: kind.name)
def test_a_creation_is_not_repeated_once_the_mandate_is_lost(scene: Scene, kind: Kind) -> None:
    scene.world.submit(tfjob())
    scene.proxy.inject(Fault(kind, frozenset({"create"}), frozenset({"pods"})))
    scene.loses = True
    scene.world.driver.step()
    assert scene.creates() == 1
    assert len(scene.world.memory.list(PODS).items) == (1 if kind is Kind.LOSE else 0)
    before = scene.writes()
    scene.world.driver.step()
    assert scene.writes() == before


def test_a_creation_is_repeated_while_the_mandate_holds(scene: Scene) -> None:
    scene.world.submit(tfjob())
    scene.proxy.inject(Fault(Kind.REFUSE, frozenset({"create"}), frozenset({"pods"}), times=2))
    scene.world.settle()
    assert len(scene.world.memory.list(PODS).items) == 3


def test_an_attempt_takes_no_longer_than_the_mandate_lasts(scene: Scene) -> None:
    hang = 60.0
    scene.world.submit(tfjob())
    scene.proxy.inject(Fault(Kind.HANG, frozenset({"create"}), frozenset({"pods"}), seconds=hang))
    scene.mandate.seconds = 0.5
    scene.loses = True
    began = time.monotonic()
    scene.world.driver.step()
    assert time.monotonic() - began < hang
    assert scene.creates() == 1
    assert scene.world.memory.list(PODS).items == []
