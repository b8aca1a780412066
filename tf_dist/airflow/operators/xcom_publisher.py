"""What a try reports to Airflow: XComs, asset events, callbacks, and the success that a later try repeats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tf_dist.airflow.links import tfjob
from tf_dist.airflow.masking import masked
from tf_dist.client.session_host import StartedJob
from tf_dist.core.diagnostics.outcome import Outcome
from tf_dist.core.pipeline.adoption import AdoptionAction

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tf_dist.airflow.operators.operator_arguments import BaseTFJobOperator

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

    def began(self, start: StartedJob) -> None:
        """Say which job it is, at once, so that links and XComs are there if a later step fails."""
        job = start.job
        self._operator.log.info("%s in namespace %s is %s", job.shown, job.namespace, _PUBLISHED[start.action])
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
            filled = (url or "").replace("{name}", facts["name"]).replace("{namespace}", facts["namespace"])
            self._ti.xcom_push(key=key, value=masked(filled))

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


class ReportedEnd:
    """The success that a try of a task reports, kept in Airflow's task state store (from 3.3).

    Airflow may lose the state of a task that has succeeded, and try it again by itself, with the same ``max_tries``
    (a user's clear raises it). The job is gone by then; the result is here.
    """

    def __init__(self, operator: BaseTFJobOperator, context: Context) -> None:
        known: Any = context
        self._store = known.get("task_state_store") if operator.options.reattach else None
        self._max_tries, self._log = known["ti"].max_tries, operator.log

    def read(self) -> Mapping[str, Any] | None:
        """The job (``JOB_FACTS``) and the event of an earlier try, None if none has reported a success."""
        if self._store is None:
            return None
        found: Any = self._store.get(_REPORTED)
        return found if found and found["max_tries"] == self._max_tries else None

    def write(self, job: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        """Keep a success, before the job goes."""
        if self._store is None:
            return
        try:
            self._store.set(_REPORTED, {"max_tries": self._max_tries, "job": dict(job), "event": dict(event)})
        except Exception as error:
            # How the job came out is known, and that is what the task is about.
            self._log.warning("the result is not kept for a try that may follow: %s", error)
