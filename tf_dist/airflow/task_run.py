"""What one try of an operator's task does: begin, wait or defer, finish."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from airflow.sdk.exceptions import AirflowSkipException

from tf_dist.airflow import orphans
from tf_dist.airflow.announcing import Announcer
from tf_dist.airflow.arguments import order_from, refusal
from tf_dist.airflow.deployment import deployment
from tf_dist.airflow.documents import Order
from tf_dist.airflow.hook import TFJobHook
from tf_dist.airflow.identity import TaskKey, owner
from tf_dist.airflow.outcomes import ERROR, failure_of
from tf_dist.airflow.parting import Parting
from tf_dist.airflow.starting import Start, Try, begin, resource_of
from tf_dist.airflow.staying import Stay
from tf_dist.airflow.trigger import Request, TFJobTrigger
from tf_dist.client.jobs import StoredJob, find
from tf_dist.cluster.api import VOLCANO_JOBS
from tf_dist.core.conclusion import Limits
from tf_dist.errors import ClusterError, InvalidJob, NotFound

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tf_dist.airflow.operator import TFJobOperator

_SLACK: Final = 60.0  # seconds that a trigger has for its own deadline before Airflow's ends it


class TaskRun:
    """One try of the task of ``operator``, in a worker. Use it as a context manager: it opens the cluster once."""

    def __init__(self, operator: TFJobOperator, context: Context) -> None:
        self._operator = operator
        self._context = context
        self._ti: Any = context["ti"]
        self._owner = owner(self._ti.id, self._ti.try_number)
        self._hook = TFJobHook.of(operator.access())
        self._announcer = Announcer(operator, context)
        self._parting = Parting(operator, self._ti, self._hook, self._owner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._hook.close()

    def execute(self) -> Any:
        """From the document to the result, or to the deferral; AirflowFailException for a job that can never run."""
        operator = self._operator
        try:
            start = self._begin(order_from(operator, lambda value: operator.render_template(value, self._context)))
        except InvalidJob as error:
            raise refusal(error) from None
        job = start.job
        try:
            self._announcer.began(start)
        except Exception:
            self._parting.abandon(job)
            raise
        if not operator.wait_for_completion:
            return {"name": job.name, "namespace": job.namespace, "uid": job.uid}
        if operator.deferrable and not job.status.finished:
            self._defer(job)
        return self.finish(job, Stay(operator, self._ti, self._hook, self._parting, self._limits()).attend(job))

    # Beginning

    def _begin(self, order: Order) -> Start:
        namespace = self._operator.namespace or order.namespace or self._hook.get_namespace()
        key = self._key()
        cluster, ask = self._hook.cluster, self._ti.get_task_states
        orphans.sweep(cluster, resource_of(order), namespace, key.deployment, ask)
        return begin(self._hook.connection, order, namespace, self._try(key), self._change)

    def _key(self) -> TaskKey:
        ti = self._ti
        return TaskKey(
            deployment=deployment(),
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else int(ti.map_index),
        )

    def _try(self, key: TaskKey) -> Try:
        operator = self._operator
        goes_with_task = operator.wait_for_completion and operator.on_kill_action == "delete_job"
        return Try(
            key=key,
            number=self._ti.try_number,
            owner=self._owner,
            drive=operator.driver == "inline",
            durable=operator.durable,
            labels=operator.labels or {},
            annotations={**(operator.annotations or {}), **(orphans.note(key) if goes_with_task else {})},
        )

    def _change(self, document: dict[str, Any]) -> None:
        self._announcer.call("on_job_document_created", document=document)

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

    # Ending

    def finish(self, job: StoredJob | None, event: Mapping[str, Any]) -> Any:
        """The result, or the error that the event means; what becomes of the job."""
        failure, result = failure_of(event), dict(event.get("result") or {})
        if job is not None:
            self._part(job, event)
        self._announcer.ended(result, succeeded=failure is None)
        if failure is None:
            return result
        if _is_among(event.get("exit_code"), self._operator.skip_on_exit_code):
            raise AirflowSkipException(str(failure))
        raise failure

    def _part(self, job: StoredJob, event: Mapping[str, Any]) -> None:
        if event["end"] == ERROR:
            self._parting.abandon(job)
        elif self._parting.clean_up(job, event):
            self._announcer.call("on_job_cleanup", name=job.name, namespace=job.namespace)

    def left_behind(self, *, late: bool) -> None:
        """The trigger is gone without a word; ``late``: because the task's time is over."""
        job = self.job()
        if job is None:
            return
        if late:
            self._parting.give_up(job, "the task took longer than its execution_timeout")
        else:
            self._parting.abandon(job)

    def job(self) -> StoredJob | None:
        """The job of this try, None if nothing is left of it or the cluster is away."""
        name, namespace, uid, kind = (self._announcer.told(what) for what in ("name", "namespace", "uid", "kind"))
        try:
            prefix = "vcjob" if kind == VOLCANO_JOBS.kind else "tfjob"
            job = find(self._hook.cluster, f"{prefix}/{name}", namespace)
        except NotFound:
            return None
        except ClusterError as error:
            self._operator.log.warning("%s cannot be looked at: %s", name, error)
            return None
        return job if job.uid == uid else None


def _is_among(code: object, codes: int | Container[int] | None) -> bool:
    if not isinstance(code, int) or codes is None:
        return False
    return code == codes if isinstance(codes, int) else code in codes
