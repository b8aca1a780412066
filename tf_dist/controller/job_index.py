"""Index of jobs: the stored object, the parsed job, and the status that has not been written yet."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from tf_dist.cluster.api import Object
from tf_dist.controller.observability.metrics_interface import JobMetricsKey
from tf_dist.controller.settings import ControllerSettings, JobRef
from tf_dist.core.gang.types import AdmissionRequest
from tf_dist.core.integrations.dispatch import integration_of
from tf_dist.core.model import names
from tf_dist.core.model.assignment import current_job
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import Dialect, Job, compact_job
from tf_dist.core.model.status import LIVE, Phase, Status
from tf_dist.core.model.status_codec import NewerStatusFormat, read_status
from tf_dist.core.model.timestamps import parse_time
from tf_dist.core.reconciler.accepted_spec import StoredSpec, read_stored_spec
from tf_dist.core.reconciler.job_context import with_default_scheduler


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A stored job and its parsed form."""

    ref: JobRef
    stored: Object
    reading: StoredSpec
    status: Status  # the stored memory
    problem: Exception | None = None  # why the memory cannot be read
    remembered: Status | None = None  # the memory of the last pass if it was not written
    gang: str = ""  # the gang scheduler of jobs that name none ("": tf-dist itself)
    admission_version: object = None  # the same object until a part of the job changes that admission reads

    @property
    def job(self) -> Job | None:
        """The job in force, of the current or the last accepted spec (``accepted_spec``); None without such a spec."""
        return self.reading.job

    @property
    def newer(self) -> NewerStatusFormat | None:
        """The error if a newer release wrote the job's memory, which this release must not change."""
        return self.problem if isinstance(self.problem, NewerStatusFormat) else None

    @property
    def uid(self) -> str:
        """The uid of the stored job."""
        return str(self.stored["metadata"]["uid"])

    @property
    def version(self) -> str:
        """The resource version of the stored job."""
        return str(self.stored["metadata"]["resourceVersion"])

    @property
    def waits(self) -> bool:
        """Whether the job waits for admission by tf-dist. A job that is being deleted does not wait."""
        waits = not self.status.finished and self.status.admission is None
        return waits and not self.deleting and self.job is not None and not self._another_decides(self.job)

    @property
    def deleting(self) -> bool:
        """Whether the job's deletion was requested. A finalizer may delay it, but the job is no longer reconciled."""
        return "deletionTimestamp" in self.stored["metadata"]

    def _another_decides(self, job: Job) -> bool:
        """Whether another gang scheduler decides about the job. A job that names none gets the default."""
        return integration_of(job, with_default_scheduler(job, self.status, self.gang)) is not None

    @property
    def metrics_key(self) -> JobMetricsKey:
        """The key by which metrics count the job."""
        job, status, waits = self.job, self.status, self.waits
        queue = None if job is None or status.finished else current_job(job, status).scheduling.queue
        admitted = not waits and status.admission is not None
        return JobMetricsKey(self.ref.resource, status.phase.value, queue, waits, admitted)

    @property
    def concerns_admission(self) -> bool:
        """Whether admission must know the job."""
        job = self.job
        if job is None or self.deleting:
            return False  # pods of a job that is being deleted count like pods without a job
        if job.run_policy.suspend and (self.status.admission is None or self.status.phase not in LIVE):
            return False  # an admitted job may still create pods until its status is no longer live
        if self._another_decides(job):
            return False  # its pods count like any other pods
        return not (self.status.unconfirmed and self.status.admission is None)  # it could not create pods

    @property
    def admission_inputs(self) -> tuple[object, ...]:
        """Everything that admission's decisions depend on, as a comparable value."""
        if not self.concerns_admission:
            return ()
        status = self.status
        live = status.phase in LIVE
        done = status.succeeded, *(counts.failed for counts in status.counts.values())
        parts = self.uid, self.admission_version, live, status.admission, done, status.not_before
        refused, unconfirmed = tuple(status.refused_nodes), bool(status.unconfirmed)
        attempts = status.attempts, status.phase is Phase.PENDING
        ways = (status.fallback, status.fallback_from, status.since) if self.job and self.job.fallbacks else ()
        return *parts, attempts, status.gang, refused, unconfirmed, ways

    def claim(self) -> AdmissionRequest | None:
        """The request of the job for admission; None if admission need not know the job."""
        job = self.job
        if job is None or not self.concerns_admission:
            return None
        created = parse_time(self.stored["metadata"].get("creationTimestamp")) or 0.0
        # The API server's clock may be ahead of this one: the job existed when a controller first saw it.
        created = min(created, self.status.created or created)
        return AdmissionRequest(job, self.status, created)


@dataclass(frozen=True, slots=True)
class JobChanges:
    """The changed jobs by uid (None: deleted). ``whole``: these are all jobs."""

    jobs: Mapping[str, JobEntry | None]
    whole: bool = False


class JobIndex:
    """Parses each stored version once, for a controller with these settings. Thread-safe for different jobs."""

    def __init__(self, settings: ControllerSettings | None = None) -> None:
        self._settings = settings or ControllerSettings()
        self._known: dict[JobRef, JobEntry] = {}
        self._lock = threading.Lock()
        self._standings: Counter[JobMetricsKey] = Counter()
        self._changed: dict[str, JobRef] = {}
        self._whole = True  # all jobs count as changed

    def __iter__(self) -> Iterator[JobRef]:
        return iter(tuple(self._known))

    def get(self, ref: JobRef) -> JobEntry | None:
        """The entry of a job; None if the job is unknown."""
        return self._known.get(ref)

    def metrics_counts(self) -> dict[JobMetricsKey, int]:
        """The number of jobs for each metrics key."""
        with self._lock:
            return dict(self._standings)

    def changes(self) -> JobChanges:
        """The jobs that have changed since the last call."""
        with self._lock:
            changed, self._changed = self._changed, {}
            whole, self._whole = self._whole, False
            if whole:
                return JobChanges({known.uid: known for known in self._known.values()}, whole=True)
            known = {uid: self._known.get(ref) for uid, ref in changed.items()}
            return JobChanges({uid: one if one is not None and one.uid == uid else None for uid, one in known.items()})

    def mark_all_changed(self) -> None:
        """Mark all jobs as changed. Until ``changes`` is called, single changes are not recorded."""
        with self._lock:
            self._changed, self._whole = {}, True

    def read(self, ref: JobRef, stored: Object) -> JobEntry:
        """Read the current stored object into the index, and return its entry."""
        before = self._known.get(ref)
        if before is not None and before.stored is stored:
            return before
        ref = ref if before is None else before.ref  # one object for all versions of a job
        known = _read_entry(ref, stored, before, self._seen, self._settings.default_gang)
        self._set(ref, known)
        return known

    def _seen(self, job: Job) -> Job:
        """The job with this controller's settings. Without other gang schedulers, the scheduler it names is ignored."""
        settings = self._settings
        job = replace(job, cluster_domain=settings.cluster_domain) if settings.cluster_domain else job
        if settings.disruption_budgets and job.dialect is Dialect.TFJOB_V1ALPHA1:
            job = replace(job, disruption_budget=True)
        job = replace(job, fallbacks=tuple(map(self._seen, job.fallbacks))) if job.fallbacks else job
        if settings.other_schedulers:
            return job
        return replace(job, scheduling=replace(job.scheduling, gang=GangScheduler.BUILTIN))

    def remember(self, ref: JobRef, known: JobEntry, status: Status) -> None:
        """Keep the memory of a pass that did not write it."""
        remembered = None if status == known.status else status
        if remembered == known.remembered:
            return
        with self._lock:
            if self._known.get(ref) is known:
                self._known[ref] = replace(known, remembered=remembered)

    def forget(self, ref: JobRef) -> None:
        """Remove a deleted job."""
        if ref in self._known:
            self._set(ref, None)

    def _set(self, ref: JobRef, after: JobEntry | None) -> None:
        with self._lock:
            before = self._known.get(ref)
            if after is not None:
                self._known[ref] = after
            else:
                self._known.pop(ref, None)
            for known, step in ((before, -1), (after, 1)):
                if known is not None:
                    self._standings[key := known.metrics_key] += step
                    if not self._standings[key]:
                        del self._standings[key]
                    if not self._whole:
                        self._changed[known.uid] = ref


def _read_entry(
    ref: JobRef, stored: Object, before: JobEntry | None, seen: Callable[[Job], Job], gang: str
) -> JobEntry:
    """Read an object. An error of any kind is stored in the entry, because an invalid object must not stop others."""
    status = Status()
    try:
        status = read_status(stored)
        if before is not None and before.uid != stored["metadata"]["uid"]:
            before = None  # it was another job of this name
        # The remembered memory is valid as long as the stored status is the same.
        kept = before.remembered if before is not None and before.status == status else None
        reading = _parsed_spec(stored, status, before, seen)
        if reading.accepted is not None and reading.accepted == status.accepted_spec:
            reading = replace(reading, accepted=status.accepted_spec)  # equal objects share memory
        same = before is not None and _same_for_admission(before.job, reading.job)
        version = before.admission_version if before is not None and same else object()
        return JobEntry(ref, stored, reading, status, remembered=kept, gang=gang, admission_version=version)
    except Exception as error:
        return JobEntry(ref, stored, StoredSpec(job=None), status, error, gang=gang)


def _same_for_admission(before: Job | None, after: Job | None) -> bool:
    if before is None or after is None:
        return False
    return before is after or _read_by_admission(before) == _read_by_admission(after)


def _read_by_admission(job: Job) -> Job:
    """The job without fields that admission does not read but users may edit often: labels, foreign annotations."""
    kept = {key: value for key, value in job.annotations.items() if key.startswith(names.ANNOTATION_PREFIX)}
    return replace(job, labels={}, annotations=kept, fallbacks=tuple(map(_read_by_admission, job.fallbacks)))


def _parsed_spec(stored: Object, status: Status, before: JobEntry | None, seen: Callable[[Job], Job]) -> StoredSpec:
    if before is not None and before.problem is None and _spec_fingerprint(before.stored) == _spec_fingerprint(stored):
        reading = before.reading
        # A controller of another release may have accepted a spec that is refused here. Then that spec is in force.
        if reading.refused is None or before.status.accepted_spec == status.accepted_spec:
            return reading
    previous = (before.stored, before.reading) if before is not None else None
    reading = read_stored_spec(stored, status, previous)
    return reading if reading.job is None else replace(reading, job=compact_job(seen(reading.job)))


def _spec_fingerprint(stored: Object) -> tuple[object, ...]:
    """The parts from which a job is read: all except its status and its resource version."""
    metadata = stored["metadata"]
    return metadata["uid"], metadata.get("generation"), metadata.get("annotations"), metadata.get("labels")
