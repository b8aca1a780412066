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
        """The job that an object belongs to; None if it belongs to none."""
        if not names.owner_key(owned):
            return None
        metadata = owned["metadata"]
        owner = next(owner for owner in metadata["ownerReferences"] if owner.get("controller"))
        kind = _BY_KIND.get(owner.get("kind"))
        return cls(kind, metadata["namespace"], owner["name"]) if kind else None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


CLUSTER_DOMAIN_VARIABLE: Final = "CUSTOM_CLUSTER_DOMAIN"  # the training operator's own


def cluster_domain(environ: Mapping[str, str] = os.environ) -> str:
    """The cluster's domain from the environment, or ""."""
    return environ.get(CLUSTER_DOMAIN_VARIABLE, "").strip(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings of a controller."""

    namespace: str | None = None  # its scope: drive the jobs of this one only (None: of the cluster)
    volcano_jobs: bool = True  # follow and drive Volcano's Jobs, too; not where Volcano's own controller does
    workers: int = 4  # how many jobs are acted for at a time
    resync: float = 3600.0  # seconds between two looks at every job, though nothing is known to have changed
    resync_waiting: float = 300.0  # and at one that waits for admission, which says what is free
    component: str = "tf-dist"  # the name in the events it writes
    gang_scheduler: GangScheduler = GangScheduler.BUILTIN  # decides about the gangs of jobs that name no scheduler
    other_schedulers: bool = True  # whether there can be others than tf-dist; where not, whom a job names is ignored
    cluster_domain: str = ""  # what addresses in the TF_CONFIG of TFJobs v1 end in ("": in ``svc``)
    disruption_budgets: bool = False  # gangs of v1alpha1 have a PodDisruptionBudget each

    @property
    def job_kinds(self) -> tuple[Resource, ...]:
        """The kinds of jobs that are followed."""
        return JOB_KINDS if self.volcano_jobs else (TFJOBS,)

    @property
    def owned_kinds(self) -> tuple[Resource, ...]:
        """The kinds of objects, other than pods, that are created for jobs."""
        volcano = (CONFIG_MAPS, NETWORK_POLICIES) if self.volcano_jobs else ()  # for plugins
        return (SERVICES, *volcano, *((POD_DISRUPTION_BUDGETS,) if self.disruption_budgets else ()))

    @property
    def default_gang(self) -> str:
        """The gang scheduler of jobs that name none, as their status has it: "" for tf-dist itself."""
        return "" if self.gang_scheduler is GangScheduler.BUILTIN else self.gang_scheduler.value


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """The context that all parts of a controller share."""

    cluster: Cluster
    settings: ControllerSettings = field(default_factory=ControllerSettings)
    clock: Callable[[], float] = time.time  # epoch seconds, for timestamps that are written or compared with such
    monotonic: Callable[[], float] = time.monotonic  # seconds that only go forward, for every pause
    recorder: MetricsRecorder = field(default_factory=MetricsRecorder)
    runtime: ThreadRuntime = SYSTEM_RUNTIME  # threads, and what they wait with
