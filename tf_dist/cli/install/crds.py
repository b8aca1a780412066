"""CustomResourceDefinitions: TFJob, Queue and, for clusters without Volcano, Volcano's Job and its Commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tf_dist.cli.install.crd_schemas import QUEUE_SCHEMA, TFJOB_SCHEMA, VOLCANO_COMMAND_SCHEMA, VOLCANO_JOB_SCHEMA
from tf_dist.cli.install.install_options import InstallOptions, Manifest, metadata
from tf_dist.cli.install.schema_builders import Schema, without_rules
from tf_dist.cluster.printer_columns import (
    QUEUE_COLUMNS,
    TFJOB_COLUMNS,
    VOLCANO_JOB_COLUMNS,
    AdditionalPrinterColumn,
)

TFJOBS: Final = "tfjobs.kubeflow.org"
QUEUES: Final = "queues.tf-dist.dev"
VOLCANO_COMMANDS: Final = "commands.bus.volcano.sh"


def definitions(settings: InstallOptions) -> list[Manifest]:
    """Those that this installation brings, without those of other installations."""
    wanted = [tfjobs(), queues(), *([volcano_jobs(), volcano_commands()] if settings.volcano_jobs else [])]
    ours = [one for one in wanted if one["metadata"]["name"] not in settings.left_out]
    return ours if settings.knows_rules else [without_rules(one) for one in ours]


def tfjobs() -> Manifest:
    """``tfjobs.kubeflow.org``: v1 and v1alpha1, each job kept as it was written.

    There is no conversion, so the API server shows a job of either version under both, apiVersion exchanged;
    ``dialects.read`` goes by the layout of the spec.
    """
    # Not below status.replicaStatuses: that is a list in v1alpha1, and the server refuses a status in which it cannot
    # follow these paths, at whichever version the job was written.
    scale = {
        "specReplicasPath": ".spec.tfReplicaSpecs.Worker.replicas",
        "statusReplicasPath": ".status.tfDist.replicas.worker.running",
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
        "metadata": metadata(name),
        "spec": {
            "group": group,
            "scope": scope,
            "names": {**names, "categories": ["all"]} if shown_in_all else names,
            "conversion": {"strategy": "None"},
            "versions": versions,
        },
    }
