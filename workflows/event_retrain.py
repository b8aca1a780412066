"""Retrain when new data is available. The producer of the data sends an event to Argo's server:

curl https://ARGO-SERVER/api/v1/events/NAMESPACE/digits -H "Authorization: $ARGO_TOKEN" -d '{"steps": 6000}'
"""

from hera.workflows import models as m

w = m.WorkflowEventBinding(
    api_version="argoproj.io/v1alpha1",
    kind="WorkflowEventBinding",
    metadata=m.ObjectMeta(name="digits-new-data"),
    spec=m.WorkflowEventBindingSpec(
        event=m.Event(selector='discriminator == "digits" && payload.steps != nil'),
        submit=m.Submit(
            workflow_template_ref=m.WorkflowTemplateRef(name="digits-retrain"),
            arguments=m.Arguments(
                parameters=[m.Parameter(name="steps", value_from=m.ValueFrom(event="payload.steps"))],
            ),
        ),
    ),
)
