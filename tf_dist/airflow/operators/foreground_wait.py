"""Wait of a task that is not deferred, in the worker's thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tf_dist.airflow.hooks.tfjob import TFJobHook
from tf_dist.airflow.jobs.event_payload import unseen_payload
from tf_dist.airflow.jobs.job_waiter import JobWaiter, WaitOptions, take_in_thread
from tf_dist.airflow.jobs.task_identity import (
    ENDED_STATES,
    task_state,
)
from tf_dist.airflow.jobs.task_log import write_error, write_line
from tf_dist.airflow.operators.job_cleanup import JobCleanup
from tf_dist.airflow.version_compat import AirflowException, AirflowTaskTimeout
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.client.wait import run_in_thread
from tf_dist.controller.settings import JobRef
from tf_dist.core.pipeline.session import DELETED_END, EndCause, task_policy
from tf_dist.core.pipeline.wait_result import WaitLimits
from tf_dist.errors import NotFound

if TYPE_CHECKING:
    from tf_dist.airflow.informers.job_informer import SharedJobInformer
    from tf_dist.airflow.operators.operator_arguments import BaseTFJobOperator


class TaskKilled(AirflowException):
    """A user has ended the task while it ran."""


@dataclass(frozen=True, slots=True)
class ForegroundWait:
    """Waits for a job of the task ``ti`` of ``operator`` in this thread."""

    operator: BaseTFJobOperator
    ti: Any
    hook: TFJobHook
    cleanup: JobCleanup
    limits: WaitLimits

    def wait(self, job: StoredJob) -> Mapping[str, Any]:
        """The payload of ``outcomes``; any other end of the wait is raised, and says what becomes of the job."""
        try:
            with self.hook.informer(job.namespace) as informer:
                try:
                    return self._wait_for_job(informer, job)
                except (AirflowTaskTimeout, TaskKilled, KeyboardInterrupt) as end:
                    # At once: a process that a user has ended is killed after five seconds.
                    cause = EndCause.OVERDUE if isinstance(end, AirflowTaskTimeout) else EndCause.STOPPED
                    self.cleanup.part(job, cause, str(end) or "this run was interrupted")
                    raise
        except TaskKilled:
            raise
        except Exception as error:
            self.cleanup.part(job, EndCause.ERROR, f"the task cannot wait for it ({error})")
            raise

    def _wait_for_job(self, informer: SharedJobInformer, job: StoredJob) -> Mapping[str, Any]:
        operator, changed, ref = self.operator, threading.Event(), JobRef.of(job.resource, job.stored)
        options = WaitOptions(policy=task_policy(limits=self.limits), get_logs=operator.options.get_logs)
        drive = operator.options.drives and not job.status.finished
        try:
            subscription = informer.join(ref, changed.set, uid=job.uid, drive=drive)
        except NotFound:
            return unseen_payload(DELETED_END, job.shown)
        try:
            waiter = JobWaiter(informer, subscription, options, write_line, write_error)
            return run_in_thread(waiter.steps(), take_in_thread(subscription, changed, self._stop_if_killed))
        finally:
            informer.leave(subscription)

    def _stop_if_killed(self) -> None:
        """After ``on_kill``: find out what for. Neither a worker that goes nor a clear is a reason to touch the job."""
        if not self.operator.killed:
            return
        self.operator.killed = False
        state = task_state(self.ti, self.ti.get_task_states)
        if state in ENDED_STATES:
            raise TaskKilled(f"a user has ended the task: it is {state}")
        self.operator.log.info("this process is asked to go (the task is %s): the job goes on", state)
