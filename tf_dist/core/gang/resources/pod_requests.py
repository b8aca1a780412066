"""Resource requests of pods, added up as kube-scheduler does, and the pod sets of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

from tf_dist.core.dialects.volcano_annotations import TASK_PRIORITY
from tf_dist.core.gang.placement.anti_affinity import Exclusions, exclusions
from tf_dist.core.gang.types import (
    NO_ADMISSION_CONFIG,
    AdmissionConfig,
    ContainerDefaults,
    PodSet,
    PriorityClass,
    Resources,
    RuntimeClasses,
)
from tf_dist.core.model import names
from tf_dist.core.model.assignment import replica_bounds, start_counts
from tf_dist.core.model.fieldpath import mapping, mappings, number, shared, text
from tf_dist.core.model.job import Dialect, Document, Job, ReplicaSpec
from tf_dist.core.model.quantity import parse_quantity

_NONE: Final = Decimal(0)


def pod_requests(pod_spec: Document) -> dict[str, Decimal]:
    """Requests of a pod: the sum of its containers, or the maximum during its start; its overhead; and one pod.

    Requests of the pod (``spec.resources``) replace those of its containers. Without a request, the pod's limit counts.
    """
    found = _together(pod_spec, _requested)
    whole = mapping(pod_spec.get("resources"))
    found |= {r: v for r, v in _of_pod(whole.get("limits")).items() if r not in found}
    found |= _of_pod(whole.get("requests"))
    return {**add_resources((found, parse_resources(pod_spec.get("overhead")))), "pods": Decimal(1)}


def pod_limits(pod_spec: Document) -> dict[str, Decimal]:
    """Limits of a pod, added up like requests. The overhead is added to resources with a limit."""
    found = _together(pod_spec, lambda container: parse_resources(mapping(container.get("resources")).get("limits")))
    found |= _of_pod(mapping(pod_spec.get("resources")).get("limits"))
    overhead = parse_resources(pod_spec.get("overhead"))
    return {resource: value + overhead.get(resource, _NONE) for resource, value in found.items()}


def _together(pod_spec: Document, amounts: Callable[[Mapping[str, Any]], dict[str, Decimal]]) -> dict[str, Decimal]:
    """The amounts of all containers. An init container runs together with the sidecars before it."""
    sidecars: dict[str, Decimal] = {}
    starting: dict[str, Decimal] = {}
    for container in mappings(pod_spec.get("initContainers")):
        beside = add_resources((sidecars, amounts(container)))
        if container.get("restartPolicy") == "Always":
            sidecars = beside
        starting = _most(starting, beside)
    running = add_resources((sidecars, *map(amounts, mappings(pod_spec.get("containers")))))
    return _most(running, starting)


def _of_pod(stated: object) -> dict[str, Decimal]:
    """The resources for which a pod as a whole may have requests."""
    return {r: v for r, v in parse_resources(stated).items() if r in ("cpu", "memory") or r.startswith("hugepages-")}


def _most(one: Resources, other: Resources) -> dict[str, Decimal]:
    return {resource: max(one.get(resource, _NONE), other.get(resource, _NONE)) for resource in {**one, **other}}


def _requested(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = mapping(container.get("resources"))
    # The API server fills in a missing request from the limit.
    return parse_resources({**mapping(resources.get("limits")), **mapping(resources.get("requests"))})


def parse_resources(stated: object) -> dict[str, Decimal]:
    """Quantities as numbers. Invalid quantities count as 0, because objects of others must not stop admission."""
    found: dict[str, Decimal] = {}
    for resource, value in mapping(stated).items():
        with suppress(ValueError):
            found[str(resource)] = parse_quantity(value)
    return found


def add_resources(parts: Iterable[Resources]) -> dict[str, Decimal]:
    """The sum of resource lists."""
    total: dict[str, Decimal] = {}
    for part in parts:
        for resource, value in part.items():
            total[resource] = total.get(resource, _NONE) + value
    return total


def subtract_resources(whole: Resources, part: Resources) -> dict[str, Decimal]:
    """The difference of two resource lists, which may be negative."""
    return {resource: whole.get(resource, _NONE) - part.get(resource, _NONE) for resource in {*whole, *part}}


def pod_sets(job: Job, config: AdmissionConfig = NO_ADMISSION_CONFIG) -> tuple[PodSet, ...]:
    """The requested pods of a job by type, with their minimums."""
    priorities = pod_priorities(job, config.priorities)
    start = start_counts(job, priorities)
    defaults = config.container_defaults.get(job.key.namespace)
    found = []
    for spec, (least, most) in admitted_specs(job):
        body = pod_spec(spec, config.runtime_classes, defaults)
        found.append(
            PodSet(
                type=spec.type,
                count=spec.replicas,
                requests=pod_requests(body),
                constraints={key: body[key] for key in ("nodeSelector", "affinity", "tolerations") if key in body},
                least=least,
                most=most,
                start=start[spec.type],
                priority=priorities[spec.type],
            )
        )
    return shared(tuple(found))


def pod_priorities(job: Job, classes: Mapping[str, PriorityClass]) -> dict[str, int]:
    """The priority of each type's pods within their gang, as in Volcano's scheduler (``NewTaskInfo``, ``priority``).

    The annotation ``volcano.sh/task-priority`` has precedence over the pod's own priority. It is ignored unless it is a
    32-bit number.
    """
    found: dict[str, int] = {}
    for spec in job.replica_specs:
        body = spec.pod_spec
        named = classes.get(text(body.get("priorityClassName")) or job.scheduling.priority_class)
        found[spec.type] = named.value if named is not None else number(body.get("priority")) or 0
        annotations = mapping(mapping(spec.template.get("metadata")).get("annotations"))
        with suppress(ValueError):
            said = int(text(annotations.get(TASK_PRIORITY)))
            if -(2**31) <= said < 2**31:
                found[spec.type] = said
    return found


def admitted_specs(job: Job) -> list[tuple[ReplicaSpec, tuple[int, int]]]:
    """The replica specs of ``pod_sets`` that may have pods, with their minimum and maximum."""
    sizes = replica_bounds(job)
    return [(spec, sizes[spec.type]) for spec in job.replica_specs if sizes[spec.type][1] > 0]


def pod_spec(spec: ReplicaSpec, runtime_classes: RuntimeClasses, defaults: ContainerDefaults | None = None) -> Document:
    """The pod spec of a template with the additions of the API server: of its runtime class and of LimitRanges."""
    body = spec.pod_spec if defaults is None else with_container_defaults(spec.pod_spec, defaults)
    runtime = runtime_classes.get(str(body.get("runtimeClassName") or ""))
    if runtime is None:
        return body
    more: dict[str, Any] = {}
    if runtime.overhead and not body.get("overhead"):
        more["overhead"] = runtime.overhead
    if runtime.node_selector:
        more["nodeSelector"] = {**mapping(body.get("nodeSelector")), **runtime.node_selector}
    if runtime.tolerations:
        more["tolerations"] = [*mappings(body.get("tolerations")), *runtime.tolerations]
    return {**body, **more}


def with_container_defaults(pod_spec: Document, defaults: ContainerDefaults) -> Document:
    """A pod spec with the defaults of LimitRanges in its containers, as the API server adds them.

    A missing request defaults to the container's own limit before LimitRanges are applied.
    """

    def filled(container: Mapping[str, Any]) -> Mapping[str, Any]:
        resources = mapping(container.get("resources"))
        limits = mapping(resources.get("limits"))
        requests = {**defaults.requests, **limits, **mapping(resources.get("requests"))}
        both = {"limits": {**defaults.limits, **limits}, "requests": requests}
        return {**container, "resources": {**resources, **{key: value for key, value in both.items() if value}}}

    fields = [key for key in ("initContainers", "containers") if key in pod_spec]
    return {**pod_spec, **{key: [filled(one) for one in pod_spec[key] or ()] for key in fields}}


def gang_exclusions(job: Job) -> Exclusions:
    """The exclusions between the pods of ``pod_sets`` and other pods."""
    stated = []
    for spec, (_, most) in admitted_specs(job):
        body = spec.pod_spec
        if body.get("hostNetwork") and job.dialect is Dialect.TFJOB_V1:
            # The pod builder adds this port. On the host's network, it is a port of the node.
            body = {**body, "containers": [*(body.get("containers") or ()), {"ports": [{"containerPort": spec.port}]}]}
        labels = (spec.template.get("metadata") or {}).get("labels") or {}
        stated.append((body, {**labels, **names.replica_labels(job, spec, 0)}, most))
    return exclusions(stated, job.key.namespace)
