"""The operators, and the run of one try of a task."""
