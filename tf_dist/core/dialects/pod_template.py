"""Checks of a pod template: what the API server would refuse when the first pod is made, said when the file is read.

The template stays a plain dict, because Kubernetes adds keys with every release and none of them concerns us. What is
checked here is what people get wrong: typing mistakes in keys, YAML scalars that are no text, names that refer to
nothing, ports used twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tf_dist.core.dialects import containers, pod_keys
from tf_dist.core.dialects.names import MAX, check_label
from tf_dist.core.dialects.problems import MISSING, Findings, Loc
from tf_dist.core.dialects.raw import (
    check_keys,
    choice_at,
    flag_at,
    list_at,
    mapping_at,
    mappings_at,
    text_at,
    text_map_at,
)
from tf_dist.core.dialects.shape import MOST_CONTAINERS, container_names
from tf_dist.core.untyped import at, items, mapping

RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")


def check_template(
    template: object, loc: Loc, out: Findings, *, replicas: int = 1, containers_optional: bool = False
) -> None:
    """Check one raw template. ``containers_optional``: a container is added to it later (v1alpha1's default server)."""
    if (found := mapping_at(template, loc, out)) is None:
        return
    check_keys(found, pod_keys.TEMPLATE, loc, out)
    if found.get("metadata") is not None:
        _check_metadata(found["metadata"], (*loc, "metadata"), out)
    if not containers_optional:
        require_container(found, loc, out)
    if found.get("spec") is None:
        return
    if (spec := mapping_at(found["spec"], (*loc, "spec"), out)) is not None:
        _check_spec(spec, (*loc, "spec"), out, replicas=replicas)


def require_container(template: object, loc: Loc, out: Findings, *, named: str = "") -> None:
    """Note an error if the template has no container at all, or none of that name."""
    spec = at(template, "spec")
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


def check_frame(template: object, loc: Loc, out: Findings) -> None:
    """Check what pods are made from and what admission counts: enough for what a cluster has stored."""
    metadata, spec = at(template, "metadata"), at(template, "spec")
    for key, part in (("metadata", metadata), ("spec", spec)):
        if not isinstance(part, Mapping | None):
            out.error((*loc, key), "must be a mapping (key: value)")
    for key in ("labels", "annotations"):
        if not isinstance(at(metadata, key), Mapping | None):
            out.error((*loc, "metadata", key), "must be a mapping (key: value)")
    _check_counted(mapping(spec), (*loc, "spec"), out)
    _check_number(mapping(spec), (*loc, "spec"), out)
    for key in ("containers", "initContainers", "volumes"):
        for index, entry in enumerate(list_at(mapping(spec), key, (*loc, "spec"), out)):
            place = (*loc, "spec", key, index)
            if (found := mapping_at(entry, place, out)) is None or key == "volumes":
                continue
            if len(text_at(found, "name", place, out) or "") > MAX:
                out.error((*place, "name"), f"is longer than the {MAX} characters that a name may have")
            containers.check_amounts(found.get("resources"), (*place, "resources"), out)
            for listed in ("env", "ports", "volumeMounts"):
                for number, item in enumerate(list_at(found, listed, place, out)):
                    mapping_at(item, (*place, listed, number), out)


def _check_number(spec: Mapping[str, Any], loc: Loc, out: Findings) -> None:
    if len(items(spec.get("containers"))) > MOST_CONTAINERS:
        out.error((*loc, "containers"), f"more than {MOST_CONTAINERS} containers")


def _check_counted(spec: Mapping[str, Any], loc: Loc, out: Findings) -> None:
    """What admission reads of the pod itself."""
    text_at(spec, "priorityClassName", loc, out, required=False)
    containers.check_amounts(spec.get("resources"), (*loc, "resources"), out)
    containers.quantities(spec, "overhead", loc, out)


def _check_metadata(metadata: object, loc: Loc, out: Findings) -> None:
    if (found := mapping_at(metadata, loc, out)) is not None:
        check_keys(found, pod_keys.METADATA, loc, out)
        text_map_at(found, "labels", loc, out)
        text_map_at(found, "annotations", loc, out)


def _check_spec(spec: Mapping[str, Any], loc: Loc, out: Findings, *, replicas: int) -> None:
    check_keys(spec, pod_keys.POD_SPEC, loc, out)
    choice_at(spec, "restartPolicy", RESTART_POLICIES, loc, out)
    text_map_at(spec, "nodeSelector", loc, out)
    for key in ("schedulerName", "serviceAccountName", "nodeName"):
        text_at(spec, key, loc, out, required=False)
    _check_counted(spec, loc, out)
    _check_number(spec, loc, out)
    volumes = _check_volumes(spec, loc, out)
    _check_containers(spec, loc, volumes, out)
    if flag_at(spec, "hostNetwork", loc, out):
        _check_host_network(spec, loc, replicas, out)


def _check_volumes(spec: Mapping[str, Any], loc: Loc, out: Findings) -> set[str] | None:
    """The names of the volumes; None if they cannot be known, so that mounts are not judged by them."""
    names: set[str] = set()
    for place, volume in mappings_at(spec, "volumes", loc, pod_keys.VOLUME, out):
        name = text_at(volume, "name", place, out)
        if name is None:
            continue
        check_label(name, (*place, "name"), out)
        if name in names:
            out.error((*place, "name"), f"a second volume named {name!r}")
        names.add(name)
        sources = [key for key in volume if key in pod_keys.VOLUME and key != "name" and volume[key] is not None]
        if len(sources) > 1:
            out.error(place, f"a volume has one source, this one has {', '.join(sources)}")
    return names if isinstance(spec.get("volumes"), list | None) else None


def _check_containers(spec: Mapping[str, Any], loc: Loc, volumes: set[str] | None, out: Findings) -> None:
    names: set[str] = set()
    ports: dict[tuple[int, str], str] = {}
    for field in ("initContainers", "containers"):
        for index, item in enumerate(list_at(spec, field, loc, out)):
            place = (*loc, field, index)
            if (container := mapping_at(item, place, out)) is None:
                continue
            check_keys(container, pod_keys.CONTAINER, place, out)
            _check_name(container, place, names, out)
            containers.check_container(container, place, volumes, out)
            # Init containers have ended when the others start: only these share the pod's ports at the same time.
            containers.check_ports(container, place, ports if field == "containers" else {}, out)


def _check_name(container: Mapping[str, Any], loc: Loc, names: set[str], out: Findings) -> None:
    name = text_at(container, "name", loc, out)
    if name is None:
        return
    check_label(name, (*loc, "name"), out)
    if name in names:
        out.error((*loc, "name"), f"a second container named {name!r}")
    names.add(name)


def _check_host_network(spec: Mapping[str, Any], loc: Loc, replicas: int, out: Findings) -> None:
    taken = [
        port.get("containerPort")
        for container in map(mapping, items(spec.get("containers")))
        for port in map(mapping, items(container.get("ports")))
    ]
    if replicas > 1 and taken:
        out.warn(
            (*loc, "hostNetwork"),
            f"{replicas} replicas on the host's network share port {taken[0]}: two of them cannot run on one node",
            "drop hostNetwork, or have a node for each replica: admission finds those where the port is free",
        )
