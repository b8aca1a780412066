"""The pipeline's policies for evictions and preemptions: restart, requeue, fail, or fall back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import replicas, template, v1_job, v1alpha1_job, volcano_job
from tests.core.reconciler.scenarios import lose, started
from tests.core.world import World
from tf_dist.core.diagnostics.outcome import job_outcome
from tf_dist.core.model.assignment import Admit, Preempt, Resize, Wait, current_job
from tf_dist.core.model.job import CleanPodPolicy, DisruptionPolicy, Job, JobKey, RunPolicy, Scheduling
from tf_dist.core.model.reasons import OutcomeKind, Reason
from tf_dist.core.model.status import Phase, outcome_kind
from tf_dist.core.reconciler.gang_rules import UNPIN_AFTER

BY = Preempt(by=JobKey("team", "urgent"), message="its priority is higher")
WAITS = Wait(reason=Reason.WAITING_FOR_CAPACITY, message="no room")
JOBS = [v1_job(), v1alpha1_job(), volcano_job()]
by_format = pytest.mark.parametrize("job", JOBS, ids=lambda job: job.dialect.name)


def with_policy(job: Job, **policies: Any) -> Job:
    chosen = {key: DisruptionPolicy(value) for key, value in policies.items() if isinstance(value, str)}
    return replace(job, run_policy=replace(job.run_policy, **{**policies, **chosen}))


def with_fallbacks(job: Job, timeout: float | None = 600.0, **policies: Any) -> Job:
    """The job with two fallbacks: one worker less, or the spot queue with other pods."""
    job = with_policy(job, **policies)
    specs = tuple(
        replace(spec, replicas=1, min_replicas=1) if spec.type == "worker" else spec for spec in job.replica_specs
    )
    smaller = replace(job, replica_specs=specs, scheduling=replace(job.scheduling, min_available=2))
    pods = tuple(replace(spec, template=template(nodeSelector={"pool": "spot"})) for spec in job.replica_specs)
    spot = replace(job, replica_specs=pods, scheduling=replace(job.scheduling, queue="spot"))
    scheduling = replace(job.scheduling, admission_timeout=timeout)
    return replace(job, fallbacks=(smaller, spot), scheduling=scheduling)


def evicted(world: World) -> None:
    """A worker is evicted, and the controller handles it."""
    world.verdict = WAITS
    lose(world, "worker-0")


@by_format
@pytest.mark.parametrize(
    ("policy", "phase", "kind"),
    [
        ("restart", Phase.PENDING, None),
        ("requeue", Phase.PENDING, None),
        ("fail", Phase.FAILED, OutcomeKind.EVICTED),
        ("fallback", Phase.PENDING, None),
    ],
)
def test_eviction_policy_applies_in_every_dialect(
    job: Job, policy: str, phase: Phase, kind: OutcomeKind | None
) -> None:
    world = started(with_fallbacks(job, on_eviction=policy))
    evicted(world)
    memory = world.memory
    assert (outcome_kind(memory), memory.admission is None) == (kind, policy != "restart")
    assert memory.phase is phase or memory.admission
    if policy in ("requeue", "fallback"):
        assert world.pods == {}
        assert memory.total_disruptions == 1  # and limited like every other disruption
        assert memory.charged_restarts == 0
        assert "worker-0" in (memory.failure.replica if memory.failure else "")
        assert memory.fallback_from == (policy == "fallback")


@by_format
@pytest.mark.parametrize(
    ("policy", "phase", "kind"),
    [
        ("restart", Phase.PENDING, None),
        ("requeue", Phase.PENDING, None),
        ("fail", Phase.FAILED, OutcomeKind.PREEMPTED),
        ("fallback", Phase.PENDING, None),
    ],
)
def test_preemption_policy_applies_in_every_dialect(
    job: Job, policy: str, phase: Phase, kind: OutcomeKind | None
) -> None:
    world = started(with_fallbacks(job, on_preemption=policy, on_eviction="fail" if policy != "fail" else "requeue"))
    world.verdict = BY
    world.settle()
    memory = world.memory
    assert (memory.phase, outcome_kind(memory)) == (phase, kind)
    assert memory.fallback_from == (policy == "fallback")
    assert memory.charged_restarts == 0


def test_pod_preempted_by_cluster_scheduler_counts_as_preemption() -> None:
    world = started(with_policy(v1_job(), on_preemption="fail", on_eviction="requeue"))
    pod = world.pod("worker-0")
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    pod["status"]["conditions"] = [condition]
    world.delete(pod)
    world.vanish(pod)
    world.settle()
    assert outcome_kind(world.memory) is OutcomeKind.PREEMPTED


def test_requeues_after_evictions_are_limited() -> None:
    world = started(with_policy(v1_job(), on_eviction="requeue", max_disruptions=1))
    evicted(world)
    world.verdict = Admit()
    world.settle()
    for pod in world.pods.values():
        world.run(pod)
    world.settle()
    evicted(world)
    assert world.memory.reason == "MaxDisruptionsExceeded"
    assert outcome_kind(world.memory) is OutcomeKind.EVICTED


def test_pod_failure_is_not_an_eviction() -> None:
    world = started(with_policy(v1_job(policy=RunPolicy(clean_pods=CleanPodPolicy.NONE)), on_eviction="requeue"))
    pod = world.pod("worker-0")
    world.end(pod, 1)
    world.settle()
    assert outcome_kind(world.memory) is OutcomeKind.FAILED


def test_job_runs_as_admitted_fallback() -> None:
    world = World(with_fallbacks(v1_job()))
    world.verdict = Admit(sizes={"ps": 1, "worker": 1}, fallback=1)
    world.settle()
    assert sorted(world.pods) == ["mnist-ps-0", "mnist-worker-0"]
    said = "fallback 1 of 2 (1 worker instead of 2): all 2 replicas are admitted, by quota alone"
    assert world.memory.message.startswith(said)
    assert world.status["tfDist"]["fallback"] == 1
    config = next(env["value"] for env in world.pods["mnist-worker-0"]["spec"]["containers"][0]["env"])
    assert "worker-1" not in config
    for pod in world.pods.values():
        world.run(pod)
    world.settle()
    assert world.memory.phase is Phase.RUNNING
    worker = world.pod("worker-0")
    world.end(worker, 0)
    world.settle()
    outcome = job_outcome(world.memory)
    assert outcome is not None
    assert (outcome.kind, outcome.fallback) == (OutcomeKind.SUCCEEDED, 1)


def test_fallback_changes_pods_and_queue() -> None:
    job = with_fallbacks(v1_job())
    world = World(job)
    world.verdict = Admit(fallback=2)
    world.settle()
    assert world.memory.message.startswith("fallback 2 of 2 (queue spot, other pods): ")
    assert all(pod["spec"]["nodeSelector"] == {"pool": "spot"} for pod in world.pods.values())
    assert current_job(job, world.memory).scheduling.queue == "spot"


@pytest.mark.parametrize("actions", range(8))
def test_fallback_survives_controller_crash_after_any_write(actions: int) -> None:
    """The status contains the fallback before its pods exist, and the next fallback before they are deleted."""
    world = World(with_fallbacks(v1_job(), on_eviction="fallback"))
    world.verdict = Admit(sizes={"ps": 1, "worker": 1}, fallback=1)
    world.step(actions)
    world.verdict = None if world.memory.admission else world.verdict
    world.settle()
    assert sorted(world.pods) == ["mnist-ps-0", "mnist-worker-0"]
    for pod in world.pods.values():
        world.run(pod)
    world.settle()
    pod = world.pod("worker-0")
    world.remove(pod)
    world.verdict = WAITS
    world.step(actions)
    world.settle()
    assert (world.memory.fallback, world.memory.fallback_from, world.pods) == (1, 2, {})
    world.verdict = Admit(fallback=2)
    world.settle()
    assert (world.memory.fallback, world.memory.fallback_from) == (2, 0)


def test_primary_request_follows_last_fallback() -> None:
    world = World(with_fallbacks(v1_job(), on_eviction="fallback"))
    seen = []
    for which in (0, 1, 2, 0):
        world.verdict = Admit(fallback=which)
        world.settle()
        for pod in world.pods.values():
            world.run(pod)
        world.settle()
        evicted(world)
        seen.append(world.memory.fallback_from)
        world.now += 1000
    assert seen == [1, 2, 0, 1]


def test_elastic_fallback_is_resized_within_its_bounds() -> None:
    job = with_fallbacks(v1_job(replicas("PS", 1), replicas("Worker", 4)))
    smaller = job.fallbacks[0]
    specs = tuple(
        replace(spec, replicas=2, min_replicas=1, max_replicas=3) if spec.type == "worker" else spec
        for spec in smaller.replica_specs
    )
    smaller = replace(smaller, replica_specs=specs, scheduling=Scheduling(min_available=1))
    world = World(replace(job, fallbacks=(smaller,)))
    world.verdict = Admit(sizes={"ps": 1, "worker": 2}, placement={"worker": {"n1": 2}, "ps": {"n1": 1}}, fallback=1)
    world.settle()
    for count, there in ((3, 3), (9, 3), (1, 1)):
        place = {"worker": {"n1": count}, "ps": {"n1": 1}}
        world.verdict = Resize(sizes={"ps": 1, "worker": count}, placement=place, message="goes on")
        world.settle()
        assert len([name for name in world.pods if "worker" in name]) == there


def test_unschedulable_job_admitted_by_quota_tries_fallback() -> None:
    """The admission by quota is released after the admission timeout, and the next fallback is tried immediately."""
    world = World(with_fallbacks(v1_job(), timeout=120.0))
    world.schedules = False
    world.settle()
    for pod in world.pods.values():
        world.hold_back(pod)
    world.settle()
    world.now += max(UNPIN_AFTER, 121.0)
    world.verdict = WAITS
    world.settle()
    memory = world.memory
    assert (memory.admission, memory.fallback_from) == (None, 1)
    assert memory.not_before <= world.now
    assert memory.message == WAITS.message


def test_resumed_job_starts_with_primary_request() -> None:
    world = started(with_fallbacks(v1_job(), on_eviction="fallback"))
    evicted(world)
    world.suspend(True)
    world.settle()
    world.suspend(False)
    world.settle()
    assert world.memory.fallback_from == 0
