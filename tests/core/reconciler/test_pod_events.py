from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import replicas, v1_job
from tf_dist.core.model.job import Event, ReplicaId
from tf_dist.core.model.pods import Disruption, Exit, PodPhase, PodView, exit_text, signal_name
from tf_dist.core.model.status import Counts, Status
from tf_dist.core.reconciler.job_context import classify_pods
from tf_dist.core.reconciler.lifecycle_policy import (
    PodEvent,
    derive_events,
    describe_event,
    describe_events,
    eviction_key,
)


@pytest.mark.parametrize(
    ("exit_", "text"),
    [
        (None, "failed without an exit code"),
        (Exit(None), "failed without an exit code"),
        (Exit(None, "Evicted"), "failed: Evicted"),
        (Exit(1), "exited with code 1"),
        (Exit(1, "Error"), "exited with code 1"),
        (Exit(1, "ContainerCannotRun"), "exited with code 1 (ContainerCannotRun)"),
        (Exit(137), "exited with code 137 (SIGKILL)"),
        (Exit(-15), "exited with code -15 (SIGTERM)"),
        (Exit(255), "exited with code 255"),
        (Exit(137, "OOMKilled"), "ran out of memory (OOMKilled, code 137)"),
    ],
)
def test_exit_text(exit_: Exit | None, text: str) -> None:
    assert exit_text(exit_) == text


@given(st.one_of(st.none(), st.integers(-(2**31), 2**31)))
def test_signal_name_of_any_exit_code(code: int | None) -> None:
    assert signal_name(code) == "" or signal_name(code).startswith("SIG")


@pytest.mark.parametrize("event", list(Event))
def test_every_event_has_description(event: Event) -> None:
    job = v1_job()
    sentence = describe_event(job, PodEvent(event=event, spec=job.replica_specs[1], replica=ReplicaId("worker", 1)))
    assert "worker" in sentence
    assert not sentence.endswith(".")


def test_names_first_three_of_many_events() -> None:
    spec = replicas("Worker", 5)
    many = [PodEvent(event=Event.NODE_LOST, spec=spec, replica=ReplicaId("worker", i)) for i in range(5)]
    assert describe_events(v1_job(spec), many) == (
        "worker-0 is lost with its node; worker-1 is lost with its node; worker-2 is lost with its node; and 2 more"
    )


_TAKEN = Disruption("EvictionByEvictionAPI", node="n")


@pytest.mark.parametrize(
    ("pod", "found"),
    [
        ({"phase": PodPhase.FAILED}, [(Event.POD_FAILED, None)]),
        # The pod failed by itself before the eviction could stop it.
        ({"phase": PodPhase.FAILED, "disruption": _TAKEN}, [(Event.POD_FAILED, None)]),
        ({"phase": PodPhase.FAILED, "disruption": _TAKEN, "evicted": True}, [(Event.POD_EVICTED, _TAKEN)]),
        ({"phase": PodPhase.FAILED, "disruption": _TAKEN, "deleting": True}, [(Event.POD_EVICTED, _TAKEN)]),
        ({"phase": PodPhase.RUNNING, "disruption": _TAKEN, "deleting": True}, [(Event.POD_EVICTED, _TAKEN)]),
        ({"phase": PodPhase.RUNNING, "disruption": _TAKEN, "node_lost": True}, [(Event.NODE_LOST, _TAKEN)]),
        ({"phase": PodPhase.RUNNING, "disruption": _TAKEN}, []),
    ],
)
def test_only_evicted_and_lost_pods_have_disruption(
    pod: dict[str, Any], found: list[tuple[Event, Disruption | None]]
) -> None:
    job, replica = v1_job(replicas("Worker", 1)), ReplicaId("worker", 0)
    status = Status(observed_replicas=frozenset({replica}))
    view = PodView(name="w", uid="u", replica=replica, attempt=status.attempts.label(replica), **pod)
    facts = classify_pods(job, status, (view,))
    assert [(one.event, one.disruption) for one in derive_events(job, status, facts)] == found


@pytest.mark.parametrize(
    ("pod", "seen", "waits"),
    [
        (None, False, True),  # the pod does not exist yet
        ({"phase": PodPhase.PENDING}, False, True),
        ({"phase": PodPhase.PENDING}, True, True),
        ({"phase": PodPhase.PENDING, "deleting": True}, False, True),
        ({"phase": PodPhase.RUNNING}, True, False),
        ({"phase": PodPhase.SUCCEEDED}, True, False),
    ],
)
def test_eviction_with_policy_timeout_lasts_until_replica_runs_again(
    pod: dict[str, Any] | None, seen: bool, waits: bool
) -> None:
    job, replica = v1_job(replicas("Worker", 1)), ReplicaId("worker", 0)
    status = Status(observed_replicas=frozenset({replica} if seen else ()))
    status = replace(status, policy_timeouts={eviction_key(replica, status.attempts): 5.0})
    views = [PodView(name="w", uid="u", replica=replica, attempt=status.attempts.label(replica), **pod)] if pod else []
    found = derive_events(job, status, classify_pods(job, status, tuple(views)))
    assert [one.since for one in found if one.event is Event.POD_EVICTED] == [5.0] * waits


def test_total_adds_counts_of_all_types() -> None:
    def counts(by: int) -> Counts:
        return Counts(**{one.name: by * number for number, one in enumerate(fields(Counts), start=1)})

    facts = replace(classify_pods(v1_job(), Status(), ()), counts={"worker": counts(1), "ps": counts(10)})
    assert facts.total() == counts(11)


@pytest.mark.parametrize("deleting", [False, True])
def test_eviction_with_policy_timeout_is_one_event_while_pod_is_gone(deleting: bool) -> None:
    job, replica = v1_job(replicas("Worker", 1)), ReplicaId("worker", 0)
    status = Status(observed_replicas=frozenset({replica}))
    status = replace(status, policy_timeouts={eviction_key(replica, status.attempts): 5.0})
    pod = PodView(
        name="w",
        uid="u",
        replica=replica,
        attempt=status.attempts.label(replica),
        phase=PodPhase.RUNNING,
        deleting=True,
    )
    found = list(derive_events(job, status, classify_pods(job, status, (pod,) if deleting else ())))
    assert [(one.event, one.since) for one in found] == [(Event.POD_EVICTED, 5.0)]
