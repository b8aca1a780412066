"""Stored jobs: found by name or listed, with their pods, events and findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from tf_dist.client.leader_status import LeaderStatus, leader_status, nobody_leads
from tf_dist.cluster.api import (
    CONFIG_MAPS,
    EVENTS,
    JOB_KINDS,
    NETWORK_POLICIES,
    PODS,
    TFJOBS,
    VOLCANO_JOBS,
    Cluster,
    Object,
    Resource,
)
from tf_dist.cluster.api_errors import NotServed
from tf_dist.core.diagnostics.cluster_dns import denial_seconds
from tf_dist.core.diagnostics.diagnose import (
    VOLUME_REASONS,
    Diagnosis,
    diagnose,
    diagnose_deletion,
    diagnose_managed_elsewhere,
    diagnose_newer_format,
    diagnose_unreadable,
)
from tf_dist.core.diagnostics.display_text import format_age, format_duration, format_hours, table_html
from tf_dist.core.diagnostics.network_policies import separated_pods
from tf_dist.core.diagnostics.outcome import Outcome, job_outcome
from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import mapping, suggestion, text, value_at
from tf_dist.core.model.job import Job, ReplicaId, Role, replica_id
from tf_dist.core.model.pods import pod_views
from tf_dist.core.model.reasons import Category, Level
from tf_dist.core.model.status import STOPPED, Phase, Status, display_phase
from tf_dist.core.model.status_codec import FIELD, displayed_status, stored_status
from tf_dist.core.model.wording import join_names
from tf_dist.core.podbuilder.services import has_headless_names
from tf_dist.core.reconciler.accepted_spec import StoredSpec, read_stored_spec
from tf_dist.core.reconciler.job_context import with_accepted_spec
from tf_dist.core.reconciler.ownership import external_manager
from tf_dist.errors import ClusterError, Forbidden, InvalidJob, NotFound, Problem

T = TypeVar("T")

_SHORT_NAMES: Final = {
    "tfjob": TFJOBS,
    "tfjobs": TFJOBS,
    "vcjob": VOLCANO_JOBS,
    "vcjobs": VOLCANO_JOBS,
    "vj": VOLCANO_JOBS,
    "job": VOLCANO_JOBS,
    "jobs": VOLCANO_JOBS,
}


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job of a cluster at one moment. ``Client.get`` reads its current version."""

    resource: Resource
    """The kind of the job."""
    stored: Object
    """The object."""
    # Values that were computed so far. Slots, because there may be thousands of jobs.
    _job: Job | None = field(default=None, init=False, compare=False, repr=False)
    _status: Status | None = field(default=None, init=False, compare=False, repr=False)
    _spec: StoredSpec | None = field(default=None, init=False, compare=False, repr=False)
    _observe: Callable[[Outcome], Outcome] | None = field(default=None, init=False, compare=False, repr=False)
    _outcome: Outcome | None = field(default=None, init=False, compare=False, repr=False)

    @classmethod
    def known(cls, resource: Resource, stored: Object, job: Job | None) -> Self:
        """A job whose spec is already parsed, as ``job``. None: the spec is parsed when it is used."""
        found = cls(resource, stored)
        object.__setattr__(found, "_job", job)
        return found

    @property
    def known_job(self) -> Job | None:
        """The effective job, if it is already parsed."""
        return self._job

    @property
    def name(self) -> str:
        """The name."""
        return str(self.stored["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The namespace."""
        return str(self.stored["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        """The uid."""
        return str(self.stored["metadata"]["uid"])

    @property
    def created(self) -> float | None:
        """When it was created (epoch seconds)."""
        from tf_dist.core.model.timestamps import parse_time

        return parse_time(self.stored["metadata"].get("creationTimestamp"))

    @property
    def shown(self) -> str:
        """The name for commands: ``tfjob/mnist``."""
        return f"{'vcjob' if self.resource is VOLCANO_JOBS else 'tfjob'}/{self.name}"

    @property
    def status(self) -> Status:
        """The status, with the job's memory."""
        found = self._status
        if found is None:
            found = displayed_status(self.stored)
            object.__setattr__(self, "_status", found)
        return found

    @property
    def state(self) -> str:
        """The state in one word."""
        return display_phase(self.status)

    def observed_by(self, observe: Callable[[Outcome], Outcome]) -> Self:
        """The same object. ``observe`` adds the reports of the replicas to its outcome."""
        object.__setattr__(self, "_observe", observe)
        return self

    @property
    def outcome(self) -> Outcome | None:
        """How the job ended, or was stopped; None while it is live.

        It has metrics, the checkpoint and the end of a log, if a client read the job and its logs exist.
        """
        found = self._outcome or job_outcome(self.status)
        if found is not None and self._outcome is None and self._observe is not None:
            found = self._observe(found)
            object.__setattr__(self, "_outcome", found)
        return found

    @property
    def worker_bounds(self) -> tuple[int, int] | None:
        """The number of workers, and the maximum number of an elastic job. None without workers."""
        found = (spec for spec in self.job.replica_specs if spec.role is Role.WORKER)
        return next(((spec.replicas, spec.most) for spec in found), None)

    def _repr_html_(self) -> str:
        return jobs_html([self])

    @property
    def job(self) -> Job:
        """The effective job: from its spec, or from the last accepted spec; InvalidJob if neither is valid."""
        found = self._job
        if found is None:
            reading = self._reading
            if reading.job is None:
                raise reading.problem or InvalidJob([])
            found = reading.job
            object.__setattr__(self, "_job", found)
        return found

    @property
    def status_now(self) -> Status:
        """The status, with the problem of an invalid spec even before a controller reports it."""
        return with_accepted_spec(self.status, None, self._reading.refused)

    @property
    def _reading(self) -> StoredSpec:
        found = self._spec
        if found is None:
            found = read_stored_spec(self.stored, self.status)
            object.__setattr__(self, "_spec", found)
        return found

    @property
    def selector(self) -> str:
        """The label selector of its pods."""
        return f"{names.JOB_UID}={self.uid}"


class JobList(list[StoredJob]):
    """Jobs. Notebooks show them as a table."""

    def _repr_html_(self) -> str:
        return jobs_html(self)


def find_problems(
    job: StoredJob,
    pods: list[Object],
    logs: Mapping[str, Sequence[str]] = MappingProxyType({}),
    events: Iterable[Object] = (),
) -> tuple[Diagnosis, ...]:
    """The findings about a job with these raw pods, ends of logs and events, most important first."""
    newer = diagnose_newer_format(stored_status(job.stored))
    if deletion := diagnose_deletion(job.stored):
        return deletion  # a job that is being deleted is no longer reconciled, so its status is out of date
    if manager := external_manager(job.stored):
        return (diagnose_managed_elsewhere(manager),)
    try:
        return (
            *newer,
            *diagnose(job.job, job.status_now, pod_views(job.job, pods), now(), logs, volume_events(events)),
        )
    except InvalidJob as error:
        return (*newer, diagnose_unreadable(error))


def volume_events(events: Iterable[Object]) -> dict[str, str]:
    """The last message about volumes for each pod. ``events`` are in order."""
    said = (event for event in events if event.get("reason") in VOLUME_REASONS)
    return {text(mapping(event.get("involvedObject")).get("name")): text(event.get("message")) for event in said}


def start_events(cluster: Cluster, job: StoredJob, pods: list[Object]) -> list[Object]:
    """The events of a job if a pod with a node does not start; none otherwise."""
    waits = (
        mapping(pod.get("status")).get("phase") == "Pending" and mapping(pod.get("spec")).get("nodeName")
        for pod in pods
    )
    return events_of(cluster, job, pods) if any(waits) else []


_NO_LEADER: Final = (
    "install a controller (tf-dist install), or find out why it does not run; without one, tf-dist run leads the "
    "namespace itself"
)


def leaders_of(cluster: Cluster, jobs: Iterable[StoredJob]) -> tuple[LeaderStatus, ...]:
    """The leaders of live jobs, if they can be read. Each kind and namespace takes at most two requests."""
    going = (
        job for job in jobs if not (job.status.finished or job.status.phase in STOPPED or external_manager(job.stored))
    )
    scopes = dict.fromkeys((job.resource, job.namespace) for job in going)
    found = (leader_status(cluster, *scope, now()) for scope in scopes)
    return tuple(dict.fromkeys(one for one in found if one is not None))


def leader_problems(cluster: Cluster, jobs: Iterable[StoredJob]) -> tuple[Diagnosis, ...]:
    """A finding if nobody leads some of the live jobs; none if that is unknown."""
    why = next(filter(None, map(nobody_leads, leaders_of(cluster, jobs))), "")
    return (Diagnosis(Level.WARNING, Category.NO_LEADER, why, resolution=_NO_LEADER),) if why else ()


# Seconds. Delays up to the default TTL of CoreDNS are not reported.
_SHORT_DENIAL: Final = 5.0
_LATE_NAMES: Final = (
    "let the program resolve its peers some seconds after its start, for example after it has imported TensorFlow; or "
    "change the Corefile: docs/troubleshooting.md, 'The first step takes 30 seconds'"
)


def dns_problems(cluster: Cluster, job: StoredJob) -> tuple[Diagnosis, ...]:
    """A finding if replicas of a starting job may wait for a DNS cache; none if its configuration is unreadable."""
    try:
        waits = not (job.status.finished or job.status.phase in STOPPED) and has_headless_names(job.job)
        corefile = cluster.get(CONFIG_MAPS, "kube-system", "coredns") if waits else {}
    except (ClusterError, InvalidJob):
        return ()
    seconds = denial_seconds(text(mapping(corefile.get("data")).get("Corefile")))
    started = job.status.since if job.status.phase is Phase.RUNNING else None
    if seconds <= _SHORT_DENIAL or (started is not None and now() > started + seconds):
        return ()
    said = (
        f"the cluster's DNS caches for {seconds:g} s that a name does not exist; a replica that looks for a peer "
        "without an address waits for as long"
    )
    return (Diagnosis(Level.INFO, Category.STARTING, said, resolution=_LATE_NAMES),)


_LET_PEERS_IN: Final = (
    "add a NetworkPolicy that lets the pods of a job reach each other: docs/troubleshooting.md, "
    "'It hangs and prints no step'"
)


def network_problems(cluster: Cluster, job: StoredJob, pods: Sequence[Object]) -> tuple[Diagnosis, ...]:
    """A finding if NetworkPolicies keep replicas from reaching each other; none if policies cannot be read."""
    if len(pods) < 2 or job.status.finished or job.status.phase in STOPPED:
        return ()
    try:
        policies = cluster.list(NETWORK_POLICIES, job.namespace).items
    except ClusterError:
        return ()
    found = separated_pods(policies, pods, job.namespace)
    if found is None:
        return ()
    said = f"NetworkPolicy {join_names(found.policies)} keeps {found.client} from reaching {found.server}"
    return (Diagnosis(Level.WARNING, Category.CONFIGURATION, said, resolution=_LET_PEERS_IN),)


def pods_of(cluster: Cluster, job: StoredJob) -> list[Object]:
    """The pods of a job."""
    return cluster.list(PODS, job.namespace, labels=job.selector).items


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """An event of a job or of one of its objects."""

    type: str
    reason: str
    about: str
    """The object: ``pod/mnist-worker-0``."""
    message: str
    last_seen: str
    """When it was last seen (RFC 3339), or ""."""
    count: int
    """How often it was seen."""

    @classmethod
    def of(cls, event: Object) -> Self:
        """From a stored event."""
        about = event.get("involvedObject") or {}
        return cls(
            type=str(event.get("type", "")),
            reason=str(event.get("reason", "")),
            about=f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
            message=" ".join(str(event.get("message", "")).split()),
            last_seen=event_time(event) or "",
            count=int(event.get("count") or 1),
        )


def events_of(cluster: Cluster, job: StoredJob, pods: list[Object]) -> list[Object]:
    """The events of a job and its pods, oldest first; none if they may not be read."""
    uids = {job.uid, *(pod["metadata"]["uid"] for pod in pods)}
    try:
        found = cluster.list(EVENTS, job.namespace).items
    except Forbidden:
        return []
    mine = (event for event in found if (event.get("involvedObject") or {}).get("uid") in uids)
    return sorted(mine, key=lambda event: (event_time(event) or "", _serial(event)))


def _serial(event: Object) -> int:
    """The resource version as a number; 0 if it is not a number, so that only the time orders events."""
    version = str(event["metadata"].get("resourceVersion", ""))
    return int(version) if version.isdecimal() else 0


def event_time(event: Object) -> str | None:
    """When an event was last seen."""
    found = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    return str(found) if found else None


def list_jobs(cluster: Cluster, namespace: str | None, labels: str = "") -> JobList:
    """The jobs of a namespace (None: of all) with these labels.

    NotServed if no kind of job is installed, Forbidden if no kind may be listed.
    """
    found = _of_kinds(JOB_KINDS, lambda resource: cluster.list(resource, namespace, labels=labels).items)
    jobs = [StoredJob(resource, stored) for resource, listed in found for stored in listed]
    return JobList(sorted(jobs, key=lambda job: (job.namespace, job.name)))


def _of_kinds(kinds: Sequence[Resource], ask: Callable[[Resource], T]) -> list[tuple[Resource, T]]:
    """The answer for each kind. A kind that is missing or forbidden is an error only if all are."""
    found: list[tuple[Resource, T]] = []
    refused: list[ClusterError] = []
    for resource in kinds:
        try:
            found.append((resource, ask(resource)))
        except NotServed:
            refused.append(definition_missing_error(resource))
        except Forbidden as error:
            refused.append(error)
    if not found and refused:
        raise next((error for error in refused if isinstance(error, Forbidden)), refused[0])
    return found


def definition_missing_error(resource: Resource) -> NotServed:
    """The error for a kind of job that is not installed, with a hint."""
    if resource is VOLCANO_JOBS:
        hint = "tf-dist convert FILE --to kubeflow.org/v1 makes it a TFJob, or install Volcano's definitions"
    else:
        hint = "tf-dist install | kubectl apply -f -"
    return NotServed(f"the {resource.kind} kind ({resource.plural}.{resource.group}) is not installed there", hint=hint)


def namespace_missing_error(error: NotFound, namespace: str) -> NotFound:
    """The error for an object whose namespace is missing, with a hint."""
    return NotFound(str(error), hint=f"kubectl create namespace {namespace}")


def find_job(cluster: Cluster, text: str, namespace: str) -> StoredJob:
    """The job of NAME or KIND/NAME. NotFound suggests similar names; InvalidJob if two kinds have the name."""
    found = lookup_job(cluster, text, namespace)
    if found is None:
        name = _split(text)[1]
        others = _visible(cluster, namespace)
        here = [job.name for job in others if job.namespace == namespace]
        elsewhere = [job.namespace for job in others if job.name == name]
        if elsewhere:
            hint = f"there is one in namespace {elsewhere[0]}: add -n {elsewhere[0]}"
        else:
            hint = suggestion(name, here, "tf-dist get -A lists every job")
        raise NotFound(f"there is no job {text} in namespace {namespace}", hint=hint)
    return found


def lookup_job(cluster: Cluster, text: str, namespace: str) -> StoredJob | None:
    """See ``find_job``; None if the job does not exist. Takes fewer requests."""
    kinds, name = _split(text)

    def ask(resource: Resource) -> Object | None:
        try:
            return cluster.get(resource, namespace, name)
        except NotServed:
            raise
        except NotFound:
            return None

    found = [StoredJob(resource, stored) for resource, stored in _of_kinds(kinds, ask) if stored is not None]
    if len(found) > 1:
        shown = " or ".join(job.shown for job in found)
        raise InvalidJob([Problem("NAME", f"there are two jobs named {name}", f"write {shown}")])
    return found[0] if found else None


def _split(text: str) -> tuple[tuple[Resource, ...], str]:
    kind, slash, name = text.rpartition("/")
    if name and not slash:
        return JOB_KINDS, text
    resource = _SHORT_NAMES.get(kind.partition(".")[0].lower())
    if resource is None or not name:
        raise InvalidJob([Problem("NAME", f"{text!r} is not a job", "write NAME, tfjob/NAME or vcjob/NAME")])
    return (resource,), name


def _visible(cluster: Cluster, namespace: str) -> list[StoredJob]:
    """All jobs that may be listed."""
    for where in (None, namespace):
        try:
            return list_jobs(cluster, where)
        except (Forbidden, NotServed):
            continue
    return []


def refuse_finished(job: StoredJob) -> None:
    """InvalidJob for a job that has ended."""
    if job.status.finished:
        message = f"{job.shown} is {display_phase(job.status)}: it has ended"
        raise InvalidJob([Problem("NAME", message, "submit it again under another name, or delete it first")])


def now() -> float:
    """The current time, to compare with times of cluster objects (epoch seconds)."""
    return time.time()


def summary(job: StoredJob) -> dict[str, Any]:
    """The JSON of a job for ``-o json``: the object, with the reports of its replicas in the outcome."""
    shown = {"apiVersion": job.resource.api_version, "kind": job.resource.kind, **job.stored}
    outcome = job.outcome
    if outcome is None or not (outcome.metrics or outcome.checkpoint):
        return shown
    printed = {name: outcome.document()[name] for name in ("metrics", "checkpoint")}
    status = stored_status(job.stored)
    ours = mapping(status.get(FIELD))
    return {**shown, "status": {**status, FIELD: {**ours, "outcome": {**mapping(ours.get("outcome")), **printed}}}}


JOB_TITLES: Final = ("NAME", "STATE", "READY", "RESTARTS", "AGE", "REASON")


def job_cells(job: StoredJob, *, wide: bool = False) -> list[str]:
    """The cells of a job: ``JOB_TITLES``; ``wide``: disruptions, usage, format and message instead of the reason."""

    status = job.status
    ready = text(value_at(stored_status(job.stored), FIELD, "ready")) or "-"
    cells = [job.shown, job.state, ready, str(status.total_restarts), format_age(job.created, now())]
    manager = external_manager(job.stored)
    if deletion := diagnose_deletion(job.stored):
        reason, message = "Deleting", deletion[0].summary
    elif manager:
        reason, message = f"managed by {manager}", diagnose_managed_elsewhere(manager).summary
    else:
        reason, message = status.display_reason, status.display_message
    usage = status.usage.until(now())
    used = [format_duration(usage.waited), format_hours(usage.gpus.held), format_hours(usage.gpus.lost)]
    more = [str(status.total_disruptions), *used, job.stored["apiVersion"], message]
    return [*cells, *(more if wide else [reason])]


def jobs_html(jobs: Iterable[StoredJob]) -> str:
    """A table of jobs for a notebook."""
    return table_html("", [title.lower() for title in JOB_TITLES], [job_cells(job) for job in jobs])


def replica_of(pod: Object) -> ReplicaId | None:
    """The replica of a pod; None if it has none."""
    labels = pod["metadata"].get("labels") or {}
    type_, index = labels.get(names.REPLICA_TYPE), labels.get(names.REPLICA_INDEX, "")
    return replica_id(type_, int(index)) if type_ is not None and index.isdecimal() else None
