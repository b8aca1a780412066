"""The model of a job."""

from __future__ import annotations

import itertools

import pytest

from tests.core.builders import replicas, template, v1_job, volcano_job
from tf_dist.core.model.job import MAX_REPLICAS, RunPolicy, priority_class, stored_index


def test_priority_class_of_tfjob_does_not_depend_on_order_of_mapping() -> None:
    """Kueue's OrderedReplicaTypes: Chief, Master, PS, Worker, Evaluator."""
    types = ("Chief", "PS", "Worker", "Evaluator")
    specs = {type_: replicas(type_, 1, template=template(priorityClassName=type_.lower())) for type_ in types}
    for count in range(1, 5):
        named = types[-count:]
        for order in itertools.permutations(named):
            assert priority_class(v1_job(*(specs[type_] for type_ in order))) == named[0].lower()


def test_priority_class_of_volcano_job_is_that_of_its_first_task() -> None:
    tasks = [replicas(name, 1, template=template(priorityClassName=name)) for name in ("worker", "chief")]
    assert priority_class(volcano_job(*tasks)) == "worker"


def test_restart_delays_match_kubelet() -> None:
    backoff = RunPolicy().backoff
    assert [backoff.delay(count) for count in range(1, 9)] == [0, 10, 20, 40, 80, 160, 300, 300]


def test_replica_ids_are_cached_only_for_usual_sizes() -> None:
    """Cached ids of a few hundred jobs of different huge sizes would fill the memory."""
    usual, huge = replicas("Worker", 8), replicas("Worker", MAX_REPLICAS)
    assert usual.ids is replicas("Worker", 8).ids
    assert huge.ids is not huge.ids
    assert [str(one) for one in usual.ids] == [f"worker-{index}" for index in range(8)]
    assert len(huge.ids) == MAX_REPLICAS


@pytest.mark.parametrize("written", ["0", "7", "99999", "007"])
def test_index_is_decimal_number(written: str) -> None:
    assert stored_index(written) == int(written)


@pytest.mark.parametrize("written", ["", " 1", "+1", "-1", "1.0", "x", "100000", "0000001", "\u0661", "\u00b2", "1_0"])
def test_index_must_be_short_ascii_number(written: str) -> None:
    with pytest.raises(ValueError, match="is not an index of a replica"):
        stored_index(written)
