"""The structural schema of a TFJob: what the API server refuses at once, with the key that is wrong.

Both versions share it. The definition serves them without conversion, so an object that was written at one is checked
against the other whenever somebody writes it there, were it only its status; each version must take both layouts.
"""

from __future__ import annotations

from typing import Final

from tf_dist.cli.manifests import validations
from tf_dist.cli.manifests.shapes import (
    Schema,
    anything,
    choice,
    flag,
    list_of,
    mapping,
    mapping_of,
    number,
    pod_template,
    root,
    seconds,
    text,
    validated,
)
from tf_dist.cli.manifests.validations import MOST_CHARACTERS, SERVICE
from tf_dist.core.model import MOST_REPLICAS

_TEMPLATE: Final = validated(pod_template(), *validations.TEMPLATE)
_HOUSEKEEPING: Final = {
    "cleanPodPolicy": choice("Which pods go when the job is over.", "All", "Running", "None"),
    "ttlSecondsAfterFinished": seconds("When the job itself goes, after its end."),
    "activeDeadlineSeconds": seconds(
        "The longest it may be active, from the moment its gang has its place.", most=None
    ),
    "backoffLimit": number("How many restarts, of whatever kind, it may spend."),
}

_SCHEDULING: Final = mapping(
    "What gang admission needs to know.",
    {
        "minAvailable": number("How many pods must have room at once.", least=1),
        "queue": text("The queue it waits in."),
        "minResources": mapping_of("Not used: tf-dist adds up what the pods request.", anything("How much.")),
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
        "replicas": number("How many; 1 if not said.", most=MOST_REPLICAS),
        "restartPolicy": choice("What follows when one fails.", "Always", "OnFailure", "Never", "ExitCode"),
        "template": _TEMPLATE,
    },
    required=["template"],
)
_V1: Final = {
    "tfReplicaSpecs": validated(
        mapping_of("v1: the replicas by type: Chief, Master, PS, Worker, Evaluator.", _V1_REPLICAS, most=5),
        *validations.REPLICA_TYPES,
    ),
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
        "replicas": number("How many; 1 if not said.", most=MOST_REPLICAS),
        "tfPort": number("TensorFlow's port; 2222 if not said.", least=1, most=65535),
        "template": pod_template(bare=True),
    },
)
_CHIEF: Final = mapping(
    "The replica whose end is the job's.",
    {"replicaName": choice("Its type.", *_TYPES), "replicaIndex": number("Its index.")},
    required=["replicaName"],
)
_V1ALPHA1: Final = {
    "replicaSpecs": validated(
        list_of(
            "v1alpha1: the replicas, one entry a type.",
            validated(_V1ALPHA1_REPLICAS, *validations.ENTRY),
            least=1,
            most=len(_TYPES),
        ),
        *validations.ENTRIES,
    ),
    "RuntimeId": text("v1alpha1: a part of the names of pods and services."),
    "tfImage": text("v1alpha1: the image of parameter servers that name no program."),
    "terminationPolicy": mapping("v1alpha1: when the job has ended.", {"chief": _CHIEF}, required=["chief"]),
    "schedulerName": text("v1alpha1: the scheduler of its pods."),
    "cleanupPodPolicy": choice("v1alpha1: which pods go when the job is over.", "All", "Running", "None"),
    "min-instance": number("v1alpha1: the fewest workers.", most=MOST_REPLICAS),
    "max-instance": number("v1alpha1: the most workers.", most=MOST_REPLICAS),
    "batch-size": {"type": "integer", "format": "int64"},
    "modelName": {"type": "string"},
    "total-number": {"type": "integer", "format": "int64"},
}

_LAYOUTS: Final = [{"required": ["tfReplicaSpecs"]}, {"required": ["replicaSpecs"]}]

_SPEC: Final = mapping("The job: tfReplicaSpecs (v1) or replicaSpecs (v1alpha1).", {**_V1, **_V1ALPHA1})

TFJOB: Final[Schema] = validated(
    root(
        "A distributed TensorFlow job.",
        {**validated(_SPEC, *validations.TFJOB_SPEC), "oneOf": _LAYOUTS},
        mapping("How it stands, in the words of its version.", {"tfDist": mapping("What tf-dist remembers of it.")}),
        name=text("Its name, and the beginning of those of its pods.", longest=MOST_CHARACTERS, pattern=SERVICE),
    ),
    *validations.TFJOB,
)
