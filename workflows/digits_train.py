"""Train one model: a single step that is a distributed job.

What to look at while it runs: every replica's lines in the log of the step, the progress from the training steps, and
the step's output parameters, which are there also when the job failed. Try `argo stop`: its pods are gone in seconds.
The exit handler is for the day on which no launcher is left that could take the job along.
"""

from pathlib import Path

from hera.workflows import Parameter, Workflow
from hera.workflows import models as m

from tf_dist.argo import Input, TFJobStep, cleanup_step

ARGS = "spec.tfReplicaSpecs.Worker.template.spec.containers[0].args"

# The claim that all steps and all replicas see is in storage.yaml, the account in rbac.yaml.
train = TFJobStep(
    name="train",
    job=Path(__file__).with_name("digits-job.yaml"),
    # Each value is checked before the job is made, and goes to its place and to no other.
    overrides={
        f"{ARGS}[1]": Input("steps", int, default=4000, minimum=1, text="--steps={}"),
        f"{ARGS}[2]": Input("learning-rate", float, default=0.05, minimum=0, text="--learning-rate={}"),
    },
    job_image="{{workflow.parameters.image}}",
    # The same folder at each try of the step, so that a job that is made anew finds its checkpoint.
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
