"""Trigger: waits for one job in the triggerer, through the job informer that all triggers there share.

It yields exactly one event, on failures, too, and that holds everything: a trigger that raised would leave its task
without a reason, and its job alone. When it is cancelled the job stays; only a user's own act on the task
deletes it.
"""

from __future__ import annotations

import asyncio
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

from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments, open_connection
from tf_dist.airflow.informers.informer_registry import SHARED_INFORMERS
from tf_dist.airflow.informers.wakeup import Wakeup
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
    from tf_dist.core.pipeline.wait_result import WaitLimits

T = TypeVar("T")

_CLASS: Final = f"{__name__}.TFJobTrigger"
_SETTLED: Final = 60.0  # seconds after which a trigger that begins has begun before, in another process
_AGAIN: Final = 200  # lines of each log that are shown once more then
_LOOK_EVERY: Final = 0.5  # seconds between two reads of the state of a task that no process works for
_LAST_LINES: Final = 30.0  # seconds for lines that wait to be written at the end
_RESERVE: Final = 5.0  # seconds of what Airflow grants on_kill that are for deleting


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRequest:
    """What a trigger is to wait for, as plain JSON: it is stored, and read by later versions too.

    ``kind``: TFJob, Job (Volcano's), or "" for either; ``uid`` "": whichever job has the name, now or later;
    ``goal`` and the limits: see ``WaitLimits``, seconds and epoch seconds. ``drive``: whether the triggerer may come
    to lead it. ``owner``: the try of the task that the job belongs to, "" for a job of others, which is never deleted.
    ``asked_at``: when the task deferred (epoch seconds). ``secrets``: those of the job's document, sealed
    (``masking``).
    """

    name: str
    namespace: str
    kind: str = "TFJob"
    uid: str = ""
    access: Mapping[str, Any]
    goal: str = "succeeded"
    drive: bool = False
    owner: str = ""
    on_kill_action: str = "delete_job"
    get_logs: bool = True
    poll_interval: float = 10.0
    deadline: float | None = None
    admission_timeout: float | None = None
    startup_timeout: float | None = None
    asked_at: float = 0.0
    secrets: str = ""

    def plain(self) -> dict[str, Any]:
        """The fields that are not at their defaults."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {one.name: values[one.name] for one in fields(self) if values[one.name] != one.default}

    @property
    def ref(self) -> JobRef:
        """Where the job is."""
        return JobRef(VOLCANO_JOBS if self.kind == "Job" else TFJOBS, self.namespace, self.name)

    @property
    def limits(self) -> WaitLimits:
        """How long to wait."""
        from tf_dist.core.pipeline.wait_result import WaitLimits

        return WaitLimits(
            deadline=self.deadline,
            admission=self.admission_timeout,
            startup=self.startup_timeout,
            begun=self.asked_at,
        )


class TFJobTrigger(BaseTrigger):
    """Waits for a job. The arguments are those of ``WaitRequest``; ones that it does not know (of a later version) it
    ignores, so that a triggerer may be older than the task that deferred.
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
        """One event: the payload of ``outcomes``."""
        try:
            found = await self._wait()
        except asyncio.CancelledError:
            if self.request.owner and is_test_run():
                await self._interrupted()
            raise
        except Exception as error:
            from tf_dist.airflow.jobs.event_payload import unseen_payload
            from tf_dist.client.connection import TRANSIENT_ERRORS
            from tf_dist.core.pipeline.session import DELETED_END, lost_end

            if not isinstance(error, TFDistError):
                self.log.exception("the trigger met a defect")
            request = self.request
            gone = request.uid and isinstance(error, NotFound)  # the job existed when the task deferred
            end = DELETED_END if gone else lost_end(error, transient=isinstance(error, TRANSIENT_ERRORS))
            word = {TFJOBS.kind: "tfjob/", VOLCANO_JOBS.kind: "vcjob/"}.get(request.kind, "job ")
            found = unseen_payload(end, f"{word}{request.name}")
        self._fired = True
        yield TriggerEvent(masked(found))

    async def on_kill(self) -> None:
        """Delete the job, if a user has ended the task, and if the job is still this try's.

        Airflow calls this, too, when the triggerer was stalled and its triggers went elsewhere, and when the task was
        cleared: then another process goes on with the job. Until that one is at work, only this one can learn that the
        task has been ended after all: so it waits for as long as Airflow allows.
        """
        request = self.request
        if self._fired or not request.owner or request.on_kill_action == "keep_job":
            return
        deadline = time.monotonic() + conf.getfloat("triggerer", "on_kill_timeout", fallback=30.0) - _RESERVE
        while (state := await self._task_state()) not in ENDED_STATES | ACTIVE_STATES and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_EVERY)
        if state not in ENDED_STATES:
            self.log.info("the task is %s: its job %s goes on", state, request.name)
            return
        extras = await self._extras()
        if await asyncio.to_thread(_delete, request, extras):
            self.log.info("the task is %s: its job %s is deleted", state, request.name)

    async def _interrupted(self) -> None:
        """A test run was ended by Ctrl-C: no other process goes on with its job."""
        if self.request.on_kill_action == "keep_job":
            self.log.warning("the run was interrupted: its job %s goes on", self.request.name)
        elif await asyncio.to_thread(_delete, self.request, await self._extras()):
            self.log.warning("the run was interrupted: its job %s is deleted", self.request.name)

    async def cleanup(self) -> None:
        """Called at every end of the trigger; where Airflow has no ``on_kill``, that may be a user's."""
        await super().cleanup()
        if not TRIGGERS_LEARN_OF_KILLS:
            await self.on_kill()

    # The wait

    async def _wait(self) -> dict[str, Any]:
        # Not on the event loop: it takes most of a second once.
        await asyncio.to_thread(import_module, "tf_dist.airflow.jobs.job_waiter")
        from tf_dist.airflow.jobs.task_log import TriggerLog
        from tf_dist.client.wait import run_on_loop

        log = TriggerLog()
        informer = await self._enter(await self._extras())
        try:
            changed = Wakeup()
            subscription = await self._join(informer, changed)
            try:
                if self.request.secrets:
                    key = annotations_of(subscription.last.stored).get(MASK_KEY, "")
                    await learn(unsealed(self.request.secrets, key))
                steps = await asyncio.to_thread(self._steps, informer, subscription, log)
                found = await run_on_loop(steps, changed, subscription.take)
                await asyncio.to_thread(log.flush, _LAST_LINES)  # Airflow closes the file at the event
                return found
            finally:
                await asyncio.shield(asyncio.to_thread(informer.leave, subscription))
        finally:
            # In any case, and to its end: this is where threads end and the Lease goes.
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
        from tf_dist.core.pipeline.session import task_policy

        request = self.request
        options = WaitOptions(
            policy=task_policy(goal=request.goal, limits=request.limits),
            get_logs=request.get_logs,
            results=request.goal in ("succeeded", "finished", "failed"),
            tail=self._tail(),
        )
        return JobWaiter(informer, subscription, options, log, log.error, log.lines).steps()

    async def _join(self, informer: SharedJobInformer, on_change: Callable[[], None]) -> Subscription:
        """The subscription to the job. NotFound if the job of that uid is gone; a job of any uid may be created yet."""
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
        """A trigger that goes on in another process shows the last lines only: the others are in the task's log."""
        asked = self.request.asked_at
        if not asked or time.time() - asked < _SETTLED:
            return None
        self.log.info("another triggerer goes on: the last %d lines of each log come once more", _AGAIN)
        return _AGAIN

    # What Airflow knows

    async def _extras(self) -> dict[str, Any]:
        name = ClusterArguments.of(self.request.access).kubernetes_conn_id
        if not name:
            return {}
        try:
            return dict((await get_async_connection(name)).extra_dejson)
        except AirflowNotFoundException:
            if name != DEFAULT_CONNECTION:
                raise
            return {}

    async def _task_state(self) -> str | None:
        """The state of the task at this moment, as the database has it."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        instance = self.task_instance
        if instance is None:
            return None
        # Not in any thread: the way to the database leads over this event loop.
        return await sync_to_async(task_state)(instance, RuntimeTaskInstance.get_task_states)


async def _undone_if_cancelled(work: Callable[[], T], undo: Callable[[T], None]) -> T:
    """What ``work`` returns from a thread; cancelled meanwhile, what it did is undone."""
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
    """Where the job of that name is, whatever its kind; NotFound, InvalidJob if two kinds have the name."""
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
