"""Settings of a driver, what its parts share, references of jobs, and the kinds of jobs and of the objects they own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tf_dist.cluster.api import (
    CONFIG_MAPS,
    JOB_KINDS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    SERVICES,
    Cluster,
    Object,
    Resource,
)
from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime
from tf_dist.controller.leases.lease import LeaseRef
from tf_dist.controller.observability.metrics_recorder import MetricsRecorder
from tf_dist.core.api import names
from tf_dist.core.api.gang_scheduler import GangScheduler
from tf_dist.core.dialects.kubeflow_extensions.accelerators import Accelerators

_BY_KIND: Final = {kind.kind: kind for kind in JOB_KINDS}


class JobRef(NamedTuple):
    """Where a job is: its resource, namespace and name."""

    resource: Resource
    namespace: str
    name: str

    @classmethod
    def of(cls, resource: Resource, stored: Object) -> JobRef:
        """The reference of a stored job."""
        return cls(resource, stored["metadata"]["namespace"], stored["metadata"]["name"])

    @classmethod
    def of_owner(cls, owned: Object) -> JobRef | None:
        """The job that an object belongs to; None if it belongs to none."""
        if not names.owner_key(owned):
            return None
        metadata = owned["metadata"]
        owner = next(owner for owner in metadata["ownerReferences"] if owner.get("controller"))
        kind = _BY_KIND.get(owner.get("kind"))
        return cls(kind, metadata["namespace"], owner["name"]) if kind else None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


CLUSTER_DOMAIN_VARIABLE: Final = "CUSTOM_CLUSTER_DOMAIN"
"""The training operator's own variable."""


def cluster_domain(environ: Mapping[str, str] = os.environ) -> str:
    """What the environment says of the cluster's domain, "" for nothing."""
    return environ.get(CLUSTER_DOMAIN_VARIABLE, "").strip(".")


# An object's annotations may take 256 KiB together.
MAX_PENDING_ADMISSIONS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """Settings of a driver.

    ``namespace``: drive the jobs of this one only (None: of all). ``only``: drive this job and no other.
    ``volcano_jobs``: drive Volcano's Jobs, too; not where Volcano's own controller does. ``workers``: how many jobs are
    acted for at a time. ``resync``: seconds between two looks at every job, though nothing is known to have changed;
    ``resync_waiting``: at one that waits for its place, which says what is free now and how many come before it.
    ``component``: the name in the events it writes. ``admissions``: the Lease in which places are written down before
    they are given away, the same for all drivers that may succeed each other (None: this one has no successor); while
    it decides for all drivers of the cluster it is theirs (``pending_admissions_lease`` of ``system_namespace``).
    ``max_pending_admissions``: how many jobs are named there at a time.
    ``can_lead_admission``: see the jobs of all namespaces, if that may be, so that it can decide about places for all.
    ``gang_scheduler``: what decides about the gangs of jobs that name no scheduler. ``other_schedulers``: whether there
    can be others than tf-dist itself; where not, whom a job names does not matter. ``cluster_domain``: what addresses
    in the TF_CONFIG of TFJobs v1 end in ("": in ``svc``). ``accelerators``: what containers of TFJobs v1alpha1 get with
    the resources that they ask for. ``disruption_budgets``: their gangs have a PodDisruptionBudget each.
    """

    namespace: str | None = None
    only: JobRef | None = None
    volcano_jobs: bool = True
    workers: int = 4
    resync: float = 3600.0
    resync_waiting: float = 300.0
    component: str = "tf-dist"
    admissions: LeaseRef | None = None
    max_pending_admissions: int = MAX_PENDING_ADMISSIONS
    can_lead_admission: bool = False
    system_namespace: str = names.SYSTEM_NAMESPACE
    gang_scheduler: GangScheduler = GangScheduler.BUILTIN
    other_schedulers: bool = True
    cluster_domain: str = ""
    accelerators: Accelerators = field(default_factory=dict)
    disruption_budgets: bool = False

    @property
    def owned_kinds(self) -> tuple[Resource, ...]:
        """What is made for jobs beside pods. Only Volcano's plugins make more than services."""
        volcano = (CONFIG_MAPS, NETWORK_POLICIES) if self.volcano_jobs else ()
        return (SERVICES, *volcano, *((POD_DISRUPTION_BUDGETS,) if self.disruption_budgets else ()))

    @property
    def default_gang(self) -> str:
        """``gang_scheduler`` as a job's memory has it: "" for tf-dist itself."""
        return "" if self.gang_scheduler is GangScheduler.BUILTIN else self.gang_scheduler.value


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverContext:
    """What all parts of a driver share.

    ``clock``: epoch seconds, for timestamps that are written or compared with written ones; ``monotonic``: seconds that
    only go forward, for every pause; ``runtime``: threads, and what they wait with.
    """

    cluster: Cluster
    settings: DriverSettings = field(default_factory=DriverSettings)
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    recorder: MetricsRecorder = field(default_factory=MetricsRecorder)
    runtime: ThreadRuntime = SYSTEM_RUNTIME
