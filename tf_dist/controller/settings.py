"""Settings of a controller, the shared context of its parts, and references of jobs."""

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
    TFJOBS,
    Cluster,
    Object,
    Resource,
)
from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime
from tf_dist.controller.observability.metrics_interface import MetricsRecorder
from tf_dist.core.model import names
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.errors import ClusterError

_BY_KIND: Final = {kind.kind: kind for kind in JOB_KINDS}


class JobRef(NamedTuple):
    """The reference of a job: its resource, namespace and name."""

    resource: Resource
    namespace: str
    name: str

    @classmethod
    def of(cls, resource: Resource, stored: Object) -> JobRef:
        """The reference of a stored job."""
        return cls(resource, stored["metadata"]["namespace"], stored["metadata"]["name"])

    @classmethod
    def of_owner(cls, owned: Object) -> JobRef | None:
        """The job that owns an object; None if no job owns it."""
        if not names.owner_key(owned):
            return None
        metadata = owned["metadata"]
        owner = next(owner for owner in metadata["ownerReferences"] if owner.get("controller"))
        kind = _BY_KIND.get(owner.get("kind"))
        return cls(kind, metadata["namespace"], owner["name"]) if kind else None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


CLUSTER_DOMAIN_VARIABLE: Final = "CUSTOM_CLUSTER_DOMAIN"  # a variable of the training operator


def cluster_domain(environ: Mapping[str, str] = os.environ) -> str:
    """The cluster's domain from the environment, or "". Raises ClusterError for a value that is not a domain."""
    found = environ.get(CLUSTER_DOMAIN_VARIABLE, "").strip(".")
    if found and not names.is_dns_subdomain(found.lower()):
        what = f"{found!r} in ${CLUSTER_DOMAIN_VARIABLE} is not a domain"
        raise ClusterError(what, hint="unset it, or write cluster.local")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings of a controller."""

    namespace: str | None = None  # the scope: only jobs of this namespace (None: of the cluster)
    volcano_jobs: bool = True  # reconcile Volcano Jobs, too; False where Volcano's own controller reconciles them
    workers: int = 4  # the number of jobs that are reconciled at the same time
    resync: float = 3600.0  # seconds between two routine checks of a job
    resync_waiting: float = 300.0  # the same for a job that waits for admission, whose message shows free capacity
    component: str = "tf-dist"  # the name in its Events
    gang_scheduler: GangScheduler = GangScheduler.BUILTIN  # decides about the gangs of jobs that name no scheduler
    other_schedulers: bool = True  # whether other gang schedulers can exist; if not, jobs' choices are ignored
    cluster_domain: str = ""  # the suffix of addresses in the TF_CONFIG of TFJobs v1 ("": they end in ``svc``)
    disruption_budgets: bool = False  # create a PodDisruptionBudget for each gang of a v1alpha1 job

    @property
    def job_kinds(self) -> tuple[Resource, ...]:
        """The kinds of jobs that are watched."""
        return JOB_KINDS if self.volcano_jobs else (TFJOBS,)

    @property
    def owned_kinds(self) -> tuple[Resource, ...]:
        """The kinds of objects, other than pods, that are created for jobs."""
        volcano = (CONFIG_MAPS, NETWORK_POLICIES) if self.volcano_jobs else ()  # for plugins
        return (SERVICES, *volcano, *((POD_DISRUPTION_BUDGETS,) if self.disruption_budgets else ()))

    @property
    def default_gang(self) -> str:
        """The gang scheduler of jobs that name none, as in their status: "" for tf-dist itself."""
        return "" if self.gang_scheduler is GangScheduler.BUILTIN else self.gang_scheduler.value


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """The context that all parts of a controller share."""

    cluster: Cluster
    settings: ControllerSettings = field(default_factory=ControllerSettings)
    clock: Callable[[], float] = time.time  # epoch seconds, for stored times and comparisons with them
    monotonic: Callable[[], float] = time.monotonic  # seconds of a monotonic clock, for all waits
    recorder: MetricsRecorder = field(default_factory=MetricsRecorder)
    runtime: ThreadRuntime = SYSTEM_RUNTIME  # threads and their locks and events
