"""The driver: wakes when something changed or is due, looks, admits, reconciles, applies.

Nothing is decided here. A job whose pass fails is reported on that job and tried again later, with a pause of its own;
the others go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tf_dist.cluster.api import NODES, PODS, Cluster, Object
from tf_dist.core import names
from tf_dist.core.actions import Delete, Emit, Plan, WriteStatus
from tf_dist.core.dialects import parse, read
from tf_dist.core.gang.admit import admit
from tf_dist.core.gang.model import Admit, Verdict
from tf_dist.core.gang.snapshot import Claim, snapshot
from tf_dist.core.invalid import invalid_status
from tf_dist.core.model import Job
from tf_dist.core.observed import Observed, PodView, pod_view
from tf_dist.core.reconcile import reconcile
from tf_dist.core.status import Status
from tf_dist.core.status_codec import load_status
from tf_dist.core.tf_config import endpoints
from tf_dist.core.times import parse_time
from tf_dist.driver.apply import Applier
from tf_dist.driver.doorbell import Doorbell
from tf_dist.driver.settings import DriverSettings
from tf_dist.driver.view import JOB_KINDS, JobRef, View, look
from tf_dist.driver.workqueue import WorkQueue
from tf_dist.errors import ClusterError, Conflict, InvalidJob, NotFound, Throttled

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    """A stored job and what it was read as; ``problem`` says why it or its memory cannot be read."""

    stored: Object
    job: Job | None
    status: Status
    problem: Exception | None = None


class Driver:
    """Drives every job of a cluster, or of one namespace. ``step`` is one pass; ``start`` runs passes in a thread."""

    def __init__(
        self, cluster: Cluster, *, settings: DriverSettings | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._cluster = cluster
        self._settings = settings or DriverSettings()
        self._clock = clock
        self._queue: WorkQueue[JobRef] = WorkQueue(clock)
        self._applier = Applier(cluster, clock, self._settings.component)
        self._parsed: dict[str, tuple[object, Job]] = {}
        self._views: dict[str, tuple[str, PodView | None]] = {}
        self._everything = threading.Event()
        self._stopped = threading.Event()
        self._doorbells: list[Doorbell] = []
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch the cluster and drive its jobs in a thread until ``stop``."""
        namespace = self._settings.namespace
        for kind in JOB_KINDS:
            self._doorbells.append(Doorbell(self._cluster, kind, self._ring_job(kind), namespace=namespace))
        self._doorbells.append(Doorbell(self._cluster, PODS, self._ring_owner, namespace=namespace))
        self._doorbells.append(Doorbell(self._cluster, NODES, lambda _: self._ring_everything()))
        for doorbell in self._doorbells:
            doorbell.start()
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the pass it is in; jobs and pods stay as they are."""
        self._stopped.set()
        self._queue.close()
        for doorbell in self._doorbells:
            doorbell.stop()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        self._everything.set()
        while not self._stopped.is_set():
            due = self._queue.wait(0 if self._everything.is_set() else self._settings.resync)
            if self._stopped.is_set():
                return
            try:
                self.step(due or None)
            except Exception as error:
                # A loop that ended here would leave every job without a driver, and nobody would be told.
                defect = None if isinstance(error, ClusterError) else error
                _LOG.warning("cannot look at the cluster: %s", error, exc_info=defect)
                self._everything.set()
                self._stopped.wait(1.0)

    def _ring_job(self, kind: object) -> Callable[[Object], None]:
        def ring(stored: Object) -> None:
            self._queue.add(JobRef.of(kind, stored))  # type: ignore[arg-type]

        return ring

    def _ring_owner(self, pod: Object) -> None:
        metadata = pod["metadata"]
        owner = next((o for o in metadata.get("ownerReferences") or () if o.get("controller")), None)
        kind = next((k for k in JOB_KINDS if owner and owner["kind"] == k.kind), None)
        if owner and kind and names.JOB_UID in (metadata.get("labels") or {}):
            self._queue.add(JobRef(kind, metadata["namespace"], owner["name"]))
        else:
            self._ring_waiting(pod)

    def _ring_waiting(self, pod: Object) -> None:
        """A pod of somebody else that ends may make room."""
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]:
            self._ring_everything()

    def _ring_everything(self) -> None:
        self._everything.set()
        self._queue.wake()

    def step(self, due: Iterable[JobRef] | None = None) -> int:
        """One pass over ``due`` jobs and those that wait for a place (None: all jobs); how many actions it took.

        ClusterError when the cluster could not be listed; errors of single jobs are reported on them.
        """
        view = look(self._cluster, self._settings.namespace)
        known = {ref: self._read(stored) for ref, stored in view.jobs.items()}
        self._forget(view)
        everything = due is None or self._everything.is_set()
        self._everything.clear()
        verdicts = self._admit(view, known.values())
        chosen = set(known) if everything else {*(due or ()), *_waiting(known)}
        return sum(self._drive(ref, known[ref], view, verdicts) for ref in sorted(chosen & known.keys(), key=str))

    def _read(self, stored: Object) -> _Known:
        """One object that cannot be read, whatever is wrong with it, must not stop the others."""
        status = Status()
        try:
            status = load_status(stored.get("status") or {})
            return _Known(stored, self._parse(stored), status)
        except InvalidJob as problem:
            return _Known(stored, None, status, _every(stored, problem))
        except Exception as error:
            return _Known(stored, None, status, error)

    def _parse(self, stored: Object) -> Job:
        metadata = stored["metadata"]
        version = (metadata.get("generation"), metadata.get("annotations"), metadata.get("labels"))
        cached = self._parsed.get(metadata["uid"])
        if cached is not None and cached[0] == version:
            return cached[1]
        job = read(stored)
        self._parsed[metadata["uid"]] = (version, job)
        return job

    def _forget(self, view: View) -> None:
        """What is gone from the cluster goes from the caches."""
        uids = {stored["metadata"]["uid"] for stored in view.jobs.values()}
        self._parsed = {uid: entry for uid, entry in self._parsed.items() if uid in uids}
        pods = {pod["metadata"]["uid"] for pod in view.all_pods}
        self._views = {uid: entry for uid, entry in self._views.items() if uid in pods}

    def _admit(self, view: View, known: Iterable[_Known]) -> dict[str, Verdict]:
        claims = [
            Claim(entry.job, entry.status, parse_time(entry.stored["metadata"].get("creationTimestamp")) or 0.0)
            for entry in known
            if entry.job is not None and not entry.job.managed_elsewhere and not entry.job.run_policy.suspend
        ]
        if view.nodes is None:
            return {claim.job.uid: Admit() for claim in claims}
        if all(claim.status.admission is not None for claim in claims):
            return {}
        return admit(snapshot(claims, view.nodes, view.all_pods))

    def _drive(self, ref: JobRef, known: _Known, view: View, verdicts: dict[str, Verdict]) -> int:
        """One job's pass. Whatever goes wrong with it stays with it."""
        try:
            plan = self._plan(known, view, verdicts)
            self._applier.apply(ref, known.stored, plan)
        except (Conflict, NotFound) as error:
            _LOG.debug("%s changed under us: %s", ref, error)
            self._queue.retry(ref)
            return 1
        except Exception as error:
            self._report(ref, known.stored, error)
            return 0
        self._queue.succeeded(ref)
        if plan.wake_at is not None:
            self._queue.add(ref, plan.wake_at)
        return len(plan.actions)

    def _plan(self, known: _Known, view: View, verdicts: dict[str, Verdict]) -> Plan:
        now, stored = self._clock(), known.stored
        if isinstance(known.problem, InvalidJob):
            return _end_invalid(known, known.problem, view.pods.get(stored["metadata"]["uid"], ()), now)
        if known.problem is not None or known.job is None:
            raise known.problem or RuntimeError("neither a job nor a problem")
        uid, job = stored["metadata"]["uid"], known.job
        pods = tuple(view_ for pod in view.pods.get(uid, ()) if (view_ := self._pod_view(pod, job)) is not None)
        observed = Observed(
            now=now,
            stored_status=stored.get("status") or {},
            pods=pods,
            objects=view.objects.get(uid, {}),
            verdict=verdicts.get(uid),
            addresses=self._addresses(known, len(pods)),
            deleting="deletionTimestamp" in stored["metadata"],
        )
        return reconcile(job, observed, known.status)

    def _pod_view(self, pod: Object, job: Job) -> PodView | None:
        metadata = pod["metadata"]
        cached = self._views.get(metadata["uid"])
        if cached is not None and cached[0] == metadata["resourceVersion"]:
            return cached[1]
        spec = job.spec((metadata.get("labels") or {}).get(names.REPLICA_TYPE, ""))
        found = pod_view(pod, spec.container if spec else "")
        self._views[metadata["uid"]] = (metadata["resourceVersion"], found)
        return found

    def _addresses(self, known: _Known, pods: int) -> dict[str, str]:
        """Asked only when a pod may have to be made."""
        job = known.job
        if job is None or known.status.finished or pods >= len(job.replicas):
            return {}
        return dict(self._cluster.addresses(known.stored, endpoints(job)))

    def _report(self, ref: JobRef, stored: Object, error: Exception) -> None:
        pause = self._queue.retry(ref, error.after if isinstance(error, Throttled) else None)
        expected = isinstance(error, ClusterError)
        _LOG.warning("%s: %s; again in %.1f s", ref, error, pause, exc_info=None if expected else error)
        hint = getattr(error, "hint", "")
        what = str(error) if expected else f"{type(error).__name__}: {error}"
        message = f"{what} ({hint})" if hint else what
        self._applier.emit(ref, stored, Emit("Warning", "ReconcileFailed", message))


def _end_invalid(known: _Known, problem: InvalidJob, pods: Iterable[Object], now: float) -> Plan:
    """A job whose spec cannot be read any more ends, and none of its pods goes on holding what it holds."""
    status = invalid_status(known.stored, problem, now)
    writes = (WriteStatus(status),) if status else ()
    alive = (pod["metadata"] for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"))
    deletes = [Delete("Pod", meta["name"], meta["uid"]) for meta in alive if "deletionTimestamp" not in meta]
    return Plan(known.status, (*writes, *deletes))


def _every(stored: Object, first: InvalidJob) -> InvalidJob:
    """All problems of a document that cannot be read: the strict parser does not stop at the first."""
    try:
        parse(stored)
    except InvalidJob as every:
        return every
    return first


def _waiting(known: dict[JobRef, _Known]) -> set[JobRef]:
    """Jobs without a place: what happened to another may have made room for them."""
    return {
        ref for ref, entry in known.items() if entry.job and not entry.status.finished and not entry.status.admission
    }
