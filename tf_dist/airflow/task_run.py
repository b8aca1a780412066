"""What one try of an operator's task does: begin, wait, finish; and what becomes of the job when it cannot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from tf_dist.airflow import links
from tf_dist.airflow.arguments import order_from
from tf_dist.airflow.attending import Attendance, Wish, attend
from tf_dist.airflow.hook import TFJobHook
from tf_dist.airflow.identity import TaskKey, owner
from tf_dist.airflow.outcomes import ERROR, failure_of
from tf_dist.airflow.ownership import give_up
from tf_dist.airflow.starting import Start, Try, begin, finish
from tf_dist.airflow.trigger import Request, TFJobTrigger
from tf_dist.client.jobs import StoredJob, find
from tf_dist.cluster.api import VOLCANO_JOBS
from tf_dist.core.conclusion import UNDECIDED, End, Limits
from tf_dist.core.succession import Answer
from tf_dist.driver.refs import JobRef
from tf_dist.errors import ClusterError, InvalidJob, NotFound

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tf_dist.airflow.hub import Hub
    from tf_dist.airflow.operator import TFJobOperator

# By on_finish_action: whether a job that has ended is deleted, given whether it came to what was waited for.
_DELETES: Final[Mapping[str, Callable[[bool], bool]]] = {
    "delete_job": lambda reached: True,
    "keep_job": lambda reached: False,
    "delete_succeeded_job": lambda reached: reached,
    "delete_active_job": lambda reached: False,
}
_SLACK: Final = 60.0  # seconds that a trigger has for its own deadline before Airflow's ends it


class TaskRun:
    """One try of the task of ``operator``, in a worker. Use it as a context manager: it opens the cluster once."""

    def __init__(self, operator: TFJobOperator, context: Context) -> None:
        self._operator = operator
        self._context = context
        self._ti: Any = context["ti"]
        self._hook = TFJobHook.of(operator.access())
        self._log = operator.log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._hook.close()

    def execute(self) -> Any:
        """From the document to the result, or to the deferral; AirflowFailException for a job that can never run."""
        operator = self._operator
        try:
            order = order_from(operator, lambda value: operator.render_template(value, self._context))
            namespace = operator.namespace or order.namespace or self._hook.get_namespace()
            start = begin(self._hook.connection, order, namespace, self._try(), self._change)
        except InvalidJob as error:
            raise AirflowFailException(f"the job cannot be run:\n{error}") from None
        self._announce(start)
        job = start.job
        if not operator.wait_for_completion:
            return {"name": job.name, "namespace": job.namespace, "uid": job.uid}
        if operator.deferrable and not job.status.finished:
            self._defer(job)
        return self.finish(job, self._attend(job))

    # Beginning

    def _try(self) -> Try:
        ti, operator = self._ti, self._operator
        deployment = conf.get("tf_dist", "deployment", fallback="") or conf.get("api", "base_url", fallback="")
        return Try(
            key=TaskKey(
                deployment=deployment,
                dag_id=ti.dag_id,
                run_id=ti.run_id,
                task_id=ti.task_id,
                map_index=self._map_index,
            ),
            number=ti.try_number,
            owner=self._owner,
            drive=operator.driver == "inline",
            durable=operator.durable,
            labels=operator.labels or {},
            annotations=operator.annotations or {},
        )

    @property
    def _owner(self) -> str:
        return owner(self._ti.id, self._ti.try_number)

    @property
    def _map_index(self) -> int:
        return -1 if self._ti.map_index is None else int(self._ti.map_index)

    def _announce(self, start: Start) -> None:
        """Say which job it is, at once: whatever comes later, the links and XComs are there."""
        try:
            self._say(start)
            self._call("on_job_creation", job=start.job)
        except Exception:
            self._abandon(start.job)
            raise

    def _say(self, start: Start) -> None:
        job = start.job
        said = {
            Answer.CREATE: "created",
            Answer.ADOPT: "taken up again: an earlier try made it",
            Answer.HARVEST: "over: an earlier try made it, and this one takes its result",
        }
        self._log.info("%s in namespace %s is %s", job.shown, job.namespace, said[start.answer])
        facts = {"name": job.name, "namespace": job.namespace, "uid": job.uid, "kind": job.resource.kind}
        for what, value in facts.items():
            self._ti.xcom_push(key=f"job_{what}", value=value)
        # Those without a URL, too: Airflow asks for every link, and logs an error for a value that is not there.
        operator = self._operator
        urls = {links.JOB_URL: operator.job_url, links.TENSORBOARD_URL: operator.tensorboard_url}
        for key, url in {**urls, links.CHECKPOINT_URL: None}.items():
            self._ti.xcom_push(key=key, value=_filled(url or "", job))

    def _change(self, document: dict[str, Any]) -> None:
        self._call("on_job_document_created", document=document)

    # Waiting

    def _limits(self) -> Limits:
        operator, started = self._operator, self._ti.start_date
        limit = operator.execution_timeout
        deadline = started.timestamp() + limit.total_seconds() if limit and started else None
        return Limits(deadline=deadline, admission=operator.admission_timeout, startup=operator.startup_timeout_seconds)

    def _defer(self, job: StoredJob) -> None:
        operator, limits = self._operator, self._limits()
        request = Request(
            name=job.name,
            namespace=job.namespace,
            kind=job.resource.kind,
            uid=job.uid,
            access=operator.access().fields(),
            drive=operator.driver == "inline",
            owner=self._owner,
            on_kill_action=operator.on_kill_action,
            get_logs=operator.get_logs,
            poll_interval=operator.poll_interval,
            deadline=limits.deadline,
            admission_timeout=limits.admission,
            startup_timeout=limits.startup,
            asked_at=time.time(),
        )
        left = None if limits.deadline is None else max(0.0, limits.deadline - time.time()) + _SLACK
        operator.defer(
            trigger=TFJobTrigger(**request.plain()),
            method_name="execute_complete",
            timeout=None if left is None else timedelta(seconds=left),
        )

    def _attend(self, job: StoredJob) -> Mapping[str, Any]:
        try:
            with self._hook.hub(job.namespace) as hub:
                try:
                    return self._watch(hub, job)
                except (AirflowTaskTimeout, _Killed) as end:
                    # At once: whoever was ended by a user is killed after five seconds.
                    if isinstance(end, AirflowTaskTimeout) or self._operator.on_kill_action == "delete_job":
                        self._give_up(job, str(end))
                    raise
        except _Killed:
            raise
        except Exception:
            self._abandon(job)
            raise

    def _watch(self, hub: Hub, job: StoredJob) -> Mapping[str, Any]:
        operator, rung, ref = self._operator, threading.Event(), JobRef.of(job.resource, job.stored)
        wish = Wish(limits=self._limits(), get_logs=operator.get_logs)
        drive = operator.driver == "inline" and not job.status.finished
        ticket = hub.join(ref, rung.set, uid=job.uid, drive=drive)
        try:
            course = Attendance(hub, ticket, wish, self._log.info).course()
            return attend(course, rung, self._stop_if_killed)
        finally:
            hub.leave(ticket)

    def _stop_if_killed(self) -> None:
        """After ``on_kill``: find out what for. A worker that goes is no reason to touch the job."""
        if not self._operator.killed:
            return
        self._operator.killed = False
        state = self._state()
        if state == "running":
            self._log.info("this worker is asked to go: the job goes on, and a retry takes it up")
            return
        raise _Killed(f"a user has ended the task: it is {state}")

    def _state(self) -> str | None:
        """The state of the task as the database has it."""
        ti, index = self._ti, self._map_index
        asked = {"map_index": index} if index >= 0 else {}
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], **asked)
        key = ti.task_id if index < 0 else f"{ti.task_id}_{index}"
        found = states.get(ti.run_id, {}).get(key)
        return None if found is None else str(found)

    # Ending

    def finish(self, job: StoredJob | None, event: Mapping[str, Any]) -> Any:
        """The result, or the error that the event means; what becomes of the job."""
        failure, result = failure_of(event), dict(event.get("result") or {})
        if event["end"] == ERROR:
            self._abandon(job)
        elif job is not None:
            self._clean_up(job, event)
        self._call("on_job_completion", result=result, succeeded=failure is None)
        checkpoint = str(result.get("checkpoint") or "")
        if checkpoint:
            self._ti.xcom_push(key="checkpoint", value=checkpoint)
            self._ti.xcom_push(key=links.CHECKPOINT_URL, value=checkpoint if "://" in checkpoint else "")
        if failure is None:
            self._publish(result)
            return result
        if _is_among(event.get("exit_code"), self._operator.skip_on_exit_code):
            raise AirflowSkipException(str(failure))
        raise failure

    def _publish(self, result: Mapping[str, Any]) -> None:
        """What consumers of the task's assets are told of the model."""
        events: Any = self._context["outlet_events"]
        for outlet in self._operator.outlets:
            events[outlet].extra = {**events[outlet].extra, **result}

    def _clean_up(self, job: StoredJob, event: Mapping[str, Any]) -> None:
        goes_on = event["end"] in UNDECIDED and not event.get("over")
        delete = goes_on or _DELETES[self._operator.on_finish_action](event["end"] == End.REACHED)
        try:
            if finish(self._hook.connection, job, self._owner, delete=delete):
                self._call("on_job_cleanup", name=job.name, namespace=job.namespace)
        except ClusterError as error:
            # How the job came out is known, and that is what the task is about.
            self._log.warning("%s could not be %s: %s", job.shown, "deleted" if delete else "marked", error)

    def left_behind(self, *, late: bool) -> None:
        """The trigger is gone without a word; ``late``: because the task's time is over."""
        job = self.job()
        if job is not None and late:
            self._give_up(job, "the task took longer than its execution_timeout")
        else:
            self._abandon(job)

    def _abandon(self, job: StoredJob | None) -> None:
        """The wait ended and the job did not: a retry takes it up; where there is none, nobody would."""
        if job is None:
            return
        if self._operator.durable and self._ti.try_number <= self._ti.max_tries:
            self._log.warning("%s goes on without anybody who waits for it: a retry takes it up", job.shown)
        else:
            self._give_up(job, "the task is not tried again")

    def _give_up(self, job: StoredJob, why: str) -> None:
        try:
            if give_up(self._hook.cluster, job, self._owner):
                self._log.info("%s is deleted: %s", job.shown, why)
        except ClusterError as error:
            self._log.warning("%s could not be deleted: %s", job.shown, error)

    def job(self) -> StoredJob | None:
        """The job of this try, None if nothing is left of it or the cluster is away."""
        name, namespace, uid, kind = (
            self._ti.xcom_pull(key=f"job_{what}", task_ids=self._ti.task_id, map_indexes=self._ti.map_index)
            for what in ("name", "namespace", "uid", "kind")
        )
        try:
            prefix = "vcjob" if kind == VOLCANO_JOBS.kind else "tfjob"
            job = find(self._hook.cluster, f"{prefix}/{name}", namespace)
        except NotFound:
            return None
        except ClusterError as error:
            self._log.warning("%s cannot be looked at: %s", name, error)
            return None
        return job if job.uid == uid else None

    def _call(self, method: str, **facts: Any) -> None:
        given = self._operator.callbacks or ()
        for callbacks in (given,) if isinstance(given, type) else given:
            getattr(callbacks, method)(operator=self._operator, **facts)


class _Killed(AirflowException):
    """A user has ended the task while it ran."""


def _filled(url: str, job: StoredJob) -> str:
    return url.replace("{name}", job.name).replace("{namespace}", job.namespace)


def _is_among(code: object, codes: int | Container[int] | None) -> bool:
    if not isinstance(code, int) or codes is None:
        return False
    return code == codes if isinstance(codes, int) else code in codes
