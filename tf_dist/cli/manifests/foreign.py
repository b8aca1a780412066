"""A definition that somebody else installed: whose it is, and what tf-dist misses in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.cli.manifests.names import Object
from tf_dist.core.pruned_status import CONDITION

_PRESERVED: Final = "x-kubernetes-preserve-unknown-fields"


@dataclass(frozen=True, slots=True)
class Difference:
    """What is otherwise than in tf-dist's definition, and what follows from it."""

    what: str
    so: str


def differences(found: Object, ours: Object) -> list[Difference]:
    """What the definition in the cluster lacks of ours; nothing if it serves as well."""
    return [*_of_versions(found, ours), *_of_status(found), *_of_spec(found), *_of_faces(found, ours)]


def _served(definition: Object) -> dict[str, Mapping[str, Any]]:
    return {one["name"]: one for one in definition["spec"]["versions"] if one.get("served")}


def _of_versions(found: Object, ours: Object) -> Iterator[Difference]:
    there, wanted = _served(found), _served(ours)
    missing = [name for name in wanted if name not in there]
    if not missing:
        return
    served = ", ".join(there) or "no version"
    if "v1" in missing:
        yield Difference(f"it serves {served}, not v1", "tf-dist finds no jobs there: it needs v1")
    if "v1alpha1" in missing:
        carried = "write them as v1: tf-dist convert FILE --to kubeflow.org/v1"
        yield Difference(f"it serves {served}, not v1alpha1", f"jobs in that format are refused; {carried}")


def _of_status(found: Object) -> Iterator[Difference]:
    v1 = _served(found).get("v1")
    if v1 is None:
        return
    if "status" not in (v1.get("subresources") or {}):
        yield Difference("it has no status subresource", "tf-dist cannot write how a job stands, and will not drive it")
    elif not keeps(v1, "status.tfDist.phase"):
        if keeps(v1, "status.conditions"):
            follows = f"tf-dist keeps what it remembers of a job in the condition {CONDITION} instead"
        else:
            follows = "tf-dist cannot remember anything of a job, and will not drive it"
        yield Difference("it drops status.tfDist from a job's status", follows)


def _of_spec(found: Object) -> Iterator[Difference]:
    v1 = _served(found).get("v1")
    if v1 is None:
        return
    lost = [key for key in ("suspend", "schedulingPolicy.queue") if not keeps(v1, f"spec.runPolicy.{key}")]
    if lost:
        yield Difference(
            f"it drops {' and '.join(f'spec.runPolicy.{key}' for key in lost)}", "jobs cannot be told these things"
        )


def _of_faces(found: Object, ours: Object) -> Iterator[Difference]:
    v1, own = _served(found).get("v1"), _served(ours)["v1"]
    if v1 is None:
        return
    there = {column["name"] for column in v1.get("additionalPrinterColumns") or ()}
    missing = [column["name"] for column in own["additionalPrinterColumns"] if column["name"] not in there]
    if missing:
        yield Difference(f"kubectl get shows no {', '.join(missing)}", "tf-dist get shows them")
    if "scale" not in (v1.get("subresources") or {}):
        yield Difference("it has no scale subresource", "kubectl scale and autoscalers do not work on jobs")


def keeps(version: Mapping[str, Any], path: str) -> bool:
    """Whether an object of this version may have something at a dotted path, so that the API server stores it."""
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    for key in path.split("."):
        known = (schema.get("properties") or {}).get(key, schema.get("additionalProperties"))
        if isinstance(known, Mapping):
            schema = known
        else:
            return bool(schema.get(_PRESERVED) or known is True)
    return True
