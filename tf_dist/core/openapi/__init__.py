"""The types of Kubernetes' own kinds, from its OpenAPI document."""
