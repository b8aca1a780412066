"""Explanations for users: why a job waits or failed, how it ended, and what its replicas do."""
