"""One try of a step: looks on its job to the end, tells the workflow how it goes, and stops in time when asked to."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import Final

from tf_dist.client import exits
from tf_dist.client.jobs import StoredJob, now
from tf_dist.client.launch import contract
from tf_dist.client.launch.outputs import Outputs, ProgressFile, progress_outputs
from tf_dist.client.launch.stopping import Stopping
from tf_dist.client.launch.usage import Usage
from tf_dist.client.onlooking import Onlooker, View
from tf_dist.cluster.api import Cluster, Object
from tf_dist.core import conclusion
from tf_dist.core.conclusion import Limits
from tf_dist.core.diagnose import diagnose
from tf_dist.core.model import CleanPodPolicy
from tf_dist.core.outcome import Outcome, outcome, suspended
from tf_dist.core.progress import Progress
from tf_dist.core.status import SUCCESSFUL, Status
from tf_dist.core.times import parse_time
from tf_dist.errors import ClusterError

_EVERY: Final = 1.0  # seconds between two writes of what training tells
_SETTLE: Final = 30.0  # seconds for the driver to see to the pods of a job that has ended


class End(StrEnum):
    """Why a try ended; the value is the status that it reports, where the job itself has none."""

    FINISHED = "Finished"
    DELETED = "Deleted"
    SIGNAL = "Terminated"
    PENDING = "PendingTimeout"
    TIMEOUT = "Timeout"
    IMAGE = "ImageUnavailable"
    INVALID = "InvalidSpec"


_WORDS: Final = {Outcome.SUCCEEDED: "Succeeded", Outcome.FAILED: "Failed", Outcome.EVICTED: "Evicted"}
_CODES: Final = {Outcome.SUCCEEDED: exits.DONE, Outcome.EVICTED: exits.RETRYABLE}
_DELETED: Final = "somebody deleted the job"
_LIMITS: Final = {
    conclusion.End.TIMEOUT: End.TIMEOUT,
    conclusion.End.NOT_ADMITTED: End.PENDING,
    conclusion.End.IMAGE: End.IMAGE,
    conclusion.End.INVALID: End.INVALID,
}


class Launch:
    """``view``: what is shown; ``outputs`` and ``progress``: what is told; ``stopping``: what a signal does."""

    def __init__(
        self,
        cluster: Cluster,
        job: StoredJob,
        view: View,
        outputs: Outputs,
        progress: ProgressFile,
        stopping: Stopping,
        limits: Limits,
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._view = view
        self._outputs = outputs
        self._progress = progress
        self._stopping = stopping
        self._usage = Usage()
        self._started = time.monotonic()
        self._limits = limits
        self._why = ""
        self._told = 0.0
        self._complained = ""

    def run(self, onlooker: Onlooker) -> int:
        """See the job to its end; the exit code. ClusterError when it cannot be seen any more."""
        end = self._until_end(onlooker)
        onlooker.decided = True
        match end:
            case End.SIGNAL:
                return self._stop(onlooker)
            case End.PENDING | End.TIMEOUT | End.IMAGE | End.INVALID:
                self._view.say(f"{self._why}: deletes {self._job.shown}")
                self._tell(onlooker, self._end_values(onlooker, end))
                self._stopping.delete(onlooker, until=None)
            case End.FINISHED:
                self._tell(onlooker, self._end_values(onlooker, end))
                self._see_off(onlooker)
        return self._report(onlooker, end)

    # While it goes on

    def _until_end(self, onlooker: Onlooker) -> End:
        while True:
            onlooker.step(self._patience(onlooker))
            self._usage.note(onlooker.watch.pods, now())
            if (end := self._end(onlooker)) is not None:
                return end
            self._tell_now_and_then(onlooker)

    def _end(self, onlooker: Onlooker) -> End | None:
        scene, status = onlooker.scene, onlooker.scene.status
        if onlooker.watch.job is None:
            self._why = _DELETED
            return End.SIGNAL if onlooker.signal else End.DELETED
        result = outcome(scene.job, status)
        if result is not Outcome.OPEN and not (result is Outcome.STOPPED and suspended(status)):
            return End.FINISHED  # whatever else is asked: what it has come to is told
        if onlooker.signal:
            return End.SIGNAL
        found = conclusion.conclude(scene.job, self._dated(status), scene.pods, self._limits, now())
        if found is None or found.end not in _LIMITS:
            return None
        self._why = found.message
        return _LIMITS[found.end]

    def _patience(self, onlooker: Onlooker) -> float | None:
        """How long to wait for something to happen: for ever, unless a limit is near."""
        due = conclusion.next_due(self._dated(onlooker.scene.status), self._limits, now())
        return None if due is None else max(0.0, due - now())

    def _dated(self, status: Status) -> Status:
        """Where no driver has written a status yet, the job has waited since it was made."""
        made = parse_time(self._job.stored["metadata"].get("creationTimestamp"))
        return status if status.created is not None else replace(status, created=made)

    def _tell_now_and_then(self, onlooker: Onlooker) -> None:
        """States at once, and what training tells not more often than people look."""
        scene = onlooker.scene
        values = {"status": scene.state, "reason": scene.status.why, "message": scene.status.told}
        if scene.result.checkpoint:
            values["checkpoint"] = scene.result.checkpoint
        if time.monotonic() - self._told >= _EVERY:
            self._told = time.monotonic()
            values |= progress_outputs(scene.result)
            self._progress.show(scene.result)
        self._put(values)

    # How it ends

    def _end_values(self, onlooker: Onlooker, end: End) -> dict[str, str]:
        scene, failure = onlooker.scene, onlooker.scene.status.failure
        result = outcome(scene.job, scene.status)
        word = _WORDS.get(result, scene.state) if end is End.FINISHED else end.value
        failed = failure is not None and result is not Outcome.SUCCEEDED
        return {
            "status": word,
            "reason": scene.status.why if end is End.FINISHED else end.value,
            "message": self._why or scene.status.told,
            "replica": failure.replica if failed and failure else "",
            "exit-code": "" if not failed or failure is None or failure.code is None else str(failure.code),
        }

    def _tell(self, onlooker: Onlooker, values: dict[str, str]) -> None:
        """Everything that is known."""
        self._usage.note(onlooker.watch.pods, now())
        used = {
            "gpu-seconds": f"{self._usage.gpu_seconds(now()):.0f}",
            "duration": f"{time.monotonic() - self._started:.0f}",
        }
        self._put(progress_outputs(onlooker.scene.result) | used | values)

    def _put(self, values: dict[str, str]) -> None:
        self._outputs.put(values)
        if self._outputs.problem and self._outputs.problem != self._complained:
            self._complained = self._outputs.problem
            self._view.say(self._outputs.problem)

    def _stop(self, onlooker: Onlooker) -> int:
        """In the time that is left before SIGKILL."""
        before = {"status": End.SIGNAL.value, "reason": End.SIGNAL.value}
        self._tell(onlooker, {**before, "message": "the launcher was asked to stop"})
        fate = self._stopping.stop(onlooker)
        self._tell(onlooker, {**before, "message": f"the launcher was asked to stop: {fate.why} ({fate.what} job)"})
        return exits.SIGNALLED + onlooker.signal

    def _see_off(self, onlooker: Onlooker) -> None:
        """Its last lines, and nothing left that its policy takes away: afterwards nobody may be there to do it.

        A signal cuts that short: pods that were asked to end do so by themselves.
        """
        onlooker.catch_up()
        onlooker.drain(0)
        until = time.monotonic() + _SETTLE
        while self._unsettled(onlooker) and not onlooker.signal and time.monotonic() < until:
            onlooker.step(max(0.0, until - time.monotonic()))

    def _unsettled(self, onlooker: Onlooker) -> bool:
        job = onlooker.watch.job
        if job is None:
            return False
        if not job.status.finished:
            return True
        if job.job.run_policy.clean_pods is CleanPodPolicy.NONE:
            return False
        return any(_goes_on(pod) for pod in onlooker.watch.pods.values())

    def _report(self, onlooker: Onlooker, end: End) -> int:
        """The last word, to people and to the workflow; and on the job, so that it counts as told."""
        scene, values = onlooker.scene, self._end_values(onlooker, end)
        succeeded = end is End.FINISHED and scene.status.phase in SUCCESSFUL
        self._progress.show(scene.result, done=succeeded)
        if end is End.FINISHED and not succeeded:
            for one in diagnose(scene.job, scene.status, scene.pods, now()):
                self._view.say("\n".join(filter(None, (f"{one.level}: {one.summary}", one.detail, one.resolution))))
        self._tell(onlooker, values)
        if end is End.FINISHED:
            self._note_reported()
        self._view.say(_last_line(self._job, values, scene.result))
        match end:
            case End.FINISHED:
                return _CODES.get(outcome(scene.job, scene.status), exits.FAILED)
            case End.PENDING:
                return exits.RETRYABLE
        return exits.FAILED

    def _note_reported(self) -> None:
        """Not being able to costs no more than telling it once more at the next try."""
        patch = {"metadata": {"annotations": {contract.REPORTED: "true"}, "uid": self._job.uid}}
        with suppress(ClusterError):
            self._cluster.patch(self._job.resource, self._job.namespace, self._job.name, patch)


def _last_line(job: StoredJob, values: Mapping[str, str], progress: Progress) -> str:
    told = [f"{name}={value:g}" for name, value in sorted(progress.metrics.items())]
    told += [f"checkpoint={progress.checkpoint}"] if progress.checkpoint else []
    message = f" ({values['message']})" if values["message"] else ""
    return f"{job.shown} {values['status']}{message}{': ' if told else ''}{' '.join(told)}"


def _goes_on(pod: Object) -> bool:
    """Whether nobody has asked it to end."""
    alive = (pod.get("status") or {}).get("phase") in ("Pending", "Running")
    return alive and "deletionTimestamp" not in pod["metadata"]
