"""Train one model in a single step, which is a distributed job.

While it runs, the log of the step shows the lines of every replica, and the progress shows the training steps. The
step has output parameters even if the job failed. `argo stop` removes the pods within seconds. The exit handler deletes
the job if no launcher is left to do so.
"""

from pathlib import Path

from hera.workflows import Parameter, Workflow
from hera.workflows import models as m

from tf_dist.argo import Input, TFJobStep, cleanup_step

ARGS = "spec.tfReplicaSpecs.Worker.template.spec.containers[0].args"

# storage.yaml has the claim that all steps and replicas mount, and rbac.yaml has the account.
train = TFJobStep(
    name="train",
    job=Path(__file__).with_name("digits-job.yaml"),
    # Each value is checked before the job is created, and is inserted only at its path.
    overrides={
        f"{ARGS}[1]": Input("steps", int, default=4000, minimum=1, text="--steps={}"),
        f"{ARGS}[2]": Input("learning-rate", float, default=0.05, minimum=0, text="--learning-rate={}"),
    },
    job_image="{{workflow.parameters.image}}",
    # All retries of the step use the same folder, so that a new job finds the checkpoint.
    model_dir="/models/digits/{{workflow.uid}}",
    total_steps="{{inputs.parameters.steps}}",
    metric_outputs=["accuracy"],
)

cleanup = cleanup_step()

w = Workflow(
    generate_name="digits-train-",
    entrypoint="train",
    service_account_name="tf-dist-argo",
    arguments=[
        Parameter(name="image", value="tf-dist/digits:latest"),
        Parameter(name="steps", value="4000"),
        Parameter(name="learning-rate", value="0.05"),
    ],
    templates=[train, cleanup],
    on_exit=cleanup,
    pod_gc=m.PodGC(strategy="OnWorkflowSuccess"),
    ttl_strategy=m.TTLStrategy(seconds_after_completion=86400),
)
