"""The steps of tf-dist as templates for workflows in YAML. The name of the templates contains the version:

templateRef: {name: tf-dist-v0.1, template: tf-job}

The parameter `job` of tf-job is a whole job: its author may run all that the account may. Write it down in the
workflow, without {{…}} in it. What is filled in goes to `overrides` (`{"PATH": VALUE}`, as JSON), or is declared in
`inputs`, with `input-values: "{{workflow.parameters.json}}"`, which checks each value.

`image`, `job-image` and `service-account` say what runs and as whom; `metric` which metric is the output `metric`.
"""

from hera.workflows import Parameter, WorkflowTemplate

from tf_dist import __version__
from tf_dist.argo import IMAGE, TFJobStep, cleanup_step, wait_admitted_step

# Every template accepts the image of tf-dist and the account. The default is the account of the workflow.
COMMON = [
    Parameter(name="image", default=IMAGE, description="the image of tf-dist"),
    Parameter(name="service-account", default="", description="the account of the step; empty: the workflow's"),
]
AS_GIVEN = {"image": "{{inputs.parameters.image}}", "service_account_name": "{{inputs.parameters.service-account}}"}

w = WorkflowTemplate(
    name=f"tf-dist-v{'.'.join(__version__.split('.')[:2])}",
    templates=[
        TFJobStep(
            name="tf-job",
            job=Parameter(name="job"),
            inputs=[*COMMON, Parameter(name="metric", default="accuracy", description="the metric that is an output")],
            metric_outputs={"accuracy": "accuracy", "loss": "loss", "metric": "{{inputs.parameters.metric}}"},
            **AS_GIVEN,
        ),
        wait_admitted_step(Parameter(name="job"), inputs=COMMON, **AS_GIVEN),
        cleanup_step(inputs=COMMON, **AS_GIVEN),
    ],
)
