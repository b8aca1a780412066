"""The integrations by name, and one reconcile pass with one of them: its verdict, its objects, its pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from tf_dist.core.api.assignment import PendingReason, Verdict, Wait, granted_job
from tf_dist.core.api.context import Action, ApiResource, Create, Delete, Observed, ReconcileContext, ServedApis
from tf_dist.core.api.job import Dialect, Document, Job, ReplicaId
from tf_dist.core.api.pod_events import PodClassification, classify_pods
from tf_dist.core.api.pods import PodView
from tf_dist.core.api.status import LIVE, Status
from tf_dist.core.api.timestamps import round_time
from tf_dist.core.integrations.coscheduling import COSCHEDULING
from tf_dist.core.integrations.interface import Body, Integration
from tf_dist.core.integrations.kueue import KUEUE
from tf_dist.core.integrations.volcano_pod_group import VOLCANO
from tf_dist.core.integrations.workload_api import WORKLOAD_API

INTEGRATIONS: Final[Mapping[str, Integration]] = {one.name: one for one in (VOLCANO, COSCHEDULING, KUEUE, WORKLOAD_API)}

# Every kind of theirs, by its name with the group.
APIS: Final[Mapping[str, ApiResource]] = {
    api.key: api for one in INTEGRATIONS.values() for alternative in one.apis for api in alternative
}


def integration_of(job: Job, status: Status) -> Integration | None:
    """The integration of a job, None for tf-dist itself: the one that admitted it, else the one it asks for."""
    asked = job.scheduling.gang or status.gang
    return INTEGRATIONS.get(asked if status.admission is None else status.admission.by)


def names_idle_scheduler(job: Job, pod_spec: Document) -> bool:
    """Whether a pod of a job that tf-dist admits is left to Volcano's scheduler, as every Volcano Job's is by custom.

    Where Volcano does not run it would wait for ever, and where it does, room was found without it: such a pod goes to
    the cluster's default scheduler. Any other name is the user's own choice and stays.
    """
    return job.dialect is Dialect.VOLCANO and pod_spec.get("schedulerName") == VOLCANO.name


def with_default_scheduler(job: Job, status: Status, gang: str | None) -> Status:
    """The status of a job with the default gang scheduler of its driver (None: another driver has the job).

    It is stored, so that every admission leader knows which jobs it does not decide about.
    """
    settled = status.finished or status.admission is not None or job.scheduling.gang is not None
    if gang is None or settled or status.gang == gang:
        return status
    return replace(status, gang=gang)


def kind_key(body: Document) -> str:
    """The kind of an object, with its group where it is a gang scheduler's: several have a PodGroup."""
    group, _, _ = body["apiVersion"].rpartition("/")
    key = f"{body['kind']}.{group}"
    return key if key in APIS else str(body["kind"])


# Seconds until the next look whether a missing scheduler, or a missing object of it, is there; no watch reports it.
_RETRY_INTERVAL: Final = 30.0
_SHORT_RETRY_INTERVAL: Final = 1.0


def with_verdict(job: Job, status: Status, observed: Observed) -> Observed:
    """The observation with the verdict of the job's gang scheduler; unchanged where that is tf-dist itself."""
    scheduler = integration_of(job, status)
    return observed if scheduler is None else replace(observed, verdict=_verdict(scheduler, job, status, observed))


def _verdict(scheduler: Integration, job: Job, status: Status, observed: Observed) -> Verdict | None:
    served = observed.served
    if status.phase not in LIVE or served is None:
        return None
    if served.missing:
        waits = Wait(reason=PendingReason.SCHEDULER_MISSING, message=served.missing)
        return waits if status.admission is None else None
    sized = granted_job(job, status)
    return scheduler.verdict(
        ReconcileContext(sized, status, classify_pods(sized, status, observed.pods), observed, job), served
    )


class IntegrationPass:
    """The part of an integration in a reconcile pass; for tf-dist's own admission only whether the job is admitted."""

    def __init__(self, job: Job, status: Status, facts: PodClassification, observed: Observed) -> None:
        self._scheduler = integration_of(job, status)
        self._s = ReconcileContext(job, status, facts, observed, job)
        self._served = observed.served if observed.served is not None and not observed.served.missing else None

    def takes_pods(self) -> bool:
        """Whether pods may be created now."""
        if self._scheduler is None:
            return self._s.status.admission is not None
        return self._served is not None and self._scheduler.takes_pods(self._s, self._served)

    def decorate(self, replica: ReplicaId, pod: Body) -> None:
        """Add to a pod what its gang scheduler needs; without one, leave it to the cluster's default scheduler."""
        if self._scheduler is None and names_idle_scheduler(self._s.job, pod["spec"]):
            del pod["spec"]["schedulerName"]
        if self._scheduler is not None and self._served is not None:
            self._scheduler.decorate(self._s, self._served, replica, pod)
            if self._scheduler.scheduler_name:
                pod["spec"].setdefault("schedulerName", self._scheduler.scheduler_name)

    def objects(self) -> Iterator[Action]:
        """Actions that bring the objects of gang schedulers to their desired state."""
        wanted = {self._key(body): body for body in self.wanted()}
        there = {key: body for key, body in self._s.observed.objects.items() if key[0] in APIS}
        for key, body in there.items():
            if "deletionTimestamp" in body["metadata"]:
                continue
            if key in wanted and self._scheduler is not None and self._served is not None:
                yield from self._scheduler.updates(self._s, self._served, body, wanted[key])
            elif key not in wanted and not self._in_use():
                yield Delete(*key, body["metadata"]["uid"])
        for key, body in wanted.items():
            if key not in there and not self._lives(self._s.facts.stale):
                yield Create(body)

    @staticmethod
    def _key(body: Body) -> tuple[str, str]:
        return f"{body['kind']}.{body['apiVersion'].rpartition('/')[0]}", body["metadata"]["name"]

    def wanted(self) -> tuple[Body, ...]:
        """The objects that should exist now."""
        status = self._s.status
        pausing = status.admission is None and self._s.now < status.not_before
        if self._scheduler is None or self._served is None or status.phase not in LIVE or pausing:
            return ()
        return tuple(self._scheduler.wanted(self._s, self._served))

    def _in_use(self) -> bool:
        """Whether pods of its gang may still run: what they hold is not free before."""
        if self._scheduler is not None and self._served is None:
            return True  # the desired objects are not known
        facts = self._s.facts
        return self._lives(facts.stale) or (self._s.status.phase not in LIVE and self._lives(facts.current.values()))

    @staticmethod
    def _lives(pods: Iterable[PodView]) -> bool:
        return any(not pod.finished for pod in pods)


def planned_pass(job: Job) -> IntegrationPass:
    """The pass of a job that is still to be submitted, assuming that its gang scheduler is served."""
    scheduler, status = integration_of(job, Status()), Status()
    apis = scheduler.apis[0] if scheduler is not None else ()
    served = ServedApis(versions={api.key: api.versions[0] for api in apis}, assume_served=True)
    return IntegrationPass(job, status, classify_pods(job, status, ()), Observed(now=0.0, served=served))


def retry_at(job: Job, status: Status, observed: Observed) -> float | None:
    """When to look again for a missing gang scheduler; None if nothing waits for it."""
    if integration_of(job, status) is None:
        return None
    if observed.served is None:
        return round_time(observed.now + _SHORT_RETRY_INTERVAL)
    verdict = observed.verdict
    refused = isinstance(verdict, Wait) and verdict.reason == PendingReason.QUEUE_REFUSED
    waits = status.phase in LIVE and (observed.served.missing or refused)
    return round_time(observed.now + _RETRY_INTERVAL) if waits else None
