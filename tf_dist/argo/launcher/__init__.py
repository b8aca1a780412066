"""The launcher: runs a job as a step of an Argo workflow, in a container of that step."""
