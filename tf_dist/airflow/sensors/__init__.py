"""Sensors: a job's end, and the admission of a gang."""
