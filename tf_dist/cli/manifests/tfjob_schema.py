"""The structural schema of a TFJob: what the API server refuses at once, with the key that is wrong.

Both versions share it. The definition serves them without conversion, so an object that was written at one is checked
against the other whenever somebody writes it there, were it only its status; each version must take both layouts.
"""

from __future__ import annotations

from typing import Final

from tf_dist.cli.manifests.shapes import (
    Schema,
    anything,
    choice,
    flag,
    list_of,
    mapping,
    mapping_of,
    number,
    root,
    seconds,
    text,
)

_TEMPLATE: Final = mapping(
    "The pods to run, as in any workload.", {"metadata": mapping("Their labels."), "spec": mapping("What they run.")}
)
_HOUSEKEEPING: Final = {
    "cleanPodPolicy": choice("Which pods go when the job is over.", "All", "Running", "None"),
    "ttlSecondsAfterFinished": seconds("When the job itself goes, after its end."),
    "activeDeadlineSeconds": seconds("The longest it may be active, from the moment its gang has its place."),
    "backoffLimit": number("How many restarts, of whatever kind, it may spend."),
}

_SCHEDULING: Final = mapping(
    "What gang admission needs to know.",
    {
        "minAvailable": number("How many pods must have room at once.", least=1),
        "queue": text("The queue it waits in."),
        "minResources": anything("Not used: tf-dist adds up what the pods request."),
        "priorityClass": text("A PriorityClass: who goes first, and who makes room."),
        "scheduleTimeoutSeconds": seconds("How long its pods may wait for their nodes."),
    },
)
_RUN_POLICY: Final = mapping(
    "Limits and housekeeping.",
    {
        **_HOUSEKEEPING,
        "suspend": flag("Stop it, or do not start it yet."),
        "managedBy": text("Who drives it; tf-dist leaves it alone unless this is kubeflow.org/training-operator."),
        "schedulingPolicy": _SCHEDULING,
    },
)
_V1_REPLICAS: Final = mapping(
    "Replicas of one type.",
    {
        "replicas": number("How many; 1 if not said."),
        "restartPolicy": choice("What follows when one fails.", "Always", "OnFailure", "Never", "ExitCode"),
        "template": _TEMPLATE,
    },
    required=["template"],
)
_V1: Final = {
    "tfReplicaSpecs": mapping_of("v1: the replicas by type: Chief, Master, PS, Worker, Evaluator.", _V1_REPLICAS),
    "runPolicy": _RUN_POLICY,
    "successPolicy": choice("v1: when it has succeeded: the chief is done, or AllWorkers are.", "", "AllWorkers"),
    "enableDynamicWorker": flag("v1: workers may come and go."),
    **_HOUSEKEEPING,  # where v1.0 had them; they are honoured there, too
}

_TYPES: Final = ("MASTER", "PS", "WORKER")
_V1ALPHA1_REPLICAS: Final = mapping(
    "Replicas of one type.",
    {
        "tfReplicaType": choice("The type; MASTER if not said.", *_TYPES),
        "replicas": number("How many; 1 if not said."),
        "tfPort": number("TensorFlow's port; 2222 if not said.", least=1, most=65535),
        "template": _TEMPLATE,
    },
)
_CHIEF: Final = mapping(
    "The replica whose end is the job's.",
    {"replicaName": choice("Its type.", *_TYPES), "replicaIndex": number("Its index.")},
    required=["replicaName"],
)
_V1ALPHA1: Final = {
    "replicaSpecs": list_of("v1alpha1: the replicas, one entry a type.", _V1ALPHA1_REPLICAS),
    "RuntimeId": text("v1alpha1: a part of the names of pods and services."),
    "tfImage": text("v1alpha1: the image of parameter servers that name no program."),
    "terminationPolicy": mapping("v1alpha1: when the job has ended.", {"chief": _CHIEF}, required=["chief"]),
    "schedulerName": text("v1alpha1: the scheduler of its pods."),
    "cleanupPodPolicy": choice("v1alpha1: which pods go when the job is over.", "All", "Running", "None"),
    "min-instance": number("v1alpha1: the fewest workers."),
    "max-instance": number("v1alpha1: the most workers."),
    "batch-size": {"type": "integer"},
    "modelName": {"type": "string"},
    "total-number": {"type": "integer"},
}

_LAYOUTS: Final = [{"required": ["tfReplicaSpecs"]}, {"required": ["replicaSpecs"]}]

TFJOB: Final[Schema] = root(
    "A distributed TensorFlow job.",
    {**mapping("The job: tfReplicaSpecs (v1) or replicaSpecs (v1alpha1).", {**_V1, **_V1ALPHA1}), "oneOf": _LAYOUTS},
    mapping("How it stands, in the words of its version.", {"tfDist": mapping("What tf-dist remembers of it.")}),
)
