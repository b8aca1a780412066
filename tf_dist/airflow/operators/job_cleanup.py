"""Clean-up of a job when its task no longer waits for it: deleted, kept, or left to a retry."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tf_dist.airflow.hooks.tfjob import TFJobHook
from tf_dist.airflow.jobs.job_ownership import delete_if_owned, mark_result_used
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.errors import ClusterError, NotFound

if TYPE_CHECKING:
    from tf_dist.airflow.operators.operator_arguments import BaseTFJobOperator

_DELETED: Final = {"delete_job": (True, False), "delete_succeeded_job": (True,)}
"""By on_finish_action: of jobs that ended, those that are deleted, by whether they reached what was waited for."""


@dataclass(frozen=True, slots=True)
class JobCleanup:
    """Parts ``owner``, a try of the task ``ti`` of ``operator``, from its job."""

    operator: BaseTFJobOperator
    ti: Any
    hook: TFJobHook
    owner: str

    def clean_up(self, job: StoredJob, event: Mapping[str, Any]) -> bool:
        """After the wait, as ``on_finish_action`` says; whether the job was deleted."""
        goes_on = not event["decided"] and not event["over"]
        delete = goes_on or event["reached"] in _DELETED.get(self.operator.options.on_finish_action, ())
        try:
            if delete:
                return delete_if_owned(self.hook.cluster, job, self.owner)
            with suppress(NotFound):
                mark_result_used(self.hook.cluster, job, self.owner, self.ti.max_tries)
        except ClusterError as error:
            # How the job came out is known, and that is what the task is about.
            self.operator.log.warning("%s could not be %s: %s", job.shown, "deleted" if delete else "marked", error)
        return False

    def abandon(self, job: StoredJob) -> None:
        """The wait ended and the job did not: a retry adopts it; without one it is deleted."""
        if self.adopted_by_retry:
            self.operator.log.warning("%s goes on without a task that waits for it: a retry takes it up", job.shown)
        else:
            self.give_up(job, "the task is not tried again")

    @property
    def adopted_by_retry(self) -> bool:
        """Whether another try follows, and takes the job up."""
        return bool(self.operator.options.reattach and self.ti.try_number <= self.ti.max_tries)

    def give_up(self, job: StoredJob, why: str) -> None:
        """Delete it, if it is still this try's."""
        try:
            if delete_if_owned(self.hook.cluster, job, self.owner):
                self.operator.log.info("%s is deleted: %s", job.shown, why)
        except ClusterError as error:
            self.operator.log.warning("%s could not be deleted: %s", job.shown, error)
