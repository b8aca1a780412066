"""Train once for the same data, image and settings. Another run with these values uses the previous result.

Argo remembers the outputs of a step that succeeded, in a ConfigMap in the namespace of its controller, which must be
allowed to write it there, and does not run the step again for as long as they are young enough. The key holds the
namespace, as the model is on a volume of that, and all that the model depends on, and so does the folder: a run with
other settings finds no checkpoint of these.

`argo suspend` gives up the job's admission. After `argo resume`, the job continues from its last checkpoint.
"""

from pathlib import Path

from hera.workflows import Env, Parameter, Steps, Workflow, script
from hera.workflows import models as m

from tf_dist.argo import Input, TFJobStep, cleanup_step

ARGS = "spec.tfReplicaSpecs.Worker.template.spec.containers[0].args"
IMAGE = "{{workflow.parameters.image}}"


def hashed(parameter: str) -> str:
    """A parameter as Argo takes it in a key, which has letters, digits and "-" only; others of its values differ."""
    return f'{{{{=sprig.trunc(16, sprig.sha256sum(workflow.parameters["{parameter}"]))}}}}'


RATE = '{{=sprig.replace(".", "-", inputs.parameters["learning-rate"])}}'
SETTINGS = f"{hashed('image')}-{hashed('data')}-{{{{inputs.parameters.steps}}}}-{RATE}"

train = TFJobStep(
    name="train",
    job=Path(__file__).with_name("digits-job.yaml"),
    overrides={
        f"{ARGS}[1]": Input("steps", int, minimum=1, text="--steps={}"),
        f"{ARGS}[2]": Input("learning-rate", float, minimum=0, text="--learning-rate={}"),
    },
    job_image=IMAGE,
    model_dir=f"/models/digits/{SETTINGS}",
    total_steps="{{inputs.parameters.steps}}",
    metric_outputs=["accuracy"],
    memoize=m.Memoize(
        key=f"{{{{workflow.namespace}}}}-digits-{SETTINGS}",
        max_age="720h",
        cache=m.Cache(config_map=m.LocalObjectReference(name="digits-trained")),
    ),
)


@script(
    image=IMAGE,
    image_pull_policy="IfNotPresent",
    inputs=[Parameter(name="checkpoint"), Parameter(name="accuracy")],
    env=[
        Env(name="CHECKPOINT", value="{{inputs.parameters.checkpoint}}"),
        Env(name="ACCURACY", value="{{inputs.parameters.accuracy}}"),
    ],
)
def report():
    """Print the model, which this run or an earlier run trained."""
    import os

    print(f"{os.environ['CHECKPOINT']}: accuracy={os.environ['ACCURACY']}")


cleanup = cleanup_step()

with Workflow(
    generate_name="train-once-",
    entrypoint="main",
    service_account_name="tf-dist-argo",
    arguments=[
        Parameter(name="image", value="tf-dist/digits:latest"),
        Parameter(name="data", value="v1"),
        Parameter(name="steps", value="4000"),
        Parameter(name="learning-rate", value="0.05"),
    ],
    templates=[cleanup],
    on_exit=cleanup,
    pod_gc=m.PodGC(strategy="OnWorkflowSuccess"),
    ttl_strategy=m.TTLStrategy(seconds_after_completion=86400),
) as w:
    # Not a DAG: Argo 4.1 never ends one whose memoized task has tries of its own and is not run again.
    with Steps(name="main"):
        trained = train(
            arguments={
                "steps": "{{workflow.parameters.steps}}",
                "learning-rate": "{{workflow.parameters.learning-rate}}",
            }
        )
        report(
            arguments={
                "checkpoint": trained.get_parameter("checkpoint"),
                "accuracy": trained.get_parameter("accuracy"),
            }
        )
