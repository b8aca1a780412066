"""The order of waiting gangs."""

from __future__ import annotations

from tests.core.gang.gangs import World, gang, message, node, workers


def test_gang_that_never_fits_is_not_ahead_of_others() -> None:
    world = World([node("n", gpu=4)])
    world.put(gang("never", workers(9), at=1), gang("first", workers(3), at=2), gang("second", workers(4), at=3))
    world.put(gang("third", workers(2), at=4))
    assert "first" in world.decide(10)
    said = {uid: message(world.scheduler.explain(uid)) for uid in ("second", "third")}
    assert "; position 1" in said["second"]
    assert "; position 2, behind ml/second" in said["third"]
