"""The gang schedulers by name. A module of its own, for the start-up time of commands."""

from __future__ import annotations

from enum import StrEnum


class GangScheduler(StrEnum):
    """The system that decides when and where a gang starts: tf-dist itself, or a scheduler of the cluster."""

    BUILTIN = "builtin"
    VOLCANO = "volcano"
    COSCHEDULING = "coscheduling"
    KUEUE = "kueue"
    WORKLOAD = "workload"
