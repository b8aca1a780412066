"""What pods ask of a node: requests, as the scheduler adds them up, and the nodes they may go to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

from tf_dist.core import names
from tf_dist.core.gang.exclusive import Exclusions, exclusions
from tf_dist.core.gang.model import Member, Resources
from tf_dist.core.model import Dialect, Document, Job, ReplicaSpec
from tf_dist.core.quantity import parse_quantity
from tf_dist.core.sizes import bounds
from tf_dist.core.untyped import mapping, mappings

_ONE_POD: Final = {"pods": Decimal(1)}
_NONE: Final = Decimal(0)
_CONSTRAINTS: Final = ("nodeSelector", "affinity", "tolerations")


def requests(pod_spec: Document) -> dict[str, Decimal]:
    """What a pod requests: its containers together, or the most that starting it takes; its overhead; and one pod.

    An init container runs beside the sidecars (init containers that go on) started before it.
    """
    sidecars: dict[str, Decimal] = {}
    starting: dict[str, Decimal] = {}
    for container in mappings(pod_spec.get("initContainers")):
        beside = added((sidecars, _container(container)))
        if container.get("restartPolicy") == "Always":
            sidecars = beside
        starting = _most(starting, beside)
    running = added((sidecars, *map(_container, mappings(pod_spec.get("containers")))))
    return {**added((_most(running, starting), parsed(pod_spec.get("overhead")))), **_ONE_POD}


def _most(one: Resources, other: Resources) -> dict[str, Decimal]:
    return {resource: max(one.get(resource, _NONE), other.get(resource, _NONE)) for resource in {**one, **other}}


def _container(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = mapping(container.get("resources"))
    # The API server fills in a missing request from the limit.
    return parsed({**mapping(resources.get("limits")), **mapping(resources.get("requests"))})


def parsed(stated: object) -> dict[str, Decimal]:
    """Quantities as numbers; one that cannot be read counts as nothing: what others wrote must not stop admission."""
    found: dict[str, Decimal] = {}
    for resource, value in mapping(stated).items():
        with suppress(ValueError):
            found[str(resource)] = parse_quantity(value)
    return found


def added(parts: Iterable[Resources]) -> dict[str, Decimal]:
    """The sum of resource lists."""
    total: dict[str, Decimal] = {}
    for part in parts:
        for resource, value in part.items():
            total[resource] = total.get(resource, _NONE) + value
    return total


def subtracted(whole: Resources, part: Resources) -> dict[str, Decimal]:
    """``whole`` less ``part``; may go below zero."""
    return {resource: whole.get(resource, _NONE) - part.get(resource, _NONE) for resource in {*whole, *part}}


def member(spec: ReplicaSpec, least: int | None = None, most: int | None = None) -> Member:
    """The replicas of a spec, as admission sees them."""
    body = spec.template.get("spec") or {}
    return Member(
        type=spec.type,
        count=spec.replicas,
        requests=requests(body),
        constraints={key: body[key] for key in _CONSTRAINTS if key in body},
        least=least,
        most=most,
    )


def members(job: Job) -> tuple[Member, ...]:
    """The pods a job wants, by type, and with how many it may do."""
    limits = bounds(job)
    return tuple(member(spec, *limits[spec.type]) for spec in job.replica_specs if limits[spec.type][1] > 0)


def excluded(job: Job) -> Exclusions:
    """By what the pods of ``members`` exclude others from their nodes."""
    limits = bounds(job)
    wanted = [spec for spec in job.replica_specs if limits[spec.type][1] > 0]
    return exclusions(
        [(_with_port(job, spec), _labels(job, spec), limits[spec.type][1]) for spec in wanted], job.key.namespace
    )


def _with_port(job: Job, spec: ReplicaSpec) -> Document:
    """The pod spec with the port that ``render`` adds; on the host's network that is a port of the node."""
    body: Document = spec.template.get("spec") or {}
    if not body.get("hostNetwork") or job.dialect is not Dialect.TFJOB_V1:
        return body
    return {**body, "containers": [*(body.get("containers") or ()), {"ports": [{"containerPort": spec.port}]}]}


def _labels(job: Job, spec: ReplicaSpec) -> dict[str, str]:
    return {**((spec.template.get("metadata") or {}).get("labels") or {}), **names.replica_labels(job, spec, 0)}
