"""Looking on: what happens to one job is taken from its mailbox, kept as a scene, and shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from tf_dist.client.following import Ended, Following, LogLine, Opener
from tf_dist.client.jobs import StoredJob, now, pods_of
from tf_dist.client.patience import PASSING
from tf_dist.client.scene import Scene
from tf_dist.client.watching import Item, JobWatch, Listed, Mailbox, Signalled, pods_in
from tf_dist.cluster.api import PODS, Cluster
from tf_dist.core.diagnose import Category, Level, diagnose
from tf_dist.driver.signals import Signals

_DRAIN: Final = 15.0  # seconds without a line after which the log of a container that has ended is given up


class View(Protocol):
    """Shows what happens; ``tick`` is how often it wants to be called when nothing does (None: never)."""

    tick: float | None

    def show(self, scene: Scene, lines: list[LogLine]) -> None:
        """The scene has changed, or lines have come."""

    def say(self, text: str, style: str = "") -> None:
        """A word of tf-dist itself."""

    def close(self) -> None:
        """Leave the place to the summary."""


class Onlooker:
    """What is seen of a job, in ``scene``; ``signal``: the first that came, ``signals``: how many have.

    ``decided``: how it came out is known: from then on the scene takes in lines and nothing else.
    """

    def __init__(self, cluster: Cluster, job: StoredJob, view: View, watch: Mailbox, following: Following) -> None:
        self.scene = Scene(job.job)
        self.watch = watch
        self.signal = 0
        self.signals = 0
        self.decided = False
        self._cluster = cluster
        self._job = job
        self._view = view
        self._following = following
        self._warned: set[str] = set()

    def step(self, patience: float | None) -> bool:
        """Take in and show what has come, waiting up to ``patience`` seconds for something; whether anything had."""
        batch = self.watch.take(patience)
        lines = [item for item in batch if isinstance(item, LogLine)]
        for pod in pods_in(batch):
            self._following.notice(pod)
        self._note(batch)
        scene = self.scene.with_lines(lines, time.monotonic())
        if self.watch.job is not None and len(lines) < len(batch) and not self.decided:
            scene = scene.with_objects(self.watch.job.status, list(self.watch.pods.values()))
        self.scene = scene
        self._view.show(scene, lines)
        self._warn(scene)
        return bool(batch)

    def _note(self, batch: list[Item]) -> None:
        for item in batch:
            match item:
                case Signalled():
                    self.signal = self.signal or item.number
                    self.signals += 1
                case Ended() if item.problem and item.problem not in self._warned:
                    self._warned.add(item.problem)
                    self._view.say(f"no more lines of {item.instance.container}: {item.problem}", "yellow")

    def _warn(self, scene: Scene) -> None:
        """Say once what keeps a replica from starting: nobody else is there who would see to it."""
        for one in diagnose(scene.job, scene.status, scene.pods, now()):
            if one.level is Level.WARNING and one.summary not in self._warned and one.category is not Category.FAILURE:
                self._warned.add(one.summary)
                self._view.say(": ".join(filter(None, (one.summary, one.detail, one.resolution))), "yellow")

    def catch_up(self) -> None:
        """Job and pods are watched apart: the job's end may be known before its pods' end, or even their beginning."""
        with suppress(*PASSING):
            pods = pods_of(self._cluster, self._job)
            self.watch.learn(Listed(PODS, pods))
            for pod in pods:
                self._following.notice(pod)

    @property
    def unread(self) -> bool:
        """Whether lines of a container that has ended may still come."""
        return self._following.pending(self.watch.ended)

    def drain(self, before: int) -> None:
        """The last lines, and whatever else has come; cut short by another signal than the ``before`` there were."""
        self._read_out(before)
        while self.step(0) and self.signals == before:
            pass

    def _read_out(self, before: int) -> None:
        """The last lines of what has ended: however many they are, but not for ever if none comes."""
        until = time.monotonic() + _DRAIN
        while self.unread and self.signals == before and time.monotonic() < until:
            if self.step(max(0.0, until - time.monotonic())):
                until = time.monotonic() + _DRAIN


@contextmanager
def looking_on(
    cluster: Cluster, job: StoredJob, view: View, signals: Signals, open_log: Callable[[JobWatch], Opener]
) -> Iterator[Onlooker]:
    """Look on as long as this lasts; signals come into the mailbox, too."""
    with JobWatch(cluster, job) as watch:
        signals.listen(lambda number: watch.put(Signalled(number)))
        following = Following(job.job, open_log(watch), watch.put)
        try:
            yield Onlooker(cluster, job, view, watch, following)
        finally:
            following.close()
