"""Validation of pod templates: errors that the API server would report at the first pod are reported when the file is
read.

Types and keys come from Kubernetes' own table (``kubernetes_types``), the rules of its objects from ``pod_rules``. This
module checks relations: references by name, ports and paths used twice, amounts. An unknown key is probably a typing
mistake if it resembles a known one; otherwise it is probably newer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from tf_dist.core.dialects.common_schema import MAX_CONTAINERS, MAX_NAME, check_label, container_names
from tf_dist.core.dialects.field_errors import (
    MISSING,
    FieldErrors,
    describe_value,
    list_at,
    mapping_at,
    quote_hint,
    text_at,
)
from tf_dist.core.dialects.pod_rules.field_rules import PORT_NAME
from tf_dist.core.dialects.pod_rules.typed_values import check_typed
from tf_dist.core.model.fieldpath import FieldPath, list_items, mapping, mappings, nearest_word, value_at
from tf_dist.core.model.names import is_label_key
from tf_dist.core.model.quantity import parse_quantity
from tf_dist.core.openapi.kubernetes_types import (
    fields_of,
)


def _check_ports(
    container: Mapping[str, Any], loc: FieldPath, taken: dict[tuple[int, str], str], out: FieldErrors
) -> None:
    """Check the ports of one container. ``taken``: the ports of earlier containers of the pod; this adds to them."""
    names: set[str] = set()
    own: dict[tuple[int, str], str] = {}
    for index, port in _mappings(container.get("ports")):
        place = (*loc, "ports", index)
        _check_port_name(port, place, names, out)
        for field in ("containerPort", "hostPort"):
            number = port.get(field)
            if type(number) is int and not 1 <= number <= 65535 and (number or field == "containerPort"):
                out.error(
                    (*place, field),
                    f"is not a port: {describe_value(number)}; ports go from 1 to 65535",
                    "write a number from 1 to 65535",
                )
        number = port.get("containerPort")
        if type(number) is int:
            key = (number, str(port.get("protocol") or "TCP"))
            if key in taken:
                out.doubtful(
                    (*place, "containerPort"),
                    f"port {number} is container {taken[key]!r}'s; the containers of a pod share its ports",
                )
            own[key] = str(container.get("name"))
    taken.update(own)


def _check_port_name(port: Mapping[str, Any], loc: FieldPath, names: set[str], out: FieldErrors) -> None:
    name = port.get("name")
    if not isinstance(name, str) or not name:
        return
    if len(name) > 15 or not PORT_NAME.fullmatch(name):
        out.error(
            (*loc, "name"),
            f"{name!r} is not a port name: at most 15 lower-case letters, digits and single '-', one letter at least",
            "choose a shorter name" if len(name) > 15 else "",
        )
    if name in names:
        out.error((*loc, "name"), f"a second port named {name!r}")
    names.add(name)


def _check_host_ports(spec: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    taken: set[tuple[str, str, int]] = set()
    for at, container in _mappings(spec.get("containers")):
        for index, port in _mappings(container.get("ports")):
            place, number, own = (
                (*loc, "containers", at, "ports", index),
                port.get("hostPort"),
                port.get("containerPort"),
            )
            if type(number) is not int or not number:
                number = own if spec.get("hostNetwork") is True and type(own) is int else 0
            elif spec.get("hostNetwork") is True and number != own:
                out.error((*place, "hostPort"), "must be containerPort on the host's network", f"write {own}")
            key = (str(port.get("protocol") or "TCP"), str(port.get("hostIP") or ""), number)
            if number and key in taken:
                out.error((*place, "hostPort"), f"port {number} of the node is used twice in this pod", "change one")
            taken.add(key)


def _check_mounts(
    container: Mapping[str, Any], loc: FieldPath, volumes: Mapping[str, bool] | None, out: FieldErrors
) -> None:
    """Check mounts. ``volumes``: those of the pod, and whether each may be a block device."""
    paths: set[str] = set()
    for index, mount in _mappings(container.get("volumeMounts")):
        place = (*loc, "volumeMounts", index)
        _check_volume_name(mount, place, volumes, out)
        privileged = value_at(container, "securityContext", "privileged") is True
        if mount.get("mountPropagation") == "Bidirectional" and not privileged:
            out.error((*place, "mountPropagation"), "needs a privileged container", "write HostToContainer")
        path = mount.get("mountPath")
        if not isinstance(path, str) or not path:
            continue
        if not path.startswith("/"):
            out.doubtful((*place, "mountPath"), f"{path!r} must be absolute", f"write /{path}")
        normal = path.rstrip("/") or "/"
        if path in paths:
            out.error((*place, "mountPath"), f"{path!r} is mounted twice in this container")
        elif normal in paths:
            out.doubtful((*place, "mountPath"), f"{path!r} is mounted twice in this container")
        paths |= {path, normal}
    for index, device in _mappings(container.get("volumeDevices")):
        place = (*loc, "volumeDevices", index)
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


def check_amounts(resources: object, loc: FieldPath, out: FieldErrors) -> None:
    """Check only the requests that admission counts, which is enough for stored objects."""
    if resources is not None and (found := mapping_at(resources, loc, out)) is not None:
        for key in ("limits", "requests"):
            read_quantities(found, key, loc, out)


def _check_resources(found: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    limits, requests = read_quantities(found, "limits", loc, out), read_quantities(found, "requests", loc, out)
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
    """Whether the resource is a device such as ``nvidia.com/gpu``, which is counted in whole pieces and never
    shared.
    """
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


def read_quantities(found: Mapping[str, Any], key: str, loc: FieldPath, out: FieldErrors) -> dict[str, Decimal]:
    """The quantities of a resource list that can be read; the others are errors."""
    listed = found.get(key)
    entries = mapping_at(listed, (*loc, key), out) if listed is not None else None
    amounts: dict[str, Decimal] = {}
    pairs: Mapping[Any, Any] = entries or {}
    for name, value in pairs.items():
        if not isinstance(name, str):
            out.error((*loc, key), f"a key must be text, not {describe_value(name)}", quote_hint(name))
            continue
        place = (*loc, key, name)
        try:
            amount = parse_quantity(value)
        except ValueError:
            hint = "write a number and a suffix, of at most 2^63: 500m, 2, 64Gi"
            out.error(place, f"is not a quantity: {describe_value(value)}", hint)
            continue
        if amount < 0:
            out.error(place, f"must not be negative, not {describe_value(value)}", "write 0 or more")
        amounts[name] = amount
    return amounts


def check_template(
    template: object, loc: FieldPath, out: FieldErrors, *, replicas: int = 1, containers_optional: bool = False
) -> None:
    """Check one raw template. ``containers_optional``: a container is added to it later (v1alpha1's default server)."""
    if (found := mapping_at(template, loc, out)) is None:
        return
    if not containers_optional:
        require_container(found, loc, out)
    check_typed(found, "PodTemplateSpec", loc, out)
    check_spec(mapping(found.get("spec")), (*loc, "spec"), out)
    _advise_host_network(mapping(found.get("spec")), (*loc, "spec"), replicas, out)


def require_container(template: object, loc: FieldPath, out: FieldErrors, *, named: str = "") -> None:
    """Add an error if the template has no container, or none of that name."""
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


def check_frame(template: object, loc: FieldPath, out: FieldErrors) -> None:
    """Check the parts from which pods are created and which admission counts, which is enough for stored objects."""
    metadata, spec = value_at(template, "metadata"), value_at(template, "spec")
    for key, part in (("metadata", metadata), ("spec", spec)):
        if not isinstance(part, Mapping | None):
            out.error((*loc, key), "must be a mapping (key: value)")
    for key in ("labels", "annotations"):
        if not isinstance(value_at(metadata, key), Mapping | None):
            out.error((*loc, "metadata", key), "must be a mapping (key: value)")
    _check_counted(mapping(spec), (*loc, "spec"), out)
    _check_number(mapping(spec), (*loc, "spec"), out)
    for key in ("containers", "initContainers", "volumes"):
        for index, entry in enumerate(list_at(mapping(spec), key, (*loc, "spec"), out)):
            place = (*loc, "spec", key, index)
            if (found := mapping_at(entry, place, out)) is None or key == "volumes":
                continue
            if len(text_at(found, "name", place, out) or "") > MAX_NAME:
                out.error((*place, "name"), f"is longer than the {MAX_NAME} characters that a name may have")
            check_amounts(found.get("resources"), (*place, "resources"), out)
            for listed in ("env", "ports", "volumeMounts"):
                for number, item in enumerate(list_at(found, listed, place, out)):
                    mapping_at(item, (*place, listed, number), out)


def _check_number(spec: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    if len(list_items(spec.get("containers"))) > MAX_CONTAINERS:
        out.error((*loc, "containers"), f"more than {MAX_CONTAINERS} containers")


def _check_counted(spec: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    """Check the fields of the pod itself that admission reads."""
    text_at(spec, "priorityClassName", loc, out, required=False)
    check_amounts(spec.get("resources"), (*loc, "resources"), out)
    read_quantities(spec, "overhead", loc, out)


def check_spec(spec: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    """Check relations between the parts of a pod's spec. Values of a wrong type are ignored."""
    read_quantities(spec, "overhead", loc, out)
    _check_pod_resources(spec, loc, out)
    _check_number(spec, loc, out)
    _check_containers(spec, loc, _check_volumes(spec, loc, out), out)
    _check_host_ports(spec, loc, out)
    _check_unique(spec, loc, out)
    if spec.get("dnsPolicy") == "None" and not value_at(spec, "dnsConfig", "nameservers"):
        out.error((*loc, "dnsConfig", "nameservers"), MISSING, "dnsPolicy: None needs at least one")
    if spec.get("hostPID") is True and spec.get("shareProcessNamespace") is True:
        out.error((*loc, "shareProcessNamespace"), "cannot be true where hostPID is", "remove one of them")
    if spec.get("hostUsers") is False:
        for field in ("hostPID", "hostIPC"):
            if spec.get(field) is True:
                out.error((*loc, field), "cannot be true where hostUsers is false", "remove one of them")
    if spec.get("ephemeralContainers"):
        out.error((*loc, "ephemeralContainers"), "cannot be in a new pod", "remove it: kubectl debug adds them")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        out.error((*loc, "nodeName"), "cannot be set for a pod with scheduling gates", "remove one of them")


def _check_unique(spec: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    """Check lists whose items must differ in some fields."""
    unique = {
        "schedulingGates": ("name",),
        "resourceClaims": ("name",),
        "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    }
    for field, keys in unique.items():
        seen: list[tuple[Any, ...]] = []
        for index, item in _mappings(spec.get(field)):
            mark = tuple(item.get(key) for key in keys)
            if mark in seen:
                out.error((*loc, field, index), f"a second item with this {' and '.join(keys)}", "remove one of them")
            seen.append(mark)


def _mappings(value: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The mappings in a list, with their indexes."""
    for index, item in enumerate(list_items(value)):
        if type(item) is dict or isinstance(item, Mapping):
            yield index, item


def _check_pod_resources(spec: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    """Check resources of the pod itself, which must be at least the sum of its containers' requests."""
    if not isinstance(spec.get("resources"), Mapping):
        return
    place = (*loc, "resources")
    _check_resources(spec["resources"], place, out)
    silent = FieldErrors(advice=False)  # what cannot be read is reported where it stands
    own = read_quantities(mapping(spec["resources"]), "requests", place, silent)
    together: dict[str, Decimal] = {}
    for container in map(mapping, list_items(spec.get("containers"))):
        resources = mapping(container.get("resources"))
        found = [read_quantities(resources, key, place, silent) for key in ("limits", "requests")]
        for name, amount in {**found[0], **found[1]}.items():
            together[name] = together.get(name, Decimal(0)) + amount
    for name, amount in own.items():
        if amount < together.get(name, amount):
            said = spec["resources"]["requests"][name]
            message = f"{said} is requested for the pod, but its containers request {together[name]:f} together"
            out.error((*place, "requests", name), message, "raise it, or lower theirs")


def _check_volumes(spec: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> dict[str, bool] | None:
    """The names of the volumes, and whether each may be a block device; None if they cannot be known."""
    names: dict[str, bool] = {}
    for index, volume in _mappings(spec.get("volumes")):
        place, name = (*loc, "volumes", index), volume.get("name")
        sources = [key for key in fields_of("Volume") if key != "name" and volume.get(key) is not None]
        if len(sources) > 1:
            message = f"a volume can have only one source, but this one has {', '.join(sources)}"
            out.contradiction(place, message, "make it several volumes, or keep one source")
        if not isinstance(name, str) or not name:
            continue
        check_label(name, (*place, "name"), out)
        if name in names:
            out.error((*place, "name"), f"a second volume named {name!r}")
        names[name] = bool({"persistentVolumeClaim", "ephemeral"} & set(sources)) or not sources
    return names if isinstance(spec.get("volumes"), list | None) else None


def _check_containers(
    spec: Mapping[str, Any], loc: FieldPath, volumes: Mapping[str, bool] | None, out: FieldErrors
) -> None:
    names: set[str] = set()
    ports: dict[tuple[int, str], str] = {}
    claims = {claim.get("name") for claim in mappings(spec.get("resourceClaims"))}
    for field in ("initContainers", "containers"):
        for index, container in _mappings(spec.get(field)):
            place = (*loc, field, index)
            _check_name(container, place, names, out)
            _check_image(container, place, out)
            _check_mounts(container, place, volumes, out)
            if isinstance(resources := container.get("resources"), Mapping):
                _check_resources(resources, (*place, "resources"), out)
                for at, claim in _mappings(resources.get("claims")):
                    if isinstance(claim.get("name"), str) and claim["name"] not in claims:
                        missing = (*place, "resources", "claims", at, "name")
                        out.error(missing, f"there is no claim {claim['name']!r}", "add it to the pod's resourceClaims")
            if value_at(container, "lifecycle", "stopSignal") and not value_at(spec, "os", "name"):
                out.error((*place, "lifecycle", "stopSignal"), "needs the pod's os", "add os: {name: linux} to spec")
            if field == "initContainers" and container.get("restartPolicy") != "Always":
                for key in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
                    if container.get(key) is not None:
                        hint = "remove it, or add restartPolicy: Always"
                        out.contradiction((*place, key), "cannot be set for a container that ends before others", hint)
            # Init containers have ended when the others start: only these share the pod's ports at the same time.
            _check_ports(container, place, ports if field == "containers" else {}, out)


def _check_image(container: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    image = container.get("image")
    if not isinstance(image, str) or not image:
        return
    if image != image.strip():
        out.error((*loc, "image"), "an image name has no blanks in it", "remove the blanks before and after it")
    elif any(sign.isspace() for sign in image):
        out.doubtful((*loc, "image"), "an image name has no blanks in it")


def _check_name(container: Mapping[str, Any], loc: FieldPath, names: set[str], out: FieldErrors) -> None:
    name = container.get("name")
    if not isinstance(name, str) or not name:
        return
    check_label(name, (*loc, "name"), out)
    if name in names:
        out.error((*loc, "name"), f"a second container named {name!r}")
    names.add(name)


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
