"""What a driver may be told."""

from __future__ import annotations

from dataclasses import dataclass

from tf_dist.driver.lease import LeaseRef
from tf_dist.driver.refs import JobRef


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """Settings of a driver.

    ``namespace``: drive the jobs of this one only (None: of all). ``only``: drive this job and no other.
    ``volcano_jobs``: drive Volcano's Jobs, too; not where Volcano's own controller does. ``workers``: how many jobs are
    acted for at a time. ``resync``: seconds between two looks at every job, though nothing is known to have changed.
    ``component``: the name in the events it writes. ``admissions``: the Lease in which places are written down before
    they are given away, the same for all drivers that may succeed each other (None: this one has no successor).
    """

    namespace: str | None = None
    only: JobRef | None = None
    volcano_jobs: bool = True
    workers: int = 4
    resync: float = 300.0
    component: str = "tf-dist"
    admissions: LeaseRef | None = None
