"""What a driver may be told."""

from __future__ import annotations

from dataclasses import dataclass

from tf_dist.core import names
from tf_dist.core.gang_scheduler import GangScheduler
from tf_dist.driver.intents import ROOM
from tf_dist.driver.lease import LeaseRef
from tf_dist.driver.refs import JobRef


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """Settings of a driver.

    ``namespace``: drive the jobs of this one only (None: of all). ``only``: drive this job and no other.
    ``volcano_jobs``: drive Volcano's Jobs, too; not where Volcano's own controller does. ``workers``: how many jobs are
    acted for at a time. ``resync``: seconds between two looks at every job, though nothing is known to have changed.
    ``component``: the name in the events it writes. ``admissions``: the Lease in which places are written down before
    they are given away, the same for all drivers that may succeed each other (None: this one has no successor); while
    it decides for all drivers of the cluster it is theirs (``arbiter.admissions_lease`` of ``system_namespace``).
    ``intents``: how many jobs are named there at a time.
    ``arbitrates``: see the jobs of all namespaces, if that may be, so that it can decide about places for all.
    ``gang_scheduler``: who decides about the gangs of jobs that name nobody. ``other_schedulers``: whether there can be
    others than tf-dist itself; where not, whom a job names does not matter.
    """

    namespace: str | None = None
    only: JobRef | None = None
    volcano_jobs: bool = True
    workers: int = 4
    resync: float = 300.0
    component: str = "tf-dist"
    admissions: LeaseRef | None = None
    intents: int = ROOM
    arbitrates: bool = False
    system_namespace: str = names.SYSTEM_NAMESPACE
    gang_scheduler: GangScheduler = GangScheduler.BUILTIN
    other_schedulers: bool = True

    @property
    def default_gang(self) -> str:
        """``gang_scheduler`` as a job's memory has it: "" for tf-dist itself."""
        return "" if self.gang_scheduler is GangScheduler.BUILTIN else self.gang_scheduler.value
