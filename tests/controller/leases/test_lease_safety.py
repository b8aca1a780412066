"""With faults of clocks, processes and networks, there are never two leaders, and soon a new leader."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.controller.leases.lease_world import CLUSTER, TEAM, Fault, Sim
from tests.thorough import thorough
from tf_dist.cluster.api import LEASES
from tf_dist.cluster.lease import LeaseRef

# Wall clocks differ by less than a day. With a larger difference, the Lease of a live host counts as abandoned.
SPEED = st.one_of(st.floats(0.96, 1.04), st.sampled_from((0.9, 1.1)))
CLOCKS = st.fixed_dictionaries({"offset": st.floats(-1e6, 1e6), "speed": SPEED, "wrong": st.floats(-43_000, 43_000)})
SECONDS = st.one_of(st.just(0.0), st.floats(0, 3), st.floats(0, 40))
FAULTS = st.builds(Fault, there=SECONDS, back=SECONDS, lost=st.sampled_from(["", "", "request", "answer"]))
CANDIDATES = (CLUSTER, CLUSTER, TEAM, TEAM, TEAM)
LAST = len(CANDIDATES) - 1
ACTS = st.one_of(
    st.tuples(st.just("pause"), st.one_of(st.floats(0, 60), st.just(25.0))),
    st.tuples(st.just("faults"), st.lists(FAULTS, min_size=1, max_size=6)),
    st.tuples(st.sampled_from(("come", "come", "kill", "release", "delete")), st.just(0)),
)
# An event, the affected candidate (None: the leader), and the seconds until the next event.
STEPS = st.tuples(ACTS, st.one_of(st.none(), st.integers(0, LAST)), st.one_of(st.just(0.0), st.floats(0, 30)))


@thorough(200)
@given(
    clocks=st.lists(CLOCKS, min_size=5, max_size=5),
    there=st.sets(st.integers(0, LAST)),
    steps=st.lists(STEPS, min_size=1, max_size=20),
)
def test_two_processes_never_lead_at_once(
    clocks: list[dict[str, float]],
    there: set[int],
    steps: list[tuple[tuple[str, Any], int | None, float]],
) -> None:
    sim = Sim()
    # The last candidate of the namespace stays. The others start and stop.
    electors = {who: sim.candidate(CANDIDATES[who], str(who), **clocks[who]) for who in sorted(there | {LAST})}
    sim.run(20)
    for number, ((what, value), whom, seconds) in enumerate(steps):
        leaders = sim.leaders()
        who = next((who for who, elector in electors.items() if elector in leaders), LAST) if whom is None else whom
        elector = electors.get(who)
        match what:
            case "delete":
                sim.delete(CANDIDATES[who])
            case "come" if elector is None:
                electors[who] = sim.candidate(CANDIDATES[who], f"{who} since {number}", **clocks[who])
            case "faults" if elector is not None:
                sim.machines[elector].faults.extend(value)
            case "pause" if elector is not None:
                sim.machines[elector].due = sim.now + value
            case "kill" | "release" if elector is not None and who != LAST:
                sim.machines[elector].dead = True
                del electors[who]
                if what == "release":
                    elector.stop()
        sim.run(seconds)
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
def test_next_candidate_leads_soon_after_leader_ends(
    first: LeaseRef, next_: LeaseRef, killed: bool, within: float, clocks: list[dict[str, float]], ended: float
) -> None:
    """No watch wakes the candidate, so it finds a released Lease by polling."""
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
def test_cluster_controller_takes_over_from_namespace_leader(clocks: list[dict[str, float]], came: float) -> None:
    sim = Sim()
    sim.candidate(TEAM, "namespace", **clocks[0])
    sim.run(came)
    wide = sim.candidate(CLUSTER, "cluster", **clocks[1])
    sim.run(20)
    assert sim.leaders() == [wide]


@thorough(20)
@given(clocks=st.lists(CLOCKS, min_size=2, max_size=2), stopped=st.floats(15, 60))
def test_paused_namespace_leader_deletes_its_lease_after_cluster_takeover(
    clocks: list[dict[str, float]], stopped: float
) -> None:
    """The next leader of the cluster would wait for a remaining Lease."""
    sim = Sim()
    host = sim.candidate(TEAM, "namespace", **clocks[0])
    sim.run(1)
    sim.machines[host].due = sim.now + stopped
    sim.candidate(CLUSTER, "cluster", **clocks[1])
    sim.run(stopped + 5)
    assert [lease["spec"]["holderIdentity"] for lease in sim.memory.list(LEASES).items] == ["cluster"]


@pytest.mark.parametrize("busy", [True, False])
def test_lease_is_released_only_after_pending_requests_end(busy: bool) -> None:
    sim = Sim()
    host = sim.candidate(TEAM, "namespace", busy=lambda: busy)
    sim.run(1)
    cluster = sim.candidate(CLUSTER, "cluster")
    sim.run(6)
    assert not host.valid()
    assert (cluster.valid(), len(sim.memory.list(LEASES, TEAM.namespace).items)) == (not busy, busy)
    busy = False
    sim.run(3)
    assert (cluster.valid(), sim.memory.list(LEASES, TEAM.namespace).items) == (True, [])


def test_leader_with_renewal_conflict_stops_before_releasing_lease() -> None:
    sim = Sim()
    sim.candidate(TEAM, "namespace")
    sim.run(1)
    cluster = sim.candidate(CLUSTER, "cluster")
    sim.memory.patch(LEASES, *TEAM, {"metadata": {"labels": {"touched": "yes"}}})
    sim.run(8)
    assert sim.leaders() == [cluster]
