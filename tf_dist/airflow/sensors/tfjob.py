"""Sensors for jobs that were started elsewhere: they only read the job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments
from tf_dist.airflow.hooks.tfjob import TFJobHook, job_summary
from tf_dist.airflow.jobs.event_payload import payload_error, payload_outcome
from tf_dist.airflow.masking import masked
from tf_dist.airflow.task_options import DEFAULT_CONNECTION, OPTIONS, attribute_problems, comes_later
from tf_dist.airflow.templates import TEXTS, TextTemplates
from tf_dist.airflow.triggers.tfjob import TFJobTrigger, WaitRequest
from tf_dist.airflow.version_compat import AirflowException, AirflowFailException, AirflowSkipException, conf
from tf_dist.client.stored_jobs import StoredJob, leader_problems, now
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.diagnostics.outcome import Outcome, outcome_error
from tf_dist.core.pipeline.run_options import choice_problems, job_name_problems
from tf_dist.core.pipeline.wait_result import NO_LIMITS, WaitResult, evaluate_wait, wait_outcome
from tf_dist.errors import InvalidJob, NotFound, TFDistError

if TYPE_CHECKING:
    from airflow.sdk import Context


_KINDS: Final = {"": "", "tfjob": "TFJob", "vcjob": "Job"}
_REQUIREMENTS: Final = ("admitted", "scheduled")
_ARGUMENTS: Final = {name: OPTIONS[name] for name in ("namespace", "in_cluster", "deferrable", "get_logs")}
_LEAST_PAUSE: Final = 0.1  # seconds: a deferred wait pauses though poke_interval is 0, as in many tests of DAGs
_GOALS: Final = ("succeeded", "finished", "failed", "running", "admitted", "scheduled", "suspended")


class _JobSensor(TextTemplates, BaseSensorOperator):
    """What both sensors have in common."""

    template_fields: Sequence[str] = (
        "job_name",
        "namespace",
        "kubernetes_conn_id",
        "config_file",
        "cluster_context",
    )
    ui_color = "#fff3e0"

    def __init__(
        self,
        *,
        job_name: str,
        goal: str,
        namespace: str | None = None,
        kubernetes_conn_id: str | None = DEFAULT_CONNECTION,
        in_cluster: bool | None = None,
        config_file: str | None = None,
        cluster_context: str | None = None,
        get_logs: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: timedelta | float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **{**TEXTS, **kwargs})
        self.job_name = job_name
        self.goal = goal
        self.namespace = namespace
        self.kubernetes_conn_id = kubernetes_conn_id
        self.in_cluster = in_cluster
        self.config_file = config_file
        self.cluster_context = cluster_context
        self.get_logs = get_logs
        self.deferrable = deferrable
        self._said = ""
        if problems := [*job_name_problems(job_name, comes_later), *attribute_problems(self, _ARGUMENTS)]:
            raise InvalidJob(problems)

    def execute(self, context: Context) -> Any:
        """Wait here, or in the triggerer."""
        if self.unfilled:
            raise AirflowFailException("\n".join(map(str, self.unfilled)))
        if not self.deferrable:
            return self._failing(lambda: super(_JobSensor, self).execute(context))
        found = self._failing(lambda: self.poke(context))
        if isinstance(found, PokeReturnValue) and found.is_done:
            return found.xcom_value
        access = ClusterArguments.of(vars(self))
        hook = TFJobHook.of(access)
        try:
            kind, name = self._kind_and_name()
            request = WaitRequest(
                name=name,
                namespace=self.namespace or hook.get_namespace(),
                kind=kind,
                access=access.fields(),
                goal=self.goal,
                get_logs=self.get_logs,
                poll_interval=max(_LEAST_PAUSE, self.poke_interval),
                asked_at=time.time(),
            )
        finally:
            hook.close()
        return self.defer(
            trigger=TFJobTrigger(**request.plain()),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Go on after the trigger."""
        event = masked(event)
        failure = payload_error(event)
        _publish(context, payload_outcome(event))
        if failure is not None:
            self._failing(lambda: _raise(failure))
        return dict(event.get("result") or {})

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Whether the job has come to what is waited for; the error, if it never can."""
        self._kind_and_name()
        hook = TFJobHook.of(ClusterArguments.of(vars(self)))
        try:
            job = hook.get_job(self.job_name, self.namespace)
            idle = leader_problems(hook.cluster, [job])
        except NotFound as error:
            self._say(str(error))
            return False
        finally:
            hook.close()
        found = evaluate_wait(job.job, job.status, (), NO_LIMITS, now(), goal=self.goal)
        if found is None:
            self._say((idle or diagnose(job.job, job.status, (), now()))[0].summary)
            return False
        outcome = wait_outcome(job.status, found, now())
        _publish(context, outcome)
        if not found.reached and outcome is not None:
            raise _failure(job, found, outcome)
        return PokeReturnValue(is_done=True, xcom_value=job_summary(job))

    def _failing(self, work: Any) -> Any:
        """What ``work`` returns; a job that failed is skipped over where the sensor says so."""
        try:
            return work()
        except TFDistError as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise

    def _say(self, text: str) -> None:
        """Say why it still waits, once."""
        if text != self._said:
            self._said = text
            self.log.info("%s", text)

    def _kind_and_name(self) -> tuple[str, str]:
        """Of NAME ("": whichever kind has it), ``tfjob/NAME`` or ``vcjob/NAME``."""
        kind, _, name = self.job_name.rpartition("/")
        if not name or kind not in _KINDS:
            raise AirflowException(f"job_name: {self.job_name!r} is no job: write NAME, tfjob/NAME or vcjob/NAME")
        return _KINDS[kind], name


class TFJobSensor(_JobSensor):
    """Waits until a job has succeeded, or is ``until``; fails as soon as it cannot be any more.

    :param job_name: NAME, ``tfjob/NAME`` or ``vcjob/NAME``; it need not be there yet. (templated)
    :param until: ``succeeded``, ``finished`` (however it ended), ``failed``, ``running``, ``admitted``, ``scheduled``
        (each pod has its node), ``suspended``.
    :param namespace: where it is; else that of the connection. (templated)
    :param kubernetes_conn_id: and ``in_cluster``, ``config_file``, ``cluster_context``: as of ``TFJobOperator``.
    :param get_logs: bring its lines into the task's log (when deferred).
    :param deferrable: wait in the triggerer.
    """

    def __init__(self, *, until: str = "succeeded", **kwargs: Any) -> None:
        if problems := [*choice_problems("until", until, _GOALS)]:
            raise InvalidJob(problems)
        super().__init__(goal=until, **kwargs)


class GangAdmittedSensor(_JobSensor):
    """Waits until all pods of a job's gang have their nodes. The other arguments are those of ``TFJobSensor``.

    :param require: ``"admitted"``: admission has given it a place, and the cluster's scheduler refuses it no node;
        ``"scheduled"``: each of its pods has its node, which is surer where admission sees no nodes.
    """

    def __init__(self, *, require: str = "admitted", **kwargs: Any) -> None:
        if problems := [*choice_problems("require", require, _REQUIREMENTS)]:
            raise InvalidJob(problems)
        super().__init__(goal=require, **kwargs)


def _raise(error: Exception) -> None:
    raise error


def _publish(context: Context, outcome: Outcome | None) -> None:
    """The XCom ``outcome``, as of the operator; a job that goes on has none yet."""
    if outcome is not None:
        context["ti"].xcom_push(key="outcome", value=masked(outcome.document()))


def _failure(job: StoredJob, found: WaitResult, outcome: Outcome) -> TFDistError:
    message = f"{job.shown}: {found.message}"
    message = f"{message} ({found.hint})" if found.hint else message
    return outcome_error(outcome, message, hint=found.hint, decided=found.decided)
