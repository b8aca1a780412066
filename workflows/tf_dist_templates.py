"""The steps of tf-dist for people who write YAML: templates to refer to, with their version in their name.

templateRef: {name: tf-dist-v0.1, template: tf-job}

The parameter `job` of tf-job is a whole job: its author may run all that the account may. Write it down in the
workflow, without {{…}} in it, declare in `inputs` what is filled in, and pass
`input-values: "{{workflow.parameters.json}}"`.
"""

from hera.workflows import Parameter, WorkflowTemplate

from tf_dist import __version__
from tf_dist.argo import TFJobStep, cleanup_step, wait_admitted_step

w = WorkflowTemplate(
    name=f"tf-dist-v{'.'.join(__version__.split('.')[:2])}",
    templates=[
        TFJobStep(name="tf-job", job=Parameter(name="job"), metric_outputs=["accuracy", "loss"]),
        wait_admitted_step(Parameter(name="job")),
        cleanup_step(),
    ],
)
