"""CustomResourceDefinitions: TFJob, Queue and, for clusters without Volcano, Volcano's Job and its Commands.

``python -m tools.definitions`` writes them into the Helm chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_dist.client.connection import PART_OF, TF_DIST
from tf_dist.client.yaml_files import to_yaml
from tf_dist.cluster.printer_columns import (
    QUEUE_COLUMNS,
    TFJOB_COLUMNS,
    VOLCANO_JOB_COLUMNS,
    AdditionalPrinterColumn,
)
from tools.definitions.builders import Schema
from tools.definitions.schemas import QUEUE_SCHEMA, TFJOB_SCHEMA, VOLCANO_COMMAND_SCHEMA, VOLCANO_JOB_SCHEMA

Manifest = dict[str, Any]


def tfjobs() -> Manifest:
    """``tfjobs.kubeflow.org``: v1 and v1alpha1, each job kept as it was written.

    There is no conversion, so the API server shows a job of either version under both, apiVersion exchanged;
    ``dialects.read`` goes by the layout of the spec.
    """
    # Not below status.replicaStatuses: that is a list in v1alpha1, and the server refuses a status in which it cannot
    # follow these paths, at whichever version the job was written.
    scale = {
        "specReplicasPath": ".spec.tfReplicaSpecs.Worker.replicas",
        "statusReplicasPath": ".status.tfDist.counts.worker.running",
        "labelSelectorPath": ".status.tfDist.selector",
    }
    versions = [
        _version("v1", TFJOB_SCHEMA, TFJOB_COLUMNS, scale=scale),
        _version("v1alpha1", TFJOB_SCHEMA, TFJOB_COLUMNS, storage=False),
    ]
    return _definition("kubeflow.org", "TFJob", versions, short=["tfj"])


def queues() -> Manifest:
    """``queues.tf-dist.dev``: cluster-wide."""
    version = _version("v1alpha1", QUEUE_SCHEMA, QUEUE_COLUMNS)
    return _definition("tf-dist.dev", "Queue", [version], short=["tfq"], scope="Cluster", shown_in_all=False)


def volcano_jobs() -> Manifest:
    """``jobs.batch.volcano.sh``."""
    version = _version("v1alpha1", VOLCANO_JOB_SCHEMA, VOLCANO_JOB_COLUMNS)
    return _definition("batch.volcano.sh", "Job", [version], short=["vcjob", "vj"])


def volcano_commands() -> Manifest:
    """``commands.bus.volcano.sh``: what ``vcctl`` asks of a job. A Command has no spec and no status."""
    version = _version("v1alpha1", VOLCANO_COMMAND_SCHEMA, ())
    del version["subresources"], version["additionalPrinterColumns"]
    return _definition("bus.volcano.sh", "Command", [version], short=[], shown_in_all=False)


def _column(column: AdditionalPrinterColumn) -> Manifest:
    found: Manifest = {"name": column.name, "type": column.type, "jsonPath": f".{column.path}"}
    return {**found, "priority": column.priority} if column.priority else found


def _version(
    name: str,
    schema: Schema,
    columns: Sequence[AdditionalPrinterColumn],
    *,
    storage: bool = True,
    scale: Manifest | None = None,
) -> Manifest:
    return {
        "name": name,
        "served": True,
        "storage": storage,
        "subresources": {"status": {}, **({"scale": scale} if scale else {})},
        "additionalPrinterColumns": [_column(one) for one in columns],
        "schema": {"openAPIV3Schema": schema},
    }


def _definition(
    group: str,
    kind: str,
    versions: list[Manifest],
    *,
    short: list[str],
    scope: str = "Namespaced",
    shown_in_all: bool = True,
) -> Manifest:
    plural = f"{kind.lower()}s"
    names: Manifest = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        **({"shortNames": short} if short else {}),
    }
    name = f"{plural}.{group}"
    # A group that ends in k8s.io or kubernetes.io would need an approval; these do not.
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name, "labels": {PART_OF: TF_DIST}},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {**names, "categories": ["all"]} if shown_in_all else names,
            "conversion": {"strategy": "None"},
            "versions": versions,
        },
    }


def templates() -> dict[str, str]:
    """The chart's templates of the definitions, by their names."""
    wanted = [
        (tfjobs(), ""),
        (queues(), ""),
        (volcano_jobs(), ".Values.volcanoJobs"),
        (volcano_commands(), ".Values.volcanoJobs"),
    ]
    return {f"{one['metadata']['name']}.yaml": _template(one, condition) for one, condition in wanted}


def _template(definition: Manifest, condition: str) -> str:
    """A definition unless another installation owns it. The annotation that keeps it depends on the chart's values."""
    name = definition["metadata"]["name"]
    wanted = " ".join(
        filter(None, ("and .Values.crds.enabled", condition, f'(not (include "tf-dist.foreign" "{name}"))'))
    )
    text = to_yaml(definition)
    assert "{{" not in text, "the template would have to escape it"
    kept = "  {{- if .Values.crds.keep }}\n  annotations:\n    helm.sh/resource-policy: keep\n  {{- end }}\n"
    head, metadata, body = text.partition("metadata:\n")
    return (
        "{{- /* Generated by python -m tools.definitions. */}}\n"
        f"{{{{- if {wanted} }}}}\n{head}{metadata}{kept}{body}{{{{- end }}}}\n"
    )
