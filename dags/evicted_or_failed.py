"""Branch on the outcome of a job: continue from its checkpoint after an eviction, notify people after a failure.

`decide` runs after every outcome of `train`, and reads the XCom `outcome`. An eviction needs no attention: `resume`
continues from the last checkpoint, and restarts after further evictions. After a failure, `page` notifies people and
fails, and therefore the run fails.
"""

from datetime import timedelta

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, Param, task

from tf_dist.airflow import TFJobOperator

JOB = {
    "job": "../examples/digits/tfjob.yaml",
    "args": [
        # Both tasks use the same folder, so that the second task finds the checkpoints of the first.
        "--model-dir=/tmp/tf-dist/digits/{{ run_id | replace(':', '-') }}",
        "--steps={{ params.steps }}",
    ],
    "deferrable": True,
    "execution_timeout": timedelta(hours=1),
}

with DAG(
    "evicted_or_failed",
    schedule=None,
    catchup=False,
    tags=["tf-dist"],
    doc_md=__doc__,
    params={"steps": Param(4000, type="integer", minimum=1)},
):
    # The job tolerates no disruption: the first disruption ends the job, and the pipeline decides what follows.
    train = TFJobOperator(task_id="train", annotations={"tf-dist.dev/max-disruptions": "0"}, **JOB)

    @task.branch(trigger_rule="all_done")
    def decide(ti=None) -> str:
        """Return the next task."""
        outcome = ti.xcom_pull(task_ids="train", key="outcome") or {"kind": "unknown"}
        print(f"{outcome['kind']}: {outcome.get('message', '')}")
        return {"succeeded": "publish", "evicted": "resume", "preempted": "resume"}.get(outcome["kind"], "page")

    resume = TFJobOperator(task_id="resume", retries=2, **JOB)

    @task
    def page(ti=None) -> None:
        """Notify people: call your pager here."""
        outcome = ti.xcom_pull(task_ids="train", key="outcome") or {}
        where = f"{outcome.get('replica')} (exit code {outcome.get('exit_code')})"
        raise AirflowFailException(f"{outcome.get('message')}: {where}\n{outcome.get('log')}")

    @task(trigger_rule="none_failed_min_one_success")
    def publish(ti=None) -> str:
        """Return the path of the model from the task that succeeded."""
        results = ti.xcom_pull(task_ids=["resume", "train"])
        return next(result["checkpoint"] for result in results if result)

    published = publish()
    train >> decide() >> [resume, page(), published]
    resume >> published
