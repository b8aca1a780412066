"""The gang schedulers by name, apart from the job for the start-up time of commands."""

from __future__ import annotations

from enum import StrEnum


class GangScheduler(StrEnum):
    """Who decides when a gang starts, and where: tf-dist itself, or a system that the cluster has for it."""

    BUILTIN = "builtin"
    VOLCANO = "volcano"
    COSCHEDULING = "coscheduling"
    KUEUE = "kueue"
    WORKLOAD = "workload"
