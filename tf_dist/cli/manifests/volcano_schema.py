"""The structural schema of a Volcano Job, for clusters without Volcano."""

from __future__ import annotations

from typing import Final

from tf_dist.cli.manifests.shapes import (
    Schema,
    anything,
    list_of,
    mapping,
    mapping_of,
    number,
    root,
    seconds,
    text,
)

_POLICIES: Final = list_of("What follows from an event or an exit code.", mapping("An answer."))
_TASK: Final = mapping(
    "A group of equal pods.",
    {
        "name": text("Its name; default0, default1, … if not said."),
        "replicas": number("How many."),
        "minAvailable": number("How many must run at once; all of them if not said."),
        "template": mapping(
            "The pods to run.", {"metadata": mapping("Their labels."), "spec": mapping("What they run.")}
        ),
        "policies": _POLICIES,
        "maxRetry": number("Restarts of the task; -1: no limit.", least=-1),
        "dependsOn": mapping("Tasks that must be up before this one starts."),
    },
    required=["template"],
)

VOLCANO_JOB: Final[Schema] = root(
    "A job in Volcano's format.",
    mapping(
        "The job.",
        {
            "minAvailable": number("How many pods must have room at once."),
            "tasks": list_of("The groups of pods.", _TASK),
            "policies": _POLICIES,
            "plugins": mapping_of("Volcano's plugins, with their arguments.", anything("Arguments.")),
            "queue": text("The queue it waits in."),
            "schedulerName": text("The scheduler of its pods."),
            "priorityClassName": text("A PriorityClass: who goes first, and who makes room."),
            "maxRetry": number("How many attempts it has; 3 if not said."),
            "minSuccess": number("How many pods that are done make it succeed.", least=1),
            "ttlSecondsAfterFinished": seconds("When the job itself goes, after its end."),
        },
        required=["tasks"],
    ),
    mapping("How it stands.", {"tfDist": mapping("What tf-dist remembers of it.")}),
)
