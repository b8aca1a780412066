"""The gang schedulers that tf-dist works with, by name; it is not among them itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tf_dist.core.model import Document, Job
from tf_dist.core.schedulers.coscheduling import COSCHEDULING
from tf_dist.core.schedulers.kueue import KUEUE
from tf_dist.core.schedulers.model import Scheduler
from tf_dist.core.schedulers.native import NATIVE
from tf_dist.core.schedulers.served import Api
from tf_dist.core.schedulers.volcano import VOLCANO
from tf_dist.core.status import Status

SCHEDULERS: Final[Mapping[str, Scheduler]] = {one.name: one for one in (VOLCANO, COSCHEDULING, KUEUE, NATIVE)}

# Every kind of theirs, by its name with the group.
APIS: Final[Mapping[str, Api]] = {
    api.key: api for one in SCHEDULERS.values() for alternative in one.apis for api in alternative
}


def scheduler_of(job: Job, status: Status) -> Scheduler | None:
    """Who speaks for a job, if that is not tf-dist itself: who gave it its place, else the one it asks for."""
    asked = job.scheduling.gang or status.gang
    return SCHEDULERS.get(asked if status.admission is None else status.admission.by)


def taken_on(job: Job, status: Status, gang: str | None) -> Status:
    """The memory of a job in the hands of a driver with the default ``gang`` (None: it is in somebody else's).

    It is written down, so that everybody who decides about places knows which jobs are not theirs to decide about.
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
