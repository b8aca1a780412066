"""What a launcher does in the seconds between SIGTERM and SIGKILL."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.client.jobs import StoredJob, now
from tf_dist.client.launch import contract
from tf_dist.client.launch.arguments import Options
from tf_dist.client.onlooking import Onlooker
from tf_dist.client.patience import PASSING, Patience
from tf_dist.cluster.api import Cluster
from tf_dist.core.dialects import suspend_patch
from tf_dist.core.status import Phase
from tf_dist.core.termination import Fate, OnTerm, fate
from tf_dist.core.times import parse_time
from tf_dist.errors import ClusterError, Conflict, NotFound

_PAUSE: Final = 1.0  # seconds at most between two requests: there may not be many left
_SHARE: Final = 0.75  # of the grace period, for what is to be done; the rest for the way out


@dataclass(frozen=True, slots=True)
class Stopping:
    """Brings a job to where a signal leaves it. ``home``: the workflow's namespace; ``say``: is told what is done."""

    cluster: Cluster
    job: StoredJob
    options: Options
    home: str
    say: Callable[[str], object]

    def stop(self, onlooker: Onlooker) -> Fate:
        """Do it, as far as the grace period allows, and wait until pods are gone; another signal ends the waiting."""
        until = time.monotonic() + self.options.grace * _SHARE
        found = self._fate()
        self.say(f"asked to stop: {found.why}; the job: {found.what}")
        try:
            match found.what:
                case OnTerm.DELETE:
                    self.delete(onlooker, until)
                case OnTerm.SUSPEND:
                    self._suspend(onlooker, until)
        except ClusterError as error:
            self.say(f"cannot {found.what} {self.job.shown}: {error}")
            return Fate(found.what, f"{found.why}, and that failed: {error}")
        return found

    def _fate(self) -> Fate:
        options = self.options
        if options.on_term is not None:
            return Fate(options.on_term, "as --on-term says")
        try:
            workflow = self._workflow()
        except ClusterError as error:
            return Fate(OnTerm.DELETE, f"the workflow cannot be read ({error})")
        deadline = parse_time(options.deadline)
        return fate(
            workflow,
            now=now(),
            deadline=deadline if deadline is not None and deadline > 0 else None,
            retried=options.retry < options.retries,
        )

    def _workflow(self) -> Mapping[str, Any] | None:
        """The workflow, None if it is gone; asked once, for the time is short."""
        if not self.options.workflow:
            return None
        try:
            found = self.cluster.get(contract.WORKFLOWS, self.home, self.options.workflow)
        except NotFound:
            return None
        return found if found["metadata"].get("uid") == self.options.workflow_uid else None

    def delete(self, onlooker: Onlooker, until: float | None) -> None:
        """Delete the job and see its pods go, up to ``until`` (monotonic seconds; None: as long as it takes)."""
        self._ask(
            until, lambda: self.cluster.delete(self.job.resource, self.job.namespace, self.job.name, uid=self.job.uid)
        )
        self._wait(onlooker, until, lambda: onlooker.watch.job is None and not onlooker.watch.pods)
        left = len(onlooker.watch.pods)
        if left:
            self.say(f"{self.job.shown} is deleted; {left} of its pods are still stopping")

    def _suspend(self, onlooker: Onlooker, until: float) -> None:
        stored = onlooker.watch.job or self.job
        patch = suspend_patch(stored.stored, True)
        metadata = patch.setdefault("metadata", {})
        metadata.setdefault("annotations", {})[contract.STOPPED_BY] = contract.LAUNCHER
        self._ask(until, lambda: self.cluster.patch(stored.resource, stored.namespace, stored.name, patch))
        self._wait(onlooker, until, lambda: _stopped(onlooker))

    def _ask(self, until: float | None, request: Callable[[], object]) -> None:
        """Until the cluster has taken it; ClusterError when it does not in time."""
        patience = Patience() if until is None else Patience(max(0.0, until - time.monotonic()), sleep=_short)
        while True:
            try:
                with suppress(NotFound, Conflict):  # gone already, and perhaps another in its place
                    request()
                return
            except PASSING as error:
                patience.failed(error)

    def _wait(self, onlooker: Onlooker, until: float | None, done: Callable[[], bool]) -> None:
        before = onlooker.signals
        while not done() and onlooker.signals == before:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return
            onlooker.step(left)


def _short(seconds: float) -> None:
    time.sleep(min(seconds, _PAUSE))


def _stopped(onlooker: Onlooker) -> bool:
    job = onlooker.watch.job
    return job is None or job.status.finished or (job.status.phase is Phase.ABORTED and not onlooker.watch.pods)
