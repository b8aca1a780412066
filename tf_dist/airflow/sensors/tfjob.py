"""Sensors for jobs that were submitted elsewhere. They only read the job."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments
from tf_dist.airflow.hooks.tfjob import job_summary
from tf_dist.airflow.jobs.event_payload import failure, payload_error, payload_outcome
from tf_dist.airflow.jobs.named_job import NamedJobTask
from tf_dist.airflow.masking import masked, masked_errors
from tf_dist.airflow.triggers.tfjob import TFJobTrigger, WaitRequest
from tf_dist.airflow.version_compat import AirflowSkipException, conf
from tf_dist.client.stored_jobs import leader_problems, now
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.diagnostics.outcome import Outcome
from tf_dist.core.pipeline.session import Seen, decide_end, task_policy
from tf_dist.core.pipeline.wait_result import wait_outcome
from tf_dist.errors import NotFound, TFDistError

if TYPE_CHECKING:
    from airflow.sdk import Context


_KINDS: Final = {"": "", "tfjob": "TFJob", "vcjob": "Job"}  # by the prefix of a job's name
_LEAST_PAUSE: Final = 0.1  # seconds: a deferred wait pauses even if poke_interval is 0, as in many tests of DAGs


class _JobSensor(NamedJobTask, BaseSensorOperator):
    """The common base of both sensors.

    :param get_logs: Write the log lines of the job to the log of the task, while the sensor is deferred.
    :param deferrable: Wait in the triggerer.
    """

    ui_color = "#fff3e0"
    checked: ClassVar[Sequence[str]] = (*NamedJobTask.checked, "deferrable", "get_logs")

    def __init__(
        self,
        *,
        goal: str,
        get_logs: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: timedelta | float = 10.0,
        **kwargs: Any,
    ) -> None:
        self.goal = goal
        self.get_logs = get_logs
        self.deferrable = deferrable
        self._said = ""
        super().__init__(poke_interval=poke_interval, **kwargs)

    @masked_errors()
    def execute(self, context: Context) -> Any:
        """Wait in the worker, or in the triggerer."""
        self.refuse_problems()
        with self._skipping():
            if not self.deferrable:
                return super().execute(context)
            found = self.poke(context)
        if isinstance(found, PokeReturnValue) and found.is_done:
            return found.xcom_value
        kind, _, name = self.job_name.rpartition("/")
        with self.client() as client:
            request = WaitRequest(
                name=name,
                namespace=client.namespace,
                kind=_KINDS[kind],
                access=ClusterArguments.of(vars(self)).fields(),
                goal=self.goal,
                get_logs=self.get_logs,
                poll_interval=max(_LEAST_PAUSE, self.poke_interval),
                asked_at=time.time(),
            )
        return self.defer(
            trigger=TFJobTrigger(**request.plain()),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    @masked_errors()
    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Continue after the trigger."""
        event = masked(event)
        _publish(context, payload_outcome(event))
        if (error := payload_error(event)) is not None:
            with self._skipping():
                raise error
        return dict(event.get("result") or {})

    @masked_errors()
    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Whether the job is in the wanted state. Raises the error of a job that can never reach that state."""
        with self.client() as client:
            try:
                job = client.get(self.job_name)
                idle = leader_problems(client.cluster, [job])
            except NotFound as error:
                self._say(str(error))
                return False
        end = decide_end(task_policy(goal=self.goal), Seen(now=now(), job=job.job, status=job.status))
        if end is None:
            self._say((idle or diagnose(job.job, job.status, (), now()))[0].summary)
            return False
        outcome, result = wait_outcome(job.status, end.result, now()), end.result
        _publish(context, outcome)
        if not result.reached and outcome is not None:
            raise failure(job.shown, result.message, result.hint, outcome, decided=result.decided)
        return PokeReturnValue(is_done=True, xcom_value=job_summary(job))

    @contextmanager
    def _skipping(self) -> Iterator[None]:
        """Skip the task instead of failing it, with ``soft_fail`` or ``never_fail``."""
        try:
            yield
        except TFDistError as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise

    def _say(self, text: str) -> None:
        """Log why the sensor still waits, once for each change of the reason."""
        if text != self._said:
            self._said = text
            self.log.info("%s", text)


class TFJobSensor(_JobSensor):
    """Waits until a job is in the state ``until``. Fails as soon as the job can no longer reach that state.

    :param job_name: NAME, ``tfjob/NAME`` or ``vcjob/NAME``. The job may be created later. (templated)
    :param until: ``succeeded``, ``failed``, ``finished`` (either of them), ``running``, ``admitted``, ``scheduled``
        (each pod has a node), or ``suspended``.
    """

    choices: ClassVar[Mapping[str, Sequence[str]]] = {
        "until": ("succeeded", "finished", "failed", "running", "admitted", "scheduled", "suspended")
    }

    def __init__(self, *, until: str = "succeeded", **kwargs: Any) -> None:
        self.until = until
        super().__init__(goal=until, **kwargs)


class GangAdmittedSensor(_JobSensor):
    """Waits until the gang of a job is admitted. The other arguments are those of ``TFJobSensor``.

    :param require: ``"admitted"``: the gang is admitted. ``"scheduled"``: the cluster's scheduler has bound each pod to
        a node, which is more reliable if admission cannot list nodes.
    """

    choices: ClassVar[Mapping[str, Sequence[str]]] = {"require": ("admitted", "scheduled")}

    def __init__(self, *, require: str = "admitted", **kwargs: Any) -> None:
        self.require = require
        super().__init__(goal=require, **kwargs)


def _publish(context: Context, outcome: Outcome | None) -> None:
    """Publish the XCom ``outcome``, as the operator does. A job that has not ended has no outcome."""
    if outcome is not None:
        context["ti"].xcom_push(key="outcome", value=masked(outcome.document()))
