"""Waiting for a job in the worker, and what a signal to it means: a user's kill, or a worker that has to go."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowTaskTimeout

from tf_dist.airflow.attending import Attendance, Wish, attend
from tf_dist.airflow.hook import TFJobHook
from tf_dist.airflow.parting import Parting
from tf_dist.airflow.task_states import ENDED, state_of
from tf_dist.client.jobs import StoredJob
from tf_dist.core.conclusion import Limits
from tf_dist.driver.refs import JobRef

if TYPE_CHECKING:
    from tf_dist.airflow.hub import Hub
    from tf_dist.airflow.operator import TFJobOperator


class Killed(AirflowException):
    """A user has ended the task while it ran."""


class Stay:
    """Waits for a job of the task ``ti`` of ``operator`` in this thread."""

    def __init__(self, operator: TFJobOperator, ti: Any, hook: TFJobHook, parting: Parting, limits: Limits) -> None:
        self._operator, self._ti, self._hook, self._parting = operator, ti, hook, parting
        self._limits = limits

    def attend(self, job: StoredJob) -> Mapping[str, Any]:
        """The payload of ``outcomes``; whatever else ends the wait says what becomes of the job, and is raised."""
        try:
            with self._hook.hub(job.namespace) as hub:
                try:
                    return self._watch(hub, job)
                except (AirflowTaskTimeout, Killed) as end:
                    # At once: whoever was ended by a user is killed after five seconds.
                    if isinstance(end, AirflowTaskTimeout) or self._operator.on_kill_action == "delete_job":
                        self._parting.give_up(job, str(end))
                    raise
        except Killed:
            raise
        except Exception:
            self._parting.abandon(job)
            raise

    def _watch(self, hub: Hub, job: StoredJob) -> Mapping[str, Any]:
        operator, rung, ref = self._operator, threading.Event(), JobRef.of(job.resource, job.stored)
        wish = Wish(limits=self._limits, get_logs=operator.get_logs)
        drive = operator.driver == "inline" and not job.status.finished
        ticket = hub.join(ref, rung.set, uid=job.uid, drive=drive)
        try:
            course = Attendance(hub, ticket, wish, operator.log.info).course()
            return attend(course, rung, self._stop_if_killed)
        finally:
            hub.leave(ticket)

    def _stop_if_killed(self) -> None:
        """After ``on_kill``: find out what for. Neither a worker that goes nor a clear is a reason to touch the job."""
        if not self._operator.killed:
            return
        self._operator.killed = False
        state = state_of(self._ti, self._ti.get_task_states)
        if state in ENDED:
            raise Killed(f"a user has ended the task: it is {state}")
        self._operator.log.info("this process is asked to go (the task is %s): the job goes on", state)
