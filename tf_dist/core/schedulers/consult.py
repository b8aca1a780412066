"""One pass with another gang scheduler: its verdict in place of our own, its objects made and taken away, its pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from tf_dist.core.actions import Action, Create, Delete
from tf_dist.core.facts import Facts, gather
from tf_dist.core.gang.model import Verdict, Wait
from tf_dist.core.model import Job, ReplicaId
from tf_dist.core.observed import Observed, PodView
from tf_dist.core.schedulers.model import QUEUE_REFUSED, SCHEDULER_MISSING, Body, Scheduler
from tf_dist.core.schedulers.served import Served
from tf_dist.core.schedulers.table import APIS, scheduler_of
from tf_dist.core.situation import Situation
from tf_dist.core.sizes import granted
from tf_dist.core.status import LIVE, Status
from tf_dist.core.times import round_time

# Seconds until it is asked again whether the scheduler, or what it lacks there, has come; nobody rings when it does.
_LOOK_AGAIN: Final = 30.0
_SOON: Final = 1.0


def consulted(job: Job, status: Status, observed: Observed) -> Observed:
    """What is seen, with the verdict of the job's gang scheduler; the same where that is tf-dist itself."""
    scheduler = scheduler_of(job, status)
    return observed if scheduler is None else replace(observed, verdict=_verdict(scheduler, job, status, observed))


def _verdict(scheduler: Scheduler, job: Job, status: Status, observed: Observed) -> Verdict | None:
    served = observed.served
    if status.phase not in LIVE or served is None:
        return None
    if served.missing:
        waits = Wait(reason=SCHEDULER_MISSING, message=served.missing)
        return waits if status.admission is None else None
    sized = granted(job, status)
    return scheduler.verdict(Situation(sized, status, gather(sized, status, observed.pods), observed, job), served)


class Consultation:
    """What follows for a job from who speaks for it; for a job of tf-dist's own nothing but that a place is enough."""

    def __init__(self, job: Job, status: Status, facts: Facts, observed: Observed) -> None:
        self._scheduler = scheduler_of(job, status)
        self._s = Situation(job, status, facts, observed, job)
        self._served = observed.served if observed.served is not None and not observed.served.missing else None

    def takes_pods(self) -> bool:
        """Whether pods may be created now."""
        if self._scheduler is None:
            return self._s.status.admission is not None
        return self._served is not None and self._scheduler.takes_pods(self._s, self._served)

    def decorate(self, replica: ReplicaId, pod: Body) -> None:
        """Put on a pod what its gang scheduler knows it by."""
        if self._scheduler is not None and self._served is not None:
            self._scheduler.decorate(self._s, self._served, replica, pod)

    def objects(self) -> Iterator[Action]:
        """Create, change and delete the objects of gang schedulers, so that they say what should be."""
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
        """Whether pods that it speaks for may still run: what they hold is not free before."""
        if self._scheduler is not None and self._served is None:
            return True  # what is wanted is not known
        facts = self._s.facts
        return self._lives(facts.stale) or (self._s.status.phase not in LIVE and self._lives(facts.current.values()))

    @staticmethod
    def _lives(pods: Iterable[PodView]) -> bool:
        return any(not pod.finished for pod in pods)


def planned(job: Job) -> Consultation:
    """What will follow for a job that is still to be submitted, where its gang scheduler is there and up to date."""
    scheduler, status = scheduler_of(job, Status()), Status()
    apis = scheduler.apis[0] if scheduler is not None else ()
    served = Served(versions={api.key: api.versions[0] for api in apis}, supposed=True)
    return Consultation(job, status, gather(job, status, ()), Observed(now=0.0, served=served))


def look_again_at(job: Job, status: Status, observed: Observed) -> float | None:
    """When to look again whether the job can come before its gang scheduler; None if it has, or nothing waits."""
    if scheduler_of(job, status) is None:
        return None
    if observed.served is None:
        return round_time(observed.now + _SOON)
    verdict = observed.verdict
    refused = isinstance(verdict, Wait) and verdict.reason == QUEUE_REFUSED
    waits = status.phase in LIVE and (observed.served.missing or refused)
    return round_time(observed.now + _LOOK_AGAIN) if waits else None
