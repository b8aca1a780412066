"""Sensors for the state of a job, and for the admission of its gang."""
