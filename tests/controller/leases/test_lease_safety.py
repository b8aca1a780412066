"""Under all faults of clocks, pauses and networks: never two leaders at once, and soon one again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.controller.leases.lease_world import CLUSTER, TEAM, Fault, Sim
from tests.thorough import thorough
from tf_dist.controller.leases.lease import LeaseRef

# Wall clocks differ by less than an hour: beyond that a living host's Lease counts as left behind.
CLOCKS = st.fixed_dictionaries(
    {"offset": st.floats(-1e6, 1e6), "speed": st.floats(0.96, 1.04), "wrong": st.floats(-1700, 1700)}
)
SECONDS = st.one_of(st.just(0.0), st.floats(0, 3), st.floats(0, 40))
FAULTS = st.builds(Fault, there=SECONDS, back=SECONDS, lost=st.sampled_from(["", "", "request", "answer"]))
CANDIDATES = (CLUSTER, CLUSTER, TEAM, TEAM, TEAM)
WHO = st.integers(0, len(CANDIDATES) - 1)
STEPS = st.one_of(
    st.tuples(st.just("run"), st.floats(0, 30), WHO),
    st.tuples(st.just("faults"), st.lists(FAULTS, min_size=1, max_size=6), WHO),
    st.tuples(st.just("pause"), st.floats(0, 60), WHO),
    st.tuples(st.just("kill"), st.just(0), WHO),
    st.tuples(st.just("release"), st.just(0), WHO),
    st.tuples(st.just("come"), st.just(0), WHO),
    st.tuples(st.just("delete"), st.just(0), WHO),
)


@thorough(150)
@given(clocks=st.lists(CLOCKS, min_size=5, max_size=5), steps=st.lists(STEPS, max_size=25))
def test_two_processes_never_lead_at_once(clocks: list[dict[str, float]], steps: list[tuple[str, Any, int]]) -> None:
    sim = Sim()
    # The last namespace's candidate stays; the others come and go.
    electors = {4: sim.candidate(TEAM, "4 comes", **clocks[4])}
    sim.run(20)
    for number, (what, value, who) in enumerate(steps):
        elector = electors.get(who)
        machine = sim.machines[elector] if elector is not None else None
        if machine is not None and machine.busy:
            continue
        match what:
            case "run":
                sim.run(value)
            case "come" if machine is None:
                electors[who] = sim.candidate(CANDIDATES[who], f"{who} comes as {number}", **clocks[who])
            case "faults" if machine is not None:
                machine.faults.extend(value)
            case "pause" if machine is not None:
                machine.due = max(machine.due, sim.now + value)
            case "kill" if machine is not None and who != 4:
                machine.dead = True
                del electors[who]
            case "release" if machine is not None and elector is not None and who != 4:
                machine.dead = True
                del electors[who]
                elector.stop()
            case "delete":
                sim.delete(CANDIDATES[who])
    for machine in sim.machines.values():
        machine.faults.clear()
    sim.run(150)
    wide = [elector for who, elector in electors.items() if CANDIDATES[who] == CLUSTER]
    event(f"{len(wide)} candidates for the cluster in the end")
    (leader,) = sim.leaders()
    assert leader in (wide or electors.values())


@pytest.mark.parametrize(("first", "next_"), [(CLUSTER, CLUSTER), (TEAM, TEAM), (CLUSTER, TEAM)])
@pytest.mark.parametrize(("killed", "within"), [(True, 20.0), (False, 5.0)])
@thorough(20)
@given(clocks=st.lists(CLOCKS, min_size=2, max_size=2), ended=st.floats(0.1, 20))
def test_the_next_candidate_leads_soon(
    first: LeaseRef, next_: LeaseRef, killed: bool, within: float, clocks: list[dict[str, float]], ended: float
) -> None:
    """Released: by polling, where no watch wakes the candidate."""
    sim = Sim()
    leader = sim.candidate(first, "one", **clocks[0])
    sim.run(0.1)
    candidate = sim.candidate(next_, "two", **clocks[1])
    sim.run(ended)
    assert sim.leaders() == [leader]
    sim.machines[leader].dead = True
    if not killed:
        leader.stop()
    sim.run(within)
    assert sim.leaders() == [candidate]


@thorough(20)
@given(clocks=st.lists(CLOCKS, min_size=2, max_size=2), came=st.floats(0.1, 20))
def test_a_controller_of_the_cluster_takes_over_from_a_namespace(clocks: list[dict[str, float]], came: float) -> None:
    sim = Sim()
    sim.candidate(TEAM, "namespace", **clocks[0])
    sim.run(came)
    wide = sim.candidate(CLUSTER, "cluster", **clocks[1])
    sim.run(20)
    assert sim.leaders() == [wide]
