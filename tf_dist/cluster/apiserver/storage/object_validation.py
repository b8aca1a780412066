"""Validation of names, labels and annotations; defaults and validation of pods."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from tf_dist.cluster.api import Object
from tf_dist.core.api.names import is_label_key, is_label_value
from tf_dist.core.dialects.field_errors import MISSING, FieldErrors
from tf_dist.core.dialects.pod_rules.typed_values import check_rules
from tf_dist.core.dialects.pod_template import check_spec, require_container
from tf_dist.errors import Problem

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
# No vowels and no look-alikes, so that a random suffix spells nothing.
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5
_GENERATED_MAX = 63


class NameRule(StrEnum):
    """The family of names that a kind takes."""

    SUBDOMAIN = "a lowercase RFC 1123 subdomain"
    LABEL = "a lowercase RFC 1123 label"
    LABEL_1035 = "a DNS-1035 label"
    PATH_SEGMENT = "a path segment"


_RULES: Mapping[NameRule, tuple[re.Pattern[str], int, str]] = {
    NameRule.SUBDOMAIN: (
        re.compile(rf"{_LABEL}(\.{_LABEL})*"),
        253,
        "must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric",
    ),
    NameRule.LABEL: (
        re.compile(_LABEL),
        63,
        "must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric",
    ),
    NameRule.LABEL_1035: (
        re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?"),
        63,
        "must consist of lower case alphanumeric characters or '-', start with a letter, and end with an alphanumeric",
    ),
    NameRule.PATH_SEGMENT: (re.compile(r"(?!\.{1,2}$)[^/%]+"), 253, "may not be '.' or '..' or contain '/' or '%'"),
}


def name_problem(rule: NameRule, name: str, path: str) -> Problem | None:
    """What is wrong with a name, if anything."""
    pattern, longest, text = _RULES[rule]
    if not name:
        return Problem(path, "Required value: name or generateName is required")
    if len(name) > longest:
        return Problem(path, f'Invalid value: "{name}": must be no more than {longest} characters')
    if not pattern.fullmatch(name):
        return Problem(path, f'Invalid value: "{name}": {rule} {text}')
    return None


def generate_name(prefix: str, dice: random.Random) -> str:
    """A name from a ``generateName``: the prefix, cut where a label would overflow, and five random characters."""
    return prefix[: _GENERATED_MAX - _SUFFIX_LENGTH] + "".join(dice.choices(_SUFFIX, k=_SUFFIX_LENGTH))


def label_problems(labels: Any, path: str = "metadata.labels") -> Iterator[Problem]:
    """What is wrong with a map of labels."""
    for key, value in _string_map(labels):
        if not is_label_key(key):
            yield Problem(path, f'Invalid value: "{key}": must be a qualified name of at most 63 characters')
        if not isinstance(value, str):
            yield Problem(f"{path}.{key}", f"Invalid value: {value!r}: must be a string")
        elif not is_label_value(value):
            yield Problem(path, f'Invalid value: "{value}": a valid label is at most 63 of [-A-Za-z0-9_.]')


def annotation_problems(annotations: Any) -> Iterator[Problem]:
    """What is wrong with a map of annotations (their total size is bounded by 256 KiB)."""
    size = 0
    for key, value in _string_map(annotations):
        if not is_label_key(key):
            yield Problem("metadata.annotations", f'Invalid value: "{key}": must be a qualified name')
        if not isinstance(value, str):
            yield Problem(f"metadata.annotations.{key}", f"Invalid value: {value!r}: must be a string")
        else:
            size += len(key) + len(value)
    if size > 256 * 1024:
        yield Problem("metadata.annotations", "Too long: must have at most 262144 bytes")


def _string_map(value: Any) -> Iterator[tuple[str, Any]]:
    return iter(value.items()) if isinstance(value, Mapping) else iter(())


_SPEC_DEFAULTS = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
    "enableServiceLinks": True,
}
DEFAULT_GRACE_SECONDS = 30


def set_pod_defaults(pod: Object) -> None:
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


def pod_spec_problems(pod: Object) -> Iterator[Problem]:
    """Every rule that a pod breaks whose values are of their types, in the words of an API server."""
    out = FieldErrors(strict=False, advice=False)
    require_container(pod, (), out)
    check_rules(pod["spec"], "PodSpec", ("spec",), out)
    check_spec(pod["spec"], ("spec",), out)
    for problem in out.errors:
        if problem.message == MISSING:
            yield Problem(problem.path, "Required value", problem.hint)
        elif problem.message.startswith("unknown value"):
            yield Problem(problem.path, problem.message.replace("unknown value", "Unsupported value:", 1), problem.hint)
        else:
            yield Problem(problem.path, f"Invalid value: {problem.message}", problem.hint)


def pod_update_problems(old: Object, new: Object) -> Iterator[Problem]:
    """A pod's spec is fixed, but for images, deadlines, tolerations and gates."""
    if _immutable_spec(old["spec"], gated=bool(old["spec"].get("schedulingGates"))) != _immutable_spec(
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


def _immutable_spec(spec: Object, *, gated: bool) -> Object:
    free = {"activeDeadlineSeconds", "tolerations", "schedulingGates", "containers", "initContainers"}
    if gated:
        free |= {"nodeSelector", "affinity"}
    fixed: Object = {field: value for field, value in spec.items() if field not in free}
    for field in ("containers", "initContainers"):
        fixed[field] = [{**container, "image": ""} for container in spec.get(field) or ()]
    return fixed


def qos_class(spec: Object) -> str:
    """BestEffort, Burstable or Guaranteed, from the containers' requests and limits."""
    wanted = [container.get("resources") or {} for container in all_containers(spec)]
    if not any(part.get("requests") or part.get("limits") for part in wanted):
        return "BestEffort"
    for part in wanted:
        limits, requests = part.get("limits") or {}, part.get("requests") or {}
        if not {"cpu", "memory"} <= set(limits) or any(requests.get(name) != limits[name] for name in limits):
            return "Burstable"
    return "Guaranteed"


def initial_pod_status(pod: Object) -> Object:
    """The initial status of a pod."""
    status: Object = {"phase": "Pending", "qosClass": qos_class(pod["spec"])}
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
