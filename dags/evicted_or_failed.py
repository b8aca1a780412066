"""Decide by how a job ended: go on from its checkpoint after an eviction, tell people after a failure.

`decide` runs however `train` ended, and reads its XCom `outcome`. An eviction is nothing to wake people for: `resume`
trains on from the last checkpoint, and restarts there by itself as often as it takes. A failure is: `page` fails, too,
and with it the run.
"""

from datetime import timedelta

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, Param, task

from tf_dist.airflow import TFJobOperator

JOB = {
    "job": "../examples/digits/tfjob.yaml",
    "args": [
        # The same folder for both tasks, so that the second finds the checkpoints of the first.
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
    # No disruption is borne: the first one ends the job, and the pipeline decides what follows.
    train = TFJobOperator(task_id="train", annotations={"tf-dist.dev/max-disruptions": "0"}, **JOB)

    @task.branch(trigger_rule="all_done")
    def decide(ti=None) -> str:
        """Which task is next."""
        outcome = ti.xcom_pull(task_ids="train", key="outcome") or {"kind": "unknown"}
        print(f"{outcome['kind']}: {outcome.get('message', '')}")
        return {"succeeded": "publish", "evicted": "resume", "preempted": "resume"}.get(outcome["kind"], "page")

    resume = TFJobOperator(task_id="resume", retries=2, **JOB)

    @task
    def page(ti=None) -> None:
        """Tell people: put your pager here."""
        outcome = ti.xcom_pull(task_ids="train", key="outcome") or {}
        where = f"{outcome.get('replica')} (exit code {outcome.get('exit_code')})"
        raise AirflowFailException(f"{outcome.get('message')}: {where}\n{outcome.get('log')}")

    @task(trigger_rule="none_failed_min_one_success")
    def publish(ti=None) -> str:
        """Where the model is, whichever task made it."""
        results = ti.xcom_pull(task_ids=["resume", "train"])
        return next(result["checkpoint"] for result in results if result)

    published = publish()
    train >> decide() >> [resume, page(), published]
    resume >> published
