"""Branch on the outcome of a job: continue from its checkpoint after an eviction, notify people after a failure.

The first step tolerates no disruption and is not retried, so that the workflow decides what follows. `resume` continues
the training in the same folder. `page` runs for all other outcomes and fails, and therefore the workflow fails.

`page` follows `resume`, because the last tasks decide how a workflow ends, and a skipped task counts as the task
before it. If `page` followed `train`, which has failed, the workflow would be Failed even if `resume` succeeded.
"""

from pathlib import Path

from hera.workflows import DAG, Env, Parameter, Workflow, script
from hera.workflows import models as m

from tf_dist.argo import Input, TFJobStep, cleanup_step

ARGS = "spec.tfReplicaSpecs.Worker.template.spec.containers[0].args"
IMAGE = "{{workflow.parameters.image}}"


def training(name: str, **more) -> TFJobStep:
    """Return a step that trains in the folder of this workflow, with the checkpoints of the previous step."""
    return TFJobStep(
        name=name,
        job=Path(__file__).with_name("digits-job.yaml"),
        job_image=IMAGE,
        model_dir="/models/digits/{{workflow.uid}}",
        total_steps="{{inputs.parameters.steps}}",
        **more,
    )


STEPS = {f"{ARGS}[1]": Input("steps", int, default=4000, minimum=1, text="--steps={}")}
NO_DISRUPTIONS = {'metadata.annotations["tf-dist.dev/max-disruptions"]': "0"}

train = training("train", overrides={**STEPS, **NO_DISRUPTIONS}, retry_strategy=None)
resume = training("resume", overrides=STEPS)


@script(
    image=IMAGE,
    image_pull_policy="IfNotPresent",
    inputs=[Parameter(name="outcome"), Parameter(name="replica"), Parameter(name="message")],
    env=[
        Env(name="OUTCOME", value="{{inputs.parameters.outcome}}"),
        Env(name="REPLICA", value="{{inputs.parameters.replica}}"),
        Env(name="MESSAGE", value="{{inputs.parameters.message}}"),
    ],
)
def page():
    """Notify people: call your pager here."""
    import os
    import sys

    print(f"{os.environ['OUTCOME']}: {os.environ['REPLICA']} {os.environ['MESSAGE']}")
    sys.exit(1)


cleanup = cleanup_step()

with Workflow(
    generate_name="evicted-or-failed-",
    entrypoint="main",
    service_account_name="tf-dist-argo",
    arguments=[Parameter(name="image", value="tf-dist/digits:latest"), Parameter(name="steps", value="4000")],
    templates=[cleanup],
    on_exit=cleanup,
    pod_gc=m.PodGC(strategy="OnWorkflowSuccess"),
    ttl_strategy=m.TTLStrategy(seconds_after_completion=86400),
) as w:
    with DAG(name="main"):
        steps = {"steps": "{{workflow.parameters.steps}}"}
        trained = train(arguments=steps)
        outcome = trained.get_parameter("outcome")
        resume(arguments=steps, depends="train.Failed", when=f"{outcome} == evicted || {outcome} == preempted")
        page(
            arguments={
                "outcome": outcome,
                "replica": trained.get_parameter("replica"),
                "message": trained.get_parameter("message"),
            },
            depends="resume.Skipped",
        )
