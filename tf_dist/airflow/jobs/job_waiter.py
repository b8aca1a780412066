"""Job waiter: waits for one job on behalf of a task, and writes the task's log."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import zip_longest
from typing import Any, Final

from tf_dist.airflow.informers.job_informer import SharedJobInformer
from tf_dist.airflow.informers.subscription import Subscription
from tf_dist.airflow.jobs.event_payload import event_payload, exception_first
from tf_dist.airflow.jobs.task_log import LineFormat, LinesWriter, LineWriter
from tf_dist.client.job_display import OWN_NAME, LineView, prefix_width, prefixed_line
from tf_dist.client.log_follower import LogLines
from tf_dist.client.monitor import JobEvent, JobMonitor, JobSnapshot, WaitSteps
from tf_dist.client.session_host import SessionHost
from tf_dist.client.stored_jobs import StoredJob, leader_problems
from tf_dist.client.wait import Take
from tf_dist.cluster.api import Cluster, LogOptions
from tf_dist.core.model.job import Job
from tf_dist.core.model.timestamps import format_micro_time, parse_time
from tf_dist.core.pipeline.session import ENDED, EndCause, SessionEnd, SessionPolicy, follow, task_policy

_DRAIN: Final = 5.0  # seconds without a line after which reading the log of an ended container stops
_CLEAN_UP: Final = 10.0  # seconds for the controller's clean-up after the end
_CHECK: Final = 0.5  # seconds between two checks whether a thread must stop
_TAIL: Final = 200  # lines of each log that are read for the result if logs are not wanted
_SOON: Final = 40.0
_RARELY: Final = 3600.0  # maximum seconds between two checks whether anyone leads a job
_MICROSECONDS: Final = len("2026-11-27T12:00:00.000000")
FAILURE: Final = "red"
_FAILED: Final = re.compile(r"(job )?\S+ is Failed\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOptions:
    """The options of a wait."""

    policy: SessionPolicy = field(default_factory=task_policy)
    """The goal and the limits."""
    get_logs: bool = True
    """Write the log lines of the replicas. False: the logs are read only for the result."""
    results: bool = True
    """The result of the job is wanted."""
    tail: int | None = None
    """The number of last lines of each log; None: all lines."""
    leader_check: float = _SOON
    """Seconds until the waiter checks whether anyone leads the job, if this process does not."""


class _LeaderCheck:
    """Checks from time to time whether anyone leads a job that this process does not lead.

    Each check takes two requests. The first is after ``first`` seconds, and later checks are less frequent, because a
    thousand jobs may wait at once.
    """

    def __init__(self, cluster: Cluster, first: float) -> None:
        self._cluster = cluster
        self._pause, self._due = first, time.monotonic() + first
        self._said = ""

    @property
    def left(self) -> float:
        """Seconds until the next check."""
        return self._due - time.monotonic()

    def news(self, job: StoredJob) -> str:
        """The finding of a check; "" for none, or if the previous check reported the same finding."""
        found = next(iter(leader_problems(self._cluster, [job])), None)
        said = f"{found.summary} ({found.resolution})" if found else ""
        self._said, before = said, self._said
        self.put_off()
        return "" if said == before else said

    def put_off(self) -> None:
        """Delay the next check, and make checks less frequent."""
        self._pause = min(_RARELY, max(_SOON, 2 * self._pause))
        self._due = time.monotonic() + self._pause


@lru_cache(maxsize=256)
def _prefixed(width: int) -> Callable[[str, str], str]:
    """One function for all jobs with the same width."""
    return partial(prefixed_line, width)


class TaskLogView(LineView):
    """Writes states and lines to the log of a task: ``worker-0 | step=1 loss=0.5``.

    ``lines``: also write the lines of replicas. ``error`` gets failures of replicas and of the job. ``write_lines``
    gets the lines of replicas with their own timestamps, by which Airflow sorts a log.
    """

    def __init__(
        self,
        job: Job,
        write: LineWriter,
        *,
        lines: bool,
        error: LineWriter | None = None,
        write_lines: LinesWriter | None = None,
    ) -> None:
        super().__init__(write, _prefixed(max(prefix_width(job), len(OWN_NAME))))
        self._lines, self._write_line = lines, write
        self._error, self._write_all = error or write, write_lines or self._write_each
        self._last, self._repeats = ("", "", ""), 0

    def say(self, text: str, style: str = "") -> None:
        """See ``LineView``."""
        write = self._error if style == FAILURE or _FAILED.match(text) else self._write_line
        for part in text.splitlines():
            write(self._line(OWN_NAME, part))

    def _write_lines(self, snapshot: JobSnapshot, lines: list[LogLines]) -> None:
        for some in lines if self._lines else ():
            self._write_all(some.texts, some.written, partial(self._record, some.source))

    def _write_each(self, texts: Sequence[str], written: Sequence[str], form: LineFormat) -> None:
        for text, time_ in zip_longest(texts, written, fillvalue=""):
            self._write_line(*form(text, time_))

    def _record(self, source: str, text: str, written: str) -> tuple[str, str]:
        """A line and its time. Airflow shows only one of several equal lines, so repeated lines get later times."""
        this = source, text, written[:_MICROSECONDS]
        self._repeats = self._repeats + 1 if this == self._last else 0
        self._last = this
        moment = parse_time(written) if self._repeats else None
        time_ = written if moment is None else format_micro_time(moment + self._repeats / 1e6)
        return self._line(source, text), time_


class JobWaiter(SessionHost):
    """Waits for the job of ``subscription``. It does not clean up, because the worker does so with the payload.

    ``write`` gets each line for the log of the task, ``error`` gets failures, and ``write_lines`` gets the lines of
    replicas.
    """

    def __init__(
        self,
        informer: SharedJobInformer,
        subscription: Subscription,
        options: WaitOptions,
        write: LineWriter,
        error: LineWriter | None = None,
        write_lines: LinesWriter | None = None,
    ) -> None:
        job = subscription.job
        assert job is not None  # a subscription begins with its job
        tail = options.tail if options.get_logs else _TAIL
        self._informer, self._subscription, self._results = informer, subscription, options.results
        # Logs that are not shown are read only at the end.
        self._log_follower = informer.read_logs(
            subscription, LogOptions(follow=True, tail=tail, timestamps=True), begun=options.get_logs
        )
        self._view = TaskLogView(job.job, write, lines=options.get_logs, error=error, write_lines=write_lines)
        monitor = JobMonitor(informer.cluster, job, self._view, subscription, self._log_follower)
        super().__init__(informer.cluster, job, monitor, options.policy)
        self._leader_check = _LeaderCheck(informer.cluster, options.leader_check)

    def steps(self) -> WaitSteps[dict[str, Any]]:
        """The wait, from now to its end. Returns the payload."""
        self.monitor.show((yield 0.0))
        end = yield from self.carry_out(follow(self.policy, self.seen()))
        result = end.result
        if self._results and end.cause is not EndCause.DELETED:
            yield from self._drain_logs(end)
        if not result.reached:
            message = exception_first(result.message)
            self._view.say(f"{message} ({result.hint})" if result.hint else message, FAILURE)
        return event_payload(self._subscription.last, self.monitor.snapshot, end)

    def wait(self, seconds: float | None) -> WaitSteps[None]:
        """See ``SessionHost``. Reports a job without a leader."""
        if (refused := self._informer.refused()) is not None:
            raise refused
        if self._leader_check.left <= 0:
            if self._leads():
                self._leader_check.put_off()
            else:
                yield self._look_for_leader
        yield from super().wait(min(math.inf if seconds is None else seconds, self._leader_check.left))

    def _look_for_leader(self) -> None:
        if text := self._leader_check.news(self._subscription.last):
            self._view.say(text)

    def _leads(self) -> bool:
        return self._informer.leads(self._subscription.ref.resource)

    def _drain_logs(self, end: SessionEnd) -> WaitSteps[None]:
        """Read the last lines, and wait for the controller's clean-up. Both have limits."""
        monitor = self.monitor
        self._log_follower.begun = True
        if self._informer.decides_for(self._subscription):
            self._subscription.mark_changed()  # processes the job's pods once more, without a request
        else:
            yield monitor.sync_pods
        monitor.show((yield 0.0))
        monitor.decided = end.cause in ENDED
        clean = time.monotonic() + _CLEAN_UP
        if monitor.decided:
            yield from monitor.drain(quiet=_DRAIN, busy_until=lambda: clean if self._cleans_up() else 0.0)
        else:
            while monitor.show((yield 0.0)):
                pass

    def _cleans_up(self) -> bool:
        """Whether the controller of this process is still cleaning up after the job."""
        return self._leads() and not self.seen().settled


def take_in_thread(subscription: Subscription, changed: threading.Event, checked: Callable[[], None]) -> Take:
    """A function with which a thread takes events.

    The function calls ``checked`` twice a second. ``checked`` may raise an error to end the wait. The function waits
    for ``changed`` in short steps, so that a signal handler can run.
    """

    def take(seconds: float | None) -> list[JobEvent]:
        checked()
        until = math.inf if seconds is None else time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not changed.wait(min(_CHECK, left)):
            checked()
        changed.clear()
        return subscription.take(0)

    return take
