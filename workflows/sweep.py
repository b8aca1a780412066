"""Search for the best learning rate, with one job for each rate. The queue decides how many jobs run at a time.

Each item of the loop is a separate step with its own job, name and folder.
"""

from pathlib import Path

from hera.workflows import DAG, Env, Parameter, Workflow, script
from hera.workflows import models as m

from tf_dist.argo import Input, TFJobStep, cleanup_step

ARGS = "spec.tfReplicaSpecs.Worker.template.spec.containers[0].args"

train = TFJobStep(
    name="train",
    job=Path(__file__).with_name("digits-job.yaml"),
    overrides={
        f"{ARGS}[1]": Input("steps", int, minimum=1, text="--steps={}"),
        f"{ARGS}[2]": Input("learning-rate", float, minimum=0, text="--learning-rate={}"),
    },
    workers=1,
    job_image="{{workflow.parameters.image}}",
    model_dir="/models/digits/{{workflow.uid}}-{{inputs.parameters.learning-rate}}",
    total_steps="{{inputs.parameters.steps}}",
    metric_outputs=["accuracy"],
)


@script(
    image="{{workflow.parameters.image}}",
    image_pull_policy="IfNotPresent",
    inputs=[Parameter(name="rates"), Parameter(name="results")],
    # Values in the environment are text. In the source of a script, they would be Python.
    env=[
        Env(name="RATES", value="{{inputs.parameters.rates}}"),
        Env(name="RESULTS", value="{{inputs.parameters.results}}"),
    ],
    outputs=[Parameter(name="best", value_from=m.ValueFrom(path="/tmp/best"))],
)
def choose():
    """Choose the best rate. Results are in the order of the rates, and a missing accuracy counts as 0."""
    import json
    import os
    import pathlib

    rates, results = (json.loads(os.environ[name]) for name in ("RATES", "RESULTS"))
    found = [(float(result["accuracy"] or 0), rate) for result, rate in zip(results, rates, strict=True)]
    for accuracy, rate in found:
        print(f"learning rate {rate}: accuracy={accuracy:.4f}")
    pathlib.Path("/tmp/best").write_text(str(max(found)[1]))


cleanup = cleanup_step()

with Workflow(
    generate_name="digits-sweep-",
    entrypoint="sweep",
    service_account_name="tf-dist-argo",
    parallelism=4,
    arguments=[
        Parameter(name="image", value="tf-dist/digits:latest"),
        Parameter(name="steps", value="2000"),
        Parameter(name="learning-rates", value="[0.01, 0.05, 0.2]"),
    ],
    templates=[cleanup],
    on_exit=cleanup,
    pod_gc=m.PodGC(strategy="OnWorkflowSuccess"),
    ttl_strategy=m.TTLStrategy(seconds_after_completion=86400),
) as w:
    with DAG(name="sweep"):
        trained = train(
            arguments={"steps": "{{workflow.parameters.steps}}", "learning-rate": "{{item}}"},
            with_param="{{workflow.parameters.learning-rates}}",
        )
        chosen = choose(
            arguments={
                "rates": "{{workflow.parameters.learning-rates}}",
                "results": "{{tasks.train.outputs.parameters}}",
            }
        )
        trained >> chosen
