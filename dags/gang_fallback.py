"""A gang that takes what it can get: 8 GPUs, else 4, else 8 of the spot queue.

    train, queue of its document   8 GPUs ── a place within 10 min ──▶ runs
                                      │ none
                                      ▼
    the same place in line         8, or 4 GPUs, or 8 of queue spot: the first that fits ──▶ runs
                                      │ none for 10 min more
                                      ▼
                                   outcome admission_timeout; the retry goes on waiting with the old age

The gang queues once: while it waits for less, it still stands where it stood for the 8. An eviction brings the next
entry of the list, from the last checkpoint; a preemption has it wait again. `which` says what it came to.
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
            # The same folder whichever it runs as, so that it goes on from the checkpoints of the last.
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
        """Which entry of the list it ran as; 0: all that it asked for."""
        outcome = ti.xcom_pull(task_ids="train", key="outcome") or {}
        print(f"{outcome.get('kind')}: fallback {outcome.get('fallback')} ({outcome.get('message')})")
        return outcome.get("fallback", 0)

    train >> which()
