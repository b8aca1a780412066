"""The structural schema of a queue of gangs."""

from __future__ import annotations

from typing import Final

from tf_dist.cli.manifests import validations
from tf_dist.cli.manifests.shapes import (
    Schema,
    amount,
    choice,
    list_of,
    mapping,
    mapping_of,
    number,
    root,
    text,
    validated,
)
from tf_dist.core.dialects.limits import DURATION, LONGEST_DURATION
from tf_dist.core.dialects.selector import MOST_RULES
from tf_dist.core.labels import LABEL_KEY, LABEL_NAME, LONGEST_KEY, LONGEST_VALUE, OPERATORS

_QUOTA: Final = mapping(
    "How much of a resource its jobs may hold.",
    {
        "nominal": amount("What is its own."),
        "borrowingLimit": amount("The most it may take of what others leave idle; no limit if not said."),
        "lendingLimit": amount("The most of its own that others may take while it is idle; all of it if not said."),
    },
    required=["nominal"],
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
_SELECTOR: Final = mapping(
    "Whose jobs may be in it, by the labels of their namespace: of every namespace if not said, or if it is empty.",
    {
        "matchLabels": mapping_of("Labels that a namespace must have.", _VALUE),
        "matchExpressions": list_of(
            "Rules that its labels must fulfil.", validated(_EXPRESSION, *validations.SELECTOR_RULE), most=MOST_RULES
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

_QUEUE: Final = root(
    "A queue of gangs: who may hold how much, and who goes first.",
    mapping(
        "Its share and its rules.",
        {
            "parent": text("The queue above it; queues below the same one borrow from each other what is idle."),
            "weight": number("Its share of what is free, against the queues beside it; 1 if not said.", least=1),
            "quotas": mapping_of("By resource: cpu, memory, nvidia.com/gpu, pods.", _QUOTA),
            "order": choice(
                "StrictFIFO: nobody passes the head. BestEffortFIFO: who fits now goes, if it does not delay the head.",
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
            "recoveryTimeout": text(
                "How long a gang that was complete may lack nodes before it goes on with fewer replicas or gives its "
                "place back, such as 90s or 10m; 5m if not said.",
                longest=LONGEST_DURATION,
                pattern=DURATION,
            ),
            "namespaceSelector": _SELECTOR,
        },
    ),
    _STATUS,
)

QUEUE: Final[Schema] = validated(_QUEUE, *validations.QUEUE)
