"""A long training that frees its GPUs at night, and continues from its checkpoint with more workers in the morning.

`submit` passes the job to a controller, under a name that other DAGs and people can also use. `suspend` ends the pods
and frees their GPUs. In the morning, `scale` and `resume` let the job wait for admission with more workers. The program
finds its last checkpoint in the same folder.
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow.sdk import DAG, Param, task

from tf_dist.airflow import (
    DeleteTFJobOperator,
    ResumeTFJobOperator,
    ScaleTFJobOperator,
    SubmitTFJobOperator,
    SuspendTFJobOperator,
    TFJobSensor,
)

JOB = {"job_name": "{{ ti.xcom_pull('submit')['name'] }}", "namespace": "{{ ti.xcom_pull('submit')['namespace'] }}"}
WAIT = {**JOB, "deferrable": True, "timeout": timedelta(days=3).total_seconds()}

with DAG(
    "pause_at_night",
    schedule=None,
    catchup=False,
    max_active_runs=1,  # all runs use the same job name
    tags=["tf-dist"],
    doc_md=__doc__,
    params={
        "steps": Param(200_000, type="integer", minimum=1),
        "night_seconds": Param(8 * 3600, type="number", minimum=0),
        "workers": Param(3, type="integer", minimum=1, description="after the night"),
    },
):
    submit = SubmitTFJobOperator(
        task_id="submit",
        job="../examples/digits/tfjob.yaml",
        name="digits-by-day",
        overrides={"spec.runPolicy.activeDeadlineSeconds": 3 * 24 * 3600},
        args=["--model-dir=/tmp/tf-dist/digits/$(JOB_UID)", "--steps={{ params.steps }}"],
    )
    running = TFJobSensor(task_id="running", until="running", **WAIT)
    suspend = SuspendTFJobOperator(task_id="suspend", **JOB)
    suspended = TFJobSensor(task_id="suspended", until="suspended", **WAIT)

    @task
    def end_of_night(params: dict) -> str:
        """Return the time at which the job may continue."""
        return (datetime.now(UTC) + timedelta(seconds=params["night_seconds"])).isoformat()

    morning = DateTimeSensorAsync(task_id="morning", target_time="{{ ti.xcom_pull('end_of_night') }}")
    scale = ScaleTFJobOperator(task_id="scale", workers="{{ params.workers }}", **JOB)
    resume = ResumeTFJobOperator(task_id="resume", **JOB)
    finished = TFJobSensor(task_id="finished", **WAIT)
    clean_up = DeleteTFJobOperator(task_id="clean_up", wait_for_completion=True, **JOB)

    submit >> running >> suspend >> suspended >> end_of_night() >> morning >> scale >> resume >> finished
    finished >> clean_up.as_teardown(setups=submit)
