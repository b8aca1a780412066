"""Validation of pod templates.

Errors that the API server would report for the first pod are reported when the file is read. ``pod_rules`` has the
types and rules of Kubernetes' objects. This module checks relations: references by name, ports and paths that are used
twice, and amounts. An unknown key is probably a misspelling if it resembles a known key; otherwise it is probably
newer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, ValidationError

from tf_dist.core.dialects.common_schema import MAX_CONTAINERS, MAX_NAME, SchemaModel, container_names
from tf_dist.core.dialects.field_errors import (
    MISSING,
    FieldErrors,
    check_quantity,
    read_quantity,
    report_schema_errors,
)
from tf_dist.core.dialects.pod_rules import check_typed
from tf_dist.core.model.fieldpath import FieldPath, list_items, mapping, mappings, nearest_word, text, value_at
from tf_dist.core.model.names import is_label_key
from tf_dist.core.openapi.kubernetes_types import fields_of

# -- stored templates: only the parts that pod creation and admission read are checked --

_Quantities = dict[str, Annotated[Any, AfterValidator(read_quantity)]]
_Items = list[dict[str, Any]]


class _Amounts(SchemaModel):
    limits: _Quantities | None = None
    requests: _Quantities | None = None


class _Container(SchemaModel):
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    resources: _Amounts | None = None
    env: _Items | None = None
    ports: _Items | None = None
    volume_mounts: _Items | None = None


class _PodSpec(SchemaModel):
    containers: Annotated[list[_Container], Field(max_length=MAX_CONTAINERS)] | None = None
    init_containers: list[_Container] | None = None
    volumes: _Items | None = None
    priority_class_name: str | None = None
    resources: _Amounts | None = None
    overhead: _Quantities | None = None


class _Metadata(SchemaModel):
    labels: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None


class _Frame(SchemaModel):
    metadata: _Metadata | None = None
    spec: _PodSpec | None = None


def check_frame(template: object, loc: FieldPath, out: FieldErrors) -> None:
    """Check a stored template in outline."""
    try:
        _Frame.model_validate(template, extra="ignore")
    except ValidationError as error:
        report_schema_errors(error, _Frame, out, loc)


# -- templates in files --

DEFAULT_GRACE_SECONDS: Final = 30
"""The time in seconds that a pod has to end."""


def check_template(
    template: object, loc: FieldPath, out: FieldErrors, *, replicas: int = 1, containers_optional: bool = False
) -> None:
    """Check a raw template. ``containers_optional``: tf-dist adds the container (v1alpha1's default server)."""
    if isinstance(template, Mapping) and not containers_optional:
        require_container(template, loc, out)
    check_typed(template, "PodTemplateSpec", loc, out)
    spec = mapping(value_at(template, "spec"))
    check_spec(spec, (*loc, "spec"), out)
    _advise_host_network(spec, (*loc, "spec"), replicas, out)


def require_container(template: object, loc: FieldPath, out: FieldErrors, *, named: str = "") -> None:
    """Add an error if the template has no container, or no container with the name ``named``."""
    spec = value_at(template, "spec")
    if spec is None:
        misplaced = "containers" in mapping(template)
        hint = (
            "move containers (and the keys next to it) under spec"
            if misplaced
            else "a pod template has spec.containers"
        )
        out.error((*loc, "spec"), MISSING, hint)
        return
    names, place = container_names(template), (*loc, "spec", "containers")
    if isinstance(spec, Mapping) and not spec.get("containers"):
        out.error(place, "at least one container is required")
    elif named and names and named not in names and None not in names:
        hint = f"rename {names[0]!r} to {named!r}" if len(names) == 1 else "give the container that trains this name"
        out.error(place, f"no container named {named!r}", hint)


def check_spec(spec: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    """Check relations between the parts of a pod's spec. Values of a wrong type are ignored."""
    read_quantities(spec.get("overhead"), (*loc, "overhead"), out)
    _check_pod_resources(spec, loc, out)
    if len(list_items(spec.get("containers"))) > MAX_CONTAINERS:
        out.error((*loc, "containers"), f"more than {MAX_CONTAINERS} containers")
    _check_containers(spec, loc, _check_volumes(spec, loc, out), out)
    _check_host_ports(spec, loc, out)
    _check_names(_mappings(spec, loc, "schedulingGates"), "gate", out)
    _check_names(_mappings(spec, loc, "resourceClaims"), "claim", out)
    _check_spread(_mappings(spec, loc, "topologySpreadConstraints"), out)
    if spec.get("dnsPolicy") == "None" and not value_at(spec, "dnsConfig", "nameservers"):
        out.error((*loc, "dnsConfig", "nameservers"), MISSING, "dnsPolicy: None needs at least one")
    if spec.get("hostPID") is True and spec.get("shareProcessNamespace") is True:
        out.error((*loc, "shareProcessNamespace"), "cannot be true where hostPID is", "remove one of them")
    for field in ("hostPID", "hostIPC"):
        if spec.get("hostUsers") is False and spec.get(field) is True:
            out.error((*loc, field), "cannot be true where hostUsers is false", "remove one of them")
    if spec.get("ephemeralContainers"):
        out.error((*loc, "ephemeralContainers"), "cannot be in a new pod", "remove it: kubectl debug adds them")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        out.error((*loc, "nodeName"), "cannot be set for a pod with scheduling gates", "remove one of them")


_Place = tuple[FieldPath, Mapping[str, Any]]
"""An object in a pod's spec, with its path."""


def _mappings(owner: Mapping[str, Any], loc: FieldPath, field: str) -> Iterator[_Place]:
    """The mappings in a list."""
    for index, item in enumerate(list_items(owner.get(field))):
        if type(item) is dict or isinstance(item, Mapping):
            yield (*loc, field, index), item


def _check_names(items: Iterable[_Place], what: str, out: FieldErrors) -> None:
    """Check a list in which no two items may have the same name."""
    seen: set[str] = set()
    for place, item in items:
        name = item.get("name")
        if isinstance(name, str) and name:
            if name in seen:
                out.error((*place, "name"), f"a second {what} named {name!r}")
            seen.add(name)


def _check_spread(items: Iterable[_Place], out: FieldErrors) -> None:
    seen: list[tuple[Any, Any]] = []
    for place, item in items:
        mark = item.get("topologyKey"), item.get("whenUnsatisfiable")
        if mark in seen:
            out.error(place, "a second item with this topologyKey and whenUnsatisfiable", "remove one of them")
        seen.append(mark)


def _check_volumes(spec: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> dict[str, bool] | None:
    """The names of the volumes, and whether each may be a block device; None if the list of volumes is invalid."""
    names: dict[str, bool] = {}
    for place, volume in _mappings(spec, loc, "volumes"):
        sources = [key for key in fields_of("Volume") if key != "name" and volume.get(key) is not None]
        if len(sources) > 1:
            message = f"a volume can have only one source, but this one has {', '.join(sources)}"
            out.contradiction(place, message, "make it several volumes, or keep one source")
        if name := text(volume.get("name")):
            names[name] = bool({"persistentVolumeClaim", "ephemeral"} & set(sources))
    _check_names(_mappings(spec, loc, "volumes"), "volume", out)
    return names if isinstance(spec.get("volumes"), list | None) else None


def _check_containers(
    spec: Mapping[str, Any], loc: FieldPath, volumes: Mapping[str, bool] | None, out: FieldErrors
) -> None:
    ports: dict[tuple[int, str], str] = {}
    claims = {text(claim.get("name")) for claim in mappings(spec.get("resourceClaims"))}
    init, main = (list(_mappings(spec, loc, field)) for field in ("initContainers", "containers"))
    _check_names([*init, *main], "container", out)
    for place, container in (*init, *main):
        _check_mounts(container, place, volumes, out)
        resources = mapping(container.get("resources"))
        _check_resources(resources, (*place, "resources"), out)
        seen: set[tuple[str, str]] = set()
        for claim_place, claim in _mappings(resources, (*place, "resources"), "claims"):
            if isinstance(claim.get("name"), str) and claim["name"] not in claims:
                message = f"there is no claim {claim['name']!r}"
                out.error((*claim_place, "name"), message, "add it to the pod's resourceClaims")
            request = text(claim.get("name")), text(claim.get("request"))
            if request in seen:
                out.error(claim_place, "a second item with this name and request", "remove one of them")
            seen.add(request)
        _check_sleeps(container, place, spec, out)
        if value_at(container, "lifecycle", "stopSignal") and not value_at(spec, "os", "name"):
            out.error((*place, "lifecycle", "stopSignal"), "needs the pod's os", "add os: {name: linux} to spec")
    for place, container in init:
        _check_ports(container, place, {}, out)
        for key in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
            if container.get(key) is not None and container.get("restartPolicy") != "Always":
                hint = "remove it, or add restartPolicy: Always"
                out.contradiction((*place, key), "cannot be set for a container that ends before others", hint)
    # Init containers end before the other containers start, so only the latter use the pod's ports at the same time.
    for place, container in main:
        _check_ports(container, place, ports, out)


def _check_sleeps(container: Mapping[str, Any], loc: FieldPath, spec: Mapping[str, Any], out: FieldErrors) -> None:
    grace = spec.get("terminationGracePeriodSeconds")
    most = grace if type(grace) is int else DEFAULT_GRACE_SECONDS
    for hook in ("postStart", "preStop"):
        seconds = value_at(container, "lifecycle", hook, "sleep", "seconds")
        if type(seconds) is int and not 0 <= seconds <= most:
            place = (*loc, "lifecycle", hook, "sleep", "seconds")
            hint = "write fewer seconds, or raise terminationGracePeriodSeconds"
            out.error(place, f"must be from 0 to the grace period of the pod, {most}, not {seconds}", hint)


def _check_ports(
    container: Mapping[str, Any], loc: FieldPath, taken: dict[tuple[int, str], str], out: FieldErrors
) -> None:
    """Check the ports of one container. ``taken``: the ports of earlier containers of the pod; this adds to them."""
    own: dict[tuple[int, str], str] = {}
    ports = list(_mappings(container, loc, "ports"))
    _check_names(ports, "port", out)
    for place, port in ports:
        number = port.get("containerPort")
        if type(number) is int:
            key = (number, str(port.get("protocol") or "TCP"))
            if key in taken:
                message = f"port {number} is container {taken[key]!r}'s; the containers of a pod share its ports"
                out.doubtful((*place, "containerPort"), message)
            own[key] = str(container.get("name"))
    taken.update(own)


def _check_host_ports(spec: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    taken: set[tuple[str, str, int]] = set()
    on_host = spec.get("hostNetwork") is True
    containers = _mappings(spec, loc, "containers")
    for place, port in (found for at, container in containers for found in _mappings(container, at, "ports")):
        number, own = port.get("hostPort"), port.get("containerPort")
        if type(number) is not int or not number:
            number = own if on_host and type(own) is int else 0
        elif on_host and number != own:
            out.error((*place, "hostPort"), "must be containerPort on the host's network", f"write {own}")
        key = (str(port.get("protocol") or "TCP"), str(port.get("hostIP") or ""), number)
        if number and key in taken:
            out.error((*place, "hostPort"), f"port {number} of the node is used twice in this pod", "change one")
        taken.add(key)


def _check_mounts(
    container: Mapping[str, Any], loc: FieldPath, volumes: Mapping[str, bool] | None, out: FieldErrors
) -> None:
    """Check mounts. ``volumes``: the volumes of the pod, and whether each may be a block device."""
    paths: set[str] = set()
    for place, mount in _mappings(container, loc, "volumeMounts"):
        _check_volume_name(mount, place, volumes, out)
        privileged = value_at(container, "securityContext", "privileged") is True
        if mount.get("mountPropagation") == "Bidirectional" and not privileged:
            out.error((*place, "mountPropagation"), "needs a privileged container", "write HostToContainer")
        path = mount.get("mountPath")
        if isinstance(path, str) and path:
            normal = path.rstrip("/") or "/"
            if {path, normal} & paths:  # an API server compares paths as written
                report = out.error if path in paths else out.doubtful
                report((*place, "mountPath"), f"{path!r} is mounted twice in this container")
            paths |= {path, normal}
    for place, device in _mappings(container, loc, "volumeDevices"):
        _check_volume_name(device, place, volumes, out)
        if volumes is not None and volumes.get(str(device.get("name"))) is False:
            out.error((*place, "name"), "only a PersistentVolumeClaim can be a device", "mount it in volumeMounts")


def _check_volume_name(
    mount: Mapping[str, Any], loc: FieldPath, volumes: Collection[str] | None, out: FieldErrors
) -> None:
    name = mount.get("name")
    if isinstance(name, str) and name and volumes is not None and name not in volumes:
        known = ", ".join(sorted(volumes))
        hint = f"volumes of this pod: {known}" if known else "add it to the pod's volumes"
        out.error((*loc, "name"), f"there is no volume {name!r}", hint)


# -- amounts --


def read_quantities(amounts: object, loc: FieldPath, out: FieldErrors) -> dict[str, Decimal]:
    """The valid amounts of resources. Adds errors for invalid amounts."""
    found: dict[str, Decimal] = {}
    for name, written in mapping(amounts).items():
        if isinstance(name, str) and (amount := check_quantity(written, (*loc, name), out)) is not None:
            found[name] = amount
    return found


def _check_resources(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    limits, requests = (read_quantities(found.get(part), (*loc, part), out) for part in ("limits", "requests"))
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            _check_resource(name, amount, (*loc, part, name), out)
    for name, wanted in requests.items():
        place = (*loc, "requests", name)
        fixed = _is_extended(name) or name.startswith("hugepages-")
        if name not in limits:
            if fixed and name not in mapping(found.get("limits")):
                out.error(place, "is requested without a limit", f"write the same amount under limits: {name}")
        elif wanted > limits[name] or (fixed and wanted != limits[name]):
            rule = "a request may not exceed its limit" if wanted > limits[name] else "it must equal its limit"
            written = found["requests"][name], found["limits"][name]
            out.error(place, f"{written[0]} is requested, but the limit is {written[1]}", rule)
    together = {*limits, *requests}
    if any(name.startswith("hugepages-") for name in together) and not together & {"cpu", "memory"}:
        out.error(loc, "hugepages also need cpu or memory", "add memory under limits")


_STANDARD: Final = frozenset({"cpu", "memory", "ephemeral-storage"})


def _is_extended(name: str) -> bool:
    """Whether the resource is a device such as ``nvidia.com/gpu``. Amounts of devices are whole numbers."""
    return "/" in name and "kubernetes.io/" not in name


def _check_resource(name: str, amount: Decimal, loc: FieldPath, out: FieldErrors) -> None:
    if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
        near = nearest_word(name, _STANDARD)
        hint = "name it with its domain: nvidia.com/gpu" if name.lower().endswith("gpu") or not near else ""
        out.error(loc, f"{name!r} is not a resource of Kubernetes", hint or f"did you mean {near}?")
    elif not is_label_key(name) or (_is_extended(name) and name.startswith("requests.")):
        out.error(loc, f"{name!r} is not the name of a resource", "a domain, '/', and at most 63 letters and digits")
    elif _is_extended(name) and amount != amount.to_integral_value():
        out.error(loc, f"must be a whole number, not {amount.normalize():f}", "devices are not shared: write 1")


def _check_pod_resources(spec: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    """Check the resources of the pod itself. Its requests must be at least the sum of its containers' requests."""
    place, resources = (*loc, "resources"), mapping(spec.get("resources"))
    if not resources:
        return
    _check_resources(resources, place, out)
    silent = FieldErrors(advice=False)  # other checks report invalid amounts, at their own paths
    own = read_quantities(resources.get("requests"), place, silent)
    together = dict.fromkeys(own, Decimal(0))
    for container in mappings(spec.get("containers")) if own else ():
        limits, requests = (
            read_quantities(value_at(container, "resources", part), place, silent) for part in ("limits", "requests")
        )
        for name, amount in {**limits, **requests}.items():
            together[name] = together.get(name, Decimal(0)) + amount
    for name, amount in own.items():
        if amount < together[name]:
            said = resources["requests"][name]
            message = f"{said} is requested for the pod, but its containers request {together[name]:f} together"
            out.error((*place, "requests", name), message, "raise it, or lower theirs")


def _advise_host_network(spec: Mapping[str, Any], loc: FieldPath, replicas: int, out: FieldErrors) -> None:
    if spec.get("hostNetwork") is not True:
        return
    taken = [
        port.get("containerPort")
        for container in map(mapping, list_items(spec.get("containers")))
        for port in map(mapping, list_items(container.get("ports")))
    ]
    if replicas > 1 and taken:
        out.warn(
            (*loc, "hostNetwork"),
            f"{replicas} replicas on the host's network share port {taken[0]}: two of them cannot run on one node",
            "remove hostNetwork, or have a node for each replica: admission selects nodes where the port is free",
        )
