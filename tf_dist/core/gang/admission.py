"""Admission for a controller: it receives changes of the cluster, and decides about all gangs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tf_dist.core.gang.gang_builder import build_gang, gang_with_problem, refused_priority_class
from tf_dist.core.gang.placement.anti_affinity import ExclusiveResources
from tf_dist.core.gang.quota import QueueUsage
from tf_dist.core.gang.resources.admission_config import LabelsOf, NamespaceMatcher
from tf_dist.core.gang.resources.pod_index import LeavingPods, PodIndex
from tf_dist.core.gang.resources.pod_requests import add_resources
from tf_dist.core.gang.resources.resource_quota import ResourceQuotas, gang_quota_usage
from tf_dist.core.gang.scheduling import Decisions, Scheduler
from tf_dist.core.gang.types import (
    NO_ADMISSION_CONFIG,
    AdmissionConfig,
    AdmissionPolicy,
    AdmissionRequest,
    AssignedPods,
    Gang,
    GangDecisionError,
    Resources,
)
from tf_dist.core.model import names
from tf_dist.core.model.assignment import Admit, Verdict, fallback_job
from tf_dist.core.model.gang_queue import DEFAULT_QUEUE
from tf_dist.core.model.job import Job, JobKey
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import LIVE

_NO_ORPHANS: Final[Mapping[str, Resources]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionChanges:
    """Changes of the cluster. Any change may be reported again."""

    jobs: Mapping[str, AdmissionRequest | None] = field(default_factory=dict)
    """Jobs by uid; None if a job was deleted or admission need not know it."""
    pods: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    """Stored pods by their uid; None: deleted."""
    nodes: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    """Stored nodes by name; None: deleted."""
    config: AdmissionConfig | None = None
    """The configuration; None if it is unchanged."""
    resource_quotas: ResourceQuotas | None = None
    """The ResourceQuotas; None if they are unchanged."""
    whole: bool = False
    """Whether these are all existing jobs, pods and nodes."""


@dataclass(slots=True)
class _Job:
    request: AdmissionRequest
    """The job as last reported."""
    gang: Gang
    """The gang of the job, from the request, the job's pods and the configuration."""


class Admitter:
    """The state of admission, and its decisions.

    ``cycle`` assumes that its verdicts are carried out: an admitted gang uses its nodes and quota immediately. The
    assumption ends when a new version of the job is reported, or with ``revert``. Only gangs with a written admission
    are preempted or grow.

    If ``sees_nodes`` is False, nodes cannot be listed, and quotas alone decide. ``namespaces`` returns the labels of a
    namespace, or None if they are unknown. Not thread-safe.
    """

    def __init__(
        self,
        policy: AdmissionPolicy | None = None,
        *,
        sees_nodes: bool = True,
        namespaces: LabelsOf = lambda _: None,
    ) -> None:
        self._policy = policy or AdmissionPolicy()
        self._sees_nodes = sees_nodes
        self._jobs: dict[str, _Job] = {}
        self._pods = PodIndex()
        self._exclusives = ExclusiveResources()
        self._namespaces = NamespaceMatcher(namespaces)
        self._config = self._applied_config = NO_ADMISSION_CONFIG
        self._quotas: ResourceQuotas = {}
        self._applied_quotas: ResourceQuotas = {}
        # Admissions that are assumed and not yet reported as written, with the number of the fallback.
        self._assumed: dict[str, tuple[AssignedPods, int]] = {}
        # Jobs about which a decision failed: the job at that time, and the problem.
        self._failed: dict[str, tuple[Job | None, str]] = {}
        # The requests of pods without a gang, by job and queue, and their sums by queue.
        self._orphan_pods: dict[str, Mapping[str, Resources]] = {}
        self._orphans = _NO_ORPHANS
        # The requests of pods without a gang that are being deleted, by job.
        self._leaving: dict[str, Mapping[LeavingPods, Resources]] = {}
        self._changed: dict[str, AdmissionRequest | None] = {}
        self._reverted: set[str] = set()
        self.reset()

    def update(self, changes: AdmissionChanges) -> None:
        """Store changes for the next cycle."""
        if changes.whole:
            for uid in self._pods.pods.keys() - changes.pods.keys():
                self._pods.put_pod(uid, None)
            for name in self._pods.stored_nodes.keys() - changes.nodes.keys():
                self._pods.put_node(name, None)
            self._changed = dict.fromkeys(self._jobs)
        for uid, pod in changes.pods.items():
            self._pods.put_pod(uid, pod)
        for name, node in changes.nodes.items():
            self._pods.put_node(name, node)
        self._changed.update(changes.jobs)
        self._config = self._config if changes.config is None else changes.config
        self._quotas = self._quotas if changes.resource_quotas is None else changes.resource_quotas

    def revert(self, uid: str) -> None:
        """Drop the assumption about a job whose verdict was not written, and decide again."""
        self._assumed.pop(uid, None)
        if uid in self._jobs:
            self._reverted.add(uid)

    def reset(self, *, sees_nodes: bool | None = None) -> None:
        """Rebuild the scheduler from stored and assumed state, for example after a step of the clock."""
        self._sees_nodes = self._sees_nodes if sees_nodes is None else sees_nodes
        self.scheduler = Scheduler(self._policy, sees_nodes=self._sees_nodes)
        self._anew = True

    def cycle(self, now: float, *, limit: int | None = None) -> Decisions:
        """The new verdicts at ``now`` (epoch seconds, not earlier than in the last call), at most about ``limit``.

        If the decision about a job fails, this job is left out until it changes. Other jobs are not affected.
        """
        failed: dict[str, Exception] = {}
        while True:
            try:
                self.refresh()
                decisions = self.scheduler.cycle(now, limit=limit)
                break
            except GangDecisionError as error:
                self.reset()  # drop the incomplete decisions
                if error.uid in failed:
                    raise
                failed[error.uid] = error.cause
                self._failed[error.uid] = self._jobs[error.uid].request.job, f"admission cannot evaluate it: {error}"
            except BaseException:
                self.reset()
                raise
        for uid, verdict in decisions.verdicts.items():
            if isinstance(verdict, Admit):
                assigned = AssignedPods(at=now, sizes=verdict.sizes, placement=verdict.placement)
                self._assumed[uid] = assigned, verdict.fallback
        return replace(decisions, failed=failed)

    def explain(self, uid: str) -> Verdict:
        """The state of a job in the last cycle: its assignment, or why it waits and its position.

        Raises KeyError for an unknown job.
        """
        return self.scheduler.explain(uid)

    def queue_usages(self) -> dict[str, QueueUsage]:
        """The usage of every queue that has a document, as of the last cycle."""
        return self.scheduler.queue_usages()

    def wake_at(self, now: float) -> float:
        """The time at which ``cycle`` may decide something without further changes: epoch seconds; inf: never."""
        stale = self._anew or self._changed or self._reverted or self._pods.is_dirty
        same = self._config is self._applied_config and self._quotas is self._applied_quotas
        return now if stale or not same else self.scheduler.wake_at(now)

    # -- from stored objects to gangs --

    def refresh(self) -> None:
        """Update the scheduler. ``cycle`` calls this first. The cost depends on the number of changes."""
        config, quotas, before = self._config, self._quotas, self._applied_config
        moved, created, charged = self._pods.changes()
        anew, self._anew = self._anew, True  # remains set after an error
        recount = anew or config.counted != before.counted
        matches_changed = self._namespaces.update(config.queues or ())
        if anew or config.queues != before.queues:
            self.scheduler.cache.put_queues(config.queues or ())
        if anew or quotas != self._applied_quotas:
            self.scheduler.cache.put_resource_quotas(quotas)
        everything = recount or matches_changed or quotas.keys() != self._applied_quotas.keys()
        uids = dict.fromkeys([*self._changed, *self._reverted])
        if everything:
            uids |= dict.fromkeys(self._jobs)
        else:
            of_pods = (key.rpartition("/")[2] for key in sorted(moved | created))
            uids |= dict.fromkeys(uid for uid in of_pods if uid in self._jobs)
        gangs: dict[str, Gang | None] = {}
        joined_or_left: set[str] = set()
        for uid in uids:
            job = self._jobs.get(uid)
            request = self._changed.get(uid, job.request if job else None)
            if request is None or request.status.phase not in LIVE:
                request = None
            if (request is None) is not (job is None):
                namespace = (request or job.request).job.key.namespace  # type: ignore[union-attr]
                joined_or_left.add(names.owned_by_key(namespace, uid))
            if request is None:
                self._failed.pop(uid, None)
                self._assumed.pop(uid, None)
                if job is not None:
                    del self._jobs[uid]
                    self._exclusives.hold(uid, frozenset())
                    gangs[uid] = None
                continue
            is_new = job is None or not job.request.is_same(request)
            if is_new:
                self._assumed.pop(uid, None)
            key = names.owned_by_key(request.job.key.namespace, uid)
            known = job.gang if job is not None and not recount and job.request.job is request.job else None
            rebuild = known is None or is_new or key in moved or uid in self._failed
            gang = self._built(request, key, known) if known is None or rebuild else known
            gang = self._with_queue(self._with_quota(request, gang, key, refresh=is_new or key in created))
            if job is not None and gang == job.gang:
                gang = job.gang
            if job is None or gang is not job.gang or is_new or uid in self._reverted or anew:
                gangs[uid] = gang
                ways = (gang, *gang.fallbacks)
                columns = (one.name for way in ways for member in way.members for one in member.exclusives)
                self._exclusives.hold(uid, frozenset(columns))
            self._jobs[uid] = _Job(request, gang)
        self._exclusives.settle()
        for name, node in self._pods.nodes(self._exclusives.keys, whole=anew).items():
            if node is not None:
                self.scheduler.cache.put_node(node)
            else:
                self.scheduler.cache.remove_node(name)
        self.scheduler.cache.put_unavailable(self._pods.unavailable)
        self._applied_config, self._applied_quotas = config, quotas
        orphans = self._count_orphans(charged | joined_or_left, again=matches_changed or recount)
        self.scheduler.cache.put_orphans(orphans)
        self.scheduler.cache.put_leaving(self._leaving_orphans(moved | joined_or_left))
        for uid, fed in gangs.items():
            if fed is None:
                self.scheduler.remove_gang(uid)
                continue
            self.scheduler.put_gang(fed)
            if uid in self._assumed and fed.assigned is None:
                self.scheduler.assume(uid, *self._assumed[uid])
        self._changed.clear()
        self._reverted.clear()
        self._anew = False

    def _built(self, request: AdmissionRequest, key: str, known: Gang | None) -> Gang:
        """The gang of a job. A gang that cannot be evaluated must not affect others."""
        job, problem = self._failed.get(request.job.uid, (None, ""))
        if job is not request.job:
            self._failed.pop(request.job.uid, None)
        try:
            gang = build_gang(request, self._pods.bound(key), self._config, self._exclusives, known)
        except Exception as error:
            return gang_with_problem(request, f"it cannot be counted: {type(error).__name__}: {error}")
        return gang if job is not request.job else replace(gang, members=(), fallbacks=(), problem=problem)

    def _with_quota(self, request: AdmissionRequest, gang: Gang, key: str, *, refresh: bool) -> Gang:
        """The gang with its usage of the ResourceQuotas of its namespace, if the namespace has any."""
        ways = gang, *gang.fallbacks
        if gang.key.namespace not in self._quotas or gang.problem:
            if all(way.charges is None for way in ways):
                return gang
            others = tuple(replace(way, charges=None) for way in gang.fallbacks)
            return replace(gang, charges=None, created={}, fallbacks=others)
        if not refresh and all(way.charges is not None for way in ways):
            return gang
        charges = [gang_quota_usage(fallback_job(request.job, way.fallback), self._config) for way in ways]
        others = tuple(replace(way, charges=one) for way, one in zip(ways[1:], charges[1:], strict=True))
        return replace(gang, charges=charges[0], created=self._pods.created(key), fallbacks=others)

    def _with_queue(self, gang: Gang) -> Gang:
        """The gang with the reason if its queue does not accept it because of its namespace or priority classes."""
        queue = gang.queue or DEFAULT_QUEUE
        why, reason = self._namespaces.mismatch(queue, gang.key.namespace), Reason.NAMESPACE_MISMATCH
        if not why and (why := refused_priority_class(self._config, queue, gang.priority_classes)):
            reason = Reason.PRIORITY_CLASS_REFUSED
        others = tuple(map(self._with_queue, gang.fallbacks))
        same = all(one is two for one, two in zip(others, gang.fallbacks, strict=True))
        if same and (why, reason) == (gang.inadmissible, gang.inadmissible_reason):
            return gang
        return replace(gang, inadmissible=why, inadmissible_reason=reason, fallbacks=others)

    def _has_gang(self, key: str) -> bool:
        return key.rpartition("/")[2] in self._jobs and "//" not in key

    def _leaving_orphans(self, keys: Collection[str]) -> Sequence[tuple[JobKey, str, str, Resources]]:
        """Pods that are being deleted and whose jobs have no gang: deleted jobs, and jobs that wait for a lost node."""
        for key in keys:
            self._leaving.pop(key, None)
            if not self._has_gang(key) and (leaving := self._pods.leaving(key)):
                self._leaving[key] = leaving
        return [
            (JobKey(namespace, pods.job), self._charged_queue(namespace, pods.queue), pods.node, amounts)
            for namespace, leaving in ((key.partition("/")[0], self._leaving[key]) for key in sorted(self._leaving))
            for pods, amounts in sorted(leaving.items())
        ]

    def _charged_queue(self, namespace: str, label: str) -> str:
        """The queue whose quota a pod without a gang uses; "": none.

        Users who may create pods can set any label, so a pod counts only in a queue that is open to its namespace.
        """
        queue = label and (self._config.queue_of(label) or DEFAULT_QUEUE)
        return queue if queue and not self._namespaces.mismatch(queue, namespace) else ""

    def _count_orphans(self, keys: Collection[str], *, again: bool) -> Mapping[str, Resources]:
        """The requests, by queue, of pods on nodes whose jobs have no gang, or no longer have one."""
        before = {key: self._orphan_pods.get(key) for key in keys}
        for key in keys:
            self._orphan_pods.pop(key, None)
            if not self._has_gang(key) and (charged := self._pods.charged(key)):
                self._orphan_pods[key] = charged
        if not again and all(self._orphan_pods.get(key) == charged for key, charged in before.items()):
            return self._orphans
        found: dict[str, list[Resources]] = {}
        for key in sorted(self._orphan_pods):
            for label, amounts in self._orphan_pods[key].items():
                if queue := self._charged_queue(key.partition("/")[0], label):
                    found.setdefault(queue, []).append(amounts)
        self._orphans = {queue: add_resources(parts) for queue, parts in sorted(found.items())}
        return self._orphans
