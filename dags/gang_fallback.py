"""A gang with alternatives: 8 GPUs, otherwise 4, otherwise 8 in the queue spot.

    train, queue of its document   8 GPUs ── admitted within 10 min ──▶ runs
                                      │ not
                                      ▼
    same position in the queue     8, or 4 GPUs, or 8 of queue spot: the first that fits ──▶ runs
                                      │ not within 10 min more
                                      ▼
                                   outcome admission_timeout; a retry keeps the age of the job

The gang queues once: while it waits for an alternative, it keeps its position. After an eviction, the job continues
from the last checkpoint as the next entry of the list. After a preemption, it waits again. `which` prints the entry
that ran.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param, task

from tf_dist.airflow import TFJobOperator

GPUS, FEWER = 8, 4
RESOURCES = {"nvidia.com/gpu": 1}
ADMISSION_TIMEOUT = 600.0
WORKER = "spec.tfReplicaSpecs.Worker"
CONTAINER = f"{WORKER}.template.spec.containers[0]"

with DAG(
    "gang_fallback",
    schedule=None,
    catchup=False,
    tags=["tf-dist"],
    doc_md=__doc__,
    params={"steps": Param(4000, type="integer", minimum=1)},
):
    train = TFJobOperator(
        task_id="train",
        job="../examples/digits/tfjob.yaml",
        overrides={
            f"{WORKER}.replicas": GPUS,
            f"{CONTAINER}.resources.limits": RESOURCES,
            # All entries use the same folder, so that each continues from the checkpoints of the previous entry.
            f"{CONTAINER}.args[0]": "--model-dir=/tmp/tf-dist/digits/{{ run_id | replace(':', '-') }}",
            f"{CONTAINER}.args[1]": "--steps={{ params.steps }}",
        },
        admission_timeout=ADMISSION_TIMEOUT,
        fallback=[{"workers": FEWER}, {"queue_name": "spot"}],
        on_eviction="fallback",
        on_preemption="requeue",
        deferrable=True,
        retries=3,
        retry_delay=timedelta(minutes=1),
    )

    @task(trigger_rule="all_done")
    def which(ti=None) -> int:
        """Return the entry of the list that ran; 0 is the original request."""
        outcome = ti.xcom_pull(task_ids="train", key="outcome") or {}
        print(f"{outcome.get('kind')}: fallback {outcome.get('fallback')} ({outcome.get('message')})")
        return outcome.get("fallback", 0)

    train >> which()
