"""What becomes of a job when a try of its task has done with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tf_dist.airflow.hook import TFJobHook
from tf_dist.airflow.ownership import give_up
from tf_dist.airflow.starting import finish
from tf_dist.client.jobs import StoredJob
from tf_dist.core.conclusion import UNDECIDED, End
from tf_dist.errors import ClusterError

if TYPE_CHECKING:
    from tf_dist.airflow.operator import TFJobOperator

# By on_finish_action: whether a job that has ended is deleted, given whether it came to what was waited for.
_DELETES: Final[Mapping[str, Callable[[bool], bool]]] = {
    "delete_job": lambda reached: True,
    "keep_job": lambda reached: False,
    "delete_succeeded_job": lambda reached: reached,
    "delete_active_job": lambda reached: False,
}


class Parting:
    """Parts ``owner``, a try of the task ``ti`` of ``operator``, from its job."""

    def __init__(self, operator: TFJobOperator, ti: Any, hook: TFJobHook, owner: str) -> None:
        self._operator, self._ti, self._hook, self._owner = operator, ti, hook, owner
        self._log = operator.log

    def clean_up(self, job: StoredJob, event: Mapping[str, Any]) -> bool:
        """After the wait, as ``on_finish_action`` says; whether the job was deleted."""
        goes_on = event["end"] in UNDECIDED and not event.get("over")
        delete = goes_on or _DELETES[self._operator.on_finish_action](event["end"] == End.REACHED)
        try:
            return finish(self._hook.connection, job, self._owner, delete=delete)
        except ClusterError as error:
            # How the job came out is known, and that is what the task is about.
            self._log.warning("%s could not be %s: %s", job.shown, "deleted" if delete else "marked", error)
            return False

    def abandon(self, job: StoredJob) -> None:
        """The wait ended and the job did not: a retry takes it up; where there is none, nobody would."""
        if self._operator.durable and self._ti.try_number <= self._ti.max_tries:
            self._log.warning("%s goes on without anybody who waits for it: a retry takes it up", job.shown)
        else:
            self.give_up(job, "the task is not tried again")

    def give_up(self, job: StoredJob, why: str) -> None:
        """Delete it, if it is still this try's."""
        try:
            if give_up(self._hook.cluster, job, self._owner):
                self._log.info("%s is deleted: %s", job.shown, why)
        except ClusterError as error:
            self._log.warning("%s could not be deleted: %s", job.shown, error)
