"""The structural schema of a queue of gangs."""

from __future__ import annotations

from typing import Final

from tf_dist.cli.manifests.shapes import Schema, amount, choice, mapping, mapping_of, number, root, text

_QUOTA: Final = mapping(
    "How much of a resource its jobs may hold.",
    {
        "nominal": amount("What is its own."),
        "borrowingLimit": amount("The most it may take of what others of its cohort leave; no limit if not said."),
        "lendingLimit": amount("The most of its own that others may take while it is idle; all of it if not said."),
    },
    required=["nominal"],
)
_VICTIMS: Final = ("Never", "LowerPriority")
_PREEMPTION: Final = mapping(
    "Whose gangs may be ended to make room for one of this queue's.",
    {
        "withinQueue": choice("In this queue.", *_VICTIMS),
        "reclaimWithinCohort": choice("In queues that borrow what is this one's.", *_VICTIMS, "Any"),
    },
)

QUEUE: Final[Schema] = root(
    "A queue of gangs: who may hold how much, and who goes first.",
    mapping(
        "Its share and its rules.",
        {
            "parent": text("The queue above it; queues below the same one are a cohort and borrow from each other."),
            "weight": number("Its share of what is free, against the queues beside it; 1 if not said.", least=1),
            "quotas": mapping_of("By resource: cpu, memory, nvidia.com/gpu, pods.", _QUOTA),
            "order": choice(
                "StrictFIFO: nobody passes the head. BestEffortFIFO: who fits now goes, if it does not delay the head.",
                "StrictFIFO",
                "BestEffortFIFO",
            ),
            "preemption": _PREEMPTION,
            "defaultPriority": number("The priority of jobs that name none.", least=None),
        },
    ),
    mapping("How it stands.", {"pending": number("Gangs that wait."), "admitted": number("Gangs that have room.")}),
)
