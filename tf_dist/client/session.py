"""One run: watches a job to its end, and brings it to an end when it must not go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tf_dist.client.following import Opener
from tf_dist.client.jobs import StoredJob
from tf_dist.client.onlooking import Onlooker, View, looking_on
from tf_dist.client.scene import Scene
from tf_dist.client.watching import JobWatch
from tf_dist.cluster.api import Cluster
from tf_dist.core.gang.model import NEVER
from tf_dist.core.outcome import Outcome, outcome
from tf_dist.driver.signals import Signals
from tf_dist.errors import NotFound

_CLEAN_UP: Final = 10.0  # seconds for what still runs when the job has finished to end in its own time


class End(StrEnum):
    """Why a session ended."""

    FINISHED = "finished"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    NEVER_FITS = "never-fits"


@dataclass(frozen=True, slots=True)
class Result:
    """How a run came out. ``scene`` is that of the moment when its end was decided."""

    end: End
    scene: Scene
    seconds: float
    signal: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a session deals with the place where its job runs.

    ``open_log``: how logs are read there. ``gives_up``: the place will never grow, so that a job too large for it is
    given up. ``keep``: the job stays there when the session ends. ``second``: what a second signal does.
    """

    open_log: Callable[[JobWatch], Opener]
    gives_up: bool = True
    keep: bool = False
    second: str = "once more to kill them at once"


class Session:
    """``timeout``: seconds after which the run is given up (None: never)."""

    def __init__(
        self, cluster: Cluster, job: StoredJob, view: View, signals: Signals, manner: Manner, *, timeout: float | None
    ) -> None:
        self._cluster = cluster
        self._manner = manner
        self._job = job
        self._view = view
        self._signals = signals
        self._started = time.monotonic()
        self._deadline = None if timeout is None else self._started + timeout

    def run(self) -> Result:
        """Show the job until it has ended or was brought to an end."""
        with looking_on(self._cluster, self._job, self._view, self._signals, self._manner.open_log) as onlooker:
            end = self._until_end(onlooker)
            seconds, onlooker.decided = time.monotonic() - self._started, True
            self._announce(end)
            self._stop(onlooker, _CLEAN_UP if end is End.FINISHED else None)
            return Result(end, onlooker.scene, seconds, onlooker.signal)

    def _until_end(self, onlooker: Onlooker) -> End:
        while True:
            onlooker.step(self._patience())
            scene = onlooker.scene
            if onlooker.signal:
                return End.SIGNAL
            if onlooker.watch.job is None or outcome(scene.job, scene.status) is not Outcome.OPEN:
                return End.FINISHED
            if self._manner.gives_up and scene.status.reason in NEVER and scene.status.admission is None:
                return End.NEVER_FITS
            if self._deadline is not None and time.monotonic() >= self._deadline:
                return End.TIMEOUT

    def _patience(self) -> float | None:
        """How long to wait for something to happen."""
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        known = [wait for wait in (left, self._view.tick) if wait is not None]
        return min(known) if known else None

    def _announce(self, end: End) -> None:
        why = {End.SIGNAL: "stopping", End.TIMEOUT: "the time is over: stopping"}.get(end)
        if why and self._manner.keep:
            self._view.say(f"{why} to look on; the job stays where it is", "yellow")
        elif why:
            self._view.say(f"{why}: pods get their grace period to end in; {self._manner.second}", "yellow")

    def _stop(self, onlooker: Onlooker, longest: float | None) -> None:
        """Delete the job, wait until its pods have ended in their own time, read their last lines.

        Another signal cuts that short.
        """
        before, watch = onlooker.signals, onlooker.watch
        if longest is not None or self._manner.keep:
            # On a cluster the logs of a job go with it.
            onlooker.catch_up()
            onlooker.drain(before)
        if self._manner.keep:
            return
        with suppress(NotFound):
            self._cluster.delete(self._job.resource, self._job.namespace, self._job.name, uid=self._job.uid)
        until = None if longest is None else time.monotonic() + longest
        while (watch.job is not None or watch.pods) and onlooker.signals == before:
            if until is not None and time.monotonic() >= until:
                break
            onlooker.step(self._view.tick if until is None else max(0.0, until - time.monotonic()))
        onlooker.drain(before)
