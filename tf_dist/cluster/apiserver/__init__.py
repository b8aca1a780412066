"""The embedded API server: Kubernetes' REST API on loopback over a store in this process."""
