"""Under all faults of clocks, pauses and networks: never two holders at once, and no living holder is thought dead."""

from __future__ import annotations

from hypothesis import event, given
from hypothesis import strategies as st

from tests.controller.leases.lease_world import SHARED, Fault, Machine, Sim
from tests.thorough import thorough
from tf_dist.controller.leases.lease import LeaseRef

OWN = [LeaseRef("default", "tf-dist-run-a"), LeaseRef("default", "tf-dist-run-b")]
CLOCKS = st.tuples(st.floats(-1e6, 1e6), st.floats(0.96, 1.04))
SECONDS = st.one_of(st.just(0.0), st.floats(0, 3), st.floats(0, 40))
FAULTS = st.builds(Fault, there=SECONDS, back=SECONDS, lost=st.sampled_from(["", "", "request", "answer"]))
MACHINES = 7
STEPS = st.one_of(
    st.tuples(st.just("run"), st.floats(0, 30), st.just(0)),
    st.tuples(st.just("faults"), st.lists(FAULTS, min_size=1, max_size=6), st.integers(0, MACHINES - 1)),
    st.tuples(st.just("pause"), st.floats(0, 60), st.integers(0, MACHINES - 1)),
    st.tuples(st.just("kill"), st.just(0), st.integers(0, 2)),
    st.tuples(st.just("release"), st.just(0), st.integers(0, 2)),
    st.tuples(st.just("delete"), st.just(0), st.integers(0, 2)),
)


@thorough(100)
@given(clocks=st.lists(CLOCKS, min_size=MACHINES, max_size=MACHINES), steps=st.lists(STEPS, max_size=25))
def test_nobody_is_ever_wrong_about_who_drives(clocks: list[tuple[float, float]], steps: list) -> None:
    sim = Sim()
    made = iter(clocks)
    replicas = [sim.hold(SHARED, f"replica-{n}", shared=True, **_clock(next(made))) for n in range(3)]
    owners = [sim.hold(ref, ref.name, shared=False, **_clock(next(made))) for ref in OWN]
    sim.run(40)
    books = [sim.watch(SHARED, *OWN, **_clock(next(made))) for _ in range(2)]
    deleted = 0.0
    for what, value, who in steps:
        machine = sim.machines[who]
        match what:
            case "run":
                sim.run(value)
            case "faults":
                machine.faults.extend(value)
            case "pause":
                machine.due = max(machine.due, sim.now + value)
            case "kill" if _others(sim, machine):
                machine.dead = True
            case "release" if not machine.dead and _others(sim, machine):
                machine.dead = True
                replicas[who].stop()
            case "delete" if sim.now - deleted > 60:
                # A user who deletes it again and again, just between two reads, is not defended against.
                deleted = sim.now
                sim.delete([SHARED, *OWN][who])
    for machine in sim.machines:
        machine.faults.clear()
    sim.run(150)
    alive = sim.valid()
    event(f"{sum(machine.dead for machine in sim.machines)} replicas gone")
    assert set(alive) >= set(owners)
    assert len(set(alive) & set(replicas)) == 1
    assert all(book.stale() == frozenset() for book in books)


def _clock(pair: tuple[float, float]) -> dict[str, float]:
    return {"offset": pair[0], "speed": pair[1]}


def _others(sim: Sim, machine: Machine) -> bool:
    """Whether another replica is left to go on."""
    return any(not other.dead for other in sim.machines[:3] if other is not machine)


@thorough(40)
@given(clocks=st.lists(CLOCKS, min_size=3, max_size=3), died=st.floats(0, 20), faults=st.lists(FAULTS, max_size=4))
def test_the_dead_are_found_dead(clocks: list[tuple[float, float]], died: float, faults: list[Fault]) -> None:
    sim = Sim()
    owner, *watchers = clocks
    held = sim.hold(OWN[0], "owner", shared=False, **_clock(owner))
    books = [sim.watch(OWN[0], **_clock(pair)) for pair in watchers]
    sim.run(died)
    sim.tenures[held].dead = True
    sim.books[books[0]].faults.extend(faults)
    sim.run(20)
    assert books[1].stale() == {str(OWN[0])}, "within 20 s, whatever the other watcher does"
    sim.run(200)
    assert all(book.stale() == {str(OWN[0])} for book in books)
