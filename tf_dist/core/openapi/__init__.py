"""The types of Kubernetes' built-in kinds, from its OpenAPI document."""
