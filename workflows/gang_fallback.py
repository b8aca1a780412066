"""A gang with alternatives: 8 GPUs, otherwise 4, otherwise 8 in the queue spot.

    train, queue of its document   8 GPUs ── admitted within 10 min ──▶ runs
                                      │ not
                                      ▼
    same position in the queue     8, or 4 GPUs, or 8 of queue spot: the first that fits ──▶ runs
                                      │ not within 10 min more
                                      ▼
                                   outcome admission_timeout; a retry keeps the age of the job

After an eviction, the job continues in the same folder as the next entry of the list. After a preemption, it waits
again. The output `fallback` of `train` is the entry that ran, with 0 for the original request. `which` prints it. As
the last task, `which` also decides how the workflow ends, and therefore fails if the training failed.
"""

from pathlib import Path

from hera.workflows import DAG, Env, Parameter, Workflow, script
from hera.workflows import models as m

from tf_dist.argo import Input, TFJobStep, cleanup_step

CONTAINER = "spec.tfReplicaSpecs.Worker.template.spec.containers[0]"
IMAGE = "{{workflow.parameters.image}}"

train = TFJobStep(
    name="train",
    job=Path(__file__).with_name("digits-job.yaml"),
    job_image=IMAGE,
    model_dir="/models/digits/{{workflow.uid}}",
    total_steps="{{inputs.parameters.steps}}",
    overrides={
        "spec.tfReplicaSpecs.Worker.replicas": 8,
        f"{CONTAINER}.resources.limits": {"nvidia.com/gpu": 1},
        f"{CONTAINER}.args[1]": Input("steps", int, default=4000, minimum=1, text="--steps={}"),
    },
    admission_timeout="10m",
    fallback=[{"workers": 4}, {"queue_name": "spot"}],
    on_eviction="fallback",
    on_preemption="requeue",
)


@script(
    image=IMAGE,
    image_pull_policy="IfNotPresent",
    inputs=[Parameter(name="outcome"), Parameter(name="fallback")],
    env=[
        Env(name="OUTCOME", value="{{inputs.parameters.outcome}}"),
        Env(name="FALLBACK", value="{{inputs.parameters.fallback}}"),
    ],
)
def which():
    """Print the entry of the list that ran."""
    import os
    import sys

    print(f"{os.environ['OUTCOME']}: fallback {os.environ['FALLBACK']}")
    sys.exit(os.environ["OUTCOME"] != "succeeded")


cleanup = cleanup_step()

with Workflow(
    generate_name="gang-fallback-",
    entrypoint="main",
    service_account_name="tf-dist-argo",
    arguments=[Parameter(name="image", value="tf-dist/digits:latest"), Parameter(name="steps", value="4000")],
    templates=[cleanup],
    on_exit=cleanup,
    pod_gc=m.PodGC(strategy="OnWorkflowSuccess"),
    ttl_strategy=m.TTLStrategy(seconds_after_completion=86400),
) as w:
    with DAG(name="main"):
        trained = train(arguments={"steps": "{{workflow.parameters.steps}}"})
        which(
            arguments={
                "outcome": trained.get_parameter("outcome"),
                "fallback": trained.get_parameter("fallback"),
            },
            depends="train.Succeeded || train.Failed",
        )
