"""A job that a controller runs and sensors watch, and a job that is retried after an eviction.

`submit` submits the job and does not wait. The sensors wait for its admission and its end in the triggerer, without a
worker. `interruptible` shows a retry policy: an evicted job is retried later, a job that failed by itself is not.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from tf_dist.airflow import (
    DeleteTFJobOperator,
    GangAdmittedSensor,
    JobEvicted,
    JobFailed,
    TFJobOperator,
    TFJobSensor,
)

try:
    from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

    AFTER_EVICTIONS = {
        "retry_policy": ExceptionRetryPolicy(
            rules=[
                RetryRule(exception=JobEvicted, action=RetryAction.RETRY, retry_delay=timedelta(minutes=5)),
                RetryRule(exception=JobFailed, action=RetryAction.FAIL),
            ]
        )
    }
except ImportError:  # before Airflow 3.3: the task is retried after any failure
    AFTER_EVICTIONS = {"retry_delay": timedelta(minutes=5)}

ARGS = ["--model-dir=/tmp/tf-dist/digits/$(JOB_UID)", "--steps={{ params.steps }}"]

with DAG(
    "gang_wait",
    schedule=None,
    catchup=False,
    tags=["tf-dist"],
    doc_md=__doc__,
    params={"steps": Param(1000, type="integer", minimum=1)},
):
    submit = TFJobOperator(
        task_id="submit",
        job="../examples/digits/tfjob.yaml",
        args=ARGS,
        driver="controller",  # of tf-dist controller or of a local cluster
        wait_for_completion=False,
    )
    admitted = GangAdmittedSensor(
        task_id="admitted", job_name="{{ ti.xcom_pull('submit')['name'] }}", deferrable=True, timeout=3600
    )
    finished = TFJobSensor(
        task_id="finished", job_name="{{ ti.xcom_pull('submit')['name'] }}", deferrable=True, timeout=24 * 3600
    )

    # A teardown runs after every outcome of the other tasks. If one of them fails, the run still fails.
    clean_up = DeleteTFJobOperator(task_id="clean_up", job_name="{{ ti.xcom_pull('submit')['name'] }}")
    submit >> admitted >> finished >> clean_up.as_teardown(setups=submit)

    TFJobOperator(
        task_id="interruptible",
        job="../examples/digits/tfjob.yaml",
        args=ARGS,
        deferrable=True,
        admission_timeout=6 * 3600,
        retries=5,
        **AFTER_EVICTIONS,
    )
