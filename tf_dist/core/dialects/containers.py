"""Checks of one container: image, words, environment, ports, mounts, resources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from tf_dist.core.dialects import pod_keys
from tf_dist.core.dialects.problems import MISSING, Findings, Loc, described, in_quotes
from tf_dist.core.dialects.raw import (
    check_keys,
    choice_at,
    mapping_at,
    mappings_at,
    port_at,
    text_at,
    texts_at,
)
from tf_dist.core.quantity import parse_quantity

_PORT_NAME: Final = re.compile(r"(?=.*[a-z])[a-z0-9](?:-?[a-z0-9])*")


def check_container(container: Mapping[str, Any], loc: Loc, volumes: set[str] | None, out: Findings) -> None:
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


def check_ports(container: Mapping[str, Any], loc: Loc, taken: dict[tuple[int, str], str], out: Findings) -> None:
    """Ports of one container; ``taken``: those of the containers before it in the pod, added to here."""
    names: set[str] = set()
    own: dict[tuple[int, str], str] = {}
    for place, port in mappings_at(container, "ports", loc, pod_keys.PORT, out):
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


def _check_port_name(port: Mapping[str, Any], loc: Loc, names: set[str], out: Findings) -> None:
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


def _check_env(container: Mapping[str, Any], loc: Loc, out: Findings) -> None:
    for place, entry in mappings_at(container, "env", loc, pod_keys.ENV, out):
        name = text_at(entry, "name", place, out)
        if name is not None and "=" in name:
            out.error((*place, "name"), f"{name!r}: the name of a variable has no '='", "use name: and value:")
        value, source = entry.get("value"), entry.get("valueFrom")
        if value is not None and not isinstance(value, str):
            out.error((*place, "value"), f"must be text, not {described(value)}", in_quotes(value))
        if source is None:
            continue
        if value:
            out.error(place, "has both value and valueFrom", "keep one of them")
        if (found := mapping_at(source, (*place, "valueFrom"), out)) is not None:
            check_keys(found, pod_keys.ENV_SOURCE, (*place, "valueFrom"), out)
            if sum(part is not None for part in found.values()) != 1:
                out.error((*place, "valueFrom"), "names exactly one source")


def _check_mounts(container: Mapping[str, Any], loc: Loc, volumes: set[str] | None, out: Findings) -> None:
    paths: set[str] = set()
    for place, mount in mappings_at(container, "volumeMounts", loc, pod_keys.MOUNT, out):
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


def check_amounts(resources: object, loc: Loc, out: Findings) -> None:
    """Check only what admission adds up: enough for what a cluster has stored."""
    if resources is not None and (found := mapping_at(resources, loc, out)) is not None:
        for key in ("limits", "requests"):
            quantities(found, key, loc, out)


def _check_resources(resources: object, loc: Loc, out: Findings) -> None:
    if (found := mapping_at(resources, loc, out)) is None:
        return
    check_keys(found, pod_keys.RESOURCES, loc, out)
    limits, requests = quantities(found, "limits", loc, out), quantities(found, "requests", loc, out)
    for name, wanted in requests.items():
        if name in limits and wanted > limits[name]:
            out.error(
                (*loc, "requests", name),
                f"{found['requests'][name]} is requested, but the limit is {found['limits'][name]}",
                "a request may not exceed its limit",
            )


def quantities(found: Mapping[str, Any], key: str, loc: Loc, out: Findings) -> dict[str, Decimal]:
    """The quantities of a resource list that can be read; the others are errors."""
    listed = found.get(key)
    entries = mapping_at(listed, (*loc, key), out) if listed is not None else None
    amounts: dict[str, Decimal] = {}
    pairs: Mapping[Any, Any] = entries or {}
    for name, value in pairs.items():
        if not isinstance(name, str):
            out.error((*loc, key), f"a key must be text, not {described(name)}", in_quotes(name))
            continue
        place = (*loc, key, name)
        try:
            amount = parse_quantity(value)
        except ValueError:
            hint = "write a number and a suffix, of at most 2^63: 500m, 2, 64Gi"
            out.error(place, f"is no quantity: {described(value)}", hint)
            continue
        if amount < 0:
            out.error(place, f"must not be negative, not {described(value)}")
        amounts[name] = amount
    return amounts
