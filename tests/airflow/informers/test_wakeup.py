"""The event by which other threads wake a trigger."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tf_dist.airflow.informers.wakeup import Wakeup

SECONDS = 10.0


def test_what_is_set_from_a_thread_wakes_the_one_that_waits_and_the_one_that_waits_later() -> None:
    async def waits() -> None:
        event = Wakeup()
        waiting = asyncio.ensure_future(event.wait())
        assert not waiting.done()
        await asyncio.to_thread(event)
        await asyncio.wait_for(waiting, SECONDS)
        await asyncio.wait_for(event.wait(), SECONDS)
        event.clear()
        assert not event.wait().done()

    asyncio.run(waits())


def test_a_wait_that_was_cut_short_takes_nothing_from_the_next() -> None:
    async def waits() -> None:
        event = Wakeup()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await event.wait()
        event()
        await asyncio.wait_for(event.wait(), SECONDS)

        event.clear()
        task = asyncio.ensure_future(_waiting(event))
        await asyncio.sleep(0)
        task.cancel()
        event.set()
        with suppress(asyncio.CancelledError):
            await task
        assert event.wait().done()

    asyncio.run(waits())


async def _waiting(event: Wakeup) -> None:
    await event.wait()


@pytest.mark.parametrize("later", [0, 1, 2])
def test_a_cancellation_is_not_lost_when_it_comes_with_the_change(later: int) -> None:
    async def waits() -> bool:
        event = Wakeup()
        task = asyncio.ensure_future(_for_ever(event))
        await asyncio.sleep(0)
        event.set()
        for _ in range(later):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=SECONDS)
        return task.cancelled()

    assert asyncio.run(waits())


async def _for_ever(event: Wakeup) -> None:
    while True:
        await event.wait()
        event.clear()
