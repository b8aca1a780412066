"""The launcher: runs a job as a step of an Argo workflow, from a container of that step."""
