"""The gangs of jobs, from a job's document, status and pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from math import inf
from typing import Any, Final

from tf_dist.core.gang.placement.anti_affinity import ExclusiveResources
from tf_dist.core.gang.placement.predicates import REFUSED_NODES
from tf_dist.core.gang.resources.pod_index import BoundPods
from tf_dist.core.gang.resources.pod_requests import gang_exclusions, pod_sets
from tf_dist.core.gang.types import (
    AdmissionConfig,
    AdmissionRequest,
    AssignedPods,
    Gang,
    PriorityClass,
    TopologyRequest,
)
from tf_dist.core.model import names
from tf_dist.core.model.assignment import (
    Placement,
    fallback_job,
    grows_live,
    replica_nodes,
    requires_domain,
    topology_label,
)
from tf_dist.core.model.gang_queue import DEFAULT_QUEUE
from tf_dist.core.model.job import Action, Event, Job, ReplicaId, ReplicaSpec, priority_class
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import NO_PODS, Phase, Status
from tf_dist.core.model.timestamps import parse_duration

_MAX_PROBLEM: Final = 500  # characters


def build_gang(
    request: AdmissionRequest,
    bound: BoundPods,
    config: AdmissionConfig,
    exclusives: ExclusiveResources,
    known: Gang | None = None,
) -> Gang:
    """The gang of a job, with its pods on nodes, and with its fallbacks while it waits.

    ``known``: the previous gang, if neither the document nor ``config`` has changed. Fallbacks are tried after the
    job's admission timeout. After a disruption, the next fallback comes first, and the fallbacks behind it are tried
    immediately.
    """
    job, status = request.job, request.status
    if status.admission is not None or not job.fallbacks:
        return _one_gang(request, status.fallback, bound, config, exclusives, known)
    number = len(job.fallbacks) + 1
    first = status.fallback_from % number
    timeout = job.scheduling.admission_timeout
    since = request.created_at if status.since is None else status.since
    later = inf if timeout is None else since + timeout
    gangs: list[Gang] = []
    for nth in range(number):
        which = (first + nth) % number
        gang = _one_gang(request, which, BoundPods() if nth else bound, config, exclusives)
        tried_from = 0.0 if which > first > 0 else later
        if not nth:
            gangs.append(gang)
        elif tried_from < inf:
            uid = f"{gang.uid}/{which}"
            gangs.append(replace(gang, uid=uid, fallback_of=gang.uid, nominated=False, tried_from=tried_from))
    return replace(gangs[0], fallbacks=tuple(gangs[1:]))


def gang_with_problem(request: AdmissionRequest, problem: str) -> Gang:
    """The gang of a job whose pods cannot be counted. It waits with its problem, or keeps the capacity of its pods."""
    admission = request.status.admission
    return Gang(
        key=request.job.key,
        uid=request.job.uid,
        created_at=request.created_at,
        members=(),
        assigned=AssignedPods(at=admission.at, sizes={}, placement={}) if admission is not None else None,
        problem=problem[:_MAX_PROBLEM],
    )


def refused_priority_class(config: AdmissionConfig, queue: str, classes: Collection[str]) -> str:
    """Why a queue does not accept the priority classes of a job; "" if it does."""
    for name in classes:
        if name.startswith(names.SYSTEM_CLASSES):
            return f'priority class "{name}" is for components of the cluster, not for jobs; name another one, or none'
    allowed = next((one.priority_classes for one in config.queues or () if one.name == queue), None)
    refused = [name for name in classes if name not in allowed] if allowed is not None else []
    if allowed is None or not refused:
        return ""
    listed = f"its priorityClasses: {', '.join(allowed)}" if allowed else "its priorityClasses are empty"
    return f'queue "{queue}" does not accept priority class "{refused[0]}" ({listed}); name another one, or none'


def _one_gang(
    request: AdmissionRequest,
    fallback: int,
    bound: BoundPods,
    config: AdmissionConfig,
    exclusives: ExclusiveResources,
    known: Gang | None = None,
) -> Gang:
    request = replace(request, job=fallback_job(request.job, fallback))
    progress, refused = _progress(request, bound), request.status.refused_nodes
    if known is not None and known.fallback == fallback and not refused and known.pinned and not known.problem:
        plain = not any(member.exclusives or REFUSED_NODES in member.constraints for member in known.members)
        if plain and known.locality is None:
            return replace(known, fallbacks=(), **progress)
    return Gang(**_requested(request.job, config, exclusives, refused), fallback=fallback, **progress)


def _requested(
    job: Job, config: AdmissionConfig, exclusives: ExclusiveResources, refused: Collection[str]
) -> dict[str, Any]:
    """The fields of a gang that depend on its document. ``refused``: nodes that were refused to its pods."""
    apart, predictable = exclusives.exclusives(gang_exclusions(job))
    members = pod_sets(job, config)
    if refused or any(apart):
        more = {REFUSED_NODES: sorted(refused)} if refused else {}
        members = tuple(
            replace(member, exclusives=one, constraints={**member.constraints, **more})
            for member, one in zip(members, apart, strict=True)
        )
    topology, required = topology_label(job), requires_domain(job)
    expected = parse_duration(job.annotations.get(names.EXPECTED_DURATION, "").strip())  # an invalid one is ignored
    classes = (job.scheduling.priority_class, *(spec.pod_spec.get("priorityClassName") for spec in job.replica_specs))
    priority = _priority(job, config)
    return {
        "key": job.key,
        "uid": job.uid,
        "members": members,
        "queue": config.queue_of(job.scheduling.queue),
        "priority_classes": tuple(dict.fromkeys(str(name) for name in classes if name)),
        "priority": priority.value,
        "preempts": priority.preempts,
        "preemptable": job.scheduling.preemptable,
        "patience": job.scheduling.patience,
        "live": grows_live(job),
        # Only assigned nodes are certainly in the same topology domain.
        "pinned": predictable or required,
        "locality": TopologyRequest(label=topology, required=required) if topology else None,
        "estimate": expected or job.run_policy.active_deadline,
    }


def _priority(job: Job, config: AdmissionConfig) -> PriorityClass:
    """The priority of a job: of its class, else the default of its queue, else of jobs without a class."""
    name = priority_class(job)
    known = config.priorities.get(name) if name else None
    if known is not None:
        return known
    queue = config.queue_of(job.scheduling.queue) or DEFAULT_QUEUE
    default = next((one.default_priority for one in config.queues or () if one.name == queue), 0)
    return PriorityClass(default) if default else config.priorities.get("", PriorityClass(0))


def _progress(request: AdmissionRequest, bound: BoundPods) -> dict[str, Any]:
    """The fields of a gang that depend on the job's status and pods."""
    job, status, admission = request.job, request.status, request.status.admission
    assigned = admission and AssignedPods(
        at=admission.at, sizes=admission.admitted_sizes, placement=admission.placement, resized=admission.resized
    )
    # While a job is requeued, pods of earlier attempts only end. A job that restarts with its assigned nodes reuses
    # them. A single replica may then have no assigned node, because the node of its pod is gone.
    attempts = status.attempts
    # A replica that succeeded uses its node as long as a sidecar keeps its pod running.
    on_nodes = {type_: bound.nodes(type_, attempts) for type_ in {replica.type for replica in status.succeeded}}
    ended = frozenset(replica for replica in status.succeeded if replica.index not in on_nodes[replica.type])
    bound_now: Placement = bound.placement()
    if assigned is not None and bound_now == assigned.placement:
        bound_now = assigned.placement  # share the object: this applies to nearly all of thousands of gangs
    return {
        "created_at": request.created_at,
        "nominated": assigned is None and status.reason == Reason.PREEMPTING,
        "not_before": status.not_before,
        "assigned": assigned,
        "stalled": request.stalled,
        "bound": bound_now,
        "earlier": bound.earlier(attempts),
        "requeued": status.phase is Phase.PENDING,
        "pod_nodes": {spec.type: _replica_nodes(request, bound, spec) for spec in job.replica_specs}
        if assigned
        else {},
        "done": dict(_done(job, status, ended)) if assigned else {},
        "vacated": _vacated(request, bound, ended, assigned) if assigned else {},
    }


def _done(job: Job, status: Status, ended: frozenset[ReplicaId]) -> Counter[str]:
    """The finished replicas by type: succeeded replicas, and failed replicas that nothing restarts.

    If the whole job restarts, they need nodes again, and may have to wait.
    """
    done = Counter(replica.type for replica in ended)
    for spec in job.replica_specs:
        failed = status.counts.get(spec.type, NO_PODS).failed
        if failed and not policy_may_restart(job, spec):
            done[spec.type] += failed
    return done


def _vacated(
    request: AdmissionRequest, bound: BoundPods, ended: frozenset[ReplicaId], assigned: AssignedPods
) -> dict[str, Counter[str]]:
    """The number of succeeded replicas by type and assigned node, as in ``assign_nodes``.

    Other replicas keep the nodes of their pods. Of the nodes without a pod, those without one of their own get what is
    left: not the nodes on which the pods of succeeded replicas still exist.
    """
    found: dict[str, Counter[str]] = {}
    for spec in request.job.replica_specs:
        done = {replica.index for replica in ended if replica.type == spec.type}
        if not done:
            continue
        nodes = replica_nodes(request.job, assigned.placement, spec.type)
        pods, gone = (at(spec.type, request.status.attempts) for at in (bound.nodes, bound.ended_on))
        free = Counter(nodes) - Counter(pods.values())
        left = free & Counter(node for index, node in gone.items() if index in done)
        free -= left
        waiting = [one for one in range(assigned.sizes.get(spec.type, spec.replicas)) if one not in done | pods.keys()]
        for own in (True, False):
            for index in tuple(waiting):
                node = (nodes[index] if index < len(nodes) else "") if own else next(iter(free), "")
                if free[node] > 0:
                    waiting.remove(index)
                    free -= Counter([node])
        found[spec.type] = left + free
    return found


def _replica_nodes(request: AdmissionRequest, bound: BoundPods, spec: ReplicaSpec) -> tuple[str, ...]:
    """The nodes of a type's replicas by index: the nodes of their pods, otherwise assigned nodes that no pod uses.

    The index of a pod is only a label, so an index beyond the maximum is ignored.
    """
    admission = request.status.admission
    meant = replica_nodes(request.job, admission.placement, spec.type) if admission else ()
    found = bound.nodes(spec.type, request.status.attempts)
    most = max(len(meant), spec.replicas, len(found))
    found = {index: node for index, node in found.items() if index < most}
    if all(meant[index : index + 1] == (node,) for index, node in found.items()):
        return meant
    free = Counter(meant)
    free.subtract(found.values())
    nodes: list[str] = []
    for index in range(max(len(meant), max(found, default=-1) + 1)):
        node = found.get(index, "")
        if not node and index < len(meant) and free[meant[index]] > 0:
            node = meant[index]
            free[node] -= 1
        nodes.append(node)
    return tuple(nodes)


def policy_may_restart(job: Job, spec: ReplicaSpec) -> bool:
    """Whether a policy with a pending timeout may still restart a failed replica."""
    restarts = (Action.RESTART_JOB, Action.RESTART_TASK, Action.RESTART_POD)
    waiting = (rule for rule in (*spec.rules, *job.rules) if rule.timeout > 0 and rule.action in restarts)
    return any(not rule.events.isdisjoint({Event.POD_EVICTED, Event.POD_FAILED}) for rule in waiting)
