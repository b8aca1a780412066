"""Retrain every night, one run at a time. If a run still trains, the next run is skipped until the following night."""

from hera.workflows import CronWorkflow, Parameter
from hera.workflows import models as m

w = CronWorkflow(
    name="digits-nightly",
    schedules=["0 3 * * *"],
    timezone="Etc/UTC",
    # Replace would end the present run without its exit handler.
    concurrency_policy="Forbid",
    starting_deadline_seconds=3600,
    stop_strategy=m.StopStrategy(expression="cronworkflow.failed >= 3"),
    workflow_template_ref=m.WorkflowTemplateRef(name="digits-retrain"),
    arguments=[Parameter(name="steps", value="4000")],
)
