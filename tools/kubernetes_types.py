"""Writes tf_dist/core/openapi/kubernetes_types.json, the types of Kubernetes' own kinds, from its OpenAPI document.

python tools/kubernetes_types.py $(go mod download -json k8s.io/kubernetes@v1.35.4 | jq -r .Dir)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "tf_dist/core/openapi/kubernetes_types.json"
KINDS = {
    "": (
        "Pod Service ConfigMap Secret Event PersistentVolumeClaim Node Namespace ServiceAccount Endpoints ResourceQuota"
        " LimitRange"
    ),
    "batch": "Job",
    "coordination.k8s.io": "Lease",
    "discovery.k8s.io": "EndpointSlice",
    "networking.k8s.io": "NetworkPolicy",
    "node.k8s.io": "RuntimeClass",
    "policy": "PodDisruptionBudget Eviction",
    "rbac.authorization.k8s.io": "Role RoleBinding ClusterRole ClusterRoleBinding",
    "scheduling.k8s.io": "PriorityClass",
}
META = "io.k8s.apimachinery.pkg.apis.meta.v1"
# What the document calls text, or an object, and Kubernetes reads in its own way.
SCALARS = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "intOrString",
    f"{META}.Time": "time",
    f"{META}.MicroTime": "time",
    f"{META}.FieldsV1": "any",
}
# What the document requires, and API servers do not miss.
NOT_MISSED = (
    "HTTPHeader.value",
    "ISCSIVolumeSource.lun",
    "PreferredSchedulingTerm.preference",
    "SleepAction.seconds",
    "Sysctl.value",
    "discovery.EndpointSlice.endpoints",
    "scheduling.PriorityClass.value",
    "Event.metadata",
    "Event.involvedObject",
)
# Fields of other versions of Kubernetes than that of the document.
OTHER_VERSIONS = {
    "ObjectMeta": ["clusterName"],
    "PodSpec": ["evictionResponders", "schedulingGroup"],
    "VolumeMount": ["bindMountOptions"],
}
FORMATS = {"int32": "int32", "int64": "int64", "byte": "bytes", "double": "number"}


def kind_definitions(definitions: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """``apps/v1/Deployment`` and the name of its definition, of every kind that is served."""
    for name, definition in definitions.items():
        for one in definition.get("x-kubernetes-group-version-kind", ()):
            if one["version"] == "v1" and one["kind"] in KINDS.get(one["group"], "").split():
                yield "/".join(filter(None, (one["group"], "v1", one["kind"]))), name


def short_name(name: str) -> str:
    """``Container``, ``rbac.Role``: the core's types and those of all kinds stand without their group."""
    group, _, kind = name.removeprefix("io.k8s.api.").rsplit(".", 2)
    return kind if group == "core" or name.startswith(META) else f"{group}.{kind}"


def type_name(schema: Mapping[str, Any], reached: list[str]) -> str:
    """The type of a property as the table spells it; definitions that it names are added to ``reached``."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in SCALARS:
            return SCALARS[name]
        reached.append(name)
        return short_name(name)
    match schema.get("type"):
        case "array":
            return f"[]{type_name(schema['items'], reached)}"
        case "object" if "additionalProperties" in schema:
            return f"{{}}{type_name(schema['additionalProperties'], reached)}"
        case "object" | None:
            return "any"
        case kind:
            return FORMATS.get(schema.get("format", ""), str(kind))


def read_types(document: Mapping[str, Any]) -> dict[str, Any]:
    """The table: kinds by their apiVersion and kind, and the fields of all types that they are made of."""
    definitions = document["definitions"]
    kinds = dict(sorted(kind_definitions(definitions)))
    reached = [*kinds.values(), f"{META}.DeleteOptions"]
    types: dict[str, dict[str, str]] = {}
    for name in reached:  # it grows meanwhile
        definition = definitions[name]
        required = definition.get("required", ())
        short = short_name(name)
        fields = {
            field: type_name(schema, reached)
            + ("!" if field in required and f"{short}.{field}" not in NOT_MISSED else "")
            for field, schema in definition.get("properties", {}).items()
        }
        types[short] = dict(sorted((fields | dict.fromkeys(OTHER_VERSIONS.get(short, ()), "any")).items()))
    shown = {kind: short_name(name) for kind, name in kinds.items()}
    return {"kinds": shown, "types": dict(sorted(types.items()))}


def main() -> None:
    """Write the table, one line a type."""
    source = Path(sys.argv[1])
    table = read_types(json.loads((source / "api/openapi-spec/swagger.json").read_text()))
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(fields)}" for name, fields in table["types"].items())
    head = f'"kubernetes": {json.dumps(source.name.partition("@")[2])}, "kinds": {json.dumps(table["kinds"])}'
    TARGET.write_text(f'{{{head}, "types": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
