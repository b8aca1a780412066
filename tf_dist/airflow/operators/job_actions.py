"""Small operators: submit a job, or do one thing to a job of a cluster. Sensors wait for what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments
from tf_dist.airflow.hooks.tfjob import TFJobHook, job_summary
from tf_dist.airflow.operators.tfjob import TFJobOperator
from tf_dist.airflow.task_options import DEFAULT_CONNECTION, OPTIONS, attribute_problems, comes_later
from tf_dist.airflow.templates import TEXTS, TextTemplates
from tf_dist.airflow.version_compat import AirflowFailException, AirflowSkipException
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.core.pipeline.run_options import choice_problems, count_of, job_name_problems
from tf_dist.errors import InvalidJob, NotFound, Problem

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tf_dist.client.stored_jobs import StoredJob

_REACTIONS: Final = ("fail", "skip", "ignore")
_ARGUMENTS: Final = ("namespace", "in_cluster", "workers", "wait_for_completion")
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

    do: Callable[[TFJobHook, StoredJob, Any], StoredJob]
    told: Callable[[StoredJob, StoredJob, Any], str]


class _StoredJobOperator(TextTemplates):
    """One act on a job of a cluster. What the operators for that have in common:

    :param job_name: NAME, ``tfjob/NAME`` or ``vcjob/NAME``. (templated)
    :param namespace: where it is; else that of the connection. (templated)
    :param kubernetes_conn_id: and ``in_cluster``, ``config_file``, ``cluster_context``: as of ``TFJobOperator``.
    :param if_missing: what becomes of the task if there is no such job: ``fail``, ``skip``, or ``ignore`` (success).

    They return ``name``, ``namespace``, ``uid`` and ``status`` of the job, None if there is none.
    """

    template_fields: Sequence[str] = ("job_name", "namespace", "kubernetes_conn_id", "config_file", "cluster_context")
    ui_color = "#ffe0b2"
    does: ClassVar[_Act]

    def __init__(
        self,
        *,
        job_name: str,
        namespace: str | None = None,
        kubernetes_conn_id: str | None = DEFAULT_CONNECTION,
        in_cluster: bool | None = None,
        config_file: str | None = None,
        cluster_context: str | None = None,
        if_missing: str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**{**TEXTS, **kwargs})
        self.job_name = job_name
        self.namespace = namespace
        self.kubernetes_conn_id = kubernetes_conn_id
        self.in_cluster = in_cluster
        self.config_file = config_file
        self.cluster_context = cluster_context
        self.if_missing = if_missing
        self._refuse_problems()

    def _refuse_problems(self) -> None:
        if problems := [*self.problems()]:
            raise InvalidJob(problems)

    def problems(self) -> Iterator[Problem]:
        """What is wrong with the arguments: asked when the DAG is read, and again when they are filled in."""
        yield from self.unfilled
        yield from job_name_problems(self.job_name, comes_later)
        yield from attribute_problems(self, {name: OPTIONS[name] for name in _ARGUMENTS if name in vars(self)})
        for name in ("if_missing", "if_ended"):
            yield from choice_problems(name, getattr(self, name, "fail"), _REACTIONS)

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Do it. AirflowFailException for what no other try can do, either; ClusterError."""
        hook = TFJobHook.of(ClusterArguments.of(vars(self)))
        try:
            self._refuse_problems()
            return job_summary(self.act(hook, hook.get_job(self.job_name, self.namespace)))
        except NotFound as error:
            if self.if_missing == "fail":
                raise
            self.react(self.if_missing, error)
            return None
        except InvalidJob as error:
            raise AirflowFailException(str(error)) from None
        finally:
            hook.close()

    def react(self, reaction: str, why: Exception) -> None:
        """Skip the task, or go on, where there is nothing to do."""
        if reaction == "skip":
            raise AirflowSkipException(str(why))
        self.log.info("nothing to do: %s", why)

    def act(self, hook: TFJobHook, job: StoredJob) -> StoredJob:
        """Do what the operator is for, and say so; the job as it is then. InvalidJob if that cannot be done to it."""
        found = self.does.do(hook, job, self)
        self.log.info("%s %s", job.shown, self.does.told(job, found, self))
        return found


class _JobChangeOperator(_StoredJobOperator):
    """One that a job which is over cannot be changed by any more.

    :param if_ended: what becomes of the task then: ``fail``, ``skip``, or ``ignore`` (success).
    """

    def __init__(self, *, if_ended: str = "fail", **kwargs: Any) -> None:
        self.if_ended = if_ended  # before the arguments are looked at
        super().__init__(**kwargs)

    def act(self, hook: TFJobHook, job: StoredJob) -> StoredJob:
        """Change the job; one that has ended, maybe just now, as ``if_ended`` says."""
        try:
            return super().act(hook, job)
        except InvalidJob as error:
            present = hook.get_job(job)
            if self.if_ended == "fail" or not present.status.finished:
                raise
            self.react(self.if_ended, error)
            return present


def _is_suspended(job: StoredJob) -> bool:
    return job.outcome is not None and job.outcome.kind is OutcomeKind.SUSPENDED


class SuspendTFJobOperator(_JobChangeOperator):
    """Suspends a job: its pods end, and its place is given back. One that is suspended already is left so.

    ``TFJobSensor(until="suspended")`` waits until it is. Its program goes on from its last checkpoint when it is
    resumed. Arguments: ``job_name``, ``namespace``, ``if_missing``, ``if_ended``, and those that name the cluster.
    """

    does = _Act(
        lambda hook, job, _: hook.suspend(job),
        lambda job, _, __: "was suspended already" if _is_suspended(job) else "is being suspended",
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
    does = _Act(
        lambda hook, job, task: hook.scale(job, count_of(task.workers)),
        lambda job, found, task: f"has {task.workers} workers{' already' if found is job else ''}",
    )

    def __init__(self, *, workers: int | str, **kwargs: Any) -> None:
        self.workers = workers  # before the arguments are looked at
        super().__init__(**kwargs)


def _deleted(hook: TFJobHook, job: StoredJob, task: DeleteTFJobOperator) -> StoredJob:
    hook.delete(job, wait=task.wait_for_completion)
    return job


class DeleteTFJobOperator(_StoredJobOperator):
    """Deletes a job with its pods and services. One that is not there is no error, unless ``if_missing`` says so.

    :param wait_for_completion: whether the task is done when the last pod is gone, or at once.

    The other arguments are those of ``SuspendTFJobOperator``. As a teardown (``.as_teardown(setups=…)``) it runs
    however the others end.
    """

    does = _Act(
        _deleted,
        lambda _, __, task: "is gone" if task.wait_for_completion else "is being deleted",
    )

    def __init__(self, *, wait_for_completion: bool = False, if_missing: str = "ignore", **kwargs: Any) -> None:
        self.wait_for_completion = wait_for_completion  # before the arguments are looked at
        super().__init__(if_missing=if_missing, **kwargs)
