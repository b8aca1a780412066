"""The simulated runtime itself: order, time, locks, death, and what it does not bear."""

from __future__ import annotations

from random import Random

import pytest

from tests.faults.simulation import Process, SimulatedRuntime, Simulation, Stuck, simulated


def process(simulation: Simulation, **clocks: float) -> tuple[Process, SimulatedRuntime]:
    made = Process(simulation, "p", **clocks)
    return made, SimulatedRuntime(made)


def test_time_goes_on_when_all_threads_wait() -> None:
    said: list[tuple[float, str]] = []
    with simulated(Random(1)) as simulation:
        _, runtime = process(simulation)

        def wait(name: str, seconds: float) -> None:
            runtime.event().wait(seconds)
            said.append((round(simulation.now, 3), name))

        for name, seconds in (("a", 5.0), ("b", 2.0), ("c", 2.5)):
            runtime.thread(lambda name=name, seconds=seconds: wait(name, seconds), name).start()
        simulation.run(3.0)
        assert said == [(2.0, "b"), (2.5, "c")]
        assert simulation.now == 3.0
        simulation.run(3.0)
    assert said[2:] == [(5.0, "a")]


def test_who_goes_first_is_a_matter_of_the_dice() -> None:
    def order_of(seed: int) -> list[int]:
        said: list[int] = []
        with simulated(Random(seed)) as simulation:
            _, runtime = process(simulation)
            for number in range(5):
                runtime.thread(lambda number=number: said.append(number), "t").start()
            simulation.run(1.0)
        return said

    orders = {tuple(order_of(seed)) for seed in range(20)}
    assert len(orders) > 1
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert order_of(3) == order_of(3)


def test_a_fast_clock_waits_for_a_shorter_time() -> None:
    ended: list[float] = []
    with simulated(Random(1)) as simulation:
        made, runtime = process(simulation, rate=2.0, skew=40.0)
        begun, wall = made.monotonic(), made.wall()

        def wait() -> None:
            runtime.event().wait(10.0)
            ended.append(simulation.now)

        runtime.thread(wait, "t").start()
        simulation.run(6.0)
        assert ended == [pytest.approx(5.0, abs=1e-3)]
        assert made.monotonic() - begun == pytest.approx(12.0)
        assert made.wall() - wall == pytest.approx(6.0)


@pytest.mark.parametrize("seed", range(5))
def test_a_lock_is_held_by_one(seed: int) -> None:
    inside: list[str] = []
    with simulated(Random(seed), restless=0.5) as simulation:
        _, runtime = process(simulation)
        lock, pause = runtime.lock(), runtime.event()

        def work(name: str) -> None:
            with lock, lock:
                inside.append(f"{name} in")
                pause.wait(1.0)
                inside.append(f"{name} out")

        for name in "abc":
            runtime.thread(lambda name=name: work(name), name).start()
        simulation.run(10.0)
    assert len(inside) == 6
    assert all(inside[i].split()[0] == inside[i + 1].split()[0] for i in (0, 2, 4))


def test_threads_that_wait_for_each_other_are_found() -> None:
    with simulated(Random(1)) as simulation:
        _, runtime = process(simulation)
        locks = runtime.lock(), runtime.lock()

        def work(first: int) -> None:
            with locks[first]:
                runtime.event().wait(1.0)
                with locks[1 - first]:
                    raise AssertionError("not reached")

        for first in (0, 1):
            runtime.thread(lambda first=first: work(first), f"t{first}").start()
        with pytest.raises(Stuck, match="wait for each other"):
            simulation.run(5.0)


def test_a_loop_without_time_is_found() -> None:
    with simulated(Random(1)) as simulation:
        _, runtime = process(simulation)

        def work() -> None:
            while True:
                runtime.event().wait(0.0)

        runtime.thread(work, "t").start()
        simulation._restless = 1.0
        with pytest.raises(Stuck, match="without time passing"):
            simulation.run(5.0)


def test_what_a_thread_does_not_bear_ends_the_story() -> None:
    with simulated(Random(1)) as simulation:
        _, runtime = process(simulation)
        runtime.pool(2, "w").submit(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            simulation.run(1.0)


def test_a_dead_process_takes_no_other_step_and_a_stopped_one_goes_on() -> None:
    beats: list[str] = []
    unwound: list[str] = []
    with simulated(Random(1)) as simulation:
        (killed, dying), (stopped, napping) = process(simulation), process(simulation)

        def beat(runtime: SimulatedRuntime, name: str) -> None:
            event = runtime.event()
            try:
                while not event.wait(1.0):
                    beats.append(name)
            finally:
                unwound.append(name)

        dying.thread(lambda: beat(dying, "killed"), "t").start()
        napping.thread(lambda: beat(napping, "stopped"), "t").start()
        simulation.run(2.5)
        assert sorted(beats) == ["killed", "killed", "stopped", "stopped"]
        killed.kill()
        stopped.stop()
        simulation.run(3.0)
        assert len(beats) == 4
        stopped.go_on()
        simulation.run(0.1)
        assert beats[4:] == ["stopped"], "what was due meanwhile is due once"
        assert unwound == []
    assert sorted(unwound) == ["killed", "stopped"]


def test_conditions_and_joins() -> None:
    said: list[str] = []
    with simulated(Random(1), restless=0.5) as simulation:
        _, runtime = process(simulation)
        bell, items = runtime.condition(), []

        def take() -> None:
            with bell:
                said.append("got it" if bell.wait_for(lambda: bool(items), 60.0) else "too late")
                said.append("got it" if bell.wait_for(lambda: len(items) > 1, 5.0) else "too late")

        def give() -> None:
            runtime.event().wait(3.0)
            with bell:
                items.append(1)
                bell.notify_all()

        threads = [runtime.thread(take, "take"), runtime.thread(give, "give")]
        for thread in threads:
            thread.start()

        def join() -> None:
            for thread in threads:
                thread.join()
            said.append(f"over after {simulation.now:.0f} s")

        runtime.thread(join, "join").start()
        simulation.run(20.0)
    assert said == ["got it", "too late", "over after 8 s"]
