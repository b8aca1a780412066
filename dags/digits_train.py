"""Train a classifier of handwritten digits: one task, one distributed job.

The job is the same file that `tf-dist run` takes. While it runs, the task waits in the triggerer and holds no worker.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from tf_dist.airflow import TFJobOperator

with DAG(
    "digits_train",
    schedule=None,
    catchup=False,
    tags=["tf-dist"],
    doc_md=__doc__,
    params={"steps": Param(4000, type="integer", minimum=1, description="made by all workers together")},
):
    TFJobOperator(
        task_id="train",
        job="../examples/digits/tfjob.yaml",  # from this file's folder
        args=["--model-dir=/tmp/tf-dist/digits/$(JOB_UID)", "--steps={{ params.steps }}"],
        deferrable=True,
        retries=2,  # one that follows the loss of a worker or triggerer takes up the job that runs
        execution_timeout=timedelta(hours=1),
    )
