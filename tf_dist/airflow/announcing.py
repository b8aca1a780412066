"""What a try of a task tells Airflow and the user's callbacks of its job: XComs, links, asset events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tf_dist.airflow import links
from tf_dist.airflow.starting import Start
from tf_dist.client.jobs import StoredJob
from tf_dist.core.succession import Answer

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tf_dist.airflow.operator import TFJobOperator

_SAID = {
    Answer.CREATE: "created",
    Answer.ADOPT: "taken up again: an earlier try made it",
    Answer.HARVEST: "over: an earlier try made it, and this one takes its result",
}


class Announcer:
    """Tells of the job of one try of the task of ``operator``."""

    def __init__(self, operator: TFJobOperator, context: Context) -> None:
        self._operator = operator
        self._context = context
        self._ti: Any = context["ti"]

    def began(self, start: Start) -> None:
        """Say which job it is, at once: whatever comes later, the links and XComs are there."""
        job, operator = start.job, self._operator
        operator.log.info("%s in namespace %s is %s", job.shown, job.namespace, _SAID[start.answer])
        facts = {"name": job.name, "namespace": job.namespace, "uid": job.uid, "kind": job.resource.kind}
        for what, value in facts.items():
            self._ti.xcom_push(key=f"job_{what}", value=value)
        # Those without a URL, too: Airflow asks for every link, and logs an error for a value that is not there.
        urls = {links.JOB_URL: operator.job_url, links.TENSORBOARD_URL: operator.tensorboard_url}
        for key, url in {**urls, links.CHECKPOINT_URL: None}.items():
            self._ti.xcom_push(key=key, value=_filled(url or "", job))
        self.call("on_job_creation", job=job)

    def ended(self, result: Mapping[str, Any], *, succeeded: bool) -> None:
        """Say what came of it; consumers of the task's assets are told of the model."""
        self.call("on_job_completion", result=result, succeeded=succeeded)
        checkpoint = str(result.get("checkpoint") or "")
        if checkpoint:
            self._ti.xcom_push(key="checkpoint", value=checkpoint)
            self._ti.xcom_push(key=links.CHECKPOINT_URL, value=checkpoint if "://" in checkpoint else "")
        if succeeded:
            events: Any = self._context["outlet_events"]
            for outlet in self._operator.outlets:
                events[outlet].extra = {**events[outlet].extra, **result}

    def told(self, what: str) -> Any:
        """What ``began`` said of the job: its name, namespace, uid or kind."""
        ti = self._ti
        return ti.xcom_pull(key=f"job_{what}", task_ids=ti.task_id, map_indexes=ti.map_index)

    def call(self, method: str, **facts: Any) -> None:
        """Call the user's callbacks."""
        given = self._operator.callbacks or ()
        for callbacks in (given,) if isinstance(given, type) else given:
            getattr(callbacks, method)(operator=self._operator, **facts)


def _filled(url: str, job: StoredJob) -> str:
    return url.replace("{name}", job.name).replace("{namespace}", job.namespace)
