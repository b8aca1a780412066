"""Retrain, and promote only a better model: prepare, train, evaluate, promote, and always clean up.

`cron_retrain` and `event_retrain` start this template. `argo retry` continues the job and its checkpoint, because both
are identified only by the workflow and the step.

Scripts get their values from environment variables. Argo would insert other parameters into the Python source.
"""

from pathlib import Path

from hera.workflows import DAG, Env, ExistingVolume, Parameter, WorkflowTemplate, script
from hera.workflows import models as m

from tf_dist.argo import Input, TFJobStep, cleanup_step

IMAGE = "{{workflow.parameters.image}}"
FOLDER = "/models/digits/{{workflow.uid}}"
ARGS = "spec.tfReplicaSpecs.Worker.template.spec.containers[0].args"

folder = Env(name="FOLDER", value=FOLDER)
models = ExistingVolume(name="models", claim_name="tf-dist-models", mount_path="/models")


@script(
    image=IMAGE,
    image_pull_policy="IfNotPresent",
    volumes=[models],
    env=[folder],
    outputs=[Parameter(name="samples", value_from=m.ValueFrom(path="/tmp/samples"))],
)
def prepare():
    """Store the part of the digits that no worker trains on, to evaluate the model later."""
    import os
    import pathlib

    import numpy
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    folder = os.environ["FOLDER"]
    digits = load_digits()
    images = (digits.images[..., numpy.newaxis] / 16).astype("float32")
    _, images, _, labels = train_test_split(
        images, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    numpy.savez(f"{folder}/held-out.npz", images=images, labels=labels)
    pathlib.Path("/tmp/samples").write_text(str(len(labels)))
    print(f"{len(labels)} images put aside in {folder}")


train = TFJobStep(
    name="train",
    job=Path(__file__).with_name("digits-job.yaml"),
    overrides={
        f"{ARGS}[1]": Input("steps", int, minimum=1, text="--steps={}"),
        f"{ARGS}[2]": Input("learning-rate", float, minimum=0, text="--learning-rate={}"),
    },
    workers="{{workflow.parameters.workers}}",
    job_image=IMAGE,
    model_dir=FOLDER,
    total_steps="{{inputs.parameters.steps}}",
    admission_timeout="2h",
    metric_outputs=["accuracy"],
)


@script(
    image=IMAGE,
    image_pull_policy="IfNotPresent",
    volumes=[models],
    inputs=[Parameter(name="checkpoint")],
    env=[folder, Env(name="CHECKPOINT", value="{{inputs.parameters.checkpoint}}")],
    outputs=[
        Parameter(name="accuracy", value_from=m.ValueFrom(path="/tmp/accuracy", default="0")),
        Parameter(name="better", value_from=m.ValueFrom(path="/tmp/better", default="no")),
    ],
)
def evaluate():
    """Measure the trained model on the stored images, and compare it with the model in production."""
    import os
    import pathlib

    import numpy
    import tensorflow as tf

    folder = os.environ["FOLDER"]
    held_out = numpy.load(f"{folder}/held-out.npz")
    model = tf.saved_model.load(f"{folder}/export")
    accuracy = float(numpy.mean(numpy.argmax(model.serve(held_out["images"]), axis=1) == held_out["labels"]))
    production = pathlib.Path("/models/production/accuracy")
    before = float(production.read_text()) if production.exists() else 0.0
    print(f"{os.environ['CHECKPOINT']}: accuracy={accuracy:.4f}, in production {before:.4f}")
    pathlib.Path("/tmp/accuracy").write_text(f"{accuracy:.4f}")
    pathlib.Path("/tmp/better").write_text("yes" if accuracy > before else "no")


@script(
    image=IMAGE,
    image_pull_policy="IfNotPresent",
    volumes=[models],
    inputs=[Parameter(name="accuracy")],
    env=[folder, Env(name="ACCURACY", value="{{inputs.parameters.accuracy}}")],
)
def promote():
    """Replace the model in production atomically: readers see the old model or the new model."""
    import os
    import pathlib

    version = pathlib.Path(os.environ["FOLDER"])
    accuracy = float(os.environ["ACCURACY"])
    (version / "accuracy").write_text(f"{accuracy:.4f}")
    link = version.parent.parent / ".production"
    link.unlink(missing_ok=True)
    link.symlink_to(version)
    os.replace(link, version.parent.parent / "production")
    print(f"production is {version} with accuracy={accuracy:.4f}")


cleanup = cleanup_step()

with WorkflowTemplate(
    name="digits-retrain",
    entrypoint="retrain",
    service_account_name="tf-dist-argo",
    # A new volume belongs to root. This setting gives it to the group of the image's user, for every step.
    security_context=m.PodSecurityContext(fs_group=1000),
    arguments=[
        Parameter(name="image", value="tf-dist/digits:latest"),
        Parameter(name="steps", value="4000"),
        Parameter(name="learning-rate", value="0.05"),
        Parameter(name="workers", value="2"),
    ],
    templates=[cleanup],
    on_exit=cleanup,
    pod_gc=m.PodGC(strategy="OnWorkflowSuccess"),
    ttl_strategy=m.TTLStrategy(seconds_after_completion=86400),
) as w:
    with DAG(name="retrain"):
        prepared = prepare()
        trained = train(
            arguments={
                "steps": "{{workflow.parameters.steps}}",
                "learning-rate": "{{workflow.parameters.learning-rate}}",
            }
        )
        evaluated = evaluate(arguments={"checkpoint": trained.get_parameter("checkpoint")})
        promoted = promote(
            arguments={"accuracy": evaluated.get_parameter("accuracy")},
            when=f"{evaluated.get_parameter('better')} == yes",
        )
        prepared >> trained >> evaluated >> promoted
