"""What was seen last of pods that are gone: what took them away, and from which node.

A pod may get its condition and be deleted between two passes (the garbage collector of pods does that). This is a help
for words only: a driver that starts anew knows nothing of it, and decides the same.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from tf_dist.cluster.api import Object
from tf_dist.core import names
from tf_dist.core.observed import PodView, pod_view

_MOST: Final = 5_000


class Departed:
    """The last version of pods that are gone, by job; the latest ``most``. Thread-safe."""

    def __init__(self, *, most: int = _MOST) -> None:
        self._most = most
        self._pods: OrderedDict[tuple[str, str], PodView] = OrderedDict()
        self._by_job: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def add(self, pod: Object) -> None:
        """A pod is gone."""
        job, view = names.owner_key(pod), pod_view(pod)
        if not job or view is None:
            return
        with self._lock:
            self._pods[job, view.name] = view
            self._by_job.setdefault(job, set()).add(view.name)
            if len(self._pods) > self._most:
                self._drop(*next(iter(self._pods)))

    def of(self, job: str) -> tuple[PodView, ...]:
        """Those of a job, by its ``names.owned_key``."""
        with self._lock:
            return tuple(self._pods[job, name] for name in sorted(self._by_job.get(job, ())))

    def forget(self, job: str, pods: tuple[PodView, ...]) -> None:
        """A pass has taken these into account."""
        with self._lock:
            for pod in pods:
                if self._pods.get((job, pod.name)) is pod:
                    self._drop(job, pod.name)

    def _drop(self, job: str, name: str) -> None:
        del self._pods[job, name]
        left = self._by_job[job]
        left.discard(name)
        if not left:
            del self._by_job[job]
