"""What an API server adds to a pod, and what it refuses in one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tf_dist.cluster.api import Object
from tf_dist.cluster.memory.names import NameRule, name_problem
from tf_dist.core.quantity import parse_quantity
from tf_dist.errors import Problem

_LISTS = ("containers", "initContainers", "volumes", "tolerations", "schedulingGates")
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_SPEC_DEFAULTS = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
    "enableServiceLinks": True,
}
DEFAULT_GRACE = 30


def default_pod(pod: Object) -> None:
    """Fill in what the API server would, in place."""
    spec = pod["spec"]
    for field, value in _SPEC_DEFAULTS.items():
        if spec.get(field) is None:
            spec[field] = value
    spec.setdefault("securityContext", {})
    for container in all_containers(spec):
        _default_container(container, host_network=spec.get("hostNetwork") is True)


def _default_container(container: Object, *, host_network: bool) -> None:
    container.setdefault("resources", {})
    image = str(container.get("image", ""))
    floating = "@" not in image and (":" not in image.rpartition("/")[2] or image.endswith(":latest"))
    container.setdefault("imagePullPolicy", "Always" if floating else "IfNotPresent")
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network and "containerPort" in port:
            port.setdefault("hostPort", port["containerPort"])
    resources = container["resources"]
    if limits := resources.get("limits"):
        # A limit without a request is also the request.
        resources["requests"] = {**limits, **(resources.get("requests") or {})}


def all_containers(spec: Object) -> list[Object]:
    """Init containers first, then the others."""
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def shape_problems(pod: Object) -> Iterator[Problem]:
    """Fields of the wrong type: nothing else may look at the pod before these are mended."""
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        yield Problem("spec", "Required value: must be an object")
        return
    for field in _LISTS:
        items = spec.get(field)
        if items is not None and not (isinstance(items, list) and all(isinstance(item, dict) for item in items)):
            yield Problem(f"spec.{field}", "Invalid value: must be a list of objects")
        elif field in ("containers", "initContainers"):
            for at, container in enumerate(items or ()):
                yield from _container_shape(container, f"spec.{field}[{at}]")


def _container_shape(container: Object, path: str) -> Iterator[Problem]:
    for field in ("ports", "env", "volumeMounts"):
        items = container.get(field)
        if items is not None and not (isinstance(items, list) and all(isinstance(item, dict) for item in items)):
            yield Problem(f"{path}.{field}", "Invalid value: must be a list of objects")
    resources = container.get("resources")
    if resources is None:
        container.pop("resources", None)
        return
    for part in ("limits", "requests"):
        if not isinstance(resources, dict) or not isinstance(resources.get(part) or {}, dict):
            yield Problem(f"{path}.resources", "Invalid value: must be an object with limits and requests")
            return


def pod_problems(pod: Object) -> Iterator[Problem]:
    """Every rule that a well-shaped pod breaks."""
    spec = pod["spec"]
    if not spec.get("containers"):
        yield Problem("spec.containers", "Required value")
    if spec.get("restartPolicy") not in _RESTART_POLICIES:
        yield Problem("spec.restartPolicy", f"Unsupported value: {spec['restartPolicy']!r}: Always, OnFailure, Never")
    seen: set[Any] = set()
    for field in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(field) or ()):
            yield from _container_problems(container, f"spec.{field}[{at}]", seen)
    yield from _mount_problems(spec)


def _container_problems(container: Object, path: str, seen: set[Any]) -> Iterator[Problem]:
    name = container.get("name")
    if problem := name_problem(NameRule.LABEL, name if isinstance(name, str) else "", f"{path}.name"):
        yield problem
    elif name in seen:
        yield Problem(f"{path}.name", f'Duplicate value: "{name}"')
    seen.add(str(name))
    if not container.get("image"):
        yield Problem(f"{path}.image", "Required value")
    for at, variable in enumerate(container.get("env") or ()):
        if not variable.get("name"):
            yield Problem(f"{path}.env[{at}].name", "Required value")
    yield from _quantity_problems(container["resources"], path)


def _quantity_problems(resources: Object, path: str) -> Iterator[Problem]:
    values: dict[tuple[str, str], Any] = {}
    for part in ("requests", "limits"):
        for name, text in (resources.get(part) or {}).items():
            try:
                values[part, name] = parse_quantity(text)
            except ValueError as error:
                yield Problem(f"{path}.resources.{part}[{name}]", f"Invalid value: {error}")
                continue
            if values[part, name] < 0:
                yield Problem(f"{path}.resources.{part}[{name}]", "Invalid value: must be greater than or equal to 0")
    for (part, name), value in values.items():
        limit = values.get(("limits", name))
        if part == "requests" and limit is not None and value > limit:
            yield Problem(f"{path}.resources.requests", f"Invalid value: must be less than or equal to {name} limit")


def _mount_problems(spec: Object) -> Iterator[Problem]:
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    for field in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(field) or ()):
            for number, mount in enumerate(container.get("volumeMounts") or ()):
                if mount.get("name") not in volumes:
                    yield Problem(
                        f"spec.{field}[{at}].volumeMounts[{number}].name", f'Not found: "{mount.get("name")}"'
                    )


def update_problems(old: Object, new: Object) -> Iterator[Problem]:
    """A pod's spec is fixed, but for images, deadlines, tolerations and gates."""
    if _fixed(old["spec"], gated=bool(old["spec"].get("schedulingGates"))) != _fixed(
        new["spec"], gated=bool(old["spec"].get("schedulingGates"))
    ):
        yield Problem(
            "spec",
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`, "
            "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` (only additions to "
            "existing tolerations), `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously "
            "negative)",
        )
    before = old["spec"].get("schedulingGates") or []
    if any(gate not in before for gate in new["spec"].get("schedulingGates") or ()):
        yield Problem("spec.schedulingGates", "Forbidden: only deletion is allowed")


def _fixed(spec: Object, *, gated: bool) -> Object:
    free = {"activeDeadlineSeconds", "tolerations", "schedulingGates", "containers", "initContainers"}
    if gated:
        free |= {"nodeSelector", "affinity"}
    fixed: Object = {field: value for field, value in spec.items() if field not in free}
    for field in ("containers", "initContainers"):
        fixed[field] = [{**container, "image": ""} for container in spec.get(field) or ()]
    return fixed


def quality_of_service(spec: Object) -> str:
    """BestEffort, Burstable or Guaranteed, from the containers' requests and limits."""
    wanted = [container.get("resources") or {} for container in all_containers(spec)]
    if not any(part.get("requests") or part.get("limits") for part in wanted):
        return "BestEffort"
    for part in wanted:
        limits, requests = part.get("limits") or {}, part.get("requests") or {}
        if not {"cpu", "memory"} <= set(limits) or any(requests.get(name) != limits[name] for name in limits):
            return "Burstable"
    return "Guaranteed"


def initial_status(pod: Object) -> Object:
    """The status of a pod that nobody has looked at yet."""
    status: Object = {"phase": "Pending", "qosClass": quality_of_service(pod["spec"])}
    if pod["spec"].get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastProbeTime": None,
                "lastTransitionTime": pod["metadata"]["creationTimestamp"],
            }
        ]
    return status
