"""Placement of whole jobs: packed, spread, and as in tf-operator-Dragon (one node, or else node after node)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tf_dist.simulate.placement import FreeCapacity, node_after_node, packed, spread
from tf_dist.simulate.scenario import Cluster, Layout, SimJob


def a_floor(*free: int, gpus: int = 4) -> FreeCapacity:
    floor = FreeCapacity(Cluster(nodes=len(free), gpus=gpus, cpu=64))
    for node, units in enumerate(free):
        floor.change(node, units - gpus, 0)
    return floor


def job(workers: int, **fields: int) -> SimJob:
    return SimJob(name="a", submit=0, duration=1, workers=workers, **({"ps": 1} | fields))  # type: ignore[arg-type]


def test_packed_uses_fullest_node_that_fits_job() -> None:
    assert packed(a_floor(4, 2, 3), job(2), 2) == Layout({1: 2}, {1: 1})


def test_packed_uses_fewest_nodes_and_fullest_last_node() -> None:
    assert packed(a_floor(2, 4, 3, 1), job(5), 5) == Layout({1: 4, 3: 1}, {1: 1})


def test_packed_puts_servers_on_other_node_when_worker_node_is_full() -> None:
    floor = a_floor(2, 0)
    floor.change(0, 0, -54)
    assert packed(floor, job(2), 2) == Layout({0: 2}, {1: 1})


def test_spread_uses_emptiest_node_for_each_pod() -> None:
    assert spread(a_floor(4, 4), job(2), 2) == Layout({0: 1, 1: 1}, {0: 1})


def test_node_after_node_prefers_first_node_that_fits_job() -> None:
    assert node_after_node(a_floor(3, 4), job(4), 4) == Layout({1: 4}, {1: 1})
    assert node_after_node(a_floor(1, 3), job(4), 4) == Layout({0: 1, 1: 3}, {1: 1})
    assert node_after_node(a_floor(1, 2), job(4), 4) is None


@given(
    free=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    workers=st.integers(1, 8),
    gpus=st.integers(0, 4),
    ps=st.integers(0, 3),
    cores=st.integers(0, 64),
)
def test_every_placement_is_complete_and_fits(free: list[int], workers: int, gpus: int, ps: int, cores: int) -> None:
    one = job(workers, gpus=gpus, ps=ps)
    for placing in (packed, spread, node_after_node):
        floor = a_floor(*free)
        floor.change(0, 0, -cores)
        before = (floor.units[:], floor.cpu[:], floor.free)
        layout = placing(floor, one, workers)
        assert (floor.units, floor.cpu, floor.free) == before
        if layout is not None:
            assert (layout.size, sum(layout.ps.values())) == (workers, ps)
            floor.take(one, layout)
            floor.give(one, layout)
            assert (floor.units, floor.cpu, floor.free) == before
