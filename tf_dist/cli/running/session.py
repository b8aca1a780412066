"""One run: watches a job to its end, and brings it to an end when it must not go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tf_dist.cli.following import Ended, Following, LogLine, Opener
from tf_dist.cli.jobs import StoredJob, now, pods_of
from tf_dist.cli.patience import PASSING
from tf_dist.cli.running.scene import Scene
from tf_dist.cli.running.views import View
from tf_dist.cli.watching import Item, JobWatch, Listed, Signalled, pods_in
from tf_dist.cluster.api import PODS, Cluster
from tf_dist.core.diagnose import Category, Level, diagnose
from tf_dist.core.gang.model import NEVER
from tf_dist.core.outcome import Outcome, outcome
from tf_dist.driver.signals import Signals
from tf_dist.errors import NotFound

_DRAIN: Final = 5.0  # seconds without a line after which the log of a container that has ended is given up
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
        self._scene = Scene(job.job)
        self._warned: set[str] = set()
        self._signal = 0
        self._signal_count = 0
        self._decided = False

    def run(self) -> Result:
        """Show the job until it has ended or was brought to an end."""
        with JobWatch(self._cluster, self._job) as watch:
            self._signals.listen(lambda number: watch.put(Signalled(number)))
            following = Following(self._job.job, self._manner.open_log(watch), watch.put)
            try:
                end = self._until_end(watch, following)
                seconds, self._decided = time.monotonic() - self._started, True
                self._announce(end)
                self._stop(watch, following, _CLEAN_UP if end is End.FINISHED else None)
                return Result(end, self._scene, seconds, self._signal)
            finally:
                following.close()

    def _until_end(self, watch: JobWatch, following: Following) -> End:
        while True:
            self._step(watch, following, self._patience())
            if self._signal:
                return End.SIGNAL
            if watch.job is None or outcome(self._scene.job, self._scene.status) is not Outcome.OPEN:
                return End.FINISHED
            if self._manner.gives_up and self._never_fits():
                return End.NEVER_FITS
            if self._deadline is not None and time.monotonic() >= self._deadline:
                return End.TIMEOUT

    def _never_fits(self) -> bool:
        return self._scene.status.reason in NEVER and self._scene.status.admission is None

    def _patience(self) -> float | None:
        """How long to wait for something to happen."""
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        known = [wait for wait in (left, self._view.tick) if wait is not None]
        return min(known) if known else None

    def _step(self, watch: JobWatch, following: Following, patience: float | None) -> bool:
        """Take in and show what has come; whether anything had."""
        batch = watch.take(patience)
        lines = [item for item in batch if isinstance(item, LogLine)]
        for pod in pods_in(batch):
            following.notice(pod)
        self._note(batch)
        scene = self._scene.with_lines(lines, time.monotonic())
        if watch.job is not None and len(lines) < len(batch) and not self._decided:
            scene = scene.with_objects(watch.job.status, list(watch.pods.values()))
        self._scene = scene
        self._view.show(scene, lines)
        self._warn(scene)
        return bool(batch)

    def _note(self, batch: list[Item]) -> None:
        for item in batch:
            match item:
                case Signalled():
                    self._signal = self._signal or item.number
                    self._signal_count += 1
                case Ended() if item.problem and item.problem not in self._warned:
                    self._warned.add(item.problem)
                    self._view.say(f"no more lines of {item.instance.container}: {item.problem}", "yellow")

    def _warn(self, scene: Scene) -> None:
        """Say once what keeps a replica from starting: nobody else is there who would see to it."""
        for one in diagnose(scene.job, scene.status, scene.pods, now()):
            if one.level is Level.WARNING and one.summary not in self._warned and one.category is not Category.FAILURE:
                self._warned.add(one.summary)
                self._view.say(": ".join(filter(None, (one.summary, one.detail, one.resolution))), "yellow")

    def _announce(self, end: End) -> None:
        why = {End.SIGNAL: "stopping", End.TIMEOUT: "the time is over: stopping"}.get(end)
        if why and self._manner.keep:
            self._view.say(f"{why} to look on; the job stays where it is", "yellow")
        elif why:
            self._view.say(f"{why}: pods get their grace period to end in; {self._manner.second}", "yellow")

    def _stop(self, watch: JobWatch, following: Following, longest: float | None) -> None:
        """Delete the job, wait until its pods have ended in their own time, read their last lines.

        Another signal cuts that short.
        """
        before = self._signal_count
        if longest is not None or self._manner.keep:
            # On a cluster the logs of a job go with it.
            self._catch_up(watch, following)
            self._read_out(watch, following, before)
        if self._manner.keep:
            return
        with suppress(NotFound):
            self._cluster.delete(self._job.resource, self._job.namespace, self._job.name, uid=self._job.uid)
        until = None if longest is None else time.monotonic() + longest
        while (watch.job is not None or watch.pods) and self._signal_count == before:
            if until is not None and time.monotonic() >= until:
                break
            self._step(watch, following, self._view.tick if until is None else max(0.0, until - time.monotonic()))
        self._drain(watch, following, before)

    def _catch_up(self, watch: JobWatch, following: Following) -> None:
        """Job and pods are watched apart: the job's end may be known before its pods' end, or even their beginning."""
        with suppress(*PASSING):
            pods = pods_of(self._cluster, self._job)
            watch.learn(Listed(PODS, pods))
            for pod in pods:
                following.notice(pod)

    def _drain(self, watch: JobWatch, following: Following, before: int) -> None:
        """The last lines, and whatever else has come."""
        self._read_out(watch, following, before)
        while self._step(watch, following, 0) and self._signal_count == before:
            pass

    def _read_out(self, watch: JobWatch, following: Following, before: int) -> None:
        """The last lines of what has ended: however many they are, but not for ever if none comes."""
        until = time.monotonic() + _DRAIN
        while following.pending(watch.ended) and self._signal_count == before and time.monotonic() < until:
            if self._step(watch, following, max(0.0, until - time.monotonic())):
                until = time.monotonic() + _DRAIN
