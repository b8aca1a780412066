"""Structural schemas of TFJob, Volcano's Job and Command, and Queue.

Both versions of TFJob share a schema. The definition serves them without conversion, so an object that was written at
one version is checked against the other whenever it is written there, even if only its status is. Each version must
take both layouts.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

from tf_dist.core.dialects import kubeflow_v1, kubeflow_v1alpha1, queue_resource, volcano
from tf_dist.core.dialects.queue_resource import MAX_SELECTOR_RULES
from tf_dist.core.dialects.volcano import ACTIONS, EVENTS, MAX_TASKS
from tf_dist.core.model.names import LABEL_KEY, LABEL_NAME, LONGEST_KEY, LONGEST_VALUE
from tf_dist.core.model.status_codec import FIELD
from tf_dist.core.model.timestamps import DURATION, MAX_DURATION_LENGTH
from tools.definitions import cel_rules
from tools.definitions.builders import (
    KEEPS,
    Schema,
    amount,
    anything,
    closed,
    list_of,
    mapping,
    mapping_of,
    number,
    pod_template,
    root,
    rules,
    text,
    validated,
)
from tools.definitions.cel_rules import LABEL, LABEL_OR_NOTHING, MOST_CHARACTERS, SERVICE
from tools.definitions.models import Extras, model_schema

_CLOSED: Final[Schema] = {KEEPS: None}
_LABEL_VALUE: Final = {"type": "string", "maxLength": LONGEST_VALUE, "pattern": f"^({LABEL_NAME})?$"}
# What the models cannot say: bounds by which an API server estimates the cost of a rule, and the rules.
_EXTRAS: Final[Extras] = {
    kubeflow_v1.Spec: {"tfReplicaSpecs": {"maxProperties": 5, **rules(cel_rules.REPLICA_TYPES)}},
    kubeflow_v1.Replicas: {"template": validated(pod_template(), *cel_rules.TEMPLATE)},
    kubeflow_v1alpha1.Spec: {"replicaSpecs": {"minItems": 1, "maxItems": 3, **rules(cel_rules.ENTRIES)}},
    kubeflow_v1alpha1.Replicas: {"": rules(cel_rules.ENTRY), "template": pod_template(bare=True)},
    volcano.Spec: {
        "tasks": {"minItems": 1, "maxItems": MAX_TASKS, **rules(cel_rules.TASKS)},
        "plugins": {"maxProperties": 4, **rules(cel_rules.PLUGINS)},
    },
    volcano.Task: {
        "": rules(cel_rules.TASK),
        "name": {"maxLength": MOST_CHARACTERS, "pattern": LABEL_OR_NOTHING},
        "template": pod_template(),
    },
    volcano.Policy: {
        "": {"required": ["action"], **rules(cel_rules.POLICY)},
        "action": {"enum": list(ACTIONS)},
        "event": {"enum": ["", *EVENTS]},
        "events": {"items": {"type": "string", "enum": list(EVENTS)}},
    },
    queue_resource.SpecShape: {
        "": _CLOSED,
        "recoveryTimeout": {"maxLength": MAX_DURATION_LENGTH, "pattern": DURATION},
        "priorityClasses": {"items": {"type": "string", "maxLength": 253}, "maxItems": 256},
    },
    queue_resource.QuotaShape: {
        "": {**_CLOSED, "required": ["nominal"]},
        **{key: {**_CLOSED, **amount("")} for key in ("nominal", "borrowingLimit", "lendingLimit")},
    },
    # Not closed: where a client does not ask for strict validation, a key that is dropped would open the queue to all.
    # tf-dist takes no job into a queue whose selector has a key that it does not know.
    queue_resource.SelectorShape: {
        "matchLabels": {"additionalProperties": _LABEL_VALUE},
        "matchExpressions": {"maxItems": MAX_SELECTOR_RULES},
    },
    queue_resource.RuleShape: {
        "": rules(cel_rules.SELECTOR_RULE),
        "key": {"maxLength": LONGEST_KEY, "pattern": f"^{LABEL_KEY}$"},
        "values": {"items": _LABEL_VALUE},
    },
    volcano.Volume: {
        "": {"required": ["mountPath", "volumeClaimName"]},
        "mountPath": {"pattern": "^/[^:]*$"},
        "volumeClaimName": {"minLength": 1},
    },
}


def _layout(model: type[BaseModel], version: str) -> dict[str, Schema]:
    """The keys of the spec of one version of TFJob, marked as its own."""
    keys: dict[str, Schema] = model_schema(model, _EXTRAS)["properties"]
    for one in keys.values():
        about = one["description"]
        one["description"] = f"{version}: {about[0].lower()}{about[1:]}"
    return keys


_MEMORY: Final = mapping(
    "What tf-dist knows of it, the same for jobs of each format.",
    {
        "state": anything("The state in one word, as kubectl get shows it."),
        "ready": anything("Replicas that run and are ready, or are done, of those wanted: 2/3."),
        "why": anything("The reason of the state in one word."),
        "message": anything("The reason of the state in a sentence."),
        "phase": anything("Pending, Running, Restarting, Completing, Completed, Failed, Aborted, Terminated."),
        "reason": anything("The reason of the phase."),
        "since": anything("When the phase began."),
        "created": anything("When tf-dist first saw it."),
        "startTime": anything("When its first pod ran."),
        "completionTime": anything("When it ended."),
        "outcome": anything("How it ended: kind, and the numbers of restarts, disruptions and preemptions."),
        "failure": anything("The failure that counts: replica, exit code, reason and message."),
        "admission": anything("When its gang was admitted, with how many replicas, on which nodes."),
        "counts": anything("Numbers of pods by replica type: pending, running, ready, succeeded, failed."),
        "attempts": anything("How often it, its tasks and its replicas were started."),
        "restarts": anything("Restarts after failures, by replica type."),
        "disruptions": anything("Restarts after disruptions, by replica type."),
        "lastError": anything("Why it cannot be reconciled now."),
        "acceptedSpec": anything("The spec in force: its generation, and itself while the present one is refused."),
        "refusedSpec": anything("The present spec if it is not in force, and why."),
        "selector": anything("The labels of its workers, for autoscalers."),
    },
)

_LAYOUTS: Final = [{"required": ["tfReplicaSpecs"]}, {"required": ["replicaSpecs"]}]

_TFJOB_SPEC: Final = mapping(
    "The job: tfReplicaSpecs (v1) or replicaSpecs (v1alpha1).",
    {**_layout(kubeflow_v1.Spec, "v1"), **_layout(kubeflow_v1alpha1.Spec, "v1alpha1")},
)

# What controllers of all releases wrote must stay valid: fields whose form differs between the versions have no type.
_TFJOB_STATUS: Final = mapping(
    "How it stands, in the words of its version. tfDist has what tf-dist knows of it.",
    {
        "conditions": list_of(
            "Its states: Created, Running, Restarting, Suspended, Succeeded, Failed; the last one is the present one. "
            "Before them SpecAccepted, Admitted and Stalled.",
            mapping(
                "One state.",
                {
                    "type": anything("Its name."),
                    "status": anything("Whether the job is in it: True, False or Unknown."),
                    "reason": anything("Why, in one word."),
                    "message": anything("Why, in a sentence."),
                    "lastUpdateTime": anything("When it was written."),
                    "lastTransitionTime": anything("When status changed."),
                    "observedGeneration": anything("SpecAccepted: the generation of the spec that it is about."),
                },
            ),
        ),
        "replicaStatuses": anything("Pods by replica type: a mapping in v1, a list in v1alpha1."),
        "startTime": anything("v1: when the first pod ran."),
        "completionTime": anything("v1: when it ended."),
        "phase": anything("v1alpha1: Creating, Running, CleanUp, Failed or Done."),
        "state": anything("v1alpha1: Unknown, Running, Succeeded or Failed."),
        "reason": anything("v1alpha1: why it waits or failed."),
        "runningReplicas": anything("v1alpha1: how many workers it has."),
        "enqueueScheduleTime": anything("v1alpha1: when it began to wait."),
        "startRunTime": anything("v1alpha1: when it began to run."),
        "jobFinishTime": anything("v1alpha1: when it ended."),
        FIELD: _MEMORY,
    },
)

TFJOB_SCHEMA: Final[Schema] = validated(
    root(
        "A distributed TensorFlow job.",
        {**validated(_TFJOB_SPEC, *cel_rules.TFJOB_SPEC), "oneOf": _LAYOUTS},
        _TFJOB_STATUS,
        name=text("Its name, and the beginning of those of its pods.", longest=MOST_CHARACTERS, pattern=SERVICE),
    ),
    *cel_rules.TFJOB,
)


_VOLCANO_STATUS: Final = mapping(
    "How it stands.",
    {
        "state": mapping(
            "The present phase.",
            {
                "phase": anything("Pending, Running, Restarting, Completing, Completed, Failed, Aborted, Terminated."),
                "reason": anything("Why, in one word."),
                "message": anything("Why, in a sentence."),
                "lastTransitionTime": anything("Since when."),
            },
        ),
        "conditions": anything("The phases that it has been in, with their times."),
        "minAvailable": anything("How many pods must have room at once."),
        "taskStatusCount": anything("Pods by task and phase."),
        **{key: anything(f"How many pods are {key}.") for key in ("pending", "running", "succeeded", "failed")},
        "terminating": anything("How many pods are being deleted."),
        "version": anything("How often it was restarted."),
        "retryCount": anything("How many attempts of maxRetry it has spent."),
        "runningDuration": anything("From its start to its end."),
        "controlledResources": anything("Its plugins and claims."),
        FIELD: _MEMORY,
    },
)

VOLCANO_JOB_SCHEMA: Final[Schema] = validated(
    root(
        "A job in Volcano's format.",
        validated(model_schema(volcano.Spec, _EXTRAS), *cel_rules.VOLCANO_SPEC),
        _VOLCANO_STATUS,
        name=text("Its name, and the beginning of those of its pods.", longest=MOST_CHARACTERS, pattern=LABEL),
    ),
    *cel_rules.VOLCANO,
)

_TARGET: Final = mapping(
    "The job, as in an owner reference.",
    {key: text("As in any reference.") for key in ("apiVersion", "kind", "name", "uid")},
    required=["apiVersion", "kind", "name", "uid"],
)
VOLCANO_COMMAND_SCHEMA: Final[Schema] = mapping(
    "An order to a job that is there: it is carried out once, and deleted.",
    {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "action": text("What to do, such as AbortJob or ResumeJob."),
        "target": _TARGET,
        "reason": text("Why, in a word."),
        "message": text("Why, in words."),
    },
)

_STATUS: Final = mapping(
    "How it stands.",
    {
        "pending": number("Gangs that wait."),
        "admitted": number("Gangs that have room."),
        "used": mapping_of("What its gangs and those of the queues below it hold.", amount("By resource.")),
        "borrowed": mapping_of("What of that is more than its own.", amount("By resource.")),
        "usage": text("Used of nominal, in words."),
        "share": text("How much of what is its own it holds, of the resource where that is most."),
        "message": text("What is wrong with it."),
    },
)

_QUEUE: Final = root(
    "A queue of gangs: who may hold how much, and who goes first.",
    model_schema(queue_resource.SpecShape, _EXTRAS),
    _STATUS,
)

QUEUE_SCHEMA: Final[Schema] = validated(closed(_QUEUE), *cel_rules.QUEUE)
