"""The state of each replica of a job, for one line per replica."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tf_dist.core.model.assignment import current_job, possible_replicas, startable_replicas
from tf_dist.core.model.job import Event, Job, ReplicaId, Role
from tf_dist.core.model.pods import Exit, PodPhase, PodView, exit_text, signal_name
from tf_dist.core.model.reasons import stable_reason
from tf_dist.core.model.status import LIVE, Failure, Phase, Status
from tf_dist.core.reconciler.job_context import classify_pods


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """A replica: its state as a word, its node, its restarts, and ``detail``, the reason of its state.

    ``node_silent``: its node has stopped reporting, so the replica may have ended.
    """

    replica: ReplicaId
    state: str
    node: str = ""
    restarts: int = 0
    pod: str = ""
    detail: str = ""
    node_silent: bool = False


def replica_states(job: Job, status: Status, pods: tuple[PodView, ...]) -> tuple[ReplicaState, ...]:
    """The state of every replica in document order, with or without a pod."""
    job = current_job(job, status)
    facts = classify_pods(job, status, pods)
    stopping = {pod.replica for pod in facts.stale}
    startable = startable_replicas(job, status)
    states = []
    for replica in job.replicas:
        pod = facts.current.get(replica)
        attempts = status.attempts
        again = attempts.job - 1 + attempts.tasks.get(replica.type, 0) + attempts.pods.get(replica, 0)
        restarts = again + (pod.restarts if pod else 0)
        if pod is None:
            state = _absent(status, done=replica in facts.succeeded, stopping=replica in stopping)
            state = "Waiting" if state == "Pending" and replica not in startable else state
            detail = ""
            if state == "Gone" and (culprit := _culprit(status, replica)) is not None:
                state, detail = "Failed", exit_text(Exit(culprit.code, culprit.reason))
                restarts += status.container_restarts  # of all pods, because their own counters are deleted with them
            states.append(ReplicaState(replica=replica, state=state, restarts=restarts, detail=detail))
        else:
            state, detail = _present(pod, done=replica in facts.succeeded)
            found = ReplicaState(replica=replica, state=state, restarts=restarts, detail=detail)
            states.append(replace(found, pod=pod.name, node=pod.node, node_silent=pod.node_silent))
    return tuple(states)


def _culprit(status: Status, replica: ReplicaId) -> Failure | None:
    """The failure that ended the job, if this replica failed."""
    failure = status.failure if status.phase in (Phase.FAILED, Phase.TERMINATING, Phase.TERMINATED) else None
    ended = failure is not None and failure.event == Event.POD_FAILED and failure.replica == str(replica)
    return failure if ended else None


def _absent(status: Status, *, done: bool, stopping: bool) -> str:
    if done:
        return "Succeeded"
    if stopping:
        return "Stopping"
    if status.phase not in LIVE:
        return "Gone" if status.phase not in (Phase.ABORTING, Phase.ABORTED) else "Stopped"
    return "Waiting" if status.admission is None else "Pending"


def _present(pod: PodView, *, done: bool) -> tuple[str, str]:
    if done:
        return "Succeeded", ""
    if pod.phase is PodPhase.FAILED:
        # A deleted pod gets these signals.
        told = pod.exit is not None and signal_name(pod.exit.code) in ("SIGTERM", "SIGKILL")
        if pod.deleting and told and not (pod.exit and pod.exit.out_of_memory):
            return "Stopped", ""
        return "Failed", exit_text(pod.exit).removeprefix("has failed: ")
    if pod.deleting:
        return "Stopping", ""
    if pod.unschedulable:
        return "Unschedulable", pod.unschedulable
    if pod.waiting is not None and pod.waiting[0] not in ("", "ContainerCreating", "PodInitializing"):
        return stable_reason(pod.waiting[0]), pod.waiting[1]
    if pod.phase is PodPhase.PENDING:
        return "Starting", ""
    if pod.node_silent:
        return "Running", f"node {pod.node} is not ready"
    return ("Running", "") if pod.ready or pod.phase is not PodPhase.RUNNING else ("Running", "not ready")


def leaders_first(job: Job) -> tuple[ReplicaId, ...]:
    """Every replica that the job may have, in the order chief, workers, evaluators, other tasks, parameter servers."""
    order = (Role.CHIEF, Role.MASTER, Role.WORKER, Role.EVALUATOR, Role.OTHER, Role.PS)
    rank = {spec.type: order.index(spec.role) for spec in job.replica_specs}
    return tuple(sorted(possible_replicas(job), key=lambda replica: rank[replica.type]))
