"""The gang schedulers by name. This is a separate module to keep the start-up time of commands short."""

from __future__ import annotations

from enum import StrEnum


class GangScheduler(StrEnum):
    """The system that decides when and where a gang starts: tf-dist itself, or a scheduler of the cluster."""

    BUILTIN = "builtin"
    VOLCANO = "volcano"
    COSCHEDULING = "coscheduling"
    KUEUE = "kueue"
    WORKLOAD = "workload"
