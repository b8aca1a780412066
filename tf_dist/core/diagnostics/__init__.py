"""Explanations for users: why a job waits or failed, how it ended, what its replicas do."""
