"""The trigger of deferred tasks."""
