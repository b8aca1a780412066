"""The structural schema of a Volcano Job, for clusters without Volcano."""

from __future__ import annotations

from typing import Final

from tf_dist.cli.manifests import validations
from tf_dist.cli.manifests.shapes import (
    Schema,
    anything,
    choice,
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
from tf_dist.cli.manifests.validations import LABEL, LABEL_OR_NOTHING, MOST_CHARACTERS
from tf_dist.core.dialects.volcano_policies import ACTIONS, EVENTS
from tf_dist.core.dialects.volcano_schema import MOST_TASKS
from tf_dist.core.model import MOST_REPLICAS

_INT32_MAX: Final = 2**31 - 1

_POLICY: Final = mapping(
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
_POLICIES: Final = list_of("What follows from an event or an exit code.", validated(_POLICY, *validations.POLICY))
_DEPENDS: Final = mapping(
    "Tasks that must be up before this one starts.",
    {"name": list_of("Their names.", text("A task.")), "iteration": choice("Any of them, or all.", "any", "all")},
)
_TASK: Final = mapping(
    "A group of equal pods.",
    {
        "name": text("Its name; default0, default1, … if not said.", longest=MOST_CHARACTERS, pattern=LABEL_OR_NOTHING),
        "replicas": number("How many.", most=MOST_REPLICAS),
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
_TASKS: Final = list_of("The groups of pods.", validated(_TASK, *validations.TASK), least=1, most=MOST_TASKS)
_SPEC: Final = mapping(
    "The job.",
    {
        "minAvailable": number("How many pods must have room at once."),
        "tasks": validated(_TASKS, *validations.TASKS),
        "policies": _POLICIES,
        "plugins": validated(
            mapping_of(
                "Volcano's plugins, with their arguments.",
                {**list_of("Arguments.", text("An argument.")), "nullable": True},
                most=3,
            ),
            *validations.PLUGINS,
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

VOLCANO_JOB: Final[Schema] = validated(
    root(
        "A job in Volcano's format.",
        validated(_SPEC, *validations.VOLCANO_SPEC),
        mapping("How it stands.", {"tfDist": mapping("What tf-dist remembers of it.")}),
        name=text("Its name, and the beginning of those of its pods.", longest=MOST_CHARACTERS, pattern=LABEL),
    ),
    *validations.VOLCANO,
)
