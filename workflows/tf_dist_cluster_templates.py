"""The same templates for a whole cluster.

templateRef: {name: tf-dist-v0.1, template: tf-job, clusterScope: true}
"""

from hera.workflows import ClusterWorkflowTemplate
from tf_dist_templates import w as templates

w = ClusterWorkflowTemplate(name=templates.name, templates=templates.templates)
