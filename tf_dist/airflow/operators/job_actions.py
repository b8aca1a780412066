"""Small operators: submit a job, or do one thing to a job of a cluster. Sensors wait for what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from tf_dist.airflow.hooks.tfjob import TFJobHook, job_summary
from tf_dist.airflow.jobs.named_job import NamedJobTask
from tf_dist.airflow.masking import masked_errors
from tf_dist.airflow.operators.tfjob import TFJobOperator
from tf_dist.airflow.version_compat import AirflowFailException, AirflowSkipException
from tf_dist.core.diagnostics.outcome import is_suspended
from tf_dist.core.pipeline.run_options import count_of
from tf_dist.errors import InvalidJob, NotFound, Problem

if TYPE_CHECKING:
    from airflow.sdk import Context

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
    """Submits a job for a controller that leads, and is done; returns its ``name``, ``namespace`` and ``uid``.

    The job has the very name that ``name``, or the document, says (with ``generateName``: that and a few characters),
    so that other tasks, other DAGs and people can act on it. If another job has the name, the task fails; a retry
    finds what the try before it has submitted. The job stays when the task is cleared or marked failed.

    The arguments are those of ``TFJobOperator``, but for those that say how to wait.
    """

    exact_name: ClassVar[bool] = True

    def __init__(self, **kwargs: Any) -> None:
        hint = "leave it out, or let TFJobOperator run the job"
        if given := [name for name in _OF_A_WAIT if name in kwargs]:
            raise InvalidJob([Problem(name, "is for an operator that waits for its job", hint) for name in given])
        super().__init__(wait_for_completion=False, **kwargs)


class _Act(NamedTuple):
    """What an operator does to a job with the hook, and what its log says of that."""

    do: Callable[[TFJobHook, StoredJob, Any], StoredJob | None]
    told: Callable[[StoredJob, StoredJob, Any], str]


class _StoredJobOperator(NamedJobTask):
    """One act on a job of a cluster.

    :param if_missing: what becomes of the task if there is no such job: ``fail``, ``skip``, or ``ignore`` (success).

    It returns ``name``, ``namespace``, ``uid`` and ``status`` of the job, None if there is none.
    """

    ui_color = "#ffe0b2"
    choices: ClassVar[Mapping[str, Sequence[str]]] = {"if_missing": _REACTIONS}
    does: ClassVar[_Act]

    def __init__(self, *, if_missing: str = "fail", **kwargs: Any) -> None:
        self.if_missing = if_missing
        super().__init__(**kwargs)

    @masked_errors()
    def execute(self, context: Context) -> dict[str, Any] | None:
        """Do it. AirflowFailException for what no other try can do, either; ClusterError."""
        self.refuse_problems()
        with closing(self.hook()) as hook:
            try:
                return job_summary(self.act(hook, hook.get_job(self.job_name, self.namespace)))
            except NotFound as error:
                self.react(self.if_missing, error)
                return None
            except InvalidJob as error:
                raise AirflowFailException(str(error)) from None

    def react(self, reaction: str, why: Exception) -> None:
        """Fail, skip the task, or go on, where there is nothing to do."""
        if reaction == "fail":
            raise why
        if reaction == "skip":
            raise AirflowSkipException(str(why))
        self.log.info("nothing to do: %s", why)

    def act(self, hook: TFJobHook, job: StoredJob) -> StoredJob:
        """Do what the operator is for, and say so; the job as it is then. InvalidJob if that cannot be done to it."""
        found = self.does.do(hook, job, self) or job
        self.log.info("%s %s", job.shown, self.does.told(job, found, self))
        return found


class _JobChangeOperator(_StoredJobOperator):
    """One that a job which is over cannot be changed by any more.

    :param if_ended: what becomes of the task then: ``fail``, ``skip``, or ``ignore`` (success).
    """

    choices: ClassVar[Mapping[str, Sequence[str]]] = {"if_missing": _REACTIONS, "if_ended": _REACTIONS}

    def __init__(self, *, if_ended: str = "fail", **kwargs: Any) -> None:
        self.if_ended = if_ended
        super().__init__(**kwargs)

    def act(self, hook: TFJobHook, job: StoredJob) -> StoredJob:
        """Change the job; one that has ended, maybe just now, as ``if_ended`` says."""
        try:
            return super().act(hook, job)
        except InvalidJob as error:
            present = hook.get_job(job)
            self.react(self.if_ended if present.status.finished else "fail", error)
            return present


class SuspendTFJobOperator(_JobChangeOperator):
    """Suspends a job: its pods end, and its place is given back. One that is suspended already is left so.

    ``TFJobSensor(until="suspended")`` waits until it is. Its program goes on from its last checkpoint when it is
    resumed. Arguments: ``job_name``, ``namespace``, ``if_missing``, ``if_ended``, and those that name the cluster.
    """

    does = _Act(
        lambda hook, job, _: hook.suspend(job),
        lambda job, _, __: "was suspended already" if is_suspended(job.status) else "is being suspended",
    )


class ResumeTFJobOperator(_JobChangeOperator):
    """Lets a suspended job, or one that a policy aborted, wait for a place and start again; any other goes on as it is.

    Arguments: those of ``SuspendTFJobOperator``.
    """

    does = _Act(
        lambda hook, job, _: hook.resume(job),
        lambda job, _, __: "is resumed" if job.outcome else f"goes on as it is: {job.state}",
    )


class ScaleTFJobOperator(_JobChangeOperator):
    """Gives a job another number of workers. Fewer: the last ones stop; more: they start when there is room.

    :param workers: how many. (templated)

    The other arguments are those of ``SuspendTFJobOperator``.
    """

    template_fields: Sequence[str] = (*_JobChangeOperator.template_fields, "workers")
    checked: ClassVar[Sequence[str]] = (*_JobChangeOperator.checked, "workers")
    does = _Act(
        lambda hook, job, task: hook.scale(job, count_of(task.workers)),
        lambda job, found, task: f"has {task.workers} workers{' already' if found is job else ''}",
    )

    def __init__(self, *, workers: int | str, **kwargs: Any) -> None:
        self.workers = workers
        super().__init__(**kwargs)


class DeleteTFJobOperator(_StoredJobOperator):
    """Deletes a job with its pods and services. One that is not there is no error, unless ``if_missing`` says so.

    :param wait_for_completion: whether the task is done when the last pod is gone, or at once.

    The other arguments are those of ``SuspendTFJobOperator``. As a teardown (``.as_teardown(setups=…)``) it runs
    however the others end.
    """

    checked: ClassVar[Sequence[str]] = (*_StoredJobOperator.checked, "wait_for_completion")
    does = _Act(
        lambda hook, job, task: hook.delete(job, wait=task.wait_for_completion),
        lambda _, __, task: "is gone" if task.wait_for_completion else "is being deleted",
    )

    def __init__(self, *, wait_for_completion: bool = False, if_missing: str = "ignore", **kwargs: Any) -> None:
        self.wait_for_completion = wait_for_completion
        super().__init__(if_missing=if_missing, **kwargs)
