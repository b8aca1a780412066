"""Search for the best learning rate, with one job for each rate. All jobs are in the same queue.

Every job is a gang: it runs with all its replicas or waits for admission, so the jobs of a sweep that is larger than
the cluster run one after another and never deadlock.
"""

from airflow.sdk import DAG, Param, task

from tf_dist.airflow import TFJobOperator

MODEL_DIR = "--model-dir=/tmp/tf-dist/digits/$(JOB_UID)"

with DAG(
    "tuning_sweep",
    schedule=None,
    catchup=False,
    tags=["tf-dist"],
    doc_md=__doc__,
    params={
        "rates": Param([0.01, 0.05, 0.2], type="array", items={"type": "number"}),
        "steps": Param(1000, type="integer", minimum=1),
        "queue": Param("default", type="string", description="a queue that tf-dist queues lists"),
    },
):

    @task
    def choices(params: dict | None = None) -> list[dict]:
        """Return the arguments of each job."""
        steps = f"--steps={params['steps']}"
        return [
            {"args": [MODEL_DIR, steps, f"--learning-rate={rate}"], "labels": {"rate": str(rate)}}
            for rate in params["rates"]
        ]

    train = TFJobOperator.partial(
        task_id="train",
        job="../examples/digits/tfjob.yaml",
        name="sweep",
        queue_name="{{ params.queue }}",
        map_index_template="{{ task.labels['rate'] }}",
        deferrable=True,
        retries=1,
    ).expand_kwargs(choices())

    @task
    def best(results: list[dict], params: dict | None = None) -> dict:
        """Return the rate with the highest accuracy."""
        found = [
            {"rate": rate, "accuracy": result["metrics"]["accuracy"], "checkpoint": result["checkpoint"]}
            for rate, result in zip(params["rates"], results, strict=True)
        ]
        for row in found:
            print(f"rate={row['rate']:<8} accuracy={row['accuracy']:.4f}")
        return max(found, key=lambda row: row["accuracy"])

    best(train.output)
