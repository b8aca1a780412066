"""Retrain on new data, or every night: train, evaluate, and promote the model only if it is better than the last.

To announce new data, put a file at the path below, which an `AssetWatcher` watches, or post an event of the asset
`digits_data`. Each promoted model is an event of the asset `digits_model` and starts the DAGs that are scheduled on
that asset.
"""

import os
from datetime import timedelta

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.providers.standard.triggers.file import FileDeleteTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, Param, task

from tf_dist.airflow import TFJobOperator

try:
    from airflow.sdk import AssetOrTimeSchedule, CronTriggerTimetable
except ImportError:  # before Airflow 3.2
    from airflow.timetables.assets import AssetOrTimeSchedule
    from airflow.timetables.trigger import CronTriggerTimetable

INBOX = os.environ.get("DIGITS_INBOX", "/tmp/tf-dist/inbox/digits.new")
DATA = Asset(
    "digits_data", watchers=[AssetWatcher(name="inbox", trigger=FileDeleteTrigger(filepath=INBOX, poke_interval=5.0))]
)
MODEL = Asset("digits_model")

# The evaluation reads the files that the training wrote. On one machine, both use the same folder. On a cluster, both
# mount the PersistentVolumeClaim that DIGITS_CLAIM names. With several nodes, the claim must be ReadWriteMany.
FOLDER = "/tmp/tf-dist/digits"
CLAIM = os.environ.get("DIGITS_CLAIM")
VOLUME = {"volumes": [{"name": "model", "persistentVolumeClaim": {"claimName": CLAIM}}]} if CLAIM else {}
MOUNT = {"volumeMounts": [{"name": "model", "mountPath": FOLDER}]} if CLAIM else {}
if CLAIM:
    VOLUME["securityContext"] = {"fsGroup": 1000}  # the group of the image's user
WORKER = "spec.tfReplicaSpecs.Worker.template.spec"

with DAG(
    "digits_retrain",
    schedule=AssetOrTimeSchedule(timetable=CronTriggerTimetable("0 3 * * *", timezone="UTC"), assets=[DATA]),
    catchup=False,
    max_active_runs=1,  # events that arrive during a training start one more run together
    tags=["tf-dist"],
    doc_md=__doc__,
    params={"steps": Param(4000, type="integer", minimum=1, description="made by all workers together")},
):
    train = TFJobOperator(
        task_id="train",
        job="../examples/digits/tfjob.yaml",
        args=[f"--model-dir={FOLDER}/$(JOB_UID)", "--steps={{ params.steps }}"],
        overrides={
            **{f"{WORKER}.{key}": value for key, value in VOLUME.items()},
            **{f"{WORKER}.containers[0].{key}": value for key, value in MOUNT.items()},
        },
        deferrable=True,
        retries=2,
        execution_timeout=timedelta(hours=1),
    )

    @task.tfjob(
        image="tf-dist/digits:latest",
        resources={"cpu": "500m", "memory": "768Mi"},
        pod=VOLUME,
        container={"imagePullPolicy": "IfNotPresent", **MOUNT},
        deferrable=True,
        retries=1,
    )
    def evaluate(trained: dict) -> dict:
        """Measure the model on images that it has not seen."""
        import os
        from pathlib import Path

        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
        import numpy as np
        import tensorflow as tf
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        images = (digits.images[..., np.newaxis] / 16).astype(np.float32)
        split = {"test_size": 0.2, "random_state": 0, "stratify": digits.target}
        _, held_out, _, labels = train_test_split(images, digits.target, **split)
        model = tf.saved_model.load(str(Path(trained["checkpoint"]).parent / "export"))
        found = np.argmax(model.serve(held_out).numpy(), axis=1)
        return {"accuracy": float(np.mean(found == labels)), "checkpoint": trained["checkpoint"]}

    @task(inlets=[MODEL], outlets=[MODEL])
    def promote(trained: dict, evaluated: dict, *, inlet_events=None, outlet_events=None) -> dict:
        """Announce the model if it is better than the last announced model."""
        accuracy = evaluated["accuracy"]
        before = [event.extra.get("accuracy", 0.0) for event in inlet_events[MODEL]]
        if before and accuracy <= before[-1]:
            raise AirflowSkipException(f"accuracy {accuracy:.4f}, and the last model has {before[-1]:.4f}")
        model = {"accuracy": accuracy, "checkpoint": trained["checkpoint"], "job": trained["name"]}
        outlet_events[MODEL].extra = model
        return model

    @task(trigger_rule="none_failed")
    def report(trained: dict, evaluated: dict, promoted: dict | None = None) -> None:
        """Print the results of the run."""
        rows = {
            "job": trained["name"],
            "step": f"{trained['metrics'].get('step', 0):.0f}",
            "loss": trained["metrics"].get("loss"),
            "accuracy": f"{evaluated['accuracy']:.4f} on held-out images",
            "checkpoint": trained["checkpoint"],
            "waited": f"{trained['waited_seconds']:.1f} s",
            "trained": f"{trained['ran_seconds']:.1f} s",
            "restarts": trained["restarts"],
            "promoted": "yes" if promoted else "no: the last model is as good",
        }
        for name, value in rows.items():
            print(f"{name:<12}{value}")

    measured = evaluate(train.output)
    report(train.output, measured, promote(train.output, measured))
