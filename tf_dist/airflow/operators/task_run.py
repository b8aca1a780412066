"""One try of an operator's task: start its job, wait in the worker or defer, publish XComs, clean up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from tf_dist.airflow.hooks.tfjob import TFJobHook
from tf_dist.airflow.jobs.adopt_or_create import TaskJobs, TaskTry, resource_of_request
from tf_dist.airflow.jobs.airflow_deployment import deployment
from tf_dist.airflow.jobs.event_payload import payload_cause, payload_error, payload_outcome
from tf_dist.airflow.jobs.job_ownership import adopt_job
from tf_dist.airflow.jobs.job_request import JobRequest
from tf_dist.airflow.jobs.orphans import delete_orphans, orphan_annotation
from tf_dist.airflow.jobs.task_identity import MASK_KEY, TaskInstanceKey, annotations_of, owner_of_try
from tf_dist.airflow.masking import masked, new_key, sealed, secrets_in
from tf_dist.airflow.operators.foreground_wait import ForegroundWait
from tf_dist.airflow.operators.job_cleanup import JobCleanup
from tf_dist.airflow.operators.operator_arguments import task_failure
from tf_dist.airflow.operators.xcom_publisher import JOB_FACTS, ReportedEnd, XComPublisher
from tf_dist.airflow.triggers.tfjob import TFJobTrigger, WaitRequest
from tf_dist.airflow.version_compat import AirflowSkipException, AirflowTaskTimeout
from tf_dist.client.session_host import StartedJob, start_job
from tf_dist.client.stored_jobs import StoredJob, find_job, now
from tf_dist.cluster.api import VOLCANO_JOBS
from tf_dist.controller.leases.leader_status import leader_status, nobody_leads
from tf_dist.core.diagnostics.outcome import Outcome
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.core.model.status import Status
from tf_dist.core.pipeline.session import EndCause
from tf_dist.core.pipeline.wait_result import WaitLimits, admission_limit
from tf_dist.errors import ClusterError, InvalidJob, JobTimeout, NotFound, Problem

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tf_dist.airflow.operators.operator_arguments import BaseTFJobOperator


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
            job = self.job()
            try:
                job = job and adopt_job(self._hook.cluster, job, self._owner)  # no try came to delete it
            except ClusterError:
                job = None  # it goes, or is away: its result is known
            return self.finish(job, reported["event"])
        try:
            if operator.invalid is not None:
                raise operator.invalid
            self._request = operator.request or operator.read_request(
                lambda value: operator.render_template(value, self._context)
            )
            start = self._begin(self._request)
        except InvalidJob as error:
            self._publisher.outcome(Outcome(kind=OutcomeKind.INVALID, reason="InvalidJob", message=str(error)))
            raise task_failure(error) from None
        job = start.job
        try:
            self._publisher.began(start)
        except Exception:
            self._cleanup.part(job, EndCause.ERROR, "the task failed, and is not tried again")
            raise
        if not operator.options.wait_for_completion:
            return {"name": job.name, "namespace": job.namespace, "uid": job.uid}
        if operator.options.deferrable and not job.status.finished:
            self._defer(job)
        waiting = ForegroundWait(operator, self._ti, self._hook, self._cleanup, self._limits())
        try:
            event = waiting.wait(job)
        except Exception as error:
            late = isinstance(error, AirflowTaskTimeout)
            kind, reason = _TIMEOUT if late else (OutcomeKind.UNKNOWN, type(error).__name__)
            message = _TOO_LATE if late else str(error)
            self._publisher.outcome(Outcome(kind=kind, reason=reason, message=message))
            raise
        return self.finish(job, event)

    # Beginning

    def _begin(self, request: JobRequest) -> StartedJob:
        for problem in request.entry.parsed.warnings:
            self._operator.log.warning("%s", problem)
        namespace = self._operator.options.namespace or request.namespace or self._hook.get_namespace()
        key = self._key()
        cluster, ask = self._hook.cluster, self._ti.get_task_states
        delete_orphans(cluster, resource_of_request(request), namespace, key.deployment, ask)
        this = self._try(key, drive=self._drives(request, namespace))

        def changed(document: dict[str, Any]) -> None:
            self._publisher.call("on_job_document_created", document=document)

        return start_job(TaskJobs(self._hook.connection, request, namespace, this, changed))

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
        if operator.options.wait_for_completion or not operator.options.drives or connection.place is None:
            return operator.options.drives
        leader = leader_status(connection.cluster, resource_of_request(request), namespace, now())
        if nobody_leads(leader):
            what, hint = (
                "nobody leads the namespace once the task is done",
                "install a controller (tf-dist install), or wait",
            )
            raise InvalidJob([Problem("wait_for_completion", what, hint)])
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
                **(orphan_annotation(key) if goes_with_task else {}),
            },
        )

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
        key = annotations_of(job.stored).get(MASK_KEY)
        request = WaitRequest(
            name=job.name,
            namespace=job.namespace,
            kind=job.resource.kind,
            uid=job.uid,
            access=operator.access().fields(),
            drive=operator.options.drives,
            owner=self._owner,
            on_kill_action=operator.options.on_kill_action,
            get_logs=operator.options.get_logs,
            poll_interval=operator.options.poll_interval,
            deadline=limits.deadline,
            admission_timeout=limits.admission,
            startup_timeout=limits.startup,
            asked_at=time.time(),
            # What the trigger has to mask, for the one who may read the job.
            secrets=sealed(secrets, key) if key and (secrets := self._secrets()) else "",
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

    # Ending

    def finish(self, job: StoredJob | None, event: Mapping[str, Any]) -> Any:
        """The result, or the error that the event means; what becomes of the job."""
        event = masked(event)  # nothing of it is kept, or handed on, with a secret in it
        failure, result = payload_error(event), dict(event.get("result") or {})
        self._publisher.outcome(payload_outcome(event))
        if failure is None:
            self._reported.write({what: self._publisher.published(what) for what in JOB_FACTS}, event)
        cause = payload_cause(event)
        if job is not None and self._cleanup.part(job, cause, event["message"]):
            self._publisher.call("on_job_cleanup", name=job.name, namespace=job.namespace)
        self._publisher.ended(result, succeeded=failure is None)
        if failure is None:
            return self._operator.returned(result)
        code, skipped = event.get("exit_code"), self._operator.options.skip_on_exit_code
        if code is not None and code in ([skipped] if isinstance(skipped, int) else skipped or ()):
            raise AirflowSkipException(str(failure))
        raise failure

    def trigger_lost(self, error: Exception, *, late: bool) -> None:
        """The trigger is gone without a word; ``late``: because the task's time is over. JobTimeout then."""
        job = self.job()
        status = job.status if job is not None else Status()
        kind, reason = _TIMEOUT if late else (OutcomeKind.UNKNOWN, "TriggerLost")
        outcome = Outcome.of(status, kind, reason=reason, message=_TOO_LATE if late else str(error), now=time.time())
        self._publisher.outcome(outcome)
        if job is not None:
            why = _TOO_LATE if late else "its trigger is lost, and the task is not tried again"
            self._cleanup.part(job, EndCause.OVERDUE if late else EndCause.UNREACHABLE, why)
        if late:
            raise JobTimeout(_TOO_LATE, outcome=outcome) from error

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
