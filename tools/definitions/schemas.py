"""Structural schemas of TFJob, Volcano's Job and Command, and Queue.

Both versions share it. The definition serves them without conversion, so an object that was written at one is checked
against the other whenever it is written there, were it only its status; each version must take both layouts.
"""

from __future__ import annotations

from typing import Final

from tf_dist.core.dialects.volcano_policies import ACTIONS, EVENTS
from tf_dist.core.dialects.volcano_schema import MAX_TASKS
from tf_dist.core.gang.resources.queue_resource import MAX_SELECTOR_RULES
from tf_dist.core.model.job import MAX_REPLICAS
from tf_dist.core.model.names import (
    LABEL_KEY,
    LABEL_NAME,
    LONGEST_KEY,
    LONGEST_VALUE,
    MULTIKUEUE,
    OPERATORS,
    TRAINING_OPERATOR,
)
from tf_dist.core.model.status_codec import FIELD
from tf_dist.core.model.timestamps import DURATION, MAX_DURATION_LENGTH
from tools.definitions import cel_rules
from tools.definitions.builders import (
    Schema,
    amount,
    anything,
    choice,
    closed,
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
from tools.definitions.cel_rules import LABEL, LABEL_OR_NOTHING, MOST_CHARACTERS, SERVICE

_TEMPLATE: Final = validated(pod_template(), *cel_rules.TEMPLATE)
_HOUSEKEEPING: Final = {
    "cleanPodPolicy": choice("Which pods go when the job is over.", "All", "Running", "None"),
    "ttlSecondsAfterFinished": seconds("When the job itself goes, after its end."),
    "activeDeadlineSeconds": seconds("The longest it may be active, from the admission of its gang.", most=None),
    "backoffLimit": number("How many restarts, of any kind, it may spend."),
}

_SCHEDULING: Final = mapping(
    "What gang admission needs to know.",
    {
        "minAvailable": number("How many pods must have room at once."),
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
        "managedBy": choice(
            "Who runs it; tf-dist leaves it alone unless this is kubeflow.org/training-operator.",
            TRAINING_OPERATOR,
            MULTIKUEUE,
        ),
        "schedulingPolicy": _SCHEDULING,
    },
)
_V1_REPLICAS: Final = mapping(
    "Replicas of one type.",
    {
        "replicas": number("How many; 1 if not said.", most=MAX_REPLICAS),
        "restartPolicy": choice("What follows when one fails.", "Always", "OnFailure", "Never", "ExitCode"),
        "template": _TEMPLATE,
    },
    required=["template"],
)
_V1: Final = {
    "tfReplicaSpecs": validated(
        mapping_of("v1: the replicas by type: Chief, Master, PS, Worker, Evaluator.", _V1_REPLICAS, most=5),
        *cel_rules.REPLICA_TYPES,
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
        "replicas": number("How many; 1 if not said.", most=MAX_REPLICAS),
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
            validated(_V1ALPHA1_REPLICAS, *cel_rules.ENTRY),
            least=1,
            most=len(_TYPES),
        ),
        *cel_rules.ENTRIES,
    ),
    "RuntimeId": text("v1alpha1: a part of the names of pods and services."),
    "tfImage": text("v1alpha1: the image of parameter servers that name no program."),
    "terminationPolicy": mapping("v1alpha1: when the job has ended.", {"chief": _CHIEF}, required=["chief"]),
    "schedulerName": text("v1alpha1: the scheduler of its pods."),
    "cleanupPodPolicy": choice("v1alpha1: which pods go when the job is over.", "All", "Running", "None"),
    "min-instance": number("v1alpha1: the fewest workers.", most=MAX_REPLICAS),
    "max-instance": number("v1alpha1: the most workers.", most=MAX_REPLICAS),
    "batch-size": {"type": "integer", "format": "int64"},
    "modelName": {"type": "string"},
    "total-number": {"type": "integer", "format": "int64"},
}

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

_TFJOB_SPEC: Final = mapping("The job: tfReplicaSpecs (v1) or replicaSpecs (v1alpha1).", {**_V1, **_V1ALPHA1})

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


_INT32_MAX: Final = 2**31 - 1

_VOLCANO_POLICY: Final = mapping(
    "An answer.",
    {
        "action": choice("What follows.", *ACTIONS),
        "event": choice("An event.", "", *EVENTS),
        "events": list_of("Several events.", choice("An event.", *EVENTS)),
        "exitCode": number("An exit code.", least=-_INT32_MAX),
        "timeout": text("How long after that: 10m."),
    },
    required=["action"],
)
_POLICIES: Final = list_of("What follows from an event or an exit code.", validated(_VOLCANO_POLICY, *cel_rules.POLICY))
_DEPENDS: Final = mapping(
    "Tasks that must be up before this one starts.",
    {"name": list_of("Their names.", text("A task.")), "iteration": choice("Any of them, or all.", "any", "all")},
)
_TASK: Final = mapping(
    "A group of equal pods.",
    {
        "name": text("Its name; default0, default1, … if not said.", longest=MOST_CHARACTERS, pattern=LABEL_OR_NOTHING),
        "replicas": number("How many.", most=MAX_REPLICAS),
        "minAvailable": number("How many must run at once; all of them if not said."),
        "template": pod_template(),
        "policies": _POLICIES,
        "topologyPolicy": choice("Not used.", "none", "best-effort", "restricted", "single-numa-node"),
        "maxRetry": number("Restarts of the task; -1: no limit.", least=-1),
        "dependsOn": _DEPENDS,
    },
    required=["template"],
)
_VOLUME: Final = mapping(
    "A claim that every pod has.",
    {
        "mountPath": text("Where.", pattern="^/[^:]*$"),
        "volumeClaimName": {**text("Which."), "minLength": 1},
        "volumeClaim": mapping("Not made by tf-dist."),
    },
    required=["mountPath", "volumeClaimName"],
)
_VOLCANO_TASKS: Final = list_of("The groups of pods.", validated(_TASK, *cel_rules.TASK), least=1, most=MAX_TASKS)
_VOLCANO_SPEC: Final = mapping(
    "The job.",
    {
        "minAvailable": number("How many pods must have room at once."),
        "tasks": validated(_VOLCANO_TASKS, *cel_rules.TASKS),
        "policies": _POLICIES,
        "plugins": validated(
            mapping_of(
                "Volcano's plugins, with their arguments.",
                {**list_of("Arguments.", text("An argument.")), "nullable": True},
                most=4,
            ),
            *cel_rules.PLUGINS,
        ),
        "volumes": list_of("Claims that every pod has.", _VOLUME),
        "queue": text("The queue it waits in."),
        "schedulerName": text("The scheduler of its pods."),
        "priorityClassName": text("A PriorityClass: who goes first, and who makes room."),
        "maxRetry": number("How many attempts it has; 3 if not said."),
        "minSuccess": number("How many pods that are done make it succeed.", least=1),
        "ttlSecondsAfterFinished": seconds("When the job itself goes, after its end."),
        "runningEstimate": anything("Not used."),
        "networkTopology": anything("Not used."),
    },
    required=["tasks"],
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
        validated(_VOLCANO_SPEC, *cel_rules.VOLCANO_SPEC),
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

_QUOTA: Final = closed(
    mapping(
        "How much of a resource its jobs may hold.",
        {
            "nominal": amount("What is its own."),
            "borrowingLimit": amount("The most it may take of what others leave idle; no limit if not said."),
            "lendingLimit": amount("The most of its own that others may take while it is idle; all of it if not said."),
        },
        required=["nominal"],
    )
)
_VALUE: Final = text("A value of a label.", longest=LONGEST_VALUE, pattern=f"^({LABEL_NAME})?$")
_EXPRESSION: Final = mapping(
    "A rule about one label.",
    {
        "key": text("The label.", longest=LONGEST_KEY, pattern=f"^{LABEL_KEY}$"),
        "operator": choice("How its value is compared.", *OPERATORS),
        "values": list_of("What In and NotIn compare with; Exists and DoesNotExist have none.", _VALUE),
    },
    required=["key", "operator"],
)
# Not closed: where a client does not ask for strict validation, a key that is dropped would open the queue to all.
# tf-dist takes no job into a queue whose selector has a key that it does not know.
_SELECTOR: Final = mapping(
    "Whose jobs may be in it, by the labels of their namespace: of every namespace if not said, or if it is empty.",
    {
        "matchLabels": mapping_of("Labels that a namespace must have.", _VALUE),
        "matchExpressions": list_of(
            "Rules that its labels must fulfil.",
            validated(_EXPRESSION, *cel_rules.SELECTOR_RULE),
            most=MAX_SELECTOR_RULES,
        ),
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

_QUEUE_SPEC: Final = mapping(
    "Its share and its rules.",
    {
        "parent": text("The queue above it; queues below the same one borrow from each other what is idle."),
        "weight": number("Its share of what is free, against the queues beside it; 1 if not said.", least=1),
        "quotas": mapping_of("By resource: cpu, memory, nvidia.com/gpu, pods.", _QUOTA),
        "order": choice(
            "StrictFIFO: no job passes the head. BestEffortFIFO: who fits now goes, if it does not delay the head.",
            "StrictFIFO",
            "BestEffortFIFO",
        ),
        "preemption": choice(
            "Whom its gangs may have stopped. LowerPriority: gangs of lower priority in this queue. Reclaim, if "
            "not said: besides, gangs of other queues that hold what is this one's.",
            "Never",
            "LowerPriority",
            "Reclaim",
        ),
        "defaultPriority": number("The priority of jobs that name none; 0 if not said.", least=None),
        "priority": number("Queues of a higher one are served first; 0 if not said.", least=None),
        "reclaimable": flag("Whether gangs of other queues may take back what it borrowed; true if not said."),
        "recoveryTimeout": text(
            "How long a gang that was complete may lack nodes before it goes on with fewer replicas or gives its "
            "place back, such as 90s or 10m; 5m if not said.",
            longest=MAX_DURATION_LENGTH,
            pattern=DURATION,
        ),
        "namespaceSelector": _SELECTOR,
        "priorityClasses": list_of(
            "The priority classes that its jobs may name; any but system-* if not said.",
            text("Name of a PriorityClass.", longest=253),
            most=256,
        ),
        "default": flag("Whether it is the queue of jobs that name none; of several, the first by name is."),
    },
)

_QUEUE: Final = root("A queue of gangs: who may hold how much, and who goes first.", closed(_QUEUE_SPEC), _STATUS)

QUEUE_SCHEMA: Final[Schema] = validated(closed(_QUEUE), *cel_rules.QUEUE)
