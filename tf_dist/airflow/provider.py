"""Provider information for Airflow. Imports nothing: every Airflow process asks for it."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """The provider's description, by Airflow's own schema."""
    name = "TensorFlow jobs"
    return {
        "package-name": "tf-dist",
        "name": name,
        "description": "Distributed TensorFlow jobs (TFJob, Volcano Job) as tasks.",
        "integrations": [
            {"integration-name": name, "external-doc-url": "https://www.kubeflow.org/docs", "tags": ["software"]}
        ],
        "operators": [
            {
                "integration-name": name,
                "python-modules": ["tf_dist.airflow.operators.tfjob", "tf_dist.airflow.operators.job_actions"],
            }
        ],
        "sensors": [{"integration-name": name, "python-modules": ["tf_dist.airflow.sensors.tfjob"]}],
        "hooks": [{"integration-name": name, "python-modules": ["tf_dist.airflow.hooks.tfjob"]}],
        "triggers": [{"integration-name": name, "python-modules": ["tf_dist.airflow.triggers.tfjob"]}],
        "task-decorators": [{"name": "tfjob", "class-name": "tf_dist.airflow.decorators.tfjob.tfjob_task"}],
        "extra-links": [
            "tf_dist.airflow.links.tfjob.JobLink",
            "tf_dist.airflow.links.tfjob.TensorBoardLink",
            "tf_dist.airflow.links.tfjob.CheckpointLink",
        ],
        "config": {
            "tf_dist": {
                "description": "Tasks that run TensorFlow jobs.",
                "options": {
                    "deployment": {
                        "description": "Tells the jobs of this Airflow from those of another one on the same cluster "
                        "and namespace. Empty: the address of the API server ([api] base_url), if it is one in a whole "
                        "network; a name kept in AIRFLOW_HOME, if the API server is on this machine; a fingerprint of "
                        "[core] fernet_key, if that comes from the environment. Without any of them tasks are refused.",
                        "type": "string",
                        "default": "",
                        "example": "staging",
                        "version_added": "0.1.0",
                    },
                    "log_streams": {
                        "description": "How many containers' logs a process follows at a time, for each cluster and "
                        "namespace; the others wait for their turn.",
                        "type": "integer",
                        "default": "128",
                        "example": None,
                        "version_added": "0.1.0",
                    },
                },
            }
        },
    }
