"""One try of an operator's task: start its job, wait in the worker or defer, publish XComs, clean up."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from tf_dist.airflow.hooks.tfjob import TFJobHook
from tf_dist.airflow.jobs.airflow_deployment import deployment
from tf_dist.airflow.jobs.event_payload import payload_cause, payload_error, payload_outcome, unseen_payload
from tf_dist.airflow.jobs.job_ownership import (
    TaskJobs,
    TaskTry,
    adopt_job,
    delete_if_owned,
    delete_orphans,
    mark_result_used,
    orphan_annotation,
)
from tf_dist.airflow.jobs.job_request import JobRequest
from tf_dist.airflow.jobs.job_waiter import JobWaiter, WaitOptions, take_in_thread
from tf_dist.airflow.jobs.task_identity import (
    ACTIVE_STATES,
    ENDED_STATES,
    MASK_KEY,
    TaskInstanceKey,
    annotations_of,
    owner_of_try,
    task_state,
)
from tf_dist.airflow.jobs.task_log import write_error, write_line
from tf_dist.airflow.links import tfjob as links
from tf_dist.airflow.masking import masked, new_key, sealed, secrets_in
from tf_dist.airflow.operators.operator_arguments import task_failure
from tf_dist.airflow.triggers.tfjob import TFJobTrigger, WaitRequest
from tf_dist.airflow.version_compat import AirflowException, AirflowSkipException, AirflowTaskTimeout
from tf_dist.client.leader_status import leader_status, nobody_leads
from tf_dist.client.session_host import StartedJob, start_job
from tf_dist.client.stored_jobs import StoredJob, find_job, now
from tf_dist.client.wait import run_in_thread
from tf_dist.cluster.api import VOLCANO_JOBS
from tf_dist.controller.settings import JobRef
from tf_dist.core.diagnostics.outcome import Outcome
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.core.model.status import Status
from tf_dist.core.pipeline.adoption import AdoptionAction
from tf_dist.core.pipeline.session import DELETED_END, ENDED, EndCause, OnFinish, task_policy
from tf_dist.core.pipeline.wait_result import WaitLimits, admission_limit
from tf_dist.core.pipeline.workflow_stop import JobFate
from tf_dist.errors import ClusterError, InvalidJob, JobTimeout, NotFound, Problem

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tf_dist.airflow.informers.job_informer import SharedJobInformer
    from tf_dist.airflow.operators.operator_arguments import BaseTFJobOperator

_TOO_LATE: Final = "the task took longer than its execution_timeout"
_SLACK: Final = 60.0  # seconds between the trigger's own deadline and the timeout of Airflow's deferral
_FACTS: Final = ("name", "namespace", "uid", "kind")  # facts of a job, each published as the XCom ``job_…``
_REPORTED: Final = "tf_dist_reported"  # the key in Airflow's task state store
_NOT_FOUND: Final = 404  # the status code of Airflow's API server for a try that another try has replaced
_STARTED: Final = {
    AdoptionAction.CREATE: "created",
    AdoptionAction.ADOPT: "adopted: an earlier try created it",
    AdoptionAction.REUSE_RESULT: "finished: an earlier try created it, and this try uses its result",
}


class TaskKilled(AirflowException):
    """A user ended the task while it ran."""


class TaskRun:
    """One try of the task of ``operator``, in a worker. As a context manager, it closes the connection at the end."""

    def __init__(self, operator: BaseTFJobOperator, context: Context) -> None:
        self._operator, self._options, self._log = operator, operator.options, operator.log
        self._context: Any = context
        self._ti: Any = context["ti"]
        self._owner = owner_of_try(self._ti.id, self._ti.try_number)
        self._hook = TFJobHook.of(operator.access())
        self._request: JobRequest | None = None  # the request to submit
        # Exists from Airflow 3.3 on. Airflow may lose the state of a task that succeeded, and retry the task with the
        # same ``max_tries``. By then, the job may be deleted, so its result is stored here. If a user clears the task,
        # Airflow raises ``max_tries``, and the stored result is not used.
        self._store: Any = self._context.get("task_state_store") if self._options.reattach else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._hook.close()

    def execute(self) -> Any:
        """Run the job and return its result, or defer. Raises AirflowFailException for a job that can never run."""
        operator = self._operator
        reported: Any = None if self._store is None else self._store.get(_REPORTED)
        if reported and reported["max_tries"] == self._ti.max_tries:
            return self._repeat(reported["job"], reported["event"])
        try:
            if operator.invalid is not None:
                raise operator.invalid
            self._request = operator.request or operator.read_request(
                lambda value: operator.render_template(value, self._context)
            )
            start = self._begin(self._request)
        except InvalidJob as error:
            self._publish_outcome(Outcome(kind=OutcomeKind.INVALID, reason="InvalidJob", message=str(error)))
            raise task_failure(error) from None
        job = start.job
        try:
            # Publish immediately, so that links and XComs exist if a later step fails.
            self._log.info("%s in namespace %s is %s", job.shown, job.namespace, _STARTED[start.action])
            self._publish_job({"name": job.name, "namespace": job.namespace, "uid": job.uid, "kind": job.resource.kind})
            self._call("on_job_creation", job=job)
        except Exception:
            self.part(job, EndCause.ERROR, "the task failed, and is not retried")
            raise
        if not self._options.wait_for_completion:
            return {"name": job.name, "namespace": job.namespace, "uid": job.uid}
        if self._options.deferrable and not job.status.finished:
            self._defer(job)
        return self.finish(job, self.wait(job))

    def _repeat(self, facts: Mapping[str, str], event: Mapping[str, Any]) -> Any:
        """Repeat the report of an earlier try that succeeded."""
        self._publish_job(facts)
        self._log.info("%s succeeded: an earlier try reported it, and this try reports it again", facts)
        job = self.job()
        try:
            job = job and adopt_job(self._hook.cluster, job, self._owner)  # the earlier try did not delete it
        except ClusterError:
            job = None  # the job is being deleted, or the cluster does not answer; the result is known anyway
        return self.finish(job, event)

    # Start

    def _begin(self, request: JobRequest) -> StartedJob:
        options, ti = self._options, self._ti
        for problem in request.entry.parsed.warnings:
            self._log.warning("%s", problem)
        namespace = options.namespace or request.namespace or self._hook.get_namespace()
        key = TaskInstanceKey(
            deployment=deployment(),
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else int(ti.map_index),
        )
        delete_orphans(self._hook.cluster, request.resource, namespace, key.deployment, ti.get_task_states)
        goes_with_task = options.wait_for_completion and options.on_kill_action == "delete_job"
        this = TaskTry(
            key=key,
            number=ti.try_number,
            max_tries=ti.max_tries,
            owner=self._owner,
            drive=self._drives(request, namespace),
            durable=options.reattach,
            exact_name=self._operator.exact_name,
            labels=options.labels or {},
            annotations={
                **options.policies(),
                **(options.annotations or {}),
                **({MASK_KEY: new_key()} if options.deferrable and self._secrets() else {}),
                **(orphan_annotation(key) if goes_with_task else {}),
            },
        )

        def changed(document: dict[str, Any]) -> None:
            self._call("on_job_document_created", document=document)

        return start_job(TaskJobs(self._hook.connection, request, namespace, this, changed))

    def _drives(self, request: JobRequest, namespace: str) -> bool:
        """Whether this Airflow may lead the namespace of the job. Raises InvalidJob if the job would have no leader."""
        options, connection = self._options, self._hook.connection
        if options.wait_for_completion or not options.drives or connection.place is None:
            return options.drives
        if nobody_leads(leader_status(connection.cluster, request.resource, namespace, now())):
            what = "no controller leads the namespace after the task has ended"
            hint = "install a controller (tf-dist install), or wait"
            raise InvalidJob([Problem("wait_for_completion", what, hint)])
        return False

    # Wait

    def _limits(self) -> WaitLimits:
        options, started = self._options, self._ti.start_date
        limit = self._operator.execution_timeout
        return WaitLimits(
            deadline=started.timestamp() + limit.total_seconds() if limit and started else None,
            admission=admission_limit(options.admission_timeout, fallbacks=bool(options.fallback)),
            startup=options.startup_timeout,
            begun=time.time(),
        )

    def _defer(self, job: StoredJob) -> None:
        operator, options, limits = self._operator, self._options, self._limits()
        key = annotations_of(job.stored).get(MASK_KEY)
        request = WaitRequest(
            name=job.name,
            namespace=job.namespace,
            kind=job.resource.kind,
            uid=job.uid,
            access=operator.access().fields(),
            drive=options.drives,
            owner=self._owner,
            on_kill_action=options.on_kill_action,
            get_logs=options.get_logs,
            poll_interval=options.poll_interval,
            deadline=limits.deadline,
            admission_timeout=limits.admission,
            startup_timeout=limits.startup,
            asked_at=time.time(),
            secrets=sealed(secrets, key) if key and (secrets := self._secrets()) else "",
        )
        left = None if limits.deadline is None else max(0.0, limits.deadline - time.time()) + _SLACK
        operator.defer(
            trigger=TFJobTrigger(**request.plain()),
            method_name="execute_complete",
            timeout=None if left is None else timedelta(seconds=left),
        )

    def _secrets(self) -> list[str]:
        """The secrets that the trigger masks in the log of the task."""
        request = self._request
        documents = () if request is None else (request.entry.document, *(one.content for one in request.companions))
        return secrets_in([*documents, self._options.labels, self._options.annotations])

    def wait(self, job: StoredJob) -> Mapping[str, Any]:
        """Wait in this thread, and return the event of the wait. If the wait fails, clean up the job, and raise."""
        with ExitStack() as stack:
            try:
                return self._wait_with(stack.enter_context(self._hook.informer(job.namespace)), job)
            except KeyboardInterrupt as error:
                self.part(job, EndCause.STOPPED, str(error) or "this run was interrupted")
                raise
            except (Exception, AirflowTaskTimeout) as error:
                # Do this before the informer closes: Airflow kills a process five seconds after a user ended its task.
                if late := isinstance(error, AirflowTaskTimeout):
                    self.part(job, EndCause.OVERDUE, str(error) or _TOO_LATE)
                elif isinstance(error, TaskKilled):
                    self.part(job, EndCause.STOPPED, str(error))
                else:
                    self.part(job, EndCause.ERROR, f"the task cannot wait for it ({error})")
                kind = OutcomeKind.DEADLINE_EXCEEDED if late else OutcomeKind.UNKNOWN
                reason, message = ("Timeout", _TOO_LATE) if late else (type(error).__name__, str(error))
                self._publish_outcome(Outcome(kind=kind, reason=reason, message=message))
                raise

    def _wait_with(self, informer: SharedJobInformer, job: StoredJob) -> Mapping[str, Any]:
        changed, ref = threading.Event(), JobRef.of(job.resource, job.stored)
        wanted = WaitOptions(policy=task_policy(limits=self._limits()), get_logs=self._options.get_logs)
        drive = self._options.drives and not job.status.finished
        try:
            subscription = informer.join(ref, changed.set, uid=job.uid, drive=drive)
        except NotFound:
            return unseen_payload(DELETED_END, job.shown)
        try:
            waiter = JobWaiter(informer, subscription, wanted, write_line, write_error)
            return run_in_thread(waiter.steps(), take_in_thread(subscription, changed, self._stop_if_killed))
        finally:
            informer.leave(subscription)

    def _stop_if_killed(self) -> None:
        """After ``on_kill``, raise TaskKilled if a user ended the task. A stopped worker or a clear is not a reason."""
        if not self._operator.killed:
            return
        self._operator.killed = False
        state = task_state(self._ti, self._ti.get_task_states)
        if state in ENDED_STATES:
            raise TaskKilled(f"a user ended the task: it is {state}")
        self._log.info("this process was asked to stop (the task is %s): the job continues", state)

    # End

    def finish(self, job: StoredJob | None, event: Mapping[str, Any]) -> Any:
        """Clean up the job. Returns the result, or raises the error, of the event."""
        event = masked(event)  # secrets must not be stored or passed on
        failure, result = payload_error(event), dict(event.get("result") or {})
        self._publish_outcome(payload_outcome(event))
        replaced = failure is None and self._store is not None and not self._store_result(event)
        if replaced:
            self._log.warning("the job is left to the next try of this task: Airflow has replaced this try")
        if job is not None and not replaced and self.part(job, payload_cause(event), event["message"]):
            self._call("on_job_cleanup", name=job.name, namespace=job.namespace)
        self._call("on_job_completion", result=result, succeeded=failure is None)
        self._operator.result = result
        self._ti.xcom_push(key="result", value=result)
        if checkpoint := str(result.get("checkpoint") or ""):
            self._ti.xcom_push(key="checkpoint", value=checkpoint)
            self._ti.xcom_push(key=links.CHECKPOINT_URL, value=links.checkpoint_page(checkpoint))
        events = self._context["outlet_events"]
        for outlet in self._operator.outlets if failure is None else ():  # also for consumers of its assets
            events[outlet].extra = {**events[outlet].extra, **result}
        if failure is None:
            return self._operator.returned(result)
        code, skipped = event.get("exit_code"), self._options.skip_on_exit_code
        if code is not None and code in ([skipped] if isinstance(skipped, int) else skipped or ()):
            raise AirflowSkipException(str(failure))
        raise failure

    def _store_result(self, event: Mapping[str, Any]) -> bool:
        """Store the success for a possible retry. Returns False if Airflow has replaced this try with another try."""
        facts = {what: self._published(what) for what in _FACTS}
        try:
            self._store.set(_REPORTED, {"max_tries": self._ti.max_tries, "job": facts, "event": dict(event)})
        except Exception as error:
            # The outcome of the job is known, so the task does not fail.
            self._log.warning("the result is not stored for a possible retry: %s", error)
            detail = getattr(getattr(error, "error", None), "detail", None)
            return not isinstance(detail, Mapping) or detail.get("status_code") != _NOT_FOUND
        return True

    def trigger_lost(self, error: Exception, *, late: bool) -> None:
        """Clean up after a trigger that ended without an event. ``late``: the task timed out; raises JobTimeout."""
        job = self.job()
        kind, reason = (OutcomeKind.DEADLINE_EXCEEDED, "Timeout") if late else (OutcomeKind.UNKNOWN, "TriggerLost")
        message = _TOO_LATE if late else str(error)
        status = job.status if job is not None else Status()
        outcome = Outcome.of(status, kind, reason=reason, message=message, now=time.time())
        self._publish_outcome(outcome)
        if job is not None:
            why = _TOO_LATE if late else "its trigger is lost, and the task is not retried"
            self.part(job, EndCause.OVERDUE if late else EndCause.UNREACHABLE, why)
        if late:
            raise JobTimeout(_TOO_LATE, outcome=outcome) from error

    def job(self) -> StoredJob | None:
        """The job of this try; None if it is gone, or the cluster does not answer."""
        name, namespace, uid, kind = map(self._published, _FACTS)
        try:
            prefix = "vcjob" if kind == VOLCANO_JOBS.kind else "tfjob"
            job = find_job(self._hook.cluster, f"{prefix}/{name}", namespace)
        except NotFound:
            return None
        except ClusterError as error:
            self._log.warning("%s cannot be read: %s", name, error)
            return None
        return job if job.uid == uid else None

    def part(self, job: StoredJob, cause: EndCause, why: str = "") -> bool:
        """Apply the policy of the task for this end to the job. Returns whether the job was deleted.

        A job that another try owns is not deleted. If Airflow has given up this try, a job that has ended is left to
        the next try.
        """
        options, ti, log = self._options, self._ti, self._log
        if cause in ENDED and options.reattach and (state := self._given_up()):
            log.warning("%s is left to the next try of this task, which is %s", job.shown, state)
            return False
        fate = task_policy(
            retried=bool(options.reattach and ti.try_number <= ti.max_tries),
            on_finish=OnFinish(options.on_finish_action),
            on_kill=options.on_kill_action,
        ).fates[cause]
        try:
            if fate is JobFate.DELETE:
                deleted = delete_if_owned(self._hook.cluster, job, self._owner)
                if deleted:
                    log.info("%s is deleted: %s", job.shown, why or cause)
                return deleted
            if fate is JobFate.MARK:
                mark_result_used(self._hook.cluster, job, self._owner, ti.max_tries)
            elif cause is EndCause.STOPPED:
                log.warning("%s continues: on_kill_action is keep_job", job.shown)
            elif cause is not EndCause.DELETED:
                log.warning("%s continues without a task that waits for it: a retry adopts it", job.shown)
        except NotFound:
            return False
        except ClusterError as error:
            # The outcome of the job is known, so the task does not fail.
            what = "deleted" if fate is JobFate.DELETE else "marked"
            log.warning("%s could not be %s: %s", job.shown, what, error)
        return False

    def _given_up(self) -> str | None:
        """The state of the task if another try will start; None if not, or if Airflow does not answer.

        If the scheduler considers this process lost, it has already created that try, and ignores the result of this
        try.
        """
        try:
            state = task_state(self._ti, self._ti.get_task_states)
        except Exception as error:
            self._log.warning("the state of this task cannot be read: %s", error)
            return None
        return None if state in ENDED_STATES | ACTIVE_STATES else state

    # XComs and callbacks

    def _publish_job(self, facts: Mapping[str, str]) -> None:
        """Publish the job's name, namespace, uid and kind, and the links to it."""
        for what, value in facts.items():
            self._ti.xcom_push(key=f"job_{what}", value=value)
        # Also publish links without a URL: Airflow requests every link, and logs an error for a missing value.
        urls = {links.JOB_URL: self._options.job_url, links.TENSORBOARD_URL: self._options.tensorboard_url}
        for key, url in {**urls, links.CHECKPOINT_URL: None}.items():
            filled = (url or "").replace("{name}", facts["name"]).replace("{namespace}", facts["namespace"])
            self._ti.xcom_push(key=key, value=masked(filled))
        self._operator.has_job = True

    def _published(self, what: str) -> Any:
        """A fact that ``_publish_job`` published."""
        ti = self._ti
        return ti.xcom_pull(key=f"job_{what}", task_ids=ti.task_id, map_indexes=ti.map_index)

    def _publish_outcome(self, outcome: Outcome | None) -> None:
        """Publish how the job ended, even if the task fails, because a downstream task may branch on it."""
        if outcome is not None:
            self._ti.xcom_push(key="outcome", value=masked(outcome.document()))

    def _call(self, method: str, **facts: Any) -> None:
        """Call the user's callbacks."""
        given = self._options.callbacks or ()
        for callbacks in (given,) if isinstance(given, type) else given:
            getattr(callbacks, method)(operator=self._operator, **facts)
