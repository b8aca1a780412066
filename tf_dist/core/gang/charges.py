"""What pods count as in ResourceQuotas, and what the stored quotas say: read as the API server reads them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Final

from tf_dist.core.gang.demand import Overheads, limits, parsed, pod_spec, requests, wanted
from tf_dist.core.gang.resource_quota import Charges, PodCharge, ResourceQuota, Scope
from tf_dist.core.model import Document, Job, ServiceStyle
from tf_dist.core.untyped import items, mapping, mappings

_ONE: Final = Decimal(1)
# Of these a limit counts, too; and a request under its plain name.
_COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")


def pod_charge(spec: Document) -> PodCharge:
    """What a pod counts as."""
    asked = {resource: value for resource, value in requests(spec).items() if resource != "pods" and value}
    limited = {resource: value for resource, value in limits(spec).items() if resource in _COMPUTE and value}
    amounts = {"pods": _ONE, "count/pods": _ONE}
    amounts |= {f"requests.{resource}": value for resource, value in asked.items()}
    amounts |= {resource: value for resource, value in asked.items() if resource in _COMPUTE}
    amounts |= {f"limits.{resource}": value for resource, value in limited.items()}
    return PodCharge(
        amounts=tuple(sorted(amounts.items())),
        terminating=spec.get("activeDeadlineSeconds") is not None,
        best_effort=not any(resource in part for part in (asked, limited) for resource in ("cpu", "memory")),
        priority_class=str(spec.get("priorityClassName") or ""),
    )


def charges(job: Job, overheads: Overheads, default_class: str = "") -> Charges:
    """What a gang counts as. ``default_class``: the priority class of pods that name none."""
    services = {"services": _ONE, "count/services": _ONE}
    each = services if job.services is ServiceStyle.PER_REPLICA else {}
    once = services if job.services is ServiceStyle.PER_JOB else {}
    pods = (pod_charge(pod_spec(spec, overheads)) for spec, _ in wanted(job))
    members = tuple(
        replace(
            pod,
            amounts=tuple(sorted({**dict(pod.amounts), **each}.items())),
            priority_class=pod.priority_class or default_class,
        )
        for pod in pods
    )
    return Charges(members, tuple(once.items()))


def read_quota(document: Document) -> ResourceQuota:
    """A stored ResourceQuota. As long as it has not been counted, the API server lets nothing in."""
    spec, status = mapping(document.get("spec")), mapping(document.get("status"))
    hard = parsed(mapping(status.get("hard") or spec.get("hard")))
    used = parsed(mapping(status.get("used"))) if status.get("hard") else hard
    scopes = [Scope(str(name)) for name in items(spec.get("scopes"))]
    for rule in mappings(mapping(spec.get("scopeSelector")).get("matchExpressions")):
        values = frozenset(map(str, items(rule.get("values"))))
        scopes.append(Scope(str(rule.get("scopeName")), str(rule.get("operator")), values))
    name = str(mapping(document.get("metadata")).get("name") or "")
    return ResourceQuota(name=name, hard=hard, used=used, scopes=tuple(scopes))
