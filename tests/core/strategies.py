"""Jobs of every dialect with every kind of policy, drawn by hypothesis."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tests.core.builders import (
    CHIEF,
    EXIT_CODE,
    FAILED,
    NEVER,
    ON_FAILURE,
    REPLACED,
    replicas,
    v1_job,
    v1alpha1_job,
    volcano_job,
)
from tf_dist.core.model.job import (
    Action,
    Backoff,
    CleanPodPolicy,
    CompletionByCounts,
    Dependency,
    Event,
    ExitCodes,
    Job,
    Rule,
    RunPolicy,
    SuccessRule,
    TFConfigStyle,
)


@st.composite
def run_policies(draw: st.DrawFn, *, containers: bool = True) -> RunPolicy:
    return RunPolicy(
        clean_pods=draw(st.sampled_from(CleanPodPolicy)),
        max_restarts=draw(st.sampled_from((None, 0, 1, 3))),
        max_disruptions=draw(st.sampled_from((None, None, 0, 2))),
        container_restarts_count=containers,
        active_deadline=draw(st.sampled_from((None, None, 0.3, 45.7, 3600.0))),
        ttl=draw(st.sampled_from((None, None, 0.1, 100.0))),
        backoff=Backoff(base=draw(st.sampled_from((0.1, 10.0))), healthy=60.0),
    )


@st.composite
def v1_jobs(draw: st.DrawFn) -> Job:
    rules = st.sampled_from((NEVER, ON_FAILURE, EXIT_CODE))
    most = draw(st.sampled_from((None, None, 4)))
    specs = [replicas("Worker", draw(st.integers(1, 2)), rules=draw(rules), min_replicas=1, max_replicas=most)]
    style = draw(st.sampled_from((TFConfigStyle.V1, TFConfigStyle.SPARSE)))
    if draw(st.booleans()):
        specs.append(replicas("PS", 1, rules=draw(rules)))
    if draw(st.booleans()):
        specs.append(replicas("Chief", 1, rules=draw(rules)))
        return v1_job(*specs, policy=draw(run_policies()), tf_config=style)
    all_workers = SuccessRule(type="worker")
    success = draw(st.sampled_from(((all_workers,), (SuccessRule(type="worker", index=0), all_workers))))
    return v1_job(*specs, policy=draw(run_policies()), success=success, tf_config=style)


@st.composite
def v1alpha1_jobs(draw: st.DrawFn) -> Job:
    specs = (
        replicas("MASTER", 1, rules=CHIEF, last_exit_counts=True),
        replicas("WORKER", draw(st.integers(1, 2)), rules=REPLACED, last_exit_counts=True),
        replicas("PS", 1, rules=REPLACED, last_exit_counts=True),
    )
    return v1alpha1_job(*specs, policy=draw(run_policies()))


@st.composite
def policies(draw: st.DrawFn) -> Rule:
    action = draw(st.sampled_from([action for action in Action if action not in (Action.FAIL_JOB, Action.IGNORE)]))
    timeout = draw(st.sampled_from((0.0, 0.0, 20.5)))
    if draw(st.booleans()):
        code = draw(st.sampled_from((1, 137)))
        return Rule(events=FAILED, codes=ExitCodes(ranges=((code, code),)), action=action, timeout=timeout)
    return Rule(events=draw(st.frozensets(st.sampled_from(Event), min_size=1)), action=action, timeout=timeout)


@st.composite
def volcano_jobs(draw: st.DrawFn) -> Job:
    rules = st.lists(policies(), max_size=2).map(tuple)
    restarts = draw(st.sampled_from((None, 2)))
    workers = draw(st.integers(1, 2))
    depends = Dependency(on=("ps",)) if draw(st.booleans()) else None
    specs = (
        replicas("ps", 1, rules=draw(rules), container_restarts=restarts),
        replicas("worker", workers, rules=draw(rules), container_restarts=restarts, depends=depends),
    )
    needed = draw(st.integers(0, workers + 1))
    counting = CompletionByCounts(min_success=draw(st.sampled_from((None, None, 1))))
    # maxRetry always bounds a Volcano job.
    policy = replace(draw(run_policies(containers=False)), max_restarts=draw(st.integers(0, 2)))
    return volcano_job(*specs, rules=draw(rules), min_available=needed, counting=counting, run_policy=policy)


JOBS = st.one_of(v1_jobs(), v1alpha1_jobs(), volcano_jobs())
