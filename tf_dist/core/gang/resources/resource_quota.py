"""ResourceQuotas of namespaces: the usage of pods, and the remaining quota for admitted gangs.

The API server rejects pods beyond a quota. Therefore a gang starts only if all its pods fit into every quota of its
namespace, in addition to the current usage and to the pods that admitted gangs have not created yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from tf_dist.core.gang.resources.pod_requests import admitted_specs, parse_resources, pod_limits, pod_requests, pod_spec
from tf_dist.core.gang.types import (
    AdmissionConfig,
    Gang,
    GangQuotaUsage,
    PodQuotaUsage,
    ResourceQuota,
    Resources,
    Scope,
)
from tf_dist.core.model.fieldpath import list_items, mapping, mappings
from tf_dist.core.model.job import Document, Job, ServiceStyle
from tf_dist.core.model.quantity import format_quantity

_ONE: Final = Decimal(1)
# For these resources, limits count, too, and requests also count under the plain name.
_COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")


def pod_quota_usage(spec: Document) -> PodQuotaUsage:
    """The usage of a pod in ResourceQuotas."""
    asked = {resource: value for resource, value in pod_requests(spec).items() if resource != "pods" and value}
    limited = {resource: value for resource, value in pod_limits(spec).items() if resource in _COMPUTE and value}
    amounts = {"pods": _ONE, "count/pods": _ONE}
    amounts |= {f"requests.{resource}": value for resource, value in asked.items()}
    amounts |= {resource: value for resource, value in asked.items() if resource in _COMPUTE}
    amounts |= {f"limits.{resource}": value for resource, value in limited.items()}
    return PodQuotaUsage(
        amounts=tuple(sorted(amounts.items())),
        terminating=spec.get("activeDeadlineSeconds") is not None,
        best_effort=not any(resource in part for part in (asked, limited) for resource in ("cpu", "memory")),
        priority_class=str(spec.get("priorityClassName") or ""),
    )


def gang_quota_usage(job: Job, rules: AdmissionConfig) -> GangQuotaUsage:
    """The usage of a gang in ResourceQuotas."""
    services = {"services": _ONE, "count/services": _ONE}
    each = services if job.services is ServiceStyle.PER_REPLICA else {}
    once = services if job.services is ServiceStyle.PER_JOB else {}
    defaults = rules.container_defaults.get(job.key.namespace)
    pods = (pod_quota_usage(pod_spec(spec, rules.runtime_classes, defaults)) for spec, _ in admitted_specs(job))
    members = tuple(
        replace(
            pod,
            amounts=tuple(sorted({**dict(pod.amounts), **each}.items())),
            terminating=pod.terminating or job.run_policy.active_deadline is not None,
            priority_class=pod.priority_class or rules.default_class,
            job_class=job.scheduling.priority_class,
        )
        for pod in pods
    )
    return GangQuotaUsage(members, tuple(once.items()))


def read_resource_quota(document: Document) -> ResourceQuota:
    """A stored ResourceQuota. The API server admits no pods until it has counted the usage."""
    spec, status = mapping(document.get("spec")), mapping(document.get("status"))
    hard = parse_resources(mapping(status.get("hard") or spec.get("hard")))
    used = parse_resources(mapping(status.get("used"))) if status.get("hard") else hard
    scopes = [Scope(str(name)) for name in list_items(spec.get("scopes"))]
    for rule in mappings(mapping(spec.get("scopeSelector")).get("matchExpressions")):
        values = frozenset(map(str, list_items(rule.get("values"))))
        scopes.append(Scope(str(rule.get("scopeName")), str(rule.get("operator")), values))
    name = str(mapping(document.get("metadata")).get("name") or "")
    return ResourceQuota(name=name, hard=hard, used=used, scopes=tuple(scopes))


_NONE: Final = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceQuotaShortage:
    """Why a gang is not within a quota."""

    quota: str
    """The name of the quota."""
    resource: str
    """The resource that is short."""
    needed: Decimal
    """The amount that the gang needs."""
    used: Decimal
    """The amount that is used, or reserved for pods of admitted gangs."""
    hard: Decimal
    """The limit of the quota."""

    @property
    def never(self) -> bool:
        """Whether the gang would not fit even in an empty namespace."""
        return self.needed > self.hard

    def __str__(self) -> str:
        """The message for users."""
        needed, hard = self._text(self.needed), self._text(self.hard)
        if self.never:
            return f"needs {self.resource} {needed}, and ResourceQuota {self.quota} allows no more than {hard}"
        used = self._text(self.used)
        return f"waits for ResourceQuota {self.quota}: {self.resource} {used} of {hard} used, needs {needed}"

    def _text(self, value: Decimal) -> str:
        return format_quantity(value, self.resource.rpartition(".")[2] if "/" not in self.resource else self.resource)


ResourceQuotas = Mapping[str, tuple[ResourceQuota, ...]]
"""The quotas by namespace."""


class ResourceQuotaUsage:
    """The usage of ResourceQuotas by gangs, and the remaining quota."""

    def __init__(self) -> None:
        self._quotas: ResourceQuotas = {}
        self._held: dict[str, dict[str, Gang]] = {}
        self._supposed: list[tuple[str, GangQuotaUsage, tuple[int, ...]]] = []

    def put(self, quotas: ResourceQuotas) -> None:
        """Replace all quotas."""
        self._quotas = quotas

    def hold(self, gang: Gang) -> None:
        """Add or update a gang."""
        if gang.charges is not None and gang.assigned is not None:
            self._held.setdefault(gang.key.namespace, {})[gang.uid] = gang
        elif self._held:
            self.drop(gang)

    def drop(self, gang: Gang) -> None:
        """Remove a gang; an unknown gang is ignored."""
        held = self._held.get(gang.key.namespace)
        if held is not None:
            held.pop(gang.uid, None)
            if not held:
                del self._held[gang.key.namespace]

    def beyond(
        self, gang: Gang, counts: Sequence[int], *, more: bool = False, empty: bool = False
    ) -> ResourceQuotaShortage | None:
        """Why these numbers of pods of a gang do not fit; None if they fit.

        ``more``: the pods are in addition to existing pods. ``empty``: nothing else uses the quotas. If several quotas
        are short, the result names a quota that can never be met first.
        """
        charges = gang.charges
        if charges is None:
            return None
        found: list[ResourceQuotaShortage] = []
        for quota in self._quotas.get(gang.key.namespace, ()):
            need = quota.need(charges, counts, once=not more)
            usage = self._usage(gang, quota) if need and not empty else {}
            for resource, needed in need.items():
                used, hard = usage.get(resource, _NONE), quota.hard[resource]
                if needed > hard - used:
                    found.append(
                        ResourceQuotaShortage(quota=quota.name, resource=resource, needed=needed, used=used, hard=hard)
                    )
        return min(found, key=lambda one: (not one.never, one.quota, one.resource), default=None)

    def _usage(self, gang: Gang, quota: ResourceQuota) -> dict[str, Decimal]:
        """Usage of existing and future pods. The API server's count may lag behind, so the larger count is used."""
        counted, ours = dict(quota.used), dict[str, Decimal]()
        for other in self._held.get(gang.key.namespace, {}).values():
            charges, sizes = other.charges, other.assigned.sizes if other.assigned else {}
            if charges is None:
                continue
            wanted = [max(0, sizes.get(one.type, one.count) - other.done.get(one.type, 0)) for one in other.members]
            created = [other.created.get(member.type, 0) for member in other.members]
            missing = [
                many if quota.counts_by_job_alone(pod) else max(0, many - there)
                for pod, many, there in zip(charges.members, wanted, created, strict=True)
            ]
            _add(counted, quota.need(charges, missing, once=not any(created)))
            _add(ours, quota.need(charges, wanted))
        for namespace, charges, counts in self._supposed:
            if namespace == gang.key.namespace:
                _add(counted, quota.need(charges, counts, once=False))
                _add(ours, quota.need(charges, counts, once=False))
        return {r: max(counted.get(r, _NONE), ours.get(r, _NONE)) for r in {*counted, *ours}}

    def suppose(self, gang: Gang, counts: tuple[int, ...]) -> None:
        """Assume these further pods of a gang, until ``forget``."""
        if gang.charges is not None:
            self._supposed.append((gang.key.namespace, gang.charges, counts))

    def forget(self) -> None:
        """Drop the assumed pods."""
        self._supposed.clear()


def _add(total: dict[str, Decimal], part: Resources) -> None:
    for resource, value in part.items():
        total[resource] = total.get(resource, _NONE) + value
