"""The resource usage of a job: seconds of replicas and GPUs, the lost part of them, and the waiting time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of one resource, summed over its pieces: 8 GPUs for a minute are 480."""

    held: float = 0.0
    """While the gang was admitted, and the replica had not succeeded."""
    trained: float = 0.0
    """While containers ran, in runs that have ended."""
    lost: float = 0.0
    """The part of ``trained`` since the last checkpoint, or since the start, of runs that failed or were stopped."""

    def plus(self, pieces: float, *, held: float = 0.0, trained: float = 0.0, lost: float = 0.0) -> Self:
        """The sum with seconds of more pieces."""
        if not pieces:
            return self
        return replace(
            self,
            held=round(self.held + pieces * held, 3),
            trained=round(self.trained + pieces * trained, 3),
            lost=round(self.lost + pieces * lost, 3),
        )

    @property
    def goodput(self) -> float | None:
        """The share of the held time with training that was not lost, from 0 to 1; None if nothing was held."""
        return None if self.held <= 0 else round(max(0.0, min(1.0, (self.trained - self.lost) / self.held)), 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The resource usage of a job. Times are epoch seconds."""

    since: float | None = None
    """The time since which the job waits, or holds its resources. None: the job is new, is stopped, or has ended."""
    replicas_held: int = 0
    """Replicas that have held their resources since then. 0: the job waits."""
    gpus_held: float = 0.0
    """The GPUs of these replicas."""
    waited: float = 0.0
    """Seconds that the job waited for admission, until ``since``, and then for nodes."""
    replicas: Spent = Spent()
    """Seconds of replicas, until ``since``."""
    gpus: Spent = Spent()
    """Seconds of GPUs, until ``since``."""
    runs: Mapping[str, float] = field(default_factory=dict)
    """By replica, the time up to which runs of its container are counted, if the kubelet restarted the container."""

    def until(self, now: float) -> Self:
        """The usage including the time until ``now``, in which nothing changed."""
        if self.since is None or now <= self.since:
            return self
        seconds = now - self.since
        return replace(
            self,
            since=now,
            waited=self.waited if self.replicas_held else round(self.waited + seconds, 3),
            replicas=self.replicas.plus(self.replicas_held, held=seconds),
            gpus=self.gpus.plus(self.gpus_held, held=seconds),
        )

    @property
    def goodput(self) -> float | None:
        """The goodput of the job's GPUs, or of its replicas if it has held no GPUs."""
        return self.replicas.goodput if self.gpus.goodput is None else self.gpus.goodput


NO_USAGE = Usage()
