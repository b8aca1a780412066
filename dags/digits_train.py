"""Train a classifier of handwritten digits: one task, one distributed job.

`tf-dist run` accepts the same job file. While the job runs, the task waits in the triggerer and uses no worker.
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
        job="../examples/digits/tfjob.yaml",  # relative to the folder of this file
        args=["--model-dir=/tmp/tf-dist/digits/$(JOB_UID)", "--steps={{ params.steps }}"],
        deferrable=True,
        retries=2,  # a retry after the loss of a worker or triggerer continues the running job
        execution_timeout=timedelta(hours=1),
    )
