"""Trigger: waits for one job in the triggerer, through the informer that all triggers share.

It always yields one event, even after a failure. A trigger that raises an error would end its task without a reason,
and leave the job behind. A cancelled trigger does not change the job, unless a user ended the task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow.providers.common.compat.connection import get_async_connection
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments, extras_of, open_connection
from tf_dist.airflow.informers.informer_registry import SHARED_INFORMERS
from tf_dist.airflow.jobs.task_identity import ACTIVE_STATES, ENDED_STATES, MASK_KEY, annotations_of, task_state
from tf_dist.airflow.masking import learn, masked, unsealed
from tf_dist.airflow.task_options import DEFAULT_CONNECTION
from tf_dist.airflow.version_compat import TRIGGERS_LEARN_OF_KILLS, AirflowNotFoundException, conf, is_test_run
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS
from tf_dist.controller.settings import JobRef
from tf_dist.errors import NotFound, TFDistError

if TYPE_CHECKING:
    from tf_dist.airflow.informers.job_informer import SharedJobInformer
    from tf_dist.airflow.informers.subscription import Subscription
    from tf_dist.airflow.jobs.task_log import TriggerLog
    from tf_dist.client.monitor import WaitSteps
    from tf_dist.core.pipeline.session import SessionPolicy

T = TypeVar("T")

_CLASS: Final = f"{__name__}.TFJobTrigger"
_SETTLED: Final = 60.0  # seconds after the deferral; a trigger that starts later has run before, in another process
_AGAIN: Final = 200  # lines of each log that such a trigger repeats
_LOOK_EVERY: Final = 0.5  # seconds between two reads of the state of a task that no process works for
_LAST_LINES: Final = 30.0  # seconds to write the last lines
_RESERVE: Final = 5.0  # seconds of Airflow's timeout for on_kill that are reserved for the deletion


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRequest:
    """The wait of a trigger as plain JSON, which Airflow stores and later versions of tf-dist read."""

    name: str
    """The name of the job."""
    namespace: str
    """Its namespace."""
    kind: str = "TFJob"
    """Its kind: ``TFJob``, ``Job`` (of Volcano), or "" for either."""
    uid: str = ""
    """Its uid; "": any job with this name, including a job that is created later."""
    access: Mapping[str, Any]
    """The fields of ``ClusterArguments``."""
    goal: str = "succeeded"
    """The state to wait for."""
    drive: bool = False
    """The triggerer may lead the namespace of the job."""
    owner: str = ""
    """The try of the task that owns the job; "" for a job that is never deleted."""
    on_kill_action: str = "delete_job"
    """What happens to the job when a user ends the task: ``delete_job`` or ``keep_job``."""
    get_logs: bool = True
    """The log lines of all replicas are written to the log of the task."""
    poll_interval: float = 10.0
    """Seconds between two attempts to find a job that does not exist."""
    deadline: float | None = None
    """When the wait ends (epoch seconds)."""
    admission_timeout: float | None = None
    """Seconds to wait for admission."""
    startup_timeout: float | None = None
    """Seconds from admission until the job runs."""
    asked_at: float = 0.0
    """When the task was deferred (epoch seconds)."""
    secrets: str = ""
    """The secrets of the document, sealed by ``masking``."""

    def plain(self) -> dict[str, Any]:
        """The fields whose values differ from the defaults."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {one.name: values[one.name] for one in fields(self) if values[one.name] != one.default}

    @property
    def ref(self) -> JobRef:
        """The reference to the job."""
        return JobRef(VOLCANO_JOBS if self.kind == "Job" else TFJOBS, self.namespace, self.name)

    @property
    def policy(self) -> SessionPolicy:
        """The policy of the session that the trigger follows."""
        from tf_dist.core.pipeline.session import task_policy
        from tf_dist.core.pipeline.wait_result import WaitLimits

        limits = WaitLimits(
            deadline=self.deadline,
            admission=self.admission_timeout,
            startup=self.startup_timeout,
            begun=self.asked_at,
        )
        return task_policy(goal=self.goal, limits=limits, on_kill=self.on_kill_action)


class TFJobTrigger(BaseTrigger):
    """Waits for a job.

    The arguments are the fields of ``WaitRequest``. Unknown arguments are ignored, so that a triggerer may be older
    than the worker that deferred the task.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        known = {one.name for one in fields(WaitRequest)}
        self.request = WaitRequest(**{key: value for key, value in arguments.items() if key in known})
        self._fired = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments."""
        return _CLASS, self.request.plain()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event: the payload of the wait."""
        try:
            found = await self._wait()
        except asyncio.CancelledError:
            if self.request.owner and is_test_run():  # Ctrl-C: no other process continues with the job
                await self._stop("the run was interrupted", logging.WARNING)
            raise
        except Exception as error:
            from tf_dist.airflow.jobs.event_payload import unseen_payload
            from tf_dist.client.connection import TRANSIENT_ERRORS
            from tf_dist.core.pipeline.session import DELETED_END, lost_end

            if not isinstance(error, TFDistError):
                self.log.exception("the trigger has a defect")
            request = self.request
            gone = request.uid and isinstance(error, NotFound)  # the job existed when the task was deferred
            end = DELETED_END if gone else lost_end(error, transient=isinstance(error, TRANSIENT_ERRORS))
            word = {TFJOBS.kind: "tfjob/", VOLCANO_JOBS.kind: "vcjob/"}.get(request.kind, "job ")
            found = unseen_payload(end, f"{word}{request.name}")
        self._fired = True
        yield TriggerEvent(masked(found))

    async def on_kill(self) -> None:
        """Delete the job if a user ended the task, and the job still belongs to this try.

        Airflow also calls this when a stalled triggerer lost its triggers, and when the task was cleared. Then another
        process continues with the job. Until it does, only this process can detect that a user ended the task after
        all, so it waits as long as Airflow allows.
        """
        request = self.request
        if self._fired or not request.owner or request.on_kill_action == "keep_job":
            return
        deadline = time.monotonic() + conf.getfloat("triggerer", "on_kill_timeout", fallback=30.0) - _RESERVE
        while (state := await self._task_state()) not in ENDED_STATES | ACTIVE_STATES and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_EVERY)
        if state in ENDED_STATES:
            await self._stop(f"the task is {state}", logging.INFO)
        else:
            self.log.info("the task is %s: its job %s continues", state, request.name)

    async def _stop(self, why: str, level: int) -> None:
        """Delete or keep the job, as the policy says for a stopped session."""
        from tf_dist.core.pipeline.session import EndCause
        from tf_dist.core.pipeline.workflow_stop import JobFate

        request = self.request
        if request.policy.fates[EndCause.STOPPED] is not JobFate.DELETE:
            self.log.log(level, "%s: its job %s continues", why, request.name)
        elif await asyncio.to_thread(_delete, request, await self._extras()):
            self.log.log(level, "%s: its job %s is deleted", why, request.name)

    async def cleanup(self) -> None:
        """Airflow calls this at every end of the trigger. Without ``on_kill``, a user may have caused the end."""
        await super().cleanup()
        if not TRIGGERS_LEARN_OF_KILLS:
            await self.on_kill()

    # The wait

    async def _wait(self) -> dict[str, Any]:
        # Not on the event loop, because the first import takes most of a second.
        await asyncio.to_thread(import_module, "tf_dist.airflow.jobs.job_waiter")
        from tf_dist.airflow.jobs.task_log import TriggerLog
        from tf_dist.client.wait import event_of_loop, run_on_loop

        log = TriggerLog()
        informer = await self._enter(await self._extras())
        try:
            changed, wake = event_of_loop()
            subscription = await self._join(informer, wake)
            try:
                if self.request.secrets:
                    key = annotations_of(subscription.last.stored).get(MASK_KEY, "")
                    await learn(unsealed(self.request.secrets, key))
                steps = await asyncio.to_thread(self._steps, informer, subscription, log)
                found = await run_on_loop(steps, changed, subscription.take)
                await asyncio.to_thread(log.flush, _LAST_LINES)  # Airflow closes the log file at the event
                return found
            finally:
                await asyncio.shield(asyncio.to_thread(informer.leave, subscription))
        finally:
            # Always complete this call, because it ends the threads and releases the Lease.
            await asyncio.shield(asyncio.to_thread(SHARED_INFORMERS.leave, self._informer_key()))

    def _informer_key(self) -> tuple[ClusterArguments, str]:
        return ClusterArguments.of(self.request.access), self.request.namespace

    async def _enter(self, extras: dict[str, Any]) -> SharedJobInformer:
        from tf_dist.airflow.hooks.tfjob import make_shared_informer

        key = self._informer_key()
        return await _undone_if_cancelled(
            partial(SHARED_INFORMERS.enter, key, partial(make_shared_informer, *key, extras)),
            partial(_leave, key),
        )

    def _steps(
        self, informer: SharedJobInformer, subscription: Subscription, log: TriggerLog
    ) -> WaitSteps[dict[str, Any]]:
        from tf_dist.airflow.jobs.job_waiter import JobWaiter, WaitOptions

        request = self.request
        options = WaitOptions(
            policy=request.policy,
            get_logs=request.get_logs,
            results=request.goal in ("succeeded", "finished", "failed"),
            tail=self._tail(),
        )
        return JobWaiter(informer, subscription, options, log, log.error, log.lines).steps()

    async def _join(self, informer: SharedJobInformer, on_change: Callable[[], None]) -> Subscription:
        """Subscribe to the job. Raises NotFound if the job with this uid is gone. Without a uid, waits for the job."""
        request = self.request
        while True:
            try:
                ref = request.ref if request.kind else await asyncio.to_thread(_ref_of_any_kind, informer, request)
                join = partial(informer.join, ref, on_change, uid=request.uid, drive=request.drive)
                return await _undone_if_cancelled(join, informer.leave)
            except NotFound:
                late = request.deadline is not None and time.time() >= request.deadline
                if request.uid or late:
                    raise
            await asyncio.sleep(request.poll_interval)

    def _tail(self) -> int | None:
        """The number of last lines of each log that a restarted trigger repeats; None: all lines."""
        asked = self.request.asked_at
        if not asked or time.time() - asked < _SETTLED:
            return None
        self.log.info("another triggerer continues: the last %d lines of each log are repeated", _AGAIN)
        return _AGAIN

    # Requests to Airflow

    async def _extras(self) -> dict[str, Any]:
        name = ClusterArguments.of(self.request.access).kubernetes_conn_id
        if not name:
            return {}
        try:
            return extras_of(await get_async_connection(name))
        except AirflowNotFoundException:
            if name != DEFAULT_CONNECTION:
                raise
            return {}

    async def _task_state(self) -> str | None:
        """The current state of the task in the database."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        instance = self.task_instance
        if instance is None:
            return None
        # Not ``asyncio.to_thread``: the call accesses the database through this event loop.
        return await sync_to_async(task_state)(instance, RuntimeTaskInstance.get_task_states)


async def _undone_if_cancelled(work: Callable[[], T], undo: Callable[[T], None]) -> T:
    """Run ``work`` in a thread, and return its result. If cancelled meanwhile, call ``undo`` with the result."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(Exception):
            await asyncio.to_thread(undo, await task)
        raise


def _leave(key: object, _: SharedJobInformer) -> None:
    SHARED_INFORMERS.leave(key)


def _ref_of_any_kind(informer: SharedJobInformer, request: WaitRequest) -> JobRef:
    """The reference to the job of this name, of any kind. Raises NotFound, and InvalidJob for jobs of two kinds."""
    from tf_dist.client.stored_jobs import lookup_job

    found = lookup_job(informer.cluster, request.name, request.namespace)
    if found is None:
        raise NotFound(f"there is no job {request.name} in namespace {request.namespace}")
    return JobRef(found.resource, request.namespace, request.name)


def _delete(request: WaitRequest, extras: Mapping[str, Any]) -> bool:
    from tf_dist.airflow.jobs.job_ownership import delete_if_owned
    from tf_dist.client.stored_jobs import StoredJob

    connection = open_connection(ClusterArguments.of(request.access), extras)
    try:
        ref = request.ref
        stored = connection.cluster.get(ref.resource, ref.namespace, ref.name)
        job = StoredJob(ref.resource, stored)
        return (not request.uid or job.uid == request.uid) and delete_if_owned(connection.cluster, job, request.owner)
    except NotFound:
        return False
    finally:
        connection.close()
