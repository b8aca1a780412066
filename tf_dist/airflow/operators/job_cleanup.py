"""Clean-up of a job when its task no longer waits for it: deleted, kept, or left to a retry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tf_dist.airflow.hooks.tfjob import TFJobHook
from tf_dist.airflow.jobs.job_ownership import delete_if_owned, mark_result_used
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.core.pipeline.session import EndCause, OnFinish, task_policy
from tf_dist.core.pipeline.workflow_stop import JobFate
from tf_dist.errors import ClusterError, NotFound

if TYPE_CHECKING:
    from tf_dist.airflow.operators.operator_arguments import BaseTFJobOperator


@dataclass(frozen=True, slots=True)
class JobCleanup:
    """Parts ``owner``, a try of the task ``ti`` of ``operator``, from its job."""

    operator: BaseTFJobOperator
    ti: Any
    hook: TFJobHook
    owner: str

    def part(self, job: StoredJob, cause: EndCause, why: str = "") -> bool:
        """Do what the policy of the task says for that end; whether the job was deleted.

        A try that has lost the job to another one leaves it alone.
        """
        options, log = self.operator.options, self.operator.log
        policy = task_policy(
            retried=bool(options.reattach and self.ti.try_number <= self.ti.max_tries),
            on_finish=OnFinish(options.on_finish_action),
            on_kill=options.on_kill_action,
        )
        fate = policy.fates[cause]
        try:
            if fate is JobFate.DELETE:
                deleted = delete_if_owned(self.hook.cluster, job, self.owner)
                if deleted:
                    log.info("%s is deleted: %s", job.shown, why or cause)
                return deleted
            if fate is JobFate.MARK:
                mark_result_used(self.hook.cluster, job, self.owner, self.ti.max_tries)
            elif cause is EndCause.STOPPED:
                log.warning("%s goes on: on_kill_action is keep_job", job.shown)
            elif cause is not EndCause.DELETED:
                log.warning("%s goes on without a task that waits for it: a retry takes it up", job.shown)
        except NotFound:
            return False
        except ClusterError as error:
            # How the job came out is known, and that is what the task is about.
            what = "deleted" if fate is JobFate.DELETE else "marked"
            log.warning("%s could not be %s: %s", job.shown, what, error)
        return False
