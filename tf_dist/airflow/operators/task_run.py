"""One try of an operator's task: start its job, wait in the worker or defer, publish XComs, clean up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from tf_dist.airflow.hooks.tfjob import TFJobHook
from tf_dist.airflow.jobs import task_jobs
from tf_dist.airflow.jobs.airflow_deployment import deployment
from tf_dist.airflow.jobs.event_payload import payload_error, payload_outcome
from tf_dist.airflow.jobs.job_request import JobRequest
from tf_dist.airflow.jobs.task_identity import (
    ENDED_STATES,
    MASK_KEY,
    TaskInstanceKey,
    annotations_of,
    owner_of_try,
    task_state,
)
from tf_dist.airflow.jobs.task_jobs import (
    JobStarter,
    StartResult,
    TaskTry,
    delete_if_owned,
    finish_job,
    resource_of_request,
)
from tf_dist.airflow.links import tfjob
from tf_dist.airflow.masking import masked, new_key, sealed, secrets_in
from tf_dist.airflow.operators.argument_checks import unwaited_problem
from tf_dist.airflow.operators.operator_arguments import request_of_operator, task_failure
from tf_dist.airflow.shared.job_waiter import JobWaiter, WaitOptions, take_in_thread
from tf_dist.airflow.shared.task_log import write_error, write_line
from tf_dist.airflow.triggers.tfjob import TFJobTrigger, WaitRequest
from tf_dist.airflow.versions import AirflowException, AirflowSkipException, AirflowTaskTimeout
from tf_dist.client.stored_jobs import StoredJob, find_job, now
from tf_dist.client.wait import run_in_thread
from tf_dist.cluster.api import VOLCANO_JOBS
from tf_dist.controller.leases.leader_status import leader_status, nobody_leads
from tf_dist.controller.settings import JobRef
from tf_dist.core.diagnostics.outcome import Outcome
from tf_dist.core.model.status import OutcomeKind, Status
from tf_dist.core.pipeline.adoption import AdoptionAction, DriverChoice
from tf_dist.core.pipeline.wait_result import WaitLimits, admission_limit
from tf_dist.errors import ClusterError, InvalidJob, JobTimeout, NotFound

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tf_dist.airflow.operators.base import BaseTFJobOperator
    from tf_dist.airflow.shared.job_informer import SharedJobInformer


OUTCOME_KEY: Final = "outcome"
"""The XCom that says how the job ended, also when the task failed."""

JOB_FACTS: Final = ("name", "namespace", "uid", "kind")
"""What is published of a job first, each as the XCom ``job_…``."""
_REPORTED: Final = "tf_dist_reported"

RESULT_KEY: Final = "result"
"""The XCom that says what the job came to, also when the task failed, or returns something else."""

_PUBLISHED = {
    AdoptionAction.CREATE: "created",
    AdoptionAction.ADOPT: "taken up again: an earlier try made it",
    AdoptionAction.REUSE_RESULT: "over: an earlier try made it, and this one takes its result",
}


class XComPublisher:
    """Reports the job of one try of the task of ``operator``."""

    def __init__(self, operator: BaseTFJobOperator, context: Context) -> None:
        self._operator = operator
        self._context = context
        self._ti: Any = context["ti"]

    def began(self, start: StartResult) -> None:
        """Say which job it is, at once, so that links and XComs are there if a later step fails."""
        job = start.job
        self._operator.log.info("%s in namespace %s is %s", job.shown, job.namespace, _PUBLISHED[start.answer])
        self.identified({"name": job.name, "namespace": job.namespace, "uid": job.uid, "kind": job.resource.kind})
        self.call("on_job_creation", job=job)

    def identified(self, facts: Mapping[str, str]) -> None:
        """Publish the job's name, namespace, uid and kind, and the links to it."""
        operator = self._operator
        for what, value in facts.items():
            self._ti.xcom_push(key=f"job_{what}", value=value)
        # Those without a URL, too: Airflow asks for every link, and logs an error for a value that is not there.
        urls = {tfjob.JOB_URL: operator.options.job_url, tfjob.TENSORBOARD_URL: operator.options.tensorboard_url}
        for key, url in {**urls, tfjob.CHECKPOINT_URL: None}.items():
            self._ti.xcom_push(key=key, value=masked(_filled(url or "", facts)))

    def outcome(self, outcome: Outcome | None) -> None:
        """Publish how the job ended, however it did: a task downstream may branch on it."""
        if outcome is not None:
            self._ti.xcom_push(key=OUTCOME_KEY, value=masked(outcome.document()))

    def ended(self, result: Mapping[str, Any], *, succeeded: bool) -> None:
        """Publish the result, also to consumers of the task's assets."""
        self.call("on_job_completion", result=result, succeeded=succeeded)
        self._operator.result = dict(result)
        self._ti.xcom_push(key=RESULT_KEY, value=dict(result))
        checkpoint = str(result.get("checkpoint") or "")
        if checkpoint:
            self._ti.xcom_push(key="checkpoint", value=checkpoint)
            self._ti.xcom_push(key=tfjob.CHECKPOINT_URL, value=tfjob.checkpoint_page(checkpoint))
        if succeeded:
            events: Any = self._context["outlet_events"]
            for outlet in self._operator.outlets:
                events[outlet].extra = {**events[outlet].extra, **result}

    def published(self, what: str) -> Any:
        """What ``began`` said of the job: its name, namespace, uid or kind."""
        ti = self._ti
        return ti.xcom_pull(key=f"job_{what}", task_ids=ti.task_id, map_indexes=ti.map_index)

    def call(self, method: str, **facts: Any) -> None:
        """Call the user's callbacks."""
        given = self._operator.options.callbacks or ()
        for callbacks in (given,) if isinstance(given, type) else given:
            getattr(callbacks, method)(operator=self._operator, **facts)


def _filled(url: str, job: Mapping[str, str]) -> str:
    return url.replace("{name}", job["name"]).replace("{namespace}", job["namespace"])


# By on_finish_action: whether a job that has ended is deleted, given whether it came to what was waited for.
_DELETED_ENDS: Final[Mapping[str, Callable[[bool], bool]]] = {
    "delete_job": lambda reached: True,
    "keep_job": lambda reached: False,
    "delete_succeeded_job": lambda reached: reached,
    "delete_active_job": lambda reached: False,
}


@dataclass(frozen=True, slots=True)
class JobCleanup:
    """Parts ``owner``, a try of the task ``ti`` of ``operator``, from its job."""

    operator: BaseTFJobOperator
    ti: Any
    hook: TFJobHook
    owner: str

    def clean_up(self, job: StoredJob, event: Mapping[str, Any]) -> bool:
        """After the wait, as ``on_finish_action`` says; whether the job was deleted."""
        goes_on = not event["decided"] and not event["over"]
        delete = goes_on or _DELETED_ENDS[self.operator.options.on_finish_action](event["reached"])
        try:
            return finish_job(self.hook.connection, job, self.owner, self.ti.max_tries, delete=delete)
        except ClusterError as error:
            # How the job came out is known, and that is what the task is about.
            self.operator.log.warning("%s could not be %s: %s", job.shown, "deleted" if delete else "marked", error)
            return False

    def abandon(self, job: StoredJob) -> None:
        """The wait ended and the job did not: a retry adopts it; without one it is deleted."""
        if self.adopted_by_retry:
            self.operator.log.warning("%s goes on without a task that waits for it: a retry takes it up", job.shown)
        else:
            self.give_up(job, "the task is not tried again")

    @property
    def adopted_by_retry(self) -> bool:
        """Whether another try follows, and takes the job up."""
        return bool(self.operator.options.reattach and self.ti.try_number <= self.ti.max_tries)

    def give_up(self, job: StoredJob, why: str) -> None:
        """Delete it, if it is still this try's."""
        try:
            if delete_if_owned(self.hook.cluster, job, self.owner):
                self.operator.log.info("%s is deleted: %s", job.shown, why)
        except ClusterError as error:
            self.operator.log.warning("%s could not be deleted: %s", job.shown, error)


class ReportedEnd:
    """The success that a try of a task reports, kept in Airflow's task state store (from 3.3).

    Airflow may lose the state of a task that has succeeded, and try it again by itself, with the same ``max_tries``
    (a user's clear raises it). The job is gone by then; the result is here.
    """

    def __init__(self, operator: BaseTFJobOperator, context: Context) -> None:
        known: Any = context
        self._store, self._max_tries = known.get("task_state_store"), known["ti"].max_tries
        self._operator = operator

    def read(self) -> Mapping[str, Any] | None:
        """The job (``JOB_FACTS``) and the event of an earlier try, None if none has reported a success."""
        if self._store is None or not self._operator.options.reattach:
            return None
        found: Any = self._store.get(_REPORTED)
        return found if found and found["max_tries"] == self._max_tries else None

    def write(self, job: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        """Keep a success, before the job goes."""
        if self._store is None or not self._operator.options.reattach:
            return
        try:
            self._store.set(_REPORTED, {"max_tries": self._max_tries, "job": dict(job), "event": dict(event)})
        except Exception as error:
            # How the job came out is known, and that is what the task is about.
            self._operator.log.warning("the result is not kept for a try that may follow: %s", error)


class TaskKilled(AirflowException):
    """A user has ended the task while it ran."""


def _drives(operator: BaseTFJobOperator) -> bool:
    """Whether the process that waits for a job leads its namespace where nobody else does."""
    return operator.options.driver != DriverChoice.CONTROLLER


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
                    if isinstance(end, AirflowTaskTimeout) or self.operator.options.on_kill_action == "delete_job":
                        self.cleanup.give_up(job, str(end) or "this run was interrupted")
                    else:
                        self.operator.log.warning("%s goes on: on_kill_action is keep_job", job.shown)
                    raise
        except TaskKilled:
            raise
        except Exception:
            self.cleanup.abandon(job)
            raise

    def _wait_for_job(self, informer: SharedJobInformer, job: StoredJob) -> Mapping[str, Any]:
        operator, changed, ref = self.operator, threading.Event(), JobRef.of(job.resource, job.stored)
        options = WaitOptions(limits=self.limits, get_logs=operator.options.get_logs)
        drive = _drives(operator) and not job.status.finished
        subscription = informer.join(ref, changed.set, uid=job.uid, drive=drive)
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


_TIMEOUT: Final = (OutcomeKind.DEADLINE_EXCEEDED, "Timeout")
_TOO_LATE: Final = "the task took longer than its execution_timeout"
_SLACK: Final = 60.0  # seconds that a trigger has for its own deadline before Airflow's ends it


class TaskRun:
    """One try of the task of ``operator``, in a worker. Use it as a context manager: it opens the cluster once."""

    def __init__(self, operator: BaseTFJobOperator, context: Context) -> None:
        self._operator = operator
        self._context = context
        self._ti: Any = context["ti"]
        self._owner = owner_of_try(self._ti.id, self._ti.try_number)
        self._hook = TFJobHook.of(operator.access())
        self._publisher = XComPublisher(operator, context)
        self._cleanup = JobCleanup(operator, self._ti, self._hook, self._owner)
        self._reported = ReportedEnd(operator, context)
        self._request: JobRequest | None = None  # what is submitted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._hook.close()

    def execute(self) -> Any:
        """From the document to the result, or to the deferral; AirflowFailException for a job that can never run."""
        operator = self._operator
        if (reported := self._reported.read()) is not None:
            self._publisher.identified(reported["job"])
            operator.log.info("%s is over: an earlier try has reported it, and this one does so again", reported["job"])
            return self.finish(self._adopted(self.job()), reported["event"])
        try:
            if operator.invalid is not None:
                raise operator.invalid
            self._request = operator.request or request_of_operator(
                operator, lambda value: operator.render_template(value, self._context)
            )
            start = self._begin(self._request)
        except InvalidJob as error:
            self._publisher.outcome(Outcome(kind=OutcomeKind.INVALID, reason="InvalidJob", message=str(error)))
            raise task_failure(error) from None
        job = start.job
        try:
            self._publisher.began(start)
        except Exception:
            self._cleanup.abandon(job)
            raise
        if not operator.options.wait_for_completion:
            return {"name": job.name, "namespace": job.namespace, "uid": job.uid}
        if operator.options.deferrable and not job.status.finished:
            self._defer(job)
        waiting = ForegroundWait(operator, self._ti, self._hook, self._cleanup, self._limits())
        try:
            event = waiting.wait(job)
        except Exception as error:
            self._publisher.outcome(_outcome_of(error))
            raise
        return self.finish(job, event)

    # Beginning

    def _adopted(self, job: StoredJob | None) -> StoredJob | None:
        """A job that an earlier try did not come to delete, as this one's."""
        try:
            return job and task_jobs.adopt_job(self._hook.cluster, job, self._owner)
        except ClusterError:
            return None  # it goes, or is away: its result is known

    def _begin(self, request: JobRequest) -> StartResult:
        for problem in request.entry.parsed.warnings:
            self._operator.log.warning("%s", problem)
        namespace = self._operator.options.namespace or request.namespace or self._hook.get_namespace()
        key = self._key()
        cluster, ask = self._hook.cluster, self._ti.get_task_states
        task_jobs.delete_orphans(cluster, resource_of_request(request), namespace, key.deployment, ask)
        this = self._try(key, drive=self._drives(request, namespace))
        return JobStarter(self._hook.connection, request, namespace, this, self._change).start()

    def _key(self) -> TaskInstanceKey:
        ti = self._ti
        return TaskInstanceKey(
            deployment=deployment(),
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else int(ti.map_index),
        )

    def _drives(self, request: JobRequest, namespace: str) -> bool:
        """Whether this Airflow may come to lead a job that is created now; InvalidJob where nobody would."""
        operator, connection = self._operator, self._hook.connection
        if operator.options.wait_for_completion or not _drives(operator) or connection.place is None:
            return _drives(operator)
        leader = leader_status(connection.cluster, resource_of_request(request), namespace, now())
        if nobody_leads(leader):
            raise InvalidJob([unwaited_problem()])
        return False

    def _try(self, key: TaskInstanceKey, *, drive: bool) -> TaskTry:
        operator = self._operator
        goes_with_task = operator.options.wait_for_completion and operator.options.on_kill_action == "delete_job"
        return TaskTry(
            key=key,
            number=self._ti.try_number,
            max_tries=self._ti.max_tries,
            owner=self._owner,
            drive=drive,
            durable=operator.options.reattach,
            exact_name=operator.exact_name,
            labels=operator.options.labels or {},
            annotations={
                **operator.options.policies(),
                **(operator.options.annotations or {}),
                **({MASK_KEY: new_key()} if operator.options.deferrable and self._secrets() else {}),
                **(task_jobs.orphan_annotation(key) if goes_with_task else {}),
            },
        )

    def _change(self, document: dict[str, Any]) -> None:
        self._publisher.call("on_job_document_created", document=document)

    # Waiting

    def _limits(self) -> WaitLimits:
        options, started = self._operator.options, self._ti.start_date
        limit = self._operator.execution_timeout
        deadline = started.timestamp() + limit.total_seconds() if limit and started else None
        return WaitLimits(
            deadline=deadline,
            admission=admission_limit(options.admission_timeout, fallbacks=bool(options.fallback)),
            startup=options.startup_timeout,
            begun=time.time(),
        )

    def _defer(self, job: StoredJob) -> None:
        operator, limits = self._operator, self._limits()
        request = WaitRequest(
            name=job.name,
            namespace=job.namespace,
            kind=job.resource.kind,
            uid=job.uid,
            access=operator.access().fields(),
            drive=_drives(operator),
            owner=self._owner,
            on_kill_action=operator.options.on_kill_action,
            get_logs=operator.options.get_logs,
            poll_interval=operator.options.poll_interval,
            deadline=limits.deadline,
            admission_timeout=limits.admission,
            startup_timeout=limits.startup,
            asked_at=time.time(),
            secrets=self._sealed(job),
        )
        left = None if limits.deadline is None else max(0.0, limits.deadline - time.time()) + _SLACK
        operator.defer(
            trigger=TFJobTrigger(**request.plain()),
            method_name="execute_complete",
            timeout=None if left is None else timedelta(seconds=left),
        )

    def _secrets(self) -> list[str]:
        request = self._request
        documents = () if request is None else (request.entry.document, *(one.content for one in request.companions))
        return secrets_in([*documents, self._operator.options.labels, self._operator.options.annotations])

    def _sealed(self, job: StoredJob) -> str:
        """What the trigger has to mask, for the one who may read the job."""
        key = annotations_of(job.stored).get(MASK_KEY)
        return sealed(secrets, key) if key and (secrets := self._secrets()) else ""

    # Ending

    def finish(self, job: StoredJob | None, event: Mapping[str, Any]) -> Any:
        """The result, or the error that the event means; what becomes of the job."""
        event = masked(event)  # nothing of it is kept, or handed on, with a secret in it
        failure, result = payload_error(event), dict(event.get("result") or {})
        self._publisher.outcome(payload_outcome(event))
        if failure is None:
            self._reported.write({what: self._publisher.published(what) for what in JOB_FACTS}, event)
        if job is not None:
            self._clean_up(job, event)
        self._publisher.ended(result, succeeded=failure is None)
        if failure is None:
            return self._operator.returned(result)
        if _is_among(event.get("exit_code"), self._operator.options.skip_on_exit_code):
            raise AirflowSkipException(str(failure))
        raise failure

    def _clean_up(self, job: StoredJob, event: Mapping[str, Any]) -> None:
        outcome = payload_outcome(event)
        kind = outcome.kind if outcome is not None else None
        # A retry goes on waiting with the job, and with its age.
        waits_on = kind is OutcomeKind.ADMISSION_TIMEOUT and self._cleanup.adopted_by_retry
        if kind is OutcomeKind.UNKNOWN or waits_on:
            self._cleanup.abandon(job)
        elif self._cleanup.clean_up(job, event):
            self._publisher.call("on_job_cleanup", name=job.name, namespace=job.namespace)

    def trigger_lost(self, error: Exception, *, late: bool) -> None:
        """The trigger is gone without a word; ``late``: because the task's time is over. JobTimeout then."""
        job = self.job()
        status = job.status if job is not None else Status()
        kind, reason = _TIMEOUT if late else (OutcomeKind.UNKNOWN, "TriggerLost")
        outcome = Outcome.of(status, kind, reason=reason, message=_TOO_LATE if late else str(error), now=time.time())
        self._publisher.outcome(outcome)
        self._part(job, late=late)
        if late:
            raise JobTimeout(_TOO_LATE, outcome=outcome) from error

    def _part(self, job: StoredJob | None, *, late: bool) -> None:
        if job is None:
            return
        if late:
            self._cleanup.give_up(job, _TOO_LATE)
        else:
            self._cleanup.abandon(job)

    def job(self) -> StoredJob | None:
        """The job of this try, None if nothing is left of it or the cluster is away."""
        name, namespace, uid, kind = (self._publisher.published(what) for what in JOB_FACTS)
        try:
            prefix = "vcjob" if kind == VOLCANO_JOBS.kind else "tfjob"
            job = find_job(self._hook.cluster, f"{prefix}/{name}", namespace)
        except NotFound:
            return None
        except ClusterError as error:
            self._operator.log.warning("%s cannot be looked at: %s", name, error)
            return None
        return job if job.uid == uid else None


def _outcome_of(error: Exception) -> Outcome:
    """The outcome of a wait in the worker that ended with an error of Airflow's, or of the cluster."""
    kind, reason = _TIMEOUT if isinstance(error, AirflowTaskTimeout) else (OutcomeKind.UNKNOWN, type(error).__name__)
    return Outcome(kind=kind, reason=reason, message=str(error))


def _is_among(code: object, codes: int | Container[int] | None) -> bool:
    if not isinstance(code, int) or codes is None:
        return False
    return code == codes if isinstance(codes, int) else code in codes
