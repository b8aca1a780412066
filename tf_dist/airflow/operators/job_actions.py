"""Operators that submit or change a job of a cluster. Sensors wait for the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from tf_dist.airflow.hooks.tfjob import job_summary
from tf_dist.airflow.jobs.named_job import NamedJobTask
from tf_dist.airflow.masking import masked_errors
from tf_dist.airflow.operators.tfjob import TFJobOperator
from tf_dist.airflow.version_compat import AirflowFailException, AirflowSkipException
from tf_dist.core.diagnostics.outcome import is_suspended
from tf_dist.core.pipeline.run_options import count_of
from tf_dist.errors import InvalidJob, NotFound, Problem

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tf_dist.client.client import Client
    from tf_dist.client.stored_jobs import StoredJob

_REACTIONS: Final = ("fail", "skip", "ignore")
_OF_A_WAIT: Final = (
    "wait_for_completion",
    "deferrable",
    "poll_interval",
    "get_logs",
    "startup_timeout_seconds",
    "on_finish_action",
    "on_kill_action",
    "skip_on_exit_code",
)


class SubmitTFJobOperator(TFJobOperator):
    """Submits a job and does not wait for it. A controller of the cluster runs the job.

    The task returns the ``name``, ``namespace`` and ``uid`` of the job. The job has exactly the name of the argument
    ``name`` or of the document, so that other tasks, DAGs and people can act on it. With ``generateName``, a hash of
    the task instance is appended. The task fails if another job has the name. A retry finds the job of the previous
    try. The job continues when the task is cleared or marked failed.

    The arguments are those of ``TFJobOperator``, except those about the wait.
    """

    exact_name: ClassVar[bool] = True

    def __init__(self, **kwargs: Any) -> None:
        hint = "leave it out, or run the job with TFJobOperator"
        if given := [name for name in _OF_A_WAIT if name in kwargs]:
            raise InvalidJob([Problem(name, "is for an operator that waits for its job", hint) for name in given])
        super().__init__(wait_for_completion=False, **kwargs)


class _Act(NamedTuple):
    """An action on a job. Both functions get the operator as their last argument."""

    do: Callable[[Client, StoredJob, Any], StoredJob | None]
    """The action. Returns the changed job, or None."""
    told: Callable[[StoredJob, StoredJob, Any], str]
    """The log line, from the job before and after the action."""


class _StoredJobOperator(NamedJobTask):
    """Performs one action on a job of a cluster.

    :param if_missing: What happens to the task if the job does not exist: ``fail``, ``skip``, or ``ignore`` (success).

    The task returns the ``name``, ``namespace``, ``uid`` and ``status`` of the job, or None if it does not exist.
    """

    ui_color = "#ffe0b2"
    choices: ClassVar[Mapping[str, Sequence[str]]] = {"if_missing": _REACTIONS}
    does: ClassVar[_Act]

    def __init__(self, *, if_missing: str = "fail", **kwargs: Any) -> None:
        self.if_missing = if_missing
        super().__init__(**kwargs)

    @masked_errors()
    def execute(self, context: Context) -> dict[str, Any] | None:
        """Change the job. Raises AirflowFailException if no retry can succeed, and ClusterError."""
        self.refuse_problems()
        with self.client() as client:
            try:
                return job_summary(self.act(client, client.get(self.job_name)))
            except NotFound as error:
                self.react(self.if_missing, error)
                return None
            except InvalidJob as error:
                raise AirflowFailException(str(error)) from None

    def react(self, reaction: str, why: Exception) -> None:
        """Fail the task, skip it, or let it succeed if the job cannot be changed."""
        if reaction == "fail":
            raise why
        if reaction == "skip":
            raise AirflowSkipException(str(why))
        self.log.info("nothing to do: %s", why)

    def act(self, client: Client, job: StoredJob) -> StoredJob:
        """Change the job, and log the change. Returns the changed job. Raises InvalidJob if the change is invalid."""
        found = self.does.do(client, job, self) or job
        self.log.info("%s %s", job.shown, self.does.told(job, found, self))
        return found


class _JobChangeOperator(_StoredJobOperator):
    """Changes a job. A job that has ended cannot be changed.

    :param if_ended: What happens to the task if the job has ended: ``fail``, ``skip``, or ``ignore`` (success).
    """

    choices: ClassVar[Mapping[str, Sequence[str]]] = {"if_missing": _REACTIONS, "if_ended": _REACTIONS}

    def __init__(self, *, if_ended: str = "fail", **kwargs: Any) -> None:
        self.if_ended = if_ended
        super().__init__(**kwargs)

    def act(self, client: Client, job: StoredJob) -> StoredJob:
        """Change the job. ``if_ended`` also applies if the job ends just before the change."""
        try:
            return super().act(client, job)
        except InvalidJob as error:
            present = client.get(job)
            self.react(self.if_ended if present.status.finished else "fail", error)
            return present


class SuspendTFJobOperator(_JobChangeOperator):
    """Suspends a job: its pods stop, and it gives up its admission. A suspended job is not changed.

    ``TFJobSensor(until="suspended")`` waits until the pods have stopped. After ``ResumeTFJobOperator``, the training
    program starts again, from its last checkpoint if it reads one.
    """

    does = _Act(
        lambda client, job, _: client.suspend(job),
        lambda job, _, __: "was already suspended" if is_suspended(job.status) else "is being suspended",
    )


class ResumeTFJobOperator(_JobChangeOperator):
    """Resumes a job that was suspended, or that a policy aborted: it waits for admission and starts again.

    Other jobs are not changed. The arguments are those of ``SuspendTFJobOperator``.
    """

    does = _Act(
        lambda client, job, _: client.resume(job),
        lambda job, _, __: "is resumed" if job.outcome else f"continues as it is: {job.state}",
    )


class ScaleTFJobOperator(_JobChangeOperator):
    """Changes the number of workers of a job. The last workers stop, or new workers start once capacity is free.

    :param workers: The number of workers. (templated)

    The other arguments are those of ``SuspendTFJobOperator``.
    """

    template_fields: Sequence[str] = (*_JobChangeOperator.template_fields, "workers")
    checked: ClassVar[Sequence[str]] = (*_JobChangeOperator.checked, "workers")
    does = _Act(
        lambda client, job, task: client.scale(job, count_of(task.workers)),
        lambda job, found, task: f"has {task.workers} workers{' already' if found is job else ''}",
    )

    def __init__(self, *, workers: int | str, **kwargs: Any) -> None:
        self.workers = workers
        super().__init__(**kwargs)


class DeleteTFJobOperator(_StoredJobOperator):
    """Deletes a job with its pods and services. By default, a job that does not exist is not an error.

    :param wait_for_completion: Wait until the last pod is gone.

    The other arguments are those of ``SuspendTFJobOperator``, except ``if_ended``. As a teardown
    (``.as_teardown(setups=…)``), the task also runs if other tasks fail.
    """

    checked: ClassVar[Sequence[str]] = (*_StoredJobOperator.checked, "wait_for_completion")
    does = _Act(
        lambda client, job, task: client.delete(job, wait=task.wait_for_completion),
        lambda _, __, task: "is gone" if task.wait_for_completion else "is being deleted",
    )

    def __init__(self, *, wait_for_completion: bool = False, if_missing: str = "ignore", **kwargs: Any) -> None:
        self.wait_for_completion = wait_for_completion
        super().__init__(if_missing=if_missing, **kwargs)
