"""Validation of pod templates: what the API server would refuse at the first pod, reported when the file is read.

A key that is not here is most likely a typing mistake where it resembles one that is, and most likely newer than this
list where not.

The template stays a plain dict, because Kubernetes adds keys with every release and none of them concerns us. What is
checked here is what people get wrong: typing mistakes in keys, YAML scalars that are no text, names that refer to
nothing, ports used twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from tf_dist.core.api.fieldpath import FieldPath, list_items, mapping, value_at
from tf_dist.core.api.quantity import parse_quantity
from tf_dist.core.dialects.common_schema import MAX_CONTAINERS, MAX_NAME, check_label, container_names
from tf_dist.core.dialects.field_errors import (
    MISSING,
    FieldErrors,
    check_keys,
    choice_at,
    describe_value,
    flag_at,
    list_at,
    mapping_at,
    mappings_at,
    port_at,
    quote_hint,
    text_at,
    text_map_at,
    texts_at,
)


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


TEMPLATE: Final = _keys("metadata spec")

METADATA: Final = _keys(
    """annotations clusterName creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName
    generation labels managedFields name namespace ownerReferences resourceVersion selfLink uid"""
)

POD_SPEC: Final = _keys(
    """activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks
    ephemeralContainers evictionResponders hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride
    imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy priority
    priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName schedulerName
    schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN
    shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes
    workloadRef"""
)

CONTAINER: Final = _keys(
    """args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy
    resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce
    terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts workingDir"""
)

ENV: Final = _keys("name value valueFrom")

ENV_SOURCE: Final = _keys("configMapKeyRef fieldRef fileKeyRef resourceFieldRef secretKeyRef")

MOUNT: Final = _keys("mountPath bindMountOptions mountPropagation name readOnly recursiveReadOnly subPath subPathExpr")

PORT: Final = _keys("containerPort hostIP hostPort name protocol")

RESOURCES: Final = _keys("claims limits requests")

VOLUME: Final = _keys(
    """awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir ephemeral fc
    flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi name nfs persistentVolumeClaim
    photonPersistentDisk portworxVolume projected quobyte rbd scaleIO secret storageos vsphereVolume"""
)


_PORT_NAME: Final = re.compile(r"(?=.*[a-z])[a-z0-9](?:-?[a-z0-9])*")


def check_container(container: Mapping[str, Any], loc: FieldPath, volumes: set[str] | None, out: FieldErrors) -> None:
    """Everything about one container except its name and ports, which concern its neighbours."""
    image = text_at(container, "image", loc, out)
    if image is not None and (not image.strip() or any(sign.isspace() for sign in image)):
        out.error((*loc, "image"), "an image name has no blanks in it")
    choice_at(container, "imagePullPolicy", ("Always", "IfNotPresent", "Never"), loc, out)
    text_at(container, "workingDir", loc, out, required=False)
    texts_at(container, "command", loc, out)
    texts_at(container, "args", loc, out)
    _check_env(container, loc, out)
    _check_mounts(container, loc, volumes, out)
    if container.get("resources") is not None:
        _check_resources(container["resources"], (*loc, "resources"), out)


def check_ports(
    container: Mapping[str, Any], loc: FieldPath, taken: dict[tuple[int, str], str], out: FieldErrors
) -> None:
    """Ports of one container; ``taken``: those of the containers before it in the pod, added to here."""
    names: set[str] = set()
    own: dict[tuple[int, str], str] = {}
    for place, port in mappings_at(container, "ports", loc, PORT, out):
        _check_port_name(port, place, names, out)
        port_at(port, "hostPort", place, out)
        choice_at(port, "protocol", ("TCP", "UDP", "SCTP"), place, out)
        if port.get("containerPort") is None:
            out.error((*place, "containerPort"), MISSING)
        elif (number := port_at(port, "containerPort", place, out)) is not None:
            key = (number, str(port.get("protocol") or "TCP"))
            if key in taken:
                out.error(
                    (*place, "containerPort"),
                    f"port {number} is container {taken[key]!r}'s already; the containers of a pod share its ports",
                )
            own[key] = str(container.get("name"))
    taken.update(own)


def _check_port_name(port: Mapping[str, Any], loc: FieldPath, names: set[str], out: FieldErrors) -> None:
    name = text_at(port, "name", loc, out, required=False)
    if name is None:
        return
    if len(name) > 15 or not _PORT_NAME.fullmatch(name):
        out.error(
            (*loc, "name"),
            f"{name!r} is no port name: at most 15 lower-case letters, digits and single '-', one letter at least",
        )
    if name in names:
        out.error((*loc, "name"), f"a second port named {name!r}")
    names.add(name)


def _check_env(container: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    for place, entry in mappings_at(container, "env", loc, ENV, out):
        name = text_at(entry, "name", place, out)
        if name is not None and "=" in name:
            out.error((*place, "name"), f"{name!r}: the name of a variable has no '='", "use name: and value:")
        value, source = entry.get("value"), entry.get("valueFrom")
        if value is not None and not isinstance(value, str):
            out.error((*place, "value"), f"must be text, not {describe_value(value)}", quote_hint(value))
        if source is None:
            continue
        if value:
            out.error(place, "has both value and valueFrom", "keep one of them")
        if (found := mapping_at(source, (*place, "valueFrom"), out)) is not None:
            check_keys(found, ENV_SOURCE, (*place, "valueFrom"), out)
            if sum(part is not None for part in found.values()) != 1:
                out.error((*place, "valueFrom"), "names exactly one source")


def _check_mounts(container: Mapping[str, Any], loc: FieldPath, volumes: set[str] | None, out: FieldErrors) -> None:
    paths: set[str] = set()
    for place, mount in mappings_at(container, "volumeMounts", loc, MOUNT, out):
        name = text_at(mount, "name", place, out)
        if name is not None and volumes is not None and name not in volumes:
            known = ", ".join(sorted(volumes))
            hint = f"volumes of this pod: {known}" if known else "add it to the pod's volumes"
            out.error((*place, "name"), f"there is no volume {name!r}", hint)
        path = text_at(mount, "mountPath", place, out)
        if path is None:
            continue
        if not path.startswith("/"):
            out.error((*place, "mountPath"), f"{path!r} must be absolute", f"write /{path}")
        normal = path.rstrip("/") or "/"
        if normal in paths:
            out.error((*place, "mountPath"), f"{path!r} is mounted twice in this container")
        paths.add(normal)


def check_amounts(resources: object, loc: FieldPath, out: FieldErrors) -> None:
    """Check only what admission adds up: enough for what a cluster has stored."""
    if resources is not None and (found := mapping_at(resources, loc, out)) is not None:
        for key in ("limits", "requests"):
            read_quantities(found, key, loc, out)


def _check_resources(resources: object, loc: FieldPath, out: FieldErrors) -> None:
    if (found := mapping_at(resources, loc, out)) is None:
        return
    check_keys(found, RESOURCES, loc, out)
    limits, requests = read_quantities(found, "limits", loc, out), read_quantities(found, "requests", loc, out)
    for name, wanted in requests.items():
        if name in limits and wanted > limits[name]:
            out.error(
                (*loc, "requests", name),
                f"{found['requests'][name]} is requested, but the limit is {found['limits'][name]}",
                "a request may not exceed its limit",
            )


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
            out.error(place, f"is no quantity: {describe_value(value)}", hint)
            continue
        if amount < 0:
            out.error(place, f"must not be negative, not {describe_value(value)}")
        amounts[name] = amount
    return amounts


RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")


def check_template(
    template: object, loc: FieldPath, out: FieldErrors, *, replicas: int = 1, containers_optional: bool = False
) -> None:
    """Check one raw template. ``containers_optional``: a container is added to it later (v1alpha1's default server)."""
    if (found := mapping_at(template, loc, out)) is None:
        return
    check_keys(found, TEMPLATE, loc, out)
    if found.get("metadata") is not None:
        _check_metadata(found["metadata"], (*loc, "metadata"), out)
    if not containers_optional:
        require_container(found, loc, out)
    if found.get("spec") is None:
        return
    if (spec := mapping_at(found["spec"], (*loc, "spec"), out)) is not None:
        _check_spec(spec, (*loc, "spec"), out, replicas=replicas)


def require_container(template: object, loc: FieldPath, out: FieldErrors, *, named: str = "") -> None:
    """Note an error if the template has no container at all, or none of that name."""
    spec = value_at(template, "spec")
    if spec is None:
        misplaced = "containers" in mapping(template)
        hint = (
            "move containers (and what is beside it) under spec" if misplaced else "a pod template has spec.containers"
        )
        out.error((*loc, "spec"), MISSING, hint)
        return
    names, place = container_names(template), (*loc, "spec", "containers")
    if isinstance(spec, Mapping) and not spec.get("containers"):
        out.error(place, "at least one container is required")
    elif named and names and named not in names and None not in names:
        hint = f"rename {names[0]!r} to {named!r}" if len(names) == 1 else "name the one that trains so"
        out.error(place, f"no container named {named!r}", hint)


def check_frame(template: object, loc: FieldPath, out: FieldErrors) -> None:
    """Check what pods are made from and what admission counts: enough for what a cluster has stored."""
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
    """What admission reads of the pod itself."""
    text_at(spec, "priorityClassName", loc, out, required=False)
    check_amounts(spec.get("resources"), (*loc, "resources"), out)
    read_quantities(spec, "overhead", loc, out)


def _check_metadata(metadata: object, loc: FieldPath, out: FieldErrors) -> None:
    if (found := mapping_at(metadata, loc, out)) is not None:
        check_keys(found, METADATA, loc, out)
        text_map_at(found, "labels", loc, out)
        text_map_at(found, "annotations", loc, out)


def _check_spec(spec: Mapping[str, Any], loc: FieldPath, out: FieldErrors, *, replicas: int) -> None:
    check_keys(spec, POD_SPEC, loc, out)
    choice_at(spec, "restartPolicy", RESTART_POLICIES, loc, out)
    text_map_at(spec, "nodeSelector", loc, out)
    for key in ("schedulerName", "serviceAccountName", "nodeName"):
        text_at(spec, key, loc, out, required=False)
    text_at(spec, "priorityClassName", loc, out, required=False)
    read_quantities(spec, "overhead", loc, out)
    _check_pod_resources(spec, loc, out)
    _check_number(spec, loc, out)
    volumes = _check_volumes(spec, loc, out)
    _check_containers(spec, loc, volumes, out)
    if flag_at(spec, "hostNetwork", loc, out):
        _check_host_network(spec, loc, replicas, out)


def _check_pod_resources(spec: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> None:
    """Resources of the pod itself: they are at least what its containers request together."""
    if spec.get("resources") is None:
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


def _check_volumes(spec: Mapping[str, Any], loc: FieldPath, out: FieldErrors) -> set[str] | None:
    """The names of the volumes; None if they cannot be known, so that mounts are not judged by them."""
    names: set[str] = set()
    for place, volume in mappings_at(spec, "volumes", loc, VOLUME, out):
        name = text_at(volume, "name", place, out)
        if name is None:
            continue
        check_label(name, (*place, "name"), out)
        if name in names:
            out.error((*place, "name"), f"a second volume named {name!r}")
        names.add(name)
        sources = [key for key in volume if key in VOLUME and key != "name" and volume[key] is not None]
        if len(sources) > 1:
            out.error(place, f"a volume has one source, this one has {', '.join(sources)}")
    return names if isinstance(spec.get("volumes"), list | None) else None


def _check_containers(spec: Mapping[str, Any], loc: FieldPath, volumes: set[str] | None, out: FieldErrors) -> None:
    names: set[str] = set()
    ports: dict[tuple[int, str], str] = {}
    for field in ("initContainers", "containers"):
        for index, item in enumerate(list_at(spec, field, loc, out)):
            place = (*loc, field, index)
            if (container := mapping_at(item, place, out)) is None:
                continue
            check_keys(container, CONTAINER, place, out)
            _check_name(container, place, names, out)
            check_container(container, place, volumes, out)
            # Init containers have ended when the others start: only these share the pod's ports at the same time.
            check_ports(container, place, ports if field == "containers" else {}, out)


def _check_name(container: Mapping[str, Any], loc: FieldPath, names: set[str], out: FieldErrors) -> None:
    name = text_at(container, "name", loc, out)
    if name is None:
        return
    check_label(name, (*loc, "name"), out)
    if name in names:
        out.error((*loc, "name"), f"a second container named {name!r}")
    names.add(name)


def _check_host_network(spec: Mapping[str, Any], loc: FieldPath, replicas: int, out: FieldErrors) -> None:
    taken = [
        port.get("containerPort")
        for container in map(mapping, list_items(spec.get("containers")))
        for port in map(mapping, list_items(container.get("ports")))
    ]
    if replicas > 1 and taken:
        out.warn(
            (*loc, "hostNetwork"),
            f"{replicas} replicas on the host's network share port {taken[0]}: two of them cannot run on one node",
            "drop hostNetwork, or have a node for each replica: admission finds those where the port is free",
        )
