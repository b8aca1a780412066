"""The integrations by name, and the calls of a pass to a job's integration: verdict, objects, pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tf_dist.core.integrations.coscheduling import COSCHEDULING
from tf_dist.core.integrations.interface import Body
from tf_dist.core.integrations.kueue import KUEUE
from tf_dist.core.integrations.volcano_pod_group import VOLCANO
from tf_dist.core.integrations.workload_api import WORKLOAD_API
from tf_dist.core.model import names
from tf_dist.core.model.assignment import Verdict, Wait
from tf_dist.core.model.context import (
    Action,
    ApiResource,
    Create,
    Delete,
    Integration,
    Observed,
    PodClassification,
    ReconcileContext,
    ServedApis,
)
from tf_dist.core.model.gang_queue import DEFAULT_QUEUE
from tf_dist.core.model.job import Dialect, Document, Job, ReplicaId
from tf_dist.core.model.pods import PodView
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import LIVE, Status
from tf_dist.core.model.timestamps import round_time

INTEGRATIONS: Final[Mapping[str, Integration]] = {one.name: one for one in (VOLCANO, COSCHEDULING, KUEUE, WORKLOAD_API)}

# All kinds of the integrations, by name with the group.
APIS: Final[Mapping[str, ApiResource]] = {
    api.key: api for one in INTEGRATIONS.values() for alternative in one.apis for api in alternative
}


def integration_of(job: Job, status: Status) -> Integration | None:
    """The integration that admitted a job, otherwise the integration that the job names; None: tf-dist itself."""
    asked = job.scheduling.gang or status.gang
    return INTEGRATIONS.get(asked if status.admission is None else status.admission.by)


def names_idle_scheduler(job: Job, pod_spec: Document) -> bool:
    """Whether a pod of a job that tf-dist admits names Volcano's scheduler, as Volcano Jobs usually do.

    Such a pod goes to the cluster's default scheduler. Without Volcano, it would wait forever, although tf-dist has
    already assigned nodes. Any other name is the user's choice and is kept.
    """
    return job.dialect is Dialect.VOLCANO and pod_spec.get("schedulerName") == VOLCANO.name


def kind_key(body: Document) -> str:
    """The kind of an object, with the group for kinds of gang schedulers, because several groups have a PodGroup."""
    group, _, _ = body["apiVersion"].rpartition("/")
    key = f"{body['kind']}.{group}"
    return key if key in APIS else str(body["kind"])


# Seconds until the next check for a missing scheduler, or a missing object of a scheduler. No watch reports them.
_RETRY_INTERVAL: Final = 30.0
_SHORT_RETRY_INTERVAL: Final = 1.0


def integration_verdict(s: ReconcileContext, scheduler: Integration) -> Verdict | None:
    """The verdict of the job's gang scheduler; None without a change."""
    served = s.observed.served
    if s.status.phase not in LIVE or served is None:
        return None
    if served.missing:
        waits = Wait(reason=Reason.GANG_SCHEDULER_MISSING, message=served.missing)
        return waits if s.status.admission is None else None
    return scheduler.verdict(s, served)


def _served(s: ReconcileContext) -> ServedApis | None:
    """The cluster's API of the job's gang scheduler; None if it is unknown or cannot be used."""
    return s.observed.served if s.observed.served is not None and not s.observed.served.missing else None


def takes_pods(s: ReconcileContext) -> bool:
    """Whether pods may be created now: tf-dist itself has admitted the job, or its gang scheduler accepts them."""
    if s.integration is None:
        return s.status.admission is not None
    served = _served(s)
    return served is not None and s.integration.takes_pods(s, served)


def decorate_pod(s: ReconcileContext, replica: ReplicaId, pod: Body) -> None:
    """Add the fields for the job's gang scheduler to a pod.

    If tf-dist admits the job, the pod gets the queue label and does not use Volcano's scheduler. The label decides in
    which queue the pod counts after its job is deleted. A template must not set the label.
    """
    labels = pod["metadata"]["labels"]
    labels.pop(names.QUEUE, None)
    queue = s.job.scheduling.queue or DEFAULT_QUEUE
    if s.integration is None and names.is_label_value(queue):
        labels[names.QUEUE] = queue
    if s.integration is None and names_idle_scheduler(s.job, pod["spec"]):
        del pod["spec"]["schedulerName"]
    served = _served(s)
    if s.integration is not None and served is not None:
        s.integration.decorate(s, served, replica, pod)
        if s.integration.scheduler_name:
            pod["spec"].setdefault("schedulerName", s.integration.scheduler_name)


def integration_actions(s: ReconcileContext) -> Iterator[Action]:
    """Actions that bring the objects of gang schedulers to their desired state."""
    there = {key: body for key, body in s.observed.objects.items() if key[0] in APIS}
    if s.integration is None and not there:
        return
    wanted = {(kind_key(body), body["metadata"]["name"]): body for body in wanted_objects(s)}
    served = _served(s)
    for key, body in there.items():
        if "deletionTimestamp" in body["metadata"]:
            continue
        if key in wanted and s.integration is not None and served is not None:
            yield from s.integration.updates(s, served, body, wanted[key])
        elif key not in wanted and not _in_use(s):
            yield Delete(*key, body["metadata"]["uid"])
    for key, body in wanted.items():
        if key not in there and not _lives(s.facts.stale):
            yield Create(body)


def wanted_objects(s: ReconcileContext) -> tuple[Body, ...]:
    """The objects of the job's gang scheduler that should exist now."""
    status, served = s.status, _served(s)
    pausing = status.admission is None and s.now < status.not_before
    if s.integration is None or served is None or status.phase not in LIVE or pausing:
        return ()
    return tuple(s.integration.wanted(s, served))


def _in_use(s: ReconcileContext) -> bool:
    """Whether pods of the gang may still run, so that their resources are not free."""
    if s.integration is not None and _served(s) is None:
        return True  # the desired objects are not known
    return _lives(s.facts.stale) or (s.status.phase not in LIVE and _lives(s.facts.current.values()))


def _lives(pods: Iterable[PodView]) -> bool:
    return any(not pod.finished for pod in pods)


def planned_context(job: Job) -> ReconcileContext:
    """The context of a job that is not submitted yet, assuming that its gang scheduler is served."""
    status, scheduler = Status(), integration_of(job, Status())
    apis = scheduler.apis[0] if scheduler is not None else ()
    served = ServedApis(versions={api.key: api.versions[0] for api in apis}, assume_served=True)
    return ReconcileContext(
        requested_job=job,
        job=job,
        status=status,
        facts=PodClassification({}, (), {}, frozenset()),
        observed=Observed(now=0.0, served=served),
        before=status,
        integration=scheduler,
    )


def retry_at(s: ReconcileContext) -> float | None:
    """When to check again for a missing gang scheduler; None if nothing waits for it."""
    if s.integration is None:
        return None
    if s.observed.served is None:
        return round_time(s.now + _SHORT_RETRY_INTERVAL)
    verdict = s.verdict
    refused = isinstance(verdict, Wait) and verdict.reason == Reason.QUEUE_REFUSED
    waits = s.status.phase in LIVE and (s.observed.served.missing or refused)
    return round_time(s.now + _RETRY_INTERVAL) if waits else None
